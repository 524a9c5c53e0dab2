"""What a connector process is told, typed: the end of all reading of property files.

`connect.worker` and `connect.source` make these values from Java's property names; everything below reads only these.
References to secrets stay unresolved in `ClientSettings.properties`: they are resolved when a client is built
(KIP-710), so a secret may rotate while the process runs, and no settings value can leak one.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

# An abandoned transaction shall not hold readers for long.
TRANSACTION_TIMEOUT_MS: Final = 60_000


class PolicyKind(Enum):
    """How remote topics are named (MM2 `replication.policy.class`)."""

    DEFAULT = "default"  # alias + separator + topic
    IDENTITY = "identity"  # names unchanged
    CUSTOM = "custom"  # python:package.module:Class


class StartPosition(Enum):
    """Where a partition begins that was never copied. What appears later is read from its beginning."""

    EARLIEST = "earliest"
    LATEST = "latest"
    TIMESTAMP = "timestamp"


class LossPolicy(Enum):
    """What to do when source records are lost, or rewritten, before they were copied."""

    FAIL = "fail"  # that partition stops and says so
    ALERT = "alert"  # go on from what there is, count the loss
    RESTART = "restart"  # copy the partition again from its beginning


class OffsetStore(Enum):
    """Where positions are kept (KIP-304 `offset.storage.store`)."""

    KAFKA = "kafka"  # MM2's own offsets topic on the target
    FILE = "file"  # `offset.storage.file.filename`, for a laptop


class MetricsLevel(Enum):
    """How finely /metrics tells (`metrics.level`)."""

    FLOW = "flow"
    TOPIC = "topic"
    PARTITION = "partition"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """One client of one cluster, in Java's property names; values may hold ${provider:path:key}."""

    alias: str
    client_id: str
    # Out of the repr: a file may hold a password as it is.
    properties: Mapping[str, str] = field(repr=False)

    @property
    def bootstrap_servers(self) -> str:
        """The addresses as written, `host:port,host:port`."""
        return self.properties.get("bootstrap.servers", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySettings:
    """MM2's `replication.policy.*`; `source_alias` is needed by Identity."""

    kind: PolicyKind = PolicyKind.DEFAULT
    separator: str = "."
    # False: internal topics keep "." although `separator` differs (KIP-949).
    internal_separator_enabled: bool = True
    source_alias: str = ""
    custom: str = ""

    @property
    def words(self) -> str:
        """What decides the names of copies, as it is written into decisions; other words are another naming."""
        return f"{self.custom or self.kind.value} {self.separator}"


class TransformKind(Enum):
    """A transformation of Kafka Connect that is built in, by the name of its class."""

    RENAME = "RegexRouter"
    DROP = "Filter"
    INSERT_HEADER = "InsertHeader"
    DROP_HEADERS = "DropHeaders"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformSettings:
    """One of `transforms`. With a *predicate*, a pattern of TopicNameMatches, only for topics that it matches."""

    key: str  # transforms.<its name>
    kind: TransformKind
    predicate: str = ""
    predicate_key: str = ""
    negate: bool = False  # only for those that it does not match
    regex: str = ""
    replacement: str = ""
    header: str = ""
    value: bytes | None = None  # of the header
    headers: tuple[str, ...] = ()  # to be removed

    @property
    def words(self) -> tuple[str, ...]:
        """All that it does, without what it is called."""
        value = "" if self.value is None else f"={self.value.decode()}"
        about = (self.regex, self.replacement, self.header, value, *self.headers)
        return (self.kind.value, "not" if self.negate else "", self.predicate, *about)


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageTopicSettings:
    """A compacted topic of Connect's on the target, and the client that reads and writes it."""

    topic: str
    partitions: int = 25
    replication_factor: int = -1
    topic_configs: Mapping[str, str] = field(default_factory=dict)
    client: ClientSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetStorageSettings(StorageTopicSettings):
    """Where and how positions are kept; the topic is mm2-offsets.<source>.internal by default."""

    store: OffsetStore
    file: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTopicsSettings:
    """Where a distributed worker finds its connectors, and where it says how they fare."""

    configs: StorageTopicSettings  # `config.storage.*`, always one partition
    statuses: StorageTopicSettings  # `status.storage.*`


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetSyncSettings:
    """The offset syncs of a source connector: where they are written, how often, and by which clients."""

    on_source: bool = True  # `offset-syncs.topic.location`; else the topic is on the target
    replication_factor: int = 3  # of the topic, where it is created
    lag_max: int = 100  # `offset.lag.max`, downstream offsets without a sync; 0 and less: as few as can be
    producer: ClientSettings
    admin: ClientSettings  # creates the topic


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSettings:
    """Everything that a MirrorSourceConnector does, typed. Durations are seconds, sizes bytes."""

    name: str  # the connector's name: part of the key of every position
    flow: str  # who claims the source alias on this target; the connector's flow name, see the identity topic
    source_alias: str
    target_alias: str
    policy: PolicySettings
    topics: tuple[str, ...] = (".*",)
    topics_exclude: tuple[str, ...] = ("mm2.*\\.internal", ".*\\.replica", "__.*")
    topic_filter: str = ""  # python:package.module:Class
    heartbeats_replication: bool = True
    transforms: tuple[TransformSettings, ...] = ()
    headers_in_base64: bool = False  # `header.converter=SimpleHeaderConverter`
    replication_factor: int = 2
    refresh_topics_s: float | None = 600.0  # None: never
    sync_configs_s: float | None = 600.0  # None: never
    configs_report_only: bool = False
    config_exclude: tuple[str, ...] = ()
    config_exceptions: tuple[tuple[str, str], ...] = ()  # topics, and settings of theirs that are left alone
    config_filter: str = ""  # python:package.module:Class
    use_defaults_from_source: bool = False
    sync_acls_s: float | None = 600.0  # None: never
    acls_report_only: bool = False
    tasks_max: int = 1
    balance_tasks_s: float | None = (
        60.0  # where nodes share them: by load, looked at so often; None: by count
    )
    start: StartPosition = StartPosition.EARLIEST
    start_timestamp_ms: int = 0
    on_source_loss: LossPolicy = LossPolicy.FAIL
    read_committed: bool = False
    flush_interval_s: float = 5.0
    # The target's coordinator aborts what nobody has committed for so long: old records then are copied again.
    transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS
    bytes_per_second: int | None = None
    offsets: OffsetStorageSettings
    syncs: OffsetSyncSettings | None = None  # None: `emit.offset-syncs.enabled=false`
    source_consumer: ClientSettings
    source_admin: ClientSettings
    target_producer: ClientSettings
    target_admin: ClientSettings
    # `config.providers` and its keys: what the references in the clients' properties are resolved by.
    providers: Mapping[str, str] = field(default_factory=dict)
    # Java's tasks may take over: ours write in transactions of their own, as those do.
    with_java: bool = False

    @property
    def naming_words(self) -> str:
        """What decides the names of copies, for decisions and for marks of ACLs: the policy, and every renaming."""
        renamings = [one.words for one in self.transforms if one.kind is TransformKind.RENAME]
        return f"{self.policy.words} {json.dumps(renamings)}" if renamings else self.policy.words

    @property
    def header_words(self) -> str:
        """A digest of what is done to headers, "" for nothing: also of renamings, by which predicates go."""
        of_headers = {TransformKind.INSERT_HEADER, TransformKind.DROP_HEADERS}
        if not self.headers_in_base64 and not any(one.kind in of_headers for one in self.transforms):
            return ""
        chain = [one.words for one in self.transforms if one.kind is not TransformKind.DROP]
        return hashlib.sha256(json.dumps([self.headers_in_base64, chain]).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSettings:
    """Everything that a MirrorCheckpointConnector does, typed. Durations are seconds."""

    name: str
    flow: str
    source_alias: str
    target_alias: str
    policy: PolicySettings
    topics: tuple[str, ...] = (".*",)
    topics_exclude: tuple[str, ...] = ("mm2.*\\.internal", ".*\\.replica", "__.*")
    topic_filter: str = ""  # python:package.module:Class
    transforms: tuple[TransformSettings, ...] = ()  # the source connector's, for the names of copies
    groups: tuple[str, ...] = (".*",)
    groups_exclude: tuple[str, ...] = ("console-consumer-.*", "connect-.*", "__.*")
    group_filter: str = ""  # python:package.module:Class
    refresh_groups_s: float | None = 600.0  # None: never
    emit_s: float | None = 60.0  # None: no checkpoint is written
    sync_s: float | None = None  # None: no group of the target is moved on
    replication_factor: int = 3  # of the checkpoints topic
    syncs_on_source: bool = True  # where the offset-syncs topic is; else on the target
    source_admin: ClientSettings
    source_consumer: ClientSettings
    target_admin: ClientSettings
    target_consumer: ClientSettings
    target_producer: ClientSettings
    # `config.providers` and its keys: what the references in the clients' properties are resolved by.
    providers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class BeatSettings:
    """One cluster that heartbeats are written to, and what they say there."""

    source_alias: str  # as the heartbeat says it
    target_alias: str  # the cluster itself
    producer: ClientSettings
    admin: ClientSettings  # creates the topic


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatSettings:
    """Everything that a MirrorHeartbeatConnector does, typed."""

    name: str
    flow: str
    source_alias: str
    target_alias: str
    policy: PolicySettings
    interval_s: float = 1.0
    replication_factor: int = 3  # of the topic, where it is created
    beats: tuple[BeatSettings, ...]  # the target first; the source only by `mirrorflow.heartbeats.emit.to`
    providers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """The process's own HTTP server."""

    listeners: tuple[str, ...] = ()  # http://host:port, https://host:port; port 0 is any free one
    internal: tuple[str, ...] = ()  # where nodes of a group call each other, and nobody else is answered
    modify_enabled: bool = False  # `rest.modify.enable`
    # The ssl.* that count for HTTPS: those of listeners.https.* (without that prefix) if there is any, else plain ones.
    tls: Mapping[str, str] = field(default_factory=dict, repr=False)
    # `ssl.client.auth` where no other node calls: of all `listeners` if there are `internal` ones, else of all but the first; "": as `tls`.
    others_client_auth: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorSettings:
    """A connector as its REST API shows it (properties unresolved), and as the runtime runs it."""

    name: str
    connector_class: str  # MirrorSourceConnector, MirrorCheckpointConnector, MirrorHeartbeatConnector
    properties: Mapping[str, str] = field(repr=False)
    source: SourceSettings | None = None  # None: not a source connector, or `enabled=false`
    heartbeat: HeartbeatSettings | None = (
        None  # None: no heartbeat connector, or `emit.heartbeats.enabled=false`
    )
    checkpoint: CheckpointSettings | None = None  # None: not a checkpoint connector, or `enabled=false`
    is_paused: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionKeySettings:
    """`inter.worker.*`: how the keys of a group are made, how long they live, by which MAC requests are signed."""

    algorithm: str = "HmacSHA256"
    size_bytes: int = 32
    ttl_ms: int = 3_600_000  # 0: for ever
    signature: str = "HmacSHA256"
    accepted: tuple[str, ...] = ("HmacSHA256",)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """The group of workers that this process is a node of."""

    group_id: str
    client: ClientSettings
    protocols: tuple[str, ...] = ("sessioned", "compatible")  # preferred first
    session_s: float = 10.0  # a node that is not heard of for so long has left
    heartbeat_s: float = 0.5
    rebalance_s: float = 30.0  # for all to meet
    keys: SessionKeySettings = field(default_factory=SessionKeySettings)
    # How other nodes reach this one; "" and 0: as it listens.
    advertised_host: str = ""
    advertised_port: int = 0
    server_name: str = ""  # what the certificates of other nodes must be for; "": their own hosts
    # Aliases of source and target in MM2's dedicated mode, whose internal calls say which flow they are about.
    flow: tuple[str, str] | None = None
    # Nodes of Java's, if there are any, write in transactions: their tasks are fenced before ours begin.
    fences_java: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DistributedSettings:
    """A worker whose connectors are kept in Connect's config topic and changed over REST."""

    topics: WorkerTopicsSettings
    # None: the worker names no topic, and each connector has its own.
    offsets: OffsetStorageSettings | None = None
    # The worker's own properties, unresolved: what a connector that comes later may leave to it.
    worker: Mapping[str, str] = field(repr=False)
    seeds: tuple[Mapping[str, str], ...] = field(
        default=(), repr=False
    )  # connectors that were given as files
    group: GroupSettings | None = None  # None: the only node


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """One process: its connectors, its HTTP server, and what it must say about its settings."""

    name: str  # "standalone", "distributed", or "A->B" per herder in mm2 mode
    connectors: tuple[ConnectorSettings, ...]
    http: HttpSettings = field(default_factory=HttpSettings)
    metrics_level: MetricsLevel = MetricsLevel.PARTITION
    shutdown_s: float = 5.0
    warnings: tuple[str, ...] = ()
    # What references in `http.tls` are resolved by.
    providers: Mapping[str, str] = field(default_factory=dict)
    # Addresses, TLS and SASL of the target, which a connector may leave to the worker; unresolved.
    shared: Mapping[str, str] = field(default_factory=dict, repr=False)
    distributed: DistributedSettings | None = None  # None: `connectors` are all that there are
