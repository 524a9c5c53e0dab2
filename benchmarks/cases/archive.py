"""A topic exported to Parquet and restored from it by Spark on `local[2]`: MB of records a second, without Spark's start.

Two upper bounds are measured with it: reading the same ranges without writing, and the seed's copy of the same records between
the same brokers. Brokers share the cores.
"""

import asyncio
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import copiers
from benchmarks.arena import Arena
from benchmarks.cases import Case, Extent
from benchmarks.results import Result
from mirrorflow_core.errors import MirrorFlowError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.config.providers import Resolver
from mirrorflow_seed.errors import SeedError
from mirrorflow_seed.settings import FlowFiles, job_of
from tests.harness.kafka.processes import HarnessError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from mirrorflow_seed.archive.export_plan import ExportRange

PARTITIONS = 8
RECORD_BYTES = 1000
CORES = 2
WARM_ROWS = 50_000
RATE = "MB/s"
TOPIC = "archive"


def archiving(arena: Arena, extent: Extent) -> Result:
    from mirrorflow_seed.spark_session import spark_session  # noqa: PLC0415 pyspark is not needed for the other cases

    records = extent.of(2_000_000, 200_000)
    result = Result(
        name="archive",
        title="an archive: exported to Parquet, restored, compared",
        setting=f"{records:,} records of {RECORD_BYTES} bytes in {PARTITIONS} partitions, uncompressed; Spark's local[{CORES}];"
        " MB of records a second, each job with its survey, Spark's start excluded. A comparison reads both sides and counts once.",
    )
    arena.load(TOPIC, records, partitions=PARTITIONS, size_bytes=RECORD_BYTES)
    master = {"master": f"local[{CORES}]"}
    with spark_session(job_of(master), "benchmark", light=False) as spark:
        _warm(spark)
        for _ in range(extent.repeat):
            _once(arena, result, spark, records)
    result.demand_ratio(
        "an export against reading alone", RATE, "exported", "read and thrown away", sense=">=", limit=0.1
    )
    return result


def _once(arena: Arena, result: Result, spark: "SparkSession", records: int) -> None:
    from mirrorflow_seed.archive import archive_verification, export_driver, restore_driver  # noqa: PLC0415 pyspark is not needed
    from mirrorflow_seed.seed import seed_driver  # noqa: PLC0415 for the other cases

    files = _files(arena.flow(TOPIC, records=records))

    def add(name: str, work: Callable[[], int], **more: float) -> None:
        result.add(name, **{RATE: records * RECORD_BYTES / 1e6 / _seconds(work), **more})

    add("read and thrown away", lambda: _read(spark, files))
    with tempfile.TemporaryDirectory(prefix="mirrorflow-archive-") as folder:
        job = job_of({"archive": f"{folder}/of"})
        bare = job_of({"archive": f"{folder}/of", "archive.compare": "false"})
        add("exported", lambda: export_driver.run(files, job, spark=spark))
        size = sum(file.stat().st_size for file in Path(folder).rglob("*.parquet"))
        result.notes.append(f"The archive has {size / 1e6:,.0f} MB.")
        add("restored, not compared", lambda: restore_driver.run(files, bare, spark=spark))
        add("compared by verify --archive", lambda: archive_verification.run(files, job, spark=spark))
    arena.sweep()
    seeded = _files(arena.flow(TOPIC, records=records))
    add("seeded", lambda: seed_driver.run(seeded, job_of({}), spark=spark))
    arena.sweep()


def _warm(spark: "SparkSession") -> None:
    """Starts workers, and loads what DataFrames and Parquet need in the JVM, which takes 13 core-seconds."""
    with tempfile.TemporaryDirectory(prefix="mirrorflow-archive-") as folder:
        rows = spark.sparkContext.parallelize(range(WARM_ROWS), CORES).map(
            lambda number: (number, bytes(RECORD_BYTES))
        )
        address = f"file://{folder}/of"
        spark.createDataFrame(rows, "offset BIGINT, value BINARY").write.parquet(address)
        spark.read.parquet(address).where("offset > 0").rdd.map(len).count()


def _files(flow: copiers.Flow) -> FlowFiles:
    worker, source = copiers.mirrorflow_files(flow)
    return FlowFiles(worker=worker, source=source)


def _seconds(work: Callable[[], int]) -> float:
    began = time.perf_counter()
    try:
        status = work()
    except (SeedError, MirrorFlowError) as error:
        raise HarnessError(str(error)) from error
    if status:
        raise HarnessError(f"The job ended with status {status}.")
    return time.perf_counter() - began


def _read(spark: "SparkSession", files: FlowFiles) -> int:
    """Reads the ranges of an export; returns the status."""
    from mirrorflow_seed.archive.export_driver import FILE_BYTES  # noqa: PLC0415
    from mirrorflow_seed.archive.export_plan import (  # noqa: PLC0415
        plan_ranges,
        read_bytes_per_offset,
        read_source,
    )
    from mirrorflow_seed.spark_tasks import SparkTasks  # noqa: PLC0415

    extents = asyncio.run(read_source(files.load())).extents
    sizes = asyncio.run(read_bytes_per_offset(files.load(), extents))
    ranges = plan_ranges(extents, sizes, file_bytes=FILE_BYTES)
    SparkTasks(spark).run(_Reading(files), ranges)
    return 0


class _Reading:
    """Reads ranges without writing them; returns their bytes."""

    def __init__(self, files: FlowFiles) -> None:
        self._files = files

    def __call__(self, part: "ExportRange") -> int:
        return asyncio.run(self._drain(part))

    async def _drain(self, part: "ExportRange") -> int:
        from mirrorflow_seed.verify.range_reader import OffsetRange, OffsetRangeReader  # noqa: PLC0415

        settings = self._files.load()
        cluster = await Cluster.connect(
            settings.source_consumer, resolve=Resolver(settings.providers).resolve_client
        )
        partition = TopicPartition(part.topic, part.partition)
        reader = OffsetRangeReader(
            cluster, partition, OffsetRange(part.start, part.end), read_committed=settings.read_committed
        )
        try:
            while await reader.more() is not None:
                pass
        finally:
            await reader.close()
            await cluster.close()
        return reader.bytes_read


CASES: dict[str, Case] = {"archive": archiving}
