"""Reads the warning Events of a pod that does not start: only an Event reports a missing Secret, for example.

A cluster has many Events, and each expires after an hour, so they are not watched. The Events of one pod, or
of a Job without a pod, are read while it is stuck.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from mirrorflow_operator.assess.due_jobs import has_no_driver
from mirrorflow_operator.assess.observation import JobSeen, PodEvent, PodSeen
from mirrorflow_operator.assess.timestamps import seconds
from mirrorflow_operator.cluster.client import Client
from mirrorflow_operator.cluster.kinds import EVENT
from mirrorflow_operator.cluster.observed import MESSAGE_MAX
from mirrorflow_operator.errors import ClusterError

_LOG = logging.getLogger(__name__)
HANGS_AFTER_S: Final = 3.0  # a healthy pod's container is created by then
AGAIN_S: Final = 10.0  # between two reads for one pod; the kubelet repeats an Event every two minutes at most
KEPT_MAX: Final = 10  # latest Events of one pod
PODS_MAX: Final = 5_000  # pods and Jobs whose Events are remembered
PER_SECOND: Final = 10.0  # reads; when a registry is unreachable, all pods of a node are stuck at once
_HANGING: Final = frozenset({"ContainerCreating", "PodInitializing", "CreateContainerConfigError"})


@dataclass(slots=True, kw_only=True)
class PodEvents:
    """Reads and caches the warning Events of stuck pods and Jobs."""

    client: Client
    clock: Callable[[], float] = time.monotonic
    _found: dict[str, tuple[float, tuple[PodEvent, ...]]] = field(default_factory=dict)
    _next_at: float = 0.0

    async def of(self, namespace: str, pod: PodSeen, now_s: float) -> tuple[PodEvent, ...]:
        """Returns the warnings about *pod* while it is stuck, else none.

        Where they cannot be read, returns those of the last read.
        """
        hangs = may_hang(pod) and now_s - pod.created_s >= HANGS_AFTER_S
        return await self._about(namespace, pod.name, pod.uid, hangs=hangs)

    async def of_job(self, namespace: str, job: JobSeen, now_s: float) -> tuple[PodEvent, ...]:
        """Returns the warnings about *job* while it has no pod; such Events are on the Job itself."""
        since_s = job.started_s or job.created_s
        hangs = has_no_driver(job) and now_s - since_s >= HANGS_AFTER_S
        return await self._about(namespace, job.name, job.uid, hangs=hangs)

    async def _about(self, namespace: str, name: str, uid: str, *, hangs: bool) -> tuple[PodEvent, ...]:
        if not hangs:
            self._found.pop(uid, None)
            return ()
        at, known = self._found.get(uid, (-AGAIN_S, ()))
        now = self.clock()
        if now - at < AGAIN_S or now < self._next_at:
            return known
        self._next_at = now + 1 / PER_SECOND
        try:
            known = await self._read(namespace, uid)
        except ClusterError as error:
            _LOG.warning("%s/%s: its events cannot be read: %s", namespace, name, error)
        if len(self._found) >= PODS_MAX:
            self._found.clear()
        self._found[uid] = (now, known)
        return known

    async def _read(self, namespace: str, uid: str) -> tuple[PodEvent, ...]:
        events: list[PodEvent] = []
        async for _, bodies in self.client.chunks(
            EVENT, namespace, fields=f"involvedObject.uid={uid},type=Warning"
        ):
            events.extend(_event(body) for body in bodies)
        return tuple(sorted(events, key=lambda event: event.last_seen_s)[-KEPT_MAX:])


def may_hang(pod: PodSeen) -> bool:
    """Returns whether *pod* is in a state whose cause Kubernetes reports in Events."""
    return not pod.deleting and pod.phase == "Pending" and pod.waiting_reason in _HANGING


def _event(body: dict[str, Any]) -> PodEvent:
    series = body.get("series") or {}
    moments = (
        body.get("lastTimestamp"),
        series.get("lastObservedTime"),
        body.get("eventTime"),
        body["metadata"].get("creationTimestamp"),
    )
    return PodEvent(
        reason=body.get("reason", ""),
        message=body.get("message", "")[:MESSAGE_MAX],
        last_seen_s=next((at for text in moments if text and (at := seconds(text)) is not None), 0.0),
    )
