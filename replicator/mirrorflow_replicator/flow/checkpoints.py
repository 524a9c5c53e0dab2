"""Where a group would stand on the target, what is told of it, and what the target's own group is given.

As Java's MirrorCheckpointTask and CheckpointStore: a checkpoint follows when the group has moved on, or was set back on the
source, and never goes back for another reason. In doubt the older place: a record that is read twice is a nuisance, one
that is skipped is lost. So three things are stricter than in Java:

1. A group that was set back on the source to before all known syncs gets the beginning of the target's partition. Java
   leaves the old checkpoint, behind records that the group wants to read again.
2. The target's group is given nothing that lies behind where the group of the source stands now.
3. The target's group never goes back, whatever its state was thought to be: its offsets are asked for right before.

Pure: offsets come from `kafka.groups`, translations from `flow.translation`, and `runtime.checkpointing` does what follows.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from mirrorflow_replicator.flow.offset_map import Place
from mirrorflow_replicator.flow.partitions import TopicPartition
from mirrorflow_replicator.flow.policy import ReplicationPolicy
from mirrorflow_replicator.flow.transforms import Naming

Rename = Callable[[TopicPartition], TopicPartition]


class Offset(Protocol):
    """A committed offset; `kafka.groups.Committed` is one."""

    @property
    def offset(self) -> int:
        """Of the record that is read next."""

    @property
    def metadata(self) -> str:
        """The consumer's own words."""


class Translation(Protocol):
    """What `flow.translation.Translator` offers."""

    def place(self, partition: TopicPartition, upstream_offset: int) -> Place | None:
        """Of a group that reads *upstream_offset* of the source's *partition* next; None: nothing is known of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A checkpoint of one group and target partition."""

    upstream_offset: int
    downstream_offset: int
    metadata: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a group stands on the source now, and where that is on the target; None: that is not known."""

    upstream_offset: int
    downstream_offset: int | None
    metadata: str = ""
    at_most: int | None = None  # what it reads again on the target lies before this; None: that is not known
    source: TopicPartition | None = None

    @property
    def translation(self) -> str:
        """How well that is known: exact (nothing is missed, nothing read again), bound, unknown."""
        if self.downstream_offset is None:
            return "unknown"
        return "exact" if self.downstream_offset == self.at_most else "bound"


Points = Mapping[TopicPartition, Point]  # by target partition
Standings = Mapping[TopicPartition, Standing]  # by target partition


def renaming(policy: ReplicationPolicy, naming: Naming, *, target_alias: str) -> Rename:
    """Source partition -> target partition; what came from the target goes back to its first name (Java's failback)."""

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
    """Where a group that has committed *offsets* stands, of the topics that the flow copies."""
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
    """The checkpoints to be written, *known* being the last ones."""
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
    """The partitions whose last checkpoint lies behind where the group stands, which cannot be translated."""
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
    """Checkpoints at the *beginnings* of the target's *partitions*; none where the beginning is not known."""
    return {
        partition: _point(now[partition], beginnings[partition])
        for partition in partitions
        if partition in beginnings
    }


def to_give(known: Points, now: Standings, target: Mapping[TopicPartition, Offset]) -> Points:
    """What the target's group is given, whose own offsets are *target*."""
    return {
        partition: point
        for partition, point in known.items()
        if partition in now
        and now[partition].upstream_offset >= point.upstream_offset
        and (partition not in target or target[partition].offset < point.downstream_offset)
    }


class CheckpointStore:
    """The last checkpoint of each group and target partition: what the checkpoints topic says, and what was added to it."""

    def __init__(self) -> None:
        self._points: dict[str, dict[TopicPartition, Point]] = {}
        self._written_ms: dict[tuple[str, TopicPartition], int] = {}

    def of(self, group: str) -> Points:
        """Those of *group*."""
        return self._points.get(group, {})

    def take(self, group: str, points: Points) -> None:
        """Remember *points*, which are in the topic."""
        self._points.setdefault(group, {}).update(points)

    def note_written(self, group: str, partitions: Iterable[TopicPartition], at_ms: int) -> None:
        """The checkpoints of *partitions* are in the topic since then."""
        self._written_ms.update(((group, partition), at_ms) for partition in partitions)

    def written_ms(self, group: str, partition: TopicPartition) -> int:
        """When its checkpoint was written, by the wall clock of who wrote it; -1: it is not in the topic."""
        return self._written_ms.get((group, partition), -1)

    def items(self) -> list[tuple[str, Points]]:
        """Every group with its checkpoints, by name."""
        return sorted(self._points.items())


def _point(standing: Standing, downstream_offset: int) -> Point:
    return Point(
        upstream_offset=standing.upstream_offset,
        downstream_offset=downstream_offset,
        metadata=standing.metadata,
    )
