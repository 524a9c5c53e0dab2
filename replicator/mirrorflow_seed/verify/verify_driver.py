"""The driver of a verification: plans, compares in a Spark job, and writes the result.

It writes nothing to either cluster. Exit status: 0 all compared windows are equal; 1 a window is not equal or
is undecided, or the job failed; 2 the settings are invalid; 3 stopped by a signal.

A task receives paths and offsets, reads the connector's files itself and resolves secrets where it runs. Tasks only
read, so Spark may retry them; one result of each task counts.
"""

import asyncio
import contextlib
import json
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from mirrorflow_core.errors import AuthenticationFailedError, MirrorFlowError, SettingError, UnreachableError
from mirrorflow_core.replication_policy import flow_name
from mirrorflow_core.settings import SourceSettings
from mirrorflow_replicator import process
from mirrorflow_seed.errors import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_STOPPED,
    FileSystemError,
    JobFailedError,
    SeedError,
)
from mirrorflow_seed.job_report import Cost, JobPhase, OutcomeCounts, VerifyReport
from mirrorflow_seed.job_status_server import Display, JobStatusServer
from mirrorflow_seed.settings import FlowFiles, JobSettings, flag_of, whole_of
from mirrorflow_seed.spark_session import cause_of, given_or_new_context, require_spark
from mirrorflow_seed.verify.offset_windows import (
    KEYS_MAX,
    RANGE_WINDOWS,
    WINDOW_OFFSETS,
    VerifyPlanSettings,
    VerifyRange,
    WindowOutcome,
)
from mirrorflow_seed.verify.partition_planner import VerifyPlan
from mirrorflow_seed.verify.range_comparison import (
    CompareSettings,
    VerifyRangeResult,
    compare_ranges,
    connect_clusters,
)
from mirrorflow_seed.verify.result_folder import ResultFolder
from mirrorflow_seed.verify.verification_result import VerificationResult, count_outcomes, with_progress
from mirrorflow_seed.verify.verify_plan import make_plan

if TYPE_CHECKING:
    from pyspark import SparkContext


VerifyFunction = Callable[
    [FlowFiles, JobSettings, "SparkContext", Callable[[VerifyReport], None]], VerificationResult
]
_LOG: Final = logging.getLogger(__name__)
OUTCOMES: Final = tuple(one.value for one in WindowOutcome)
REPORT_S: Final = 0.5
# Starting a task takes 50 ms in Spark and as much for connections, so small ranges share tasks.
GROUP_OFFSETS_MAX: Final = 1_000_000
GROUP_RANGES_MAX: Final = 100
TASKS_PER_SLOT_MIN: Final = 4  # so that the job does not end with one long task


class _StoppedError(BaseException):
    """A signal arrived. It is no `Exception`, which py4j would treat as a lost connection within a call to the JVM."""


def run(
    files: FlowFiles,
    job: JobSettings,
    *,
    display: Display | None = None,
    spark: "SparkContext | None" = None,
    verify: "VerifyFunction | None" = None,
) -> int:
    """Runs a verification and returns its exit status; also called by the `mirrorflow` command.

    With *spark*, the job uses that context and leaves it open. *verify* plans and compares, by
    default `verify_flow`; with another one, records pass through Spark's JVM.

    Raises SeedError, SettingError, ClusterError.
    """
    require_spark()
    status_server = JobStatusServer(VerifyReport(run_id=job.run_id), display=display)
    try:
        with _raise_on_sigterm():
            found = _verify(files, job, status_server, spark, verify)
    except _StoppedError:
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
        status_server.publish(found.report)
        return EXIT_DONE if found.is_equal else EXIT_FAILED
    finally:
        status_server.close()


def _verify(
    files: FlowFiles,
    job: JobSettings,
    status_server: JobStatusServer,
    spark: "SparkContext | None",
    verify: "VerifyFunction | None",
) -> VerificationResult:
    result = ResultFolder(job)
    with given_or_new_context(job, f"mirrorflow-verify-{job.run_id}", spark, light=verify is None) as context:
        result.prepare(context)
        found = (verify or verify_flow)(files, job, context, status_server.publish)
        # In a cluster without an output folder, this line is all that is kept of the result. It has no record data.
        _LOG.info("%s", json.dumps(found.as_json()))
        result.write(context, found)
    result.write_without_executors(found)
    return found


def verify_flow(
    files: FlowFiles,
    job: JobSettings,
    spark: "SparkContext",
    publish: Callable[[VerifyReport], None] = lambda _: None,
) -> VerificationResult:
    """Plans and compares source and target. Raises SeedError, SettingError, ClusterError."""
    began = time.perf_counter()
    settings = files.load()
    verify_plan = plan_verification(settings, job)
    first = first_report(job, verify_plan)
    publish(first)
    results = compare_on_spark(
        spark, verify_plan.ranges, files, compare_settings_of(settings, job), first=first, publish=publish
    )
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
    expected = len(verify_plan.undecided) + sum(one.windows for one in verify_plan.ranges)
    return VerifyReport(
        run_id=job.run_id,
        phase=JobPhase.RUNNING,
        windows=OutcomeCounts(total=expected, undecided=len(verify_plan.undecided)),
    )


def plan_verification(settings: SourceSettings, job: JobSettings) -> VerifyPlan:
    """Reads both clusters and returns the plan. Raises JobSettingError, SettingError, ClusterError."""
    return asyncio.run(_make_plan(settings, plan_settings_of(job)))


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


async def _make_plan(settings: SourceSettings, plan_settings: VerifyPlanSettings) -> VerifyPlan:
    async with connect_clusters(settings) as sides:
        return await make_plan(sides["source"], sides["target"], settings, plan_settings)


def combine_results(
    settings: SourceSettings,
    job: JobSettings,
    verify_plan: VerifyPlan,
    results: Sequence[VerifyRangeResult],
    seconds: float,
) -> VerificationResult:
    """Combines the plan and all results into the result of the run."""
    windows = [*verify_plan.undecided, *(window for one in results for window in one.windows)]
    windows.sort(key=lambda one: (one.topic, one.partition, one.from_offset, one.to_offset, one.key_class))
    return VerificationResult(
        run_id=job.run_id,
        flow=flow_name(settings.flow),
        source_alias=settings.source_alias,
        target_alias=settings.target_alias,
        sample=job.sample,
        windows=windows,
        partitions=verify_plan.partitions,
        behind=sum(one.behind for one in results),
        notes=verify_plan.notes,
        cost=Cost(
            executor_seconds=sum(one.seconds for one in results),
            bytes_read=sum(one.bytes_read for one in results),
        ),
        seconds=seconds,
        task_memory_bytes=max((one.memory_bytes for one in results), default=0),
    )


def _publish_end(status_server: JobStatusServer, phase: JobPhase, message: str) -> None:
    newest = status_server.newest
    assert isinstance(newest, VerifyReport)
    status_server.publish(replace(newest, phase=phase, message=message))


@contextlib.contextmanager
def _raise_on_sigterm() -> Iterator[None]:
    """Raises _StoppedError on SIGTERM, if in the main thread; Ctrl-C still raises KeyboardInterrupt."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise _StoppedError

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class CompareTask:
    """The function that Spark runs in tasks; it carries paths and settings, and no secret."""

    def __init__(self, files: FlowFiles, compare_settings: CompareSettings) -> None:
        self._files = files
        self._compare_settings = compare_settings

    def __call__(self, groups: Iterable[Sequence[VerifyRange]]) -> Iterator[VerifyRangeResult]:
        """Yields one result per range. Raises ClusterError, SettingError, OSError."""
        process.settle_in()
        flow = self._files.load()
        for group in groups:
            yield from asyncio.run(compare_ranges(flow, group, self._compare_settings))


def group_ranges(ranges: Sequence[VerifyRange], slots: int) -> list[list[VerifyRange]]:
    """Returns the ranges of each task, in order: large enough to be worth a start, and enough tasks for *slots*."""
    room = min(GROUP_OFFSETS_MAX, sum(one.offsets for one in ranges) // (slots * TASKS_PER_SLOT_MIN))
    groups: list[list[VerifyRange]] = []
    filled = 0
    for one in ranges:
        if not groups or filled + one.offsets > room or len(groups[-1]) == GROUP_RANGES_MAX:
            groups.append([])
            filled = 0
        groups[-1].append(one)
        filled += one.offsets
    return groups


def compare_on_spark(
    context: "SparkContext",
    ranges: list[VerifyRange],
    files: FlowFiles,
    compare_settings: CompareSettings,
    *,
    first: VerifyReport,
    publish: Callable[[VerifyReport], None],
) -> list[VerifyRangeResult]:
    """Compares *ranges* in a Spark job and returns all results. Raises JobFailedError.

    The rate of *compare_settings* is that of the whole job. *publish* receives reports, which add to *first*.
    """
    if not ranges:
        return []
    progress = _AccumulatorProgress(context, first)
    outcome: list[list[VerifyRangeResult]] = []
    failure: list[BaseException] = []
    slots = context.defaultParallelism
    groups = group_ranges(ranges, slots)
    if compare_settings.bytes_per_second is not None:
        compare_settings = replace(
            compare_settings, bytes_per_second=compare_settings.bytes_per_second / min(len(groups), slots)
        )
    work = CompareTask(files, compare_settings)

    def collect() -> None:
        try:
            spread = context.parallelize(groups, len(groups)).mapPartitions(work)
            outcome.append(spread.map(progress.counting()).collect())
        except BaseException as error:  # noqa: BLE001 handed over to the thread that waits
            failure.append(error)

    thread = threading.Thread(target=collect, name="verify-job", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(REPORT_S)
        publish(progress.report())
    if failure:
        raise JobFailedError(f"The job failed: {cause_of(failure[0])}") from failure[0]
    return outcome[0]


class _AccumulatorProgress:
    """Counts the results of ended tasks in Spark accumulators, only for reports while the job runs."""

    def __init__(self, context: "SparkContext", first: VerifyReport) -> None:
        self._first = first
        names = (*OUTCOMES, "source", "target", "differing", "bytes", "milliseconds")
        self._counts = {name: context.accumulator(0) for name in names}

    def counting(self) -> Callable[[VerifyRangeResult], VerifyRangeResult]:
        """Returns a function for tasks that counts a result and returns it unchanged."""
        counts = self._counts

        def count(one: VerifyRangeResult) -> VerifyRangeResult:
            windows = count_outcomes(window.outcome for window in one.windows)
            for name in OUTCOMES:
                counts[name].add(getattr(windows, name))
            counts["source"].add(sum(window.source_count for window in one.windows))
            counts["target"].add(sum(window.target_count for window in one.windows))
            counts["differing"].add(sum(window.differing for window in one.windows))
            counts["bytes"].add(one.bytes_read)
            counts["milliseconds"].add(round(one.seconds * 1000))
            return one

        return count

    def report(self) -> VerifyReport:
        now = {name: int(count.value) for name, count in self._counts.items()}
        return with_progress(
            self._first,
            OutcomeCounts(**{name: now[name] for name in OUTCOMES}),
            source_records=now["source"],
            target_records=now["target"],
            differences=now["differing"],
            cost=Cost(executor_seconds=now["milliseconds"] / 1000, bytes_read=now["bytes"]),
        )
