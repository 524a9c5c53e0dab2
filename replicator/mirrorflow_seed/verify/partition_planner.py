"""Cuts one partition into ranges that begin and end at matching records on both sides.

If retention has deleted records on one side only, the offsets that both sides have are compared, and the rest
becomes a note. Offsets that cannot be matched are undecided.

A range may begin where several consecutive records are equal on both sides. At an exact offset of the offset map, that
is enough. Otherwise the records are searched around a guess (offset syncs, timestamps), and a match counts only if it
is the only one, because equal records cannot be distinguished. A boundary that cannot be located on the target is
ignored: the range continues over it.
"""

import asyncio
import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple

from mirrorflow_core.errors import BrokerError, CorruptRecordsError, NotAuthorizedError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.record_digests import DigestedRecord, RecordDigester
from mirrorflow_core.settings import SourceSettings, StartPosition
from mirrorflow_core.wire.batch import Batch
from mirrorflow_core.wire.records import decode
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.config.plugins import make_naming
from mirrorflow_seed.verify.offset_windows import (
    ComparisonMethod,
    VerifyPlanSettings,
    VerifyRange,
    WindowOutcome,
    WindowResult,
)
from mirrorflow_seed.verify.range_reader import DeletedMeanwhileError, OffsetRange, OffsetRangeReader
from mirrorflow_seed.verify.stored_offsets import OffsetGuess, StoredOffsets

# This many consecutive records identify an offset; fewer only if the partition has no more.
RUN_RECORDS: Final = 8
# Searched around a guess: offset syncs do not count the markers in between, and timestamps repeat.
SEARCH_BACK_OFFSETS: Final = 2_000
SEARCH_BACK_FACTOR: Final = 16  # of offsets without records: markers, compaction
SEARCH_RECORDS: Final = 10_000
# Small, because each partition is read a few times; brokers return the first batch whole whatever its size.
SPOT_RESPONSE_BYTES: Final = 32 << 10
SEARCH_RESPONSE_BYTES: Final = 1 << 20
# A compacted log is read in parts of about this size. At the end of a part, up to one response is read that belongs to the
# next: 4 MiB (`range_reader`), so 2 % of all.
LOG_PART_BYTES: Final = 256 << 20
COMPACTED_RECORD_BYTES: Final = 10  # a small record in a compressed batch
NO_MATCH = "No record of one side was found on the other, so the offsets of both sides cannot be matched."
NOT_FOUND = "The target offset of this window was not found, or several match."
NO_END = "The flow has copied more than this source has, and the target offset where that begins is unknown."
NO_TARGET = "The target has no such partition, and no stored offset shows that anything was copied."


class BoundaryRecord(NamedTuple):
    """A record at a possible boundary of a range: its offset, digest and timestamp."""

    digested: DigestedRecord
    timestamp: int

    @property
    def offset(self) -> int:
        return self.digested.offset

    @property
    def digest(self) -> bytes:
        return self.digested.digest


class BoundaryLog:
    """Reads records at possible boundaries on one side of a partition, up to its frozen end."""

    def __init__(
        self,
        cluster: Cluster,
        partition: TopicPartition,
        offsets: OffsetRange,
        digest: RecordDigester,
        *,
        read_committed: bool,
    ) -> None:
        self.start, self.end = offsets
        self.partition = partition
        self._cluster = cluster
        self._digest = digest
        self._read_committed = read_committed

    async def records(self, offset: int, count: int) -> list[BoundaryRecord]:
        """Returns up to *count* records from *offset* on, none of them before the start of the log.

        Raises ClusterError, CorruptRecordsError, DeletedMeanwhileError.
        """
        # The first batch is returned whole, also with records that were deleted from its beginning.
        offset = max(offset, self.start)
        reader = OffsetRangeReader(
            self._cluster,
            self.partition,
            OffsetRange(offset, self.end),
            read_committed=self._read_committed,
            response_bytes=SPOT_RESPONSE_BYTES if count <= RUN_RECORDS else SEARCH_RESPONSE_BYTES,
            reads_ahead=False,
        )
        records: list[BoundaryRecord] = []
        try:
            while len(records) < count and (batches := await reader.more()) is not None:
                for batch in batches:
                    records += islice(self._within(batch, offset), count - len(records))
        finally:
            await reader.close()
        return records

    async def offset_at(self, timestamp: int) -> int | None:
        """Returns the first offset with at least *timestamp* (ms); None without one, or if the leader returns an error."""
        listed = (await admin.list_offsets(self._cluster, [self.partition], timestamp))[self.partition]
        return None if listed.error or listed.offset < 0 else listed.offset

    def _within(self, batch: Batch, offset: int) -> Iterable[BoundaryRecord]:
        for record in decode(batch):
            if offset <= record.offset < self.end:
                yield BoundaryRecord(
                    DigestedRecord(record.offset, self._digest.digest(record)), record.timestamp
                )


async def locate(
    log: BoundaryLog, wanted: Sequence[BoundaryRecord], guesses: Iterable[OffsetGuess]
) -> int | None:
    """Returns the offset on *log* where *wanted*, records of the other side, begin; None if undecided."""
    if not wanted:
        return None
    run = [record.digest for record in wanted]
    tried: list[OffsetGuess] = []
    for guess in guesses:
        if guess.is_exact:
            records = await log.records(guess.offset, len(run))
            if _begins_with(records, run):
                return records[0].offset
        tried.append(guess)
    by_time = await log.offset_at(wanted[0].timestamp) if wanted[0].timestamp >= 0 else None
    if by_time is not None:
        tried.append(OffsetGuess(by_time, is_exact=False))
    for guess in tried:
        region = await log.records(max(log.start, guess.offset - SEARCH_BACK_OFFSETS), SEARCH_RECORDS)
        matches = [
            index
            for index, record in enumerate(region)
            if record.digest == run[0] and _begins_with(region[index:], run)
        ]
        if len(matches) == 1:
            return region[matches[0]].offset
    return None


def _begins_with(records: Sequence[BoundaryRecord], run: Sequence[bytes]) -> bool:
    """Returns whether *records* begins with *run*, or is a prefix of it of at least two records."""
    count = min(len(records), len(run))
    return count >= min(2, len(run)) and all(records[index].digest == run[index] for index in range(count))


@dataclass(slots=True)
class VerifyPlan:
    """The ranges to compare, largest first; windows that are undecided without it; notes on what is not compared."""

    ranges: list[VerifyRange] = field(default_factory=list)
    undecided: list[WindowResult] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    partitions: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLayout:
    """What is known about one partition before its records are read."""

    source: TopicPartition
    target: TopicPartition
    source_offsets: OffsetRange
    target_offsets: OffsetRange | None  # None: the target has no such partition
    stored: StoredOffsets
    copied_before: int | None
    is_compacted: bool
    can_expire: bool
    timestamps: bool
    # The reason where one is open on the target, whose end is that of committed records.
    open_transaction: str | None = None
    # The target's retention may have deleted records with timestamps before this; None: its settings are unknown.
    deleted_before_ms: float | None = None
    log_bytes: int | None = None  # of a compacted partition, the larger side's; None: unknown
    is_end_unknown: bool = False  # the target has records of later source offsets, from an unknown offset on

    def expected_reads(self, plan_settings: VerifyPlanSettings) -> int:
        """Returns about how many places of both logs its plan reads: two beginnings, and each boundary on both sides."""
        if self.is_compacted:
            return 1
        offsets = self.source_offsets.end - self.source_offsets.start
        return 2 + 2 * (offsets // (plan_settings.window_offsets * plan_settings.range_windows))


class PartitionPlanner:
    """Plans the comparison of one partition; `plan_partition` adds the result to the plan."""

    def __init__(
        self,
        source: Cluster,
        target: Cluster,
        settings: SourceSettings,
        plan_settings: VerifyPlanSettings,
        partition: PartitionLayout,
        verify_plan: VerifyPlan,
    ) -> None:
        self._partition = partition
        self._plan_settings = plan_settings
        self._plan = verify_plan
        self._copies_from_start = settings.start is StartPosition.EARLIEST
        edits = make_naming(settings).header_edits(partition.source.topic)
        target_offsets = partition.target_offsets or OffsetRange(0, 0)
        of_source = RecordDigester(
            plan_settings.run_id, partition.source.partition, edits=edits, timestamps=partition.timestamps
        )
        of_target = RecordDigester(
            plan_settings.run_id, partition.source.partition, timestamps=partition.timestamps
        )
        self._source = BoundaryLog(
            source,
            partition.source,
            partition.source_offsets,
            of_source,
            read_committed=settings.read_committed,
        )
        self._target = BoundaryLog(target, partition.target, target_offsets, of_target, read_committed=True)

    async def plan_partition(self) -> None:
        """Adds ranges, undecided windows and notes to the plan. Raises ClusterError."""
        partition, source = self._partition, self._source
        try:
            if partition.target_offsets is None:
                await self._plan_missing_target()
            elif partition.is_end_unknown:
                self._add_undecided(source.start, source.end, NO_END)
            elif partition.is_compacted:
                self._plan_compacted()
            else:
                begin = await self._first_match()
                if begin is not None:
                    await self._plan_ranges(*begin)
        except (NotAuthorizedError, CorruptRecordsError, DeletedMeanwhileError) as error:
            self._add_undecided(source.start, source.end, str(error))
        except BrokerError as error:
            if error.retriable:
                raise
            self._add_undecided(source.start, source.end, str(error))

    async def _plan_missing_target(self) -> None:
        if not await self._source.records(self._source.start, 1):
            return
        if self._partition.copied_before is None:
            self._add_undecided(self._source.start, self._source.end, NO_TARGET)
        else:
            self._add_range(self._source.start, self._source.end, 0, 0)

    def _plan_compacted(self) -> None:
        source, target, plan_settings = self._source, self._target, self._plan_settings
        log_bytes = self._partition.log_bytes
        records = max(source.end - source.start, target.end - target.start)
        if log_bytes is not None:
            # Cleaned logs have few records in wide offsets.
            records = min(records, log_bytes // COMPACTED_RECORD_BYTES)
        count = max(1, -(-records // plan_settings.keys_max))
        classes = tuple(
            number for number in range(count) if plan_settings.is_sampled(self._partition.source, number)
        )
        if classes:
            self._plan.ranges.append(
                dataclasses.replace(
                    self._whole_range(),
                    method=ComparisonMethod.NEWEST_PER_KEY,
                    key_class_count=count,
                    key_classes=classes,
                    log_parts=1 if log_bytes is None else max(1, -(-log_bytes // LOG_PART_BYTES)),
                    can_expire=self._partition.can_expire,
                )
            )

    async def _first_match(self) -> tuple[int, int] | None:
        """Returns the first pair of matching source and target offsets; None if there is nothing to compare."""
        source, target, stored = self._source, self._target, self._partition.stored
        source_records, target_records = await asyncio.gather(
            source.records(source.start, RUN_RECORDS), target.records(target.start, RUN_RECORDS)
        )
        if not source_records and not target_records:
            return None
        if not source_records:
            return self._handle_target_only()
        if not target_records:
            return await self._handle_source_only()
        if _same_start(source_records, target_records):
            return source.start, target.start
        target_offset = await locate(target, source_records, stored.target_guesses(source.start))
        if target_offset is not None:
            return self._handle_extra_target_records(target_offset)
        source_offset = await locate(source, target_records, stored.source_guesses(target_records[0].offset))
        if source_offset is not None:
            return await self._handle_extra_source_records(source_offset, target_records[0].offset)
        if source.start == 0 and target.start == 0 and self._copies_from_start:
            return 0, 0
        self._add_undecided(source.start, source.end, NO_MATCH)
        return None

    def _handle_target_only(self) -> tuple[int, int] | None:
        if self._source.start == 0:
            return 0, self._target.start
        self._add_note("the source has deleted all of it, which the target still has")
        return None

    async def _handle_source_only(self) -> tuple[int, int] | None:
        if self._target.start == 0:
            return self._source.start, 0
        exact = [
            guess.offset
            for guess in self._partition.stored.source_guesses(self._target.start)
            if guess.is_exact
        ]
        # Without a later record on the target, the flow's stored offset says where the deleted ones end.
        copied_before = exact[0] if exact else self._partition.copied_before
        if copied_before is None:
            self._add_undecided(self._source.start, self._source.end, NO_MATCH)
            return None
        # The flow may have copied more than this source has, if that is an archive.
        copied_to = min(max(copied_before, self._source.start), self._source.end)
        if await self._retention_explains(copied_to):
            self._add_note("the target has deleted all of it")
        else:
            self._add_range(self._source.start, copied_to, 0, 0)
        return copied_to, self._target.end

    def _handle_extra_target_records(self, target_offset: int) -> tuple[int, int]:
        """Handles earlier target records if the source begins at *target_offset*: deleted on the source, or extra."""
        if self._source.start == 0:
            self._add_range(0, 0, self._target.start, target_offset)
        else:
            self._add_note(
                f"target offsets {self._target.start} to {target_offset} hold records that the source has deleted"
            )
        return self._source.start, target_offset

    async def _handle_extra_source_records(self, source_offset: int, target_offset: int) -> tuple[int, int]:
        """Handles source records before *source_offset*, which is the target's first one: deleted there, or never copied."""
        source, target = self._source, self._target
        began_at = self._partition.stored.began_at(target_offset)
        if target.start > 0 and await self._retention_explains(source_offset):
            self._add_note(
                f"source offsets {source.start} to {source_offset} hold records that the target's retention has deleted"
            )
        elif target.start > 0:
            self._add_range(source.start, source_offset, 0, 0)
        elif not self._copies_from_start or (began_at is not None and began_at >= source_offset):
            self._add_note(f"source offsets {source.start} to {source_offset} are from before the flow began")
        else:
            self._add_range(source.start, source_offset, 0, 0)
        return source_offset, target.start

    async def _retention_explains(self, source_offset: int) -> bool:
        """Returns whether the target's retention may have deleted all records before *source_offset*.

        By the timestamps of the last ones before it; the target deletes whole segments, the oldest first.
        """
        limit_ms = self._partition.deleted_before_ms
        if limit_ms is None:
            return True
        source, back = self._source, RUN_RECORDS
        while True:
            begin = max(source.start, source_offset - back)
            records = [
                record for record in await source.records(begin, back) if record.offset < source_offset
            ]
            if records or begin == source.start:
                return all(record.timestamp < limit_ms for record in records)
            back *= SEARCH_BACK_FACTOR

    async def _plan_ranges(self, begin: int, target_begin: int) -> None:
        plan_settings, source, target = self._plan_settings, self._source, self._target
        ranges = plan_settings.sampled_ranges(self._partition.source, begin, source.end)
        if not ranges and plan_settings.sample >= 1.0:
            ranges = [(begin, source.end)]  # no source offsets, but perhaps records on the target
        located: dict[int, int | None] = {begin: target_begin, source.end: target.end}
        for border in sorted({offset for offsets in ranges for offset in offsets} - located.keys()):
            located[border] = await self._locate_boundary(border)
        open_at: tuple[int, int] | None = None
        for start, stop in ranges:
            target_start, target_stop = located[start], located[stop]
            if plan_settings.sample < 1.0:
                if target_start is None or target_stop is None or target_stop < target_start:
                    self._add_undecided(start, stop, NOT_FOUND)
                else:
                    self._add_range(start, stop, target_start, target_stop)
                continue
            if open_at is None:
                open_at = start, target_begin
            # Ignore a boundary not found, or located before the previous one: the range continues.
            if target_stop is not None and target_stop >= open_at[1]:
                self._add_range(open_at[0], stop, open_at[1], target_stop)
                open_at = stop, target_stop

    async def _locate_boundary(self, border: int) -> int | None:
        settled = self._partition.copied_before
        if settled is not None and border >= settled:
            return None
        wanted = await self._source.records(border, RUN_RECORDS)
        return await locate(self._target, wanted, self._partition.stored.target_guesses(border))

    def _whole_range(self) -> VerifyRange:
        partition = self._partition
        return VerifyRange(
            topic=partition.source.topic,
            partition=partition.source.partition,
            target_topic=partition.target.topic,
            source_from=self._source.start,
            source_to=self._source.end,
            target_from=self._target.start,
            target_to=self._target.end,
            copied_before=partition.copied_before,
            timestamps=partition.timestamps,
            open_transaction=partition.open_transaction,
            window_offsets=self._plan_settings.window_offsets,
        )

    def _add_range(self, source_from: int, source_to: int, target_from: int, target_to: int) -> None:
        # Source records before a matched target record were copied, whatever the stored offset is.
        is_last = source_to == self._source.end and target_to == self._target.end
        self._plan.ranges.append(
            dataclasses.replace(
                self._whole_range(),
                source_from=source_from,
                source_to=source_to,
                target_from=target_from,
                target_to=target_to,
                copied_before=self._partition.copied_before if is_last else source_to,
            )
        )

    def _add_undecided(self, begin: int, end: int, reason: str) -> None:
        self._plan.undecided.append(
            WindowResult(
                topic=self._partition.source.topic,
                partition=self._partition.source.partition,
                target_topic=self._partition.target.topic,
                from_offset=begin,
                to_offset=end,
                outcome=WindowOutcome.UNDECIDED,
                reason=reason,
            )
        )

    def _add_note(self, what: str) -> None:
        self._plan.notes.append(f"{self._partition.source}: {what}; they are not compared.")


def _same_start(source_records: Iterable[BoundaryRecord], target_records: Iterable[BoundaryRecord]) -> bool:
    """Returns whether the first two records of both sides are equal; one is enough if a side has only one."""
    pairs = list(zip(source_records, target_records, strict=False))
    return all(source.digest == target.digest for source, target in pairs[:2])
