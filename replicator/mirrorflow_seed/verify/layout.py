"""Cuts one partition into stretches that begin and end at matching records on both sides.

If retention has deleted records on one side only, the offsets that both sides have are compared, and the rest
becomes a note. What cannot be matched is undecided. A boundary that cannot be located on the target is
ignored: the stretch continues over it.
"""

import asyncio
import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field

from mirrorflow_core.errors import BrokerError, CorruptRecordsError, NotAuthorizedError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import SourceSettings, StartPosition
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.config.plugins import make_naming
from mirrorflow_seed.verify.boundaries import RUN_RECORDS, BoundaryLog, Found, place_on
from mirrorflow_seed.verify.digests import RecordDigest
from mirrorflow_seed.verify.known_offsets import KnownPartition
from mirrorflow_seed.verify.splits import (
    KEYS_MAX,
    SPLIT_WINDOWS,
    WINDOW_OFFSETS,
    Method,
    Split,
    is_sampled,
    stretches,
)
from mirrorflow_seed.verify.stretch_reader import DeletedMeanwhileError
from mirrorflow_seed.verify.windows import WindowOutcome, WindowResult

NOT_TOGETHER = (
    "No record of the source was found on the target, or the reverse, so nothing says which belong together."
)
NOT_FOUND = "The place of this window on the target was not found, or there are several."
NO_END = "The flow has copied more than this source has, and nothing says where that begins on the target."
NO_TARGET = "The target has no such partition, and no position says that anything was copied."


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSettings:
    """How a run cuts partitions into stretches."""

    run_id: str
    share: float = 1.0
    window_offsets: int = WINDOW_OFFSETS
    split_windows: int = SPLIT_WINDOWS
    keys_max: int = KEYS_MAX
    timestamps: bool = True  # False: not compared anywhere
    target_may_be_ahead: bool = False  # the source is an archive and may end before what the flow has copied


@dataclass(slots=True)
class VerifyPlan:
    """The splits, largest first; windows that are undecided from the start; notes on what is not compared."""

    splits: list[Split] = field(default_factory=list)
    undecided: list[WindowResult] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    partitions: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """The first offset of a log and its end offset (exclusive)."""

    begin: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLayout:
    """What is known about one partition before its records are read."""

    at: TopicPartition
    target: TopicPartition
    source: Ends
    on_target: Ends | None  # None: the target has no such partition
    known: KnownPartition
    settled_before: int | None
    is_compacted: bool
    can_expire: bool
    timestamps: bool
    is_end_unknown: bool = False  # the target has records from behind the source's end, at an unknown offset


class Layout:
    """Cuts one partition; `lay` adds the result to the plan."""

    def __init__(
        self,
        source: Cluster,
        target: Cluster,
        settings: SourceSettings,
        cut: PlanSettings,
        one: PartitionLayout,
        found: VerifyPlan,
    ) -> None:
        self._one = one
        self._cut = cut
        self._found = found
        self._starts_early = settings.start is StartPosition.EARLIEST
        edits = make_naming(settings).header_edits(one.at.topic)
        there = one.on_target or Ends(begin=0, end=0)
        of_source = RecordDigest(cut.run_id, one.at.partition, edits=edits, timestamps=one.timestamps)
        of_target = RecordDigest(cut.run_id, one.at.partition, timestamps=one.timestamps)
        self._source = BoundaryLog(
            source,
            one.at,
            one.source.begin,
            one.source.end,
            digest=of_source,
            read_committed=settings.read_committed,
        )
        self._target = BoundaryLog(
            target, one.target, there.begin, there.end, digest=of_target, read_committed=True
        )

    async def lay(self) -> None:
        """Adds splits, undecided windows and notes to the plan. Raises ClusterError."""
        one, source = self._one, self._source
        try:
            if one.on_target is None:
                await self._without_target()
            elif one.is_end_unknown:
                self._undecided(source.begin, source.end, NO_END)
            elif one.is_compacted:
                self._by_key()
            else:
                begin = await self._begin()
                if begin is not None:
                    await self._between(*begin)
        except (NotAuthorizedError, CorruptRecordsError, DeletedMeanwhileError) as error:
            self._undecided(source.begin, source.end, str(error))
        except BrokerError as error:
            if error.retriable:
                raise
            self._undecided(source.begin, source.end, str(error))

    async def _without_target(self) -> None:
        if not await self._source.records(self._source.begin, 1):
            return
        if self._one.settled_before is None:
            self._undecided(self._source.begin, self._source.end, NO_TARGET)
        else:
            self._split(self._source.begin, self._source.end, 0, 0)

    def _by_key(self) -> None:
        source, target, cut = self._source, self._target, self._cut
        classes = max(1, -(-max(source.end - source.begin, target.end - target.begin) // cut.keys_max))
        for number in range(classes):
            if is_sampled(cut.run_id, self._one.at.topic, self._one.at.partition, number, cut.share):
                self._found.splits.append(
                    dataclasses.replace(
                        self._whole(),
                        method=Method.LATEST,
                        key_class=number,
                        key_classes=classes,
                        can_expire=self._one.can_expire,
                    )
                )

    async def _begin(self) -> tuple[int, int] | None:
        """The first pair of matching source and target offsets; None if there is nothing to compare."""
        source, target, known = self._source, self._target, self._one.known
        ours, theirs = await asyncio.gather(
            source.records(source.begin, RUN_RECORDS), target.records(target.begin, RUN_RECORDS)
        )
        if not ours and not theirs:
            return None
        if not ours:
            return self._only_target()
        if not theirs:
            return self._only_source()
        if _same_start(ours, theirs):
            return source.begin, target.begin
        place = await place_on(target, ours, known.on_target(source.begin))
        if place is not None:
            return self._target_ahead(place)
        origin = await place_on(source, theirs, known.on_source(theirs[0].offset))
        if origin is not None:
            return self._source_ahead(origin)
        if source.begin == 0 and target.begin == 0 and self._starts_early:
            return 0, 0
        self._undecided(source.begin, source.end, NOT_TOGETHER)
        return None

    def _only_target(self) -> tuple[int, int] | None:
        if self._source.begin == 0:
            return 0, self._target.begin
        self._note("the source has deleted all of it, which the target still has")
        return None

    def _only_source(self) -> tuple[int, int] | None:
        if self._target.begin == 0:
            return self._source.begin, 0
        exact = [guess.offset for guess in self._one.known.on_source(self._target.begin) if guess.is_exact]
        if not exact:
            self._undecided(self._source.begin, self._source.end, NOT_TOGETHER)
            return None
        self._note("the target has deleted all of it")
        return max(exact[0], self._source.begin), self._target.end

    def _target_ahead(self, place: int) -> tuple[int, int]:
        """Handles earlier target records if the source begins at *place*: deleted on the source, or extra."""
        if self._source.begin == 0:
            self._split(0, 0, self._target.begin, place)
        else:
            self._note(
                f"target offsets {self._target.begin} to {place} are of records that the source has deleted"
            )
        return self._source.begin, place

    def _source_ahead(self, origin: int) -> tuple[int, int]:
        """Handles source records before *origin*, where the target begins: deleted there, or never copied."""
        source, target = self._source, self._target
        begins_at = self._one.known.begins_at
        if target.begin > 0:
            self._note(
                f"source offsets {source.begin} to {origin} are of records that the target has deleted"
            )
        elif not self._starts_early or (begins_at is not None and begins_at >= origin):
            self._note(f"source offsets {source.begin} to {origin} are from before the flow began")
        else:
            self._split(source.begin, origin, 0, 0)
        return origin, target.begin

    async def _between(self, begin: int, target_begin: int) -> None:
        cut, source, target = self._cut, self._source, self._target
        parts = stretches(
            cut.run_id,
            self._one.at.topic,
            self._one.at.partition,
            begin,
            source.end,
            share=cut.share,
            window_offsets=cut.window_offsets,
            split_windows=cut.split_windows,
        )
        if not parts and cut.share >= 1.0:
            parts = [(begin, source.end)]  # no source offsets, but perhaps records on the target
        places: dict[int, int | None] = {begin: target_begin, source.end: target.end}
        for border in sorted({at for part in parts for at in part} - places.keys()):
            places[border] = await self._place(border)
        open_at: tuple[int, int] | None = None
        for start, stop in parts:
            there, then = places[start], places[stop]
            if cut.share < 1.0:
                if there is None or then is None or then < there:
                    self._undecided(start, stop, NOT_FOUND)
                else:
                    self._split(start, stop, there, then)
                continue
            if open_at is None:
                open_at = start, target_begin
            # Ignore a boundary not found, or located before the previous one: the stretch continues.
            if then is not None and then >= open_at[1]:
                self._split(open_at[0], stop, open_at[1], then)
                open_at = stop, then

    async def _place(self, border: int) -> int | None:
        settled = self._one.settled_before
        if settled is not None and border >= settled:
            return None
        wanted = await self._source.records(border, RUN_RECORDS)
        return await place_on(self._target, wanted, self._one.known.on_target(border))

    def _whole(self) -> Split:
        one = self._one
        return Split(
            topic=one.at.topic,
            partition=one.at.partition,
            target_topic=one.target.topic,
            source_from=self._source.begin,
            source_to=self._source.end,
            target_from=self._target.begin,
            target_to=self._target.end,
            settled_before=one.settled_before,
            timestamps=one.timestamps,
            window_offsets=self._cut.window_offsets,
        )

    def _split(self, source_from: int, source_to: int, target_from: int, target_to: int) -> None:
        # Source records before a matched target record were copied, whatever the stored offset is.
        is_last = source_to == self._source.end and target_to == self._target.end
        self._found.splits.append(
            dataclasses.replace(
                self._whole(),
                source_from=source_from,
                source_to=source_to,
                target_from=target_from,
                target_to=target_to,
                settled_before=self._one.settled_before if is_last else source_to,
            )
        )

    def _undecided(self, begin: int, end: int, reason: str) -> None:
        self._found.undecided.append(
            WindowResult(
                topic=self._one.at.topic,
                partition=self._one.at.partition,
                target_topic=self._one.target.topic,
                from_offset=begin,
                to_offset=end,
                outcome=WindowOutcome.UNDECIDED,
                reason=reason,
            )
        )

    def _note(self, what: str) -> None:
        self._found.notes.append(f"{self._one.at}: {what}; they are not compared.")


def _same_start(ours: Iterable[Found], theirs: Iterable[Found]) -> bool:
    """Whether the first two records of both sides are equal; one is enough if a side has only one."""
    pairs = list(zip(ours, theirs, strict=False))
    return all(one.digest == other.digest for one, other in pairs[:2])
