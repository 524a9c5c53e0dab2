"""Reconciles one MirrorPair with its Switchovers in one pass: observe, decide, create or delete Jobs, write the statuses.

The operator never talks to Kafka: a Job carries a switchover out, and its report is shown and kept in the status. Level-triggered: a
pass needs no memory of earlier ones. No object that is deleted ends a Job in the middle, and a Job is never changed.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from mirrorflow_operator.api.mirror_pair import MirrorPair
from mirrorflow_operator.api.model import ApiModel
from mirrorflow_operator.api.pair_status import PairStatus, SwitchoverStatus
from mirrorflow_operator.api.switchover import Switchover
from mirrorflow_operator.cluster.cache import ClusterCache, QueueKey
from mirrorflow_operator.cluster.client import (
    CONFIG_MAP,
    JOB,
    MIRROR_PAIR,
    NETWORK_POLICY,
    SWITCHOVER,
    Client,
    ObjectKind,
    kind_of,
)
from mirrorflow_operator.cluster.event_publisher import EventPublisher
from mirrorflow_operator.cluster.poll_targets import polled_name
from mirrorflow_operator.cluster.progress_client import request_source_ends, session
from mirrorflow_operator.cluster.progress_poller import Poller
from mirrorflow_operator.cluster.switchover_jobs import SwitchoverJobReader
from mirrorflow_operator.errors import ApiServerError, ConflictError, NotFoundError
from mirrorflow_operator.metrics import Metrics
from mirrorflow_operator.plan.names import PAIR_LABEL, SWITCHOVER_LABEL
from mirrorflow_operator.plan.pod_template import HTTP_PORT
from mirrorflow_operator.plan.properties import connector_names
from mirrorflow_operator.plan.switchover_objects import FlowOfPair, switchover_objects
from mirrorflow_operator.reconcile.switchover_preparation import SwitchoverPreparation
from mirrorflow_operator.settings import Settings
from mirrorflow_operator.status.observation import FRESH_S, Resource
from mirrorflow_operator.status.pair_assessment import (
    is_unread,
    jobs_left_over,
    pair_status,
    why_not_switched,
)
from mirrorflow_operator.status.pair_observation import (
    BEGIN_WITHIN_S,
    DEGRADED,
    ENDED,
    OVERTAKEN,
    ObservedSwitchoverJob,
    PairFlowProgress,
    PairKey,
    PairObservation,
    PairResource,
    SwitchoverResource,
)
from mirrorflow_operator.status.pod_reports import Summary
from mirrorflow_operator.status.source_ends import newest_ends
from mirrorflow_operator.status.switchover_assessment import (
    JobStep,
    SwitchoverDecision,
    decisions,
    not_carried_out,
    switchover_status,
)
from mirrorflow_operator.status.verification import last_verification

FOLLOW_EVERY_S: Final = 1.0  # while a switchover is under way
WAIT_EVERY_S: Final = 10.0  # while one waits for a person without a Job, as for a pair that was deleted
# Otherwise its figures are as old as the polls of its flows, and a status is written at most so often for them alone.
FIGURES_EVERY_S: Final = 60.0
_WARNINGS: Final = frozenset({"Refused", "Lifted", DEGRADED, OVERTAKEN})


@dataclass(slots=True, kw_only=True)
class PairReconciler:
    """Runs the passes of all pairs."""

    settings: Settings
    client: Client
    cache: ClusterCache
    poller: Poller
    events: EventPublisher
    metrics: Metrics
    changed: Callable[[QueueKey], None]  # called with each flow that a written status starts or stops
    wall_clock: Callable[[], float] = time.time
    _written_s: dict[str, float] = field(default_factory=dict)  # when the status was last written, by uid

    async def reconcile(self, key: PairKey) -> float | None:
        """Runs one pass over the pair *key*. Returns the seconds until the next one; None: only an event triggers it.

        Raises OperatorError where a request failed.
        """
        observation = await self._observe(key)
        decided = decisions(observation, why_not_switched(observation))
        created, failures = list[bool](), list[ApiServerError]()
        for switchover in observation.switchovers:
            decision = decided[switchover.name]
            try:
                created.append(await self._carry_out(switchover, decision, observation))
            except ApiServerError as error:
                # Its status says so. Other Switchovers and the pair are not affected.
                failures.append(error)
                decided[switchover.name] = not_carried_out(decision, error.response)
        statuses = {
            switchover.name: switchover_status(switchover, decided[switchover.name], observation)
            for switchover in observation.switchovers
        }
        not_written = await self._write_statuses(observation, statuses)
        failures += not_written
        try:
            await SwitchoverPreparation(client=self.client, metrics=self.metrics).prepare(observation)
        except ApiServerError as error:
            failures.append(error)
            await self._report_unprepared(observation, error)
        if not not_written:  # otherwise a Job may have the only report of how its switchover has ended
            await self._delete_left_over(observation)
        if failures:
            raise failures[0]
        open_names = [name for name, status in statuses.items() if status.state not in ENDED]
        is_under_way = any(decided[name].waits_for is None for name in open_names) or any(
            not job.is_complete for job in observation.jobs.values()
        )
        if any(created) or is_under_way:
            return FOLLOW_EVERY_S
        if open_names:
            return WAIT_EVERY_S
        return FIGURES_EVERY_S if observation.pair is not None else None

    async def _observe(self, key: PairKey) -> PairObservation:
        pair = self.cache.pairs.pairs.get(key)
        named = () if pair is None else pair.flows.values()
        flows = {
            name: seen.resource
            for name in sorted(set(named))
            if (seen := self.cache.flows.get((key.namespace, name))) is not None and not seen.deleting
        }
        return PairObservation(
            key=key,
            now_s=self.wall_clock(),
            pair=pair,
            switchovers=self.cache.pairs.switchovers_of(key),
            jobs=await SwitchoverJobReader(client=self.client, wall_clock=self.wall_clock).jobs_of(key),
            flows=flows,
            progress={name: self._progress(flow) for name, flow in flows.items()},
        )

    def _progress(self, flow: Resource) -> PairFlowProgress:
        """Returns what the poller has last read from the pods of *flow*; nothing is requested here."""
        if flow.flow is None:
            return PairFlowProgress()
        connectors, summaries = connector_names(flow.flow), dict[str, list[Summary]]()
        is_complete = True
        for _, pod in self.cache.pods(flow.key):
            for connector in pod.connectors:
                reading = self.poller.reading(pod.uid, polled_name(pod, connector, connectors))
                is_fresh = reading is not None and self.wall_clock() - reading.read_at_s <= FRESH_S
                if reading is not None and is_fresh and reading.summary is not None:
                    summaries.setdefault(connector, []).append(reading.summary)
                elif connector == "source" and pod.phase == "Running" and not pod.deleting:
                    is_complete = False
        return progress_of(
            summaries.get("source", ()), summaries.get("checkpoint", ()), is_complete=is_complete
        )

    async def _carry_out(
        self, switchover: SwitchoverResource, decision: SwitchoverDecision, observation: PairObservation
    ) -> bool:
        """Creates or deletes what *decision* asks for; returns whether it did."""
        match decision.step:
            case JobStep.CREATE_JOB:
                pair, wanted = observation.pair, switchover.switchover
                if pair is None or pair.pair is None or wanted is None:
                    return False
                await self._create(switchover, wanted, pair.pair, observation)
                return True
            case JobStep.REPLACE_JOB | JobStep.END_JOB:
                await self._delete(JOB, observation.key, observation.jobs[switchover.name])
                return True
        return False

    async def _create(
        self,
        switchover: SwitchoverResource,
        wanted: Switchover,
        pair: MirrorPair,
        observation: PairObservation,
    ) -> None:
        flows = {
            alias: FlowOfPair(
                flow=flow,
                flow_id=observation.flows[member.flow].status.flow_id,
                version=observation.flows[member.flow].status.version,
                verification=last_verification(observation.flows[member.flow].status),
            )
            for alias, member in pair.spec.members.items()
            if (flow := observation.flows[member.flow].flow) is not None
        }
        planned = switchover_objects(
            wanted,
            pair,
            flows,
            image=self.settings.replicator_image,
            begin_until_ms=int((switchover.created_s + BEGIN_WITHIN_S) * 1_000),
            operator_namespace=self.settings.pod_namespace,
            last_seen=await self._last_seen(wanted, pair, observation),
        )
        # The Job comes last: with its files there, it has the request of this pass, and is never changed.
        for body in planned:
            kind = kind_of(body)
            try:
                await self.client.create(kind, switchover.namespace, body)
            except ConflictError:
                await self._require_own(kind, body)
            self.metrics.api_writes.labels(verb="create", kind=kind.plural).inc()
        await self.events.publish(
            switchover, "JobCreated", f"Job {planned[-1]['metadata']['name']}.", kind=SWITCHOVER.name
        )

    async def _last_seen(
        self, wanted: Switchover, pair: MirrorPair, observation: PairObservation
    ) -> dict[str, Any] | None:
        """Returns what the pods of the flow have read last of the source of an unplanned switchover; None if they do not answer."""
        if wanted.spec.type != "Unplanned":
            return None
        (source,) = (alias for alias in pair.spec.members if alias != wanted.spec.to)
        flow = observation.flows[pair.spec.members[source].flow]
        targets = {target.uid: target for target in self.poller.targets(flow.key) if target.port == HTTP_PORT}
        async with session() as client:
            read = await asyncio.gather(
                *(request_source_ends(client, target, now_s=observation.now_s) for target in targets.values())
            )
        newest = newest_ends(ends for ends in read if ends is not None)
        return None if newest is None else newest.document()

    async def _require_own(self, kind: ObjectKind, body: Mapping[str, Any]) -> None:
        """Returns if the object of that name is what an interrupted pass has created. Raises ConflictError otherwise."""
        metadata = body["metadata"]
        labels = metadata["labels"]
        selector = ",".join(f"{name}={labels[name]}" for name in (PAIR_LABEL, SWITCHOVER_LABEL))
        async for _, bodies in self.client.chunks(kind, metadata["namespace"], labels=selector):
            if any(_is_same(other["metadata"], metadata) for other in bodies):
                return
        raise ConflictError(
            f"create {kind.plural}",
            f"{kind.name} {metadata['name']} belongs to something else, or to an earlier Switchover of that name; delete it, or give the Switchover another name",
        )

    async def _write_statuses(
        self, observation: PairObservation, statuses: Mapping[str, SwitchoverStatus]
    ) -> list[ApiServerError]:
        """Writes the statuses that differ; returns why some were not written, which delays none of the others."""
        failures = list[ApiServerError]()
        for switchover in observation.switchovers:
            try:
                await self._write_switchover_status(switchover, statuses[switchover.name])
            except ApiServerError as error:
                failures.append(error)
        try:
            await self._write_pair_status(observation, pair_status(observation, statuses))
        except ApiServerError as error:
            failures.append(error)
        return failures

    async def _write_switchover_status(
        self, switchover: SwitchoverResource, status: SwitchoverStatus
    ) -> None:
        if status == switchover.status:
            return
        await self._write(SWITCHOVER, switchover, status)
        if status.state is not None and status.state != switchover.status.state:
            note = status.reason or status.waits_for or f"It is in state {status.state}."
            is_warning = status.state in _WARNINGS
            await self.events.publish(
                switchover, status.state, note, warning=is_warning, kind=SWITCHOVER.name
            )

    async def _write_pair_status(self, observation: PairObservation, new: PairStatus | None) -> None:
        pair = observation.pair
        if pair is None or new is None or new == pair.status:
            return
        since_s = observation.now_s - self._written_s.get(pair.uid, 0.0)
        if not _differs(pair.status, new) and 0 <= since_s < FIGURES_EVERY_S:
            return
        self._written_s[pair.uid] = observation.now_s
        await self._write(MIRROR_PAIR, pair, new)
        if new.active != pair.status.active and new.promoted_by:
            note = f"{new.active} is the active member, by {new.promoted_by}."
            await self.events.publish(pair, "Promoted", note, kind=MIRROR_PAIR.name)

    async def _write(
        self, kind: ObjectKind, resource: PairResource | SwitchoverResource, status: ApiModel
    ) -> None:
        body = {
            "apiVersion": kind.api_version,
            "kind": kind.name,
            "metadata": {
                "name": resource.name,
                "namespace": resource.namespace,
                "uid": resource.uid,
                "resourceVersion": resource.resource_version,
            },
            "status": status.model_dump(mode="json", by_alias=True, exclude_none=True),
        }
        response = await self.client.apply(kind, body, subresource="status")
        self.metrics.api_writes.labels(verb="apply", kind=f"{kind.plural}/status").inc()
        # The watch reports the same version later, which the cache ignores: so what it affects is queued here.
        for key in self.cache.put(kind, response):
            if not isinstance(key, PairKey):
                self.changed(key)

    async def _report_unprepared(self, observation: PairObservation, error: ApiServerError) -> None:
        """Says why the process of a Switchover lacks the Jobs or the policies that it waits for; its report cannot."""
        under_way = {job.switchover for job in observation.jobs.values() if not job.is_complete}
        for switchover in observation.switchovers:
            if switchover.name in under_way:
                await self.events.publish(
                    switchover, "NotPrepared", error.response, warning=True, kind=SWITCHOVER.name
                )

    async def _delete_left_over(self, observation: PairObservation) -> None:
        """Deletes the objects of Switchovers that are gone, when their Jobs have ended and the pair's status has their reports.

        Without a pair they stay: one that is created again learns from them who is active. So do those whose report is lost.
        """
        if observation.pair is None:
            return
        for job in jobs_left_over(observation):
            if not is_unread(job, observation.pair):
                for kind in (CONFIG_MAP, NETWORK_POLICY):
                    await self._delete(kind, observation.key, job)
                await self._delete(JOB, observation.key, job)

    async def _delete(self, kind: ObjectKind, key: PairKey, job: ObservedSwitchoverJob) -> None:
        selector = f"{PAIR_LABEL}={key.name},{SWITCHOVER_LABEL}={job.switchover}"
        async for _, bodies in self.client.chunks(kind, key.namespace, labels=selector):
            for body in bodies:
                metadata = body["metadata"]
                if kind is JOB and metadata["uid"] != job.uid:
                    continue
                try:
                    await self.client.delete(kind, key.namespace, metadata["name"], uid=metadata["uid"])
                except NotFoundError:
                    continue
                self.metrics.api_writes.labels(verb="delete", kind=kind.plural).inc()


def _is_same(metadata: Mapping[str, Any], planned: Mapping[str, Any]) -> bool:
    """Whether an object is the planned one: of that name, and for the same request. A webhook may have added annotations."""
    annotations = metadata.get("annotations") or {}
    is_planned: bool = planned["annotations"].items() <= annotations.items()
    return is_planned and bool(metadata["name"] == planned["name"])


def progress_of(
    source: Iterable[Summary], checkpoint: Iterable[Summary], *, is_complete: bool = True
) -> PairFlowProgress:
    """Returns the progress of a flow from the summaries of its pods.

    *is_complete*: whether every pod that may copy has a summary in *source*. The lag is known only if that of each partition is: a pod
    reports the largest one of those that it knows.
    """
    working = [summary for summary in source if not summary.stands_by]
    # A partition whose lag is unknown may have any lag.
    lags = [None if summary.lags_unknown else summary.lag_s for summary in working]
    is_known = is_complete and bool(lags) and all(lag is not None for lag in lags)
    passes = [summary.checkpoints for summary in checkpoint if summary.checkpoints is not None]
    again = [checkpoints.read_again_records for checkpoints in passes]
    read_again = [records for records in again if records is not None]
    ages = [checkpoints.age_s for checkpoints in passes if checkpoints.age_s is not None]
    return PairFlowProgress(
        lag_s=max(lag for lag in lags if lag is not None) if is_known else None,
        groups=sum(checkpoints.groups for checkpoints in passes),
        groups_failing=sum(checkpoints.failing for checkpoints in passes),
        read_again_records=sum(read_again) if again and len(read_again) == len(again) else None,
        checkpoint_age_s=max(ages, default=None),
    )


def _differs(before: PairStatus, after: PairStatus) -> bool:
    """Whether *after* says something new; its figures alone are no reason to write it more than once a minute."""
    return before.model_copy(update={"predicted": None}) != after.model_copy(update={"predicted": None})
