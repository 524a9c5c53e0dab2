"""Lists which MM2 connector reads which key, and which values the resource and MM2 imply.

Names are those of Kafka 4.3 (MirrorConnectorConfig, MirrorSourceConfig, MirrorCheckpointConfig,
MirrorHeartbeatConfig). An mm2.properties passes every key to all three connectors; a MirrorFlow has a
`config` for each connector, so a key goes only to the connectors that read it.
"""

from collections.abc import Mapping
from types import MappingProxyType

from mirrorflow_cli.convert_parts import CHECKPOINT, HEARTBEAT, SOURCE

_ALL = (SOURCE, CHECKPOINT, HEARTBEAT)
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


def readers(key: str) -> tuple[str, ...]:
    """Returns the connectors that read *key*; () if the key is not MM2's own."""
    return _OWN.get(key, ())


def is_client_key(key: str) -> bool:
    """Returns whether *key* belongs to one client (`consumer.client.rack`, `producer.override.acks`)."""
    return key.startswith((*CLIENT_KINDS, *OVERRIDES))
