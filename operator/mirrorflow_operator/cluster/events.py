"""Writes Events on a MirrorFlow about what the operator did and why, and reads the warnings about stuck pods.

Written Events never fail a reconciliation: one that cannot be written is logged and dropped. An equal Event is
not repeated within ten minutes, and a rate limit keeps flows from flooding the cluster.

Only an Event reports, for example, why a pod with a missing Secret does not start. A cluster has many Events,
and each expires after an hour, so they are not watched. Those of one pod, or of a Job without a pod, are read
while it is stuck.
"""

import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from mirrorflow_operator.api.spec import API_VERSION, KIND
from mirrorflow_operator.api.status import seconds, timestamp
from mirrorflow_operator.cluster.client import EVENT, Client
from mirrorflow_operator.cluster.observed import MESSAGE_MAX
from mirrorflow_operator.errors import ApiServerError, ConflictError
from mirrorflow_operator.metrics import Metrics
from mirrorflow_operator.status.admission import Resource
from mirrorflow_operator.status.observation import JobSeen, PodEvent, PodSeen
from mirrorflow_operator.status.spark_jobs import has_no_driver

_LOG = logging.getLogger(__name__)
COMPONENT: Final = "mirrorflow-operator"
NOTE_MAX: Final = 1_000  # letters; Kubernetes allows 1,024
REPEAT_S: Final = 600.0
REMEMBERED_MAX: Final = 2_000  # Events remembered in order not to repeat them
BURST: Final = 50  # at once, because many flows may change at once
PER_SECOND: Final = 5.0  # on average; the API server keeps each for an hour


@dataclass(slots=True, kw_only=True)
class EventPublisher:
    """Writes the Events of one operator process."""

    client: Client
    metrics: Metrics
    instance: str
    clock: Callable[[], float] = time.monotonic
    _published_at: "OrderedDict[str, float]" = field(default_factory=OrderedDict)
    _tokens: float = float(BURST)
    _tokens_at: float = 0.0

    async def publish(self, resource: Resource, reason: str, note: str, *, warning: bool = False) -> None:
        """Writes one Event, unless it repeats a recent one or the rate limit is reached.

        *reason* is a PascalCase word, *note* a sentence.
        """
        note = note[:NOTE_MAX]
        key = hashlib.sha256(f"{resource.uid} {reason} {note}".encode()).hexdigest()[:16]
        now = self.clock()
        if now - self._published_at.get(key, -REPEAT_S) < REPEAT_S or not self._take_token(now):
            return
        self._published_at[key] = now
        self._published_at.move_to_end(key)
        while len(self._published_at) > REMEMBERED_MAX:
            self._published_at.popitem(last=False)
        try:
            await self.client.create(
                EVENT, resource.namespace, self._body(resource, reason, note, key, warning=warning)
            )
        except ConflictError:
            return  # another operator has written it within the same second
        except ApiServerError as error:
            _LOG.warning("%s/%s: cannot write an event: %s", resource.namespace, resource.name, error)
            return
        self.metrics.events.labels(reason=reason).inc()

    def _take_token(self, now: float) -> bool:
        self._tokens = min(float(BURST), self._tokens + (now - self._tokens_at) * PER_SECOND)
        self._tokens_at = now
        if self._tokens < 1:
            self.metrics.events_dropped.inc()
            return False
        self._tokens -= 1
        return True

    def _body(
        self, resource: Resource, reason: str, note: str, key: str, *, warning: bool
    ) -> dict[str, object]:
        at = datetime.now(UTC)
        second = timestamp(at.timestamp())
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "name": f"{resource.name}.{key}.{int(at.timestamp()):x}",
                "namespace": resource.namespace,
            },
            "involvedObject": {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "name": resource.name,
                "namespace": resource.namespace,
                "uid": resource.uid,
            },
            "type": "Warning" if warning else "Normal",
            "reason": reason,
            "message": note,
            "action": reason,
            "count": 1,
            "firstTimestamp": second,
            "lastTimestamp": second,
            "eventTime": at.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "source": {"component": COMPONENT},
            "reportingComponent": COMPONENT,
            "reportingInstance": self.instance,
        }


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

    async def warnings_of_pod(self, namespace: str, pod: PodSeen, now_s: float) -> tuple[PodEvent, ...]:
        """Returns the warnings about *pod* while it is stuck, else none.

        Where they cannot be read, returns those of the last read.
        """
        is_stuck = may_be_stuck(pod) and now_s - pod.created_s >= STUCK_AFTER_S
        return await self._warnings(namespace, pod.name, pod.uid, is_stuck=is_stuck)

    async def warnings_of_job(self, namespace: str, job: JobSeen, now_s: float) -> tuple[PodEvent, ...]:
        """Returns the warnings about *job* while it has no pod; such Events are on the Job itself."""
        since_s = job.started_s or job.created_s
        is_stuck = has_no_driver(job) and now_s - since_s >= STUCK_AFTER_S
        return await self._warnings(namespace, job.name, job.uid, is_stuck=is_stuck)

    async def _warnings(self, namespace: str, name: str, uid: str, *, is_stuck: bool) -> tuple[PodEvent, ...]:
        if not is_stuck:
            self._cached.pop(uid, None)
            return ()
        at, known = self._cached.get(uid, (-REREAD_S, ()))
        now = self.clock()
        if now - at < REREAD_S or now < self._next_at:
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


def may_be_stuck(pod: PodSeen) -> bool:
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
        last_seen_s=next((at for text in timestamps if text and (at := seconds(text)) is not None), 0.0),
    )
