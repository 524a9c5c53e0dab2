"""Selects partitions of an archive, and ranges of their offsets, for `restore --partition`.

A topic with a selected partition is restored with all its partitions. Those that are not selected stay empty, so that the
flow's connector copies them from the source.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_seed.archive.manifest import ArchivedGroup, ArchivedPartition, ArchivedTopic, Manifest
from mirrorflow_seed.errors import JobSettingError

PARTITIONS_KEY: Final = "archive.partitions"
_FORM = re.compile(r"([A-Za-z0-9._-]+)-(\d{1,9})(?::(\d{0,18}):(\d{0,18}))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectedPartition:
    """A partition to restore, from source offset *start* up to *end* (exclusive; None: as far as the archive has it)."""

    partition: TopicPartition
    start: int = 0
    end: int | None = None


def selected_partitions(job_properties: Mapping[str, str]) -> tuple[SelectedPartition, ...] | None:
    """Returns the partitions of `archive.partitions`; None for all of the archive. Raises JobSettingError."""
    text = job_properties.get(PARTITIONS_KEY)
    if text is None:
        return None
    selected = tuple(_parsed(part.strip()) for part in text.split(","))
    named = [item.partition for item in selected]
    if twice := sorted({partition for partition in named if named.count(partition) > 1}):
        raise JobSettingError(
            key=PARTITIONS_KEY,
            problem=f"{twice[0]} is there twice",
            action="write one range of offsets for it",
        )
    return selected


def _parsed(text: str) -> SelectedPartition:
    match = _FORM.fullmatch(text)
    if match is None:
        raise JobSettingError(
            key=PARTITIONS_KEY,
            problem=f"{text!r} is not a partition",
            action="write TOPIC-NUMBER, or TOPIC-NUMBER:FROM:TO with source offsets, such as orders-0:100:200",
        )
    topic, number, start, end = match.groups()
    return SelectedPartition(
        partition=TopicPartition(topic, int(number)),
        start=int(start or 0),
        end=int(end) if end else None,
    )


def select_partitions(manifest: Manifest, selected: Sequence[SelectedPartition]) -> Manifest:
    """Returns *manifest* with the selected ranges alone; files that reach over their ends are cut later (`restore_point`).

    Raises JobSettingError if the archive has no such partition or range.
    """
    archived = manifest.partitions
    ranges: dict[TopicPartition, ArchivedPartition] = {}
    for item in selected:
        known = archived.get(item.partition)
        if known is None:
            raise JobSettingError(
                key=PARTITIONS_KEY,
                problem=f"the archive has no {item.partition}",
                action="name a partition of it",
            )
        start = max(item.start, known.start)
        end = known.end if item.end is None else min(item.end, known.end)
        if start >= end and (item.start or item.end is not None):
            raise JobSettingError(
                key=PARTITIONS_KEY,
                problem=f"the archive has {item.partition} from offset {known.start} to {known.end}, and none of the range",
                action="name offsets that it has",
            )
        ranges[item.partition] = _narrowed(known, start, end)
    topics = {item.partition.topic for item in selected}
    return replace(
        manifest,
        topics=tuple(_topic(topic, ranges) for topic in manifest.topics if topic.name in topics),
        groups=tuple(_group(group, ranges) for group in manifest.groups),
    )


def require_copied(selected: Sequence[SelectedPartition], copied: Collection[str]) -> None:
    """Raises JobSettingError if a selected partition is of a topic that is not among the *copied* ones of the flow."""
    for item in selected:
        if item.partition.topic not in copied:
            raise JobSettingError(
                key=PARTITIONS_KEY,
                problem=f"the flow does not copy {item.partition.topic}, so {item.partition} would not be restored",
                action="name partitions of topics that the flow selects",
            )


def _narrowed(partition: ArchivedPartition, start: int, end: int) -> ArchivedPartition:
    return replace(
        partition,
        start=start,
        end=end,
        files=tuple(file for file in partition.files if file.start < end and file.end > start),
        gaps=tuple(gap for gap in partition.gaps if start <= gap.start and gap.end <= end),
    )


def _topic(topic: ArchivedTopic, ranges: Mapping[TopicPartition, ArchivedPartition]) -> ArchivedTopic:
    partitions = (
        ranges.get(
            TopicPartition(topic.name, partition.number),
            _narrowed(partition, partition.start, partition.start),
        )
        for partition in topic.partitions
    )
    return replace(topic, partitions=tuple(partitions))


def _group(group: ArchivedGroup, ranges: Mapping[TopicPartition, ArchivedPartition]) -> ArchivedGroup:
    """Returns *group* with its offsets on the selected partitions: on others, the restore knows no offset of a copy."""
    offsets = (offset for offset in group.offsets if TopicPartition(offset.topic, offset.partition) in ranges)
    return replace(group, offsets=tuple(offsets))
