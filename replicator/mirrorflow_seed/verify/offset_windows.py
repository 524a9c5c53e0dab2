"""Defines the ranges that verification tasks compare, and the windows in which their results are counted.

A window is the source offsets [n x size, (n + 1) x size) of a partition, cut to what was compared. Counts are
of records that consumers see. Batches with the same bytes on both sides are counted without decoding, so sums and
chains cover only the `digested` records. The others are equal, in order, and in neither sum.

The windows of a sample are selected by a hash of run id, topic, partition and window: a repeated run compares the
same windows, another run compares others.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from hashlib import blake2b
from typing import Final, NamedTuple

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.record_digests import DIGEST_BYTES, SUM_MODULUS, DigestedRecord

# One row per hundred thousand offsets: a billion records are 10,000 rows of some 300 bytes.
WINDOW_OFFSETS: Final = 100_000
# A task should take seconds: a million records of 1 kB take three seconds, and starting a task takes 50 ms.
RANGE_WINDOWS: Final = 10
# The plan has some 330 bytes for each range, and a job some 100 more: 43 MB in the driver, whatever the flow's size,
# without `sample`: windows of a sample are rarely adjacent, and larger ranges join adjacent ones alone.
# A verification has some 20,000 tasks at most, so each of them still has five ranges.
RANGES_MAX: Final = 100_000
# Keys per class of a compacted partition: a task holds those of a class that differ, at most some 60 MB.
KEYS_MAX: Final = 200_000
# In each window; counts have no limit. A window without any match must not fill the driver's memory.
DIFFERENCES_MAX: Final = 10


class ComparisonMethod(Enum):
    """How a partition is compared."""

    IN_ORDER = "in-order"  # record by record, in order
    NEWEST_PER_KEY = (
        "newest-per-key"  # the newest record of each key, as compaction runs at different times on each side
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyRange:
    """The offset range of a partition that one task compares, on the source and on the target.

    Ends are exclusive; the first and last offsets may have no record.
    """

    topic: str
    partition: int
    target_topic: str
    source_from: int
    source_to: int
    target_from: int
    target_to: int
    # The target has all source records before this offset; None if no offset is stored.
    copied_before: int | None = None
    timestamps: bool = True  # False: the target sets its own
    # The reason for records after the target's end, if a transaction is open there.
    open_transaction: str | None = None
    method: ComparisonMethod = ComparisonMethod.IN_ORDER
    key_class_count: int = 1  # with NEWEST_PER_KEY: the number of classes of keys
    key_classes: tuple[int, ...] = (0,)  # the classes to compare; with a sample, not all
    log_parts: int = 1  # with NEWEST_PER_KEY: the number of parts in which the log of either side is read
    can_expire: bool = (
        False  # with NEWEST_PER_KEY: retention may have deleted a key's last record on one side
    )
    window_offsets: int = WINDOW_OFFSETS

    def is_behind(self, offset: int) -> bool:
        """Returns whether source offset *offset* may not be copied yet."""
        return self.copied_before is not None and offset >= self.copied_before

    @property
    def offsets(self) -> int:
        """The number of offsets to read on both sides."""
        return self.source_to - self.source_from + self.target_to - self.target_from

    @property
    def windows(self) -> int:
        """The approximate number of windows."""
        if self.method is ComparisonMethod.NEWEST_PER_KEY:
            return len(self.key_classes)
        return max(1, -(-self.source_to // self.window_offsets) - self.source_from // self.window_offsets)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyPlanSettings:
    """Settings that cut partitions into ranges."""

    run_id: str
    sample: float = 1.0  # the fraction of windows that is compared
    window_offsets: int = WINDOW_OFFSETS
    range_windows: int = RANGE_WINDOWS
    keys_max: int = KEYS_MAX
    timestamps: bool = True  # False: not compared anywhere
    target_may_be_ahead: bool = False  # the source is an archive and may end before what the flow has copied

    def with_range_limit(self, offsets: int) -> "VerifyPlanSettings":
        """Returns these settings for a plan of *offsets* source offsets, with larger ranges if there were more than RANGES_MAX."""
        least = -(-offsets // (self.window_offsets * RANGES_MAX))
        return replace(self, range_windows=max(self.range_windows, least))

    def is_sampled(self, partition: TopicPartition, window: int) -> bool:
        """Returns whether this run compares window number *window* of the partition."""
        if self.sample >= 1.0:
            return True
        text = f"{self.run_id}\0{partition.topic}\0{partition.partition}\0{window}"
        number = int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")
        return number < self.sample * (1 << 64)

    def sampled_ranges(self, partition: TopicPartition, begin: int, end: int) -> list[tuple[int, int]]:
        """Cuts [begin, end) at window boundaries into sampled ranges of at most `range_windows` windows."""
        size = self.window_offsets
        ranges: list[tuple[int, int]] = []
        for window in range(begin // size, -(-end // size)):
            if not self.is_sampled(partition, window):
                continue
            start, stop = max(begin, window * size), min(end, (window + 1) * size)
            if ranges and ranges[-1][1] == start and stop - ranges[-1][0] <= self.range_windows * size:
                ranges[-1] = ranges[-1][0], stop
            else:
                ranges.append((start, stop))
        return ranges


class WindowOutcome(Enum):
    """The outcome of a window."""

    EQUAL = "equal"
    REORDERED = "reordered"  # the same records in another order
    DIFFERENT = "different"
    UNDECIDED = "undecided"  # neither equal nor different: the reason says what is unknown


class DifferenceKind(Enum):
    """How a record differs."""

    MISSING = "missing"  # on the source only
    EXTRA = "extra"  # on the target only, or once too often
    CHANGED = "changed"  # another record on the target at its position
    MOVED = "moved"  # in another order


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One record that differs; a side without it has neither offset nor digest (hex).

    It has no value and no headers, and its key only if the verification keeps keys.
    """

    kind: DifferenceKind
    source_offset: int | None = None
    target_offset: int | None = None
    source_digest: str | None = None
    target_digest: str | None = None
    fields: tuple[str, ...] = ()  # of a changed record: which of key, value, headers, timestamp differ
    key: str | None = (
        None  # as `key_text`, of the source's record where there is one; None: not kept, or no key
    )


class DifferenceRun(NamedTuple):
    """Records at consecutive offsets that differ in one way: source offsets, of EXTRA target offsets. *end* is exclusive."""

    kind: DifferenceKind
    begin: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowResult:
    """The result of one window. Offsets are source offsets unless named otherwise; ends are exclusive."""

    topic: str
    partition: int
    target_topic: str
    from_offset: int
    to_offset: int
    target_from_offset: int | None = None  # of the first target record of this window
    target_to_offset: int | None = None
    source_count: int = 0
    target_count: int = 0
    source_sum: str = "0" * 32  # hex, modulo 2^128
    target_sum: str = "0" * 32
    source_chain: str | None = None  # hex, the digest of the digests in order; None if nothing was digested
    target_chain: str | None = None
    digested: int = 0  # source records that the sums cover
    ordered_equal: bool | None = None  # None: undecided
    outcome: WindowOutcome
    differing: int = 0  # records that differ, count_outcomes on each side
    key_class: int | None = None  # of a compacted topic, whose keys are compared class by class
    reason: str | None = None  # why it is undecided
    differences: tuple[Difference, ...] = ()  # the first differences
    difference_runs: tuple[DifferenceRun, ...] = ()  # all differences, if the comparison lists them


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyRangeResult:
    """The windows of a range and their cost, without payload."""

    windows: tuple[WindowResult, ...]
    behind: int  # records that the target may not have yet
    bytes_read: int
    seconds: float
    memory_bytes: int  # peak of the process


class WindowTally:
    """Counts, sums and differences of a window that is being compared."""

    __slots__ = (
        "_chains", "_runs", "_sums", "differences", "differing", "digested", "has_changed", "index", "is_ordered", "reason",
        "source_count", "target_count", "target_from", "target_to",
    )  # fmt: skip

    def __init__(self, index: int, *, lists_all: bool = False) -> None:
        """*lists_all*: the result has the offsets of all differences."""
        self.index = index
        self._runs: list[DifferenceRun] | None = [] if lists_all else None
        self.source_count = self.target_count = self.digested = self.differing = 0
        self.target_from: int | None = None
        self.target_to: int | None = None
        self.is_ordered = True
        self.has_changed = False  # a record differs by more than its order
        self.reason: str | None = None
        self.differences: list[Difference] = []
        self._sums = [0, 0]
        self._chains = [blake2b(digest_size=DIGEST_BYTES), blake2b(digest_size=DIGEST_BYTES)]

    def add_equal(self, count: int, target_from: int) -> None:
        """Adds *count* records of equal batches, contiguous on the target from *target_from*."""
        self.source_count += count
        self.target_count += count
        self._extend_target(target_from, target_from + count)

    def add_equal_digested(self, records: Sequence[DigestedRecord], target_from: int, target_to: int) -> None:
        """Adds source *records* that equal the target's within these target offsets, in order."""
        count = len(records)
        self.source_count += count
        self.target_count += count
        self.digested += count
        self._extend_target(target_from, target_to)
        digests = [record.digest for record in records]
        total = sum([int.from_bytes(digest, "big") for digest in digests])
        chained = b"".join(digests)
        for side in (0, 1):
            self._sums[side] = (self._sums[side] + total) % SUM_MODULUS
            self._chains[side].update(chained)

    def add_source(self, record: DigestedRecord) -> None:
        """Adds a source record."""
        self.source_count += 1
        self.digested += 1
        self._add_digest(0, record)

    def add_target(self, record: DigestedRecord) -> None:
        """Adds a target record."""
        self.target_count += 1
        self._extend_target(record.offset, record.offset + 1)
        self._add_digest(1, record)

    def add_difference(
        self, kind: DifferenceKind, source: DigestedRecord | None, target: DigestedRecord | None
    ) -> None:
        """Adds a difference; `add_source` and `add_target` count its records."""
        self.is_ordered = False
        self.has_changed |= kind is not DifferenceKind.MOVED
        self.differing += 1
        if self._runs is not None:
            add_to_runs(self._runs, kind, _offset_of(source, target))
        if len(self.differences) < DIFFERENCES_MAX:
            self.differences.append(
                Difference(
                    kind=kind,
                    source_offset=None if source is None else source.offset,
                    target_offset=None if target is None else target.offset,
                    source_digest=None if source is None else source.digest.hex(),
                    target_digest=None if target is None else target.digest.hex(),
                )
            )

    def leave_undecided(self, reason: str) -> None:
        """Sets the reason why the window cannot be decided."""
        self.reason = reason

    @property
    def outcome(self) -> WindowOutcome:
        """The outcome, from reason, counts, sums and order."""
        if self.reason:
            # A certain difference outweighs a record that cannot be compared.
            return WindowOutcome.DIFFERENT if self.has_changed else WindowOutcome.UNDECIDED
        if self.source_count != self.target_count or self._sums[0] != self._sums[1]:
            return WindowOutcome.DIFFERENT
        return WindowOutcome.EQUAL if self.is_ordered else WindowOutcome.REORDERED

    def result(
        self, verify_range: VerifyRange, from_offset: int, to_offset: int, *, key_class: int | None = None
    ) -> WindowResult:
        """Returns the result of the window, source offsets *from_offset* to *to_offset*."""
        outcome = self.outcome
        return WindowResult(
            topic=verify_range.topic,
            partition=verify_range.partition,
            target_topic=verify_range.target_topic,
            from_offset=from_offset,
            to_offset=to_offset,
            target_from_offset=self.target_from,
            target_to_offset=self.target_to,
            source_count=self.source_count,
            target_count=self.target_count,
            source_sum=f"{self._sums[0]:032x}",
            target_sum=f"{self._sums[1]:032x}",
            source_chain=self._chains[0].hexdigest() if self.digested else None,
            target_chain=self._chains[1].hexdigest() if self.digested else None,
            digested=self.digested,
            ordered_equal=None if outcome is WindowOutcome.UNDECIDED else outcome is WindowOutcome.EQUAL,
            outcome=outcome,
            differing=self.differing,
            key_class=key_class,
            reason=self.reason,
            differences=tuple(self.differences),
            difference_runs=tuple(self._runs or ()),
        )

    def _add_digest(self, side: int, record: DigestedRecord) -> None:
        self._sums[side] = (self._sums[side] + int.from_bytes(record.digest, "big")) % SUM_MODULUS
        self._chains[side].update(record.digest)

    def _extend_target(self, begin: int, end: int) -> None:
        if self.target_from is None:
            self.target_from = begin
        self.target_to = end if self.target_to is None else max(self.target_to, end)


def add_to_runs(runs: list[DifferenceRun], kind: DifferenceKind, offset: int) -> None:
    """Adds a record to *runs*, to the last of them if it follows that."""
    if runs and runs[-1].kind is kind and runs[-1].end == offset:
        runs[-1] = DifferenceRun(kind, runs[-1].begin, offset + 1)
    else:
        runs.append(DifferenceRun(kind, offset, offset + 1))


def _offset_of(source: DigestedRecord | None, target: DigestedRecord | None) -> int:
    record = target if source is None else source
    assert record is not None
    return record.offset
