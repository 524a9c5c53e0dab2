"""Step 7 of a pass: writes the status if it differs, at most as often as `status_document` allows."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from mirrorflow_operator.api.status import Status
from mirrorflow_operator.cluster.client import MIRROR_FLOW, Client
from mirrorflow_operator.cluster.events import Events
from mirrorflow_operator.cluster.view import View
from mirrorflow_operator.metrics import Metrics
from mirrorflow_operator.status.admission import Resource
from mirrorflow_operator.status.assess import Assessment
from mirrorflow_operator.status.problems import new_troubles
from mirrorflow_operator.status.status_document import held_s, status_document


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusMemory:
    """One flow's last status write, and whether a newer status is held back."""

    written_at_s: float | None = None
    written: Status | None = None  # as it was sent
    stored: Status | None = None  # as the API server stored it
    held_s: float | None = None  # seconds for which a newer status is held back; None: it is not


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowStatusWriter:
    """Writes statuses, and a Warning event for each new problem in them."""

    client: Client
    view: View
    events: Events
    metrics: Metrics
    wall_clock: Callable[[], float] = time.time

    async def write(self, resource: Resource, assessment: Assessment, memory: StatusMemory) -> StatusMemory:
        """Writes the status if it differs and is not held back; returns the new memory. Raises ApiServerError."""
        seen = self.view.flows.get(resource.key)
        settled = replace(memory, held_s=None)
        if seen is None or seen.resource != resource:
            return settled  # the resource has changed since; the change has already queued the next pass
        now_s = self.wall_clock()
        old, status = resource.status, assessment.status
        if status == memory.written and old == memory.stored:
            return settled  # a CRD older than this operator drops unknown fields from every write
        wait_s = held_s(old, status, last_write_s=memory.written_at_s, now_s=now_s)
        if wait_s != 0:
            return replace(memory, held_s=wait_s)
        body = {
            "apiVersion": MIRROR_FLOW.api_version,
            "kind": MIRROR_FLOW.name,
            "metadata": {
                "name": resource.name,
                "namespace": resource.namespace,
                "uid": resource.uid,
                "resourceVersion": seen.resource_version,
            },
            "status": status_document(status),
        }
        answer = await self.client.apply(MIRROR_FLOW, body, subresource="status")
        self.metrics.api_writes.labels(verb="apply", kind="mirrorflows/status").inc()
        self.view.put(MIRROR_FLOW, answer)
        stored = self.view.flows.get(resource.key)
        for reason, message in new_troubles(old.conditions, status.conditions, assessment.causes):
            await self.events.publish(resource, reason, message, warning=True)
        return StatusMemory(
            written_at_s=now_s, written=status, stored=None if stored is None else stored.resource.status
        )
