"""The status as a document, both ways, and when it is worth a write: at once where its meaning changed, at most once a minute
where figures moved. Pure.
"""

from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError

from mirrorflow_operator.api.status import Condition, ConditionStatus, Status

FIGURES_EVERY_S: Final = 60.0  # issue 5: with traffic at most one status write a minute and flow


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
    if new == old:
        return False
    if _meaning(new) != _meaning(old):
        return True
    # A clock that was set back must not hold a status for ever.
    return last_write_s is None or not 0 <= now_s - last_write_s < FIGURES_EVERY_S


def _meaning(status: Status) -> Status:
    """*status* without what traffic moves: the lag, and by which word it goes well."""
    conditions = tuple(_settled(condition) for condition in status.conditions)
    return status.model_copy(update={"lag": None, "conditions": conditions})


def _settled(condition: Condition) -> Condition:
    still = {"message": ""}
    if condition.status is ConditionStatus.TRUE:
        still["reason"] = "Well"
    return condition.model_copy(update=still)
