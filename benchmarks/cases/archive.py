"""A topic exported to Parquet and restored from it by Spark on `local[2]`: throughput and CPU, without Spark's start.

Beside them, in the same session: reading the same ranges without writing, the seed's copy of the same records between the
same brokers, and a plain Spark job that reads with Spark's own Kafka source and writes Parquet. Brokers share the cores;
their CPU is not counted.
"""

import asyncio
import os
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from benchmarks import copiers, spark_kafka_source
from benchmarks.arena import Arena
from benchmarks.cases import Case, Extent
from benchmarks.results import Result
from mirrorflow_core.errors import MirrorFlowError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.config.providers import Resolver
from mirrorflow_seed.errors import SeedError
from mirrorflow_seed.settings import FlowFiles, job_of
from tests.harness.kafka.processes import HarnessError, family

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from mirrorflow_seed.archive.export_plan import ExportRange

PARTITIONS = 8
CORES = 2
WARM_ROWS, WARM_RECORDS = 50_000, 20_000
METER_EVERY_S = 0.5
ProcessKey = tuple[int, int]  # id and start time
RATE, CPU = "MB/s", "CPU-us/record"
EXPORTED, RESTORED, COMPARED = "exported", "restored, not compared", "compared by verify --archive"
READ = "read and thrown away"
SPARK_SOURCE = "Spark's Kafka source into Parquet"
SPARK_SOURCE_ZSTD = f"{SPARK_SOURCE}, zstd"  # the codec of an export; Spark's default is snappy


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordKind:
    """Records of *size_bytes*, how many of them, and the limits of CPU microseconds for each of them."""

    size_bytes: int
    records: int
    quick_records: int
    export_us: float
    restore_us: float


KINDS = {
    "archive": RecordKind(
        size_bytes=1_000, records=2_000_000, quick_records=400_000, export_us=20.0, restore_us=25.0
    ),
    "archive-small": RecordKind(
        size_bytes=100, records=4_000_000, quick_records=400_000, export_us=10.0, restore_us=15.0
    ),
}


def archiving(name: str, arena: Arena, extent: Extent) -> Result:
    from mirrorflow_seed.spark_session import spark_session  # noqa: PLC0415 pyspark is not needed for the other cases

    kind = KINDS[name]
    records = extent.of(kind.records, kind.quick_records)
    result = Result(
        name=name,
        title=f"an archive of records of {kind.size_bytes} bytes: exported to Parquet, restored, compared",
        setting=f"{records:,} records of {kind.size_bytes} bytes in {PARTITIONS} partitions, uncompressed; Spark's local[{CORES}];"
        " each job with its survey, Spark's start excluded. A comparison reads both sides and counts once. CPU is that of driver, JVM"
        f" and tasks. Spark's Kafka source is spark-sql-kafka {spark_kafka_source.RELEASE}.",
    )
    arena.load(name, records, partitions=PARTITIONS, size_bytes=kind.size_bytes)
    arena.load(f"{name}-warm", WARM_RECORDS, partitions=PARTITIONS, size_bytes=kind.size_bytes)
    job = {"master": f"local[{CORES}]", "spark.jars": ",".join(map(str, spark_kafka_source.jars()))}
    with spark_session(job_of(job), "benchmark", light=False) as spark:
        _warm(spark, kind.size_bytes)
        _Turn(arena, _new_result(), spark, f"{name}-warm", WARM_RECORDS, kind.size_bytes).run(0)
        for turn in range(extent.repeat):
            _Turn(arena, result, spark, name, records, kind.size_bytes).run(turn)
    result.demand_ratio("an export against reading alone", RATE, EXPORTED, READ, sense=">=", limit=0.1)
    for peer in (SPARK_SOURCE, SPARK_SOURCE_ZSTD):
        result.demand_ratio(f"an export against {peer}", RATE, EXPORTED, peer, sense=">=", limit=1)
        result.demand_ratio(f"CPU of an export against {peer}", CPU, EXPORTED, peer, sense="<=", limit=1)
    for what, limit in ((EXPORTED, kind.export_us), (RESTORED, kind.restore_us), (COMPARED, kind.restore_us)):
        result.demand(what, CPU, what, sense="<=", limit=limit, unit="CPU-us/record")
    return result


def _new_result() -> Result:
    return Result(name="warm-up", title="not measured", setting="")


@dataclass(frozen=True, slots=True)
class _Turn:
    """All jobs once."""

    arena: Arena
    result: Result
    spark: "SparkSession"
    topic: str
    records: int
    record_bytes: int

    def run(self, turn: int) -> None:
        from mirrorflow_seed.archive import archive_verification, export_driver, restore_driver  # noqa: PLC0415 pyspark is not needed
        from mirrorflow_seed.seed import seed_driver  # noqa: PLC0415 for the other cases

        flow = self.arena.flow(self.topic, records=self.records)
        files = _files(flow)
        self._add(READ, lambda: _read(self.spark, files))
        with tempfile.TemporaryDirectory(prefix="mirrorflow-archive-") as folder:
            job = job_of({"archive": f"{folder}/of"})
            bare = job_of({"archive": f"{folder}/of", "archive.compare": "false"})
            source = partial(spark_kafka_source.export, self.spark, flow.source_bootstrap, self.topic)
            exports: list[tuple[str, Callable[[], int]]] = [
                (EXPORTED, lambda: export_driver.run(files, job, spark=self.spark)),
                (SPARK_SOURCE, lambda: source(f"{folder}/snappy")),
                (SPARK_SOURCE_ZSTD, lambda: source(f"{folder}/zstd", codec="zstd")),
            ]
            first = turn % len(exports)
            for name, work in (*exports[first:], *exports[:first]):
                self._add(name, work)
            sizes = {name: _size_bytes(Path(folder) / name) for name in ("of", "snappy", "zstd")}
            self.result.notes.append(
                f"The archive has {sizes['of'] / 1e6:,.0f} MB, the files of Spark's source {sizes['snappy'] / 1e6:,.0f} MB, with zstd"
                f" {sizes['zstd'] / 1e6:,.0f} MB."
            )
            self._add(RESTORED, lambda: restore_driver.run(files, bare, spark=self.spark))
            self._add(COMPARED, lambda: archive_verification.run(files, job, spark=self.spark))
        self.arena.sweep()
        seeded = _files(self.arena.flow(self.topic, records=self.records))
        self._add("seeded", lambda: seed_driver.run(seeded, job_of({}), spark=self.spark))
        self.arena.sweep()

    def _add(self, name: str, work: Callable[[], int]) -> None:
        with CpuMeter(_jvm_pid(self.spark)) as meter:
            seconds = _seconds(work)
        used_s = meter.used_s
        rate = self.records * self.record_bytes / 1e6 / seconds
        self.result.add(name, **{RATE: rate, CPU: used_s / self.records * 1e6})


class CpuMeter:
    """Measures the CPU seconds of this process, of Spark's JVM and of its Python tasks, which are children of the JVM.

    The times of all processes are read repeatedly, because Spark may end the daemon of its Python workers at any time, and
    the times of these are then lost. Brokers are other children.
    """

    def __init__(self, jvm: int) -> None:
        self._jvm = jvm
        self._began_s = 0.0
        self._before: dict[ProcessKey, float] = {}
        self._newest: dict[ProcessKey, float] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow)

    def __enter__(self) -> Self:
        self._began_s = time.process_time()
        self._before = own_times(self._jvm)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._newest.update(own_times(self._jvm))

    def _follow(self) -> None:
        while not self._ended.wait(METER_EVERY_S):
            self._newest.update(own_times(self._jvm))

    @property
    def used_s(self) -> float:
        """The CPU seconds between entry and exit."""
        children = sum(time_s - self._before.get(key, 0.0) for key, time_s in self._newest.items())
        return time.process_time() - self._began_s + children


def own_times(pid: int) -> dict[ProcessKey, float]:
    """Returns the CPU seconds of *pid* and each of its descendants, without the children that these have waited for."""
    times: dict[ProcessKey, float] = {}
    for member in family(pid):
        try:
            fields = Path(f"/proc/{member}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        times[member, int(fields[19])] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return times


def _jvm_pid(spark: "SparkSession") -> int:
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 PySpark has no other way to the id of its JVM
    return int(jvm.java.lang.ProcessHandle.current().pid())


def _size_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*.parquet"))


def _warm(spark: "SparkSession", record_bytes: int) -> None:
    """Starts workers, and loads what DataFrames and Parquet need in the JVM, which takes 13 core-seconds."""
    with tempfile.TemporaryDirectory(prefix="mirrorflow-archive-") as folder:
        rows = spark.sparkContext.parallelize(range(WARM_ROWS), CORES).map(
            lambda number: (number, bytes(record_bytes))
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
    from mirrorflow_seed.archive.export_plan import (  # noqa: PLC0415
        FILE_BYTES,
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


CASES: dict[str, Case] = {name: partial(archiving, name) for name in KINDS}
