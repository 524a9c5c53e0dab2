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

from collections.abc import Iterator, Sequence
from functools import cache
from types import TracebackType
from typing import Any, Final, Self

from mirrorflow_core.errors import CorruptRecordsError
from mirrorflow_core.wire.records import Record
from mirrorflow_seed.archive.manifest import TimeBounds
from mirrorflow_seed.record_columns import (
    OFFSET_MAX,
    OFFSET_MIN,
    TIMESTAMP_MS_MAX,
    records_of,
    schema,
    timestamp_column,
    within,
)

TIMESTAMP_INDEX: Final = 1
CODEC: Final = "zstd"
# Rows wait in memory until they are a row group.
ROW_GROUP_BYTES: Final = 16 << 20
READ_BYTES: Final = 4 << 20  # rows that are decoded at once, uncompressed
READ_ROWS_MAX: Final = 4_096


@cache
def file_schema() -> Any:
    """Returns the schema of a file."""
    import pyarrow as pa  # noqa: PLC0415 the extra `seed`

    return schema().insert(TIMESTAMP_INDEX, pa.field("timestamp", pa.timestamp("us", tz="UTC")))


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
            table = pa.Table.from_batches(self._waiting)
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


def read_records(source: Any, *, start: int = OFFSET_MIN, end: int = OFFSET_MAX) -> Iterator[list[Record]]:
    """Yields the records of an opened file with offsets from *start* up to *end*, in its order, some at a time.

    Raises CorruptRecordsError.
    """
    return map(records_of, read_batches(source, start=start, end=end))


def read_batches(source: Any, *, start: int = OFFSET_MIN, end: int = OFFSET_MAX) -> Iterator[Any]:
    """Yields the rows of an opened file with offsets from *start* up to *end* as Arrow record batches, some possibly empty.

    It skips row groups without such offsets. Raises CorruptRecordsError.
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
            for batch in file.iter_batches(
                batch_size=rows, row_groups=[index], columns=schema().names, use_threads=False
            ):
                yield within(batch, start=start, end=end)
    except (pa.ArrowException, OSError, KeyError) as error:
        raise CorruptRecordsError(f"a Parquet file cannot be read: {str(error).splitlines()[0]}") from error
