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

from mirrorflow_core.errors import ClusterError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import SourceSettings
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.config.plugins import make_selection
from mirrorflow_replicator.config.providers import Resolver
from mirrorflow_replicator.connectors.acl_sync import AclSync
from mirrorflow_seed.archive.archive_source import ArchiveCluster
from mirrorflow_seed.archive.commit_log import CommitLog, read_archive
from mirrorflow_seed.archive.group_restorer import GroupRestorer
from mirrorflow_seed.archive.manifest import Manifest
from mirrorflow_seed.archive.partition_restorer import PartitionRestorer
from mirrorflow_seed.archive.partition_selection import require_copied, select_partitions, selected_partitions
from mirrorflow_seed.archive.restore_comparison import RestoreComparison, compare_with_target
from mirrorflow_seed.archive.restore_point import cut_manifest, find_cuts, until_of
from mirrorflow_seed.archive.restore_task import without_source
from mirrorflow_seed.archive.source_metadata import group_selection
from mirrorflow_seed.errors import (
    EXIT_DIFFERENT,
    EXIT_DONE,
    EXIT_STOPPED,
    ArchiveUnfitError,
    JobFailedError,
    NothingSelectedError,
)
from mirrorflow_seed.job_status_server import Display, JobReporter
from mirrorflow_seed.seed.claimed_flow import ClaimedFlow
from mirrorflow_seed.seed.retention_holder import RetentionHolder
from mirrorflow_seed.seed.seed_plan import SeedRange
from mirrorflow_seed.seed.seed_task_attempt import WaveSettings
from mirrorflow_seed.seed.task_messages import Coordinator
from mirrorflow_seed.settings import (
    FlowFiles,
    JobSettings,
    flag_of,
    require_archive,
    require_shared_positions,
)
from mirrorflow_seed.spark_session import driver_address, spark_session
from mirrorflow_seed.spark_tasks import SparkTasks, share_files
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
        self._tasks, self._reporter, self._coordinator = SparkTasks(spark), reporter, coordinator
        self._folder = StorageFolder(require_archive(job))
        self._until_ms = until_of(job.extra)
        self._selected = selected_partitions(job.extra)
        self._manifest = self._read_manifest()
        self._url = reporter.url_for_tasks(*driver_address(spark))
        self._files = share_files(spark, files, are_mounted=job.has_mounted_files)
        self._job = job
        self._settings = without_source(files.load())
        self._selected_groups = group_selection(job.extra)
        self._compares = flag_of(job.extra, COMPARE_KEY, default=True)

    def _read_manifest(self) -> Manifest:
        """Returns what is restored of the archive: the selected partitions, up to the point in time.

        Raises ArchiveIncompleteError, ArchiveDamagedError, JobSettingError, JobFailedError.
        """
        manifest = read_archive(self._folder)
        self._begins = {key: archived.start for key, archived in manifest.partitions.items()}
        if self._until_ms is not None:
            then = CommitLog(self._folder).groups_at(self._until_ms)
            manifest = replace(
                manifest,
                groups=then.groups if then else (),
                groups_read_ms=then.groups_read_ms if then else None,
            )
        if self._selected is not None:
            manifest = select_partitions(manifest, self._selected)
        return cut_manifest(manifest, find_cuts(self._tasks, self._folder, manifest, self._until_ms))

    async def run(self) -> int:
        """Restores and compares; returns the exit status.

        Raises ArchiveUnfitError, ForeignRecordsError, NothingSelectedError, JobFailedError, MirrorFlowError.
        """
        settings = self._settings
        resolve = Resolver(settings.providers).resolve_client
        target = await Cluster.connect(settings.target_admin, resolve=resolve)
        archive = ArchiveCluster(settings.source_alias, self._manifest)
        flow = ClaimedFlow.over(settings, archive, target, f"restore-{self._job.run_id}")
        try:
            return await self._restore(flow)
        finally:
            await flow.close()

    async def _restore(self, flow: ClaimedFlow) -> int:
        require_isolation(self._manifest, self._settings, self._folder.address)
        arrangement = await flow.arrange()
        names = arrangement.names
        if arrangement.uncopied:
            raise JobFailedError(" ".join(list(arrangement.uncopied.values())[:TOPICS_NAMED_MAX]))
        if not names:
            raise NothingSelectedError(
                f"{self._folder.address}: {arrangement.nothing_selected or 'the flow selects none of its topics.'}"
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
        restorer = PartitionRestorer(
            self._tasks,
            self._folder,
            self._manifest,
            wave=wave,
            names=names,
            next_offsets=flow.next_offsets,
            bytes_per_second=self._job.bytes_per_second or self._settings.bytes_per_second,
            coordinator=self._coordinator,
            reporter=self._reporter,
        )
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
            self._reporter.stopped("Stopped cleanly; the next start resumes.")
            return EXIT_STOPPED
        message = f"{restorer.files_done} files are restored.{await self._restore_metadata(flow, names)}"
        if self._compares:
            await flow.read_positions()
            compared = await self._compare(names, flow.next_offsets)
            message += f" {compared.summary}"
            if compared.different:
                self._reporter.failed(message)
                return EXIT_DIFFERENT
        self._reporter.succeeded(message=message)
        return EXIT_DONE

    async def _compare(
        self, names: Mapping[str, str], next_offsets: Mapping[TopicPartition, int]
    ) -> RestoreComparison:
        """Compares the target with the archive. A cancellation, as by Ctrl-C, also ends the Spark tasks."""
        is_cancelled = threading.Event()

        def watch(_: str) -> None:
            if is_cancelled.is_set():
                self._tasks.cancel()

        try:
            return await asyncio.to_thread(
                partial(
                    compare_with_target,
                    self._tasks,
                    self._manifest,
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
        if unread := sum(not topic.configs for topic in self._manifest.topics if topic.name in names):
            sentences.append(
                f"{unread} topics have the target's default settings: the archive has none of them."
            )
        return "".join(f" {sentence}" for sentence in sentences if sentence)

    async def _restore_groups(self, flow: ClaimedFlow, names: Mapping[str, str]) -> str:
        """Restores the offsets of groups; returns sentences for the report."""
        if self._selected_groups is None:
            return ""
        if self._manifest.groups_read_ms is None:
            return "No offsets of groups are restored: the archive has none" + (
                " of that time." if self._until_ms is not None else "."
            )
        archive = ArchiveCluster(self._settings.source_alias, self._manifest)
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
        if self._manifest.acls is None:
            return "No ACLs are restored: the archive has none."
        acl_sync = AclSync(flow.source, flow.target, settings=settings, selection=make_selection(settings))
        sentences = await acl_sync.sync(names)
        for sentence in sentences:
            log.warning("%s", sentence)
        # They name topics, which a report does not.
        return f"{len(sentences)} problems with ACLs are in the log." if sentences else ""

    def _ranges(self, flow: ClaimedFlow, names: Mapping[str, str]) -> tuple[SeedRange, ...]:
        """Returns the partitions as a seed's ranges, to store their start offsets and to hold the retention."""
        archived = self._manifest.partitions
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
        for key, archived in self._manifest.partitions.items():
            copied_until = flow.next_offsets.get(key)
            if (
                key.topic in names
                and copied_until is not None
                and copied_until < archived.start
                and archived.records
            ):
                raise ArchiveUnfitError(
                    location=self._folder.address,
                    problem=f"it begins at offset {archived.start} of {key}, but the flow has copied that partition only up to {copied_until}",
                    action="restore an archive that begins at or before that offset",
                )

    def _require_not_beyond(self, flow: ClaimedFlow, names: Mapping[str, str]) -> None:
        """Raises ArchiveUnfitError if the flow has copied more of a partition than is to be restored."""
        if self._until_ms is None and self._selected is None:
            return
        partitions = self._manifest.partitions
        wanted = partitions if self._selected is None else [item.partition for item in self._selected]
        for key in wanted:
            archived, copied_until = partitions[key], flow.next_offsets.get(key, 0)
            if key.topic in names and copied_until > archived.end:
                raise ArchiveUnfitError(
                    location=self._folder.address,
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
