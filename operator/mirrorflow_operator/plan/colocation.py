"""Which connectors share a pod (`spec.connectors.colocate`), whose it is, and which files it reads. Pure.

The pod is that of the first of source, checkpoint and heartbeat that runs in it: its name and its labels. What is said of a pod
(image, resources, ServiceAccount, template) and of a worker is said of the first that is listed, whether it has work or not.
One process runs them all, as KIP-304's standalone worker runs as many connectors as it is given files.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from mirrorflow_operator.api.connectors import Connector, ConnectorName, Connectors
from mirrorflow_operator.plan.names import connector_word
from mirrorflow_operator.plan.plan import ConnectorKind

CONNECTOR_FILE: Final = "connector.properties"  # of one that is alone, whichever it is
_SUFFIX: Final = ".properties"
Pods = Mapping[ConnectorKind, tuple[ConnectorKind, ...]]


def pods(connectors: Connectors, running: Iterable[ConnectorKind], *, source_waits: bool = False) -> Pods:
    """The connectors of each pod, its own first, by that one; *running* are those that have work.

    *source_waits*: a seed does the work of the source connector, whose pod is then nobody else's.
    """
    kinds = [kind for kind in ConnectorKind if kind in set(running)]
    listed = [
        kind
        for kind in kinds
        if _name(kind) in connectors.colocate and not (source_waits and kind is ConnectorKind.SOURCE)
    ]
    return {kind: tuple(listed) if kind in listed else (kind,) for kind in kinds if kind not in listed[1:]}


def hosts(found: Pods) -> dict[ConnectorKind, ConnectorKind]:
    """The same by connector: whose pod each runs in."""
    return {kind: host for host, kinds in found.items() for kind in kinds}


def pod_kind(connectors: Connectors, kind: ConnectorKind) -> ConnectorKind:
    """The connector of whom it is said what the pod of *kind* is like."""
    host = connectors.host(_name(kind)).value
    return next(one for one in ConnectorKind if connector_word(one) == host)


def connector_spec(connectors: Connectors, kind: ConnectorKind) -> Connector:
    """What the resource says of the connector *kind*."""
    return connectors.named(_name(kind))


def file_names(kinds: Sequence[ConnectorKind]) -> tuple[str, ...]:
    """What the properties of each are called, in a pod of all of them."""
    if len(kinds) == 1:
        return (CONNECTOR_FILE,)
    return tuple(f"{connector_word(kind)}{_SUFFIX}" for kind in kinds)


def connectors_in(container: Mapping[str, Any], own: str) -> tuple[str, ...]:
    """The words of those that *container* runs, *own* being that of its pod: what `file_names` has made of them."""
    files = (container.get("args") or ())[2:]  # after the form and the worker's
    words = tuple(file.rpartition("/")[2].removesuffix(_SUFFIX) for file in files)
    return words if len(words) > 1 else (own,)


def _name(kind: ConnectorKind) -> ConnectorName:
    return ConnectorName(connector_word(kind))
