"""Plans the properties of each connector of a MirrorFlow, as a KIP-304 standalone process reads them.

Pure and total for a valid flow: the same flow gives the same bytes, in a fixed order. Keys are MM2's and
Connect's; MirrorFlow's own begin with `mirrorflow.`. The source connector keeps MM2's name, because that name
is part of the key of every stored offset: so Java MM2 continues where MirrorFlow stopped, and the other way
round.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mirrorflow_operator.api.spec import MirrorFlow
from mirrorflow_operator.api.workloads import ConnectorKind
from mirrorflow_operator.plan import properties
from mirrorflow_operator.plan.properties import SecretLayout

CONNECTOR_PACKAGE = "org.apache.kafka.connect.mirror."
_NO_SYNCS = (
    "Consumer groups are not translated: emit.offset-syncs.enabled=false in spec.connectors.source.config, and"
    " MirrorCheckpointConnector translates by offset syncs."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorPlan:
    """One connector: the worker's and the connector's properties."""

    name: str
    kind: ConnectorKind
    worker_properties: Mapping[str, str]
    connector_properties: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The connectors of a flow, source first; each of `notes` names a part of the spec not done."""

    flow: str
    connectors: tuple[ConnectorPlan, ...]
    notes: tuple[str, ...] = ()


def plan(flow: MirrorFlow, secrets: SecretLayout, *, flow_id: str = "") -> Plan:
    """Returns the connectors of *flow* that have work; *flow* has passed `api.rules`.

    *flow_id* is the id with which it claims its source alias on the target; "": its name.
    """
    whole = plan_of_all(flow, secrets, flow_id=flow_id)
    active = active_kinds(flow)
    silent = properties.is_silent(flow.spec.connectors.source.config)
    return replace(
        whole,
        connectors=tuple(one for one in whole.connectors if one.kind in active),
        notes=(_NO_SYNCS,) if flow.spec.groups.include and silent else (),
    )


def active_kinds(flow: MirrorFlow) -> tuple[ConnectorKind, ...]:
    """Returns the connectors of *flow* that have work."""
    spec = flow.spec
    found = [ConnectorKind.SOURCE]
    if spec.groups.include and not properties.is_silent(spec.connectors.source.config):
        found.append(ConnectorKind.CHECKPOINT)
    if spec.heartbeats.emit_to:
        found.append(ConnectorKind.HEARTBEAT)
    return tuple(found)


def connector_names(flow: MirrorFlow) -> dict[ConnectorKind, str]:
    """Returns the name that each connector has in its process; `config` may set another one."""
    named = flow.spec.connectors.named
    return {kind: named(kind).config.get("name", kind.java_class) for kind in ConnectorKind}


def plan_of_all(flow: MirrorFlow, secrets: SecretLayout, *, flow_id: str = "") -> Plan:
    """Returns the plan of all three connectors, also of those without work."""
    worker = properties.worker_properties(flow, secrets)
    shared = properties.shared_properties(flow, secrets, flow_id or flow.metadata.name)
    own = {
        ConnectorKind.SOURCE: properties.source_properties,
        ConnectorKind.CHECKPOINT: properties.checkpoint_properties,
        ConnectorKind.HEARTBEAT: properties.heartbeat_properties,
    }
    connectors = flow.spec.connectors
    return Plan(
        flow=flow.metadata.name,
        connectors=tuple(
            ConnectorPlan(
                name=kind.java_class,
                kind=kind,
                worker_properties=worker
                | properties.config_of_worker(connectors.named(connectors.host(kind)).config),
                connector_properties=properties.without_contradiction(
                    {
                        "name": kind.java_class,
                        "connector.class": CONNECTOR_PACKAGE + kind.java_class,
                        "tasks.max": str(connectors.named(kind).tasks),
                        **shared,
                        **own[kind](flow.spec),
                        **properties.config_of_connector(connectors.named(kind).config),
                    }
                ),
            )
            for kind in ConnectorKind
        ),
    )
