"""Parses the properties of MM2's source connector into `SourceSettings`."""

import dataclasses
import time
from collections.abc import Mapping
from functools import partial

from mirrorflow_core.errors import InvalidSettingError
from mirrorflow_core.java.properties import PropertyReader, parse_duration_ms, parse_instant_ms
from mirrorflow_core.setting_table import DEFAULTS
from mirrorflow_core.settings import CONFIG_EXCLUDE, ClientSettings, LossPolicy, SourceSettings, StartPosition
from mirrorflow_core.transforms import read_transforms, writes_headers_in_base64
from mirrorflow_replicator.config import clients
from mirrorflow_replicator.config.connector_properties import (
    DAY_MS,
    TASKS_MAX,
    CommonSettings,
    interval_s,
    offset_syncs,
    patterns,
)
from mirrorflow_replicator.config.plugins import config_exceptions, filter_class, policy_settings
from mirrorflow_replicator.config.providers import Resolver
from mirrorflow_replicator.config.schema_properties import schema_wait
from mirrorflow_replicator.config.storage import offset_storage, replication_factor

FLUSH_INTERVAL_KEY = "offset.flush.interval.ms"
TRANSACTION_MIN_MS = 5_000  # commits come every half second, or a tenth as often


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
        topics=patterns(read, "topics"),
        topics_exclude=patterns(read, "topics.exclude"),
        topic_filter=filter_class(read, "topic.filter.class"),
        heartbeats_replication=read.flag("heartbeats.replication.enabled"),
        transforms=read_transforms(read),
        headers_in_base64=writes_headers_in_base64(read),
        replication_factor=replication_factor(read, "replication.factor"),
        refresh_topics_s=interval_s(read, "refresh.topics"),
        sync_configs_s=interval_s(read, "sync.topic.configs"),
        configs_report_only=read.flag("mirrorflow.sync.topic.configs.report.only"),
        config_exclude=patterns(read, "config.properties.exclude", CONFIG_EXCLUDE),
        config_exceptions=config_exceptions(read),
        config_filter=filter_class(read, "config.property.filter.class"),
        use_defaults_from_source=read.choice("use.defaults.from", ("target", "source")) == "source",
        sync_acls_s=interval_s(read, "sync.topic.acls"),
        acls_report_only=read.flag("mirrorflow.sync.topic.acls.report.only"),
        tasks_max=read.whole("tasks.max", minimum=1, maximum=TASKS_MAX),
        balance_tasks_s=interval_s(read, "mirrorflow.balance.tasks"),
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
        schema_wait=schema_wait(read, properties, worker),
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
