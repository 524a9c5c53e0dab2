"""Compares one offset range of source and target in a Spark task, in bounded memory, and returns its windows.

`InOrderComparison` compares record by record. It receives the batches of both sides in order. Where both sides are at
a batch boundary and the two batches have the same bytes, their records are equal and are not decoded. Otherwise it
compares digests until both sides are at a batch boundary again. Where digests differ, `find_resync` finds where both
sides agree again, so that one lost record does not make all later records different.

A range begins and ends at matching records on both sides (`partition_planner`), and each record of either side within
it is counted in exactly one window. So no record between two ranges is missed.

An error of one range (a damaged batch, records deleted meanwhile, no permission) makes its windows undecided; other
ranges continue. An unusable cluster fails the task, which Spark retries.
"""

import asyncio
import contextlib
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final, NamedTuple

from mirrorflow_core.errors import BrokerError, ClusterError, CorruptRecordsError, NotAuthorizedError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.record_digests import DigestedRecord, RecordDigester
from mirrorflow_core.settings import SourceSettings
from mirrorflow_core.wire.batch import CODEC_MASK, HEADER_BYTES, LOG_APPEND_TIME_BIT, Batch, checksum_holds
from mirrorflow_core.wire.records import Record, decode
from mirrorflow_kafka.client.cluster import Cluster, connect_both
from mirrorflow_replicator import process
from mirrorflow_replicator.config.plugins import make_naming
from mirrorflow_replicator.config.providers import Resolver
from mirrorflow_seed.verify.offset_windows import (
    Difference,
    DifferenceKind,
    VerifyRange,
    WindowResult,
    WindowTally,
)
from mirrorflow_seed.verify.range_reader import DeletedMeanwhileError, OffsetRange, OffsetRangeReader

TARGET_ENDS: Final = "The target ends here, and no stored offset shows whether this was copied."
# Records that differ and are read again for their fields and keys, in each range.
NAMED_RECORDS_MAX: Final = 20
SPOT_RESPONSE_BYTES: Final = 32 << 10  # brokers return the first batch whole whatever its size
# Raised for one record that differs, where others can be read: it then has neither fields nor key.
UNREADABLE: Final = (DeletedMeanwhileError, CorruptRecordsError)
# Length of a key that a result keeps, enough to recognize it. A record's key may have megabytes.
KEY_TEXT_MAX: Final = 200
# Consecutive records that must agree, or all up to the end: a single record may equal another one.
RESYNC_RECORDS: Final = 3
# Records searched on each side, few at first: most differences are one record. The last level takes 5 MB.
RESYNC_LEVELS: Final = (16, 512, 16_384)
# Yields the clusters "source" and "target" with the records of each range, one after the other.
OpenSides = Callable[[SourceSettings, Sequence[VerifyRange]], AsyncIterator[Mapping[str, Cluster]]]
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

    def results(self, *, reason: str = "") -> list[WindowResult]:
        """Returns the windows in order; with a *reason* for an early end, the rest are undecided."""
        size, verify_range = self._range.window_offsets, self._range
        if reason:
            for index in range(self._cursor // size, -(-verify_range.source_to // size)):
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


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyRangeResult:
    """The windows of a range and their cost, without payload."""

    windows: tuple[WindowResult, ...]
    behind: int  # records that the target may not have yet
    bytes_read: int
    seconds: float
    memory_bytes: int  # peak of the process


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareSettings:
    """Settings of the comparison, without secrets. *bytes_per_second* is of both sides; None: no limit."""

    run_id: str
    decode_all: bool = False
    bytes_per_second: float | None = None
    lists_all: bool = False  # windows have the offsets of all their differences
    keeps_keys: bool = False  # the first records that differ have their keys

    async def pace(self, began_s: float, bytes_read: int) -> None:
        """Waits until *bytes_read* since *began_s* (`time.monotonic`) keep to the rate."""
        if self.bytes_per_second is not None:
            await asyncio.sleep(max(0.0, began_s + bytes_read / self.bytes_per_second - time.monotonic()))


async def cluster_sides(
    settings: SourceSettings, ranges: Sequence[VerifyRange]
) -> AsyncIterator[Mapping[str, Cluster]]:
    """Yields the same connections for each of *ranges* (`OpenSides`). Raises ClusterError, SettingError."""
    async with connect_clusters(settings) as sides:
        for _ in ranges:
            yield sides


async def compare_ranges(
    settings: SourceSettings, ranges: Iterable[VerifyRange], compare_settings: CompareSettings
) -> list[VerifyRangeResult]:
    """Compares *ranges* one after the other over the same connections. Raises ClusterError, SettingError."""
    async with connect_clusters(settings) as sides:
        return [
            await compare_range(sides, settings, verify_range, compare_settings) for verify_range in ranges
        ]


@contextlib.asynccontextmanager
async def connect_clusters(settings: SourceSettings) -> AsyncIterator[Mapping[str, Cluster]]:
    """Yields connections to "source" and "target", closed at the end. Raises ClusterError, SettingError."""
    both = await connect_both(
        settings.source_consumer, settings.target_admin, resolve=Resolver(settings.providers).resolve_client
    )
    try:
        yield dict(zip(("source", "target"), both, strict=True))
    finally:
        await asyncio.gather(*(cluster.close() for cluster in both))


@contextlib.asynccontextmanager
async def range_readers(
    sides: Mapping[str, Cluster], settings: SourceSettings, verify_range: VerifyRange
) -> AsyncIterator[Mapping[str, OffsetRangeReader]]:
    """Yields started readers of both sides of the range."""
    readers = {
        "source": OffsetRangeReader(
            sides["source"],
            TopicPartition(verify_range.topic, verify_range.partition),
            OffsetRange(verify_range.source_from, verify_range.source_to),
            read_committed=settings.read_committed,
        ),
        # Records of the flow's aborted transactions are not part of the copy.
        "target": OffsetRangeReader(
            sides["target"],
            TopicPartition(verify_range.target_topic, verify_range.partition),
            OffsetRange(verify_range.target_from, verify_range.target_to),
            read_committed=True,
        ),
    }
    try:
        for reader in readers.values():
            reader.start()
        yield readers
    finally:
        await asyncio.gather(*(reader.close() for reader in readers.values()))


def digesters(
    settings: SourceSettings, verify_range: VerifyRange, compare_settings: CompareSettings
) -> tuple[RecordDigester, RecordDigester]:
    """Returns what computes the digests of a range's source records, after the flow's transforms, and target records."""
    run_id, timestamps = compare_settings.run_id, verify_range.timestamps
    edits = make_naming(settings).header_edits(verify_range.topic)
    return (
        RecordDigester(run_id, verify_range.partition, edits=edits, timestamps=timestamps),
        RecordDigester(run_id, verify_range.partition, timestamps=timestamps),
    )


async def compare_range(
    sides: Mapping[str, Cluster],
    settings: SourceSettings,
    verify_range: VerifyRange,
    compare_settings: CompareSettings,
) -> VerifyRangeResult:
    """Compares one range between connected clusters. Raises ClusterError."""
    began = time.perf_counter()
    of_source, of_target = digesters(settings, verify_range, compare_settings)
    comparison = InOrderComparison(
        verify_range,
        source=of_source,
        target=of_target,
        decode_all=compare_settings.decode_all,
        lists_all=compare_settings.lists_all,
    )
    reason = ""
    async with range_readers(sides, settings, verify_range) as readers:
        try:
            await _run_comparison(comparison, readers, compare_settings)
        except (DeletedMeanwhileError, CorruptRecordsError, NotAuthorizedError) as error:
            reason = str(error)
        except BrokerError as error:
            if error.retriable:
                raise
            reason = str(error)
        bytes_read = sum(reader.bytes_read for reader in readers.values())
    windows = comparison.results(reason=reason)
    with contextlib.suppress(ClusterError):
        windows = await _with_details(
            windows, sides, settings, verify_range, keeps_keys=compare_settings.keeps_keys
        )
    return VerifyRangeResult(
        windows=tuple(windows),
        behind=comparison.behind,
        bytes_read=bytes_read,
        seconds=time.perf_counter() - began,
        memory_bytes=process.peak_bytes(),
    )


async def _with_details(
    windows: list[WindowResult],
    sides: Mapping[str, Cluster],
    settings: SourceSettings,
    verify_range: VerifyRange,
    *,
    keeps_keys: bool,
) -> list[WindowResult]:
    """Returns *windows* with what the first records that differ are, as far as they can be read again. Raises ClusterError."""
    described: list[WindowResult] = []
    left = NAMED_RECORDS_MAX
    for window in windows:
        differences = list(window.differences)
        for index, difference in enumerate(differences):
            if left and is_read_again(difference, keeps_keys=keeps_keys):
                left -= 1
                with contextlib.suppress(*UNREADABLE):
                    differences[index] = await with_details(
                        difference, sides, settings, verify_range, keeps_keys=keeps_keys
                    )
        described.append(replace(window, differences=tuple(differences)))
    return described


def is_read_again(difference: Difference, *, keeps_keys: bool) -> bool:
    """Whether a record that differs is read again: to name its fields, or for its key."""
    return keeps_keys or difference.kind is DifferenceKind.CHANGED


async def with_details(
    difference: Difference,
    sides: Mapping[str, Cluster],
    settings: SourceSettings,
    verify_range: VerifyRange,
    *,
    keeps_keys: bool,
) -> Difference:
    """Returns *difference* with the fields in which a changed record differs, and its key if *keeps_keys*.

    The sides that have the record are read again. Raises ClusterError, and UNREADABLE if this record cannot be read.
    """
    source = target = None
    if difference.source_offset >= 0:
        source = await _record_at(
            sides["source"],
            TopicPartition(verify_range.topic, verify_range.partition),
            difference.source_offset,
            read_committed=settings.read_committed,
        )
    if difference.kind is DifferenceKind.CHANGED or difference.source_offset < 0:
        target = await _record_at(
            sides["target"],
            TopicPartition(verify_range.target_topic, verify_range.partition),
            difference.target_offset,
            read_committed=True,
        )
    record = source or target
    if keeps_keys and record is not None:
        difference = replace(difference, key=key_text(record.key))
    if source is None or target is None:
        return difference
    if edits := make_naming(settings).header_edits(verify_range.topic):
        source = source._replace(headers=edits.edited(source.headers))
    return replace(difference, fields=differing_fields(source, target, timestamps=verify_range.timestamps))


def key_text(key: bytes | None) -> str | None:
    """Returns a record's key as printable text of at most KEY_TEXT_MAX characters and an ellipsis, in hex where it is no text.

    A text that begins like hex is written in hex, too, so that it is not taken for other bytes.
    """
    if key is None:
        return None
    try:
        text = bytes(key).decode()
    except UnicodeDecodeError:
        text = ""
    if not (text or not key) or not text.isprintable() or text.startswith("0x"):
        text = f"0x{bytes(key[:KEY_TEXT_MAX]).hex()}"
    return text if len(text) <= KEY_TEXT_MAX else f"{text[:KEY_TEXT_MAX]}\N{HORIZONTAL ELLIPSIS}"


def differing_fields(source: Record, target: Record, *, timestamps: bool) -> tuple[str, ...]:
    """Returns the names of the fields in which two records differ."""
    names = ("key", "value", "headers", "timestamp") if timestamps else ("key", "value", "headers")
    return tuple(name for name in names if getattr(source, name) != getattr(target, name))


async def _record_at(
    cluster: Cluster, partition: TopicPartition, offset: int, *, read_committed: bool
) -> Record | None:
    reader = OffsetRangeReader(
        cluster,
        partition,
        OffsetRange(offset, offset + 1),
        read_committed=read_committed,
        response_bytes=SPOT_RESPONSE_BYTES,
        reads_ahead=False,
    )
    try:
        while (batches := await reader.more()) is not None:
            for batch in batches:
                for record in decode(batch):
                    if record.offset == offset:
                        return record
    finally:
        await reader.close()
    return None


async def _run_comparison(
    comparison: InOrderComparison,
    readers: Mapping[str, OffsetRangeReader],
    compare_settings: CompareSettings,
) -> None:
    began = time.monotonic()
    while any(needs := comparison.advance()):
        for side, is_needed in zip(("source", "target"), needs, strict=True):
            if is_needed:
                batches = await readers[side].more()
                if batches is None:
                    comparison.end(**{side: True})
                else:
                    comparison.feed(**{side: batches})
        await compare_settings.pace(began, sum(reader.bytes_read for reader in readers.values()))
