"""Plans the properties of a MirrorFlow's worker and connectors, as a KIP-304 standalone process reads them, field by field.

Pure and total for a valid flow: the same flow gives the same bytes, in a fixed order. Keys are MM2's and Connect's;
MirrorFlow's own begin with `mirrorflow.`. The source connector keeps MM2's name, because that name is part of the key of
every stored offset: so Java MM2 continues where MirrorFlow stopped, and the other way round.

Source for names and defaults: Kafka's MirrorConnectorConfig, MirrorSourceConfig, MirrorCheckpointConfig,
MirrorHeartbeatConfig and KIP-304. Exclude lists also contain MM2's defaults where the field always excludes
internal names.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from mirrorflow_core.light_dataclasses import dataclass
from mirrorflow_core.replication_policy import worker_topic
from mirrorflow_core.settings import (
    CONFIG_EXCLUDE,
    GROUPS_EXCLUDE,
    SCHEMA_WAIT_MAX,
    SCHEMA_WAIT_TOPICS,
    TOPICS_EXCLUDE,
)
from mirrorflow_operator.api.model import rounded_up
from mirrorflow_operator.api.spec import (
    InitialPosition,
    IsolationLevel,
    MirrorFlow,
    NamingPolicy,
    Spec,
    StartFrom,
    State,
    SyncMode,
    TopicConfigException,
)
from mirrorflow_operator.api.workloads import KEYS_OF_WORKER, ConnectorKind
from mirrorflow_operator.plan.client_properties import (
    client_config,
    cluster_properties,
    registry_properties,
    security_properties,
)
from mirrorflow_operator.plan.secret_layout import SecretLayout

STATE_KEY = "mirrorflow.state"
_POLICY_CLASSES = {
    NamingPolicy.PREFIX: "org.apache.kafka.connect.mirror.DefaultReplicationPolicy",
    NamingPolicy.IDENTITY: "org.apache.kafka.connect.mirror.IdentityReplicationPolicy",
}
_NAMING_KEYS = {"transforms", "predicates"}
CONNECTOR_PACKAGE = "org.apache.kafka.connect.mirror."
_GROUPS_WITHOUT_OFFSET_SYNCS = (
    "Consumer groups are not translated: emit.offset-syncs.enabled=false in spec.connectors.source.config, and"
    " MirrorCheckpointConnector translates by offset syncs."
)
_TRUE, _FALSE = "true", "false"


def worker_properties(flow: MirrorFlow, layout: SecretLayout) -> dict[str, str]:
    """Returns the worker's properties: the target, the offset storage, and config providers for secrets."""
    spec = flow.spec
    return {
        **layout.provider_properties(),
        "bootstrap.servers": ",".join(spec.target.bootstrap_servers),
        **security_properties(spec.target, layout),
        **client_config(spec.target, ""),
        # The name in MM2's dedicated mode, so that quotas and dashboards by client id keep working.
        "client.id": f"{spec.source.alias}->{spec.target.alias}",
        "group.id": f"{spec.source.alias}-mm2",
        "offset.storage.store": "kafka",
        "offset.storage.topic": worker_topic("offsets", spec.source.alias),
        "offset.storage.replication.factor": str(spec.topics.replication_factor),
    }


def worker_config(config: Mapping[str, str]) -> dict[str, str]:
    """Returns the entries of a connector's `config` that are for its worker."""
    return {key: value for key, value in config.items() if key.startswith(KEYS_OF_WORKER)}


def connector_config(config: Mapping[str, str]) -> dict[str, str]:
    """Returns the entries of a connector's `config` that are for the connector."""
    return {key: value for key, value in config.items() if not key.startswith(KEYS_OF_WORKER)}


def without_unused_offset_syncs(properties: Mapping[str, str]) -> dict[str, str]:
    """Returns *properties* without `offset-syncs.*` if offset syncs are disabled: MM2 refuses both."""
    silent = disables_offset_syncs(properties)
    return {
        key: value for key, value in properties.items() if not (silent and key.startswith("offset-syncs."))
    }


def disables_offset_syncs(config: Mapping[str, str]) -> bool:
    """Returns whether *config* disables offset syncs."""
    return config.get("emit.offset-syncs.enabled", "true").strip().lower() == "false"


def shared_properties(flow: MirrorFlow, layout: SecretLayout, flow_id: str) -> dict[str, str]:
    """Returns the properties of all connectors: the flow's id, both clusters and the naming policy."""
    spec = flow.spec
    return {
        "mirrorflow.flow": flow_id,
        **({STATE_KEY: "paused"} if spec.state is State.PAUSED else {}),
        **layout.provider_properties(),
        **cluster_properties("source", spec.source, layout),
        **cluster_properties("target", spec.target, layout),
        "replication.policy.class": _POLICY_CLASSES[spec.topics.naming.policy],
        "replication.policy.separator": spec.topics.naming.separator,
        # Set on the source connector, valid for the flow: a connector with other naming finds no topics.
        **{
            key: value
            for key, value in spec.connectors.source.config.items()
            if key.startswith("replication.policy.")
        },
    }


def source_properties(spec: Spec) -> dict[str, str]:
    topics = spec.topics
    properties = {
        "topics": ",".join(topics.include),
        "topics.exclude": ",".join((*topics.exclude, *TOPICS_EXCLUDE)),
        "replication.factor": str(topics.replication_factor),
        "sync.topic.configs.enabled": _flag(topics.configs.sync is not SyncMode.OFF),
        "config.properties.exclude": ",".join((*topics.configs.exclude, *CONFIG_EXCLUDE)),
        "sync.topic.acls.enabled": _flag(topics.acls.sync is not SyncMode.OFF),
        "mirrorflow.start.from": _start_from(topics.start_from),
        "mirrorflow.source.loss.policy": topics.on_source_loss.value.lower(),
        "offset-syncs.topic.location": spec.offset_syncs.location.value.lower(),
        "offset-syncs.topic.replication.factor": str(topics.replication_factor),
    }
    if spec.take_over_from:
        properties["mirrorflow.takeover.from"] = ",".join(spec.take_over_from)
    if topics.configs.exceptions:
        properties["mirrorflow.config.properties.exclude.by.topic"] = _pairs(topics.configs.exceptions)
    if topics.configs.sync is SyncMode.REPORT:
        properties["mirrorflow.sync.topic.configs.report.only"] = _TRUE
    if topics.acls.sync is SyncMode.REPORT:
        properties["mirrorflow.sync.topic.acls.report.only"] = _TRUE
    if spec.isolation_level is IsolationLevel.READ_COMMITTED:
        properties["source.consumer.isolation.level"] = "read_committed"
    if spec.limits.bytes_per_second is not None:
        # A plain number, because the replicator's properties accept fewer units than Kubernetes.
        properties["mirrorflow.bytes.per.second"] = str(rounded_up(spec.limits.bytes_per_second))
    return properties


def checkpoint_properties(spec: Spec) -> dict[str, str]:
    return {
        "topics": ",".join(spec.topics.include),
        "topics.exclude": ",".join((*spec.topics.exclude, *TOPICS_EXCLUDE)),
        "groups": ",".join(spec.groups.include),
        "groups.exclude": ",".join((*spec.groups.exclude, *GROUPS_EXCLUDE)),
        "sync.group.offsets.enabled": _flag(spec.groups.sync_offsets),
        "offset-syncs.topic.location": spec.offset_syncs.location.value.lower(),
        "checkpoints.topic.replication.factor": str(spec.topics.replication_factor),
        # It must know the names that the source connector gives to the copies.
        **{
            key: value
            for key, value in spec.connectors.source.config.items()
            if key.partition(".")[0] in _NAMING_KEYS
        },
    }


def heartbeat_properties(spec: Spec) -> dict[str, str]:
    return {
        "emit.heartbeats.enabled": _flag(bool(spec.heartbeats.emit_to)),
        "mirrorflow.heartbeats.emit.to": ",".join(side.value.lower() for side in spec.heartbeats.emit_to),
        "heartbeats.topic.replication.factor": str(spec.topics.replication_factor),
    }


def schema_properties(spec: Spec, layout: SecretLayout) -> dict[str, str]:
    """Returns the properties of the schema connector; empty for a flow without registries."""
    schemas = spec.schemas
    if schemas is None:
        return {}
    pairs = (f"{context.source}:{context.target}" for context in schemas.contexts)
    return {
        **registry_properties("source", schemas.source, layout),
        **registry_properties("target", schemas.target, layout),
        "mirrorflow.schemas.subjects": ",".join(schemas.subjects),
        **({"mirrorflow.schemas.contexts": ",".join(pairs)} if schemas.contexts else {}),
        **({"mirrorflow.schemas.subject.prefix": schemas.subject_prefix} if schemas.subject_prefix else {}),
    }


def schema_wait_properties(spec: Spec, layout: SecretLayout) -> dict[str, str]:
    """Returns the properties by which the source connector waits for schemas; empty if no topic waits."""
    schemas = spec.schemas
    if schemas is None or not schemas.waiting_topics:
        return {}
    return {
        **schema_properties(spec, layout),
        SCHEMA_WAIT_TOPICS: ",".join(schemas.waiting_topics),
        SCHEMA_WAIT_MAX: str(1000 * schemas.max_wait_seconds),
    }


def _pairs(exceptions: Iterable[TopicConfigException]) -> str:
    """Returns each topic with each setting, as `topic:setting`; neither has a colon other than in `(?:`."""
    return ",".join(
        f"{topics}:{settings}"
        for exception in exceptions
        for topics in exception.topics
        for settings in exception.exclude
    )


def _start_from(start: StartFrom) -> str:
    if start.position is InitialPosition.TIMESTAMP:
        return f"timestamp:{start.timestamp}"
    return str(start.position.value).lower()


def _flag(value: bool) -> str:  # noqa: FBT001  one argument, one meaning
    return _TRUE if value else _FALSE


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorPlan:
    """One connector: the worker's and the connector's properties."""

    name: str
    kind: ConnectorKind
    worker_properties: Mapping[str, str]
    connector_properties: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The connectors of a flow, source first; `notes` name parts of the spec without effect."""

    flow: str
    connectors: tuple[ConnectorPlan, ...]
    notes: tuple[str, ...] = ()


def plan(flow: MirrorFlow, secrets: SecretLayout, *, flow_id: str = "") -> Plan:
    """Returns the connectors of *flow* that have work; *flow* has passed `api.rules`.

    *flow_id* is the id with which it claims its source alias on the target; "": its name.
    """
    all_connectors = plan_all(flow, secrets, flow_id=flow_id)
    active = active_kinds(flow)
    silent = disables_offset_syncs(flow.spec.connectors.source.config)
    return replace(
        all_connectors,
        connectors=tuple(connector for connector in all_connectors.connectors if connector.kind in active),
        notes=(_GROUPS_WITHOUT_OFFSET_SYNCS,) if flow.spec.groups.include and silent else (),
    )


def active_kinds(flow: MirrorFlow) -> tuple[ConnectorKind, ...]:
    """Returns the connectors of *flow* that have work."""
    spec = flow.spec
    kinds = [ConnectorKind.SOURCE]
    if spec.groups.include and not disables_offset_syncs(spec.connectors.source.config):
        kinds.append(ConnectorKind.CHECKPOINT)
    if spec.heartbeats.emit_to:
        kinds.append(ConnectorKind.HEARTBEAT)
    if spec.schemas is not None:
        kinds.append(ConnectorKind.SCHEMAS)
    return tuple(kinds)


def connector_names(flow: MirrorFlow) -> dict[ConnectorKind, str]:
    """Returns the name that each connector has in its process; `config` may set another one."""
    named = flow.spec.connectors.named
    return {kind: named(kind).config.get("name", kind.java_class) for kind in ConnectorKind}


def plan_all(flow: MirrorFlow, secrets: SecretLayout, *, flow_id: str = "") -> Plan:
    """Returns the plan of all connectors, also of those without work."""
    worker = worker_properties(flow, secrets)
    shared = shared_properties(flow, secrets, flow_id or flow.metadata.name)
    own = {
        ConnectorKind.SOURCE: {
            **source_properties(flow.spec),
            **schema_wait_properties(flow.spec, secrets),
        },
        ConnectorKind.CHECKPOINT: checkpoint_properties(flow.spec),
        ConnectorKind.HEARTBEAT: heartbeat_properties(flow.spec),
        ConnectorKind.SCHEMAS: schema_properties(flow.spec, secrets),
    }
    connectors = flow.spec.connectors
    return Plan(
        flow=flow.metadata.name,
        connectors=tuple(
            ConnectorPlan(
                name=kind.java_class,
                kind=kind,
                worker_properties=worker | worker_config(connectors.named(connectors.host(kind)).config),
                connector_properties=without_unused_offset_syncs(
                    {
                        "name": kind.java_class,
                        "connector.class": CONNECTOR_PACKAGE + kind.java_class,
                        "tasks.max": str(connectors.named(kind).tasks),
                        **shared,
                        **own[kind],
                        **connector_config(connectors.named(kind).config),
                    }
                ),
            )
            for kind in ConnectorKind
        ),
    )
