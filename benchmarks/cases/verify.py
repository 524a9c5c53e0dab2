"""Two clusters compared by `mirrorflow-seed verify` on `local[n]`: records a second of both sides, without the start.

It is compared with reading the same ranges by the same tasks without a comparison, which is the limit of brokers and sockets,
and with a comparison that decodes and digests every record. Spark's JVM starts before the measurement; planning has its own
column.
"""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks import copiers
from benchmarks.arena import Arena
from benchmarks.cases import Case, Extent
from benchmarks.results import Result
from benchmarks.watch import end_offsets
from mirrorflow_core.errors import MirrorFlowError
from mirrorflow_seed.errors import SeedError
from mirrorflow_seed.settings import FlowFiles, job_of
from mirrorflow_seed.verify.offset_windows import VerifyRange
from mirrorflow_seed.verify.range_reader import OffsetRangeReader
from tests.harness.kafka.processes import HarnessError, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 8
RECORD_BYTES = 1000
COPY_WAIT_S = 300.0
MIB = 1 << 20
RATE = "records/s"
CORES = (1, 2)
RATE_MIN = 1_000_000.0
TASK_MIB_MAX = 256.0
EMPTY_TASKS = 40  # for the cost of an empty task


def verifying(arena: Arena, extent: Extent) -> Result:
    records = extent.of(2_000_000, 200_000)
    result = Result(
        name="verify",
        title="both clusters compared",
        setting=f"{records:,} records of {RECORD_BYTES} bytes on each side, {PARTITIONS} partitions, copied by MirrorFlow;"
        " records of both sides together a second, on Spark's local[1] and local[2]; brokers use the same cores.",
    )
    arena.load("verify", records, partitions=PARTITIONS, size_bytes=RECORD_BYTES)
    flow = arena.flow("verify", records=records)
    remote = flow.remote("verify")
    with arena.running(copiers.mirrorflow(), flow) as child:
        wait_until(
            f"{remote} has {records} records",
            lambda: remote in arena.west.topics() and end_offsets(arena.west, remote, PARTITIONS) >= records,
            timeout_s=COPY_WAIT_S,
        )
        child.stop()  # cleanly, so that offsets are stored
        worker, source = copiers.mirrorflow_files(flow)
        files = FlowFiles(worker=worker, source=source)
        for cores in CORES:
            _measure(result, files, cores, records, extent.repeat)
    result.demand(
        f"compared on {CORES[-1]} cores", RATE, _name(CORES[-1]), sense=">=", limit=RATE_MIN, unit="/s"
    )
    result.demand("a task's memory", "task_MiB", _name(CORES[-1]), sense="<=", limit=TASK_MIB_MAX, unit="MiB")
    return result


def _name(cores: int, what: str = "compared") -> str:
    return f"{what}, {cores} core{'s' if cores > 1 else ''}"


def _measure(result: Result, files: FlowFiles, cores: int, records: int, repeat: int) -> None:
    from mirrorflow_seed.spark_session import spark_session  # noqa: PLC0415 pyspark is not needed for the other cases

    master = {"master": f"local[{cores}]"}
    with spark_session(job_of(master), "benchmark") as spark:
        spark.sparkContext.parallelize(range(cores), cores).map(str).collect()  # starts the workers
        result.add(_name(cores, "empty task"), ms=_empty_task_ms(spark, cores))
        for _ in range(repeat):
            ranges = _ranges_of(files, master)
            seconds, read = _timed(partial(_bare, spark, files, ranges))
            result.add(
                _name(cores, "read and thrown away"),
                **{RATE: 2 * records / seconds, "MB/s": read / 1e6 / seconds},
            )
            _compared(result, _name(cores), files, master, spark, records)
        decoding = {**master, "decode.all": "true"}
        _compared(result, _name(cores, "compared record by record"), files, decoding, spark, records)


def _compared(
    result: Result, name: str, files: FlowFiles, job: dict[str, str], spark: "SparkSession", records: int
) -> None:
    """Measures one run without its output; planning has its own column."""
    from mirrorflow_seed.spark_tasks import SparkTasks  # noqa: PLC0415
    from mirrorflow_seed.verify.compared_sides import CompareSettings  # noqa: PLC0415
    from mirrorflow_seed.verify.comparison_tasks import compare_on_spark  # noqa: PLC0415
    from mirrorflow_seed.verify.planning_tasks import plan_verification  # noqa: PLC0415
    from mirrorflow_seed.verify.verify_progress import VerifyProgress  # noqa: PLC0415

    try:
        plan_s, plan = _timed(lambda: plan_verification(files.load(), job_of(job)))
        compare_settings = CompareSettings(run_id="1", decode_all="decode.all" in job)
        seconds, outcome = _timed(
            lambda: compare_on_spark(
                SparkTasks(spark), plan.ranges, files, compare_settings, VerifyProgress(), None
            )
        )
    except (SeedError, MirrorFlowError) as error:
        raise HarnessError(str(error)) from error
    windows = [result.windows for result in outcome]
    total = sum(summary.source_records + summary.target_records for summary in windows)
    are_equal = all(summary.counts.equal == summary.counts.total for summary in windows)
    if total != 2 * records or plan.undecided or not are_equal:
        result.notes.append(f"{name}: not all of {records:,} records were found equal.")
    result.add(
        name,
        **{
            RATE: total / seconds,
            "MB/s": sum(result.bytes_read for result in outcome) / 1e6 / seconds,
            "task_MiB": max(result.memory_bytes for result in outcome) / MIB,
            "plan_s": plan_s,
        },
    )


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result


def _empty_task_ms(spark: "SparkSession", cores: int) -> float:
    from mirrorflow_seed.spark_tasks import SparkTasks  # noqa: PLC0415

    tasks = SparkTasks(spark)
    seconds, _ = _timed(lambda: tasks.run(abs, range(EMPTY_TASKS)))
    return seconds * 1000 * cores / EMPTY_TASKS


def _ranges_of(files: FlowFiles, job: dict[str, str]) -> list[VerifyRange]:
    from mirrorflow_seed.verify.planning_tasks import plan_verification  # noqa: PLC0415

    return plan_verification(files.load(), job_of(job)).ranges


def _bare(spark: "SparkSession", files: FlowFiles, ranges: list[VerifyRange]) -> int:
    from mirrorflow_seed.spark_tasks import SparkTasks  # noqa: PLC0415

    return sum(SparkTasks(spark).run(_Reading(files), ranges))


class _Reading:
    """Reads both sides of each range without comparing them; returns their bytes."""

    def __init__(self, files: FlowFiles) -> None:
        self._files = files

    def __call__(self, verify_range: VerifyRange) -> int:
        return asyncio.run(_read(self._files, verify_range))


async def _read(files: FlowFiles, verify_range: VerifyRange) -> int:
    from mirrorflow_seed.verify.compared_sides import connect_clusters, range_readers  # noqa: PLC0415

    settings = files.load()
    async with connect_clusters(settings) as sides, range_readers(sides, settings, verify_range) as readers:

        async def drain(reader: OffsetRangeReader) -> None:
            while await reader.more() is not None:
                pass

        await asyncio.gather(*map(drain, readers.values()))
        return sum(reader.bytes_read for reader in readers.values())


CASES: dict[str, Case] = {"verify": verifying}
