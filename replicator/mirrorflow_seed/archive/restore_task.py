"""Restores the files of one partition in a Spark task, in their order.

    read a file into a spool ──> compare it with its digests ──> copy it as a seed task does ──> the next file

Guarantees: a file that differs from its commit is not restored at all. Records that the target has are not written
again, also after a retry (`seed.seed_task_attempt`). A file starts only when the previous one is completely on the
target; if the target has lost its last records, the previous file is restored again.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mirrorflow_core.errors import CorruptRecordsError, FlowTakenError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import LossPolicy, OffsetSyncSettings, SourceSettings, StartPosition
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.security.secret_rotation import Resolve
from mirrorflow_seed.archive.archive_source import ArchiveCluster, Spool
from mirrorflow_seed.archive.manifest import ArchivedFile, ArchivedPartition, Manifest
from mirrorflow_seed.archive.parquet_files import read_batches
from mirrorflow_seed.archive.record_tally import TallyBuilder
from mirrorflow_seed.record_columns import is_increasing
from mirrorflow_seed.seed.seed_plan import SeedRange, SeedTask
from mirrorflow_seed.seed.seed_task_attempt import (
    PartitionOutcome,
    PartitionResult,
    SeedTaskAttempt,
    TaskResult,
    WaveSettings,
    prepare_process,
)
from mirrorflow_seed.seed.task_messages import SeedTaskReport
from mirrorflow_seed.storage_folder import StorageFolder

log = logging.getLogger("mirrorflow.restore")
# Attempts for a file whose copy ended early, because a cluster was unreachable or the rate is low.
TRIES_MAX = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreTask:
    """The input of the task that restores one partition, from its file number *first* on."""

    wave: WaveSettings
    address: str  # of the archive
    index: int  # of the partition, in reports
    of: TopicPartition
    part: Manifest  # the manifest of this partition alone
    first: int
    bytes_per_second: int | None  # its part of the job's rate

    @property
    def archived(self) -> ArchivedPartition:
        return self.part.partitions[self.of]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRestored:
    """The result of one partition. *result* is that of the last file, None for a partition without files."""

    files_done: int
    reports: tuple[SeedTaskReport, ...]
    result: PartitionResult | None = None
    damaged: str | None = None  # the path of a file that differs from its commit


def restore_group(group: Sequence[RestoreTask]) -> list[PartitionRestored]:
    """Restores partitions one after the other, in a Spark task; ends with the first that is not complete."""
    prepare_process()
    restored: list[PartitionRestored] = []
    for task in group:
        restored.append(restore_partition(task))
        if restored[-1].damaged or (
            restored[-1].result and restored[-1].result.outcome is not PartitionOutcome.DONE
        ):
            break
    return restored


def restore_partition(task: RestoreTask) -> PartitionRestored:
    """Restores the files of one partition until one is damaged or cannot be copied."""
    folder, files = StorageFolder(task.address), task.archived.files
    reports: list[SeedTaskReport] = []
    result: PartitionResult | None = None
    index, tries, done = task.first, 0, 0
    while index < len(files):
        restored = _restore_file(task, folder, index)
        if restored is None:
            return PartitionRestored(files_done=done, reports=tuple(reports), damaged=files[index].path)
        ended, wanted_earlier = restored
        reports.append(ended.report)
        result = ended.partition_results[0]
        if wanted_earlier is not None:
            index = max(0, index - 1)  # the target has lost its last records: restore the previous file again
        elif result.outcome is PartitionOutcome.DONE:
            index, tries, done = index + 1, 0, done + 1
            continue
        elif result.outcome is PartitionOutcome.FAILED or result.reason == FlowTakenError.reason:
            break
        tries += 1
        if tries > TRIES_MAX:
            break
    return PartitionRestored(files_done=done, reports=tuple(reports), result=result)


def _restore_file(
    task: RestoreTask, folder: StorageFolder, index: int
) -> tuple[TaskResult, int | None] | None:
    """Restores file number *index*; returns the result, and an offset of an earlier file that must be restored again.

    None if the file is damaged; then nothing of it was restored.
    """
    file = task.archived.files[index]
    # There are no records between the end of the previous file and the start of this one.
    start = task.archived.files[index - 1].end if index else task.archived.start
    with Spool(start=start, end=file.end, codec=file.codec) as spool:
        if not _fill(spool, folder, file, TallyBuilder(task.part.archive_id, task.of.partition)):
            return None
        settings = with_offset_map(without_source(task.wave.files.load()))
        archive = ArchiveCluster(settings.source_alias, task.part, of=task.of, spool=spool)
        seed_range = SeedRange(
            index=task.index,
            topic=task.of.topic,
            partition=task.of.partition,
            start=start,
            end=spool.next_offset,
            bytes=file.tally.bytes,
        )
        result = asyncio.run(_task_attempt(seed_range, task, settings, archive).run())
        return result, archive.wanted_earlier


def _fill(spool: Spool, folder: StorageFolder, file: ArchivedFile, tally_builder: TallyBuilder) -> bool:
    """Fills *spool* with the records of *file*; returns whether they are those that were archived."""
    before = file.start - 1
    try:
        with folder.reading(file.path) as source:
            # A restore may begin and end in the middle of a file.
            for batch in read_batches(source, start=file.start, end=file.end):
                if not batch.num_rows:
                    continue
                offsets = batch.column("offset")
                if offsets[0].as_py() <= before or not is_increasing(offsets):
                    return False  # a wrong order; the range that is read has no foreign records
                before = offsets[-1].as_py()
                spool.add(batch)
                tally_builder.add_columns(batch)
    except CorruptRecordsError as error:
        log.warning("%s: %s", file.path, error)
        return False
    spool.finish()
    return tally_builder.tally == file.tally


def _task_attempt(
    seed_range: SeedRange, task: RestoreTask, settings: SourceSettings, archive: ArchiveCluster
) -> SeedTaskAttempt:
    """Returns the attempt of a seed task that copies one partition, with the archive as source."""

    async def connect(settings: SourceSettings, resolve: Resolve) -> tuple[Cluster, Cluster]:
        return archive, await Cluster.connect(settings.target_producer, resolve=resolve)

    return SeedTaskAttempt(
        SeedTask(ranges=(seed_range,), bytes_per_second=task.bytes_per_second),
        task.wave,
        settings,
        connect=connect,
        wants_end=lambda: archive.wanted_earlier is not None,
    )


def without_source(settings: SourceSettings) -> SourceSettings:
    """Returns the flow's settings for a restore, which never connects to the source.

    The archive is read from its first offset. If the flow's positions are before that, the missing records are a
    loss, which fails the restore. Offset syncs that belong on the source are not written.
    """
    syncs = settings.syncs
    return replace(
        settings,
        start=StartPosition.EARLIEST,
        on_source_loss=LossPolicy.FAIL,
        syncs=None if syncs is None or syncs.on_source else syncs,
    )


def with_offset_map(settings: SourceSettings) -> SourceSettings:
    """Returns *settings* that also keep the offset map where no offset syncs are written: groups are restored by it."""
    if settings.syncs is not None:
        return settings
    only_map = OffsetSyncSettings(
        on_source=False, only_map=True, producer=settings.target_producer, admin=settings.target_admin
    )
    return replace(settings, syncs=only_map)
