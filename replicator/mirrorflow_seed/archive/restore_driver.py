"""The driver of a restore: checks the archive, claims the flow, copies file after file and compares the result.

    read the commits ──> claim the flow ──> restore each partition in a Spark task ──> compare

Guarantees: it writes nothing from an archive without a commit, or whose files differ from its commits. It owns the
flow as a seed does, so a running connector waits meanwhile, and continues where the archive ends. Several partitions
are restored at once, the files of one partition in order: a file starts only when the previous one is completely on the
target. If the target has lost its last records, their files are restored again. A damaged file, or a partition that
cannot be copied, fails the restore. After a kill, the next start continues from the positions on the target, and the
target has each record once.

At the end `restore_comparison` checks by the archive's digests that the target has the archive's records.
"""

import asyncio
import contextlib
import logging
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from mirrorflow_core.errors import ClusterError, FlowTakenError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import SourceSettings
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.config.plugins import make_selection
from mirrorflow_replicator.config.providers import Resolver
from mirrorflow_replicator.connectors.acl_sync import AclSync
from mirrorflow_seed.archive.archive_source import ArchiveCluster
from mirrorflow_seed.archive.commit_log import CommitLog, read_archive
from mirrorflow_seed.archive.group_restorer import GroupRestorer
from mirrorflow_seed.archive.manifest import ArchivedPartition, Manifest, part_of
from mirrorflow_seed.archive.partition_selection import require_copied, select_partitions, selected_partitions
from mirrorflow_seed.archive.restore_comparison import RestoreComparison, compare_with_target
from mirrorflow_seed.archive.restore_point import cut_manifest, damaged_file, find_cuts, until_of
from mirrorflow_seed.archive.restore_task import PartitionRestored, RestoreTask, restore_group, without_source
from mirrorflow_seed.archive.source_metadata import group_selection
from mirrorflow_seed.errors import (
    EXIT_DIFFERENT,
    EXIT_DONE,
    EXIT_STOPPED,
    ArchiveUnfitError,
    FlowLostError,
    JobFailedError,
    NothingSelectedError,
)
from mirrorflow_seed.job_report import Cost
from mirrorflow_seed.job_status_server import Display, JobReporter
from mirrorflow_seed.seed.claimed_flow import ClaimedFlow
from mirrorflow_seed.seed.retention_holder import RetentionHolder
from mirrorflow_seed.seed.seed_plan import SeedRange
from mirrorflow_seed.seed.seed_task_attempt import PartitionOutcome, WaveSettings
from mirrorflow_seed.seed.task_messages import Coordinator
from mirrorflow_seed.settings import (
    FlowFiles,
    JobSettings,
    flag_of,
    require_archive,
    require_shared_positions,
)
from mirrorflow_seed.spark_errors import job_error
from mirrorflow_seed.spark_session import driver_address, spark_session
from mirrorflow_seed.spark_tasks import SparkTasks, rates_of_tasks, run_watched, share_files
from mirrorflow_seed.storage_folder import StorageFolder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPICS_NAMED_MAX = 10  # topics in an error
COMPARE_KEY = "archive.compare"  # false: skip the comparison
NO_LIMIT_S = 1e9  # a task has no time limit: another one could not restore a later file meanwhile
log = logging.getLogger("mirrorflow.restore")


def run(
    files: FlowFiles, job: JobSettings, *, display: Display | None = None, spark: "SparkSession | None" = None
) -> int:
    """Restores the target from `archive` and returns the exit status. Raises SeedError, MirrorFlowError."""
    require_archive(job)
    settings = without_source(files.load())
    require_shared_positions(settings)
    coordinator = Coordinator()
    with (
        JobReporter("restore", job.run_id, display, handler=coordinator) as reporter,
        spark_session(job, f"mirrorflow-restore-{job.run_id}", spark) as session,
    ):
        return asyncio.run(RestoreJob(files, job, session, reporter, coordinator).run())


class RestoreJob:
    """One restore on the Spark of *context*."""

    def __init__(
        self,
        files: FlowFiles,
        job: JobSettings,
        spark: "SparkSession",
        reporter: JobReporter,
        coordinator: Coordinator,
    ) -> None:
        self.tasks, self.reporter, self.coordinator = SparkTasks(spark), reporter, coordinator
        self.folder = StorageFolder(require_archive(job))
        self._until_ms = until_of(job.extra)
        self._selected = selected_partitions(job.extra)
        self.manifest = self._read_manifest()
        self._url = reporter.url_for_tasks(*driver_address(spark))
        self._files = share_files(spark, files, are_mounted=job.has_mounted_files)
        self._job = job
        self._settings = without_source(files.load())
        self.bytes_per_second = job.bytes_per_second or self._settings.bytes_per_second
        self._selected_groups = group_selection(job.extra)
        self._compares = flag_of(job.extra, COMPARE_KEY, default=True)

    def _read_manifest(self) -> Manifest:
        """Returns what is restored of the archive: the selected partitions, up to the point in time.

        Raises ArchiveIncompleteError, ArchiveDamagedError, JobSettingError, JobFailedError.
        """
        manifest = read_archive(self.folder)
        self._begins = {key: archived.start for key, archived in manifest.partitions.items()}
        if self._until_ms is not None:
            then = CommitLog(self.folder).groups_at(self._until_ms)
            manifest = replace(
                manifest,
                groups=then.groups if then else (),
                groups_read_ms=then.groups_read_ms if then else None,
            )
        if self._selected is not None:
            manifest = select_partitions(manifest, self._selected)
        return cut_manifest(manifest, find_cuts(self.tasks, self.folder, manifest, self._until_ms))

    async def run(self) -> int:
        """Restores and compares; returns the exit status.

        Raises ArchiveUnfitError, ForeignRecordsError, NothingSelectedError, JobFailedError, MirrorFlowError.
        """
        settings = self._settings
        resolve = Resolver(settings.providers).resolve_client
        target = await Cluster.connect(settings.target_admin, resolve=resolve)
        archive = ArchiveCluster(settings.source_alias, self.manifest)
        flow = ClaimedFlow.over(settings, archive, target, f"restore-{self._job.run_id}")
        try:
            return await self._restore(flow)
        finally:
            await flow.close()

    async def _restore(self, flow: ClaimedFlow) -> int:
        require_isolation(self.manifest, self._settings, self.folder.address)
        arrangement = await flow.arrange()
        names = arrangement.names
        if arrangement.uncopied:
            raise JobFailedError(" ".join(list(arrangement.uncopied.values())[:TOPICS_NAMED_MAX]))
        if not names:
            raise NothingSelectedError(
                f"{self.folder.address}: {arrangement.nothing_selected or 'the flow selects none of its topics.'}"
            )
        if self._selected is not None:
            require_copied(self._selected, names)
        initial = await flow.claim()
        if not self._job.accept_foreign:
            await flow.require_no_foreign_records(arrangement)
        self._require_no_gap(flow, names)
        self._require_not_beyond(flow, names)
        wave = WaveSettings(
            files=self._files,
            group=flow.group,
            initial=initial,
            seconds=NO_LIMIT_S,
            url=self._url,
        )
        restorer = PartitionRestorer(self, wave, names, flow.next_offsets)
        ranges = self._ranges(flow, names)
        retention = RetentionHolder(flow, syncs_configs=False)
        await retention.begin(names, ranges)
        with _stop_on_signals(restorer.stop):
            try:
                await flow.store_starts(ranges)
                await asyncio.to_thread(restorer.run)
            finally:
                if restorer.is_stopped:
                    await flow.fence_tasks()
                await retention.end()
        if restorer.is_stopped:
            self.reporter.stopped("Stopped cleanly; the next start resumes.")
            return EXIT_STOPPED
        message = f"{restorer.files_done} files are restored.{await self._restore_metadata(flow, names)}"
        if self._compares:
            await flow.read_positions()
            compared = await self._compare(names, flow.next_offsets)
            message += f" {compared.summary}"
            if compared.different:
                self.reporter.failed(message)
                return EXIT_DIFFERENT
        self.reporter.succeeded(message=message)
        return EXIT_DONE

    async def _compare(
        self, names: Mapping[str, str], next_offsets: Mapping[TopicPartition, int]
    ) -> RestoreComparison:
        """Compares the target with the archive. A cancellation, as by Ctrl-C, also ends the Spark tasks."""
        is_cancelled = threading.Event()

        def watch(_: str) -> None:
            if is_cancelled.is_set():
                self.tasks.cancel()

        try:
            return await asyncio.to_thread(
                partial(
                    compare_with_target,
                    self.tasks,
                    self.manifest,
                    names,
                    next_offsets,
                    self._files,
                    is_edited=self._settings.header_fingerprint is not None,
                    watch=watch,
                )
            )
        except asyncio.CancelledError:
            is_cancelled.set()  # the end of the event loop waits for the thread, and so for its tasks
            raise

    async def _restore_metadata(self, flow: ClaimedFlow, names: Mapping[str, str]) -> str:
        """Restores groups and ACLs after the records; returns sentences for the report, each after a space."""
        sentences = [await self._restore_groups(flow, names), await self._restore_acls(flow, names)]
        if unread := sum(not topic.configs for topic in self.manifest.topics if topic.name in names):
            sentences.append(
                f"{unread} topics have the target's default settings: the archive has none of them."
            )
        return "".join(f" {sentence}" for sentence in sentences if sentence)

    async def _restore_groups(self, flow: ClaimedFlow, names: Mapping[str, str]) -> str:
        """Restores the offsets of groups; returns sentences for the report."""
        if self._selected_groups is None:
            return ""
        if self.manifest.groups_read_ms is None:
            return "No offsets of groups are restored: the archive has none" + (
                " of that time." if self._until_ms is not None else "."
            )
        archive = ArchiveCluster(self._settings.source_alias, self.manifest)
        try:
            restorer = GroupRestorer(self._settings, archive, flow.target, names, begins=self._begins)
            return (await restorer.restore(self._selected_groups)).summary
        except ClusterError as error:
            return f"No offsets of groups are restored: {error}"

    async def _restore_acls(self, flow: ClaimedFlow, names: Mapping[str, str]) -> str:
        """Creates the ACLs of the copies as the connector does, if the flow enables it; returns a sentence for the report."""
        settings = self._settings
        if settings.sync_acls_s is None:
            return ""
        if self.manifest.acls is None:
            return "No ACLs are restored: the archive has none."
        acl_sync = AclSync(flow.source, flow.target, settings=settings, selection=make_selection(settings))
        sentences = await acl_sync.sync(names)
        for sentence in sentences:
            log.warning("%s", sentence)
        # They name topics, which a report does not.
        return f"{len(sentences)} problems with ACLs are in the log." if sentences else ""

    def _ranges(self, flow: ClaimedFlow, names: Mapping[str, str]) -> tuple[SeedRange, ...]:
        """Returns the partitions as a seed's ranges, to store their start offsets and to hold the retention."""
        archived = self.manifest.partitions
        return tuple(
            SeedRange(
                index=index,
                topic=key.topic,
                partition=key.partition,
                start=max(archived[key].start, flow.next_offsets.get(key, 0)),
                end=archived[key].end,
                bytes=sum(file.tally.bytes for file in archived[key].files),
            )
            for index, key in enumerate(sorted(archived))
            if key.topic in names and archived[key].files
        )

    def _require_no_gap(self, flow: ClaimedFlow, names: Mapping[str, str]) -> None:
        """Raises ArchiveUnfitError if a gap lies between the flow's next offset and the archive's start."""
        for key, archived in self.manifest.partitions.items():
            copied_until = flow.next_offsets.get(key)
            if (
                key.topic in names
                and copied_until is not None
                and copied_until < archived.start
                and archived.records
            ):
                raise ArchiveUnfitError(
                    location=self.folder.address,
                    problem=f"it begins at offset {archived.start} of {key}, but the flow has copied that partition only up to {copied_until}",
                    action="restore an archive that begins at or before that offset",
                )

    def _require_not_beyond(self, flow: ClaimedFlow, names: Mapping[str, str]) -> None:
        """Raises ArchiveUnfitError if the flow has copied more of a partition than is to be restored."""
        if self._until_ms is None and self._selected is None:
            return
        partitions = self.manifest.partitions
        wanted = partitions if self._selected is None else [item.partition for item in self._selected]
        for key in wanted:
            archived, copied_until = partitions[key], flow.next_offsets.get(key, 0)
            if key.topic in names and copied_until > archived.end:
                raise ArchiveUnfitError(
                    location=self.folder.address,
                    problem=f"the flow has copied {key} up to offset {copied_until}, and is to restore it up to {archived.end}",
                    action="restore into a cluster that the flow has not copied to, or up to a later time or offset",
                )


def require_isolation(manifest: Manifest, settings: SourceSettings, location: str) -> None:
    """Raises ArchiveUnfitError if flow and archive have different isolation levels, and so different records."""
    isolation = "read_committed" if settings.read_committed else "read_uncommitted"
    if manifest.isolation != isolation:
        raise ArchiveUnfitError(
            location=location,
            problem=f"it was read {manifest.isolation}, and the flow reads {isolation}",
            action=f"use a flow with isolation.level={manifest.isolation}",
        )


@contextlib.contextmanager
def _stop_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Calls *stop* on SIGTERM and Ctrl-C, if in the main thread; restores the handlers at the end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop, numbers = asyncio.get_running_loop(), (signal.SIGTERM, signal.SIGINT)
    before = [signal.getsignal(number) for number in numbers]
    for number in numbers:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            loop.remove_signal_handler(number)
            signal.signal(number, handler)


class PartitionRestorer:
    """Restores all partitions in Spark tasks: several partitions at once, the files of one in order."""

    def __init__(
        self,
        restore: RestoreJob,
        wave: WaveSettings,
        names: Mapping[str, str],
        next_offsets: Mapping[TopicPartition, int],
    ) -> None:
        self.is_stopped = False
        self.files_done = 0
        self._tasks = restore.tasks
        self._folder = restore.folder
        self._manifest = restore.manifest
        self._coordinator = restore.coordinator
        self._reporter = restore.reporter
        self._wave = wave
        self._bytes_per_second = restore.bytes_per_second
        self._names = names  # of topics, source -> target
        # Source offsets where the flow continues, for partitions it has copied
        self._next_offsets = next_offsets
        self._ends: dict[int, int] = {}  # of partitions, by index

    def run(self) -> None:
        """Restores all partitions, unless it is stopped. Raises SeedError."""
        if self.is_stopped:
            return
        groups = self._groups()
        self._ends = {
            task.index: task.archived.end for group in groups for task in group if task.archived.files
        }
        self._reporter.running(total=sum(len(group) for group in groups))
        try:
            results = run_watched(self._tasks, restore_group, groups, self._watch)
        except Exception as error:
            if self.is_stopped:
                return  # Spark reports the cancelled tasks as a failure
            raise job_error(error, "The restore has failed") from error
        for task, restored in zip(
            (task for group in groups for task in group),
            (restored for group in results for restored in group),
            strict=False,  # a task ends with the first partition that is not complete
        ):
            self._take(task, restored)
        self._publish("")

    def stop(self) -> None:
        """Lets Spark cancel the tasks."""
        self.is_stopped = True
        log.info("stopping: Spark cancels the tasks")
        self._tasks.cancel()

    def _groups(self) -> list[tuple[RestoreTask, ...]]:
        """Returns the partitions of each task: one; with a rate, those of each slot, as all tasks may run at once."""
        wanted = {
            key: archived for key, archived in self._manifest.partitions.items() if key.topic in self._names
        }
        # Largest first, so that the last partitions to start are short.
        largest_first = sorted(
            wanted, key=lambda key: (-sum(file.size_bytes for file in wanted[key].files), key)
        )
        rate, count = self._bytes_per_second, len(largest_first)
        if rate is not None:
            count = min(self._tasks.slots, count)
        made = [self._task(index, key, wanted[key]) for index, key in enumerate(largest_first)]
        groups = [made[first::count] for first in range(count)]
        sizes = [sum(file.tally.bytes for task in group for file in task.archived.files) for group in groups]
        return [
            tuple(replace(task, bytes_per_second=of_group) for task in group)
            for group, of_group in zip(groups, rates_of_tasks(rate, sizes), strict=True)
        ]

    def _task(self, index: int, key: TopicPartition, archived: ArchivedPartition) -> RestoreTask:
        return RestoreTask(
            wave=self._wave,
            address=self._folder.address,
            index=index,
            of=key,
            part=part_of(self._manifest, key.topic, archived),
            first=self._first_file(key, archived),
            bytes_per_second=None,
        )

    def _first_file(self, key: TopicPartition, archived: ArchivedPartition) -> int:
        """Returns the index of the file with the next offset; at most the last, which the target may have lost."""
        next_offset = self._next_offsets.get(key)
        if next_offset is None:
            return 0
        if next_offset > archived.end:
            return len(archived.files)  # the connector has copied beyond the archive
        restored = sum(file.end <= next_offset for file in archived.files)
        return min(restored, max(0, len(archived.files) - 1))

    def _take(self, task: RestoreTask, restored: PartitionRestored) -> None:
        """Adds the result of one partition. Raises SeedError if it is not complete."""
        for report in restored.reports:
            self._coordinator.receive(report)
        self.files_done += restored.files_done
        if restored.damaged:
            raise damaged_file(self._folder, restored.damaged)
        result = restored.result
        if result is None or result.outcome is PartitionOutcome.DONE:
            return
        if result.reason == FlowTakenError.reason:
            raise FlowLostError
        if result.outcome is PartitionOutcome.FAILED:
            raise JobFailedError(f"{task.of} cannot be restored: {result.message}")
        raise JobFailedError(f"{task.of} makes no progress: {result.message or 'its tasks end too early'}")

    def _watch(self, problem: str) -> None:
        self._publish(problem)
        if self.is_stopped:  # also what has begun since the signal
            self._tasks.cancel()

    def _publish(self, problem: str) -> None:
        records, size_bytes, seconds = self._coordinator.totals
        offsets = dict(self._coordinator.next_offsets)
        self._reporter.running(
            done=sum(offsets.get(index, -1) >= end for index, end in self._ends.items()),
            records=records,
            bytes=size_bytes,
            cost=Cost(executor_seconds=seconds, bytes_read=size_bytes, bytes_written=size_bytes),
            message=problem,
        )
