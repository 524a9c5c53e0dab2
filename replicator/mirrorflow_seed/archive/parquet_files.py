"""Converts records to Parquet files of an archive and back, without loss, column by column.

A file has these columns, in this order; its folders name topic and partition,
`topic=<name>/partition=<number>/`:

    offset          BIGINT    of the source
    timestamp       TIMESTAMP in UTC; null: none, or after the year 9999
    timestamp_ms    BIGINT    milliseconds since 1970, as Kafka has it, of any size; -1: none
    timestamp_type  INT       0 CreateTime, 1 LogAppendTime, -1 none (as Java's TimestampType)
    key, value      BINARY    null and empty are different
    headers         ARRAY<STRUCT<key STRING, value BINARY>>, in their order, names may repeat
    headers_raw     BINARY    the headers as Kafka encodes them, only if a name is not valid UTF-8; else null
"""

import itertools
from collections.abc import Iterator, Sequence
from functools import cache
from types import TracebackType
from typing import Any, Final, Self

from mirrorflow_core.errors import CorruptRecordsError
from mirrorflow_core.wire import primitives
from mirrorflow_core.wire.batch import Batch
from mirrorflow_core.wire.records import Header, Record
from mirrorflow_seed.archive.manifest import TimeBounds

CREATE_TIME: Final = 0
LOG_APPEND_TIME: Final = 1
NO_TIMESTAMP_TYPE: Final = -1
# The last millisecond of the year 9999: Python has no later time, and the text of an hour has four digits for the year.
TIMESTAMP_MS_MAX: Final = 253_402_300_799_999
TIMESTAMP_INDEX: Final = 1
CODEC: Final = "zstd"
# Rows wait in memory until they are a row group.
ROW_GROUP_BYTES: Final = 16 << 20
READ_BYTES: Final = 4 << 20  # rows that are decoded at once, uncompressed
READ_ROWS_MAX: Final = 4_096
_OFFSET_MIN: Final = -(1 << 63)
_OFFSET_MAX: Final = (1 << 63) - 1


@cache
def file_schema() -> Any:
    """Returns the schema of a file."""
    import pyarrow as pa  # noqa: PLC0415 the extra `seed`

    return schema().insert(TIMESTAMP_INDEX, pa.field("timestamp", pa.timestamp("us", tz="UTC")))


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


def timestamp_column(timestamps_ms: Any) -> Any:
    """Returns Kafka's timestamps as TIMESTAMP, in microseconds and UTC; null where it has no such time."""
    import pyarrow as pa  # noqa: PLC0415 see above
    import pyarrow.compute as pc  # noqa: PLC0415

    fits = pc.and_(pc.greater_equal(timestamps_ms, 0), pc.less_equal(timestamps_ms, TIMESTAMP_MS_MAX))
    times = pc.if_else(fits, timestamps_ms, pa.scalar(None, pa.int64()))
    return times.cast(pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", tz="UTC"))


def header_columns(headers: Sequence[tuple[Header, ...]]) -> tuple[Any, Any]:
    """Returns the columns `headers` and `headers_raw`."""
    import pyarrow as pa  # noqa: PLC0415 see above

    flat = list(itertools.chain.from_iterable(headers))
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


class FileWriter:
    """Writes one file to a binary stream; a context manager. Memory is bounded by one row group."""

    def __init__(self, stream: Any) -> None:
        from pyarrow import parquet  # noqa: PLC0415 see above

        self.rows = 0
        self.times = TimeBounds()  # of all records, once it is finished
        self._writer = parquet.ParquetWriter(
            stream,
            file_schema(),
            compression=CODEC,
            # Values seldom repeat; a dictionary of them would cost more than it saves.
            use_dictionary=["timestamp_type", "key"],
            write_statistics=["offset", "timestamp"],
        )
        self._waiting: list[Any] = []
        self._waiting_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.finish()
        else:
            self._writer.close()

    def finish(self) -> None:
        """Writes the rest and the footer of the file; the stream stays open."""
        self._flush()
        self._writer.close()

    def add(self, batch: Any) -> None:
        """Adds an Arrow record batch."""
        self.rows += batch.num_rows
        self._waiting.append(batch)
        self._waiting_bytes += batch.nbytes
        if self._waiting_bytes >= ROW_GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        import pyarrow as pa  # noqa: PLC0415 see above

        if self._waiting:
            # One chunk for each column, so that the row group is one.
            table = pa.Table.from_batches(self._waiting).combine_chunks()
            # Once for many records: a call of Arrow costs as much as a small batch.
            timestamps_ms = table.column("timestamp_ms")
            times = timestamp_column(timestamps_ms)
            self._writer.write_table(table.add_column(TIMESTAMP_INDEX, "timestamp", times))
            self.times = self.times.joined(_time_bounds(timestamps_ms, times))
        self._waiting, self._waiting_bytes = [], 0


def _time_bounds(timestamps_ms: Any, times: Any) -> TimeBounds:
    import pyarrow.compute as pc  # noqa: PLC0415 see above

    bounds, has_later = pc.min_max(times), pc.max(timestamps_ms).as_py() > TIMESTAMP_MS_MAX
    if bounds["min"].value is None:
        return TimeBounds(has_later=has_later)
    return TimeBounds(
        first_ms=bounds["min"].value // 1_000, last_ms=bounds["max"].value // 1_000, has_later=has_later
    )


def encoded_size_bytes(batches: Sequence[Any]) -> int:
    """Returns the size of a file with these Arrow record batches, without its footer and with one row group."""
    import pyarrow as pa  # noqa: PLC0415 see above
    from pyarrow import parquet  # noqa: PLC0415

    sink = pa.BufferOutputStream()
    with FileWriter(sink) as writer:
        for batch in batches:
            writer.add(batch)
    group = parquet.read_metadata(pa.BufferReader(sink.getvalue())).row_group(0)
    return sum(group.column(index).total_compressed_size for index in range(group.num_columns))


def read_records(source: Any, *, start: int = _OFFSET_MIN, end: int = _OFFSET_MAX) -> Iterator[list[Record]]:
    """Yields the records of an opened file with offsets from *start* up to *end*, in its order, some at a time.

    It skips row groups without such offsets. Raises CorruptRecordsError.
    """
    for batch in read_batches(source, start=start, end=end):
        records = records_of(batch)
        if records and not (start <= records[0].offset and records[-1].offset < end):
            records = [record for record in records if start <= record.offset < end]
        yield records


def read_batches(source: Any, *, start: int = _OFFSET_MIN, end: int = _OFFSET_MAX) -> Iterator[Any]:
    """Yields the Arrow record batches of an opened file that may have offsets from *start* up to *end*.

    Raises CorruptRecordsError.
    """
    import pyarrow as pa  # noqa: PLC0415 see above
    from pyarrow import parquet  # noqa: PLC0415

    try:
        file = parquet.ParquetFile(source)
        for index in range(file.metadata.num_row_groups):
            group = file.metadata.row_group(index)
            bounds = group.column(0).statistics
            if bounds is not None and bounds.has_min_max and (bounds.max < start or bounds.min >= end):
                continue
            row_bytes = max(1, group.total_byte_size // max(1, group.num_rows))
            rows = max(1, min(READ_ROWS_MAX, READ_BYTES // row_bytes))
            yield from file.iter_batches(
                batch_size=rows, row_groups=[index], columns=schema().names, use_threads=False
            )
    except (pa.ArrowException, OSError, KeyError) as error:
        raise CorruptRecordsError(f"a Parquet file cannot be read: {str(error).splitlines()[0]}") from error


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
