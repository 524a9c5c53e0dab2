"""Runs hooks as Jobs of Kubernetes: starts what the operator has prepared, and waits for its end.

The operator creates the Jobs of a switchover suspended, and creates one again that was deleted (plan/hook_jobs.py). This process
may read, start and delete them by their names, and nothing else: it cannot choose what runs. A Job runs once, so one that has ended
is deleted before its action is run again.
"""

import asyncio
import http.client
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from mirrorflow_core.switchover.hook_jobs import HookJobKind, hook_job_name
from mirrorflow_replicator.switchover.api_server_access import ApiRefusalError, ApiServerAccess, pod_access
from mirrorflow_replicator.switchover.errors import HookJobFailedError
from mirrorflow_replicator.switchover.hooks import HookAction

ID_ANNOTATION: Final = "mirrorflow.io/switchover-id"  # the operator writes it (plan/switchover_objects.py)
PREPARED_WITHIN_S: Final = (
    30.0  # the operator replaces a Job within a second; pods of the former one end meanwhile
)
ENDED_WITHIN_S: Final = 15.0  # after its own limit, until Kubernetes has ended the pod and noted it
POLL_S: Final = 0.25  # writes may be refused meanwhile
_HELD_ANNOTATION: Final = "mirrorflow.io/held"
_START: Final[Mapping[str, Any]] = {"spec": {"suspend": False}}
# While one of them may still work, the other must not begin.
_OPPOSITE: Final = {
    HookJobKind.FENCE_SOURCE: HookJobKind.LIFT_SOURCE,
    HookJobKind.LIFT_SOURCE: HookJobKind.FENCE_SOURCE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HookJobState:
    """What the API server has of one Job."""

    uid: str
    version: str
    switchover: str
    is_suspended: bool
    is_complete: bool
    failure: str | None  # None: it has not failed
    is_deleted: bool

    @property
    def has_ended(self) -> bool:
        return self.is_complete or self.failure is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class HookJobSettings:
    """The Jobs of one hook. *switchover*: the id for which they were prepared; a Job of another one is not started."""

    namespace: str
    pair: str
    switchover: str
    kinds: tuple[HookJobKind, ...]
    timeout_s: float
    access: ApiServerAccess | None = None  # None: that of this pod
    # The uids of Jobs that this process has started. An attempt may be stopped before it has read how they ended.
    started: set[str] = field(default_factory=set, compare=False)

    async def run(self, action: HookAction, variables: Mapping[str, str]) -> None:
        """Runs the Job of *action*, or waits for the one that runs. Raises HookJobFailedError."""
        kind = _kind(action, variables)
        try:
            async with asyncio.timeout(PREPARED_WITHIN_S):
                if opposite := _OPPOSITE.get(kind):
                    await self._stop(opposite)
                await self._start(kind)
        except TimeoutError:
            raise self._failed(
                kind,
                f"it was not there within {PREPARED_WITHIN_S:g} s, or the pod of an earlier run has not ended",
                "make sure that the operator runs",
            ) from None
        try:
            async with asyncio.timeout(self.timeout_s + ENDED_WITHIN_S):
                ended = await self._end(kind)
        except TimeoutError:
            raise self._failed(
                kind,
                f"it has not ended within {self.timeout_s:g} s",
                "look at its pod, or raise timeoutSeconds of the hook",
            ) from None
        if ended is not None:
            raise self._failed(kind, ended, f"see kubectl logs --namespace {self.namespace} job/NAME")

    async def problem(self) -> str:
        """Returns why a Job could not be started now. Each is read, and started and deleted as a trial, which changes nothing."""
        try:
            async with asyncio.timeout(PREPARED_WITHIN_S):
                for kind in self.kinds:
                    await self._prepared(kind)
                    await self._request("PATCH", kind, _START, query="?dryRun=All")
                    await self._request("DELETE", kind, None, query="?dryRun=All")
        except TimeoutError:
            problem = "the operator has not prepared it"
            return f"job: {self._failed(kind, problem, 'make sure that the operator runs')}"
        except HookJobFailedError as error:
            return f"job: {error}"
        return ""

    async def _prepared(self, kind: HookJobKind) -> HookJobState:
        """Waits until the Job of this switchover is there, and returns it."""
        while True:
            job = await self._read(kind)
            if job is not None and not job.is_deleted and job.switchover == self.switchover:
                return job
            await asyncio.sleep(POLL_S)

    async def _start(self, kind: HookJobKind) -> None:
        """Starts the Job, unless it runs. One that has ended is replaced, unless this process has not read its end yet."""
        while True:
            job = await self._prepared(kind)
            if job.is_suspended:
                start = {**_START, "metadata": {"uid": job.uid, "resourceVersion": job.version}}
                if await self._request("PATCH", kind, start) is not None:
                    self.started.add(job.uid)
                    return
            elif job.has_ended and job.uid not in self.started:
                await self._delete(kind, job)
            else:
                self.started.add(
                    job.uid
                )  # it runs since the last fence or lift, because each stops the other
                return
            await asyncio.sleep(POLL_S)

    async def _end(self, kind: HookJobKind) -> str | None:
        """Waits for the end of the Job; returns how it has failed, None if it has not."""
        while True:
            job = await self._read(kind)
            if job is None or job.uid not in self.started:
                return "it was deleted"
            if job.has_ended:
                self.started.discard(job.uid)
                return job.failure
            await asyncio.sleep(POLL_S)

    async def _stop(self, kind: HookJobKind) -> None:
        """Ends the Job if its pod may run; returns when that is gone.

        An attempt that was stopped may have left a request that starts it. It names the version that it has read, so that it is refused
        once the Job has changed.
        """
        mark = {"metadata": {"annotations": {_HELD_ANNOTATION: secrets.token_hex(8)}}}
        body = await self._request("PATCH", kind, mark)
        if body is None:
            return
        job = _state(body)
        if (job.is_suspended or job.has_ended) and not job.is_deleted:
            return
        await self._delete(kind, job)
        while True:
            now = await self._read(kind)
            if now is None or now.uid != job.uid:
                return
            await asyncio.sleep(POLL_S)

    async def _delete(self, kind: HookJobKind, job: HookJobState) -> None:
        if job.is_deleted:
            return
        # In the foreground: the Job is there until its pods are gone.
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Foreground",
            "preconditions": {"uid": job.uid},
        }
        await self._request("DELETE", kind, options)

    async def _read(self, kind: HookJobKind) -> HookJobState | None:
        body = await self._request("GET", kind, None)
        return None if body is None else _state(body)

    async def _request(
        self, method: str, kind: HookJobKind, body: Mapping[str, Any] | None, *, query: str = ""
    ) -> Mapping[str, Any] | None:
        """Returns the response; None if there is no such Job, or another one has its name by now. Raises HookJobFailedError."""
        access = self.access or pod_access()
        if access is None:
            raise self._failed(
                kind,
                "this process does not run in Kubernetes",
                "create a Switchover, or write a command into the hook of this file",
            )
        path = f"/apis/batch/v1/namespaces/{self.namespace}/jobs/{hook_job_name(self.pair, kind)}{query}"
        try:
            return await asyncio.to_thread(access.request, method, path, body)
        except ApiRefusalError as error:
            if error.status in {http.client.NOT_FOUND, http.client.CONFLICT}:
                return None
            action = "it is tried again"
            if error.status == http.client.FORBIDDEN:
                action = "allow the ServiceAccounts of both flows to get, patch and delete it (the chart's value switchovers.hooks)"
            raise self._failed(kind, str(error), action) from error
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise self._failed(kind, str(error) or type(error).__name__, "it is tried again") from error

    def _failed(self, kind: HookJobKind, problem: str, action: str) -> HookJobFailedError:
        name = hook_job_name(self.pair, kind)
        return HookJobFailedError(
            job=f"{self.namespace}/{name}", problem=problem, action=action.replace("NAME", name)
        )


def _kind(action: HookAction, variables: Mapping[str, str]) -> HookJobKind:
    if action is HookAction.PROMOTE:
        return HookJobKind.PROMOTE
    is_source = variables["MIRRORFLOW_MEMBER"] == variables["MIRRORFLOW_FROM"]
    return HookJobKind(f"{action.value}-{'source' if is_source else 'target'}")


def _state(body: Mapping[str, Any]) -> HookJobState:
    metadata = body["metadata"]
    conditions = {
        condition["type"]: condition
        for condition in (body.get("status") or {}).get("conditions") or ()
        if condition.get("status") == "True"
    }
    failed = conditions.get("Failed")
    return HookJobState(
        uid=metadata["uid"],
        version=metadata["resourceVersion"],
        switchover=(metadata.get("annotations") or {}).get(ID_ANNOTATION, ""),
        is_suspended=body["spec"].get("suspend", False),
        is_complete="Complete" in conditions,
        failure=None
        if failed is None
        else str(failed.get("message") or failed.get("reason", "it has failed")),
        is_deleted="deletionTimestamp" in metadata,
    )
