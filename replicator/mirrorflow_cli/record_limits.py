"""Checks whether copies would refuse records of their source for their size, timestamp or missing key.

Such a record stops its partition while the flow runs.
"""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from mirrorflow_cli.findings import Findings
from mirrorflow_cli.permissions import first_of
from mirrorflow_cli.source_samples import NO_SAMPLE, SampledRecord, TopicSample
from mirrorflow_core.errors import KEPT_ON_COPY, NotAuthorizedError, accept_or_skip
from mirrorflow_core.topics.topic_configs import CLEANUP_POLICY, ConfigChange, ConfigEntry
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.client.cluster import Cluster

SIZE, STAMPED = "max.message.bytes", "message.timestamp.type"
AHEAD, BEHIND = "message.timestamp.after.max.ms", "message.timestamp.before.max.ms"
# Setting of a topic -> the broker's setting that holds for a topic without it.
BROKER_SETTINGS = {SIZE: "message.max.bytes"} | {name: f"log.{name}" for name in (STAMPED, AHEAD, BEHIND)}


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
    configs: Mapping[str, Collection[ConfigEntry]],
    copies: Mapping[str, Collection[ConfigEntry]],
    changes: Mapping[str, Collection[ConfigChange]],
    samples: Mapping[str, TopicSample],
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
                sample=samples.get(topic, NO_SAMPLE),
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
        if copy.target.get(STAMPED) == "LogAppendTime":
            continue
        newest, oldest = copy.sample.newest, copy.sample.oldest
        for setting, record, sign in ((AHEAD, newest, 1), (BEHIND, oldest, -1)):
            limit_ms = copy.target.get(setting, "")
            if limit_ms and record is not None and sign * (record.timestamp_ms - now_ms) > int(limit_ms):
                refused.setdefault((setting, int(limit_ms)), []).append((copy.name, record))
    return [
        f"{setting} is {limit_ms} on target {first_of([name for name, _ in found])}, which refuses "
        f"{'newer' if setting == AHEAD else 'older'} records; {found[0][1].partition} has one of "
        f"{_date(found[0][1].timestamp_ms)} at source offset {found[0][1].offset}: unless it is already copied, "
        f"{accept_or_skip(f'raise {setting} on the copy')}."
        for (setting, limit_ms), found in refused.items()
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
