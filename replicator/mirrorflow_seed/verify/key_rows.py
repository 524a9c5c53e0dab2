"""Reads the logs of compacted partitions in Spark tasks, as rows of digests that Spark sorts by key and spills.

A row has the newest record of a key in a part of a log. A part is read by one task; parts of one log are read by several.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from mirrorflow_core.errors import BrokerError, CorruptRecordsError, NotAuthorizedError
from mirrorflow_core.record_digests import DigestedRecord, RecordDigester
from mirrorflow_core.settings import SourceSettings
from mirrorflow_core.wire.batch import Batch, checksum_holds
from mirrorflow_core.wire.records import decode
from mirrorflow_replicator import process
from mirrorflow_seed.verify.compared_sides import CompareSettings, OpenSides, digesters, range_readers
from mirrorflow_seed.verify.offset_windows import VerifyRange
from mirrorflow_seed.verify.range_reader import DeletedMeanwhileError

if TYPE_CHECKING:
    from pyarrow import RecordBatch

SIDES: Final = ("source", "target")
# Rows that a task combines before it passes them on: a key that is written often is then one row of many.
COMBINED_KEYS_MAX: Final = 100_000
SCHEMA: Final = "number int, key_class int, key binary, side int, offset bigint, digest binary, is_tombstone boolean, report string"
GROUP: Final = ("number", "key_class")
ORDER: Final = ("key", "side", "offset")
REPORT_KEY: Final = b""


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
        part, began_s = next(unread), time.monotonic()
        problem: str | None = None
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


def report_rows(part: KeyLogPart, *, bytes_read: int, seconds: float, problem: str | None) -> list[KeyRow]:
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
        rows.append(KeyRow(part.number, key_class, REPORT_KEY, side, report=json.dumps(report)))
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
