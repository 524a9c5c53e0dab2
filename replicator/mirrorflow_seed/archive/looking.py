"""Single places of an archive, looked up by Spark: what a plan asks its source, and the rows of a stretch.

Parquet's statistics let Spark pass over what lies outside of the offsets that are asked for.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from mirrorflow_replicator.flow.partitions import TopicPartition
from mirrorflow_replicator.wire.records import encode_as_logged
from mirrorflow_seed.archive.manifest import ArchivedFile, Manifest
from mirrorflow_seed.archive.rows import FILE_SCHEMA, record_of
from mirrorflow_seed.archive.served import ArchiveCluster
from mirrorflow_seed.archive.spool import BATCH_OFFSETS
from mirrorflow_seed.location import Location

if TYPE_CHECKING:
    from pyspark import SparkContext

T = TypeVar("T")
# Whoever asks for few bytes wants a run of records, whoever asks for more searches.
LOOK_BYTES: Final = 64 << 10
LOOK_RECORDS: Final = 16
SEARCH_RECORDS: Final = 2_000
# One file is one task, whatever its size: its rows come in their order.
ONE_TASK_CONF: Final = {
    "spark.sql.files.maxPartitionBytes": str(1 << 40),
    "spark.sql.files.openCostInBytes": str(1 << 40),
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    # Row by row: a batch of some thousand rows of a megabyte each would not fit.
    "spark.sql.parquet.enableVectorizedReader": "false",
}


class Rows:
    """The rows of an archive's files."""

    def __init__(self, context: "SparkContext", location: Location) -> None:
        from pyspark.sql import SparkSession  # noqa: PLC0415 the extra `seed`

        self._spark = SparkSession(context)
        for key, value in ONE_TASK_CONF.items():
            self._spark.conf.set(key, value)
        self._location = location

    def first(self, file: ArchivedFile, offset: int, count: int) -> list[Any]:
        """The first *count* rows of *file* from *offset* on."""
        found: list[Any] = self._frame([file], offset, file.end).limit(count).collect()
        return found

    def in_one_task(
        self,
        files: Sequence[ArchivedFile],
        start: int,
        end: int,
        work: Callable[[Iterator[Any]], Iterator[T]],
    ) -> list[T]:
        """*work* over the rows of *files* with offsets from *start* up to *end*: file by file, in no order of files."""
        if not files:
            return list(work(iter(())))
        found: list[T] = self._frame(files, start, end).rdd.coalesce(1).mapPartitions(work).collect()
        return found

    def _frame(self, files: Sequence[ArchivedFile], start: int, end: int) -> Any:
        frame = self._spark.read.schema(FILE_SCHEMA).parquet(
            *(self._location.uri_of(one.path) for one in files)
        )
        return frame.where(f"offset >= {start} AND offset < {end}")


class LookedUp(ArchiveCluster):
    """All partitions of an archive, answered by looking into its files: for a few records here and there."""

    def __init__(self, alias: str, manifest: Manifest, rows: Rows) -> None:
        super().__init__(alias, manifest)
        self._rows = rows

    def data_of(self, partition: TopicPartition, offset: int, max_bytes: int) -> bytearray:
        """One batch, of the next records of the file that holds *offset* or the first behind it."""
        count = LOOK_RECORDS if max_bytes <= LOOK_BYTES else SEARCH_RECORDS
        for file in self.partitions[partition].files:
            if file.end <= offset:
                continue
            records = [record_of(row) for row in self._rows.first(file, offset, count)]
            if not records:
                continue
            reach = records[0].offset + BATCH_OFFSETS  # a batch's deltas are 32 bits wide
            near = [one for one in records if one.offset < reach]
            # A file that has no more records has none up to its end.
            is_last = len(records) < count and len(near) == len(records)
            end = min(file.end, reach) if is_last else near[-1].offset + 1
            return encode_as_logged(near, codec=0, next_offset=end)
        return bytearray()
