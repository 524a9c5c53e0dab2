"""Decides which checkpoints of a consumer group are due and which offsets the group gets on the target.

Follows Java's MirrorCheckpointTask and CheckpointStore: a checkpoint is due when the group moved forward or
was reset on the source, and never moves back for another reason. In doubt the lower offset is used: a record
read twice is a nuisance, a skipped record is lost. Three rules are stricter than Java's:

1. A group that was reset on the source to before all known syncs gets the beginning of the target partition.
   Java keeps the old checkpoint, which lies after records that the group is to read again.
2. The target's group is never moved past what the group on the source has read now.
3. The target's group never moves back, whatever state it was last seen in: its offsets are read right before
   the write.

This module does no I/O: offsets come from `admin.groups`, translations from `offsets.checkpoints`, and
`connectors.checkpoint_connector` carries out the results.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from mirrorflow_core.naming.replication_policy import ReplicationPolicy
from mirrorflow_core.naming.transforms import TopicTransforms
from mirrorflow_core.offsets.offset_map import MappedOffset, OffsetMap
from mirrorflow_core.offsets.offset_syncs import TOO_OLD, OffsetSyncStore
from mirrorflow_core.partitions import TopicPartition


class Translator:
    """Translates group offsets; see the module for the rules.

    *maps* is by source partition, only for topics that on both clusters are still those of the map.
    `has_history`: earlier checkpoints are known.
    """

    def __init__(
        self, syncs: OffsetSyncStore, maps: Mapping[TopicPartition, OffsetMap] | None = None
    ) -> None:
        self.syncs = syncs
        self.has_history = True
        self.maps: Mapping[TopicPartition, OffsetMap] = {} if maps is None else maps

    def place(self, partition: TopicPartition, upstream_offset: int) -> MappedOffset | None:
        """Return the target offsets for a group that reads *upstream_offset* next; None: unknown."""
        known = self.maps.get(partition)
        mapped = None if known is None else known.place(upstream_offset)
        if mapped is not None and mapped.is_exact:
            return mapped
        synced = self._by_syncs(partition, upstream_offset)
        if not self.has_history:
            return synced
        if mapped is None or synced is None:
            return mapped or synced
        at_least = max(mapped.at_least, synced.at_least)
        ends = [end for end in (mapped.at_most, synced.at_most) if end is not None]
        if ends and min(ends) < at_least:
            return min(mapped, synced, key=lambda place: place.at_least)
        return MappedOffset(at_least, min(ends, default=None))

    def _by_syncs(self, partition: TopicPartition, upstream_offset: int) -> MappedOffset | None:
        at_least = self.syncs.translate_downstream(partition, upstream_offset)
        if at_least is None or at_least == TOO_OLD:
            return None
        at_most = None
        for upstream, downstream in self.syncs.partitions[partition]:
            if upstream < upstream_offset:
                break
            at_most = downstream
        return MappedOffset(at_least, at_most)


Rename = Callable[[TopicPartition], TopicPartition]


class Offset(Protocol):
    """A committed offset; `admin.groups.Committed` is one."""

    @property
    def offset(self) -> int:
        """The offset of the next record to read."""

    @property
    def metadata(self) -> str:
        """The metadata that the consumer committed."""


class Translation(Protocol):
    """Translates source offsets; `offsets.checkpoints.Translator` implements it."""

    def place(self, partition: TopicPartition, upstream_offset: int) -> MappedOffset | None:
        """Return the target offsets for a group that reads *upstream_offset* next; None: unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A checkpoint of one group and target partition."""

    upstream_offset: int
    downstream_offset: int
    metadata: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A group's current offset in one source partition, and its translation; None: unknown."""

    upstream_offset: int
    downstream_offset: int | None
    metadata: str = ""
    at_most: int | None = None  # records read again on the target lie before this offset; None: unknown
    source: TopicPartition | None = None

    @property
    def translation(self) -> str:
        """The precision of the translation: exact (nothing skipped or read again), bound, or unknown."""
        if self.downstream_offset is None:
            return "unknown"
        return "exact" if self.downstream_offset == self.at_most else "bound"


Points = Mapping[TopicPartition, Point]  # by target partition
Standings = Mapping[TopicPartition, Standing]  # by target partition


def renaming(policy: ReplicationPolicy, naming: TopicTransforms, *, target_alias: str) -> Rename:
    """Return a function from source partition to target partition.

    Topics that came from the target keep their original name there (Java's failback).
    """

    def rename(partition: TopicPartition) -> TopicPartition:
        if policy.topic_source(partition.topic) == target_alias:
            return TopicPartition(policy.original_topic(partition.topic), partition.partition)
        return TopicPartition(naming.target_topic(partition.topic), partition.partition)

    return rename


def standings(
    offsets: Mapping[TopicPartition, Offset],
    *,
    selects: Callable[[str], bool],
    rename: Rename,
    syncs: Translation,
) -> dict[TopicPartition, Standing]:
    """Return a group's offsets by target partition, for the topics that the flow copies."""
    found = {}
    for partition, committed in offsets.items():
        if selects(partition.topic):
            place = syncs.place(partition, committed.offset)
            found[rename(partition)] = Standing(
                upstream_offset=committed.offset,
                downstream_offset=None if place is None else place.at_least,
                metadata=committed.metadata,
                at_most=None if place is None else place.at_most,
                source=partition,
            )
    return found


def due(known: Points, now: Standings) -> dict[TopicPartition, Point]:
    """Return the checkpoints to write, given the last ones in *known*."""
    found = {}
    for partition, standing in now.items():
        if standing.downstream_offset is None:
            continue
        last = known.get(partition)
        if (
            last is None
            or standing.upstream_offset < last.upstream_offset
            or standing.downstream_offset > last.downstream_offset
        ):
            found[partition] = _point(standing, standing.downstream_offset)
    return found


def set_back_beyond(known: Points, now: Standings) -> frozenset[TopicPartition]:
    """Return the partitions with a checkpoint ahead of a group offset that cannot be translated."""
    return frozenset(
        partition
        for partition, standing in now.items()
        if standing.downstream_offset is None
        and partition in known
        and standing.upstream_offset < known[partition].upstream_offset
    )


def at_beginning(
    partitions: frozenset[TopicPartition], now: Standings, beginnings: Mapping[TopicPartition, int]
) -> dict[TopicPartition, Point]:
    """Return checkpoints at the *beginnings* of the target *partitions*, where these are known."""
    return {
        partition: _point(now[partition], beginnings[partition])
        for partition in partitions
        if partition in beginnings
    }


def to_give(known: Points, now: Standings, target: Mapping[TopicPartition, Offset]) -> Points:
    """Return the checkpoints to commit for the target's group, whose current offsets are *target*."""
    return {
        partition: point
        for partition, point in known.items()
        if partition in now
        and now[partition].upstream_offset >= point.upstream_offset
        and (partition not in target or target[partition].offset < point.downstream_offset)
    }


class CheckpointStore:
    """Holds the last checkpoint of each group and target partition in the checkpoints topic."""

    def __init__(self) -> None:
        self._points: dict[str, dict[TopicPartition, Point]] = {}
        self._written_ms: dict[tuple[str, TopicPartition], int] = {}

    def of(self, group: str) -> Points:
        """Return the checkpoints of *group* by target partition."""
        return self._points.get(group, {})

    def take(self, group: str, points: Points) -> None:
        """Store *points* of *group*, which are in the topic."""
        self._points.setdefault(group, {}).update(points)

    def note_written(self, group: str, partitions: Iterable[TopicPartition], at_ms: int) -> None:
        """Record that the checkpoints of *partitions* were written at *at_ms*."""
        self._written_ms.update(((group, partition), at_ms) for partition in partitions)

    def written_ms(self, group: str, partition: TopicPartition) -> int:
        """Return when the checkpoint was written, by its writer's wall clock; -1: not in the topic."""
        return self._written_ms.get((group, partition), -1)

    def items(self) -> list[tuple[str, Points]]:
        """Return every group with its checkpoints, sorted by group."""
        return sorted(self._points.items())


def _point(standing: Standing, downstream_offset: int) -> Point:
    return Point(
        upstream_offset=standing.upstream_offset,
        downstream_offset=downstream_offset,
        metadata=standing.metadata,
    )
