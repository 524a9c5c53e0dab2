"""Registers `mirrorflow` as a format of Spark: reads topics as a table or as a stream, without the JVM's Kafka client.

    register(spark)
    spark.read.format("mirrorflow").option("kafka.bootstrap.servers", "east:9092").option("subscribe", "orders").load()

Columns are those of Spark's own Kafka source with headers, so its queries run unchanged:

    key, value      BINARY
    topic           STRING
    partition       INT
    offset          BIGINT
    timestamp       TIMESTAMP  null if the record has none, and after the year 9999
    timestampType   INT        0 CreateTime, 1 LogAppendTime, -1 none
    headers         ARRAY<STRUCT<key STRING, value BINARY>>, in order; bytes of names that are not UTF-8 are replaced

A query pushes conditions on topic, partition, offset and timestamp down (`table_filters`). Records become Arrow columns
in the task. Spark makes the plan in a Python process of the driver, so MirrorFlow is installed there and on executors.
It needs Spark 4.2 or later.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import datasource
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire.batch import Batch
from mirrorflow_replicator import process
from mirrorflow_seed.record_columns import timestamp_column
from mirrorflow_seed.tables.table_filters import TableFilter, push_filters
from mirrorflow_seed.tables.table_options import TableOptions, read_options
from mirrorflow_seed.tables.table_plan import (
    StreamOffsets,
    StreamPlanner,
    TableRange,
    as_stream_offsets,
    limited,
    lost,
    read_ranges,
)
from mirrorflow_seed.topic_range_reader import TopicRangeReader
from mirrorflow_seed.verify.range_reader import OffsetRange

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMAT: Final = "mirrorflow"
SCHEMA: Final = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, timestampType INT,"
    " headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
PUSHDOWN_KEY: Final = "spark.sql.python.filterPushdown.enabled"


def register(spark: "SparkSession") -> None:
    """Makes `spark.read.format("mirrorflow")` and `readStream` available in a session, and lets Spark push conditions down."""
    spark.dataSource.register(TopicTable)
    spark.conf.set(PUSHDOWN_KEY, "true")


class TopicTable(datasource.DataSource):  # type: ignore[misc]  # Any
    """Topics of a cluster as a table; `table_options` has the options."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: Any) -> "TopicTableReader":
        return TopicTableReader(read_options(dict(self.options), is_stream=False))

    def streamReader(self, schema: Any) -> "TopicStreamReader":  # noqa: N802 Spark's name
        return TopicStreamReader(read_options(dict(self.options), is_stream=True))


@dataclass
class TablePartition(datasource.InputPartition):  # type: ignore[misc]  # Any
    """The range of one task, as Spark sends it there."""

    read: TableRange


class TopicTableReader(datasource.DataSourceReader):  # type: ignore[misc]  # Any
    """Reads the offsets that the source has when the query is planned."""

    def __init__(self, options: TableOptions) -> None:
        self._options = options
        self._filter = TableFilter()

    def pushFilters(self, filters: list[Any]) -> list[Any]:  # noqa: N802 Spark's name
        """Takes the conditions that reduce what is read; returns those that Spark has to check."""
        self._filter, rest = push_filters(filters)
        return rest

    def partitions(self) -> Sequence[TablePartition]:
        """Returns the ranges to read, one for each task."""
        return [TablePartition(table_range) for table_range in read_ranges(self._options, self._filter)]

    def read(self, partition: datasource.InputPartition) -> Iterator[Any]:
        """Yields the records of a range as Arrow record batches."""
        if not isinstance(partition, TablePartition):  # Spark makes one where there is nothing to read
            return iter(())
        low_ms = self._filter.timestamp_ms.low
        return read_table_range(self._options, partition.read, low_ms=low_ms)


class TopicStreamReader(datasource.DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]  # Any
    """Reads a stream; Spark stores its offsets in the checkpoint location."""

    def __init__(self, options: TableOptions) -> None:
        self._options = options
        self._planner = StreamPlanner(options)
        # With availableNow, what the source had when the query started
        self._frozen: Mapping[TopicPartition, OffsetRange] | None = None

    def initialOffset(self) -> StreamOffsets:  # noqa: N802 Spark's name
        """Returns where a query without a checkpoint begins."""
        return self._planner.begin()

    def latestOffset(self, start: StreamOffsets, limit: Any) -> StreamOffsets:  # noqa: N802 Spark's name
        """Returns the end of the batch that begins at *start*. Spark's *limit* is the default one, or none at all."""
        return limited(start, self._extents(), getattr(limit, "max_rows", None))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 Spark's name
        """Returns the limit of the option maxOffsetsPerTrigger."""
        offsets_max = self._options.offsets_per_trigger
        return ReadAllAvailable() if offsets_max is None else ReadMaxRows(offsets_max)

    def reportLatestOffset(self) -> StreamOffsets:  # noqa: N802 Spark's name
        """Returns the ends of all partitions, for the progress of the query."""
        return as_stream_offsets({key: extent.end for key, extent in self._extents().items()})

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 Spark's name
        """Freezes the ends: the query stops there."""
        self._frozen = self._planner.extents()

    def partitions(self, start: StreamOffsets, end: StreamOffsets) -> Sequence[TablePartition]:
        """Returns the ranges of a batch, one for each task."""
        return [TablePartition(table_range) for table_range in self._planner.ranges(start, end)]

    def read(self, partition: TablePartition) -> Iterator[Any]:
        """Yields the records of a range as Arrow record batches."""
        return read_table_range(self._options, partition.read)

    def _extents(self) -> Mapping[TopicPartition, OffsetRange]:
        return self._planner.extents() if self._frozen is None else self._frozen


def read_table_range(options: TableOptions, read: TableRange, *, low_ms: int | None = None) -> Iterator[Any]:
    """Yields the records of a range as Arrow record batches; without batches that are older than *low_ms*.

    Raises MirrorFlowError, JobFailedError.
    """
    process.tune_memory()

    def wants(batch: Batch) -> bool:
        return low_ms is None or batch.magic < 2 or batch.max_timestamp >= low_ms

    reader = TopicRangeReader(options.client, read.partition, read.offsets, wants=wants)
    with contextlib.closing(reader.columns()) as chunks:
        for columns in chunks:
            _require_no_loss(options, reader, read)
            yield table_columns(read, columns)
    _require_no_loss(options, reader, read)


def _require_no_loss(options: TableOptions, reader: TopicRangeReader, read: TableRange) -> None:
    if reader.gaps and options.fails_on_loss:
        gap = reader.gaps[0]
        raise lost(read.partition, gap.start, OffsetRange(gap.end, read.offsets.end))


@cache
def table_schema() -> Any:
    """Returns `SCHEMA` as an Arrow schema, as Spark expects it."""
    import pyarrow as pa  # noqa: PLC0415 the extra `seed`

    header = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
    return pa.schema(
        [
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("us", tz="UTC")),
            ("timestampType", pa.int32()),
            ("headers", pa.list_(pa.field("element", header))),
        ]
    )


def table_columns(read: TableRange, columns: Any) -> Any:
    """Returns an Arrow record batch with the columns of `SCHEMA`, of the records of one with those of `record_columns`."""
    import pyarrow as pa  # noqa: PLC0415 see above

    count, table = columns.num_rows, table_schema()
    return pa.RecordBatch.from_arrays(
        [
            columns.column("key"),
            columns.column("value"),
            pa.repeat(pa.scalar(read.partition.topic, pa.string()), count),
            pa.repeat(pa.scalar(read.partition.partition, pa.int32()), count),
            columns.column("offset"),
            timestamp_column(columns.column("timestamp_ms")),
            columns.column("timestamp_type"),
            columns.column("headers").cast(table.field("headers").type),
        ],
        schema=table,
    )
