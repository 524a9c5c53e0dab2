"""Two clusters compared by `mirrorflow-seed verify` on `local[n]`: records a second of both sides together, start-up excluded.

Beside it the same stretches read by the same tasks and thrown away, which is what the brokers and the sockets give, and
the same comparison with every record decoded and digested. Spark's JVM is started before and counts nowhere; planning does.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from benchmarks import copiers
from benchmarks.arena import Arena
from benchmarks.cases import Case, Extent
from benchmarks.results import Result
from benchmarks.watch import end_offsets
from mirrorflow_seed.settings import FlowFiles, job_of
from mirrorflow_seed.verify.splits import Split
from tests.harness.kafka.processes import wait_until

if TYPE_CHECKING:
    from pyspark import SparkContext

PARTITIONS = 8
RECORD_BYTES = 1000
COPY_WAIT_S = 300.0
MIB = 1 << 20
RATE = "records/s"
CORES = (1, 2)
RATE_MIN = 1_000_000.0
TASK_MIB_MAX = 256.0
EMPTY_TASKS = 40  # for what a task costs that does nothing


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
    with arena.running(copiers.ours(), flow) as child:
        wait_until(
            f"{remote} has {records} records",
            lambda: remote in arena.west.topics() and end_offsets(arena.west, remote, PARTITIONS) >= records,
            timeout_s=COPY_WAIT_S,
        )
        child.stop()  # in order, so that positions are stored
        worker, source = copiers.files_of_ours(flow)
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
    from mirrorflow_seed.session import spark_context  # noqa: PLC0415 pyspark is not needed for the other cases

    master = {"master": f"local[{cores}]"}
    with spark_context(job_of(master), "benchmark") as spark:
        spark.parallelize(range(cores), cores).map(str).collect()  # workers are started
        result.add(_name(cores, "empty task"), ms=_empty_task_ms(spark, cores))
        for _ in range(repeat):
            seconds, read = _timed(lambda: _bare(spark, files, master))
            result.add(
                _name(cores, "read and thrown away"),
                **{RATE: 2 * records / seconds, "MB/s": read / 1e6 / seconds},
            )
            seconds, said = _timed(lambda: _verified(files, master, spark))
            if said["windows"]["equal"] != said["windows"]["total"] or said["sourceRecords"] != records:
                result.notes.append(f"Not all was equal: {said['message']}")
            result.add(
                _name(cores),
                **{
                    RATE: (said["sourceRecords"] + said["targetRecords"]) / seconds,
                    "MB/s": said["cost"]["bytesRead"] / 1e6 / seconds,
                    "task_MiB": said["taskMemoryBytes"] / MIB,
                },
            )
        seconds, said = _timed(lambda: _verified(files, {**master, "decode.all": "true"}, spark))
        result.add(
            _name(cores, "compared record by record"),
            **{
                RATE: (said["sourceRecords"] + said["targetRecords"]) / seconds,
                "task_MiB": said["taskMemoryBytes"] / MIB,
            },
        )


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    found = work()
    return time.perf_counter() - began, found


def _empty_task_ms(spark: "SparkContext", cores: int) -> float:
    seconds, _ = _timed(lambda: spark.parallelize(range(EMPTY_TASKS), EMPTY_TASKS).map(str).collect())
    return seconds * 1000 * cores / EMPTY_TASKS


def _verified(files: FlowFiles, job: dict[str, str], spark: "SparkContext") -> dict[str, Any]:
    from mirrorflow_seed.verify.command import verification  # noqa: PLC0415

    found: dict[str, Any] = verification(files, job_of(job), spark).as_json()
    return found


def _bare(spark: "SparkContext", files: FlowFiles, job: dict[str, str]) -> int:
    from mirrorflow_seed.verify.command import planned  # noqa: PLC0415

    splits = planned(files.load(), job_of(job)).splits
    return sum(spark.parallelize(splits, len(splits)).mapPartitions(_Reading(files)).collect())


class _Reading:
    """Both sides of each stretch, read and thrown away; bytes."""

    def __init__(self, files: FlowFiles) -> None:
        self._files = files

    def __call__(self, splits: Iterable[Split]) -> Iterator[int]:
        import asyncio  # noqa: PLC0415

        from mirrorflow_seed.verify.stretch import read_stretch  # noqa: PLC0415

        settings = self._files.load()
        for split in splits:
            yield asyncio.run(read_stretch(settings, split))


CASES: dict[str, Case] = {"verify": verifying}
