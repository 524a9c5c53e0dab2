"""`python -m benchmarks machinery`: measures Spark's own cost of a seed without brokers, and calculates a large seed from it.

        python -m benchmarks machinery [--rate MB/s] [--begin S]    # your rate of one slot, and seconds until a task copies

Costs are the CPU time of all processes, which a busy machine hardly changes. The plan makes the task chains.
"""

import argparse
import heapq
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.machine import operator_facts
from mirrorflow_seed.job_report import SeedReport
from mirrorflow_seed.job_status_server import JobStatusServer
from mirrorflow_seed.seed.seed_plan import SeedRange, tasks_of
from mirrorflow_seed.seed.task_messages import TASK_REPORT_EVERY_S, Coordinator, SeedTaskReport, send_report
from mirrorflow_seed.settings import job_of
from mirrorflow_seed.spark_session import spark_session
from mirrorflow_seed.spark_tasks import SparkTasks
from tests.harness.kafka.processes import cpu_s

SLOTS: Final = 2
WARM_TASKS, TASKS = 200, 1_000
WORDS: Final = 500
WORD_PARTITIONS: Final = 50
# The calculated seed: executors, slots of each, partitions, and bytes of each.
EXECUTORS, CORES, PARTITIONS, PARTITION_BYTES = 100, 2, 10_000, 1_000_000_000
PODS_PER_S: Final = 20  # Spark's default of spark.kubernetes.allocation.batch.size, each second


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """CPU seconds of all processes; `slot_s` is the time for which an empty task occupies a slot."""

    session_s: float
    task_s: float
    slot_s: float
    word_s: float


def costs() -> Costs:
    """Measures the costs in a separate session."""
    own, began_s = os.getpid(), cpu_s(os.getpid())
    with spark_session(job_of({"master": f"local[{SLOTS}]"}), "machinery") as spark:
        session_s = cpu_s(own) - began_s

        tasks = SparkTasks(spark)

        def run(count: int) -> None:
            tasks.run(str, range(count))

        run(WARM_TASKS)  # starts the workers
        before_s, at_s = cpu_s(own), time.perf_counter()
        run(TASKS)
        used_s, passed_s = cpu_s(own) - before_s, time.perf_counter() - at_s
    return Costs(
        session_s=session_s,
        task_s=used_s / TASKS,
        slot_s=passed_s * SLOTS / TASKS,
        word_s=_word_s(),
    )


def _word_s() -> float:
    """Measures one report over HTTP, as tasks send it to their driver, on both ends."""
    coordinator = Coordinator()
    status_server = JobStatusServer(SeedReport(run_id="1"), handler=coordinator)
    try:
        url = status_server.url_for_tasks("127.0.0.1", "127.0.0.1")
        word = SeedTaskReport(attempt="a", next_offsets=dict.fromkeys(range(WORD_PARTITIONS), 1_000_000))
        began_s = time.process_time()
        for _ in range(WORDS):
            send_report(url, word)
        return (time.process_time() - began_s) / WORDS
    finally:
        status_server.close()


def calculated(found: Costs, *, rate_mb_per_s: float, begin_s: float) -> str:
    """Returns a sentence about the large seed, for a slot's rate and the time until a task begins to copy."""
    slots = EXECUTORS * CORES
    ranges = [
        SeedRange(index=at, topic="far", partition=at, start=0, end=1, bytes=PARTITION_BYTES)
        for at in range(PARTITIONS)
    ]
    tasks = tasks_of(ranges, slots=slots)
    ends = [0.0] * slots
    for seed_task in tasks:  # each free slot takes the next task
        heapq.heapreplace(ends, ends[0] + found.slot_s + begin_s + seed_task.bytes / 1e6 / rate_mb_per_s)
    lost = len(tasks) * (found.slot_s + begin_s) / slots / max(ends)
    return (
        f"{EXECUTORS} executors of {CORES} slots, {PARTITIONS:,} partitions of {PARTITION_BYTES / 1e9:.0f} GB: {len(tasks):,} tasks,"
        f" {max(ends) / 60:.0f} minutes at {rate_mb_per_s:.0f} MB/s a slot, of which {lost:.1%} are beginnings of {begin_s:g} s;"
        f" {EXECUTORS / PODS_PER_S:.0f} s until all pods are asked for. Both clusters have to bear {rate_mb_per_s * slots / 1000:.0f} GB/s."
        f" Spark's part of all tasks is {found.task_s * len(tasks):.0f} CPU-s; words of tasks take"
        f" {slots / TASK_REPORT_EVERY_S * found.word_s:.0%} of a core, both ends."
    )


def main(arguments: Sequence[str]) -> int:
    """Prints the costs and the calculation."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks machinery", description="What Spark costs.")
    parser.add_argument("--rate", type=float, default=50.0, help="MB/s of one slot (50)")
    parser.add_argument("--begin", type=float, default=1.0, help="seconds until a task copies (1)")
    options = parser.parse_args(arguments)
    found = costs()
    print(operator_facts(" ".join(["python -m benchmarks machinery", *arguments]))[0])
    print(
        f"- a session {found.session_s:.1f} CPU-s; a task that does nothing {found.task_s * 1000:.1f} CPU-ms and"
        f" {found.slot_s * 1000:.0f} ms of a slot; a word of a task to its driver {found.word_s * 1000:.2f} CPU-ms"
    )
    print(f"- {calculated(found, rate_mb_per_s=options.rate, begin_s=options.begin)}")
    return 0
