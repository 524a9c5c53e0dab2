"""`python -m benchmarks machinery`: measures Spark's own cost of a seed without brokers, and calculates a large seed from it.

        python -m benchmarks machinery [--rate MB/s] [--begin S]    # your rate of one slot, and seconds until a task copies
        python -m benchmarks machinery --waves                      # only the calculated seeds, without Spark
        python -m benchmarks machinery --windows 5000000            # the driver's memory in a verification of so many windows
        python -m benchmarks machinery --results 400000             # the CPU of continuing an export of so many files

Costs are the CPU time of all processes, which a busy machine hardly changes. The plan makes the task chains. The windows of
a verification are imagined by real Spark tasks, which write them as always.
"""

import argparse
import heapq
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Final, NoReturn

from benchmarks.machine import operator_facts
from mirrorflow_replicator import process
from mirrorflow_seed.archive.export_plan import FILE_BYTES, ExportRange
from mirrorflow_seed.archive.export_task import ExportedFile
from mirrorflow_seed.archive.manifest import Manifest
from mirrorflow_seed.archive.pending_export import ExportPlan, PendingExport, remaining
from mirrorflow_seed.archive.record_tally import Tally
from mirrorflow_seed.job_report import SeedReport
from mirrorflow_seed.job_status_server import JobStatusServer
from mirrorflow_seed.seed.seed_plan import SeedRange, tasks_of
from mirrorflow_seed.seed.task_messages import TASK_REPORT_EVERY_S, Coordinator, SeedTaskReport, send_report
from mirrorflow_seed.settings import JobSettings, job_of
from mirrorflow_seed.spark_session import spark_session
from mirrorflow_seed.spark_tasks import SparkTasks
from mirrorflow_seed.storage_folder import StorageFolder
from mirrorflow_seed.verify.compared_sides import CompareSettings, cluster_sides
from mirrorflow_seed.verify.comparison_tasks import KeySides, SparkComparison
from mirrorflow_seed.verify.offset_windows import (
    WINDOW_OFFSETS,
    VerifyPlanSettings,
    VerifyRange,
    VerifyRangeResult,
    WindowOutcome,
    WindowResult,
)
from mirrorflow_seed.verify.result_folder import ResultFolder
from mirrorflow_seed.verify.verification_result import VerificationResult
from mirrorflow_seed.verify.verify_progress import VerifyProgress
from tests.harness.kafka.processes import cpu_s, family, program_of

SLOTS: Final = 2
WARM_TASKS, TASKS = 200, 1_000
WORDS: Final = 500
WORD_PARTITIONS: Final = 50
# The calculated seed: executors, slots of each, partitions, and bytes of each.
EXECUTORS, CORES, PARTITIONS, PARTITION_BYTES = 100, 2, 10_000, 5_000_000_000
# One partition of it, in a second calculation; the others share the rest.
LARGEST_BYTES: Final = 1_000_000_000_000
PARTITION_WINDOWS: Final = 500  # of an imagined verification
PODS_PER_S: Final = 20  # Spark's default of spark.kubernetes.allocation.batch.size, each second


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """CPU seconds of all processes; `slot_s` is the time for which an empty task occupies a slot."""

    session_s: float
    task_s: float
    slot_s: float
    word_s: float


# Measured by `costs` on two idle cores, at acc111da.
IDLE_COSTS: Final = Costs(session_s=2.7, task_s=0.012, slot_s=0.047, word_s=0.001)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverMemory:
    """Peak memory of the two processes of a driver."""

    python_bytes: int
    jvm_bytes: int


def imagined_windows(ranges: Sequence[VerifyRange], _: CompareSettings) -> list[VerifyRangeResult]:
    """Returns equal windows of *ranges*, each with different digests, as where batches of both sides differ."""
    return [
        VerifyRangeResult(
            windows=tuple(_imagined_window(verify_range, start) for start in _starts(verify_range)),
            behind=0,
            bytes_read=0,
            seconds=0.0,
            memory_bytes=0,
        )
        for verify_range in ranges
    ]


def _starts(verify_range: VerifyRange) -> range:
    return range(verify_range.source_from, verify_range.source_to, verify_range.window_offsets)


def _imagined_window(verify_range: VerifyRange, start: int) -> WindowResult:
    end = start + verify_range.window_offsets
    digest = blake2b(f"{verify_range.partition} {start}".encode(), digest_size=16).hexdigest()
    return WindowResult(
        topic=verify_range.topic, partition=verify_range.partition, target_topic=verify_range.target_topic,
        from_offset=start, to_offset=end, target_from_offset=start + 17, target_to_offset=end + 17,
        source_count=end - start, target_count=end - start, source_sum=digest, target_sum=digest,
        source_chain=digest[::-1], target_chain=digest[::-1], digested=99, ordered_equal=True,
        outcome=WindowOutcome.EQUAL,
    )  # fmt: skip


def driver_memory(windows: int) -> DriverMemory:
    """Runs a verification of *windows* windows on Spark, in partitions of PARTITION_WINDOWS, and writes its result."""
    range_windows = VerifyPlanSettings(run_id="1").with_range_limit(windows * WINDOW_OFFSETS).range_windows
    range_offsets = range_windows * WINDOW_OFFSETS
    ranges = [
        VerifyRange(
            topic="far", target_topic="near.far", partition=number // max(1, PARTITION_WINDOWS // range_windows),
            source_from=number * range_offsets, source_to=(number + 1) * range_offsets,
            target_from=number * range_offsets, target_to=(number + 1) * range_offsets,
        )
        for number in range(windows // range_windows)
    ]  # fmt: skip
    with (
        tempfile.TemporaryDirectory() as folder,
        spark_session(job_of({"master": f"local[{SLOTS}]"}), "machinery") as spark,
    ):
        compare_settings, result_folder = (
            CompareSettings(run_id="1"),
            ResultFolder(job_of({"output": folder})),
        )
        comparison = SparkComparison(
            tasks=SparkTasks(spark),
            inputs_of=list,
            compare=imagined_windows,
            sides=KeySides(load=_no_settings, open=cluster_sides),
            settings=compare_settings,
            progress=VerifyProgress(),
            table=result_folder.begin_table("far-to-near"),
        )
        results = comparison.compare_in_order(ranges)
        result_folder.complete_table(results, ())
        verification = VerificationResult(
            run_id="1", flow="far-to-near", source_alias="far", target_alias="near", sample=1.0,
            summaries=[result.windows for result in results], partitions=len(ranges), behind=0,
        )  # fmt: skip
        assert verification.counts.equal == len(ranges) * range_windows
        result_folder.write(verification)
        jvm = next(pid for pid in family(os.getpid()) if program_of(pid).startswith("java"))
        return DriverMemory(python_bytes=process.peak_bytes(), jvm_bytes=_peak_bytes(jvm))


def _no_settings() -> NoReturn:
    raise AssertionError("no partition is compacted")


def _peak_bytes(pid: int) -> int:
    """Returns the peak resident memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))


def result_reading_cpu_s(count: int) -> float:
    """Measures reading the results of *count* files of a killed export from a local folder, and finding what is left."""
    ranges = tuple(
        ExportRange(
            index=index, topic="far", partition=index % 100, start=0, end=1_000, size_bytes=FILE_BYTES
        )
        for index in range(count)
    )
    content = Manifest(
        archive_id="a", flow="f", source_alias="far", source_cluster_id="c", isolation="read_uncommitted",
        started="", finished="", topics=(),
    )  # fmt: skip
    plan = ExportPlan(plan_id="plan", number=1, content=content, ranges=ranges)
    present: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / plan.results
        results.mkdir(parents=True)
        for part in ranges:
            path = f"_temporary/plan/part-plan-{part.index:05d}-0-token.zstd.parquet"
            exported = ExportedFile(
                index=part.index, start=part.start, end=part.end, codec=0, gaps=(), bytes_read=1, seconds=1.0,
                tally=Tally(records=1_000, bytes=1 << 20, digest="a" * 32),
                path=path, size_bytes=part.size_bytes,
            )  # fmt: skip
            (results / f"{part.index}.json").write_bytes(exported.encode())
            present[path] = exported.size_bytes
        began_s = time.process_time()
        stored = PendingExport(StorageFolder(folder), plan.number).exported(plan, present)
        assert not remaining(plan, stored)
        return time.process_time() - began_s


@dataclass(frozen=True, slots=True, kw_only=True)
class CalculatedSeed:
    """A seed of large clusters, wave by wave."""

    tasks: int
    waves: int
    seconds: float
    starting: float  # the share of all slots' time in which tasks start


def calculated(
    sizes: Sequence[int], *, slot_s: float, rate_mb_per_s: float, begin_s: float
) -> CalculatedSeed:
    """Runs the planned tasks of partitions with *sizes* on imagined slots: a free slot takes the next task.

    A task that yields ends after the time of a wave, and what is left of it is planned in the next wave, as in the driver.
    """
    slots, wave_s = EXECUTORS * CORES, JobSettings(extra={}).wave_s
    left = dict(enumerate(sizes))
    seconds, tasks_run, waves = 0.0, 0, 0
    while left:
        ranges = [
            SeedRange(index=index, topic="far", partition=index, start=0, end=1, bytes=size)
            for index, size in left.items()
        ]
        ends = [0.0] * slots
        left = {}
        tasks = tasks_of(ranges, slots=slots)
        for seed_task in tasks:
            copying_s = seed_task.bytes / 1e6 / rate_mb_per_s
            if seed_task.yields and copying_s > wave_s:
                for seed_range in seed_task.ranges:  # all of them are copied at once
                    left[seed_range.index] = round(seed_range.bytes * (1 - wave_s / copying_s))
                copying_s = wave_s
            heapq.heapreplace(ends, ends[0] + slot_s + begin_s + copying_s)
        seconds, tasks_run, waves = seconds + max(ends), tasks_run + len(tasks), waves + 1
    return CalculatedSeed(
        tasks=tasks_run,
        waves=waves,
        seconds=seconds,
        starting=tasks_run * (slot_s + begin_s) / slots / seconds,
    )


def sentences(costs_found: Costs, *, rate_mb_per_s: float, begin_s: float) -> list[str]:
    """Returns the calculated seeds in words, for a slot's rate and the time until a task begins to copy."""
    slots = EXECUTORS * CORES
    even = [PARTITION_BYTES] * PARTITIONS
    rest = (sum(even) - LARGEST_BYTES) // (PARTITIONS - 1)
    skewed = [LARGEST_BYTES, *[rest] * (PARTITIONS - 1)]
    lines = []
    for sizes in (even, skewed):
        seed = calculated(sizes, slot_s=costs_found.slot_s, rate_mb_per_s=rate_mb_per_s, begin_s=begin_s)
        least_h = max(sizes) / 1e6 / rate_mb_per_s / 3600
        lines.append(
            f"{EXECUTORS} executors of {CORES} slots, {sum(sizes) / 1e12:.0f} TB in {len(sizes):,} partitions, the largest of"
            f" {max(sizes) / 1e9:,.0f} GB: {seed.tasks:,} tasks in {seed.waves} {'wave' if seed.waves == 1 else 'waves'},"
            f" {seed.seconds / 3600:.1f} hours at {rate_mb_per_s:.0f} MB/s a slot, of which {seed.starting:.1%} are starts of"
            f" {begin_s:g} s. The largest partition alone takes {least_h:.1f} hours. Spark's part of all tasks is"
            f" {costs_found.task_s * seed.tasks:.0f} CPU-s."
        )
    return [
        *lines,
        (
            f"Spark requests all pods in {EXECUTORS / PODS_PER_S:.0f} s. Each cluster sustains {rate_mb_per_s * slots / 1000:.0f} GB/s."
            f" Progress reports take {slots / TASK_REPORT_EVERY_S * costs_found.word_s:.0%} of a core, both ends."
        ),
    ]


def main(arguments: Sequence[str]) -> int:
    """Prints the costs and the calculation."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks machinery", description="What Spark costs.")
    parser.add_argument("--rate", type=float, default=50.0, help="MB/s of one slot (50)")
    parser.add_argument("--begin", type=float, default=1.0, help="seconds until a task copies (1)")
    parser.add_argument(
        "--windows", type=int, help="measure the driver's memory in a verification of so many windows"
    )
    parser.add_argument(
        "--results", type=int, help="measure reading the results of so many files of a killed export"
    )
    parser.add_argument(
        "--waves",
        action="store_true",
        help="only calculate the seeds, with costs of idle cores, without Spark",
    )
    options = parser.parse_args(arguments)
    if options.waves:
        for sentence in sentences(IDLE_COSTS, rate_mb_per_s=options.rate, begin_s=options.begin):
            print(f"- {sentence}")
        return 0
    if options.results:
        used_s = result_reading_cpu_s(options.results)
        print(operator_facts(" ".join(["python -m benchmarks machinery", *arguments]))[0])
        print(f"- reading {options.results:,} results of a killed export: {used_s:.1f} CPU-s")
        return 0
    if options.windows:
        memory = driver_memory(options.windows)
        print(operator_facts(" ".join(["python -m benchmarks machinery", *arguments]))[0])
        print(
            f"- the driver of a verification of {options.windows:,} windows: {memory.python_bytes / 1e6:.0f} MB of Python,"
            f" {memory.jvm_bytes / 1e6:.0f} MB of Java"
        )
        return 0
    measured = costs()
    print(operator_facts(" ".join(["python -m benchmarks machinery", *arguments]))[0])
    print(
        f"- a session {measured.session_s:.1f} CPU-s; a task that does nothing {measured.task_s * 1000:.1f} CPU-ms and"
        f" {measured.slot_s * 1000:.0f} ms of a slot; a word of a task to its driver {measured.word_s * 1000:.2f} CPU-ms"
    )
    for sentence in sentences(measured, rate_mb_per_s=options.rate, begin_s=options.begin):
        print(f"- {sentence}")
    return 0
