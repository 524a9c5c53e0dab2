"""Reads the warning Events about pods that are stuck, and about Jobs without a pod.

Only an Event reports, for example, why a pod with a missing Secret does not start. A cluster has many Events,
and each expires after an hour, so they are not watched: those of one pod or Job are read while it is stuck.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from mirrorflow_operator.api.timestamps import parse_timestamp
from mirrorflow_operator.cluster.client import EVENT, Client
from mirrorflow_operator.cluster.observed_objects import MESSAGE_MAX
from mirrorflow_operator.errors import ApiServerError
from mirrorflow_operator.status.observation import ObservedJob, ObservedPod, PodEvent
from mirrorflow_operator.status.spark_jobs import has_no_driver

_LOG = logging.getLogger(__name__)
STUCK_AFTER_S: Final = 3.0  # a healthy pod's container is created by then
# Between two reads for one pod; the kubelet repeats an Event every two minutes at most
REREAD_S: Final = 10.0
KEPT_MAX: Final = 10  # latest Events of one pod
PODS_MAX: Final = 5_000  # pods and Jobs whose Events are remembered
READS_PER_SECOND: Final = 10.0  # reads; when a registry is unreachable, all pods of a node are stuck at once
_STUCK: Final = frozenset({"ContainerCreating", "PodInitializing", "CreateContainerConfigError"})


@dataclass(slots=True, kw_only=True)
class PodEventReader:
    """Reads and caches the warning Events of stuck pods and Jobs."""

    client: Client
    clock: Callable[[], float] = time.monotonic
    _cached: dict[str, tuple[float, tuple[PodEvent, ...]]] = field(default_factory=dict)
    _next_at: float = 0.0

    async def warnings_of_pod(self, namespace: str, pod: ObservedPod, now_s: float) -> tuple[PodEvent, ...]:
        """Returns the warnings about *pod* while it is stuck, else none.

        Where they cannot be read, returns those of the last read.
        """
        is_stuck = may_be_stuck(pod) and now_s - pod.created_s >= STUCK_AFTER_S
        return await self._warnings(namespace, pod.name, pod.uid, is_stuck=is_stuck)

    async def warnings_of_job(self, namespace: str, job: ObservedJob, now_s: float) -> tuple[PodEvent, ...]:
        """Returns the warnings about *job* while it has no pod; such Events are on the Job itself."""
        since_s = job.started_s or job.created_s
        is_stuck = has_no_driver(job) and now_s - since_s >= STUCK_AFTER_S
        return await self._warnings(namespace, job.name, job.uid, is_stuck=is_stuck)

    async def _warnings(self, namespace: str, name: str, uid: str, *, is_stuck: bool) -> tuple[PodEvent, ...]:
        if not is_stuck:
            self._cached.pop(uid, None)
            return ()
        read_s, known = self._cached.get(uid, (-REREAD_S, ()))
        now = self.clock()
        if now - read_s < REREAD_S or now < self._next_at:
            return known
        self._next_at = now + 1 / READS_PER_SECOND
        try:
            known = await self._read(namespace, uid)
        except ApiServerError as error:
            _LOG.warning("%s/%s: cannot read its events: %s", namespace, name, error)
        if len(self._cached) >= PODS_MAX:
            self._cached.clear()
        self._cached[uid] = (now, known)
        return known

    async def _read(self, namespace: str, uid: str) -> tuple[PodEvent, ...]:
        events: list[PodEvent] = []
        async for _, bodies in self.client.chunks(
            EVENT, namespace, fields=f"involvedObject.uid={uid},type=Warning"
        ):
            events.extend(_event(body) for body in bodies)
        return tuple(sorted(events, key=lambda event: event.last_seen_s)[-KEPT_MAX:])


def may_be_stuck(pod: ObservedPod) -> bool:
    """Returns whether *pod* is in a state whose cause Kubernetes reports in Events."""
    return not pod.deleting and pod.phase == "Pending" and pod.waiting_reason in _STUCK


def _event(body: dict[str, Any]) -> PodEvent:
    series = body.get("series") or {}
    timestamps = (
        body.get("lastTimestamp"),
        series.get("lastObservedTime"),
        body.get("eventTime"),
        body["metadata"].get("creationTimestamp"),
    )
    return PodEvent(
        reason=body.get("reason", ""),
        message=body.get("message", "")[:MESSAGE_MAX],
        last_seen_s=next(
            (seconds for text in timestamps if text and (seconds := parse_timestamp(text)) is not None), 0.0
        ),
    )
