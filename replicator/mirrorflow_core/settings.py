"""The typed settings of a connector process.

`config.worker_properties` and `config.connector_properties` build these values from Java's property names; all other code
reads only these. References to secrets stay unresolved in `ClientSettings.properties`: they are resolved when a client
is built (KIP-710), so a secret may rotate while the process runs, and no settings value can leak one.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import field
from enum import Enum
from typing import Final

from mirrorflow_core.light_dataclasses import dataclass

# An abandoned transaction must not block read_committed consumers for long.
TRANSACTION_TIMEOUT_MS: Final = 60_000
# A slow transaction is open for ten seconds, and then waits ten for what is in flight.
SLOW_TRANSACTION_MS: Final = 30_000

# Properties of a cluster's schema registry begin with it; they are those of Confluent's clients.
REGISTRY_PREFIX: Final = "schema.registry."
REGISTRY_URL_KEY: Final = f"{REGISTRY_PREFIX}url"
SCHEMA_WAIT_TOPICS: Final = "mirrorflow.schemas.wait.topics"
SCHEMA_WAIT_MAX: Final = "mirrorflow.schemas.wait.max.ms"

# What MM2 excludes by default.
TOPICS_EXCLUDE = ("mm2.*\\.internal", ".*\\.replica", "__.*")
GROUPS_EXCLUDE = ("console-consumer-.*", "connect-.*", "__.*")
# Topic settings that describe the source's brokers or are better chosen on the target: MM2's list until 4.2
# and what 4.3 added. Those two are names of broker settings, so message.timestamp.{before,after}.max.ms are
# copied, as by MM2.
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


class PolicyKind(Enum):
    """How remote topics are named (MM2 `replication.policy.class`)."""

    DEFAULT = "default"  # alias + separator + topic
    IDENTITY = "identity"  # names unchanged
    CUSTOM = "custom"  # python:package.module:Class; None: the built-in one


class StartPosition(Enum):
    """Where a partition starts that was never copied. Partitions that appear later are read from their beginning."""

    EARLIEST = "earliest"
    LATEST = "latest"
    TIMESTAMP = "timestamp"


class LossPolicy(Enum):
    """What to do when source records are lost, or rewritten, before they were copied."""

    FAIL = "fail"  # the partition stops with an error
    ALERT = "alert"  # continue from the remaining records, count the loss
    RESTART = "restart"  # copy the partition again from its beginning


class OffsetStore(Enum):
    """Where source offsets are stored (KIP-304 `offset.storage.store`)."""

    KAFKA = "kafka"  # MM2's own offsets topic on the target
    FILE = "file"  # `offset.storage.file.filename`, for a laptop


class MetricsLevel(Enum):
    """The level of detail of /metrics (`metrics.level`)."""

    FLOW = "flow"
    TOPIC = "topic"
    PARTITION = "partition"


class MetricNames(Enum):
    """A form of the names of MM2's own metrics (`metric.names.formats`, KIP-1280)."""

    LEGACY = "legacy"  # gone in Kafka 5.0
    NEW = "new"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """One client of one cluster, with Java's property names; values may contain ${provider:path:key}."""

    alias: str
    client_id: str
    # Not in the repr: a file may contain a password in plain text.
    properties: Mapping[str, str] = field(repr=False)

    @property
    def bootstrap_servers(self) -> str:
        """The addresses as the user wrote them, `host:port,host:port`."""
        return self.properties.get("bootstrap.servers", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySettings:
    """MM2's `replication.policy.*`; IDENTITY needs `source_alias`."""

    kind: PolicyKind = PolicyKind.DEFAULT
    separator: str = "."
    # False: internal topics keep "." although `separator` differs (KIP-949).
    internal_separator_enabled: bool = True
    source_alias: str = ""
    custom: str | None = None  # python:package.module:Class, of CUSTOM

    @property
    def fingerprint(self) -> str:
        """The naming policy as text, stored in decisions; a different text means a different naming."""
        return f"{self.kind.value if self.custom is None else self.custom} {self.separator}"


class TransformKind(Enum):
    """A built-in transformation of Kafka Connect, by its class name."""

    RENAME = "RegexRouter"
    DROP = "Filter"
    INSERT_HEADER = "InsertHeader"
    DROP_HEADERS = "DropHeaders"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformSettings:
    """One of `transforms`. A *predicate*, a pattern of TopicNameMatches, limits it to the topics that match.

    None: its kind has no such setting, or it was not written.
    """

    key: str  # transforms.<its name>
    kind: TransformKind
    predicate: str | None = None
    predicate_key: str | None = None
    negate: bool = False  # limits it to the topics that do not match
    regex: str | None = None
    replacement: str | None = None
    header: str | None = None
    value: bytes | None = None  # of the header
    headers: tuple[str, ...] = ()  # to be removed

    @property
    def fingerprint(self) -> tuple[str, ...]:
        """Everything that defines the transformation, except its name."""
        value = "" if self.value is None else f"={self.value.decode()}"
        about = (self.predicate or "", self.regex or "", self.replacement or "", self.header or "")
        return (self.kind.value, "not" if self.negate else "", *about, value, *self.headers)


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageTopicSettings:
    """A compacted internal topic of Connect on the target, and the client for it."""

    topic: str
    partitions: int = 1
    replication_factor: int = -1
    topic_configs: Mapping[str, str] = field(default_factory=dict)
    client: ClientSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetStorageSettings(StorageTopicSettings):
    """Where and how source offsets are stored; the default topic is mm2-offsets.<source>.internal."""

    store: OffsetStore
    file: str | None = None  # of OffsetStore.FILE


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTopicsSettings:
    """The config topic and the status topic of a distributed worker."""

    configs: StorageTopicSettings  # `config.storage.*`, always one partition
    statuses: StorageTopicSettings  # `status.storage.*`


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetSyncSettings:
    """The offset syncs of a source connector: topic location, frequency and clients."""

    on_source: bool = True  # `offset-syncs.topic.location`; else the topic is on the target
    replication_factor: int = 3  # of the topic, when it is created
    lag_max: int = 100  # `offset.lag.max`, downstream offsets without a sync; 0 or less: as few as possible
    only_map: bool = False  # a restore without its source keeps the offset map and writes no syncs
    producer: ClientSettings
    admin: ClientSettings  # creates the topic


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSettings:
    """The settings of a MirrorSourceConnector. Durations are in seconds, sizes in bytes."""

    name: str  # the connector's name: part of the key of each stored offset
    flow: str  # the flow id with which the connector claims the source alias (`writer.claim`)
    source_alias: str
    target_alias: str
    policy: PolicySettings
    takes_over: tuple[str, ...] = ()  # ids of flows that this one continues, once they have stopped
    topics: tuple[str, ...] = (".*",)
    topics_exclude: tuple[str, ...] = TOPICS_EXCLUDE
    topic_filter: str | None = None  # python:package.module:Class; None: the built-in one
    heartbeats_replication: bool = True
    transforms: tuple[TransformSettings, ...] = ()
    headers_in_base64: bool = False  # `header.converter=SimpleHeaderConverter`
    replication_factor: int = 2
    refresh_topics_s: float | None = 600.0  # None: never
    sync_configs_s: float | None = 600.0  # None: never
    configs_report_only: bool = False
    config_exclude: tuple[str, ...] = ()
    config_exceptions: tuple[
        tuple[str, str], ...
    ] = ()  # pairs of topics and their settings that are not changed
    config_filter: str | None = None  # python:package.module:Class; None: the built-in one
    use_defaults_from_source: bool = False
    sync_acls_s: float | None = 600.0  # None: never
    acls_report_only: bool = False
    tasks_max: int = 1
    # Between nodes: balance by load, checked at this interval; None: by count.
    balance_tasks_s: float | None = 60.0
    start: StartPosition = StartPosition.EARLIEST
    start_timestamp_ms: int = 0
    on_source_loss: LossPolicy = LossPolicy.FAIL
    skips_refused_records: bool = False  # else a record that the target refuses stops its partition
    read_committed: bool = False
    flush_interval_s: float = 5.0
    # The target's coordinator aborts a transaction open for this long; its old records are then copied again.
    transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS
    bytes_per_second: int | None = None
    offsets: OffsetStorageSettings
    syncs: OffsetSyncSettings | None = None  # None: `emit.offset-syncs.enabled=false`
    schema_wait: "SchemaWaitSettings | None" = None  # None: no topic waits for schemas
    source_consumer: ClientSettings
    source_admin: ClientSettings
    target_producer: ClientSettings
    target_admin: ClientSettings
    # `config.providers` and its keys, which resolve the references in the clients' properties.
    providers: Mapping[str, str] = field(default_factory=dict)

    @property
    def naming_fingerprint(self) -> str:
        """The naming as text, for decisions and ACL marks: the policy and all renamings."""
        renamings = [step.fingerprint for step in self.transforms if step.kind is TransformKind.RENAME]
        return f"{self.policy.fingerprint} {json.dumps(renamings)}" if renamings else self.policy.fingerprint

    @property
    def header_fingerprint(self) -> str | None:
        """A digest of the header edits; None: none. It includes renamings, because predicates match the new names."""
        of_headers = {TransformKind.INSERT_HEADER, TransformKind.DROP_HEADERS}
        if not self.headers_in_base64 and not any(
            transform.kind in of_headers for transform in self.transforms
        ):
            return None
        chain = [step.fingerprint for step in self.transforms if step.kind is not TransformKind.DROP]
        return hashlib.sha256(json.dumps([self.headers_in_base64, chain]).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSettings:
    """The settings of a MirrorCheckpointConnector. Durations are in seconds."""

    name: str
    flow: str
    source_alias: str
    target_alias: str
    policy: PolicySettings
    topics: tuple[str, ...] = (".*",)
    topics_exclude: tuple[str, ...] = TOPICS_EXCLUDE
    topic_filter: str | None = None  # python:package.module:Class; None: the built-in one
    transforms: tuple[TransformSettings, ...] = ()  # the source connector's, for the names of copies
    groups: tuple[str, ...] = (".*",)
    groups_exclude: tuple[str, ...] = GROUPS_EXCLUDE
    group_filter: str | None = None  # python:package.module:Class; None: the built-in one
    refresh_groups_s: float | None = 600.0  # None: never
    emit_s: float | None = 60.0  # None: no checkpoint is written
    sync_s: float | None = None  # None: no group of the target is moved
    replication_factor: int = 3  # of the checkpoints topic
    syncs_on_source: bool = True  # the offset-syncs topic is on the source; else on the target
    source_admin: ClientSettings
    source_consumer: ClientSettings
    target_admin: ClientSettings
    target_consumer: ClientSettings
    target_producer: ClientSettings
    # `config.providers` and its keys, which resolve the references in the clients' properties.
    providers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class BeatSettings:
    """One cluster that heartbeats are written to, and the aliases in these heartbeats."""

    source_alias: str  # as in the heartbeat
    target_alias: str  # the cluster itself
    producer: ClientSettings
    admin: ClientSettings  # creates the topic


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatSettings:
    """The settings of a MirrorHeartbeatConnector."""

    name: str
    flow: str
    source_alias: str
    target_alias: str
    policy: PolicySettings
    interval_s: float = 1.0
    replication_factor: int = 3  # of the topic, when it is created
    beats: tuple[BeatSettings, ...]  # the target first; the source only with `mirrorflow.heartbeats.emit.to`
    providers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrySettings:
    """One schema registry: the properties of Confluent's clients that begin with `schema.registry.`, unresolved."""

    alias: str  # of its Kafka cluster
    side: str  # source or target
    properties: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaSettings:
    """The settings of a MirrorSchemaConnector."""

    name: str
    flow: str
    source_alias: str
    target_alias: str
    source: RegistrySettings
    target: RegistrySettings
    subjects: tuple[str, ...]
    contexts: Mapping[str, str]  # source context -> target context
    subject_prefix: str = ""
    providers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaWaitSettings:
    """The source connector's topics whose records are copied after their schemas."""

    topics: tuple[str, ...]
    longest_s: float
    schemas: SchemaSettings  # of the flow's schema connector


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """The HTTP server of the process."""

    listeners: tuple[str, ...] = ()  # http://host:port, https://host:port; port 0: any free port
    internal: tuple[str, ...] = ()  # for calls between nodes of a group; other clients are refused
    modify_enabled: bool = False  # `rest.modify.enable`
    # The effective ssl.* for HTTPS: those of listeners.https.* (without the prefix) if any exist, else the
    # plain ones.
    tls: Mapping[str, str] = field(default_factory=dict, repr=False)
    # `ssl.client.auth` of listeners that no node calls: all `listeners` if `internal` is set, else all but
    # the first; None: as in `tls`.
    others_client_auth: str | None = None
    # The worker's address in statuses and for other nodes; None and 0: as it listens.
    advertised_host: str | None = None
    advertised_port: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorSettings:
    """A connector: its properties as REST shows them (unresolved), and its typed settings."""

    name: str
    # MirrorSourceConnector, MirrorCheckpointConnector, MirrorHeartbeatConnector, MirrorSchemaConnector
    connector_class: str
    properties: Mapping[str, str] = field(repr=False)
    source: SourceSettings | None = None  # None: not a source connector, or `enabled=false`
    # None: no heartbeat connector, or `emit.heartbeats.enabled=false`.
    heartbeat: HeartbeatSettings | None = None
    checkpoint: CheckpointSettings | None = None  # None: not a checkpoint connector, or `enabled=false`
    schema: SchemaSettings | None = None  # None: not a schema connector, or `enabled=false`
    is_paused: bool = False
    warnings: tuple[str, ...] = ()  # settings of the connector or its worker that have no effect

    @property
    def is_enabled(self) -> bool:
        """Whether there is anything to run."""
        kinds = (self.source, self.heartbeat, self.checkpoint, self.schema)
        return any(settings is not None for settings in kinds)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionKeySettings:
    """`inter.worker.*`: session keys of a group, their lifetime, and the MAC for signed requests."""

    algorithm: str = "HmacSHA256"
    size_bytes: int = 32
    ttl_ms: int = 3_600_000  # 0: for ever
    signature: str = "HmacSHA256"
    accepted: tuple[str, ...] = ("HmacSHA256",)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """The group of workers that this process belongs to."""

    group_id: str
    client: ClientSettings
    protocols: tuple[str, ...] = ("sessioned", "compatible")  # preferred first
    session_s: float = 10.0  # session timeout: a node without a heartbeat for this long has left
    heartbeat_s: float = 0.5
    rebalance_s: float = 30.0  # rebalance timeout, for all members to join
    keys: SessionKeySettings = field(default_factory=SessionKeySettings)
    server_name: str | None = None  # name required in certificates of other nodes; None: their own hosts
    # Aliases of source and target in MM2's dedicated mode, where internal calls name their flow.
    flow: tuple[str, str] | None = None
    # Java nodes in the group write in transactions; their tasks are fenced before ours start.
    fences_java: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DistributedSettings:
    """A worker whose connectors are stored in Connect's config topic and changed over REST."""

    topics: WorkerTopicsSettings
    # None: the worker names no offsets topic, and each connector has its own.
    offsets: OffsetStorageSettings | None = None
    # The worker's own properties, unresolved; the defaults of connectors that are created later.
    worker: Mapping[str, str] = field(repr=False)
    seeds: tuple[Mapping[str, str], ...] = field(default=(), repr=False)  # connectors configured in files
    group: GroupSettings | None = None  # None: the only node


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """The settings of one process: its connectors, its HTTP server, and warnings about settings."""

    name: str  # "standalone", "distributed", or "A->B" per herder in mm2 mode
    connectors: tuple[ConnectorSettings, ...]
    http: HttpSettings = field(default_factory=HttpSettings)
    metrics_level: MetricsLevel = MetricsLevel.PARTITION
    metric_names: frozenset[MetricNames] = frozenset({MetricNames.LEGACY})
    shutdown_s: float = 5.0
    warnings: tuple[str, ...] = ()
    # `config.providers` and its keys, which resolve the references in `http.tls`.
    providers: Mapping[str, str] = field(default_factory=dict)
    # Addresses, TLS and SASL of the target, the defaults for connectors; unresolved.
    shared: Mapping[str, str] = field(default_factory=dict, repr=False)
    distributed: DistributedSettings | None = None  # None: not distributed, `connectors` is complete
