"""Step 7 of a pass: writes the status if it differs.

A status is written at once if its meaning changed, within seconds if only pod counts changed, and at most
once a minute if only figures changed.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from mirrorflow_operator.api.status import (
    ArchiveStatus,
    Condition,
    ConditionStatus,
    RestoreStatus,
    SeedPartitions,
    SeedStatus,
    Status,
    VerifyStatus,
    WindowCounts,
)
from mirrorflow_operator.cluster.cache import ClusterCache
from mirrorflow_operator.cluster.client import MIRROR_FLOW, Client
from mirrorflow_operator.cluster.event_publisher import EventPublisher
from mirrorflow_operator.metrics import Metrics
from mirrorflow_operator.status.assess import Assessment
from mirrorflow_operator.status.conditions import ConditionType, new_problems
from mirrorflow_operator.status.observation import Resource

FIGURES_EVERY_S: Final = 60.0  # under traffic, at most one status write per minute and flow
_OF_RUNS: Final = {
    "run_id",
    "phase",
    "start_time",
    "completion_time",
    "ended_run_id",
    "job",
    "verdict_time",
    "driver",
}
_Run = TypeVar("_Run", SeedStatus, VerifyStatus, ArchiveStatus, RestoreStatus)
# Each Deployment's ready count rises one pod at a time; one write covers several steps.
COUNTS_EVERY_S: Final = 5.0


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
    cache: ClusterCache
    events: EventPublisher
    metrics: Metrics
    wall_clock: Callable[[], float] = time.time

    async def write(self, resource: Resource, assessment: Assessment, memory: StatusMemory) -> StatusMemory:
        """Writes the status if it differs and is not held back; returns the new memory. Raises ApiServerError."""
        seen = self.cache.flows.get(resource.key)
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
        response = await self.client.apply(MIRROR_FLOW, body, subresource="status")
        self.metrics.api_writes.labels(verb="apply", kind="mirrorflows/status").inc()
        self.cache.put(MIRROR_FLOW, response)
        stored = self.cache.flows.get(resource.key)
        for reason, message in new_problems(old.conditions, status.conditions, assessment.causes):
            await self.events.publish(resource, reason, message, warning=True)
        return StatusMemory(
            written_at_s=now_s, written=status, stored=None if stored is None else stored.resource.status
        )


def status_document(status: Status) -> dict[str, Any]:
    """Returns *status* as it is written; unset fields are omitted, so that server-side apply removes them."""
    return status.model_dump(mode="json", by_alias=True, exclude_none=True)


def held_s(old: Status, new: Status, *, last_write_s: float | None, now_s: float) -> float | None:
    """Returns the seconds for which to hold back *new*; 0: write it over *old* now; None: nothing to write.

    *last_write_s*: wall clock of this process's last write; None before the first. The caller must run another
    pass by then: without further events the held status would never be written.
    """
    if new == old:
        return None
    before, after = _meaning(old), _meaning(new)
    if _without_pod_counts(after) != _without_pod_counts(before) or last_write_s is None:
        return 0.0
    every_s = FIGURES_EVERY_S if after == before else COUNTS_EVERY_S
    since_s = now_s - last_write_s
    # A clock that was set back must not hold a status back without limit.
    return every_s - since_s if 0 <= since_s < every_s else 0.0


def _meaning(status: Status) -> Status:
    """Returns *status* without what traffic changes: lag, messages, reasons of True conditions, figures."""
    conditions = tuple(_condition_meaning(condition) for condition in status.conditions)
    cleared = {
        "lag": None,
        "conditions": conditions,
        "seed": _without_figures(status.seed),
        "verify": _without_figures(status.verify),
        "archive": _without_figures(status.archive),
        "restore": _without_figures(status.restore),
    }
    return status.model_copy(update=cleared)


def _without_figures(run: _Run | None) -> _Run | None:
    """Returns *run* without the figures that change while it runs."""
    if run is None:
        return None
    cleared = type(run)(**run.model_dump(include=_OF_RUNS))
    # The totals stay: they are set once, and setting them is worth a write.
    if isinstance(run, SeedStatus | RestoreStatus) and run.partitions is not None:
        return cleared.model_copy(update={"partitions": SeedPartitions(total=run.partitions.total)})
    if isinstance(run, VerifyStatus) and run.windows is not None:
        return cleared.model_copy(update={"windows": WindowCounts(total=run.windows.total)})
    return cleared


def _without_pod_counts(status: Status) -> Status:
    """Returns *status* without pod counts; each connector's phase shows whether its pods work."""
    if status.connectors is None:
        return status
    cleared = {"replicas": 0, "ready_replicas": 0}
    connectors = {
        name: None if connector_status is None else connector_status.model_copy(update=cleared)
        for name in type(status.connectors).model_fields
        for connector_status in (getattr(status.connectors, name),)
    }
    return status.model_copy(update={"connectors": status.connectors.model_copy(update=connectors)})


def _condition_meaning(condition: Condition) -> Condition:
    cleared = {"message": ""}
    # The reason why the workloads do not match the spec changes with what people do, not with traffic.
    if condition.status is ConditionStatus.TRUE and condition.type != ConditionType.RECONCILING.value:
        cleared["reason"] = ""
    return condition.model_copy(update=cleared)
