"""Encodes Arrow record batches as the batches of a log: as `wire.records.encode_as_logged`, without an object for each record.

Each field of all records is encoded at once. Numbers are encoded by tables of varints, up to two bytes in each step.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from mirrorflow_core.wire.batch import new_batch, seal_as_logged
from mirrorflow_core.wire.codecs import compress

# The batch size of producers tuned for throughput; a copier splits batches that the target refuses.
BATCH_BYTES: Final = 256 << 10
BATCH_RECORDS: Final = 5_000
# Offsets that a batch may span: its deltas have 32 bits, and compaction leaves gaps of any size.
BATCH_OFFSETS: Final = 1 << 30
_DIGIT_BITS: Final = 14  # of a number, in two bytes of its varint
_DIGITS: Final = 1 << _DIGIT_BITS


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedBatch:
    """The records of one batch, encoded and not compressed."""

    base_offset: int
    last_offset: int
    base_timestamp: int
    max_timestamp: int
    count: int
    body: memoryview

    def encode(self, *, codec: int, next_offset: int) -> bytearray:
        """Returns the batch as a log stores it, up to *next_offset*. It has no producer and no leader epoch."""
        data = new_batch(
            compress(codec, bytes(self.body)) if codec else self.body,
            attributes=codec,
            base_timestamp=self.base_timestamp,
            max_timestamp=self.max_timestamp,
            count=self.count,
        )
        return seal_as_logged(data, base_offset=self.base_offset, next_offset=next_offset)


def log_batches(columns: Any) -> Iterator[EncodedBatch]:
    """Yields the rows of an Arrow record batch with `record_columns.schema` as batches; offsets increase.

    A batch has at most BATCH_RECORDS records and BATCH_OFFSETS offsets, and none after it has BATCH_BYTES of encoded keys, values and
    headers.
    """
    import pyarrow as pa  # noqa: PLC0415 the extra `seed`
    import pyarrow.compute as pc  # noqa: PLC0415

    if not columns.num_rows:
        return
    offsets, timestamps = columns.column("offset"), columns.column("timestamp_ms")
    fields = _fields(columns.column("key")), _fields(columns.column("value")), _headers(columns)
    sizes = [_size(pieces) for pieces in fields]
    ends = _ends(_numbers(offsets), _numbers(pc.cumulative_sum(pc.add(pc.add(*sizes[:2]), sizes[2]))))
    starts = [0, *ends[:-1]]
    base_offsets, base_timestamps = (
        _repeated(_numbers(column), starts, ends) for column in (offsets, timestamps)
    )
    shifts = _varints(pc.subtract(timestamps, base_timestamps))
    deltas = _varints(pc.subtract(offsets, base_offsets))
    length = pc.add(_size(shifts), pc.add(_size(deltas), 1))  # 1 for the attributes
    for size in sizes:
        length = pc.add(length, size)
    attributes = pa.scalar(b"\0", pa.binary())
    encoded = _joined(
        [*_varints(length), attributes, *shifts, *deltas, *(p for pieces in fields for p in pieces)]
    )
    _, bounds, content = encoded.buffers()
    places, body = memoryview(bounds).cast("i"), memoryview(content)
    for start, end in zip(starts, ends, strict=True):
        yield EncodedBatch(
            base_offset=base_offsets[start].as_py(),
            last_offset=offsets[end - 1].as_py(),
            base_timestamp=base_timestamps[start].as_py(),
            max_timestamp=pc.max(timestamps.slice(start, end - start)).as_py(),
            count=end - start,
            body=body[places[start] : places[end]],
        )


def _ends(offsets: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """Returns the row after each batch; *sizes* are those of all records up to each."""
    ends, start, before = [], 0, 0
    while start < len(offsets):
        start = min(
            start + BATCH_RECORDS,
            bisect_left(offsets, offsets[start] + BATCH_OFFSETS, start),
            bisect_left(sizes, before + BATCH_BYTES, start) + 1,
            len(offsets),
        )
        before = sizes[start - 1]
        ends.append(start)
    return ends


def _numbers(column: Any) -> memoryview:
    """Returns the numbers of a column of INT64 without nulls."""
    return memoryview(column.buffers()[1]).cast("q")[column.offset :][: len(column)]


def _repeated(numbers: memoryview, starts: Sequence[int], ends: Sequence[int]) -> Any:
    """Returns, for each row of each batch, the number of the batch's first row."""
    import pyarrow as pa  # noqa: PLC0415 see above

    rows = array("q")
    for start, end in zip(starts, ends, strict=True):
        rows += array("q", (numbers[start],)) * (end - start)
    return pa.Array.from_buffers(pa.int64(), len(rows), [None, pa.py_buffer(rows)])


def _fields(column: Any) -> list[Any]:
    """Returns the pieces of a field: its length, -1 for null, and its bytes."""
    import pyarrow as pa  # noqa: PLC0415 see above
    import pyarrow.compute as pc  # noqa: PLC0415

    lengths = pc.fill_null(pc.binary_length(column), pa.scalar(-1, pa.int32()))
    return [*_varints(lengths.cast(pa.int64())), column.cast(pa.binary())]


def _headers(columns: Any) -> list[Any]:
    """Returns the pieces of the headers: their number, and all of them; or what Kafka has written."""
    import pyarrow as pa  # noqa: PLC0415 see above
    import pyarrow.compute as pc  # noqa: PLC0415

    headers, raw = columns.column("headers"), columns.column("headers_raw")
    pairs = headers.flatten()
    if not len(pairs):
        return [pa.scalar(b"\0", pa.binary())]
    counts = pc.list_value_length(headers)
    names, contents = pairs.flatten()
    flat = _joined([*_fields(names), *_fields(contents)])
    ends = pc.cumulative_sum(counts)
    lists = pa.ListArray.from_arrays(pa.concat_arrays([pa.array([0], pa.int32()), ends]), flat)
    encoded = _joined(
        [*_varints(counts.cast(pa.int64())), pc.binary_join(lists, pa.scalar(b"", pa.binary()))]
    )
    return [pc.coalesce(raw, encoded)]


def _varints(numbers: Any) -> list[Any]:
    """Returns the pieces of the varint of each number: one, unless a number has more than two bytes."""
    import pyarrow as pa  # noqa: PLC0415 see above
    import pyarrow.compute as pc  # noqa: PLC0415

    unsigned = pa.uint64()
    signs = pc.negate(pc.less(numbers, 0).cast(pa.int64()))  # Arrow does not shift an INT64 by 63 bits
    zigzag = pc.bit_wise_xor(pc.shift_left(numbers, 1), signs).view(unsigned)
    last, others = _digit_tables()
    pieces: list[Any] = []
    while pc.max(zigzag).as_py() >= _DIGITS:
        continues = pc.greater_equal(zigzag, pa.scalar(_DIGITS, unsigned))
        digit = pc.bit_wise_and(zigzag, pa.scalar(_DIGITS - 1, unsigned))
        pieces.append(pc.if_else(continues, others.take(digit), last.take(digit)))
        rest = pc.shift_right(zigzag, pa.scalar(_DIGIT_BITS, unsigned))
        zigzag = pc.if_else(continues, rest, pa.scalar(None, unsigned))
    return [*pieces, last.take(zigzag)]


@cache
def _digit_tables() -> tuple[Any, Any]:
    """Returns the bytes of each number of 14 bits as the last ones of a varint, and as others: those are always two."""
    import pyarrow as pa  # noqa: PLC0415 see above

    last = [bytes((n,)) if n < 128 else bytes((n & 127 | 128, n >> 7)) for n in range(_DIGITS)]
    others = [bytes((n & 127 | 128, n >> 7 | 128)) for n in range(_DIGITS)]
    return pa.array(last, pa.binary()), pa.array(others, pa.binary())


def _size(pieces: Sequence[Any]) -> Any:
    """Returns the size of each record's pieces, in bytes, as INT64."""
    import pyarrow as pa  # noqa: PLC0415 see above
    import pyarrow.compute as pc  # noqa: PLC0415

    total = pa.scalar(0, pa.int64())
    for piece in pieces:
        length = pc.fill_null(pc.binary_length(piece), pa.scalar(0, pa.int32()))
        total = pc.add(total, length)
    return total


def _joined(pieces: Sequence[Any]) -> Any:
    """Returns the pieces of each record, one after the other; a null is nothing."""
    import pyarrow as pa  # noqa: PLC0415 see above
    import pyarrow.compute as pc  # noqa: PLC0415

    return pc.binary_join_element_wise(
        *pieces, pa.scalar(b"", pa.binary()), null_handling="replace", null_replacement=""
    )
