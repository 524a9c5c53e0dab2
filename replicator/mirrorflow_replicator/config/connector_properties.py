"""Parses the properties of MM2's three connectors, and of the schema connector, into the settings of `mirrorflow_core.settings`.

Keys, defaults and prefix rules are MM2's (MirrorConnectorConfig and the configs of the three connectors, of 4.3); own keys
begin with `mirrorflow.`. Client properties keep their references; everything else is resolved here, once. Errors name the
key and what to write. `mirrorflow_core.setting_table` has the known keys and their defaults.
"""

import dataclasses
import time
from collections.abc import Mapping
from functools import partial
from typing import Self

from mirrorflow_core.errors import InvalidSettingError, RefusedSettingError
from mirrorflow_core.java.patterns import compile_patterns, meant_by_glob
from mirrorflow_core.java.properties import PropertyReader, parse_duration_ms, parse_instant_ms
from mirrorflow_core.light_dataclasses import dataclass
from mirrorflow_core.setting_table import DEFAULTS
from mirrorflow_core.settings import (
    CONFIG_EXCLUDE,
    REGISTRY_PREFIX,
    REGISTRY_URL_KEY,
    SCHEMA_WAIT_MAX,
    SCHEMA_WAIT_TOPICS,
    BeatSettings,
    CheckpointSettings,
    ClientSettings,
    ConnectorSettings,
    HeartbeatSettings,
    LossPolicy,
    OffsetStorageSettings,
    OffsetSyncSettings,
    PolicyKind,
    RegistrySettings,
    SchemaSettings,
    SchemaWaitSettings,
    SourceSettings,
    StartPosition,
)
from mirrorflow_core.transforms import read_transforms, writes_headers_in_base64
from mirrorflow_replicator.config import clients
from mirrorflow_replicator.config.plugins import (
    MIRROR_PACKAGE,
    config_exceptions,
    filter_class,
    make_replication_policy,
    make_selection,
    policy_settings,
)
from mirrorflow_replicator.config.providers import PROVIDERS_KEY, Resolver
from mirrorflow_replicator.config.storage import offset_storage, replication_factor

SOURCE_CONNECTOR = "MirrorSourceConnector"
CHECKPOINT_CONNECTOR = "MirrorCheckpointConnector"
HEARTBEAT_CONNECTOR = "MirrorHeartbeatConnector"
SCHEMA_CONNECTOR = "MirrorSchemaConnector"
CONNECTORS = (SOURCE_CONNECTOR, CHECKPOINT_CONNECTOR, HEARTBEAT_CONNECTOR, SCHEMA_CONNECTOR)
CONVERTER_KEYS = ("key.converter", "value.converter", "header.converter")
CONVERTER_NOT_USED = "ConverterNotUsed"
BYTE_CONVERTER = "org.apache.kafka.connect.converters.ByteArrayConverter"
FLUSH_INTERVAL_KEY = "offset.flush.interval.ms"
DAY_MS = 86_400_000
TRANSACTION_MIN_MS = 5_000  # commits come every half second, or a tenth as often
TASKS_MAX = 1_000  # processes; a higher number is a typing error
SYNCS_FACTOR_KEY = "offset-syncs.topic.replication.factor"
SYNCS_KEY = "emit.offset-syncs.enabled"
# With `emit.offset-syncs.enabled=false` MM2 refuses keys with these prefixes.
_OF_SYNCS = ("offset-syncs-", "offset-syncs.topic.")
_EMIT, _SYNC = "emit.checkpoints", "sync.group.offsets"
_EMIT_TO_KEY = "mirrorflow.heartbeats.emit.to"


def parse_connector(
    properties: Mapping[str, str], worker: Mapping[str, str], *, now_ms: int | None = None
) -> ConnectorSettings:
    """Parses one connector of a worker with the derived *worker* properties.

    Raises InvalidSettingError, RefusedSettingError.
    """
    read = PropertyReader(properties, Resolver({**worker, **properties}), DEFAULTS)
    name = read.required("name", action="name the connector, for example MirrorSourceConnector")
    written = read.required("connector.class", action="write " + " or ".join(CONNECTORS))
    connector_class = written.removeprefix(MIRROR_PACKAGE)
    if connector_class not in CONNECTORS:
        raise RefusedSettingError(
            key="connector.class", why=f"{written} is a Java class; this process runs {', '.join(CONNECTORS)}"
        )
    # Checked for every class, also where one task does all the work.
    read.whole("tasks.max", minimum=1, maximum=TASKS_MAX)
    enabled = read.flag("enabled")
    is_source, is_heartbeat = connector_class == SOURCE_CONNECTOR, connector_class == HEARTBEAT_CONNECTOR
    is_checkpoint = connector_class == CHECKPOINT_CONNECTOR
    source = parse_source(properties, worker, now_ms=now_ms) if is_source and enabled else None
    return ConnectorSettings(
        name=name,
        connector_class=connector_class,
        properties=dict(properties),
        source=source,
        checkpoint=parse_checkpoint(properties, worker) if is_checkpoint and enabled else None,
        # Java's heartbeat connector ignores `enabled`: an mm2.properties has herders for heartbeats only.
        heartbeat=parse_heartbeat(properties, worker) if is_heartbeat else None,
        schema=parse_schemas(properties, worker) if connector_class == SCHEMA_CONNECTOR and enabled else None,
        is_paused=read.choice("mirrorflow.state", ("running", "paused")) == "paused",
        warnings=(*converter_warnings(properties, worker), *_never_copied(source), *_glob_warnings(read)),
    )


def _glob_warnings(read: PropertyReader) -> tuple[str, ...]:
    """Returns a warning for each expression that is probably meant as a shell's pattern."""
    return tuple(
        f"{key}: {pattern} is a regular expression, in which * repeats the character before it; "
        f"write {meant} if * stands for any characters."
        for key in ("topics", "topics.exclude", "groups", "groups.exclude")
        for pattern in read.names(key, ())
        if (meant := meant_by_glob(pattern)) is not None
    )


def _never_copied(source: SourceSettings | None) -> tuple[str, ...]:
    # A class of the user's own is imported when the connector starts.
    if source is None or source.topic_filter is not None or source.policy.kind is PolicyKind.CUSTOM:
        return ()
    return make_selection(source).never_copied


def connector_offset_storage(
    properties: Mapping[str, str], worker: Mapping[str, str]
) -> tuple[OffsetStorageSettings, ClientSettings]:
    """Returns where a connector's offsets are stored, whatever its class, and the client that reads them.

    Raises InvalidSettingError.
    """
    basics = CommonSettings.of(properties, worker)
    client = clients.target_client(properties, worker, "admin")
    clients.require_addresses(client, key="bootstrap.servers")
    admin = clients.client_settings(basics.target_alias, f"{basics.label}|offsets-target-admin", client)
    return offset_storage(
        PropertyReader(worker, basics.resolver, DEFAULTS), worker, basics.source_alias, admin
    ), admin


def converter_warnings(properties: Mapping[str, str], worker: Mapping[str, str]) -> tuple[str, ...]:
    """Returns a warning if the connector with *properties* inherits converters of *worker* that change bytes.

    It contains no property's value except the simple name of a class.
    """
    inherited = {
        key: worker[key].strip().rpartition(".")[2]
        for key in CONVERTER_KEYS
        if worker.get(key, "").strip() and key not in properties
    }
    changing = {key: name for key, name in inherited.items() if name != BYTE_CONVERTER.rpartition(".")[2]}
    if not changing:
        return ()
    converters = ", ".join(f"{key}={name}" for key, name in changing.items())
    *most, last = changing
    names = f"{', '.join(most)} and {last}" if most else last
    sentence = (
        f"{CONVERTER_NOT_USED}: the worker has {converters}, which Java's worker would apply to every record of this connector. "
        f"Records are copied byte for byte instead. To have the same with Java, and no warning, set {names} "
        f"to {BYTE_CONVERTER} in the connector."
    )
    return (sentence,)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonSettings:
    """The common settings of a connector; *read* reads the others."""

    name: str
    flow: str
    source_alias: str
    target_alias: str
    providers: Mapping[str, str]  # `config.providers` and its keys
    resolver: Resolver  # of these
    read: PropertyReader

    @property
    def label(self) -> str:
        return clients.label(self.source_alias, self.target_alias, self.name)

    @classmethod
    def of(cls, properties: Mapping[str, str], worker: Mapping[str, str]) -> Self:
        """Reads the common settings of a connector in a worker with the derived *worker* properties.

        Raises InvalidSettingError.
        """
        providers = {
            key: value
            for text in (worker, properties)
            for key, value in text.items()
            if key.startswith(PROVIDERS_KEY)
        }
        resolver = Resolver(providers)
        read = PropertyReader(properties, resolver, DEFAULTS)
        name = read.required("name", action="name the connector, for example MirrorSourceConnector")
        source = require_source_alias(read)
        target = read.text("target.cluster.alias")
        if source == target:
            raise InvalidSettingError(
                key="target.cluster.alias",
                problem=f"source and target are both {source!r}",
                action="choose different aliases",
            )
        return cls(
            name=name,
            flow=read.text("mirrorflow.flow", f"{source}->{target}"),
            source_alias=source,
            target_alias=target,
            providers=providers,
            resolver=resolver,
            read=read,
        )


def require_source_alias(read: PropertyReader) -> str:
    """Returns the alias of the source. Raises InvalidSettingError where it is missing or empty."""
    key = "source.cluster.alias"
    alias = read.text(key)
    if not alias and key in read:
        raise InvalidSettingError(
            key=key,
            problem="it is empty, an old way to keep the names of topics",
            action="write replication.policy.class=IdentityReplicationPolicy instead, without empty aliases and separators. "
            "Offsets stored under an empty alias are not found: set mirrorflow.start.from, or topics are copied again",
        )
    return read.required(key, action="name the source cluster")


def _patterns(read: PropertyReader, key: str, default: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Returns a list of expressions. Raises InvalidSettingError for an invalid one, before anything starts."""
    patterns = read.names(key, default)
    compile_patterns(key, patterns)
    return patterns


def _interval_s(read: PropertyReader, prefix: str) -> float | None:
    """Returns `prefix.interval.seconds`; None for never: `prefix.enabled=false` or a negative interval.

    Raises InvalidSettingError for 0.
    """
    is_enabled = read.flag(f"{prefix}.enabled")
    key = f"{prefix}.interval.seconds"
    seconds = read.whole(key, minimum=-(2**31), maximum=2**31)
    # Java's scheduler takes a negative interval as "never".
    if not is_enabled or seconds < 0:
        return None
    if seconds == 0:
        raise InvalidSettingError(
            key=key, problem="must be at least 1", action=f"set {prefix}.enabled=false to disable it"
        )
    return float(seconds)


def parse_source(
    properties: Mapping[str, str], worker: Mapping[str, str], *, now_ms: int | None = None
) -> SourceSettings:
    """Returns the settings of a connector with *properties*, in a worker with derived *worker* properties.

    *now_ms* (epoch milliseconds, default the clock) is the time from which `by_duration` counts back. Raises
    InvalidSettingError and RefusedSettingError.
    """
    basics = CommonSettings.of(properties, worker)
    read = basics.read
    read_worker = PropertyReader(worker, basics.resolver, DEFAULTS)
    consumer, source_admin, producer, target_admin = _clients(properties, worker, basics)
    read_consumer = PropertyReader(consumer.properties, basics.resolver, DEFAULTS)
    start, start_ms = _start(read, read_consumer, time.time_ns() // 1_000_000 if now_ms is None else now_ms)
    flush = read if FLUSH_INTERVAL_KEY in read else read_worker
    return SourceSettings(
        name=basics.name,
        flow=basics.flow,
        takes_over=read.names("mirrorflow.takeover.from", ()),
        source_alias=basics.source_alias,
        target_alias=basics.target_alias,
        policy=policy_settings(read, basics.source_alias),
        topics=_patterns(read, "topics"),
        topics_exclude=_patterns(read, "topics.exclude"),
        topic_filter=filter_class(read, "topic.filter.class"),
        heartbeats_replication=read.flag("heartbeats.replication.enabled"),
        transforms=read_transforms(read),
        headers_in_base64=writes_headers_in_base64(read),
        replication_factor=replication_factor(read, "replication.factor"),
        refresh_topics_s=_interval_s(read, "refresh.topics"),
        sync_configs_s=_interval_s(read, "sync.topic.configs"),
        configs_report_only=read.flag("mirrorflow.sync.topic.configs.report.only"),
        config_exclude=_patterns(read, "config.properties.exclude", CONFIG_EXCLUDE),
        config_exceptions=config_exceptions(read),
        config_filter=filter_class(read, "config.property.filter.class"),
        use_defaults_from_source=read.choice("use.defaults.from", ("target", "source")) == "source",
        sync_acls_s=_interval_s(read, "sync.topic.acls"),
        acls_report_only=read.flag("mirrorflow.sync.topic.acls.report.only"),
        tasks_max=read.whole("tasks.max", minimum=1, maximum=TASKS_MAX),
        balance_tasks_s=_interval_s(read, "mirrorflow.balance.tasks"),
        start=start,
        start_timestamp_ms=start_ms,
        on_source_loss=LossPolicy(
            read.choice("mirrorflow.source.loss.policy", tuple(policy.value for policy in LossPolicy))
        ),
        skips_refused_records=read.choice("mirrorflow.refused.records", ("stop", "skip")) == "skip",
        read_committed=_read_committed(read, read_consumer),
        flush_interval_s=flush.whole(FLUSH_INTERVAL_KEY, minimum=1, maximum=DAY_MS) / 1000,
        transaction_timeout_ms=_transaction_timeout_ms(producer, basics.resolver),
        bytes_per_second=read.size_bytes("mirrorflow.bytes.per.second"),
        offsets=offset_storage(read_worker, worker, basics.source_alias, target_admin),
        syncs=offset_syncs(read, properties, worker, label=basics.label),
        schema_wait=_schema_wait(read, properties, worker),
        source_consumer=consumer,
        source_admin=source_admin,
        target_producer=producer,
        target_admin=target_admin,
        providers=basics.providers,
    )


def for_task(settings: SourceSettings, task: int) -> SourceSettings:
    """Returns *settings* for task *task*, with its number in its clients' names, as in Java."""
    label = clients.label(settings.source_alias, settings.target_alias, settings.name)
    named = partial(clients.numbered, label=label, connector=settings.name, task=task)
    syncs = settings.syncs
    return dataclasses.replace(
        settings,
        syncs=None if syncs is None else dataclasses.replace(syncs, producer=named(syncs.producer)),
        source_consumer=named(settings.source_consumer),
        target_producer=named(settings.target_producer),
    )


def _clients(
    properties: Mapping[str, str], worker: Mapping[str, str], basics: CommonSettings
) -> tuple[ClientSettings, ClientSettings, ClientSettings, ClientSettings]:
    """Returns consumer and admin of the source, producer and admin of the target."""
    consumer = {"auto.offset.reset": "earliest", **clients.connector_client(properties, "source", "consumer")}
    source_admin = clients.connector_client(properties, "source", "admin")
    target_admin = clients.target_client(properties, worker, "admin")
    producer = clients.data_producer(properties, worker)
    clients.require_addresses(consumer, key="source.cluster.bootstrap.servers")
    clients.require_addresses(producer, key="bootstrap.servers")
    source, target, label = basics.source_alias, basics.target_alias, basics.label
    return (
        clients.task_client(source, label, "replication-consumer", consumer),
        clients.client_settings(source, f"{label}|replication-source-admin", source_admin),
        clients.task_producer(target, basics.name, producer),
        clients.client_settings(target, f"{label}|replication-target-admin", target_admin),
    )


def _transaction_timeout_ms(producer: ClientSettings, resolver: Resolver) -> int:
    read = PropertyReader(producer.properties, resolver, DEFAULTS)
    return read.whole("transaction.timeout.ms", minimum=TRANSACTION_MIN_MS, maximum=DAY_MS)


def _read_committed(read: PropertyReader, consumer: PropertyReader) -> bool:
    isolation = consumer.choice("isolation.level", ("read_uncommitted", "read_committed"))
    support = read.choice("exactly.once.support", ("requested", "required"), "requested")
    # Read only to validate their values.
    read.choice("transaction.boundary", ("poll", "interval", "connector"), "poll")
    read.whole("transaction.boundary.interval.ms", 1, minimum=1)
    if support == "required" and isolation != "read_committed":
        raise InvalidSettingError(
            key="exactly.once.support",
            problem="required contradicts reading uncommitted records, as in MM2",
            action="set source.consumer.isolation.level=read_committed",
        )
    return isolation == "read_committed"


def _start(read: PropertyReader, consumer: PropertyReader, now_ms: int) -> tuple[StartPosition, int]:
    key = "mirrorflow.start.from" if "mirrorflow.start.from" in read else "source.consumer.auto.offset.reset"
    reader, own = (read, key) if "mirrorflow.start.from" in read else (consumer, "auto.offset.reset")
    written = reader.text(own)
    kind, _, argument = written.partition(":")
    try:
        match kind.lower():
            case "earliest" | "latest" as position if not argument:
                return StartPosition(position), 0
            case "by_duration":
                return StartPosition.TIMESTAMP, max(0, now_ms - parse_duration_ms(argument))
            case "timestamp" if reader is read:
                return StartPosition.TIMESTAMP, parse_instant_ms(argument)
            case _:
                problem = f"{written!r} is not known"
    except ValueError as error:
        problem = str(error)
    action = "write earliest, latest or by_duration:PT1H"
    if reader is read:
        action += ", or timestamp:2026-01-31T00:00:00Z"
    raise InvalidSettingError(key=key, problem=problem, action=action)


def offset_syncs(
    read: PropertyReader,
    properties: Mapping[str, str],
    worker: Mapping[str, str],
    *,
    label: str,
) -> OffsetSyncSettings | None:
    """Returns the offset sync settings of *properties*; None if no offset syncs are written.

    *label* is the beginning of the names of MM2's clients. Raises InvalidSettingError.
    """
    if not read.flag(SYNCS_KEY):
        for key in properties:
            if key.startswith(_OF_SYNCS):
                raise InvalidSettingError(
                    key=SYNCS_KEY,
                    problem=f"false contradicts {key}, as in MM2",
                    action=f"leave {key} out, or write true",
                )
        return None
    side = read.choice("offset-syncs.topic.location", ("source", "target"))
    on_source = side == "source"
    producer, admin = (
        clients.connector_client(properties, side, kind)
        if on_source
        else clients.target_client(properties, worker, kind)
        for kind in ("producer", "admin")
    )
    alias = read.text(f"{side}.cluster.alias", side)
    return OffsetSyncSettings(
        on_source=on_source,
        replication_factor=replication_factor(read, SYNCS_FACTOR_KEY),
        lag_max=read.whole("offset.lag.max", minimum=-(2**63)),
        producer=clients.task_client(alias, label, f"offset-syncs-{side}-producer", producer),
        admin=clients.client_settings(alias, f"{label}|offset-syncs-{side}-admin", admin),
    )


def offset_syncs_topic(settings: SourceSettings | CheckpointSettings, *, on_source: bool) -> str:
    """Returns the name of the topic on the source or the target; it contains the alias of the other cluster."""
    other = settings.target_alias if on_source else settings.source_alias
    return make_replication_policy(settings).offset_syncs_topic(other)


def parse_checkpoint(properties: Mapping[str, str], worker: Mapping[str, str]) -> CheckpointSettings:
    """Returns the settings of a connector with *properties*, in a worker with derived *worker* properties.

    Raises InvalidSettingError and RefusedSettingError.
    """
    basics = CommonSettings.of(properties, worker)
    read = basics.read
    problem = checkpoint_refusal(read)
    if problem:
        raise InvalidSettingError(
            key=problem[0], problem=problem[1], action="set it to true, or enabled=false"
        )
    made = _checkpoint_clients(properties, worker, basics)
    return CheckpointSettings(
        name=basics.name,
        flow=basics.flow,
        source_alias=basics.source_alias,
        target_alias=basics.target_alias,
        policy=policy_settings(read, basics.source_alias),
        topics=_patterns(read, "topics"),
        topics_exclude=_patterns(read, "topics.exclude"),
        topic_filter=filter_class(read, "topic.filter.class"),
        transforms=read_transforms(read),
        groups=_patterns(read, "groups"),
        groups_exclude=_patterns(read, "groups.exclude"),
        group_filter=filter_class(read, "group.filter.class"),
        refresh_groups_s=_interval_s(read, "refresh.groups"),
        emit_s=_interval_s(read, _EMIT),
        sync_s=_interval_s(read, _SYNC),
        replication_factor=replication_factor(read, "checkpoints.topic.replication.factor"),
        syncs_on_source=read.choice("offset-syncs.topic.location", ("source", "target")) == "source",
        source_admin=made["source", "admin"],
        source_consumer=made["source", "consumer"],
        target_admin=made["target", "admin"],
        target_consumer=made["target", "consumer"],
        target_producer=made["target", "producer"],
        providers=basics.providers,
    )


def checkpoint_refusal(read: PropertyReader) -> tuple[str, str] | None:
    """Returns the key and the reason for which MM2 refuses the connector; None if it can run."""
    if not read.flag(SYNCS_KEY):
        return SYNCS_KEY, "a MirrorCheckpointConnector translates by offset syncs and cannot run without them"
    emits, moves = read.flag(f"{_EMIT}.enabled"), read.flag(f"{_SYNC}.enabled")
    if not emits and not moves:
        return (
            f"{_EMIT}.enabled",
            f"with {_SYNC}.enabled=false too a MirrorCheckpointConnector has nothing to do",
        )
    return None


def _checkpoint_clients(
    properties: Mapping[str, str], worker: Mapping[str, str], basics: CommonSettings
) -> dict[tuple[str, str], ClientSettings]:
    """Returns the clients by side and kind, named as Java's task 0 names them."""
    made = {("target", "producer"): clients.data_producer(properties, worker)}
    for kind in ("admin", "consumer"):
        made["source", kind] = clients.connector_client(properties, "source", kind)
        made["target", kind] = clients.target_client(properties, worker, kind)
    clients.require_addresses(made["source", "admin"], key="source.cluster.bootstrap.servers")
    clients.require_addresses(made["target", "producer"], key="bootstrap.servers")
    roles = {
        ("source", "admin"): "checkpoint-source-admin",
        ("source", "consumer"): "offset-syncs-source-consumer",
        ("target", "admin"): "checkpoint-target-admin",
        ("target", "consumer"): "checkpoints-target-consumer",
    }
    aliases = {"source": basics.source_alias, "target": basics.target_alias}
    named = {
        client: clients.task_client(aliases[client[0]], basics.label, role, made[client])
        for client, role in roles.items()
    }
    producer = clients.task_producer(basics.target_alias, basics.name, made["target", "producer"])
    return {**named, ("target", "producer"): producer}


def parse_heartbeat(properties: Mapping[str, str], worker: Mapping[str, str]) -> HeartbeatSettings | None:
    """Returns the settings of the connector with *properties*; None if it writes nothing.

    Raises InvalidSettingError and RefusedSettingError.
    """
    basics = CommonSettings.of(properties, worker)
    read = basics.read
    policy = policy_settings(read, basics.source_alias)
    every_s = _interval_s(read, "emit.heartbeats")
    factor = replication_factor(read, "heartbeats.topic.replication.factor")
    sides = read.names(_EMIT_TO_KEY)
    for side in sides:
        if side not in {"target", "source"}:
            raise InvalidSettingError(
                key=_EMIT_TO_KEY, problem=f"{side!r} is not a side", action="write target, source or both"
            )
    beats = []
    if "target" in sides:
        beats.append(_to_target(basics, properties, worker))
    if "source" in sides:
        beats.append(_to_source(basics, properties))
    if every_s is None or not beats:
        return None
    return HeartbeatSettings(
        name=basics.name,
        flow=basics.flow,
        source_alias=basics.source_alias,
        target_alias=basics.target_alias,
        policy=policy,
        interval_s=every_s,
        replication_factor=factor,
        beats=tuple(beats),
        providers=basics.providers,
    )


def parse_schemas(properties: Mapping[str, str], worker: Mapping[str, str]) -> SchemaSettings:
    """Returns the settings of a schema connector with *properties*, in a worker with derived *worker* properties.

    Raises InvalidSettingError.
    """
    # Most flows have no registries.
    from mirrorflow_core.schemas.subject_mapping import (  # noqa: PLC0415
        CONTEXTS_KEY,
        PREFIX_KEY,
        SUBJECTS_KEY,
        read_contexts,
    )

    basics = CommonSettings.of(properties, worker)
    read = basics.read

    def registry(side: str, alias: str) -> RegistrySettings:
        own_properties = clients.with_prefix(properties, f"{side}.cluster.")
        own = {key: value for key, value in own_properties.items() if key.startswith(REGISTRY_PREFIX)}
        read.required(f"{side}.cluster.{REGISTRY_URL_KEY}", action="write https://host:port")
        return RegistrySettings(alias=alias, side=side, properties=own)

    return SchemaSettings(
        name=basics.name,
        flow=basics.flow,
        source_alias=basics.source_alias,
        target_alias=basics.target_alias,
        source=registry("source", basics.source_alias),
        target=registry("target", basics.target_alias),
        subjects=_patterns(read, SUBJECTS_KEY),
        contexts=read_contexts(read.names(CONTEXTS_KEY)),
        subject_prefix=read.text(PREFIX_KEY),
        providers=basics.providers,
    )


def _schema_wait(
    read: PropertyReader, properties: Mapping[str, str], worker: Mapping[str, str]
) -> SchemaWaitSettings | None:
    topics = _patterns(read, SCHEMA_WAIT_TOPICS)
    if not topics:
        return None
    return SchemaWaitSettings(
        topics=topics,
        longest_s=read.whole(SCHEMA_WAIT_MAX, minimum=1, maximum=DAY_MS) / 1000,
        schemas=parse_schemas(properties, worker),
    )


def _to_target(
    basics: CommonSettings, properties: Mapping[str, str], worker: Mapping[str, str]
) -> BeatSettings:
    """As in MM2: the worker's producer writes, the connector's admin client creates the topic."""
    producer = clients.data_producer(properties, worker)
    admin = clients.target_client(properties, worker, "admin")
    clients.require_addresses(producer, key="bootstrap.servers")
    alias = basics.target_alias
    return BeatSettings(
        source_alias=basics.source_alias,
        target_alias=alias,
        producer=clients.task_producer(alias, basics.name, producer),
        admin=clients.client_settings(alias, f"{basics.label}|heartbeats-target-admin", admin),
    )


def _to_source(basics: CommonSettings, properties: Mapping[str, str]) -> BeatSettings:
    alias = basics.source_alias

    def client(kind: str) -> ClientSettings:
        client_properties = clients.connector_client(properties, "source", kind)
        clients.require_addresses(client_properties, key="source.cluster.bootstrap.servers")
        return clients.client_settings(alias, f"{basics.label}|heartbeats-source-{kind}", client_properties)

    return BeatSettings(
        source_alias=basics.target_alias,
        target_alias=alias,
        producer=client("producer"),
        admin=client("admin"),
    )
