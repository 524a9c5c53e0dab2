"""The Spark job: one task a stretch, rows back to the driver, reports while it runs.

A task is told paths and offsets, reads the connector's files itself and resolves secrets where it runs. Reading twice harms
nobody, so Spark may try, repeat and speculate as it likes; what counts is the one result of each task that it takes.
"""

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from mirrorflow_replicator.runtime import memory
from mirrorflow_seed.errors import JobFailedError
from mirrorflow_seed.report import Cost, JobPhase, VerifyReport
from mirrorflow_seed.session import cause_of
from mirrorflow_seed.settings import FlowFiles
from mirrorflow_seed.verify.splits import Split
from mirrorflow_seed.verify.stretch import StretchResult, Terms, compare_stretches
from mirrorflow_seed.verify.summary import counted

if TYPE_CHECKING:
    from pyspark import SparkContext

REPORT_S: Final = 0.5
# A task's start costs some 50 ms of Spark's and as much for connections: ten thousand idle partitions are not ten thousand tasks.
GROUP_OFFSETS_MAX: Final = 1_000_000
GROUP_SPLITS_MAX: Final = 100
TASKS_PER_SLOT_MIN: Final = 4  # so that the last ones do not wait for one


class Comparing:
    """The tasks' work, as Spark carries it to them: paths and terms, no secret, no value of one."""

    def __init__(self, files: FlowFiles, terms: Terms) -> None:
        self._files = files
        self._terms = terms

    def __call__(self, groups: Iterable[Sequence[Split]]) -> Iterator[StretchResult]:
        """One result for each split. Raises ClusterError, SettingError, OSError."""
        memory.settle_in()
        flow = self._files.load()
        for group in groups:
            yield from asyncio.run(compare_stretches(flow, group, self._terms))


def grouped(splits: Sequence[Split], slots: int) -> list[list[Split]]:
    """*splits*, in their order, so that a task is worth its start, and there are enough tasks for so many *slots*."""
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
    terms: Terms,
    *,
    first: VerifyReport,
    say: Callable[[VerifyReport], None],
) -> list[StretchResult]:
    """All results; the rate of *terms* is the whole job's. *say* is told how far it is, from *first* on. Raises JobFailedError."""
    if not splits:
        return []
    progress = _Progress(context, first)
    outcome: list[list[StretchResult]] = []
    failure: list[BaseException] = []
    slots = context.defaultParallelism
    groups = grouped(splits, slots)
    if terms.bytes_per_second is not None:
        terms = replace(terms, bytes_per_second=terms.bytes_per_second / min(len(groups), slots))
    work = Comparing(files, terms)

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
        say(progress.report())
    if failure:
        raise JobFailedError(f"The job failed: {cause_of(failure[0])}") from failure[0]
    return outcome[0]


class _Progress:
    """What tasks that have ended add up to. Spark counts a task that it takes; the job's own rows are what is kept."""

    def __init__(self, context: "SparkContext", first: VerifyReport) -> None:
        self._first = first
        windows = ("equal", "reordered", "different", "undecided")
        names = (*windows, "source", "target", "differing", "bytes", "milliseconds")
        self._counts = {name: context.accumulator(0) for name in names}

    def counting(self) -> Callable[[StretchResult], StretchResult]:
        """A function for the tasks, which gives back what it is given."""
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
        """As of now."""
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
