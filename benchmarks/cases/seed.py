"""A backlog seeded by Spark tasks on this machine's cores, compared with the connector and MM2.

4 GB in 16 partitions with large batches, or small records in single-record batches (`seed-small-batches`). Throughput counts
from the first record on the target to the last, so that it excludes starts, whose cost is noted separately.
"""

import subprocess
import sys
import time
from functools import partial

from benchmarks import copiers
from benchmarks.arena import Arena
from benchmarks.cases import Case, Extent
from benchmarks.race import CPU, THROUGHPUT, race
from benchmarks.results import Result

PARTITIONS = 16
RECORD_BYTES = 1000
BATCH_BYTES = 65_536
CORES = 2
SMALL_RECORD_BYTES = 200  # as in the case small-batches
EMPTY_TASKS = 200
ONE_SLOT = f"{copiers.SEED}, 1 slot"
# Leaders forget a producer id before this age, so such records are written in transactions.
AGE_MS = 10 * 86_400_000
# A session runs empty tasks on these cores, once to start the workers and once for the measurement.
EMPTY = f"""
import time
from mirrorflow_seed.spark_session import spark_session
from mirrorflow_seed.spark_tasks import SparkTasks
from mirrorflow_seed.settings import job_of
began = time.perf_counter()
with spark_session(job_of({{"master": "local[{CORES}]"}}), "empty") as spark:
    started = time.perf_counter()
    tasks = SparkTasks(spark)
    def run():
        return tasks.run(abs, range({EMPTY_TASKS}))
    run()
    warm = time.perf_counter()
    run()
    ended = time.perf_counter()
print(started - began, (ended - warm) / {EMPTY_TASKS} * {CORES})
"""


def _seed(age: str, arena: Arena, extent: Extent) -> Result:
    is_old = age == "old"
    records = extent.of(4_000_000, 400_000)
    topic = f"seed-{age}"
    result = Result(
        name=topic,
        title=f"a bulk seed by Spark, {'records ten days old' if is_old else 'fresh records'}",
        setting=f"{records:,} records of {RECORD_BYTES} bytes, {PARTITIONS} partitions, one broker on each side. The seed has"
        f" {CORES} task slots (local[{CORES}]); the connector has as many tasks, and one.",
    )
    arena.load(
        topic,
        records,
        partitions=PARTITIONS,
        size_bytes=RECORD_BYTES,
        batch_bytes=BATCH_BYTES,
        timestamp_ms=time.time_ns() // 1_000_000 - AGE_MS if is_old else -1,
    )
    race(
        arena,
        result,
        [
            copiers.seed(cores=CORES),
            copiers.seed(cores=1, name=ONE_SLOT),
            copiers.mirrorflow(tasks=CORES, name=f"MirrorFlow, {CORES} tasks"),
            *([] if is_old else [copiers.mirrorflow(name="MirrorFlow, 1 task"), copiers.mm2()]),
        ],
        topic,
        partitions=PARTITIONS,
        records=records,
        record_bytes=RECORD_BYTES,
        repeat=extent.repeat,
        budget_s=180.0,
        markers=is_old,
    )
    if not is_old:
        result.demand_ratio("throughput against MM2", THROUGHPUT, copiers.SEED, "MM2", sense=">=", limit=3)
    result.demand_ratio(
        "throughput against the connector on the same cores",
        THROUGHPUT,
        copiers.SEED,
        f"MirrorFlow, {CORES} tasks",
        sense=">=",
        limit=0.8,
    )
    if not is_old:
        result.notes.append(_machinery())
    return result


def _small_batches(arena: Arena, extent: Extent) -> Result:
    records = extent.of(4_000_000, 1_000_000)
    result = Result(
        name="seed-small-batches",
        title="a bulk seed by Spark, single-record batches",
        setting=f"{records:,} records of {SMALL_RECORD_BYTES} bytes, each in its own batch, {PARTITIONS} partitions, uncompressed. The"
        " seed has as many task slots as the connector has tasks.",
    )
    arena.load(
        "seed-small",
        records,
        partitions=PARTITIONS,
        size_bytes=SMALL_RECORD_BYTES,
        single_record_batches=True,
    )
    one_task, tasks = "MirrorFlow, 1 task", f"MirrorFlow, {CORES} tasks"
    race(
        arena,
        result,
        [
            copiers.seed(cores=CORES),
            copiers.mirrorflow(tasks=CORES, name=tasks),
            copiers.seed(cores=1, name=ONE_SLOT),
            copiers.mirrorflow(name=one_task),
        ],
        "seed-small",
        partitions=PARTITIONS,
        records=records,
        record_bytes=SMALL_RECORD_BYTES,
        repeat=extent.repeat,
        budget_s=180.0,
    )
    for slots, connector in ((copiers.SEED, tasks), (ONE_SLOT, one_task)):
        result.demand_ratio(
            f"CPU per GB, {slots} against {connector}", CPU, slots, connector, sense="<=", limit=1.15
        )
    return result


def _machinery() -> str:
    """Measures Spark's own cost: the start of a session, and an empty task."""
    finished = subprocess.run(
        [sys.executable, "-c", EMPTY], capture_output=True, text=True, check=True, timeout=300
    )
    start_s, task_s = map(float, finished.stdout.split())
    return f"Spark's own machinery: {start_s:.1f} s until a session is there, {task_s * 1000:.0f} ms of a core for a task that does nothing."


CASES: dict[str, Case] = {
    **{f"seed-{age}": partial(_seed, age) for age in ("fresh", "old")},
    "seed-small-batches": _small_batches,
}
