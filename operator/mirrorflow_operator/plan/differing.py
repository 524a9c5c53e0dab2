"""Whether an object in the cluster still is what was planned. Pure.

The API server adds fields, fills defaults in and rewrites quantities; so what counts is that everything that was planned is
there, not that nothing else is. What was taken out of a plan is not seen here, but by the hash that is kept with the object.
"""

from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Final

# Members of a list are one another's by these keys where they have them; others by their place.
_KEYS: Final = ("name", "mountPath", "containerPort", "uid", "topologyKey")
_AMOUNTS: Final = frozenset({"requests", "limits", "sizeLimit"})
_FACTORS: Final = {
    **{
        unit: Decimal(1000) ** power
        for power, unit in enumerate(("n", "u", "m", "", "k", "M", "G", "T", "P"), -3)
    },
    **{unit: Decimal(1024) ** power for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi"), 1)},
}


def holds(live: Any, planned: Any, *, amount: bool = False) -> bool:
    """Whether *live* has all of *planned*; what is empty may be absent."""
    if isinstance(planned, Mapping):
        if not isinstance(live, Mapping):
            return live is None and not any(map(_says, planned.values()))
        return all(
            holds(live.get(name), part, amount=amount or name in _AMOUNTS) for name, part in planned.items()
        )
    if isinstance(planned, Sequence) and not isinstance(planned, str):
        return _holds_list(live, planned)
    if not _says(planned):
        return not _says(live)
    if amount and isinstance(live, str) and isinstance(planned, str):
        return _amount(live) == _amount(planned)
    return bool(live == planned)


def _holds_list(live: Any, planned: Sequence[Any]) -> bool:
    if not isinstance(live, Sequence) or isinstance(live, str):
        return live is None and not planned
    key = next((one for one in _KEYS if planned and _tells_apart(planned, one)), None)
    if key is None or not _tells_apart(live, key):
        return len(live) == len(planned) and all(
            holds(there, wanted) for there, wanted in zip(live, planned, strict=True)
        )
    found = {member[key]: member for member in live}
    return all(holds(found.get(member[key]), member) for member in planned)


def _tells_apart(members: Sequence[Any], key: str) -> bool:
    """Whether each member has *key*, and each another."""
    values = [member.get(key) if isinstance(member, Mapping) else None for member in members]
    return all(isinstance(value, str | int) for value in values) and len(set(values)) == len(values)


def _says(value: Any) -> bool:
    """Absent, null, an empty text, list or object mean the same to the API; 0 and false do not always."""
    return value is not None and value not in ("", [], {}, ())


def _amount(text: str) -> Decimal | str:
    number = text.rstrip("numkMGTPEi")
    try:
        return Decimal(number) * _FACTORS[text[len(number) :]]
    except (InvalidOperation, KeyError):
        return text
