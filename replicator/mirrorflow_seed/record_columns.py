"""Converts records to Arrow columns and back: from the batches of a log without an object for each record.

The columns are those of an archive's files (`archive.parquet_files`), and the columns of tables are made of them. A chunk of
records is decoded at once, because a call of Arrow costs as much as some hundred bytes of records.
"""

import itertools
from array import array
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

from mirrorflow_core.errors import CorruptRecordsError
from mirrorflow_core.wire import primitives
from mirrorflow_core.wire.batch import HEADER_BYTES, Batch
from mirrorflow_core.wire.codecs import decompress
from mirrorflow_core.wire.records import Header, Record, decode, encode_body, read_headers

CREATE_TIME: Final = 0
LOG_APPEND_TIME: Final = 1
NO_TIMESTAMP_TYPE: Final = -1
# The last millisecond of the year 9999: Python has no later time, and the text of an hour has four digits for the year.
TIMESTAMP_MS_MAX: Final = 253_402_300_799_999
OFFSET_MIN: Final = -(1 << 63)
OFFSET_MAX: Final = (1 << 63) - 1
# Five varints of a corrupt record may be read after the end of all records.
PADDING_BYTES: Final = 64


@cache
def schema() -> Any:
    """Returns the schema of Arrow record batches: that of a file without `timestamp`, which `FileWriter` adds."""
    import pyarrow as pa  # noqa: PLC0415 the extra `seed`

    header = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])
    return pa.schema(
        [
            pa.field("offset", pa.int64(), nullable=False),
            pa.field("timestamp_ms", pa.int64(), nullable=False),
            pa.field("timestamp_type", pa.int32(), nullable=False),
            pa.field("key", pa.binary()),
            pa.field("value", pa.binary()),
            pa.field("headers", pa.list_(header), nullable=False),
            pa.field("headers_raw", pa.binary()),
        ]
    )


def timestamp_type(batch: Batch) -> int:
    """Returns the timestamp type of a batch, as Java's TimestampType."""
    if batch.magic == 0:
        return NO_TIMESTAMP_TYPE
    return LOG_APPEND_TIME if batch.is_log_append_time else CREATE_TIME


class ColumnBuilder:
    """Decodes batches to one Arrow record batch: as `wire.records.decode`, without an object for each record.

    `add` follows the lengths from record to record; `finish` decodes each field of all records at once.
    """

    def __init__(self, *, start: int = OFFSET_MIN, end: int = OFFSET_MAX) -> None:
        """The result has the records with offsets from *start* up to *end*."""
        self._start, self._end = start, end
        self._body = bytearray()  # the records of all batches, uncompressed
        # An element for each record: where it begins, after its length, and where it ends; and what its batch has.
        self._begins, self._ends = array("q"), array("q")
        self._base_offsets, self._base_timestamps, self._kinds = array("q"), array("q"), array("i")

    @property
    def size_bytes(self) -> int:
        """The size of the added records as in an uncompressed batch."""
        return len(self._body)

    def add(self, batch: Batch) -> None:
        """Adds the records of *batch*, whose checksum holds. Raises CorruptRecordsError."""
        packed: bytes | memoryview
        if batch.magic < 2:
            records = decode(batch)
            base_offset, base_timestamp, count = records[0].offset, records[0].timestamp, len(records)
            packed = encode_body(records, base_offset=base_offset, base_timestamp=base_timestamp)
        else:
            base_offset, count = batch.base_offset, batch.count
            base_timestamp = batch.max_timestamp if batch.is_log_append_time else batch.base_timestamp
            packed = batch.data[HEADER_BYTES:]
            if batch.codec:
                packed = decompress(batch.codec, packed)
        self._add_bounds(packed, count, base_offset)
        self._base_offsets += array("q", (base_offset,)) * count
        self._base_timestamps += array("q", (base_timestamp,)) * count
        self._kinds += array("i", (timestamp_type(batch),)) * count

    def _add_bounds(self, packed: bytes | memoryview, count: int, base_offset: int) -> None:
        body, begins, ends = self._body, self._begins, self._ends
        index = len(body)
        body += packed
        try:
            for _ in range(count):
                twice = body[index]  # the length; an odd number is a negative length
                index += 1
                if twice > 127:
                    second = body[index]
                    if second > 127:
                        length, index = primitives.decode_varint(body, index - 1)
                        twice = 2 * length if length >= 0 else 1
                    else:  # decoded here: a call takes longer than the rest of the loop
                        twice += (second - 1) << 7
                        index += 1
                if twice & 1:
                    raise CorruptRecordsError(
                        f"a record in the batch at offset {base_offset} has a negative length"
                    )
                begins.append(index)
                index += twice >> 1
                ends.append(index)
        except (IndexError, OverflowError) as error:
            raise CorruptRecordsError(f"the batch at offset {base_offset} ends too early") from error
        if index != len(body):
            raise CorruptRecordsError(
                f"the batch at offset {base_offset} does not end with the last of its {count} records"
            )

    def finish(self) -> Any:
        """Returns the records, possibly none, as an Arrow record batch with `schema`. It is called once.

        Raises CorruptRecordsError.
        """
        import pyarrow as pa  # noqa: PLC0415 the extra `seed`
        import pyarrow.compute as pc  # noqa: PLC0415

        if not self._begins:
            return pa.RecordBatch.from_pylist([], schema=schema())
        limit = len(self._body)
        self._body += bytes(PADDING_BYTES)
        body = pa.py_buffer(self._body)
        octets = pa.Array.from_buffers(pa.uint8(), len(self._body), [None, body])

        def after(positions: Any, sizes: Any) -> Any:
            """Returns where fields end; a field that would end after the last record ends there."""
            present = pc.min_element_wise(pc.max_element_wise(sizes, 0), limit)
            return pc.min_element_wise(pc.add(positions, present), limit)

        begins, ends = _int64s(self._begins), _int64s(self._ends)
        # The first byte of a record has its attributes, which Kafka does not use.
        shifts, positions = self._varints(octets, pc.add(begins, 1))
        deltas, positions = self._varints(octets, positions)
        key_sizes, key_at = self._varints(octets, positions)
        key_end = after(key_at, key_sizes)
        value_sizes, value_at = self._varints(octets, key_end)
        value_end = after(value_at, value_sizes)
        headers, headers_end = self._headers(octets.take(value_end), value_end)
        if not headers_end.equals(ends):
            raise self._other_length(pc.index(pc.equal(headers_end, ends), value=False).as_py())

        timestamps, kinds = _int64s(self._base_timestamps), _int32s(self._kinds)
        is_appended = pc.equal(kinds, LOG_APPEND_TIME)
        timestamps = pc.add(timestamps, pc.if_else(is_appended, 0, shifts))
        offsets = pc.add(_int64s(self._base_offsets), deltas)
        columns = [
            offsets,
            timestamps,
            kinds,
            _gathered(body, key_at, key_end, pc.less(key_sizes, 0)),
            _gathered(body, value_at, value_end, pc.less(value_sizes, 0)),
            *header_columns(headers),
        ]
        decoded = pa.RecordBatch.from_arrays(columns, schema=schema())
        return within(decoded, start=self._start, end=self._end)

    def _varints(self, octets: Any, positions: Any) -> tuple[Any, Any]:
        """Returns the signed integers that begin at *positions* of *octets*, and the positions after them."""
        import pyarrow as pa  # noqa: PLC0415 see above
        import pyarrow.compute as pc  # noqa: PLC0415

        unsigned = pa.uint64()
        low, lowest_bit = pa.scalar(127, unsigned), pa.scalar(1, unsigned)
        octet = octets.take(positions).cast(unsigned)
        number, continues = pc.bit_wise_and(octet, low), pc.greater(octet, low)
        positions, shift = pc.add(positions, 1), 7
        while pc.any(continues).as_py():
            if shift >= 70:  # ten bytes hold 64 bits
                raise self._other_length(pc.index(continues, value=True).as_py())
            octet = octets.take(positions).cast(unsigned)
            digit = pc.shift_left(pc.bit_wise_and(octet, low), pa.scalar(shift, unsigned))
            number = pc.if_else(continues, pc.bit_wise_or(number, digit), number)
            positions = pc.add(positions, continues.cast(pa.int64()))
            continues, shift = pc.and_(continues, pc.greater(octet, low)), shift + 7
        sign = pc.subtract(pa.scalar(0, unsigned), pc.bit_wise_and(number, lowest_bit))
        return pc.bit_wise_xor(pc.shift_right(number, lowest_bit), sign).view(pa.int64()), positions

    def _headers(self, counts: Any, positions: Any) -> tuple[list[tuple[Header, ...]], Any]:
        """Returns the headers of all records, and where they end; *counts* are the bytes at *positions*, where they begin."""
        import pyarrow as pa  # noqa: PLC0415 see above
        import pyarrow.compute as pc  # noqa: PLC0415

        headers: list[tuple[Header, ...]] = [()] * len(positions)
        headers_end = pc.add(positions, 1)
        has_headers = pc.not_equal(counts, pa.scalar(0, pa.uint8()))
        if not pc.any(has_headers).as_py():
            return headers, headers_end
        begins, ends = positions.to_pylist(), headers_end.to_pylist()
        for row in pc.indices_nonzero(has_headers).to_pylist():
            encoded = bytes(self._body[begins[row] : self._ends[row]])
            try:
                headers[row], size_bytes = read_headers(encoded, 0, len(encoded))
            except IndexError as error:
                raise self._other_length(row) from error
            ends[row] = begins[row] + size_bytes
        return headers, pa.array(ends, pa.int64())

    def _other_length(self, row: int) -> CorruptRecordsError:
        return CorruptRecordsError(
            f"a record in the batch at offset {self._base_offsets[row]} has another length than it says"
        )


def within(batch: Any, *, start: int, end: int) -> Any:
    """Returns the rows of an Arrow record batch with offsets from *start* up to *end*."""
    import pyarrow.compute as pc  # noqa: PLC0415 see above

    offsets = batch.column("offset")
    is_wanted = pc.and_(pc.greater_equal(offsets, start), pc.less(offsets, end))
    return batch if pc.all(is_wanted).as_py() else batch.filter(is_wanted)


def is_increasing(offsets: Any) -> bool:
    """Returns whether each offset of a column is larger than the one before it."""
    import pyarrow.compute as pc  # noqa: PLC0415 see above

    return bool(pc.all(pc.less(offsets.slice(0, len(offsets) - 1), offsets.slice(1)), min_count=0).as_py())


def _int64s(numbers: "array[int]") -> Any:
    import pyarrow as pa  # noqa: PLC0415 see above

    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])


def _int32s(numbers: "array[int]") -> Any:
    import pyarrow as pa  # noqa: PLC0415 see above

    return pa.Array.from_buffers(pa.int32(), len(numbers), [None, pa.py_buffer(numbers)])


def _gathered(body: Any, begins: Any, ends: Any, is_null: Any) -> Any:
    """Returns the bytes of *body* between each of *begins* and *ends*, in order, as a binary array."""
    import pyarrow as pa  # noqa: PLC0415 see above
    import pyarrow.compute as pc  # noqa: PLC0415

    count = len(begins)
    if pc.all(is_null).as_py():
        return pa.nulls(count, pa.binary())
    bounds = array("i", bytes(8 * count))
    bounds[::2], bounds[1::2] = (
        array("i", bytes(memoryview(places.cast(pa.int32()).buffers()[1])[: 4 * count]))
        for places in (begins, ends)
    )
    # Every second piece is a field; what is between two fields is the others.
    pieces = pa.Array.from_buffers(pa.binary(), 2 * count - 1, [None, pa.py_buffer(bounds), body])
    places = pa.array(range(0, 2 * count, 2), pa.int32())
    return pieces.take(pc.if_else(is_null, pa.scalar(None, pa.int32()), places))


def columns_of(records: Sequence[Record], kind: int) -> Any:
    """Returns *records*, at least one, with timestamp type *kind* as an Arrow record batch."""
    import pyarrow as pa  # noqa: PLC0415 see above

    count = len(records)
    offsets, timestamps, keys, values, headers = zip(*records, strict=True)
    shown, raw = header_columns(headers)
    arrays = [
        pa.array(offsets, pa.int64()),
        pa.array(timestamps, pa.int64()),
        pa.repeat(pa.scalar(kind, pa.int32()), count),
        pa.array(keys, pa.binary()),
        pa.array(values, pa.binary()),
        shown,
        raw,
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema())


def header_columns(headers: Sequence[tuple[Header, ...]]) -> tuple[Any, Any]:
    """Returns the columns `headers` and `headers_raw`."""
    import pyarrow as pa  # noqa: PLC0415 see above

    flat = list(itertools.chain.from_iterable(headers))
    if not flat:
        kind = schema().field("headers").type
        none = pa.array([], kind.value_type)
        ends = pa.repeat(pa.scalar(0, pa.int32()), len(headers) + 1)
        return pa.ListArray.from_arrays(ends, none, type=kind), pa.nulls(len(headers), pa.binary())
    names = pa.array([name for name, _ in flat], pa.binary())
    raw: Any = pa.nulls(len(headers), pa.binary())
    try:
        texts = names.cast(pa.string())
    except pa.ArrowInvalid:  # a name is not valid UTF-8
        texts = pa.array([str(name, "utf-8", "replace") for name, _ in flat], pa.string())
        raw = pa.array(
            [None if _are_texts(pairs) else encode_headers(pairs) for pairs in headers], pa.binary()
        )
    ends = itertools.accumulate(map(len, headers), initial=0)
    struct_type = schema().field("headers").type.value_type
    pairs = pa.StructArray.from_arrays(
        [texts, pa.array([content for _, content in flat], pa.binary())], fields=list(struct_type)
    )
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pairs), raw


def _are_texts(headers: Sequence[Header]) -> bool:
    try:
        for name, _ in headers:
            str(name, "utf-8")
    except UnicodeDecodeError:
        return False
    return True


def records_of(batch: Any) -> list[Record]:
    """Returns the records of an Arrow record batch. Raises CorruptRecordsError."""
    offsets, timestamps, keys, values, headers, raw = (
        batch.column(name).to_pylist()
        for name in ("offset", "timestamp_ms", "key", "value", "headers", "headers_raw")
    )
    decoded = [
        decode_headers(encoded)
        if encoded is not None
        else tuple((header["key"].encode(), header["value"]) for header in shown)
        if shown
        else ()
        for shown, encoded in zip(headers, raw, strict=True)
    ]
    return list(map(Record, offsets, timestamps, keys, values, decoded))


def timestamp_column(timestamps_ms: Any) -> Any:
    """Returns Kafka's timestamps as TIMESTAMP, in microseconds and UTC; null where it has no such time."""
    import pyarrow as pa  # noqa: PLC0415 see above
    import pyarrow.compute as pc  # noqa: PLC0415

    fits = pc.and_(pc.greater_equal(timestamps_ms, 0), pc.less_equal(timestamps_ms, TIMESTAMP_MS_MAX))
    times = pc.if_else(fits, timestamps_ms, pa.scalar(None, pa.int64()))
    return times.cast(pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", tz="UTC"))


def encode_headers(headers: Sequence[Header]) -> bytes:
    """Encodes headers as a record of magic 2 does: count, then each name and value after its length."""
    parts = [primitives.encode_varint(len(headers))]
    for name, content in headers:
        parts += (primitives.encode_varint(len(name)), name)
        parts += (
            (primitives.encode_varint(-1),)
            if content is None
            else (primitives.encode_varint(len(content)), content)
        )
    return b"".join(parts)


def decode_headers(raw: bytes) -> tuple[Header, ...]:
    headers: list[Header] = []
    try:
        count, index = primitives.decode_varint(raw, 0)
        for _ in range(count):
            name, index = _field(raw, index)
            content, index = _field(raw, index)
            headers.append((name or b"", content))
    except IndexError as error:
        raise CorruptRecordsError("headers_raw of an archived record ends too early") from error
    if index != len(raw):
        raise CorruptRecordsError("headers_raw of an archived record holds more than its headers")
    return tuple(headers)


def _field(raw: bytes, index: int) -> tuple[bytes | None, int]:
    length, index = primitives.decode_varint(raw, index)
    if length < 0:
        return None, index
    if index + length > len(raw):
        raise CorruptRecordsError("headers_raw of an archived record ends too early")
    return raw[index : index + length], index + length
