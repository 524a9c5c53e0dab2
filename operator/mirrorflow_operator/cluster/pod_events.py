"""What Kubernetes says of a pod that does not come up: a Secret that is not there is told in an Event and nowhere else.

Events of a cluster are many and pass in an hour, so they are not watched: those of one pod, or of a Job that gets none, are read
while it hangs.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from mirrorflow_operator.assess.moments import seconds
from mirrorflow_operator.assess.observation import JobSeen, PodEvent, PodSeen
from mirrorflow_operator.assess.runs import has_no_driver
from mirrorflow_operator.cluster.client import Client
from mirrorflow_operator.cluster.kinds import EVENT
from mirrorflow_operator.cluster.observed import MESSAGE_MAX
from mirrorflow_operator.errors import ClusterError

_LOG = logging.getLogger(__name__)
HANGS_AFTER_S: Final = 3.0  # a healthy pod's container is created by then
AGAIN_S: Final = 10.0  # for one pod; kubelet itself says it again every two minutes at most
KEPT_MAX: Final = 10  # of one pod, the latest
PODS_MAX: Final = 5_000  # what is remembered at all
PER_SECOND: Final = 10.0  # a whole node's pods hang at once when a registry is away
_HANGING: Final = frozenset({"ContainerCreating", "PodInitializing", "CreateContainerConfigError"})


@dataclass(slots=True, kw_only=True)
class PodEvents:
    """Of pods, as of the last look."""

    client: Client
    clock: Callable[[], float] = time.monotonic
    _found: dict[str, tuple[float, tuple[PodEvent, ...]]] = field(default_factory=dict)
    _next_at: float = 0.0

    async def of(self, namespace: str, pod: PodSeen, now_s: float) -> tuple[PodEvent, ...]:
        """Warnings about *pod*, where it hangs; none where it does not. What cannot be read leaves what was known."""
        hangs = may_hang(pod) and now_s - pod.created_s >= HANGS_AFTER_S
        return await self._about(namespace, pod.name, pod.uid, hangs=hangs)

    async def of_job(self, namespace: str, job: JobSeen, now_s: float) -> tuple[PodEvent, ...]:
        """As `of`: what keeps *job* from its pod is told of the Job itself."""
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
    """Whether somebody will say why *pod* is not running, if it goes on like this."""
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
