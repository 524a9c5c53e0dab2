"""Reads parts of an archive with Spark: a few records for a plan, or the rows of a stretch.

Parquet's statistics let Spark skip data outside the requested offsets.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire.records import encode_as_logged
from mirrorflow_seed.archive.archive_source import BATCH_OFFSETS, ArchiveCluster
from mirrorflow_seed.archive.manifest import ArchivedFile, Manifest
from mirrorflow_seed.archive.rows import FILE_SCHEMA, record_of
from mirrorflow_seed.location import Location

if TYPE_CHECKING:
    from pyspark import SparkContext

T = TypeVar("T")
# A fetch of at most SMALL_FETCH_BYTES needs only a few records; a larger one is a search.
SMALL_FETCH_BYTES: Final = 64 << 10
SMALL_FETCH_RECORDS: Final = 16
SEARCH_RECORDS: Final = 2_000
# One task reads a whole file of any size, so that its rows arrive in order.
ONE_TASK_CONF: Final = {
    "spark.sql.files.maxPartitionBytes": str(1 << 40),
    "spark.sql.files.openCostInBytes": str(1 << 40),
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    # Read row by row: a batch of thousands of rows of a megabyte each would not fit into memory.
    "spark.sql.parquet.enableVectorizedReader": "false",
}


class ArchiveRowReader:
    """Reads rows of an archive's files."""

    def __init__(self, context: "SparkContext", location: Location) -> None:
        from pyspark.sql import SparkSession  # noqa: PLC0415 the extra `seed`

        self._spark = SparkSession(context)
        for key, value in ONE_TASK_CONF.items():
            self._spark.conf.set(key, value)
        self._location = location

    def first(self, file: ArchivedFile, offset: int, count: int) -> list[Any]:
        """Returns the first *count* rows of *file* from *offset* on."""
        found: list[Any] = self._frame([file], offset, file.end).limit(count).collect()
        return found

    def in_one_task(
        self,
        files: Sequence[ArchivedFile],
        start: int,
        end: int,
        work: Callable[[Iterator[Any]], Iterator[T]],
    ) -> list[T]:
        """Runs *work* in one task on the rows of *files* from *start* up to *end*, files in any order."""
        if not files:
            return list(work(iter(())))
        found: list[T] = self._frame(files, start, end).rdd.coalesce(1).mapPartitions(work).collect()
        return found

    def _frame(self, files: Sequence[ArchivedFile], start: int, end: int) -> Any:
        frame = self._spark.read.schema(FILE_SCHEMA).parquet(
            *(self._location.uri_of(one.path) for one in files)
        )
        return frame.where(f"offset >= {start} AND offset < {end}")


class SpotReadArchive(ArchiveCluster):
    """An archive as source for reads of a few records, answered from its files, for all partitions."""

    def __init__(self, alias: str, manifest: Manifest, rows: ArchiveRowReader) -> None:
        super().__init__(alias, manifest)
        self._rows = rows

    def data_of(self, partition: TopicPartition, offset: int, max_bytes: int) -> bytearray:
        """Returns one batch with the next records at or after *offset*, all from one file."""
        count = SMALL_FETCH_RECORDS if max_bytes <= SMALL_FETCH_BYTES else SEARCH_RECORDS
        for file in self.partitions[partition].files:
            if file.end <= offset:
                continue
            records = [record_of(row) for row in self._rows.first(file, offset, count)]
            if not records:
                continue
            reach = records[0].offset + BATCH_OFFSETS  # a batch's deltas have 32 bits
            near = [one for one in records if one.offset < reach]
            # If the file has no more records, the batch extends to its end.
            is_last = len(records) < count and len(near) == len(records)
            end = min(file.end, reach) if is_last else near[-1].offset + 1
            return encode_as_logged(near, codec=0, next_offset=end)
        return bytearray()
