"""Checks whether copies would refuse records of their source for their size or timestamp.

Such a record stops its partition while the flow runs.
"""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from mirrorflow_cli.findings import Findings
from mirrorflow_cli.permissions import first_of
from mirrorflow_core.errors import KEPT_ON_COPY, NotAuthorizedError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.topics.topic_configs import ConfigChange, ConfigEntry
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.client.cluster import Cluster

MAX_TIMESTAMP = -3  # ListOffsets timestamp: the record with the highest one (Kafka 3.0)
SIZE, AHEAD, STAMPED = "max.message.bytes", "message.timestamp.after.max.ms", "message.timestamp.type"
# Setting of a topic -> the broker's setting that holds for a topic without it.
BROKER_SETTINGS = {SIZE: "message.max.bytes", AHEAD: f"log.{AHEAD}", STAMPED: f"log.{STAMPED}"}


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestRecord:
    """The record of a topic with the highest timestamp."""

    partition: TopicPartition
    offset: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyLimits:
    """A copy, the settings of its source and those it will have itself."""

    name: str
    source: Mapping[str, str]
    target: Mapping[str, str]
    newest: NewestRecord | None = None


async def newest_records(source: Cluster, topics: Mapping[str, int]) -> dict[str, NewestRecord]:
    """Returns topic -> its newest record; *topics* is topic -> partition count. Raises ClusterError.

    Topics without records are left out, as are partitions that return an error.
    """
    partitions = [TopicPartition(topic, number) for topic, count in topics.items() for number in range(count)]
    found: dict[str, NewestRecord] = {}
    for partition, listed in (await admin.list_offsets(source, partitions, MAX_TIMESTAMP)).items():
        before = found.get(partition.topic)
        if listed.error or listed.offset < 0 or (before and before.timestamp_ms >= listed.timestamp):
            continue
        found[partition.topic] = NewestRecord(
            partition=partition, offset=listed.offset, timestamp_ms=listed.timestamp
        )
    return found


async def check_record_limits(
    target: Cluster,
    names: Mapping[str, str],
    configs: Mapping[str, Collection[ConfigEntry]],
    copies: Mapping[str, Collection[ConfigEntry]],
    changes: Mapping[str, Collection[ConfigChange]],
    newest: Mapping[str, NewestRecord],
    findings: Findings,
) -> None:
    """Notes copies that would refuse records of their source.

    *names* is source topic -> copy, *configs* are the source's settings, *copies* those of existing copies and
    *changes* what is set on new and existing ones.
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
            one.name: defaults.get(one.name, "") if one.value is None else one.value
            for one in changes.get(name, ())
        }
        limits.append(
            CopyLimits(
                name=name,
                source=_values(configs.get(topic, ())),
                target=defaults | _values(copies.get(name, ())) | changed,
                newest=newest.get(topic),
            )
        )
    for sentence in (*smaller_sizes(limits), *refused_timestamps(limits, time.time_ns() // 1_000_000)):
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
    """Returns a sentence for copies with the same limit, where that refuses the newest record of their source."""
    refused: dict[int, list[tuple[str, NewestRecord]]] = {}
    for copy in copies:
        ahead_ms, newest = copy.target.get(AHEAD, ""), copy.newest
        if not ahead_ms or newest is None or copy.target.get(STAMPED) == "LogAppendTime":
            continue
        if newest.timestamp_ms - now_ms > int(ahead_ms):
            refused.setdefault(int(ahead_ms), []).append((copy.name, newest))
    return [
        f"{AHEAD} is {ahead_ms} on target {first_of([name for name, _ in found])}, which refuses newer records; "
        f"{found[0][1].partition} has one of {_date(found[0][1].timestamp_ms)} at source offset {found[0][1].offset}: raise "
        f"{AHEAD} on the copy, or leave such records out with mirrorflow.refused.records=skip; {KEPT_ON_COPY}."
        for ahead_ms, found in refused.items()
    ]


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
