"""Lists all objects of every kind into the view: at start, and later to correct what a watch has missed."""

from dataclasses import dataclass
from typing import Final

from mirrorflow_operator.assess.admission import Key
from mirrorflow_operator.cluster.client import Client
from mirrorflow_operator.cluster.kinds import MIRROR_FLOW, WATCHED, ObjectKind
from mirrorflow_operator.cluster.view import View
from mirrorflow_operator.plan.names import FLOW_LABEL

_ANY: Final = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """What a full list changed in the view: flows, and the kinds of the changed objects."""

    changed: frozenset[Key]
    kinds: frozenset[str]


def selector_of(kind: ObjectKind) -> str:
    """Returns the label selector for *kind*, so that the API server filters out objects of no flow."""
    return _ANY if kind is MIRROR_FLOW else FLOW_LABEL


async def list_all(client: Client, view: View, namespace: str | None) -> Listed:
    """Reads every kind in *namespace* (None: all namespaces) into *view* and returns what changed.

    Raises ClusterError; what was read until then stays in the view.
    """
    changed: frozenset[Key] = frozenset()
    kinds = set()
    for kind in WATCHED:
        found = await _list(client, view, kind, namespace)
        changed |= found
        if found:
            kinds.add(kind.name)
    return Listed(changed=changed, kinds=frozenset(kinds))


async def _list(client: Client, view: View, kind: ObjectKind, namespace: str | None) -> frozenset[Key]:
    seen: set[str] = set()
    changed: frozenset[Key] = frozenset()
    until = 0
    async for version, bodies in client.chunks(kind, namespace, labels=selector_of(kind)):
        until = version
        for body in bodies:
            seen.add(body["metadata"]["uid"])
            changed |= view.put(kind, body)
    return changed | view.absent(kind, namespace, seen, until)
