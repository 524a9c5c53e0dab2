"""Compares objects of the cluster with their plan, so that only objects that drifted are written. Pure.

The API server adds fields, fills in defaults and rewrites quantities. So an object matches if it has everything
that was planned, whatever else it has. A field removed from the plan is not detected here, but by the content
hash stored with the object.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from mirrorflow_operator.api.model import same_amount

Object = dict[str, Any]
# List members are matched by the first of these keys that all have; others by their index.
_KEYS: Final = ("name", "mountPath", "containerPort", "uid", "topologyKey")
_AMOUNTS: Final = frozenset({"requests", "limits", "sizeLimit"})


def matches(live: Any, planned: Any, *, amount: bool = False) -> bool:
    """Returns whether *live* has all of *planned*; empty values may be absent. *amount*: as quantities."""
    if isinstance(planned, Mapping):
        if not isinstance(live, Mapping):
            return live is None and not any(map(_is_set, planned.values()))
        return all(
            matches(live.get(name), part, amount=amount or name in _AMOUNTS) for name, part in planned.items()
        )
    if isinstance(planned, Sequence) and not isinstance(planned, str):
        return _matches_list(live, planned)
    if not _is_set(planned):
        return not _is_set(live)
    if amount and isinstance(live, str) and isinstance(planned, str):
        return same_amount(live, planned)
    return bool(live == planned)


def _matches_list(live: Any, planned: Sequence[Any]) -> bool:
    if not isinstance(live, Sequence) or isinstance(live, str):
        return live is None and not planned
    key = next((key for key in _KEYS if planned and _identifies(planned, key)), None)
    if key is None or not _identifies(live, key):
        return len(live) == len(planned) and all(
            matches(there, wanted) for there, wanted in zip(live, planned, strict=True)
        )
    by_key = {member[key]: member for member in live}
    return all(matches(by_key.get(member[key]), member) for member in planned)


def _identifies(members: Sequence[Any], key: str) -> bool:
    """Returns whether every member has *key*, each with a different value."""
    values = [member.get(key) if isinstance(member, Mapping) else None for member in members]
    return all(isinstance(value, str | int) for value in values) and len(set(values)) == len(values)


def _is_set(value: Any) -> bool:
    """Returns whether *value* is not empty: null, "", [], {} and absence are equal to the API; not 0."""
    return value is not None and value not in ("", [], {}, ())


def content_hash(content: Mapping[str, Any]) -> str:
    """Returns a hash of 16 hex digits that does not depend on the order of keys; it fits into a label."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
