"""Translates offsets by the offset map and offset syncs: for `checkpoints` to the target, for `application_offsets` both ways.

An exact translation by the offset map is used as it is. Where it has none, the offset syncs decide. If the map returns a
bound, both are combined: neither lets a group skip a record, so the higher offset counts; if they contradict each other, the lower
one counts. Of records that a flow in the opposite direction has copied, that flow's map knows the offsets: it is used in reverse,
after a switchover, for groups that have yet to read what was copied before. A bound of the map widens over time. A process that does not know its predecessor's translations could step back before
them, as with old syncs (KAFKA-13659), so it uses only exact translations by the map.
"""

from collections.abc import Callable, Mapping

from mirrorflow_core.light_dataclasses import dataclass
from mirrorflow_core.offsets.offset_map import UNKNOWN, MappedOffset, OffsetMap, Run
from mirrorflow_core.offsets.offset_syncs import TOO_OLD, OffsetSyncStore
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.transforms import TopicTransforms

Rename = Callable[[TopicPartition], TopicPartition]


class Translator:
    """Translates offsets by offset maps, and by offset syncs where there is no exact translation.

    *maps* is by source partition, only for topics that on both clusters are still those of the map.
    *opposite_maps* is by source partition, too: the maps of a flow that copies from the target to this partition. *has_history*:
    earlier checkpoints are known.
    """

    def __init__(
        self,
        syncs: OffsetSyncStore,
        maps: Mapping[TopicPartition, OffsetMap] | None = None,
        *,
        opposite_maps: Mapping[TopicPartition, OffsetMap] | None = None,
        has_history: bool = True,
    ) -> None:
        self._opposite_maps: Mapping[TopicPartition, OffsetMap] = (
            {} if opposite_maps is None else opposite_maps
        )
        self._syncs = syncs
        self._has_history = has_history
        self._maps: Mapping[TopicPartition, OffsetMap] = {} if maps is None else maps

    def translate(self, partition: TopicPartition, upstream_offset: int) -> MappedOffset | None:
        """Returns the target offsets for a group that reads *upstream_offset* next; None: unknown."""
        known, opposite = self._maps.get(partition), self._opposite_maps.get(partition)
        mapped = None if known is None else known.translate(upstream_offset)
        if opposite is not None:
            mapped = _both_ways(opposite.translate_back(upstream_offset), mapped, known, upstream_offset)
        if mapped is not None and mapped.is_exact:
            return mapped
        synced = self._by_syncs(partition, upstream_offset)
        return _combined(mapped, synced) if self._has_history else synced

    def at_most(self, partition: TopicPartition, upstream_offset: int) -> int | None:
        """Returns the target offset behind which a group that reads *upstream_offset* next skips records; None: unknown."""
        if (mapped := self.translate(partition, upstream_offset)) is not None:
            return mapped.at_most
        known, slots = self._maps.get(partition), self._syncs.partitions.get(partition)
        begins = [] if known is None else [known.runs[0][:2]]
        if slots:
            begins.append(slots[-1])
        # All that is known of the copy lies behind the group.
        return min(
            (downstream for upstream, downstream in begins if upstream_offset <= upstream), default=None
        )

    def translate_back(self, partition: TopicPartition, downstream_offset: int) -> MappedOffset | None:
        """Returns the source offsets of source *partition* for a reader of its copy at *downstream_offset*; None: unknown."""
        known = self._maps.get(partition)
        mapped = None if known is None else known.translate_back(downstream_offset)
        synced = self._syncs.translate_back(partition, downstream_offset)
        return _combined(mapped, None if synced is None else MappedOffset(*synced))

    def extent(self, partition: TopicPartition) -> Run | None:
        """Returns the source range and the target range in which offsets are known; None: unknown, or contradictory."""
        known, extents = self._maps.get(partition), []
        if known is not None:
            first, last = known.runs[0], known.runs[-1]
            extents.append(
                Run(first.upstream, first.downstream, known.upstream_end, last.downstream_end, UNKNOWN)
            )
        if slots := self._syncs.partitions.get(partition):
            oldest, newest = slots[-1], slots[0]
            extents.append(
                Run(*oldest, newest.upstream_offset + 1, newest.downstream_offset + 1, UNKNOWN),
            )
        if not extents:
            return None
        begin, end = min(extents), max(extents, key=_ends)
        whole = Run(begin.upstream, begin.downstream, end.upstream_end, end.downstream_end, UNKNOWN)
        is_consistent = all(
            whole.downstream <= part.downstream and part.downstream_end <= whole.downstream_end
            for part in extents
        )
        return whole if is_consistent else None

    def _by_syncs(self, partition: TopicPartition, upstream_offset: int) -> MappedOffset | None:
        at_least = self._syncs.translate_downstream(partition, upstream_offset)
        if at_least is None or at_least == TOO_OLD:
            return None
        at_most = None
        for upstream, downstream in self._syncs.partitions[partition]:
            if upstream < upstream_offset:
                # No record lies between this pair and the offset that follows it.
                at_most = at_least if upstream + 1 == upstream_offset else at_most
                break
            at_most = max(at_least, downstream)
        return MappedOffset(at_least, at_most)


def _ends(run: Run) -> tuple[int, int]:
    return run.upstream_end, run.downstream_end


def _both_ways(
    opposite: MappedOffset | None, mapped: MappedOffset | None, known: OffsetMap | None, upstream_offset: int
) -> MappedOffset | None:
    """Returns the translation by the opposite flow's map and by *known*, the map of this flow; the lower one if they contradict
    each other.

    They do where the target has lost records that the opposite flow had copied: this flow's map shows what lies there now.
    """
    if known is not None and mapped is None and upstream_offset <= known.runs[0].upstream:
        begin = known.runs[0].downstream  # all that this flow has copied lies there or after it
        is_later = opposite is not None and opposite.at_least > begin
        return MappedOffset(begin, begin) if is_later else opposite
    at_most = None if mapped is None else mapped.at_most
    if opposite is not None and at_most is not None and opposite.at_least > at_most:
        return mapped
    return _combined(opposite, mapped)


def _combined(mapped: MappedOffset | None, synced: MappedOffset | None) -> MappedOffset | None:
    """Returns the narrower of two translations, or the lower one if they contradict each other."""
    if mapped is None or synced is None or mapped.is_exact:
        return mapped or synced
    at_least = max(mapped.at_least, synced.at_least)
    ends = [end for end in (mapped.at_most, synced.at_most) if end is not None]
    if ends and min(ends) < at_least:
        return min(mapped, synced, key=lambda offset: offset.at_least)
    return MappedOffset(at_least, min(ends, default=None))


@dataclass(frozen=True, slots=True)
class Committed:
    """The offset and metadata that a group has committed for a partition."""

    offset: int  # of the next record to read
    metadata: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslatedOffset:
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

    @property
    def read_again_records(self) -> int | None:
        """The number of records that the group reads again at most, once it is moved; None: unknown."""
        if self.downstream_offset is None or self.at_most is None:
            return None
        return max(0, self.at_most - self.downstream_offset)


TranslatedOffsets = Mapping[TopicPartition, TranslatedOffset]  # by target partition


def renaming(naming: TopicTransforms, *, target_alias: str) -> Rename:
    """Returns a function from source partition to target partition.

    Topics that came from the target keep their original name there (Java's failback).
    """

    def rename(partition: TopicPartition) -> TopicPartition:
        if naming.policy.topic_source(partition.topic) == target_alias:
            return TopicPartition(naming.policy.original_topic(partition.topic), partition.partition)
        return TopicPartition(naming.target_topic(partition.topic), partition.partition)

    return rename


def translate_group(
    offsets: Mapping[TopicPartition, Committed],
    *,
    selects: Callable[[str], bool],
    rename: Rename,
    syncs: Translator,
) -> dict[TopicPartition, TranslatedOffset]:
    """Returns the offsets of a group, translated and by target partition, for the topics that the flow copies."""
    translated_offsets = {}
    for partition, committed in offsets.items():
        if selects(partition.topic):
            mapped = syncs.translate(partition, committed.offset)
            translated_offsets[rename(partition)] = TranslatedOffset(
                upstream_offset=committed.offset,
                downstream_offset=None if mapped is None else mapped.at_least,
                metadata=committed.metadata,
                at_most=None if mapped is None else mapped.at_most,
                source=partition,
            )
    return translated_offsets
