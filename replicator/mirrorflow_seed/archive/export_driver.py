"""The driver of an export: plans an increment, lets Spark tasks write its files, checks them, and commits.

    read the last commit ──> read the source's offsets ──> store the plan ──> one Spark task per range
        ──> read the source's topics again ──> commit

Guarantees: an increment continues where the last commit ended, and is there completely or not at all. An export that
was killed is continued by the next one: files that are complete are not written again. Of two exports that run at once
one commits, and the other fails (`commit_log`). A folder with other content is not changed. A
commit has records of the planned topics only: if one was deleted or created again before all was read, the files are
discarded, and a new plan is made.

After an increment, small files are merged (`compaction`), in a commit of its own. With `archive.iceberg.table`, each commit is added
to an Iceberg table (`iceberg_table`). With `archive.follow`, increment follows increment until a signal ends the job.
"""

import asyncio
import logging
import secrets
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final

from mirrorflow_core.errors import MirrorFlowError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import SourceSettings
from mirrorflow_seed.archive.commit_log import ArchiveState, CommitLog
from mirrorflow_seed.archive.compaction import CompactionTarget, compact_run, compacted, compaction_runs
from mirrorflow_seed.archive.export_checks import require_empty_or_archive, require_fit, require_own_files
from mirrorflow_seed.archive.export_plan import (
    FILE_BYTES,
    FILE_GROWTH_MAX,
    ExportRange,
    Increment,
    adds_nothing,
    plan_increment,
    plan_ranges,
    read_bytes_per_offset,
    read_source,
)
from mirrorflow_seed.archive.export_progress import ExportProgress
from mirrorflow_seed.archive.export_task import ExportedFile, ExportGroup, ExportTarget, export_group
from mirrorflow_seed.archive.iceberg_table import TABLE_KEY, IcebergTable
from mirrorflow_seed.archive.manifest import Manifest, appended
from mirrorflow_seed.archive.pending_export import (
    ExportPlan,
    PendingExport,
    can_continue,
    chosen,
    continues,
    discard_committed,
    fence_plan,
    increment_of,
    move_to_places,
    remaining,
    store_plan,
)
from mirrorflow_seed.archive.source_metadata import group_selection
from mirrorflow_seed.errors import (
    EXIT_DONE,
    ArchiveConflictError,
    ArchiveError,
    ArchiveUnfitError,
    IncompleteExportError,
    JobSettingError,
    SeedError,
)
from mirrorflow_seed.job_report import Cost
from mirrorflow_seed.job_status_server import Display, JobReporter
from mirrorflow_seed.settings import FlowFiles, JobSettings, flag_of, number_of, require_archive, whole_of
from mirrorflow_seed.signal_handlers import handling
from mirrorflow_seed.spark_errors import job_error
from mirrorflow_seed.spark_session import driver_address, spark_session
from mirrorflow_seed.spark_tasks import SparkTasks, rates_of_tasks, run_watched, share_files
from mirrorflow_seed.storage_folder import TEMPORARY_FOLDER, StorageFolder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILE_BYTES_KEY: Final = "archive.file.bytes"
COMPACT_KEY: Final = "archive.compact"
FOLLOW_KEY: Final = "archive.follow"
INTERVAL_KEY: Final = "archive.interval.ms"
INTERVAL_S: Final = 60.0
# An export that follows survives a source that is away for a while; this many failures in a row end it.
FAILURES_MAX: Final = 20
# Small ranges share a task, because starting one takes longer than reading them; each slot still has several tasks.
TASKS_PER_SLOT: Final = 4
log = logging.getLogger("mirrorflow.archive")


def run(
    files: FlowFiles, job: JobSettings, *, display: Display | None = None, spark: "SparkSession | None" = None
) -> int:
    """Writes the flow's topics to `archive`; returns the exit status. Raises SeedError, MirrorFlowError."""
    settings = files.load()
    require_archive(job)
    follows = flag_of(job.extra, FOLLOW_KEY)
    interval_s = number_of(job.extra, INTERVAL_KEY, INTERVAL_S * 1000, 1, 1e9) / 1000
    whole_of(job.extra, FILE_BYTES_KEY, FILE_BYTES)
    progress = ExportProgress()
    with (
        handling(signal.default_int_handler, signal.SIGTERM),  # ends the job as Ctrl-C: tasks are cancelled
        JobReporter("export", job.run_id, display, handler=progress) as reporter,
        spark_session(job, f"mirrorflow-export-{job.run_id}", spark) as session,
    ):
        export = ExportJob(files, job, settings, session, reporter, progress)
        if follows:
            _follow(export, reporter, interval_s)
        else:
            result = export.add_increment()
            _report_commit(reporter, result)
            if result.continued:  # the rest of a killed export: what is new since then is still missing
                result = result.followed_by(export.add_increment())
                _report_commit(reporter, result)
            export.report_success(result)
    return EXIT_DONE


def _follow(export: "ExportJob", reporter: JobReporter, interval_s: float) -> None:
    """Adds increment after increment, until a signal raises an exception. Raises SeedError, MirrorFlowError."""
    failures, wakes_up = 0, threading.Event()
    while True:
        began_s = time.monotonic()
        try:
            _report_commit(reporter, export.add_increment())
            failures = 0
        except (ArchiveError, JobSettingError):
            raise
        except (SeedError, MirrorFlowError) as error:
            failures += 1
            if failures >= FAILURES_MAX:
                raise
            log.warning("%s Trying again.", error)
            reporter.running(message=str(error))
        wakes_up.wait(max(0.0, began_s + interval_s - time.monotonic()))


def _report_commit(reporter: JobReporter, result: "IncrementResult") -> None:
    """Publishes what the archive has after an increment, also if a topic could not be continued."""
    reporter.running(
        commit=result.state.number, archived_records=result.state.manifest.records, message=result.message
    )
    if not result.unfit and not result.continued:
        reporter.running(archived_time=result.read_time)


@dataclass(frozen=True, slots=True, kw_only=True)
class IncrementResult:
    """What one increment has added: nothing if the source has nothing new."""

    state: ArchiveState
    increment: Manifest | None
    exported: Sequence[ExportedFile]  # by this job
    read_time: (
        str  # before the ends of the source were read (RFC 3339): what was written until then is archived
    )
    unfit: tuple[str, ...]
    warnings: tuple[str, ...] = ()  # what could not be read besides records
    continued: bool = False  # it ends where a killed export had planned

    def followed_by(self, later: "IncrementResult") -> "IncrementResult":
        """Returns what both have added."""
        if self.increment is None or later.increment is None:
            increment = self.increment or later.increment
        else:
            increment = appended(self.increment, later.increment)
        return replace(later, increment=increment, exported=[*self.exported, *later.exported])

    @property
    def message(self) -> str:
        """The result as sentences."""
        parts = []
        if self.increment is None:
            parts.append(f"Nothing is new: the archive has {self.state.manifest.records} records.")
        else:
            parts.append(
                f"{self.increment.records} records of {len(self.increment.topics)} topics are archived"
                f" (commit {self.state.number})."
            )
            if gap := self.increment.gap_records:
                parts.append(f"{gap} offsets were deleted on the source before they were read.")
            if self.increment.groups:
                parts.append(f"The offsets of {len(self.increment.groups)} groups are archived.")
        return " ".join([*parts, *_unfit_sentences(self.unfit), *self.warnings])


def _unfit_sentences(unfit: Sequence[str]) -> list[str]:
    return [f"Not archived: {'; '.join(unfit)}. Export into a new folder."] if unfit else []


class ExportJob:
    """Adds increments to the archive of *job* on one Spark session."""

    def __init__(
        self,
        files: FlowFiles,
        job: JobSettings,
        settings: SourceSettings,
        spark: "SparkSession",
        reporter: JobReporter,
        progress: ExportProgress,
    ) -> None:
        self._folder = StorageFolder(require_archive(job))
        require_empty_or_archive(self._folder)
        self._folder.prepare()
        self._log = CommitLog(self._folder)
        name = job.extra.get(TABLE_KEY, "")
        self._table = IcebergTable(name, self._folder) if name else None
        if self._table is not None:
            archived = self._log.read()
            self._table.check(archived.manifest.archive_id if archived else None)
        self._settings = settings
        self._selected_groups = group_selection(job.extra)
        self._file_bytes = whole_of(job.extra, FILE_BYTES_KEY, FILE_BYTES)
        self._bytes_per_second = job.bytes_per_second
        self._compacts = flag_of(job.extra, COMPACT_KEY, default=True)
        self._files = share_files(spark, files, are_mounted=job.has_mounted_files)
        self._tasks = SparkTasks(spark)
        self._url = reporter.url_for_tasks(*driver_address(spark))
        self._reporter = reporter
        self._progress = progress

    def add_increment(self) -> IncrementResult:
        """Commits what the source has and the archive has not. Raises SeedError, MirrorFlowError."""
        before = self._log.read()
        if before:
            require_fit(before.manifest, self._settings, self._folder.address)
            self._complete(before)
        pending = PendingExport(self._folder, before.number + 1 if before else 1)
        increment = self._read_increment(before.manifest if before else None)
        plan = pending.read()
        if plan is not None and not can_continue(plan, increment.content, location=self._folder.address):
            fence_plan(self._log, self._folder, before, plan)
            return self.add_increment()
        if plan is None and before and adds_nothing(increment.content, before.manifest):
            return IncrementResult(
                state=before,
                increment=None,
                exported=(),
                read_time=increment.content.started,
                unfit=increment.unfit,
                warnings=increment.warnings,
            )
        continued = plan is not None
        plan = plan or store_plan(pending, self._new_plan(increment, before), location=self._folder.address)
        exported = pending.exported(plan, self._present(plan))
        written = self._write(plan, remaining(plan, exported))
        if plan.ranges and not self._is_still(plan, before):
            fence_plan(self._log, self._folder, before, plan)
            return self.add_increment()
        files = chosen(plan, [*exported, *written])
        move_to_places(self._folder, files)
        content = increment_of(plan, files, finished=_now())
        require_own_files(self._folder.data(), content.files, location=self._folder.address)
        state = self._log.append(before, content)
        self._complete(state)
        if self._compacts:
            state = self._compact(state)
        return IncrementResult(
            state=state,
            increment=content,
            exported=written,
            read_time=content.started,
            unfit=increment.unfit,
            warnings=increment.warnings,
            continued=continued,
        )

    def report_success(self, result: IncrementResult) -> None:
        """Publishes the end of an export of one increment. Raises IncompleteExportError if a topic cannot be continued."""
        if result.unfit:
            raise IncompleteExportError(result.message)
        added = result.increment
        self._reporter.succeeded(
            records=added.records if added else 0,
            bytes=sum(file.tally.bytes for file in added.files) if added else 0,
            gap_records=added.gap_records if added else 0,
            cost=Cost(
                executor_seconds=sum(done.seconds for done in result.exported),
                bytes_read=sum(done.bytes_read for done in result.exported),
                bytes_written=sum(done.size_bytes for done in result.exported),
            ),
            message=result.message,
        )

    def _read_increment(self, archived: Manifest | None, *, with_groups: bool = True) -> Increment:
        groups = self._selected_groups if with_groups else None
        started = _now()
        snapshot = asyncio.run(read_source(self._settings, groups))
        increment = plan_increment(
            self._settings,
            snapshot,
            archived,
            archive_id=archived.archive_id if archived else secrets.token_hex(8),
            started=started,
        )
        if archived and snapshot.cluster_id != archived.source_cluster_id:
            raise ArchiveUnfitError(
                location=self._folder.address,
                problem=f"it is of cluster {archived.source_cluster_id}, and the source is {snapshot.cluster_id}",
                action="export into a new folder",
            )
        return increment

    def _is_still(self, plan: ExportPlan, before: ArchiveState | None) -> bool:
        """Whether the source has the planned topics after its tasks: they read a topic by its name, also one created again.

        Raises MirrorFlowError, SeedError.
        """
        increment = self._read_increment(before.manifest if before else None, with_groups=False)
        if continues(plan.content, increment.content):
            return True
        log.warning(
            "Topics were deleted, created again or truncated during the export: its files are discarded."
        )
        return False

    def _new_plan(self, increment: Increment, before: ArchiveState | None) -> ExportPlan:
        extents = {key: extent for key, extent in increment.extents.items() if extent.end > extent.start}
        known = archived_bytes_per_offset_of(before.manifest) if before else {}
        unknown = {key: extent for key, extent in extents.items() if key not in known}
        sizes = {**known, **asyncio.run(read_bytes_per_offset(self._settings, unknown))}
        return ExportPlan(
            plan_id=secrets.token_hex(8),
            number=before.number + 1 if before else 1,
            content=increment.content,
            ranges=plan_ranges(extents, sizes, file_bytes=self._file_bytes),
        )

    def _present(self, plan: ExportPlan) -> Mapping[str, int]:
        """Returns the sizes of all files that may be of *plan*."""
        return {**self._folder.data(), **self._folder.files(f"{TEMPORARY_FOLDER}/{plan.plan_id}")}

    def _write(self, plan: ExportPlan, ranges: Sequence[ExportRange]) -> list[ExportedFile]:
        """Runs the tasks, and publishes their progress meanwhile. Raises JobFailedError."""
        target = ExportTarget(
            address=self._folder.address,
            archive_id=plan.content.archive_id,
            plan_id=plan.plan_id,
            results=plan.results,
            file_bytes_max=self._file_bytes * FILE_GROWTH_MAX,
            url=self._url,
        )
        self._progress.begin(plan.ranges, ranges)
        self._reporter.running(total=len(plan.content.partitions))
        groups = groups_of(ranges, self._tasks.slots, self._bytes_per_second)
        work = partial(export_group, files=self._files, target=target)
        try:
            results = run_watched(self._tasks, work, groups, partial(self._progress.publish, self._reporter))
        except Exception as error:
            raise job_error(error, "The export has failed") from error
        return [exported for group in results for exported in group]

    def _compact(self, before: ArchiveState) -> ArchiveState:
        """Merges small files, if there are enough; returns the state after it. Raises SeedError."""
        runs = compaction_runs(before.manifest, file_bytes=self._file_bytes)
        if not runs:
            return before
        pending = PendingExport(self._folder, before.number + 1)
        plan = ExportPlan(
            plan_id=secrets.token_hex(8),
            number=before.number + 1,
            content=replace(before.manifest, topics=()),
            replaced=tuple(file.path for run in runs for file in run.files),
        )
        if pending.store(plan) != plan:
            return before  # a different export has begun the next increment
        self._reporter.running(message=f"Merging {len(plan.replaced)} small files into {len(runs)}.")
        target = CompactionTarget(
            address=self._folder.address, archive_id=before.manifest.archive_id, plan_id=plan.plan_id
        )
        try:
            results = run_watched(self._tasks, partial(compact_run, target=target), runs, lambda _: None)
        except Exception as error:
            raise job_error(error, "The compaction has failed") from error
        for done in results:
            if done.written != done.file.path:
                self._folder.move(done.written, done.file.path)
        merged = {run: done.file for run, done in zip(runs, results, strict=True)}
        require_own_files(self._folder.data(), list(merged.values()), location=self._folder.address)
        try:
            state = self._log.replace(before, compacted(before.manifest, merged))
        except ArchiveConflictError:
            # The next increment of a different export was first; the files stay as they are.
            state = self._log.read() or before
        self._complete(state)
        return state

    def _complete(self, state: ArchiveState) -> None:
        """Adds the commits up to *state* to the Iceberg table, if there is one, and then deletes what their plans have left.

        A killed export may have done neither. Raises IcebergTableError, FileSystemError.
        """
        if self._table is not None:
            self._table.follow(state)
        discard_committed(self._folder, state)


def archived_bytes_per_offset_of(archived: Manifest) -> Mapping[TopicPartition, float]:
    """Returns how large one offset of each partition was in its largest file, in bytes: there a footer counts least."""
    largest = {
        key: max(partition.files, key=lambda file: (file.size_bytes, file.start))
        for key, partition in archived.partitions.items()
        if partition.files
    }
    return {key: file.size_bytes / (file.end - file.start) for key, file in largest.items()}


def groups_of(ranges: Sequence[ExportRange], slots: int, bytes_per_second: int | None) -> list[ExportGroup]:
    """Returns the ranges of each task: one large one or several small ones; with a rate, those of each slot.

    With a rate, all tasks may run at once.
    """
    if not ranges:
        return []
    if bytes_per_second is not None:
        parts = [share for first in range(slots) if (share := tuple(ranges[first::slots]))]
        sizes = [sum(part.size_bytes for part in group) for group in parts]
        rates = rates_of_tasks(bytes_per_second, sizes)
        return [
            ExportGroup(ranges=group, bytes_per_second=rate) for group, rate in zip(parts, rates, strict=True)
        ]
    enough = sum(part.size_bytes for part in ranges) / (slots * TASKS_PER_SLOT)
    groups: list[list[ExportRange]] = []
    filled = enough
    for part in ranges:
        if filled >= enough:
            groups.append([])
            filled = 0
        groups[-1].append(part)
        filled += part.size_bytes
    return [ExportGroup(ranges=tuple(group), bytes_per_second=None) for group in groups]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
