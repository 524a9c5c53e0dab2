"""Compares planned ranges in Spark tasks, each large enough to be worth a start, and collects their windows.

A task receives paths and offsets, reads the connector's files itself and resolves secrets where it runs. Tasks only
read, so Spark may retry them; one result of each task counts.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from mirrorflow_core.settings import SourceSettings
from mirrorflow_replicator import process
from mirrorflow_seed.job_status_server import post_message
from mirrorflow_seed.settings import FlowFiles, JobSettings, flag_of
from mirrorflow_seed.spark_errors import job_error
from mirrorflow_seed.spark_tasks import SparkTasks, rates_of_tasks, watch_job
from mirrorflow_seed.verify.compared_sides import CompareSettings, OpenSides, cluster_sides
from mirrorflow_seed.verify.key_comparison import compare_key_rows
from mirrorflow_seed.verify.key_lookup import settle_key_classes
from mirrorflow_seed.verify.key_rows import GROUP as KEY_GROUP
from mirrorflow_seed.verify.key_rows import ORDER as KEY_ORDER
from mirrorflow_seed.verify.key_rows import SCHEMA as KEY_SCHEMA
from mirrorflow_seed.verify.key_rows import KeyLogPart, log_parts, read_key_rows, rows_of
from mirrorflow_seed.verify.offset_windows import (
    ComparisonMethod,
    VerifyRange,
    VerifyRangeResult,
    WindowOutcome,
)
from mirrorflow_seed.verify.range_comparison import compare_ranges
from mirrorflow_seed.verify.verification_result import VerifyTaskResult, WindowSummary, not_equal_max, pack
from mirrorflow_seed.verify.verify_progress import OUTCOMES, VerifyProgress
from mirrorflow_seed.verify.window_table import WindowTable

if TYPE_CHECKING:
    from pyarrow import RecordBatch

T = TypeVar("T")
S = TypeVar("S", VerifyRange, KeyLogPart)
# Starting a task takes 50 ms in Spark and as much for connections, so small ranges share tasks.
GROUP_OFFSETS_MAX: Final = 1_000_000
GROUP_RANGES_MAX: Final = 100
# Spark's driver keeps several KB for each task of a job: with 50 TB, tasks are larger than GROUP_OFFSETS_MAX.
TASKS_MAX: Final = 20_000
TASKS_PER_SLOT_MIN: Final = 4  # so that the job does not end with one long task


def compare_settings_of(settings: SourceSettings, job: JobSettings) -> CompareSettings:
    """Returns the settings of the comparison. Raises JobSettingError."""
    return CompareSettings(
        run_id=job.run_id,
        decode_all=flag_of(job.extra, "decode.all"),
        bytes_per_second=job.bytes_per_second or settings.bytes_per_second,
        keeps_keys=flag_of(job.extra, "output.keys"),
    )


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
    progress: VerifyProgress,
    table: WindowTable | None,
) -> list[VerifyTaskResult]:
    """Compares *ranges* of source and target in a Spark job. Raises JobFailedError."""
    comparison = SparkComparison(
        tasks=tasks,
        inputs_of=list,
        compare=partial(compare_group, files=files),
        sides=KeySides(load=files.load, open=cluster_sides),
        settings=compare_settings,
        progress=progress,
        table=table,
    )
    return comparison.run(ranges)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySides:
    """How a task that compares keys loads the flow's settings and opens both sides."""

    load: Callable[[], SourceSettings]
    open: OpenSides


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkComparison(Generic[T]):
    """A comparison in Spark tasks: what they get, how they compare it, and where they write their windows."""

    tasks: SparkTasks
    inputs_of: Callable[[Sequence[VerifyRange]], list[T]]  # the inputs of *compare* for a group of ranges
    compare: Callable[[list[T], CompareSettings], list[VerifyRangeResult]]
    sides: KeySides
    settings: CompareSettings  # with the rate of the whole job
    progress: VerifyProgress
    table: WindowTable | None

    def run(self, ranges: Sequence[VerifyRange]) -> list[VerifyTaskResult]:
        """Compares *ranges* in order by `compare`, then compacted partitions by the keys of `sides`. Raises JobFailedError."""
        by_keys = [part for part in ranges if part.method is ComparisonMethod.NEWEST_PER_KEY]
        in_order = [part for part in ranges if part.method is ComparisonMethod.IN_ORDER]
        return self.compare_in_order(in_order) + self._compare_by_keys(by_keys)

    def compare_in_order(self, ranges: Sequence[VerifyRange]) -> list[VerifyTaskResult]:
        """Compares *ranges* in order by `compare`. Raises JobFailedError."""
        groups = _with_rates(ranges, self.tasks, self.settings)
        work = partial(
            _compare_numbered,
            compare=self.compare,
            compare_settings=self.settings,
            collector=self._collector(len(groups)),
        )
        inputs = [(number, self.inputs_of(group), rate) for number, (group, rate) in enumerate(groups)]
        return self._watched(partial(self.tasks.run, work, inputs))

    def _compare_by_keys(self, ranges: Sequence[VerifyRange]) -> list[VerifyTaskResult]:
        parts = _with_rates(log_parts(ranges), self.tasks, self.settings)
        classes = sum(len(verify_range.key_classes) for verify_range in ranges)
        combining_tasks = max(1, min(classes, self.tasks.slots * TASKS_PER_SLOT_MIN))
        rate = self.settings.bytes_per_second
        lookup_rate = None if rate is None else max(1.0, rate / combining_tasks)
        run = partial(
            self.tasks.run_shuffled,
            partial(_read_keys, sides=self.sides, compare_settings=self.settings),
            parts,
            KEY_SCHEMA,
            keys=KEY_GROUP,
            order=KEY_ORDER,
            partitions=combining_tasks,
            combine=partial(
                _compare_keys,
                ranges=ranges,
                compare_settings=replace(self.settings, bytes_per_second=lookup_rate),
                sides=self.sides,
                collector=self._collector(combining_tasks),
            ),
        )
        return self._watched(run)

    def _watched(self, job: Callable[[], list[VerifyTaskResult]]) -> list[VerifyTaskResult]:
        try:
            return watch_job(self.tasks, job, self.progress.report)
        except Exception as error:
            raise job_error(error, "The job failed") from error

    def _collector(self, tasks: int) -> "WindowCollector":
        """Returns what each of *tasks* does with its windows."""
        return WindowCollector(
            url=self.progress.url,
            table=self.table,
            not_equal_max=not_equal_max(tasks),
            lists_all=self.settings.lists_all,
        )


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
    yield collector.collect(f"keys-{context.partitionId():05}", results)


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
    return collector.collect(f"{number:05}", results)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowCollector:
    """What a task does with its windows: it writes them to *table*, and reports their counts to the driver at *url*."""

    url: str | None
    table: WindowTable | None
    not_equal_max: int  # windows that are not equal and that the task returns
    lists_all: bool = (
        False  # it returns all windows that are not equal, with the offsets of all their differences
    )

    def collect(self, name: str, results: Sequence[VerifyRangeResult]) -> VerifyTaskResult:
        """Returns the summary of *results* of the task with *name*. Raises FileSystemError."""
        windows = [window for part in results for window in part.windows]
        part: str | None = None
        unwritten = b""
        if self.table is not None and windows:
            part = self.table.write_in_task(windows, name)
            unwritten = pack(windows) if part is None else b""
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
        post_message(self.url, {"group": name, "counts": counts})
        return result
