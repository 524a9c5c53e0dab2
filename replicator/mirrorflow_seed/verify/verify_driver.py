"""The driver of a verification: plans, compares in a Spark job, and writes the result.

It writes nothing to either cluster. Exit status: 0 all compared windows are equal; 1 a window is not equal or
is undecided; 2 the settings are invalid; 3 stopped by a signal; 4 it could not compare; 5 no topic is selected.

A task receives paths and offsets, reads the connector's files itself and resolves secrets where it runs. Tasks only
read, so Spark may retry them; one result of each task counts.
"""

import asyncio
import contextlib
import json
import logging
import secrets
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from mirrorflow_core.errors import AuthenticationFailedError, MirrorFlowError, SettingError, UnreachableError
from mirrorflow_core.replication_policy import flow_name
from mirrorflow_core.settings import SourceSettings
from mirrorflow_replicator import process
from mirrorflow_seed.errors import (
    EXIT_DIFFERENT,
    EXIT_DONE,
    EXIT_STOPPED,
    FileSystemError,
    SeedError,
)
from mirrorflow_seed.job_report import Cost, JobPhase, OutcomeCounts, VerifyReport
from mirrorflow_seed.job_status_server import Display, JobStatusServer, post_message
from mirrorflow_seed.settings import FlowFiles, JobSettings, flag_of, whole_of
from mirrorflow_seed.spark_session import driver_address, job_error, spark_session
from mirrorflow_seed.spark_tasks import SparkTasks, rates_of_tasks, run_watched, share_files, watch_job
from mirrorflow_seed.verify.key_comparison import GROUP as KEY_GROUP
from mirrorflow_seed.verify.key_comparison import ORDER as KEY_ORDER
from mirrorflow_seed.verify.key_comparison import SCHEMA as KEY_SCHEMA
from mirrorflow_seed.verify.key_comparison import (
    KeyLogPart,
    compare_key_rows,
    log_parts,
    read_key_rows,
    rows_of,
    settle_key_classes,
)
from mirrorflow_seed.verify.offset_windows import (
    KEYS_MAX,
    RANGE_WINDOWS,
    WINDOW_OFFSETS,
    ComparisonMethod,
    VerifyPlanSettings,
    VerifyRange,
    WindowOutcome,
)
from mirrorflow_seed.verify.partition_planner import PartitionLayout, VerifyPlan
from mirrorflow_seed.verify.range_comparison import (
    CompareSettings,
    OpenSides,
    VerifyRangeResult,
    cluster_sides,
    compare_ranges,
    connect_clusters,
)
from mirrorflow_seed.verify.result_folder import ResultFolder
from mirrorflow_seed.verify.verification_result import (
    VerificationResult,
    VerifyTaskResult,
    WindowSummary,
    not_equal_max,
    pack,
    with_progress,
)
from mirrorflow_seed.verify.verify_plan import joined_plan, partition_layouts, plan_layouts, planning_groups
from mirrorflow_seed.verify.window_table import WindowTable

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql import SparkSession

VerifyFunction = Callable[
    [FlowFiles, JobSettings, "SparkSession", "VerifyProgress", ResultFolder], VerificationResult
]
T = TypeVar("T")
S = TypeVar("S", VerifyRange, KeyLogPart)
_LOG: Final = logging.getLogger(__name__)
OUTCOMES: Final = tuple(outcome.value for outcome in WindowOutcome)
# Starting a task takes 50 ms in Spark and as much for connections, so small ranges share tasks.
GROUP_OFFSETS_MAX: Final = 1_000_000
GROUP_RANGES_MAX: Final = 100
# Spark's driver keeps several KB for each task of a job: with 50 TB, tasks are larger than GROUP_OFFSETS_MAX.
TASKS_MAX: Final = 20_000
TASKS_PER_SLOT_MIN: Final = 4  # so that the job does not end with one long task


class StoppedError(BaseException):
    """A signal arrived. It is no `Exception`, which py4j would treat as a lost connection within a call to the JVM."""


def run(
    files: FlowFiles,
    job: JobSettings,
    *,
    display: Display | None = None,
    spark: "SparkSession | None" = None,
    verify: "VerifyFunction | None" = None,
) -> int:
    """Runs a verification and returns its exit status; also called by the `mirrorflow` command.

    With *spark*, or an active session, the job uses that and leaves it open. *verify* plans and compares, by
    default `verify_flow`.

    Raises SeedError, MirrorFlowError.
    """
    progress = VerifyProgress()
    status_server = JobStatusServer(VerifyReport(run_id=job.run_id), display=display, handler=progress)
    try:
        with raise_on_sigterm():
            verification = _verify(files, job, status_server, progress, spark, verify)
    except StoppedError:
        _publish_end(status_server, JobPhase.PAUSED, "Stopped by a signal; the next run starts over.")
        return EXIT_STOPPED
    except (SeedError, MirrorFlowError) as error:
        # The report is public, so it has only messages that name no topic: errors of clusters and folders.
        is_public = isinstance(
            error, (UnreachableError, AuthenticationFailedError, SettingError, FileSystemError)
        )
        message = str(error) if is_public else f"{type(error).__name__}; the log has the details."
        _publish_end(status_server, JobPhase.FAILED, message)
        raise
    else:
        status_server.publish(verification.report)
        return EXIT_DONE if verification.is_equal else EXIT_DIFFERENT
    finally:
        status_server.close()


def _verify(
    files: FlowFiles,
    job: JobSettings,
    status_server: JobStatusServer,
    progress: "VerifyProgress",
    spark: "SparkSession | None",
    verify: "VerifyFunction | None",
) -> VerificationResult:
    result = ResultFolder(job)
    result.prepare()
    with spark_session(job, f"mirrorflow-verify-{job.run_id}", spark) as session:
        progress.publish = status_server.publish
        progress.url = status_server.url_for_tasks(*driver_address(session))
        progress.begin(VerifyReport(run_id=job.run_id))
        verification = (verify or verify_flow)(files, job, session, progress, result)
        # In a cluster without an output folder, this line is all that is kept of the result. It has no record data.
        _LOG.info("%s", json.dumps(verification.as_json()))
    result.write(verification)
    return verification


def verify_flow(
    files: FlowFiles,
    job: JobSettings,
    spark: "SparkSession",
    progress: "VerifyProgress",
    result: ResultFolder,
) -> VerificationResult:
    """Plans and compares source and target, and writes the table of *result*. Raises SeedError, SettingError, ClusterError."""
    began = time.perf_counter()
    settings = files.load()
    task_files = share_files(spark, files, are_mounted=job.has_mounted_files)
    tasks = SparkTasks(spark)
    verify_plan = plan_verification(settings, job, PlanningTasks(tasks, task_files, progress))
    progress.begin(first_report(job, verify_plan))
    results = compare_on_spark(
        tasks,
        verify_plan.ranges,
        task_files,
        compare_settings_of(settings, job),
        progress,
        result.begin_table(flow_name(settings.flow)),
    )
    result.complete_table(results, verify_plan.undecided)
    return combine_results(settings, job, verify_plan, results, time.perf_counter() - began)


def compare_settings_of(settings: SourceSettings, job: JobSettings) -> CompareSettings:
    """Returns the settings of the comparison. Raises JobSettingError."""
    return CompareSettings(
        run_id=job.run_id,
        decode_all=flag_of(job.extra, "decode.all"),
        bytes_per_second=job.bytes_per_second or settings.bytes_per_second,
    )


def first_report(job: JobSettings, verify_plan: VerifyPlan) -> VerifyReport:
    """Returns the report of the plan, before anything is compared."""
    expected = len(verify_plan.undecided) + sum(verify_range.windows for verify_range in verify_plan.ranges)
    return VerifyReport(
        run_id=job.run_id,
        phase=JobPhase.RUNNING,
        windows=OutcomeCounts(total=expected, undecided=len(verify_plan.undecided)),
    )


@dataclass(frozen=True, slots=True)
class PlanningTasks:
    """Plans groups of partitions in Spark tasks."""

    tasks: SparkTasks
    files: FlowFiles
    progress: "VerifyProgress"

    def plan(
        self, groups: Sequence[list[PartitionLayout]], plan_settings: VerifyPlanSettings
    ) -> list[VerifyPlan]:
        """Returns the plan of each group. Raises JobFailedError."""
        work = partial(plan_group, plan_settings=plan_settings, files=self.files)
        return plan_in_tasks(self.tasks, work, groups, self.progress)


def plan_in_tasks(
    tasks: SparkTasks,
    plan: Callable[[list[PartitionLayout]], VerifyPlan],
    groups: Sequence[list[PartitionLayout]],
    progress: "VerifyProgress",
) -> list[VerifyPlan]:
    """Returns the plan of each group, made in a Spark task. Raises JobFailedError."""
    try:
        return run_watched(tasks, plan, groups, progress.report)
    except Exception as error:
        raise job_error(error, "The job failed") from error


def plan_group(
    layouts: list[PartitionLayout], *, plan_settings: VerifyPlanSettings, files: FlowFiles
) -> VerifyPlan:
    """Plans these partitions in a Spark task. Raises ClusterError, SettingError, OSError."""
    process.tune_memory()
    return asyncio.run(_plan_layouts(files.load(), plan_settings, layouts))


async def _plan_layouts(
    settings: SourceSettings, plan_settings: VerifyPlanSettings, layouts: Sequence[PartitionLayout]
) -> VerifyPlan:
    async with connect_clusters(settings) as sides:
        return await plan_layouts(sides["source"], sides["target"], settings, plan_settings, layouts)


def plan_verification(
    settings: SourceSettings,
    job: JobSettings,
    planning_tasks: PlanningTasks | None = None,
    *,
    selects: Callable[[PartitionLayout], bool] = lambda _: True,
) -> VerifyPlan:
    """Reads both clusters and returns the plan of the partitions that *selects* selects; with *planning_tasks*, large plans are made there.

    Raises JobSettingError, SettingError, ClusterError, JobFailedError.
    """
    plan_settings = plan_settings_of(job)
    notes: list[str] = []
    layouts = list(filter(selects, asyncio.run(_partition_layouts(settings, plan_settings, notes))))
    groups = planning_groups(layouts, plan_settings)
    if planning_tasks is None or len(groups) < 2:
        plans = [asyncio.run(_plan_layouts(settings, plan_settings, layouts))]
    else:
        plans = planning_tasks.plan(groups, plan_settings)
    return joined_plan(plans, notes)


def plan_settings_of(job: JobSettings) -> VerifyPlanSettings:
    """Returns the settings of the plan. Raises JobSettingError."""
    return VerifyPlanSettings(
        run_id=job.run_id,
        sample=job.sample,
        window_offsets=whole_of(job.extra, "window.offsets", WINDOW_OFFSETS),
        range_windows=whole_of(job.extra, "split.windows", RANGE_WINDOWS),
        keys_max=whole_of(job.extra, "keys.max", KEYS_MAX),
        timestamps=not flag_of(job.extra, "ignore.timestamps"),
    )


async def _partition_layouts(
    settings: SourceSettings, plan_settings: VerifyPlanSettings, notes: list[str]
) -> list[PartitionLayout]:
    async with connect_clusters(settings) as sides:
        return await partition_layouts(sides["source"], sides["target"], settings, plan_settings, notes)


def combine_results(
    settings: SourceSettings,
    job: JobSettings,
    verify_plan: VerifyPlan,
    results: Sequence[VerifyTaskResult],
    seconds: float,
) -> VerificationResult:
    """Combines the plan and the results of all tasks into the result of the run."""
    return VerificationResult(
        run_id=job.run_id,
        flow=flow_name(settings.flow),
        source_alias=settings.source_alias,
        target_alias=settings.target_alias,
        sample=job.sample,
        summaries=[WindowSummary.of(verify_plan.undecided), *(result.windows for result in results)],
        partitions=verify_plan.partitions,
        behind=sum(result.behind for result in results),
        notes=verify_plan.notes,
        cost=Cost(
            executor_seconds=sum(result.seconds for result in results),
            bytes_read=sum(result.bytes_read for result in results),
        ),
        seconds=seconds,
        task_memory_bytes=max((result.memory_bytes for result in results), default=0),
    )


def _publish_end(status_server: JobStatusServer, phase: JobPhase, message: str) -> None:
    newest = status_server.newest
    assert isinstance(newest, VerifyReport)
    status_server.publish(replace(newest, phase=phase, message=message))


@contextlib.contextmanager
def raise_on_sigterm() -> Iterator[None]:
    """Raises StoppedError on SIGTERM, if in the main thread; Ctrl-C still raises KeyboardInterrupt."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise StoppedError

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def compare_group(
    ranges: Sequence[VerifyRange], compare_settings: CompareSettings, *, files: FlowFiles
) -> list[VerifyRangeResult]:
    """Compares ranges in a Spark task. Raises ClusterError, SettingError, OSError."""
    process.tune_memory()
    return asyncio.run(compare_ranges(files.load(), ranges, compare_settings))


def group_ranges(ranges: Sequence[S], slots: int, *, is_limited: bool = False) -> list[list[S]]:
    """Returns the ranges of each task, in order: large enough to be worth a start, and enough tasks for *slots*.

    *is_limited*: the job has a rate, which is divided among all tasks beforehand; then there are no more than slots.
    """
    offsets = sum(item.offsets for item in ranges)
    room = (
        -(-offsets // slots)
        if is_limited
        else max(min(GROUP_OFFSETS_MAX, offsets // (slots * TASKS_PER_SLOT_MIN)), offsets // TASKS_MAX)
    )
    count_max = max(GROUP_RANGES_MAX, -(-len(ranges) // TASKS_MAX))
    groups: list[list[S]] = []
    filled = 0
    for item in ranges:
        is_full = filled + item.offsets > room or (groups and len(groups[-1]) == count_max)
        if not groups or (is_full and not (is_limited and len(groups) == slots)):
            groups.append([])
            filled = 0
        groups[-1].append(item)
        filled += item.offsets
    return groups


def compare_on_spark(
    tasks: SparkTasks,
    ranges: Sequence[VerifyRange],
    files: FlowFiles,
    compare_settings: CompareSettings,
    progress: "VerifyProgress",
    table: WindowTable | None,
) -> list[VerifyTaskResult]:
    """Compares *ranges* of source and target in a Spark job, as `run_groups`."""
    return run_groups(
        tasks,
        ranges,
        list,
        partial(compare_group, files=files),
        KeySides(load=files.load, open=cluster_sides),
        compare_settings,
        progress,
        table,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySides:
    """How a task that compares keys loads the flow's settings and opens both sides."""

    load: Callable[[], SourceSettings]
    open: OpenSides


def run_groups(
    tasks: SparkTasks,
    ranges: Sequence[VerifyRange],
    inputs_of: Callable[[Sequence[VerifyRange]], list[T]],
    compare: Callable[[list[T], CompareSettings], list[VerifyRangeResult]],
    sides: KeySides,
    compare_settings: CompareSettings,
    progress: "VerifyProgress",
    table: WindowTable | None,
) -> list[VerifyTaskResult]:
    """Runs *compare* in Spark tasks on what *inputs_of* makes of groups of *ranges*, and returns their results.

    Tasks write their windows to *table*.

    Compacted partitions are then read from *sides*, and compared by their keys. The rate of *compare_settings* is that
    of the whole job. Raises JobFailedError.
    """
    compacted = [
        verify_range for verify_range in ranges if verify_range.method is ComparisonMethod.NEWEST_PER_KEY
    ]
    in_order = [verify_range for verify_range in ranges if verify_range.method is ComparisonMethod.IN_ORDER]
    parts = _with_rates(log_parts(compacted), tasks, compare_settings)
    classes = sum(len(verify_range.key_classes) for verify_range in compacted)
    combining_tasks = max(1, min(classes, tasks.slots * TASKS_PER_SLOT_MIN))
    rate = compare_settings.bytes_per_second
    lookup_rate = None if rate is None else max(1.0, rate / combining_tasks)
    results = compare_groups(tasks, in_order, inputs_of, compare, compare_settings, progress, table)
    try:
        results += watch_job(
            tasks,
            lambda: tasks.run_shuffled(
                partial(_read_keys, sides=sides, compare_settings=compare_settings),
                parts,
                KEY_SCHEMA,
                keys=KEY_GROUP,
                order=KEY_ORDER,
                partitions=combining_tasks,
                combine=partial(
                    _compare_keys,
                    ranges=compacted,
                    compare_settings=replace(compare_settings, bytes_per_second=lookup_rate),
                    sides=sides,
                    collector=WindowCollector(
                        url=progress.url,
                        table=table,
                        not_equal_max=not_equal_max(combining_tasks),
                        lists_all=compare_settings.lists_all,
                    ),
                ),
            ),
            progress.report,
        )
    except Exception as error:
        raise job_error(error, "The job failed") from error
    return results


def compare_groups(
    tasks: SparkTasks,
    ranges: Sequence[VerifyRange],
    inputs_of: Callable[[Sequence[VerifyRange]], list[T]],
    compare: Callable[[list[T], CompareSettings], list[VerifyRangeResult]],
    compare_settings: CompareSettings,
    progress: "VerifyProgress",
    table: WindowTable | None,
) -> list[VerifyTaskResult]:
    """Compares *ranges* in order, as `run_groups`. Raises JobFailedError."""
    groups = _with_rates(ranges, tasks, compare_settings)
    collector = WindowCollector(
        url=progress.url,
        table=table,
        not_equal_max=not_equal_max(len(groups)),
        lists_all=compare_settings.lists_all,
    )
    work = partial(_compare_numbered, compare=compare, compare_settings=compare_settings, collector=collector)
    inputs = [(number, inputs_of(group), rate) for number, (group, rate) in enumerate(groups)]
    try:
        return run_watched(tasks, work, inputs, progress.report)
    except Exception as error:
        raise job_error(error, "The job failed") from error


def _with_rates(
    ranges: Sequence[S], tasks: SparkTasks, compare_settings: CompareSettings
) -> list[tuple[list[S], int | None]]:
    """Returns the ranges of each task, with its part of the rate."""
    rate = compare_settings.bytes_per_second
    groups = group_ranges(ranges, tasks.slots, is_limited=rate is not None)
    sizes = [sum(item.offsets for item in group) for group in groups]
    rates = rates_of_tasks(None if rate is None else round(rate), sizes) if groups else []
    return list(zip(groups, rates, strict=True))


def _read_keys(
    group: tuple[list[KeyLogPart], int | None], *, sides: KeySides, compare_settings: CompareSettings
) -> "Iterator[RecordBatch]":
    """Reads parts of compacted logs in a Spark task, at their part of the rate."""
    parts, rate = group
    settings = replace(compare_settings, bytes_per_second=rate)
    yield from read_key_rows(parts, settings, load=sides.load, open_sides=sides.open)


def _compare_keys(
    batches: "Iterable[RecordBatch]",
    *,
    ranges: Sequence[VerifyRange],
    compare_settings: CompareSettings,
    sides: KeySides,
    collector: "WindowCollector",
) -> Iterator[VerifyTaskResult]:
    """Compares classes of keys in a Spark task."""
    from pyspark import TaskContext  # noqa: PLC0415 the extra `seed`

    comparisons = compare_key_rows(rows_of(batches), ranges, lists_all=compare_settings.lists_all)
    results = asyncio.run(
        settle_key_classes(comparisons, compare_settings, load=sides.load, open_sides=sides.open)
    )
    context = TaskContext.get()
    assert context is not None
    yield collector.collect(-1 - context.partitionId(), results)


def _compare_numbered(
    numbered: tuple[int, list[T], int | None],
    *,
    compare: Callable[[list[T], CompareSettings], list[VerifyRangeResult]],
    compare_settings: CompareSettings,
    collector: "WindowCollector",
) -> VerifyTaskResult:
    """Compares one group in a Spark task at its part of the rate."""
    number, inputs, rate = numbered
    results = compare(inputs, replace(compare_settings, bytes_per_second=rate))
    return collector.collect(number, results)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowCollector:
    """What a task does with its windows: it writes them to *table*, and reports their counts to the driver at *url*."""

    url: str
    table: WindowTable | None
    not_equal_max: int  # windows that are not equal and that the task returns
    lists_all: bool = (
        False  # it returns all windows that are not equal, with the offsets of all their differences
    )

    def collect(self, number: int, results: Sequence[VerifyRangeResult]) -> VerifyTaskResult:
        """Returns the summary of *results* of task *number*, which is negative for tasks of keys. Raises FileSystemError."""
        windows = [window for part in results for window in part.windows]
        part, unwritten = "", b""
        if self.table is not None and windows:
            name = f"{number:05}" if number >= 0 else f"keys-{-1 - number:05}"
            part = self.table.write_in_task(windows, name)
            unwritten = b"" if part else pack(windows)
        listed = [
            window for window in windows if self.lists_all and window.outcome is not WindowOutcome.EQUAL
        ]
        result = VerifyTaskResult(
            windows=WindowSummary.of(windows, not_equal_max=self.not_equal_max),
            part=part,
            unwritten=unwritten,
            listed=pack(listed) if listed else b"",
            behind=sum(part.behind for part in results),
            bytes_read=sum(part.bytes_read for part in results),
            seconds=sum(part.seconds for part in results),
            memory_bytes=max((part.memory_bytes for part in results), default=0),
        )
        summary = result.windows
        counts = {
            **{name: getattr(summary.counts, name) for name in OUTCOMES},
            "source": summary.source_records,
            "target": summary.target_records,
            "differing": summary.differing,
            "bytes": result.bytes_read,
            "milliseconds": round(result.seconds * 1000),
        }
        post_message(self.url, {"group": number, "counts": counts})
        return result


class VerifyProgress:
    """Receives the counts of ended tasks, only for reports while the job runs; a task that is repeated counts once."""

    def __init__(self, publish: Callable[[VerifyReport], None] = lambda _: None) -> None:
        # Unguessable, so that only tasks of this job can post
        self.path = f"/task-reports/{secrets.token_hex(16)}"
        self.url = ""  # where tasks post
        self.publish = publish
        self._first = VerifyReport(run_id="")
        self._counts: dict[int, Counter[str]] = {}
        self._total: Counter[str] = Counter()

    def begin(self, first: VerifyReport) -> None:
        """Publishes *first*, to which all later reports add: that of the plan, or one without figures."""
        self._first = first
        self.publish(first)

    def take(self, body: bytes) -> None:
        """Stores the counts of one task. Raises ValueError, KeyError, TypeError or AttributeError if *body* is not that."""
        message = json.loads(body)
        counts = {str(name): int(count) for name, count in message["counts"].items()}
        group = int(message["group"])
        self._total.subtract(self._counts.get(group, {}))
        self._total.update(counts)
        self._counts[group] = Counter(counts)

    def report(self, message: str = "") -> None:
        """Publishes the current report."""
        now = self._total
        newest = with_progress(
            self._first,
            OutcomeCounts(**{name: now[name] for name in OUTCOMES}),
            source_records=now["source"],
            target_records=now["target"],
            differences=now["differing"],
            cost=Cost(executor_seconds=now["milliseconds"] / 1000, bytes_read=now["bytes"]),
        )
        self.publish(replace(newest, message=message))
