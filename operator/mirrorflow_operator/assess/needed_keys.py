"""Lists the keys of a Secret or ConfigMap that a flow references, for messages; names, never values. Pure."""

from collections.abc import Iterator
from typing import Any

from mirrorflow_operator.api.spec import MirrorFlow
from mirrorflow_operator.plan import replica_sharing

KEYS_MAX = 5  # in one message


def needed_keys(flow: MirrorFlow | None, name: str, *, is_secret: bool) -> tuple[str, ...]:
    """Returns up to KEYS_MAX keys of *name* in the spec of *flow*, without references inside a `config`."""
    if flow is None:
        return ()
    field = "secret_name" if is_secret else "config_map_name"
    parts = (
        one.model_dump(include={"tls", "authentication"}) for one in (flow.spec.source, flow.spec.target)
    )
    found = {key for part in parts for key in _keys(part, field, name)}
    internal = flow.spec.internal_rest.tls
    if is_secret and internal is not None and internal.secret_name == name:
        found |= {replica_sharing.CERTIFICATE, replica_sharing.KEY, replica_sharing.AUTHORITY}
    return tuple(sorted(found)[:KEYS_MAX])


def _keys(part: Any, field: str, name: str) -> Iterator[str]:
    if isinstance(part, dict):
        if part.get(field) == name:
            yield from (part[one] for one in ("key", "certificate") if isinstance(part.get(one), str))
        for value in part.values():
            yield from _keys(value, field, name)
    elif isinstance(part, list | tuple):
        for value in part:
            yield from _keys(value, field, name)
