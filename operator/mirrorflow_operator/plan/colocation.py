"""Decides which connectors share a pod (`spec.connectors.colocate`) and which files the pod reads. Pure.

A shared pod has the name and labels of the first of source, checkpoint and heartbeat that runs in it. Its
image, resources, ServiceAccount, template and worker settings come from the first of these three that is
listed, even if it has no work. One process runs all of them, as KIP-304's standalone worker runs one connector
for each file.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from mirrorflow_operator.api.connectors import Connector, ConnectorName, Connectors
from mirrorflow_operator.plan.names import connector_word
from mirrorflow_operator.plan.plan import ConnectorKind

CONNECTOR_FILE: Final = "connector.properties"  # the file of a connector that has its own pod
_SUFFIX: Final = ".properties"
Pods = Mapping[ConnectorKind, tuple[ConnectorKind, ...]]


def pods(connectors: Connectors, running: Iterable[ConnectorKind], *, source_waits: bool = False) -> Pods:
    """Returns the connectors of each pod, by the pod's first connector; *running* are those that have work.

    *source_waits*: a seed does the work of the source connector, which then shares its pod with no other.
    """
    kinds = [kind for kind in ConnectorKind if kind in set(running)]
    listed = [
        kind
        for kind in kinds
        if _name(kind) in connectors.colocate and not (source_waits and kind is ConnectorKind.SOURCE)
    ]
    return {kind: tuple(listed) if kind in listed else (kind,) for kind in kinds if kind not in listed[1:]}


def hosts(found: Pods) -> dict[ConnectorKind, ConnectorKind]:
    """Returns, for each connector, the one whose pod it runs in."""
    return {kind: host for host, kinds in found.items() for kind in kinds}


def pod_kind(connectors: Connectors, kind: ConnectorKind) -> ConnectorKind:
    """Returns the connector whose spec describes the pod of *kind*."""
    host = connectors.host(_name(kind)).value
    return next(one for one in ConnectorKind if connector_word(one) == host)


def connector_spec(connectors: Connectors, kind: ConnectorKind) -> Connector:
    """Returns the spec of the connector *kind*."""
    return connectors.named(_name(kind))


def file_names(kinds: Sequence[ConnectorKind]) -> tuple[str, ...]:
    """Returns the properties file name of each connector in a pod that runs all of *kinds*."""
    if len(kinds) == 1:
        return (CONNECTOR_FILE,)
    return tuple(f"{connector_word(kind)}{_SUFFIX}" for kind in kinds)


def connectors_in(container: Mapping[str, Any], own: str) -> tuple[str, ...]:
    """Returns the connectors that *container* runs, by its file names; *own* is its pod's connector."""
    files = (container.get("args") or ())[2:]  # after the subcommand and the worker's file
    words = tuple(file.rpartition("/")[2].removesuffix(_SUFFIX) for file in files)
    return words if len(words) > 1 else (own,)


def _name(kind: ConnectorKind) -> ConnectorName:
    return ConnectorName(connector_word(kind))
