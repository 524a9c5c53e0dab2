"""Converts the status to and from its JSON document, and decides when a new status is written. Pure.

A status is written at once if its meaning changed, within seconds if only pod counts changed, and at most
once a minute if only figures changed.
"""

from collections.abc import Mapping
from typing import Any, Final, TypeVar

from pydantic import ValidationError

from mirrorflow_operator.api.status import (
    Condition,
    ConditionStatus,
    SeedPartitions,
    SeedStatus,
    Status,
    VerifyStatus,
    WindowCounts,
)

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
_Run = TypeVar("_Run", SeedStatus, VerifyStatus)
# Each Deployment's ready count rises one pod at a time; one write covers several steps.
COUNTS_EVERY_S: Final = 5.0


def status_document(status: Status) -> dict[str, Any]:
    """Returns *status* as it is written; unset fields are omitted, so that server-side apply removes them."""
    return status.model_dump(mode="json", by_alias=True, exclude_none=True)


def status_of(document: Any) -> Status:
    """Parses *document* into a Status; fields of another release or another writer are ignored one by one.

    An unreadable field must not cost the others, because the pinned version is among them.
    """
    if not isinstance(document, Mapping):
        return Status()
    found: dict[str, Any] = {}
    for name, field in Status.model_fields.items():
        alias = field.alias or name
        if alias in document:
            found |= _field(name, alias, document[alias])
    return Status(**found)


def _field(name: str, alias: str, value: Any) -> dict[str, Any]:
    if name == "conditions":
        rows = value if isinstance(value, list) else []
        conditions = {one.type: one for one in (_condition(row) for row in rows) if one is not None}
        return {name: tuple(conditions.values())}
    try:
        part = Status.model_validate({alias: value}, extra="ignore")
    except ValidationError:
        return {}
    return {name: getattr(part, name)}


def _condition(row: Any) -> Condition | None:
    try:
        return Condition.model_validate(row, extra="ignore")
    except ValidationError:
        return None


def held_s(old: Status, new: Status, *, last_write_s: float | None, now_s: float) -> float | None:
    """Returns the seconds for which to hold back *new*; 0: write it over *old* now; None: nothing to write.

    *last_write_s*: wall clock of this process's last write; None before the first. The caller must run another
    pass by then: without further events the held status would never be written.
    """
    if new == old:
        return None
    before, after = _meaning(old), _meaning(new)
    if _uncounted(after) != _uncounted(before) or last_write_s is None:
        return 0.0
    every_s = FIGURES_EVERY_S if after == before else COUNTS_EVERY_S
    since_s = now_s - last_write_s
    # A clock that was set back must not hold a status back without limit.
    return every_s - since_s if 0 <= since_s < every_s else 0.0


def _meaning(status: Status) -> Status:
    """Returns *status* without what traffic changes: lag, messages, reasons of True conditions, figures."""
    conditions = tuple(_settled(condition) for condition in status.conditions)
    still = {
        "lag": None,
        "conditions": conditions,
        "seed": _unmoved(status.seed),
        "verify": _unmoved(status.verify),
    }
    return status.model_copy(update=still)


def _unmoved(run: _Run | None) -> _Run | None:
    """Returns *run* without the figures that change while it runs."""
    if run is None:
        return None
    still = type(run)(**run.model_dump(include=_OF_RUNS))
    # The totals stay: they are set once, and setting them is worth a write.
    if isinstance(run, SeedStatus) and run.partitions is not None:
        return still.model_copy(update={"partitions": SeedPartitions(total=run.partitions.total)})
    if isinstance(run, VerifyStatus) and run.windows is not None:
        return still.model_copy(update={"windows": WindowCounts(total=run.windows.total)})
    return still


def _uncounted(status: Status) -> Status:
    """Returns *status* without pod counts; each connector's phase shows whether its pods work."""
    if status.connectors is None:
        return status
    still = {"replicas": 0, "ready_replicas": 0}
    connectors = {
        name: None if one is None else one.model_copy(update=still)
        for name in type(status.connectors).model_fields
        for one in (getattr(status.connectors, name),)
    }
    return status.model_copy(update={"connectors": status.connectors.model_copy(update=connectors)})


def _settled(condition: Condition) -> Condition:
    still = {"message": ""}
    if condition.status is ConditionStatus.TRUE:
        still["reason"] = "Well"
    return condition.model_copy(update=still)
