"""Checks whether copies would refuse records of their source for their size, timestamp or missing key.

Such a record stops its partition while the flow runs. The check reads samples: each leader lists the first
record of its partitions, which usually is the oldest, and the one with the highest timestamp. For compacted
topics it also fetches once from the beginning of up to READ_PARTITIONS_MAX partitions.
"""

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from mirrorflow_cli.check_permissions import first_of
from mirrorflow_cli.output import Findings
from mirrorflow_core.errors import KEPT_ON_COPY, MirrorFlowError, NotAuthorizedError, accept_or_skip
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.topics.topic_configs import CLEANUP_POLICY, ConfigChange, ConfigEntry, is_compacted
from mirrorflow_core.wire.batch import split
from mirrorflow_core.wire.records import decode
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_reader import read_once
from mirrorflow_kafka.admin.log_requests import EARLIEST
from mirrorflow_kafka.client.cluster import Cluster

# ListOffsets timestamps: the first record that has one, and the record with the highest one (Kafka 3.0).
FIRST_TIMESTAMP, MAX_TIMESTAMP = 0, -3
READ_PARTITIONS_MAX = 100
READ_BYTES = 64 * 1024  # of each partition
SIZE, TIMESTAMP_TYPE = "max.message.bytes", "message.timestamp.type"
AFTER_MAX, BEFORE_MAX = "message.timestamp.after.max.ms", "message.timestamp.before.max.ms"
# Setting of a topic -> the broker's default for it.
BROKER_SETTINGS = {SIZE: "message.max.bytes"} | {
    name: f"log.{name}" for name in (TIMESTAMP_TYPE, AFTER_MAX, BEFORE_MAX)
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledRecord:
    """A record of the source; `timestamp_ms` is -1 if it is unknown."""

    partition: TopicPartition
    offset: int
    timestamp_ms: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSample:
    """Records of a topic: the oldest of its partitions' first records, the newest of all, and one without a key."""

    oldest: SampledRecord | None = None
    newest: SampledRecord | None = None
    keyless: SampledRecord | None = None


NO_SAMPLE = TopicSample()


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTopics:
    """The topics of the source that the flow copies; `configs` and `samples` lack what could not be read."""

    sizes: dict[str, int] = field(default_factory=dict)  # partition counts
    configs: dict[str, tuple[ConfigEntry, ...]] = field(default_factory=dict)
    samples: dict[str, TopicSample] = field(default_factory=dict)


async def sample_topics(
    source: Cluster, topics: Mapping[str, int], configs: Mapping[str, Collection[ConfigEntry]]
) -> dict[str, TopicSample]:
    """Returns the sample of each topic; *topics* is topic -> partition count. Raises ClusterError.

    Partitions without records, and those that return an error, are left out.
    """
    partitions = [TopicPartition(topic, number) for topic, count in topics.items() for number in range(count)]
    firsts = await _listed(source, partitions, FIRST_TIMESTAMP)
    newest = await _listed(source, partitions, MAX_TIMESTAMP)
    compacted = [partition for partition in partitions if is_compacted(configs.get(partition.topic, ()))]
    samples: dict[str, TopicSample] = {}
    for record in firsts:
        sample = samples.get(record.partition.topic, NO_SAMPLE)
        if sample.oldest is None or record.timestamp_ms < sample.oldest.timestamp_ms:
            samples[record.partition.topic] = replace(sample, oldest=record)
    for record in newest:
        sample = samples.get(record.partition.topic, NO_SAMPLE)
        if sample.newest is None or record.timestamp_ms > sample.newest.timestamp_ms:
            samples[record.partition.topic] = replace(sample, newest=record)
    for record in await _keyless(source, compacted[:READ_PARTITIONS_MAX]):
        samples[record.partition.topic] = replace(
            samples.get(record.partition.topic, NO_SAMPLE), keyless=record
        )
    return samples


async def _listed(
    source: Cluster, partitions: Collection[TopicPartition], timestamp: int
) -> list[SampledRecord]:
    return [
        SampledRecord(partition=partition, offset=listed.offset, timestamp_ms=listed.timestamp)
        for partition, listed in (await admin.list_offsets(source, partitions, timestamp)).items()
        if not listed.error and listed.offset >= 0
    ]


async def _keyless(source: Cluster, partitions: Collection[TopicPartition]) -> list[SampledRecord]:
    """Returns the first record without a key of each partition that has one near its beginning."""
    starts = await admin.list_offsets(source, partitions, EARLIEST)
    records = await asyncio.gather(
        *(
            _first_keyless(source, partition, start.offset)
            for partition, start in starts.items()
            if not start.error
        )
    )
    return [record for record in records if record is not None]


async def _first_keyless(source: Cluster, partition: TopicPartition, start: int) -> SampledRecord | None:
    try:
        fetched = await read_once(source, partition, start, max_bytes=READ_BYTES)
        for batch in split(fetched.records):
            for record in () if batch.is_control else decode(batch):
                if record.key is None and record.offset >= start:
                    return SampledRecord(
                        partition=partition, offset=record.offset, timestamp_ms=record.timestamp
                    )
    except MirrorFlowError:
        pass  # a missing permission is reported by itself, and `run` reports records that cannot be read
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyLimits:
    """A copy, the settings of its source and those it will have itself, and records of its source.

    `target` has `cleanup.policy` only if it is going to be set.
    """

    name: str
    source: Mapping[str, str]
    target: Mapping[str, str]
    sample: TopicSample = NO_SAMPLE


async def check_record_limits(
    target: Cluster,
    names: Mapping[str, str],
    source: SourceTopics,
    copies: Mapping[str, Collection[ConfigEntry]],
    changes: Mapping[str, Collection[ConfigChange]],
    findings: Findings,
) -> None:
    """Notes copies that would refuse records of their source.

    *names* is source topic -> copy, *copies* are the settings of existing copies and *changes* what is set on new
    and existing ones.
    """
    try:
        broker = await admin.describe_broker_configs(
            target, min(target.metadata.brokers), list(BROKER_SETTINGS.values())
        )
    except NotAuthorizedError:
        return  # `run` names the setting when a record is refused
    defaults = {name: broker[of].value or "" for name, of in BROKER_SETTINGS.items() if of in broker}
    limits = []
    for topic, name in names.items():
        changed = {
            change.name: defaults.get(change.name, "") if change.value is None else change.value
            for change in changes.get(name, ())
        }
        limits.append(
            CopyLimits(
                name=name,
                source=_values(source.configs.get(topic, ())),
                target=defaults | _values(copies.get(name, ())) | changed,
                sample=source.samples.get(topic, NO_SAMPLE),
            )
        )
    now_ms = time.time_ns() // 1_000_000
    for sentence in (*smaller_sizes(limits), *refused_timestamps(limits, now_ms), *refused_keys(limits)):
        findings.note(sentence)


def smaller_sizes(copies: Sequence[CopyLimits]) -> list[str]:
    """Returns a sentence for copies with the same `max.message.bytes`, where that is less than their source's."""
    less: dict[tuple[int, int], list[str]] = {}
    for copy in copies:
        size, of_source = copy.target.get(SIZE, ""), copy.source.get(SIZE, "")
        if size and of_source and int(size) < int(of_source):
            less.setdefault((int(size), int(of_source)), []).append(copy.name)
    return [
        f"{SIZE} is {size} on target {first_of(names)}, and {of_source} on the source: larger batches are split, and a "
        f"larger record stops its partition until {SIZE} of the copy is raised; {KEPT_ON_COPY}."
        for (size, of_source), names in less.items()
    ]


def refused_timestamps(copies: Sequence[CopyLimits], now_ms: int) -> list[str]:
    """Returns a sentence for copies with the same limit, where that refuses a sampled record of their source."""
    refused: dict[tuple[str, int], list[tuple[str, SampledRecord]]] = {}
    for copy in copies:
        if copy.target.get(TIMESTAMP_TYPE) == "LogAppendTime":
            continue
        newest, oldest = copy.sample.newest, copy.sample.oldest
        for setting, record, sign in ((AFTER_MAX, newest, 1), (BEFORE_MAX, oldest, -1)):
            limit_ms = copy.target.get(setting, "")
            if limit_ms and record is not None and sign * (record.timestamp_ms - now_ms) > int(limit_ms):
                refused.setdefault((setting, int(limit_ms)), []).append((copy.name, record))
    return [
        f"{setting} is {limit_ms} on target {first_of([name for name, _ in refusing])}, which refuses "
        f"{'newer' if setting == AFTER_MAX else 'older'} records; {refusing[0][1].partition} has one of "
        f"{_date(refusing[0][1].timestamp_ms)} at source offset {refusing[0][1].offset}: unless it is already copied, "
        f"{accept_or_skip(f'raise {setting} on the copy')}."
        for (setting, limit_ms), refusing in refused.items()
    ]


def refused_keys(copies: Sequence[CopyLimits]) -> list[str]:
    """Returns a sentence for copies that will be compacted as their source is, where that has a record without a key."""
    refused = [
        (copy.name, copy.sample.keyless)
        for copy in copies
        if copy.sample.keyless is not None and "compact" in copy.target.get(CLEANUP_POLICY, "")
    ]
    if not refused:
        return []
    first = refused[0][1]
    sentence = (
        f"Target {first_of([name for name, _ in refused])} will be compacted ({CLEANUP_POLICY}), as on the source, and "
        f"refuse records without a key; {first.partition} has one at source offset {first.offset}: "
        f"{accept_or_skip(f'set {CLEANUP_POLICY}=delete on the copy')}."
    )
    return [sentence]


def _values(entries: Collection[ConfigEntry]) -> dict[str, str]:
    return {
        entry.name: entry.value
        for entry in entries
        if entry.name in BROKER_SETTINGS and entry.value is not None
    }


def _date(timestamp_ms: int) -> str:
    try:
        return f"{datetime.fromtimestamp(timestamp_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_ms} ms since 1970"  # producers that count microseconds are in the year 50000
