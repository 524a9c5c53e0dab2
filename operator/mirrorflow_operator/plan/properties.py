"""Property by property: what each field of the resource is called in a worker's and a connector's file.

Source for names and defaults: Kafka's MirrorConnectorConfig, MirrorSourceConfig, MirrorCheckpointConfig,
MirrorHeartbeatConfig and KIP-304. Lists add MM2's defaults where the field says that internal things are always left out.
"""

from collections.abc import Iterable, Mapping

from mirrorflow_operator.api.quantity import whole
from mirrorflow_operator.api.reserved_keys import KEYS_OF_WORKER
from mirrorflow_operator.api.spec import IsolationLevel, MirrorFlow, Spec, State
from mirrorflow_operator.api.topics import ConfigException, NamingPolicy, Position, StartFrom, SyncMode
from mirrorflow_operator.plan.clients import client_config, cluster_properties
from mirrorflow_operator.plan.layout import PROVIDER, SecretLayout
from mirrorflow_operator.plan.security import security_properties

_DIRECTORY_PROVIDER = "org.apache.kafka.common.config.provider.DirectoryConfigProvider"
_POLICY_CLASSES = {
    NamingPolicy.PREFIX: "org.apache.kafka.connect.mirror.DefaultReplicationPolicy",
    NamingPolicy.IDENTITY: "org.apache.kafka.connect.mirror.IdentityReplicationPolicy",
}
TOPICS_EXCLUDE = ("mm2.*\\.internal", ".*\\.replica", "__.*")
GROUPS_EXCLUDE = ("console-consumer-.*", "connect-.*", "__.*")
CONFIG_EXCLUDE = (
    "follower\\.replication\\.throttled\\.replicas",
    "leader\\.replication\\.throttled\\.replicas",
    "message\\.timestamp\\.difference\\.max\\.ms",
    "log\\.message\\.timestamp\\.before\\.max\\.ms",
    "log\\.message\\.timestamp\\.after\\.max\\.ms",
    "message\\.timestamp\\.type",
    "unclean\\.leader\\.election\\.enable",
    "min\\.insync\\.replicas",
)
_OF_NAMES = {"transforms", "predicates"}
_TRUE, _FALSE = "true", "false"


def worker_properties(flow: MirrorFlow, layout: SecretLayout) -> dict[str, str]:
    """The process: the target, where positions are kept, how secrets are found."""
    spec = flow.spec
    return {
        **_providers(),
        "bootstrap.servers": ",".join(spec.target.bootstrap_servers),
        **security_properties(spec.target, layout),
        **client_config(spec.target, ""),
        # As MM2's dedicated mode names them, so that quotas and dashboards by client id keep working.
        "client.id": f"{spec.source.alias}->{spec.target.alias}",
        "group.id": f"{spec.source.alias}-mm2",
        "offset.storage.store": "kafka",
        "offset.storage.topic": f"mm2-offsets.{spec.source.alias}.internal",
        "offset.storage.replication.factor": str(spec.topics.replication_factor),
    }


def config_of_worker(config: Mapping[str, str]) -> dict[str, str]:
    """What a connector's `config` says of its worker."""
    return {key: value for key, value in config.items() if key.startswith(KEYS_OF_WORKER)}


def config_of_connector(config: Mapping[str, str]) -> dict[str, str]:
    """What a connector's `config` says of the connector."""
    return {key: value for key, value in config.items() if not key.startswith(KEYS_OF_WORKER)}


def without_contradiction(properties: Mapping[str, str]) -> dict[str, str]:
    """*properties* without what MM2 refuses beside a `config`: a place for offset syncs that are not to be written."""
    silent = is_silent(properties)
    return {
        key: value for key, value in properties.items() if not (silent and key.startswith("offset-syncs."))
    }


def is_silent(config: Mapping[str, str]) -> bool:
    """Whether *config* says that no offset syncs are to be written."""
    return config.get("emit.offset-syncs.enabled", "true").strip().lower() == "false"


def shared_properties(flow: MirrorFlow, layout: SecretLayout) -> dict[str, str]:
    """What all three connectors are told: both clusters and the naming policy."""
    spec = flow.spec
    return {
        "mirrorflow.flow": flow.metadata.name,
        **({"mirrorflow.state": "paused"} if spec.state is State.PAUSED else {}),
        **_providers(),
        **cluster_properties("source", spec.source, layout),
        **cluster_properties("target", spec.target, layout),
        "replication.policy.class": _POLICY_CLASSES[spec.topics.naming.policy],
        "replication.policy.separator": spec.topics.naming.separator,
        # Said of one connector, meant of the flow: one that names topics otherwise finds nothing of the others.
        **{
            key: value
            for key, value in spec.connectors.source.config.items()
            if key.startswith("replication.policy.")
        },
    }


def source_properties(spec: Spec) -> dict[str, str]:
    """What MirrorSourceConnector is told besides."""
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
    """What MirrorCheckpointConnector is told besides."""
    return {
        "topics": ",".join(spec.topics.include),
        "topics.exclude": ",".join((*spec.topics.exclude, *TOPICS_EXCLUDE)),
        "groups": ",".join(spec.groups.include),
        "groups.exclude": ",".join((*spec.groups.exclude, *GROUPS_EXCLUDE)),
        "sync.group.offsets.enabled": _flag(spec.groups.sync_offsets),
        "offset-syncs.topic.location": spec.offset_syncs.location.value.lower(),
        "checkpoints.topic.replication.factor": str(spec.topics.replication_factor),
        # It has to know what the source connector calls the copies.
        **{
            key: value
            for key, value in spec.connectors.source.config.items()
            if key.partition(".")[0] in _OF_NAMES
        },
    }


def heartbeat_properties(spec: Spec) -> dict[str, str]:
    """What MirrorHeartbeatConnector is told besides."""
    return {
        "emit.heartbeats.enabled": _flag(bool(spec.heartbeats.emit_to)),
        "mirrorflow.heartbeats.emit.to": ",".join(side.value.lower() for side in spec.heartbeats.emit_to),
        "heartbeats.topic.replication.factor": str(spec.topics.replication_factor),
    }


def _providers() -> dict[str, str]:
    return {"config.providers": PROVIDER, f"config.providers.{PROVIDER}.class": _DIRECTORY_PROVIDER}


def _pairs(exceptions: Iterable[ConfigException]) -> str:
    """Every topic of an exception with every setting of it; neither holds a colon, but as part of `(?:`."""
    return ",".join(
        f"{topics}:{settings}" for one in exceptions for topics in one.topics for settings in one.exclude
    )


def _start_from(start: StartFrom) -> str:
    if start.position is Position.TIMESTAMP:
        return f"timestamp:{start.timestamp}"
    return str(start.position.value).lower()


def _bytes(limit: int | str) -> str:
    """A plain number: the replicator's properties know fewer units than Kubernetes."""
    return str(whole(limit))


def _flag(value: bool) -> str:  # noqa: FBT001  one argument, one meaning
    return _TRUE if value else _FALSE
