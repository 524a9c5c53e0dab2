"""Compares the records of one offset range in order, in bounded memory. Pure: batches are fed, windows are returned.

`InOrderComparison` compares record by record. It receives the batches of both sides in order. Where both sides are at
a batch boundary and the two batches have the same bytes, their records are equal and are not decoded. Otherwise it
compares digests until both sides are at a batch boundary again. Where digests differ, `find_resync` finds where both
sides agree again, so that one lost record does not make all later records different.

A range begins and ends at matching records on both sides (`partition_planner`), and each record of either side within
it is counted in exactly one window. So no record between two ranges is missed.
"""

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final, NamedTuple

from mirrorflow_core.errors import CorruptRecordsError
from mirrorflow_core.record_digests import DigestedRecord, RecordDigester
from mirrorflow_core.wire.batch import CODEC_MASK, HEADER_BYTES, LOG_APPEND_TIME_BIT, Batch, checksum_holds
from mirrorflow_seed.verify.offset_windows import DifferenceKind, VerifyRange, WindowResult, WindowTally

TARGET_ENDS: Final = "The target ends here, and no stored offset shows whether this was copied."
# Consecutive records that must agree, or all up to the end: a single record may equal another one.
RESYNC_RECORDS: Final = 3
# Records searched on each side, few at first: most differences are one record. The last level takes 5 MB.
RESYNC_LEVELS: Final = (16, 512, 16_384)
_DECIDES_TIMESTAMPS = CODEC_MASK | LOG_APPEND_TIME_BIT


class NeededSides(NamedTuple):
    """The sides that must be fed or ended before the comparison can continue; if none, it is complete."""

    source: bool = False
    target: bool = False


def hold_equal_records(source: Batch, target: Batch) -> bool:
    """Returns whether equal bytes show that two batches hold equal records, at equal distances from the base offset.

    The bytes of a record are its key, value and headers, and its timestamp and offset relative to the batch's.
    So with the same codec, base timestamp and count, equal bytes are equal records; with LogAppendTime, the
    batch's max timestamp is that of all its records. Producer, sequence, leader epoch and the transactional bit
    do not matter. False decides nothing: equal records can be encoded in different bytes.
    """
    return (
        source.size_bytes == target.size_bytes
        and source.count == target.count
        and source.base_timestamp == target.base_timestamp
        and source.last_offset_delta == target.last_offset_delta
        and source.magic == target.magic == 2
        and not (source.attributes ^ target.attributes) & _DECIDES_TIMESTAMPS
        and (not source.is_log_append_time or source.max_timestamp == target.max_timestamp)
        # A memoryview compares element by element, a bytearray with memcmp; copying one side is cheap.
        and bytearray(source.data[HEADER_BYTES:]) == target.data[HEADER_BYTES:]
    )


class InOrderComparison:
    """Compares one range record by record: `feed` and `end` supply batches, `advance` compares them."""

    def __init__(
        self,
        verify_range: VerifyRange,
        *,
        source: RecordDigester,
        target: RecordDigester,
        decode_all: bool = False,
        lists_all: bool = False,
    ) -> None:
        """*decode_all*: also batches of equal bytes. *lists_all*: windows have the offsets of all their differences."""
        self.behind = 0  # records at the end of the source that the target may not have yet
        self._range = verify_range
        self._lists_all = lists_all
        self._compares_bytes = source.allows_byte_comparison and not decode_all
        self._source = _Side("source", source, verify_range.source_from, verify_range.source_to)
        self._target = _Side("target", target, verify_range.target_from, verify_range.target_to)
        self._tallies: dict[int, WindowTally] = {}
        self._cursor = verify_range.source_from
        self._level = 0

    def feed(self, *, source: Iterable[Batch] = (), target: Iterable[Batch] = ()) -> None:
        """Adds fetched batches, without control batches and those of aborted transactions."""
        self._source.batches.extend(source)
        self._target.batches.extend(target)

    def end(self, *, source: bool = False, target: bool = False) -> None:
        """Marks sides as complete."""
        for side, is_ended in ((self._source, source), (self._target, target)):
            side.is_ended |= is_ended

    def advance(self) -> NeededSides:
        """Compares as far as both sides have batches, and returns the sides that it needs next.

        Raises CorruptRecordsError.
        """
        source, target = self._source, self._target
        while True:
            if source.needs_batches or target.needs_batches:
                return NeededSides(source=source.needs_batches, target=target.needs_batches)
            if (
                self._compares_bytes
                and not source.digested
                and not target.digested
                and self._skip_equal_batches()
            ):
                continue
            source.fill(1)
            target.fill(1)
            if source.needs_batches or target.needs_batches:
                continue
            if not (source.digested or target.digested):
                return NeededSides()
            if not (source.digested and target.digested):
                self._remove_differing(len(source.digested), len(target.digested), at_end=True)
                continue
            self._skip_equal_records()
            if source.digested and target.digested:
                needs = self._resync()
                if needs is not None:
                    return needs

    def results(self, *, reason: str | None = None) -> list[WindowResult]:
        """Returns the windows in order; with a *reason* for an early end, the rest are undecided."""
        size, verify_range = self._range.window_offsets, self._range
        if reason:
            begin = self._cursor // size
            # A range without source offsets, with records of the target alone, has one window, too.
            for index in range(begin, max(begin + 1, -(-verify_range.source_to // size))):
                self._tally(index * size).leave_undecided(reason)
        return [
            tally.result(
                verify_range,
                max(index * size, verify_range.source_from),
                min((index + 1) * size, max(verify_range.source_to, verify_range.source_from)),
            )
            for index, tally in sorted(self._tallies.items())
        ]

    def _tally(self, offset: int) -> WindowTally:
        index = offset // self._range.window_offsets
        tally = self._tallies.get(index)
        if tally is None:
            tally = self._tallies[index] = WindowTally(index, lists_all=self._lists_all)
        return tally

    def _skip_equal_batches(self) -> bool:
        source, target = self._source.whole_batch, self._target.whole_batch
        if source is None or target is None:
            return False
        size = self._range.window_offsets
        is_in_one = source.base_offset // size == source.last_offset // size
        if not (is_in_one or source.is_dense) or not hold_equal_records(source, target):
            return False
        if not checksum_holds(target):
            self._target.raise_corrupt(target)
        self._source.batches.popleft()
        self._target.batches.popleft()
        offset, left = source.base_offset, source.count
        while left:
            count = left if is_in_one else min(left, size - offset % size)
            self._tally(offset).add_equal(count, target.base_offset + offset - source.base_offset)
            offset, left = offset + count, left - count
        self._cursor = source.last_offset
        return True

    def _skip_equal_records(self) -> None:
        sources, targets = self._source.digested, self._target.digested
        size = self._range.window_offsets
        while sources and targets:
            first, begin = sources[0], targets[0].offset
            border = (first.offset // size + 1) * size
            run: list[DigestedRecord] = []
            while (
                sources and targets and sources[0].digest == targets[0].digest and sources[0].offset < border
            ):
                run.append(sources.popleft())
                end = targets.popleft().offset + 1
            if not run:
                return
            self._tally(first.offset).add_equal_digested(run, begin, end)
            self._cursor = run[-1].offset

    def _resync(self) -> NeededSides | None:
        """Skips to where both sides agree again; returns the sides that it needs for that, None once done."""
        source, target = self._source, self._target
        while self._level < len(RESYNC_LEVELS):
            count = RESYNC_LEVELS[self._level]
            source.fill(count)
            target.fill(count)
            needs = NeededSides(source=source.lacks(count), target=target.lacks(count))
            if any(needs):
                return needs
            left = [record.digest for record in islice(source.digested, count)]
            right = [record.digest for record in islice(target.digested, count)]
            is_all = source.is_all_within(count), target.is_all_within(count)
            skipped = find_resync(left, right, is_all=is_all)
            if skipped is not None:
                self._remove_differing(*skipped)
                break
            if all(is_all):
                self._remove_differing(len(left), len(right), at_end=True)
                break
            self._level += 1
        else:
            self._remove_differing(
                min(RESYNC_LEVELS[-1], len(source.digested)), min(RESYNC_LEVELS[-1], len(target.digested))
            )
        self._level = 0
        return None

    def _remove_differing(self, sources: int, targets: int, *, at_end: bool = False) -> None:
        """Removes the first records of each side and counts them as differences."""
        left = [self._source.digested.popleft() for _ in range(sources)]
        right = [self._target.digested.popleft() for _ in range(targets)]
        on_both = Counter(record.digest for record in left) & Counter(record.digest for record in right)
        moved: dict[bytes, deque[DigestedRecord]] = {}
        unpaired: deque[DigestedRecord] = deque()
        for record in right:
            if on_both[record.digest]:
                on_both[record.digest] -= 1
                moved.setdefault(record.digest, deque()).append(record)
            else:
                unpaired.append(record)
        placed: list[tuple[DigestedRecord, WindowTally]] = []
        for record in left:
            if moved.get(record.digest):
                self._add_difference(DifferenceKind.MOVED, record, moved[record.digest].popleft(), placed)
            elif unpaired:
                self._add_difference(DifferenceKind.CHANGED, record, unpaired.popleft(), placed)
            elif at_end and self._range.is_behind(record.offset):
                self.behind += 1
            elif at_end and self._range.copied_before is None:
                self._cursor = record.offset
                self._tally(record.offset).add_source(record)
                self._tally(record.offset).leave_undecided(self._range.open_transaction or TARGET_ENDS)
            else:
                self._add_difference(DifferenceKind.MISSING, record, None, placed)
        for record in unpaired:
            self._add_difference(DifferenceKind.EXTRA, None, record, placed)
        # The chained digest of the target is in the order of the target.
        for record, tally in sorted(placed, key=lambda pair: pair[0].offset):
            tally.add_target(record)

    def _add_difference(
        self,
        kind: DifferenceKind,
        source: DigestedRecord | None,
        target: DigestedRecord | None,
        placed: list[tuple[DigestedRecord, WindowTally]],
    ) -> None:
        if source is not None:
            self._cursor = source.offset
        tally = self._tally(self._cursor)
        if source is not None:
            tally.add_source(source)
        if target is not None:
            placed.append((target, tally))
        tally.add_difference(kind, source, target)


class _Side:
    """One side of a range: fetched batches, and the digests of the decoded records before them."""

    __slots__ = ("_begin", "_digest", "_end", "batches", "digested", "is_ended", "name")

    def __init__(self, name: str, digest: RecordDigester, begin: int, end: int) -> None:
        self.name = name
        self.batches: deque[Batch] = deque()
        self.digested: deque[DigestedRecord] = deque()
        self.is_ended = False
        self._digest = digest
        self._begin, self._end = begin, end

    @property
    def needs_batches(self) -> bool:
        """Whether nothing is left to compare although the side is not complete."""
        return not (self.is_ended or self.digested or self.batches)

    @property
    def whole_batch(self) -> Batch | None:
        """The first batch, if it lies entirely within the range."""
        if not self.batches:
            return None
        first = self.batches[0]
        return first if first.base_offset >= self._begin and first.next_offset <= self._end else None

    def lacks(self, count: int) -> bool:
        """Returns whether fewer than *count* digests are left although the side is not complete."""
        return len(self.digested) < count and not self.is_ended

    def is_all_within(self, count: int) -> bool:
        """Returns whether no records follow the first *count* digests."""
        return self.is_ended and not self.batches and len(self.digested) <= count

    def fill(self, count: int) -> None:
        """Decodes batches until *count* digests are there or no batch is left."""
        while len(self.digested) < count and self.batches:
            batch = self.batches.popleft()
            if not checksum_holds(batch):
                self.raise_corrupt(batch)
            within = self._begin, self._end
            self.digested.extend(
                record
                for record in self._digest.digest_batch(batch)
                if within[0] <= record.offset < within[1]
            )

    def raise_corrupt(self, batch: Batch) -> None:
        """Raises CorruptRecordsError for *batch*."""
        raise CorruptRecordsError(f"the batch at offset {batch.base_offset} of the {self.name} is damaged")


def find_resync(
    left: Sequence[bytes], right: Sequence[bytes], *, is_all: tuple[bool, bool]
) -> tuple[int, int] | None:
    """Returns how many records to skip on each side so that the rest agrees; None if nothing agrees.

    It skips the fewest records on both sides. Skipped records are reported as missing, extra or changed, so a poor
    choice makes a difference look larger, never smaller. *is_all*: for each side, whether its sequence is complete.
    """
    first_index: dict[bytes, int] = {}
    for index, digest in enumerate(right):
        first_index.setdefault(digest, index)
    best: tuple[int, int] | None = None
    for index, digest in enumerate(left):
        if best is not None and index >= sum(best):
            break
        other_index = first_index.get(digest)
        if other_index is None or (best is not None and index + other_index >= sum(best)):
            continue
        count = min(RESYNC_RECORDS, len(left) - index, len(right) - other_index)
        is_enough = (
            count == RESYNC_RECORDS
            or (is_all[0] and len(left) - index == count)
            or (is_all[1] and len(right) - other_index == count)
        )
        if is_enough and all(left[index + i] == right[other_index + i] for i in range(count)):
            best = index, other_index
    return best
