"""Runs the Spark job of a verification: each task compares stretches, and the driver collects the results.

A task gets paths and offsets, reads the connector's files itself and resolves secrets where it runs. Tasks
only read, so Spark may retry and speculate; exactly one result of each task counts.
"""

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from mirrorflow_replicator.process import memory_tuning
from mirrorflow_seed.errors import JobFailedError
from mirrorflow_seed.report import Cost, JobPhase, VerifyReport
from mirrorflow_seed.session import cause_of
from mirrorflow_seed.settings import FlowFiles
from mirrorflow_seed.verify.splits import Split
from mirrorflow_seed.verify.stretch_comparison import CompareSettings, StretchResult, compare_stretches
from mirrorflow_seed.verify.summary import counted

if TYPE_CHECKING:
    from pyspark import SparkContext

REPORT_S: Final = 0.5
# Starting a task costs 50 ms in Spark and as much for connections, so idle partitions share tasks.
GROUP_OFFSETS_MAX: Final = 1_000_000
GROUP_SPLITS_MAX: Final = 100
TASKS_PER_SLOT_MIN: Final = 4  # so that the end of the job does not wait for one long task


class CompareTask:
    """The function that Spark sends to tasks: paths and settings, no secret."""

    def __init__(self, files: FlowFiles, compare_settings: CompareSettings) -> None:
        self._files = files
        self._compare_settings = compare_settings

    def __call__(self, groups: Iterable[Sequence[Split]]) -> Iterator[StretchResult]:
        """Yields one result per split. Raises ClusterError, SettingError, OSError."""
        memory_tuning.settle_in()
        flow = self._files.load()
        for group in groups:
            yield from asyncio.run(compare_stretches(flow, group, self._compare_settings))


def grouped(splits: Sequence[Split], slots: int) -> list[list[Split]]:
    """Groups *splits*, kept in order, into tasks that are worth a start and numerous enough for *slots*."""
    room = min(GROUP_OFFSETS_MAX, sum(one.offsets for one in splits) // (slots * TASKS_PER_SLOT_MIN))
    groups: list[list[Split]] = []
    filled = 0
    for one in splits:
        if not groups or filled + one.offsets > room or len(groups[-1]) == GROUP_SPLITS_MAX:
            groups.append([])
            filled = 0
        groups[-1].append(one)
        filled += one.offsets
    return groups


def run_job(
    context: "SparkContext",
    splits: list[Split],
    files: FlowFiles,
    compare_settings: CompareSettings,
    *,
    first: VerifyReport,
    publish: Callable[[VerifyReport], None],
) -> list[StretchResult]:
    """Runs the job and returns all results. Raises JobFailedError.

    The rate of *compare_settings* is for the whole job. *publish* receives reports, which add to *first*.
    """
    if not splits:
        return []
    progress = _Progress(context, first)
    outcome: list[list[StretchResult]] = []
    failure: list[BaseException] = []
    slots = context.defaultParallelism
    groups = grouped(splits, slots)
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


class _Progress:
    """Sums over tasks that have ended, in Spark accumulators; only for reports while the job runs."""

    def __init__(self, context: "SparkContext", first: VerifyReport) -> None:
        self._first = first
        windows = ("equal", "reordered", "different", "undecided")
        names = (*windows, "source", "target", "differing", "bytes", "milliseconds")
        self._counts = {name: context.accumulator(0) for name in names}

    def counting(self) -> Callable[[StretchResult], StretchResult]:
        """Returns a function for tasks that counts a result and returns it unchanged."""
        counts = self._counts

        def count(one: StretchResult) -> StretchResult:
            windows = counted(window.outcome for window in one.windows)
            for name in ("equal", "reordered", "different", "undecided"):
                counts[name].add(getattr(windows, name))
            counts["source"].add(sum(window.source_count for window in one.windows))
            counts["target"].add(sum(window.target_count for window in one.windows))
            counts["differing"].add(sum(window.differing for window in one.windows))
            counts["bytes"].add(one.bytes_read)
            counts["milliseconds"].add(round(one.seconds * 1000))
            return one

        return count

    def report(self) -> VerifyReport:
        """Returns the current report."""
        now = {name: int(count.value) for name, count in self._counts.items()}
        before = self._first.windows
        return replace(
            self._first,
            phase=JobPhase.RUNNING,
            windows=replace(
                before,
                equal=before.equal + now["equal"],
                reordered=before.reordered + now["reordered"],
                different=before.different + now["different"],
                undecided=before.undecided + now["undecided"],
            ),
            source_records=now["source"],
            target_records=now["target"],
            differences=now["differing"],
            cost=Cost(executor_seconds=now["milliseconds"] / 1000, bytes_read=now["bytes"]),
        )
