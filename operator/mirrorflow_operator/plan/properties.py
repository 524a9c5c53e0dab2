"""Translates each field of the resource to the properties of a worker and its connectors.

Source for names and defaults: Kafka's MirrorConnectorConfig, MirrorSourceConfig, MirrorCheckpointConfig,
MirrorHeartbeatConfig and KIP-304. Exclude lists also contain MM2's defaults where the field always excludes
internal names.
"""

from collections.abc import Iterable, Mapping

from mirrorflow_core.naming.default_exclusions import CONFIG_EXCLUDE, GROUPS_EXCLUDE, TOPICS_EXCLUDE
from mirrorflow_core.naming.worker_topics import worker_topic
from mirrorflow_operator.api.quantity import whole
from mirrorflow_operator.api.reserved_keys import KEYS_OF_WORKER
from mirrorflow_operator.api.spec import IsolationLevel, MirrorFlow, Spec, State
from mirrorflow_operator.api.topics import ConfigException, NamingPolicy, Position, StartFrom, SyncMode
from mirrorflow_operator.plan.clients import client_config, cluster_properties, security_properties
from mirrorflow_operator.plan.layout import FILE_PROVIDER, PROVIDER, SecretLayout

_DIRECTORY_PROVIDER = "org.apache.kafka.common.config.provider.DirectoryConfigProvider"
_FILE_PROVIDER = "org.apache.kafka.common.config.provider.FileConfigProvider"
_POLICY_CLASSES = {
    NamingPolicy.PREFIX: "org.apache.kafka.connect.mirror.DefaultReplicationPolicy",
    NamingPolicy.IDENTITY: "org.apache.kafka.connect.mirror.IdentityReplicationPolicy",
}
_OF_NAMES = {"transforms", "predicates"}
_TRUE, _FALSE = "true", "false"


def worker_properties(flow: MirrorFlow, layout: SecretLayout) -> dict[str, str]:
    """Returns the worker's properties: the target, the offset storage, and config providers for secrets."""
    spec = flow.spec
    return {
        **_providers(layout),
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


def config_of_worker(config: Mapping[str, str]) -> dict[str, str]:
    """Returns the entries of a connector's `config` that are for its worker."""
    return {key: value for key, value in config.items() if key.startswith(KEYS_OF_WORKER)}


def config_of_connector(config: Mapping[str, str]) -> dict[str, str]:
    """Returns the entries of a connector's `config` that are for the connector."""
    return {key: value for key, value in config.items() if not key.startswith(KEYS_OF_WORKER)}


def without_contradiction(properties: Mapping[str, str]) -> dict[str, str]:
    """Returns *properties* without `offset-syncs.*` if offset syncs are disabled: MM2 refuses both."""
    silent = is_silent(properties)
    return {
        key: value for key, value in properties.items() if not (silent and key.startswith("offset-syncs."))
    }


def is_silent(config: Mapping[str, str]) -> bool:
    """Returns whether *config* disables offset syncs."""
    return config.get("emit.offset-syncs.enabled", "true").strip().lower() == "false"


def shared_properties(flow: MirrorFlow, layout: SecretLayout) -> dict[str, str]:
    """Returns the properties of all three connectors: both clusters and the naming policy."""
    spec = flow.spec
    return {
        "mirrorflow.flow": flow.metadata.name,
        **({"mirrorflow.state": "paused"} if spec.state is State.PAUSED else {}),
        **_providers(layout),
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
    """Returns the properties of MirrorSourceConnector alone."""
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
    if topics.configs.exceptions:
        properties["mirrorflow.config.properties.exclude.by.topic"] = _pairs(topics.configs.exceptions)
    if topics.configs.sync is SyncMode.REPORT:
        properties["mirrorflow.sync.topic.configs.report.only"] = _TRUE
    if topics.acls.sync is SyncMode.REPORT:
        properties["mirrorflow.sync.topic.acls.report.only"] = _TRUE
    if spec.isolation_level is IsolationLevel.READ_COMMITTED:
        properties["source.consumer.isolation.level"] = "read_committed"
    if spec.limits.bytes_per_second is not None:
        properties["mirrorflow.bytes.per.second"] = _bytes(spec.limits.bytes_per_second)
    return properties


def checkpoint_properties(spec: Spec) -> dict[str, str]:
    """Returns the properties of MirrorCheckpointConnector alone."""
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
            if key.partition(".")[0] in _OF_NAMES
        },
    }


def heartbeat_properties(spec: Spec) -> dict[str, str]:
    """Returns the properties of MirrorHeartbeatConnector alone."""
    return {
        "emit.heartbeats.enabled": _flag(bool(spec.heartbeats.emit_to)),
        "mirrorflow.heartbeats.emit.to": ",".join(side.value.lower() for side in spec.heartbeats.emit_to),
        "heartbeats.topic.replication.factor": str(spec.topics.replication_factor),
    }


def _providers(layout: SecretLayout) -> dict[str, str]:
    classes = {PROVIDER: _DIRECTORY_PROVIDER} | (
        {FILE_PROVIDER: _FILE_PROVIDER} if layout.reads_files else {}
    )
    return {
        "config.providers": ",".join(classes),
        **{f"config.providers.{name}.class": class_ for name, class_ in classes.items()},
    }


def _pairs(exceptions: Iterable[ConfigException]) -> str:
    """Returns each topic with each setting, as `topic:setting`; neither has a colon other than in `(?:`."""
    return ",".join(
        f"{topics}:{settings}" for one in exceptions for topics in one.topics for settings in one.exclude
    )


def _start_from(start: StartFrom) -> str:
    if start.position is Position.TIMESTAMP:
        return f"timestamp:{start.timestamp}"
    return str(start.position.value).lower()


def _bytes(limit: int | str) -> str:
    """Returns a plain number, because the replicator's properties accept fewer units than Kubernetes."""
    return str(whole(limit))


def _flag(value: bool) -> str:  # noqa: FBT001  one argument, one meaning
    return _TRUE if value else _FALSE
