"""Writes Events on a MirrorFlow, a MirrorPair or a Switchover about what the operator did and why.

They never fail a reconciliation: one that cannot be written is logged and dropped. An equal Event is not
repeated within ten minutes, and a rate limit keeps flows from flooding the cluster.
"""

import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, Protocol

from mirrorflow_operator.api.spec import API_VERSION, KIND
from mirrorflow_operator.api.timestamps import timestamp
from mirrorflow_operator.cluster.client import EVENT, Client
from mirrorflow_operator.errors import ApiServerError, ConflictError
from mirrorflow_operator.metrics import Metrics

_LOG = logging.getLogger(__name__)
COMPONENT: Final = "mirrorflow-operator"
NOTE_MAX: Final = 1_000  # letters; Kubernetes allows 1,024
REPEAT_S: Final = 600.0
REMEMBERED_MAX: Final = 2_000  # Events remembered in order not to repeat them
BURST: Final = 50  # many flows may change at once
PER_SECOND: Final = 5.0  # on average; the API server keeps each for an hour


class EventSubject(Protocol):
    """The object that an Event is about."""

    @property
    def namespace(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def uid(self) -> str: ...


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

    async def publish(
        self, resource: EventSubject, reason: str, note: str, *, warning: bool = False, kind: str = KIND
    ) -> None:
        """Writes one Event, unless it repeats a recent one or the rate limit is reached.

        *reason* is a PascalCase word, *note* a sentence, *kind* that of *resource*.
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
                EVENT, resource.namespace, self._body(resource, reason, note, key, warning=warning, kind=kind)
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
        self, resource: EventSubject, reason: str, note: str, key: str, *, warning: bool, kind: str
    ) -> dict[str, object]:
        now = datetime.now(UTC)
        second = timestamp(now.timestamp())
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "name": f"{resource.name}.{key}.{int(now.timestamp()):x}",
                "namespace": resource.namespace,
            },
            "involvedObject": {
                "apiVersion": API_VERSION,
                "kind": kind,
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
            "eventTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "source": {"component": COMPONENT},
            "reportingComponent": COMPONENT,
            "reportingInstance": self.instance,
        }
