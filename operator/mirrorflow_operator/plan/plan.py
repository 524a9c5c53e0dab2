"""A MirrorFlow -> the properties of each of its connectors, as a KIP-304 standalone process reads them.

Pure and total for a valid flow: the same flow gives the same bytes, in a fixed order. Names are MM2's and Connect's;
own ones begin with `mirrorflow.`. The source connector keeps MM2's name, because the name is part of the key of every
position: Java MM2 goes on where we stopped, and we where it did.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from mirrorflow_operator.api.spec import MirrorFlow
from mirrorflow_operator.plan import properties
from mirrorflow_operator.plan.layout import SecretLayout

CONNECTOR_PACKAGE = "org.apache.kafka.connect.mirror."
_NOTES = (
    "The checkpoint and heartbeat connectors come with the next release; until then records alone are copied.",
)


class ConnectorKind(Enum):
    """The three connectors of MM2, by class name."""

    SOURCE = "MirrorSourceConnector"
    CHECKPOINT = "MirrorCheckpointConnector"
    HEARTBEAT = "MirrorHeartbeatConnector"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorPlan:
    """One process. `available` is False for a connector that this release cannot run yet."""

    name: str
    kind: ConnectorKind
    worker_properties: Mapping[str, str]
    connector_properties: Mapping[str, str]
    available: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What runs for a flow; `notes` say, in a sentence each, what the spec asks for and this release does not do."""

    flow: str
    connectors: tuple[ConnectorPlan, ...]
    notes: tuple[str, ...] = ()


def plan(flow: MirrorFlow, secrets: SecretLayout) -> Plan:
    """The connectors of *flow*; *flow* has passed `api.validate`."""
    worker = properties.worker_properties(flow, secrets)
    shared = properties.shared_properties(flow, secrets)
    spec = flow.spec
    parts = (
        (ConnectorKind.SOURCE, properties.source_properties(spec), spec.connectors.source),
        (ConnectorKind.CHECKPOINT, properties.checkpoint_properties(spec), spec.connectors.checkpoint),
        (ConnectorKind.HEARTBEAT, properties.heartbeat_properties(spec), spec.connectors.heartbeat),
    )
    return Plan(
        flow=flow.metadata.name,
        connectors=tuple(
            ConnectorPlan(
                name=kind.value,
                kind=kind,
                worker_properties={**worker, **properties.config_of_worker(connector.config)},
                connector_properties=properties.without_contradiction(
                    {
                        "name": kind.value,
                        "connector.class": CONNECTOR_PACKAGE + kind.value,
                        "tasks.max": str(connector.tasks),
                        **shared,
                        **own,
                        **properties.config_of_connector(connector.config),
                    }
                ),
                available=kind is ConnectorKind.SOURCE,
            )
            for kind, own, connector in parts
        ),
        notes=_NOTES,
    )
