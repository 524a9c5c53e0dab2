"""Everything of every kind, read once: what the view begins with, and what mends it where a watch has missed something."""

from dataclasses import dataclass
from typing import Final

from mirrorflow_operator.assess.admission import Key
from mirrorflow_operator.cluster.client import Client
from mirrorflow_operator.cluster.kinds import MIRROR_FLOW, WATCHED, Kind
from mirrorflow_operator.cluster.view import View
from mirrorflow_operator.plan.names import FLOW_LABEL

_ANY: Final = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """What a whole reading has found that the view did not know."""

    changed: frozenset[Key]
    kinds: frozenset[str]


def selector_of(kind: Kind) -> str:
    """Server-side: nobody else's Deployments and pods reach the operator."""
    return _ANY if kind is MIRROR_FLOW else FLOW_LABEL


async def list_all(client: Client, view: View, namespace: str | None) -> Listed:
    """Reads every kind in *namespace*, None for all, into *view*. Raises ClusterError; the view is then as before or newer."""
    changed: frozenset[Key] = frozenset()
    kinds = set()
    for kind in WATCHED:
        found = await _list(client, view, kind, namespace)
        changed |= found
        if found:
            kinds.add(kind.name)
    return Listed(changed=changed, kinds=frozenset(kinds))


async def _list(client: Client, view: View, kind: Kind, namespace: str | None) -> frozenset[Key]:
    seen: set[str] = set()
    changed: frozenset[Key] = frozenset()
    until = 0
    async for version, bodies in client.chunks(kind, namespace, labels=selector_of(kind)):
        until = version
        for body in bodies:
            seen.add(body["metadata"]["uid"])
            changed |= view.put(kind, body)
    return changed | view.absent(kind, namespace, seen, until)
