"""The status as a document, both ways, and when it is worth a write: at once where its meaning changed, a moment later where pods
were counted, at most once a minute where figures moved. Pure.
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
    Windows,
)

FIGURES_EVERY_S: Final = 60.0  # with traffic at most one status write a minute and flow
_OF_RUNS: Final = {"run_id", "phase", "start_time", "completion_time", "ended_run_id", "job", "verdict_time"}
_Run = TypeVar("_Run", SeedStatus, VerifyStatus)
# Each Deployment of a flow counts its pods up one by one; one write tells of all of them.
COUNTS_EVERY_S: Final = 5.0


def status_document(status: Status) -> dict[str, Any]:
    """*status* as it is written: what is not known is left out, so that server-side apply takes it away."""
    return status.model_dump(mode="json", by_alias=True, exclude_none=True)


def status_of(document: Any) -> Status:
    """The status that *document* holds. What another release wrote into it, or anybody else, is passed over field by field.

    A field that cannot be read must not cost the others: the pinned version is among them.
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


def worth_writing(old: Status, new: Status, *, last_write_s: float | None, now_s: float) -> bool:
    """Whether *new* is to be written over *old*, which stands in the cluster; *last_write_s* None: not by this process."""
    return held_s(old, new, last_write_s=last_write_s, now_s=now_s) == 0


def held_s(old: Status, new: Status, *, last_write_s: float | None, now_s: float) -> float | None:
    """For how long *new* is to be held back: 0, now; None, there is nothing to be written. As `worth_writing`.

    What is held back must be looked at again by then, or a status would stay what it was when things became quiet.
    """
    if new == old:
        return None
    before, after = _meaning(old), _meaning(new)
    if _uncounted(after) != _uncounted(before) or last_write_s is None:
        return 0.0
    every_s = FIGURES_EVERY_S if after == before else COUNTS_EVERY_S
    since_s = now_s - last_write_s
    # A clock that was set back must not hold a status for ever.
    return every_s - since_s if 0 <= since_s < every_s else 0.0


def _meaning(status: Status) -> Status:
    """*status* without what traffic moves: the lag, and by which word it goes well."""
    conditions = tuple(_settled(condition) for condition in status.conditions)
    still = {
        "lag": None,
        "conditions": conditions,
        "seed": _unmoved(status.seed),
        "verify": _unmoved(status.verify),
    }
    return status.model_copy(update=still)


def _unmoved(run: _Run | None) -> _Run | None:
    """*run* without the figures that move while it goes on."""
    if run is None:
        return None
    still = type(run)(**run.model_dump(include=_OF_RUNS))
    # How much there is to do is news, once.
    if isinstance(run, SeedStatus) and run.partitions is not None:
        return still.model_copy(update={"partitions": SeedPartitions(total=run.partitions.total)})
    if isinstance(run, VerifyStatus) and run.windows is not None:
        return still.model_copy(update={"windows": Windows(total=run.windows.total)})
    return still


def _uncounted(status: Status) -> Status:
    """*status* without how many pods there are; whether they work is in each connector's phase."""
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
