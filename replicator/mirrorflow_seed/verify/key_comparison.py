"""Compares compacted partitions by the newest record of each key, with Spark's shuffle.

    read a part of a log ──> rows of digests ──> Spark sorts them by key and spills ──> compare each class of keys

The log cleaner removes older records and tombstones at different times on each side, so the comparison is of what a
consumer ends up with: the newest value of each key, where a tombstone equals no record. Each log is read once, whatever
its number of keys. Keys are divided into classes by their digest; a class is one window of the result.

A key may be written again between the plan and the comparison. The log cleaner then removes its older records, and the
newest lies after the planned end, so the key looks missing or different. Each such key is looked up between the planned
and the present end of both logs before it is reported; where it was written again, it is undecided.

A key whose newest source record may not be copied yet counts as behind. Without a stored offset, the newest record
that both sides have shows what was copied, because records are copied in order.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from mirrorflow_core.errors import BrokerError, ClusterError, CorruptRecordsError, NotAuthorizedError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.record_digests import DigestedRecord, RecordDigester
from mirrorflow_core.settings import SourceSettings
from mirrorflow_core.wire import error_codes
from mirrorflow_core.wire.batch import Batch, checksum_holds
from mirrorflow_core.wire.records import decode
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_requests import LATEST
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator import process
from mirrorflow_seed.verify.offset_windows import (
    Difference,
    DifferenceKind,
    VerifyRange,
    WindowResult,
    WindowTally,
)
from mirrorflow_seed.verify.range_comparison import (
    NAMED_RECORDS_MAX,
    UNREADABLE,
    CompareSettings,
    OpenSides,
    VerifyRangeResult,
    digesters,
    is_read_again,
    range_readers,
    with_details,
)
from mirrorflow_seed.verify.range_reader import DeletedMeanwhileError, OffsetRange, OffsetRangeReader

if TYPE_CHECKING:
    from pyarrow import RecordBatch

SIDES: Final = ("source", "target")
# Rows that a task combines before it passes them on: a key that is written often is then one row of many.
COMBINED_KEYS_MAX: Final = 100_000
UNSETTLED: Final = "Keys differ, and no stored offset shows whether their newest records were copied."
EXPIRED: Final = "Some keys exist on one side only; retention (cleanup.policy=compact,delete) may have deleted them on the other."
REWRITTEN: Final = "Keys differ that were written again since the comparison began, so a log cleaner may have removed what was compared; compare again."
# Keys that are looked up together: a task holds their digests, some 100 bytes each.
LOOKED_UP_KEYS_MAX: Final = 200_000
# A lookup repeats from its last end until a round takes less than this: no log cleaner removes a record within a second of
# its writing, because its segment must be closed first, and cleaners run every 15 s.
LOOKUP_ROUND_S: Final = 1.0
LOOKUP_ROUNDS_MAX: Final = 10
GROWS_TOO_FAST: Final = (
    "Keys differ, and the log grows faster than it is read, so it is unknown whether they were written again."
)
SCHEMA: Final = "number int, key_class int, key binary, side int, offset bigint, digest binary, is_tombstone boolean, report string"
GROUP: Final = ("number", "key_class")
ORDER: Final = ("key", "side", "offset")
_REPORT_KEY: Final = b""


class KeyRow(NamedTuple):
    """A row of the shuffle (`SCHEMA`): the newest record of a key in a part of a log, or a task's report about its part.

    A report has the empty key: JSON with what was read, and why not all of it.
    """

    number: int  # of the partition in the job
    key_class: int
    key: bytes  # its digest
    side: int  # index in SIDES
    offset: int = 0
    digest: bytes = b""
    is_tombstone: bool = False
    report: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLogPart:
    """A part of one side's log of a compacted partition. *number* is that of the partition in the job."""

    number: int
    side: str
    is_first: bool
    verify_range: VerifyRange  # of the partition, cut to this part; empty on the other side
    offsets: int  # of the side with more: both have about as many records, however wide their offsets are


def log_parts(ranges: Sequence[VerifyRange]) -> list[KeyLogPart]:
    """Cuts both logs of each of *ranges* into parts, each read by one task."""
    parts: list[KeyLogPart] = []
    for number, whole in enumerate(ranges):
        offsets = max(whole.source_to - whole.source_from, whole.target_to - whole.target_from)
        for side in SIDES:
            begin, end = (
                (whole.source_from, whole.source_to)
                if side == "source"
                else (whole.target_from, whole.target_to)
            )
            size = max(1, -(-(end - begin) // whole.log_parts))
            for start in range(begin, end, size) or (begin,):
                stop = min(start + size, end)
                cut = (
                    replace(whole, source_from=start, source_to=stop, target_from=0, target_to=0)
                    if side == "source"
                    else replace(whole, source_from=0, source_to=0, target_from=start, target_to=stop)
                )
                is_first = side == "source" and start == begin
                parts.append(
                    KeyLogPart(
                        number=number,
                        side=side,
                        is_first=is_first,
                        verify_range=cut,
                        offsets=offsets // whole.log_parts,
                    )
                )
    return parts


class NewestRecord(NamedTuple):
    """The newest record of a key on one side."""

    record: DigestedRecord
    is_tombstone: bool


class DifferingKey(NamedTuple):
    """A key whose newest records are not equal; a side without one, or with a tombstone that counts as none, is None."""

    key: bytes  # its digest
    source: DigestedRecord | None
    target: DigestedRecord | None


class KeyClassComparison:
    """Compares the newest records of the keys of one class, which are added one after the other."""

    def __init__(self, verify_range: VerifyRange, key_class: int, *, lists_all: bool = False) -> None:
        """*lists_all*: the result has the offsets of all differences."""
        self.behind = self.bytes_read = self.memory_bytes = 0
        self.seconds = 0.0
        self.verify_range = verify_range
        self._key_class = key_class
        self._tally = WindowTally(0, lists_all=lists_all)
        self._problem = ""
        self._differing: list[DifferingKey] = []
        self._undecided_keys: dict[bytes, str] = {}  # with the reason of each
        self._equal_to = 0  # the source offset after the newest record that both sides have

    def add_report(self, report: str) -> None:
        """Adds the report of a task that read a part of the log."""
        values = json.loads(report)
        self.bytes_read += values["bytes"]
        self.seconds += values["seconds"]
        self.memory_bytes = max(self.memory_bytes, values["memory"])
        self._problem = self._problem or values["problem"]

    def add(self, key: bytes, on_source: NewestRecord | None, on_target: NewestRecord | None) -> None:
        """Adds a key, by its digest, with its newest record on each side."""
        source = None if on_source is None or (on_source.is_tombstone and on_target is None) else on_source
        target = None if on_target is None or (on_target.is_tombstone and on_source is None) else on_target
        if source is None and target is None:
            return
        if source is not None and target is not None and source.record.digest == target.record.digest:
            self._equal_to = max(self._equal_to, source.record.offset + 1)
            self._tally.add_source(source.record)
            self._tally.add_target(target.record)
            return
        self._differing.append(
            DifferingKey(
                key, None if source is None else source.record, None if target is None else target.record
            )
        )

    @property
    def keys_to_look_up(self) -> frozenset[bytes]:
        """The digests of keys that would be reported as different; none if a log was not read to its end."""
        if self._problem:
            return frozenset()
        return frozenset(
            differing.key
            for differing in self._differing
            if not self._is_behind(differing) and not self._reason_of(differing)
        )

    def _is_behind(self, differing: DifferingKey) -> bool:
        return differing.source is not None and self.verify_range.is_behind(differing.source.offset)

    def _reason_of(self, differing: DifferingKey) -> str:
        """Returns why a key is undecided, whether or not it was written again; "" if it is not."""
        verify_range, (_, source, target) = self.verify_range, differing
        if source is not None and verify_range.copied_before is None and source.offset >= self._equal_to:
            return verify_range.open_transaction or UNSETTLED
        return EXPIRED if (source is None or target is None) and verify_range.can_expire else ""

    def leave_undecided(self, keys: Iterable[bytes], reason: str) -> None:
        """Sets the reason why these *keys* are not different."""
        self._undecided_keys |= dict.fromkeys(keys, reason)

    def add_cost(self, *, bytes_read: int, seconds: float) -> None:
        """Adds the cost of a lookup."""
        self.bytes_read += bytes_read
        self.seconds += seconds

    def result(self) -> WindowResult:
        """Returns the result of the class. If a log was not read to its end, no key counts as different."""
        verify_range, tally = self.verify_range, self._tally
        if self._problem:
            tally.leave_undecided(self._problem)
        else:
            for differing in sorted(self._differing, key=_source_first):
                self._add_differing(differing)
        return tally.result(
            verify_range, verify_range.source_from, verify_range.source_to, key_class=self._key_class
        )

    def _add_differing(self, differing: DifferingKey) -> None:
        tally = self._tally
        key, source, target = differing
        if self._is_behind(differing):
            self.behind += 1
            return
        if source is not None:
            tally.add_source(source)
        if target is not None:
            tally.add_target(target)
        if reason := self._reason_of(differing) or self._undecided_keys.get(key, ""):
            tally.leave_undecided(reason)
        elif target is None:
            tally.add_difference(DifferenceKind.MISSING, source, None)
        else:
            kind = DifferenceKind.EXTRA if source is None else DifferenceKind.CHANGED
            tally.add_difference(kind, source, target)


def _source_first(differing: DifferingKey) -> tuple[bool, int]:
    _, source, target = differing
    if source is not None:
        return False, source.offset
    assert target is not None
    return True, target.offset


def read_key_rows(
    parts: Sequence[KeyLogPart],
    compare_settings: CompareSettings,
    *,
    load: Callable[[], SourceSettings],
    open_sides: OpenSides,
) -> "Iterator[RecordBatch]":
    """Yields the rows of *parts* in a Spark task. Raises ClusterError, SettingError, OSError."""
    process.tune_memory()
    settings = load()
    with asyncio.Runner() as runner:
        rows = _rows(parts, settings, compare_settings, open_sides)
        while (some := runner.run(_next(rows))) is not None:
            yield _batch(some)


async def _next(rows: AsyncIterator[list[KeyRow]]) -> list[KeyRow] | None:
    return await anext(rows, None)


async def _rows(
    parts: Sequence[KeyLogPart],
    settings: SourceSettings,
    compare_settings: CompareSettings,
    open_sides: OpenSides,
) -> AsyncIterator[list[KeyRow]]:
    unread = iter(parts)
    async for sides in open_sides(settings, [part.verify_range for part in parts]):
        part, began_s, problem = next(unread), time.monotonic(), ""
        of_source, of_target = digesters(settings, part.verify_range, compare_settings)
        combiner = KeyCombiner(part, of_source if part.side == "source" else of_target)
        async with range_readers(sides, settings, part.verify_range) as readers:
            reader = readers[part.side]
            try:
                while (batches := await reader.more()) is not None:
                    for batch in batches:
                        combiner.add(batch)
                    if combiner.is_full:
                        yield combiner.take()
                    await compare_settings.pace(began_s, reader.bytes_read)
            except (DeletedMeanwhileError, CorruptRecordsError, NotAuthorizedError) as error:
                problem = str(error)
            except BrokerError as error:
                if error.retriable:
                    raise
                problem = str(error)
        yield combiner.take()
        yield report_rows(
            part, bytes_read=reader.bytes_read, seconds=time.monotonic() - began_s, problem=problem
        )


class KeyCombiner:
    """Keeps the newest record of each key of one part of a log, and makes rows of them."""

    def __init__(self, part: KeyLogPart, digester: RecordDigester) -> None:
        self._part = part
        self._digester = digester
        self._newest: dict[bytes, tuple[int, NewestRecord]] = {}
        self._classes = frozenset(part.verify_range.key_classes)

    @property
    def is_full(self) -> bool:
        """Whether it is time to `take` the rows."""
        return len(self._newest) >= COMBINED_KEYS_MAX

    def add(self, batch: Batch) -> None:
        """Adds the records of the next batch. Raises CorruptRecordsError."""
        part, digester = self._part, self._digester
        if not checksum_holds(batch):
            raise CorruptRecordsError(
                f"the batch at offset {batch.base_offset} of the {part.side} is damaged"
            )
        verify_range = part.verify_range
        begin, end = (
            (verify_range.source_from, verify_range.source_to)
            if part.side == "source"
            else (verify_range.target_from, verify_range.target_to)
        )
        for record in decode(batch):
            if not begin <= record.offset < end:
                continue
            key = digester.digest_key(record.key)
            key_class = int.from_bytes(key[:8]) % verify_range.key_class_count
            if key_class in self._classes:
                digested = DigestedRecord(record.offset, digester.digest(record))
                self._newest[key] = key_class, NewestRecord(digested, record.value is None)

    def take(self) -> list[KeyRow]:
        """Removes and returns the rows."""
        newest, self._newest = self._newest, {}
        number, side = self._part.number, SIDES.index(self._part.side)
        return [
            KeyRow(number, key_class, key, side, *latest.record, latest.is_tombstone)
            for key, (key_class, latest) in newest.items()
        ]


def report_rows(part: KeyLogPart, *, bytes_read: int, seconds: float, problem: str) -> list[KeyRow]:
    """Returns the report of a part for its first class of keys; of the first part, or with a problem, for all classes."""
    classes = part.verify_range.key_classes
    rows: list[KeyRow] = []
    for key_class in classes if part.is_first or problem else classes[:1]:
        report = {
            "bytes": 0 if rows else bytes_read,
            "seconds": 0.0 if rows else seconds,
            "memory": process.peak_bytes(),
            "problem": problem,
        }
        side = SIDES.index(part.side)
        rows.append(KeyRow(part.number, key_class, _REPORT_KEY, side, report=json.dumps(report)))
    return rows


def _batch(rows: Sequence[KeyRow]) -> "RecordBatch":
    import pyarrow as pa  # noqa: PLC0415 the extra `seed`

    kinds = (
        pa.int32(),
        pa.int32(),
        pa.binary(),
        pa.int32(),
        pa.int64(),
        pa.binary(),
        pa.bool_(),
        pa.string(),
    )
    columns = zip(*rows, strict=True) if rows else [()] * len(kinds)
    arrays = [pa.array(values, kind) for values, kind in zip(columns, kinds, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=KeyRow._fields)


def rows_of(batches: "Iterable[RecordBatch]") -> Iterator[KeyRow]:
    """Yields the rows of Arrow batches."""
    for batch in batches:
        yield from map(KeyRow._make, zip(*(column.to_pylist() for column in batch.columns), strict=True))


def compare_key_rows(
    rows: Iterable[KeyRow], ranges: Sequence[VerifyRange], *, lists_all: bool = False
) -> Iterator[KeyClassComparison]:
    """Yields the comparison of each class of keys; the rows are sorted by GROUP and ORDER."""
    for (number, key_class), of_class in groupby(rows, key=itemgetter(0, 1)):
        comparison = KeyClassComparison(ranges[number], key_class, lists_all=lists_all)
        for key, of_key in groupby(of_class, key=itemgetter(2)):
            newest: list[NewestRecord | None] = [None, None]
            for row in of_key:
                if row.report is None:
                    newest[row.side] = NewestRecord(DigestedRecord(row.offset, row.digest), row.is_tombstone)
                else:
                    comparison.add_report(row.report)
            if key != _REPORT_KEY:
                comparison.add(key, *newest)
        yield comparison


async def settle_key_classes(
    comparisons: Iterable[KeyClassComparison],
    compare_settings: CompareSettings,
    *,
    load: Callable[[], SourceSettings],
    open_sides: OpenSides,
) -> list[VerifyRangeResult]:
    """Returns the results of *comparisons*, after their differing keys were looked up. Raises ClusterError, SettingError."""
    results: list[tuple[VerifyRange, VerifyRangeResult]] = []
    waiting: list[KeyClassComparison] = []
    keys = 0

    async def settle() -> None:
        await look_up_keys(waiting, compare_settings, load, open_sides)
        results.extend((comparison.verify_range, _result_of(comparison)) for comparison in waiting)
        waiting.clear()

    for comparison in comparisons:
        waiting.append(comparison)
        keys += len(comparison.keys_to_look_up)
        if keys >= LOOKED_UP_KEYS_MAX:
            await settle()
            keys = 0
    await settle()
    return await add_record_details(results, load, open_sides, keeps_keys=compare_settings.keeps_keys)


def _result_of(comparison: KeyClassComparison) -> VerifyRangeResult:
    window = comparison.result()
    return VerifyRangeResult(
        windows=(window,),
        behind=comparison.behind,
        bytes_read=comparison.bytes_read,
        seconds=comparison.seconds,
        memory_bytes=comparison.memory_bytes,
    )


async def look_up_keys(
    comparisons: Sequence[KeyClassComparison],
    compare_settings: CompareSettings,
    load: Callable[[], SourceSettings],
    open_sides: OpenSides,
) -> None:
    """Leaves differing keys undecided that were written again after the planned end of either side.

    Each partition is read once from its planned to its present end, whatever the number of its classes.
    """
    by_range: dict[VerifyRange, list[KeyClassComparison]] = {}
    for comparison in comparisons:
        if comparison.keys_to_look_up:
            by_range.setdefault(comparison.verify_range, []).append(comparison)
    if not by_range:
        return
    settings, unread = load(), iter(by_range.items())
    async for sides in open_sides(settings, [_after(verify_range) for verify_range in by_range]):
        verify_range, of_range = next(unread)
        keys = frozenset[bytes]().union(*(comparison.keys_to_look_up for comparison in of_range))
        lookup = KeyLookup(sides, settings, verify_range, keys, compare_settings)
        try:
            await lookup.run()
        except (DeletedMeanwhileError, CorruptRecordsError, NotAuthorizedError) as error:
            lookup.problem = str(error)
        for comparison in of_range:
            comparison.leave_undecided(lookup.rewritten, REWRITTEN)
            if lookup.problem:
                unsettled = comparison.keys_to_look_up - lookup.rewritten
                comparison.leave_undecided(unsettled, lookup.problem)
        of_range[0].add_cost(bytes_read=lookup.bytes_read, seconds=time.monotonic() - lookup.began_s)


def _after(verify_range: VerifyRange) -> VerifyRange:
    """Returns the empty range at the planned ends."""
    return replace(verify_range, source_from=verify_range.source_to, target_from=verify_range.target_to)


class KeyLookup:
    """Looks up *keys*, by their digests, after the planned ends of *verify_range*; `rewritten` are those that it finds."""

    def __init__(
        self,
        sides: Mapping[str, Cluster],
        settings: SourceSettings,
        verify_range: VerifyRange,
        keys: frozenset[bytes],
        compare_settings: CompareSettings,
    ) -> None:
        self.rewritten: set[bytes] = set()
        self.problem = ""  # why it is unknown whether the other keys were written again
        self.bytes_read = 0
        self.began_s = time.monotonic()
        self._sides = sides
        self._keys = keys
        self._compare_settings = compare_settings
        self._digester, _ = digesters(settings, verify_range, compare_settings)
        self._logs = {
            "source": (
                TopicPartition(verify_range.topic, verify_range.partition),
                verify_range.source_to,
                settings.read_committed,
            ),
            "target": (
                TopicPartition(verify_range.target_topic, verify_range.partition),
                verify_range.target_to,
                True,
            ),
        }

    async def run(self) -> None:
        """Reads both logs up to their present ends. Raises ClusterError, CorruptRecordsError, DeletedMeanwhileError."""
        for side, (partition, offset, read_committed) in self._logs.items():
            await self._read_to_end(self._sides[side], partition, offset, read_committed=read_committed)

    async def _read_to_end(
        self, cluster: Cluster, partition: TopicPartition, offset: int, *, read_committed: bool
    ) -> None:
        for _ in range(LOOKUP_ROUNDS_MAX):
            round_began_s = time.monotonic()
            listed = (await admin.list_offsets(cluster, [partition], LATEST, read_committed))[partition]
            if listed.error:
                self.problem = str(
                    error_codes.error_for(
                        listed.error, cluster=cluster.alias, request="ListOffsets", subject=str(partition)
                    )
                )
                return
            end = listed.offset
            if end <= offset:
                return
            await self._read(cluster, partition, OffsetRange(offset, end), read_committed=read_committed)
            if self._keys <= self.rewritten or time.monotonic() - round_began_s < LOOKUP_ROUND_S:
                return
            offset = end
        self.problem = GROWS_TOO_FAST

    async def _read(
        self, cluster: Cluster, partition: TopicPartition, offsets: OffsetRange, *, read_committed: bool
    ) -> None:
        reader = OffsetRangeReader(cluster, partition, offsets, read_committed=read_committed)
        read_before = self.bytes_read
        try:
            while (batches := await reader.more()) is not None:
                for batch in batches:
                    self._find(batch, offsets.start)
                self.bytes_read = read_before + reader.bytes_read
                await self._compare_settings.pace(self.began_s, self.bytes_read)
        finally:
            await reader.close()

    def _find(self, batch: Batch, begin: int) -> None:
        keys, digest_key = self._keys, self._digester.digest_key
        for record in decode(batch):
            if record.offset >= begin and (key := digest_key(record.key)) in keys:
                self.rewritten.add(key)


async def add_record_details(
    results: Sequence[tuple[VerifyRange, VerifyRangeResult]],
    load: Callable[[], SourceSettings],
    open_sides: OpenSides,
    *,
    keeps_keys: bool,
) -> list[VerifyRangeResult]:
    """Returns *results* with what their first records that differ are, which are read again, as far as they can be read."""
    differences = [list(result.windows[0].differences) for _, result in results]
    read_again = [
        (number, index, _spot(verify_range, difference))
        for number, (verify_range, _) in enumerate(results)
        for index, difference in enumerate(differences[number])
        if is_read_again(difference, keeps_keys=keeps_keys)
    ][:NAMED_RECORDS_MAX]
    if read_again:
        unread = iter(read_again)
        with contextlib.suppress(ClusterError, *UNREADABLE):
            settings = load()
            async for sides in open_sides(settings, [spot for _, _, spot in read_again]):
                number, index, spot = next(unread)
                with contextlib.suppress(*UNREADABLE):
                    differences[number][index] = await with_details(
                        differences[number][index], sides, settings, spot, keeps_keys=keeps_keys
                    )
    return [
        replace(result, windows=(replace(result.windows[0], differences=tuple(named)),))
        for (_, result), named in zip(results, differences, strict=True)
    ]


def _spot(verify_range: VerifyRange, difference: Difference) -> VerifyRange:
    """Returns the range of the two records of *difference*; it is empty on a side that has no such record."""
    source, target = difference.source_offset, difference.target_offset
    return replace(
        verify_range,
        source_from=max(source, 0),
        source_to=source + 1,
        target_from=max(target, 0),
        target_to=target + 1,
    )
