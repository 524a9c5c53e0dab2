"""Decides which checkpoints are due, which offsets are committed for the target's groups, and which groups a flow follows.

*Checkpoints* follow Java's MirrorCheckpointTask and CheckpointStore: one is due when the group moved forward or was reset on the
source. In doubt the lower offset is used: a record read twice is a nuisance, a skipped record is lost. Stricter than in Java: a
checkpoint of an earlier copy is replaced as soon as what is known of the present one contradicts it (`contradicted`); a group that
was reset on the source to before all known syncs gets the beginning of the target partition; a checkpoint is committed only if the
group is still at or past its source offset; the target's group never moves back.

*Selection* follows Java's DefaultGroupFilter and `listConsumerGroups`. A consumer group is a group of type classic or consumer
(KIP-848) with protocol type `consumer`, or with none if it only stores offsets. Share groups (KIP-932) have start offsets
instead (`share_offsets`); streams groups (KIP-1071) keep state besides offsets, so offsets alone would not be their progress.

No I/O: `connectors.checkpoint_passes` and the command `mirrorflow offsets` collect the facts.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from enum import Enum
from typing import Final

from mirrorflow_core.java.patterns import compile_patterns
from mirrorflow_core.light_dataclasses import dataclass
from mirrorflow_core.offsets.offset_translation import Committed, TranslatedOffset, TranslatedOffsets
from mirrorflow_core.partitions import TopicPartition

# By then a running connector has compared its checkpoints with a copy that was created again, whatever the difference of clocks.
SETTLED_MS: Final = 3_600_000
_CONSUMER_TYPES = frozenset({"", "classic", "consumer"})  # "": a broker that reports no types has no others
_CONSUMER_PROTOCOLS = frozenset({"", "consumer"})
# A classic coordinator reports "Dead" for a group that it does not know.
_IDLE_STATES = frozenset({"empty", "dead"})
_NAMED_TYPES = {
    "streams": "it is a streams group, whose tasks keep state besides offsets",
}
NOT_KNOWN = "nothing is known of where it stands on the target: that lies before all that was copied, or nothing is copied yet"
NOT_ASKED = "sync.group.offsets.enabled is false, so only the checkpoint says it"
HAS_MEMBERS = "the target's group has members, which say themselves where it stands"
OTHER_KIND = "the target has a group of another kind under that name"
NO_CHECKPOINT = "no checkpoint says it yet"
WAS_RESET = "the group was set back on the source, and the target's group never goes back"
DUE = "it is due with the next pass"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A checkpoint of one group and target partition."""

    upstream_offset: int
    downstream_offset: int
    metadata: str = ""


Points = Mapping[TopicPartition, Point]  # by target partition


def contradicted(
    known: Points,
    now: TranslatedOffsets,
    at_most: Callable[[TopicPartition, int], int | None],
    doubted: Collection[TopicPartition] = (),
) -> frozenset[TopicPartition]:
    """Returns the partitions whose checkpoints are of an earlier copy: from there, the group may skip records of the present one.

    *at_most* returns, for a source partition and offset, the target offset behind which records would be skipped; None: unknown.
    *doubted*: where the copy was created again, or has lost records, after the checkpoint, so that the translation of now counts.
    """
    partitions = set()
    for partition, point in known.items():
        translated = now.get(partition)
        if translated is None or point.downstream_offset <= (translated.downstream_offset or 0):
            continue
        limits = [translated.at_most]
        if translated.source is not None:
            # Unlike the group, its checkpoint may lie where the copy is known.
            limits.append(at_most(translated.source, point.upstream_offset))
        if partition in doubted or any(
            limit is not None and limit < point.downstream_offset for limit in limits
        ):
            partitions.add(partition)
    return frozenset(partitions)


def due(
    known: Points, now: TranslatedOffsets, void: frozenset[TopicPartition] = frozenset()
) -> dict[TopicPartition, Point]:
    """Returns the checkpoints to write, given the last ones in *known*, of which those of *void* partitions are contradicted."""
    points = {}
    for partition, translated in now.items():
        if translated.downstream_offset is None:
            continue
        last = known.get(partition)
        if (
            last is None
            or partition in void
            or translated.upstream_offset < last.upstream_offset
            or translated.downstream_offset > last.downstream_offset
        ):
            points[partition] = _point(translated, translated.downstream_offset)
    return points


def before_known_syncs(
    known: Points, now: TranslatedOffsets, void: frozenset[TopicPartition] = frozenset()
) -> frozenset[TopicPartition]:
    """Returns the partitions in which the group is before all known syncs, and its checkpoint is not.

    Its offset cannot be translated, and lies before the last checkpoint, or that is *void*, as in `due`.
    """
    return frozenset(
        partition
        for partition, translated in now.items()
        if translated.downstream_offset is None
        and partition in known
        and (partition in void or translated.upstream_offset < known[partition].upstream_offset)
    )


def at_beginning(
    partitions: frozenset[TopicPartition],
    now: TranslatedOffsets,
    beginnings: Mapping[TopicPartition, int],
    *,
    known: Points,
) -> dict[TopicPartition, Point]:
    """Returns checkpoints at the *beginnings* of the target *partitions*, where these are known; without those of *known*."""
    return {
        partition: point
        for partition in partitions
        if partition in beginnings
        for point in (_point(now[partition], beginnings[partition]),)
        if point != known.get(partition)
    }


def offsets_to_commit(
    known: Points, now: TranslatedOffsets, target: Mapping[TopicPartition, Committed]
) -> Points:
    """Returns the checkpoints whose offsets to commit for the target's group. *target*: its current offsets.

    A checkpoint ahead of what is known of the copy may be of an earlier one: then the translation of now counts.
    """
    return {
        partition: point
        for partition, checkpoint in known.items()
        if partition in now and now[partition].upstream_offset >= checkpoint.upstream_offset
        for point in (_in_doubt_lower(checkpoint, now[partition]),)
        if partition not in target or target[partition].offset < point.downstream_offset
    }


def _in_doubt_lower(point: Point, translated: TranslatedOffset) -> Point:
    """Returns *point*, or that of *translated* if *point* may lie behind records that the group has yet to read."""
    offset, at_most = translated.downstream_offset, translated.at_most
    if offset is None or point.downstream_offset <= (offset if at_most is None else at_most):
        return point
    return _point(translated, offset)


class CheckpointStore:
    """Holds the last checkpoint of each group and target partition in the checkpoints topic."""

    def __init__(self) -> None:
        self._points: dict[str, dict[TopicPartition, Point]] = {}
        self._written_ms: dict[tuple[str, TopicPartition], int] = {}
        self._doubted: dict[str, set[TopicPartition]] = {}

    def of(self, group: str) -> Points:
        """Returns the checkpoints of *group* by target partition."""
        return self._points.get(group, {})

    def take(self, group: str, points: Points) -> None:
        """Stores *points* of *group*, which are in the topic."""
        self._points.setdefault(group, {}).update(points)
        self.trust(group, points)

    def doubt(
        self, partition: TopicPartition, downstream_offset: int = 0, *, at_ms: int | None = None
    ) -> None:
        """Notes that the copy in *partition* was created again, or has lost its records from *downstream_offset* on.

        *at_ms*: a checkpoint that was written SETTLED_MS after that holds for the present copy. None: that is seen now.
        """
        for group, points in self._points.items():
            if partition not in points or points[partition].downstream_offset <= downstream_offset:
                continue
            written_ms = self.written_ms(group, partition)
            if at_ms is None or written_ms is None or written_ms < at_ms + SETTLED_MS:
                self._doubted.setdefault(group, set()).add(partition)

    def trust(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        """Notes that the checkpoints of *group* in *partitions* hold for the present copies."""
        if group in self._doubted:
            self._doubted[group].difference_update(partitions)

    def doubted(self, group: str) -> Collection[TopicPartition]:
        """Returns the partitions whose checkpoints of *group* may not hold for the present copies."""
        return self._doubted.get(group, ())

    def note_written(self, group: str, partitions: Iterable[TopicPartition], at_ms: int) -> None:
        """Records that the checkpoints of *partitions* were written at *at_ms*."""
        self._written_ms.update(((group, partition), at_ms) for partition in partitions)

    def written_ms(self, group: str, partition: TopicPartition) -> int | None:
        """Returns when the checkpoint was written, by its writer's wall clock; None: not in the topic."""
        return self._written_ms.get((group, partition))

    def items(self) -> list[tuple[str, Points]]:
        """Returns every group with its checkpoints, sorted by group."""
        return sorted(self._points.items())


def _point(translated: TranslatedOffset, downstream_offset: int) -> Point:
    return Point(
        upstream_offset=translated.upstream_offset,
        downstream_offset=downstream_offset,
        metadata=translated.metadata,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A group as a cluster lists it; "" as in Kafka's schema for fields that its brokers are too old to report."""

    name: str
    protocol_type: str = ""  # consumer, connect, share ...; "" if only offsets were committed
    state: str = ""  # as Kafka names it: Empty, Stable, ...
    type: str = ""  # as Kafka names it: Classic, Consumer, Share, Streams

    @property
    def is_consumer_group(self) -> bool:
        """Whether the group's committed offsets are its progress."""
        return self.type.lower() in _CONSUMER_TYPES and self.protocol_type in _CONSUMER_PROTOCOLS

    @property
    def is_share_group(self) -> bool:
        """Whether the group has start offsets (KIP-932) instead of committed ones."""
        return self.type.lower() == "share"

    @property
    def is_idle(self) -> bool:
        """Whether the group has no members."""
        return self.state.lower() in _IDLE_STATES

    @property
    def why_not(self) -> str | None:
        """A clause why offsets of this group type cannot be translated; None where that needs no reason."""
        return _NAMED_TYPES.get(self.type.lower())


class Writable(Enum):
    """Whether the flow may commit offsets for a group of the target."""

    YES = "yes"  # without members, or not existing
    ACTIVE = "active"  # it has members, which commit their own offsets
    OTHER_KIND = "other-kind"  # not a consumer group


def writable(group: Group | None) -> Writable:
    """Returns whether offsets may be committed for the target's *group*; None: the target does not know it."""
    if group is None:
        return Writable.YES
    if not group.is_consumer_group:
        return Writable.OTHER_KIND
    return Writable.YES if group.is_idle else Writable.ACTIVE


def has_members(group: Group | None) -> bool | None:
    """Returns whether *group* has members, as its cluster lists it; None: unknown, or not listed."""
    return None if group is None or not group.state else not group.is_idle


class GroupSelection:
    """Selects the groups of a flow. Raises InvalidSettingError where a pattern is not a regular expression.

    *admits* is the user's own filter; it replaces *include* and *exclude*.
    """

    def __init__(
        self,
        *,
        include: tuple[str, ...],
        exclude: tuple[str, ...],
        admits: Callable[[str], bool] | None = None,
    ) -> None:
        self._include = compile_patterns("groups", include)
        self._exclude = compile_patterns("groups.exclude", exclude)
        self._admits = admits

    def selects(self, group: str) -> bool:
        """Returns whether the flow translates the offsets of *group*."""
        if self._admits is not None:
            return self._admits(group)
        return self._include.matches(group) and not self._exclude.matches(group)


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslatedGroup:
    """The facts about one group, by target partition, which groups of all types have in common."""

    group: str
    translated: TranslatedOffsets
    writable: Writable = Writable.YES
    is_synchronised: bool = False  # whether the flow moves the target's group at all
    problem: str | None = None  # why the last attempt failed; None: it did not
    has_members_on_source: bool | None = None
    has_members_on_target: bool | None = None

    def why_not_moved(self, offset: int | None) -> str | None:
        """Returns why the target's group is not moved to *offset*; None if it may be."""
        if offset is None:
            return NOT_KNOWN
        if not self.is_synchronised:
            return NOT_ASKED
        if self.problem is not None:
            return self.problem
        return {Writable.ACTIVE: HAS_MEMBERS, Writable.OTHER_KIND: OTHER_KIND}.get(self.writable)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFacts(TranslatedGroup):
    """The facts about one consumer group. `target` None: its offsets there were not read."""

    points: Points
    written_ms: Callable[[str, TopicPartition], int | None]
    target: Mapping[TopicPartition, Committed] | None = None
    ends: Mapping[TopicPartition, int] | None = None  # end offsets of the copies


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOffset:
    """The report on one group and partition. None: unknown or missing."""

    group: str
    topic: str  # on the source
    partition: int
    target_topic: str
    source_offset: int
    target_offset: int | None  # from here the group skips nothing
    at_most: int | None  # records read again lie before this offset
    checkpoint_offset: int | None
    checkpoint_written_ms: int | None
    group_offset: int | None  # of the target's own group
    written: bool  # the target's group is at `target_offset` or ahead of it
    why: str | None  # why it is not written, or differs; None: no remark
    has_members_on_source: bool | None = None
    has_members_on_target: bool | None = None

    @property
    def translation(self) -> str:
        """The precision of the translation: exact, bound or unknown."""
        if self.target_offset is None:
            return "unknown"
        return "exact" if self.target_offset == self.at_most else "bound"

    @property
    def begins_at(self) -> int | None:
        """The target offset at which the group would start now; its checkpoint if it has no offset there."""
        return self.checkpoint_offset if self.group_offset is None else self.group_offset

    @property
    def again(self) -> tuple[int, int | None]:
        """The number of records it would read again: (minimum, maximum). Maximum None: no start offset, or unknown."""
        begin, target_offset = self.begins_at, self.target_offset
        if begin is None or target_offset is None:
            return 0, None
        most = None if self.at_most is None else max(0, self.at_most - begin)
        return max(0, target_offset - begin), most


def group_offsets(facts: GroupFacts) -> Iterator[GroupOffset]:
    """Yields one report for each partition with an offset of the group, sorted by target partition."""
    for target, translated in sorted(facts.translated.items()):
        source = translated.source or target
        point = facts.points.get(target)
        own = None if facts.target is None else facts.target.get(target)
        end = None if facts.ends is None else facts.ends.get(target)
        target_offset = translated.downstream_offset
        at_most = translated.at_most
        if at_most is None and target_offset is not None and end is not None:
            at_most = max(end, target_offset)  # the copy holds no more to read again
        written = own is not None and target_offset is not None and own.offset >= target_offset
        yield GroupOffset(
            group=facts.group,
            topic=source.topic,
            partition=source.partition,
            target_topic=target.topic,
            source_offset=translated.upstream_offset,
            target_offset=target_offset,
            at_most=at_most,
            checkpoint_offset=None if point is None else point.downstream_offset,
            checkpoint_written_ms=facts.written_ms(facts.group, target),
            group_offset=None if own is None else own.offset,
            written=written,
            why=_remark(own, point, translated) if written else _why_not(facts, target, translated, end),
            has_members_on_source=facts.has_members_on_source,
            has_members_on_target=facts.has_members_on_target,
        )


def _remark(own: Committed | None, point: Point | None, translated: TranslatedOffset) -> str | None:
    """Returns how the target's group, which is at its offset or ahead of it, differs from the source's; None if it does not."""
    if own is None:
        return None
    if own.offset != translated.downstream_offset:
        return f"the target's group is ahead, at {own.offset}, and never goes back"
    if not own.metadata:
        return (
            f"without the metadata of source offset {translated.upstream_offset}"
            if translated.metadata
            else None
        )
    # As in MM2, metadata is that of the source offset from which the target's was translated, also for a bound.
    if point is not None and point.metadata == own.metadata:
        of = point.upstream_offset
    elif own.metadata == translated.metadata:
        of = translated.upstream_offset
    else:
        return None  # committed on the target
    is_own = of == translated.upstream_offset and translated.translation == "exact"
    return None if is_own else f"its metadata is that of source offset {of}"


def _why_not(facts: GroupFacts, target: TopicPartition, translated: TranslatedOffset, end: int | None) -> str:
    if (why := facts.why_not_moved(translated.downstream_offset)) is not None:
        return why
    point = facts.points.get(target)
    if point is None:
        return NO_CHECKPOINT
    if translated.upstream_offset < point.upstream_offset:
        return WAS_RESET
    if end is not None and point.downstream_offset > end:
        return f"the copy ends at {end}"
    return DUE
