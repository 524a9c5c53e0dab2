"""Defines a flow of Java's MirrorMaker 2 as `convert` reads it, and which of MM2's connectors reads which key.

Both readers (`convert_from_mm2`, `convert_from_strimzi`) return a `JavaFlow`; `convert_to_mirrorflow` converts it. No value here is a
secret: passwords have already become names of Secrets.

Names of keys are those of Kafka 4.3 (MirrorConnectorConfig, MirrorSourceConfig, MirrorCheckpointConfig,
MirrorHeartbeatConfig). An mm2.properties passes every key to all three connectors; a MirrorFlow has a
`config` for each connector, so a key goes only to the connectors that read it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from mirrorflow_operator.api.workloads import ConnectorKind

SOURCE, CHECKPOINT, HEARTBEAT, SCHEMAS = (kind.value for kind in ConnectorKind)
CLASS_NAMES = {kind.value: kind.java_class for kind in ConnectorKind}
# Path of a Secret in a pod, for `${dir:...}`. On a laptop `type: Custom` needs the path given with --secrets.
SECRETS_MOUNT = "/mnt/mirrorflow/secrets"
_READERS = {
    (SOURCE,): """
        config.property.filter.class offset.lag.max refresh.topics.enabled refresh.topics.interval.seconds
        sync.topic.configs.interval.seconds sync.topic.acls.interval.seconds heartbeats.replication.enabled
        use.defaults.from exactly.once.support offset.flush.interval.ms metrics.level mirrorflow.flow
    """,
    (CHECKPOINT,): """
        group.filter.class refresh.groups.enabled refresh.groups.interval.seconds emit.checkpoints.enabled
        emit.checkpoints.interval.seconds sync.group.offsets.interval.seconds
    """,
    (HEARTBEAT,): "emit.heartbeats.interval.seconds",
    (SOURCE, CHECKPOINT): """
        topic.filter.class emit.offset-syncs.enabled replication.policy.internal.topic.separator.enabled
    """,
}
_OWN = {key: readers for readers, keys in _READERS.items() for key in keys.split()}
# Key, its only reader, MM2's default. In the resource topics.replicationFactor sets them all.
REPLICATION_FACTORS = (
    ("offset-syncs.topic.replication.factor", SOURCE, "3"),
    ("checkpoints.topic.replication.factor", CHECKPOINT, "3"),
    ("heartbeats.topic.replication.factor", HEARTBEAT, "3"),
)
# Keys that fields of the resource, or its plan, express.
FIELDS = frozenset(
    [
        "name",
        "connector.class",
        "enabled",
        "tasks.max",
        "topics",
        "topics.exclude",
        "groups",
        "groups.exclude",
        "replication.factor",
        "replication.policy.class",
        "replication.policy.separator",
        "config.properties.exclude",
        "sync.topic.configs.enabled",
        "sync.topic.acls.enabled",
        "sync.group.offsets.enabled",
        "offset-syncs.topic.location",
        "emit.heartbeats.enabled",
        "mirrorflow.start.from",
        "mirrorflow.state",
        "mirrorflow.takeover.from",
        "mirrorflow.source.loss.policy",
        "mirrorflow.bytes.per.second",
        "mirrorflow.heartbeats.emit.to",
        "source.cluster.alias",
        "target.cluster.alias",
        "mirrorflow.config.properties.exclude.by.topic",
        "mirrorflow.sync.topic.configs.report.only",
        "mirrorflow.sync.topic.acls.report.only",
    ]
) | {key for key, _, _ in REPLICATION_FACTORS}
CLIENT_KINDS = ("consumer.", "producer.", "admin.")
OVERRIDES = ("producer.override.", "consumer.override.", "admin.override.")
# Defaults of an mm2.properties, which need not be written into one.
MM2_DEFAULTS: Mapping[str, str] = MappingProxyType(
    {
        "replication.policy.class": "org.apache.kafka.connect.mirror.DefaultReplicationPolicy",
        "replication.policy.separator": ".",
        "sync.topic.configs.enabled": "true",
        "offset-syncs.topic.location": "source",
        "sync.group.offsets.enabled": "false",
        "sync.topic.acls.enabled": "true",
        "tasks.max": "1",
        "groups": ".*",
        "mirrorflow.source.loss.policy": "fail",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionLoss:
    """A setting without a counterpart.

    It is `refused` if the copy without it would differ from the requested one.
    """

    flow: str  # A->B; "" for the whole file
    setting: str
    why: str
    refused: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class NeededSecret:
    """A key of a Secret (a file for `mirrorflow run --secrets`) that a converted flow refers to."""

    secret: str
    key: str
    origin: str  # where its content is now, never the content


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaCluster:
    """One side of a flow.

    `document` is spec.source or spec.target without `config`; `clients` are consumer.*, producer.*, admin.*.
    """

    document: Mapping[str, Any]
    clients: Mapping[str, str] = field(default_factory=dict)

    @property
    def alias(self) -> str:
        """The cluster's name in topic names and stored offsets."""
        return str(self.document["alias"])


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaFlow:
    """A flow as Java runs it.

    `worker` and `connectors` are Connect's properties without the connections; a connector that does not run
    is absent. `claim` is the name by which a MirrorFlow replicator claims the source alias on the target
    (`mirrorflow.flow`); "" if none yet. `workload` has fields of spec.connectors.source, such as `replicas`;
    `schemas` is spec.schemas.
    """

    source: JavaCluster
    target: JavaCluster
    worker: Mapping[str, str]
    connectors: Mapping[str, Mapping[str, str]]
    emit_to: Sequence[str]  # Target, Source
    state: str = "Running"
    claim: str | None = None
    workload: Mapping[str, Any] = field(default_factory=dict)
    namespace: str | None = None
    schemas: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The flow's name in MM2: `A->B`."""
        return f"{self.source.alias}->{self.target.alias}"


@dataclass(slots=True, kw_only=True)
class ConversionFindings:
    """Collects the losses, the warnings and the needed Secrets of a conversion."""

    losses: list[ConversionLoss] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    secrets: set[NeededSecret] = field(default_factory=set)

    def add_loss(self, flow: str, setting: str, why: str, *, refused: bool = False) -> None:
        """Records a setting without a counterpart, once."""
        loss = ConversionLoss(flow=flow, setting=setting, why=why.rstrip("."), refused=refused)
        if loss not in self.losses:
            self.losses.append(loss)

    def add_warning(self, sentence: str) -> None:
        """Records a sentence about a setting that was converted, once."""
        if sentence not in self.warnings:
            self.warnings.append(sentence)

    def add_secret(self, secret: str, key: str, origin: str) -> dict[str, str]:
        """Records a Secret key that has to be created, and returns the reference to it."""
        self.secrets.add(NeededSecret(secret=secret, key=key, origin=origin))
        return {"secretName": secret, "key": key}


def readers(key: str) -> tuple[str, ...]:
    """Returns the connectors that read *key*; () if the key is not MM2's own."""
    return _OWN.get(key, ())


def is_client_key(key: str) -> bool:
    """Returns whether *key* belongs to one client (`consumer.client.rack`, `producer.override.acks`)."""
    return key.startswith((*CLIENT_KINDS, *OVERRIDES))
