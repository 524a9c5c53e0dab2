"""Keeps prepared what a Switchover under way starts or puts in force: the Jobs of hooks, and the NetworkPolicies of a fence.

They are created from the ConfigMap of the Switchover, so a pair that was changed or deleted meanwhile changes nothing.
"""

import json
from dataclasses import dataclass
from typing import Any

from mirrorflow_operator.cluster.client import CONFIG_MAP, JOB, NETWORK_POLICY, Client, Object, ObjectKind
from mirrorflow_operator.errors import ConflictError, NotFoundError
from mirrorflow_operator.metrics import Metrics
from mirrorflow_operator.plan.fence_policies import (
    DIGEST_ANNOTATION,
    FENCE_POLICIES_FILE,
    fence_selector,
    is_in_force,
)
from mirrorflow_operator.plan.hook_jobs import HOOK_JOBS_FILE, ID_ANNOTATION, hook_selector
from mirrorflow_operator.plan.names import PAIR_LABEL, SWITCHOVER_LABEL
from mirrorflow_operator.plan.prepared_objects import text_digest
from mirrorflow_operator.plan.switchover_objects import object_name_of, switchover_id
from mirrorflow_operator.status.pair_observation import ObservedSwitchoverJob, PairKey, PairObservation


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchoverPreparation:
    """One pass over the Jobs of the hooks, and the NetworkPolicies of the fence, of a pair."""

    client: Client
    metrics: Metrics

    async def prepare(self, observation: PairObservation) -> None:
        """Creates and deletes what the Jobs that carry Switchovers out ask for. Raises ApiServerError, ConflictError."""
        key = observation.key
        # At most one is under way.
        current = next((job for job in observation.jobs.values() if not job.is_complete), None)
        if any(HOOK_JOBS_FILE in job.prepared for job in observation.jobs.values()):
            await self._prepare_hooks(key, current)
        if current is not None and FENCE_POLICIES_FILE in current.prepared:
            await self._prepare_fences(key, current)

    async def _prepare_hooks(self, key: PairKey, current: ObservedSwitchoverJob | None) -> None:
        """Creates the Jobs of *current*, and deletes those of others."""
        existing = await self._existing(JOB, key, hook_selector(key.name))
        wanted = None if current is None else switchover_id(key.name, current.switchover)
        for body in existing.values():
            metadata = body["metadata"]
            is_current = (metadata.get("annotations") or {}).get(ID_ANNOTATION) == wanted
            if not is_current and "deletionTimestamp" not in metadata:
                await self._delete(JOB, key, body, dependents_first=True)
        if current is None or HOOK_JOBS_FILE not in current.prepared:
            return
        for planned in await self._planned(key, current, HOOK_JOBS_FILE):
            if planned["metadata"]["name"] not in existing:
                await self._create(JOB, key, planned)

    async def _prepare_fences(self, key: PairKey, current: ObservedSwitchoverJob) -> None:
        """Creates the NetworkPolicies of *current*. One that is in force is left as it is, and none is deleted at the end.

        One that differs is replaced only in the version that was seen not to be in force.
        """
        existing = await self._existing(NETWORK_POLICY, key, fence_selector(key.name))
        for planned in await self._planned(key, current, FENCE_POLICIES_FILE):
            body = existing.get(planned["metadata"]["name"])
            if body is None:
                await self._create(NETWORK_POLICY, key, planned)
            elif not is_in_force(body) and _fence_digest(body) != _fence_digest(planned):
                version = body["metadata"]["resourceVersion"]
                await self._delete(NETWORK_POLICY, key, body, resource_version=version)

    async def _existing(self, kind: ObjectKind, key: PairKey, selector: str) -> dict[str, Object]:
        return {
            body["metadata"]["name"]: body
            async for _, bodies in self.client.chunks(kind, key.namespace, labels=selector)
            for body in bodies
        }

    async def _planned(self, key: PairKey, job: ObservedSwitchoverJob, file: str) -> list[Object]:
        """Returns the objects in *file* of the ConfigMap of the Switchover that *job* carries out. Raises ConflictError if it was changed."""
        selector = f"{PAIR_LABEL}={key.name},{SWITCHOVER_LABEL}={job.switchover}"
        texts = [
            (body.get("data") or {}).get(file, "")
            async for _, bodies in self.client.chunks(CONFIG_MAP, key.namespace, labels=selector)
            for body in bodies
        ]
        for text in texts:
            if text_digest(text) == job.prepared[file]:
                planned: list[Object] = json.loads(text)
                return planned
        raise ConflictError(
            "prepare a switchover",
            f"ConfigMap {object_name_of(job.switchover)} is missing, or {file} in it was changed; delete it, and Job {job.name}",
        )

    async def _create(self, kind: ObjectKind, key: PairKey, planned: Object) -> None:
        try:
            await self.client.create(kind, key.namespace, planned)
        except ConflictError:
            return  # someone else's, which the process of the Switchover does not use; or it was created just now
        self.metrics.api_writes.labels(verb="create", kind=kind.plural).inc()

    async def _delete(self, kind: ObjectKind, key: PairKey, body: Object, **conditions: Any) -> None:
        metadata = body["metadata"]
        try:
            await self.client.delete(kind, key.namespace, metadata["name"], uid=metadata["uid"], **conditions)
        except NotFoundError:
            return
        self.metrics.api_writes.labels(verb="delete", kind=kind.plural).inc()


def _fence_digest(body: Object) -> str | None:
    digest: str | None = (body["metadata"].get("annotations") or {}).get(DIGEST_ANNOTATION)
    return digest
