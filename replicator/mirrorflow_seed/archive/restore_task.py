"""Restores one file of one partition in a Spark task.

    read the rows into a spool ──> compare them with the manifest's digests ──> copy them as a seed task does

Guarantees: a file that differs from the manifest is not restored at all. Records that the target has are not written
again, also after a retry (`seed.seed_task_attempt`). The files of a partition are restored in order, each in a task.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import LossPolicy, SourceSettings, StartPosition
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.security.secret_rotation import Resolve
from mirrorflow_seed.archive.archive_source import ArchiveCluster, Spool
from mirrorflow_seed.archive.manifest import ArchivedFile, Manifest
from mirrorflow_seed.archive.parquet_rows import record_of
from mirrorflow_seed.seed.seed_plan import SeedRange, SeedTask
from mirrorflow_seed.seed.seed_task_attempt import SeedTaskAttempt, TaskResult, WaveSettings, prepare_process
from mirrorflow_seed.verify.record_digests import TallyBuilder


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTask:
    """The input of the task that restores one file."""

    wave: WaveSettings
    index: int  # of the partition, in reports
    of: TopicPartition
    file: ArchivedFile
    start: int  # end of the previous file; there are no records in between
    part: Manifest  # the manifest of this partition alone


@dataclass(frozen=True, slots=True, kw_only=True)
class FileResult:
    """The result of one file."""

    task_result: TaskResult | None = None  # None: the file is damaged
    wanted_earlier: int | None = None  # an offset of an earlier file, which must be restored again


def restore_file(rows: Iterator[Any], task: FileTask) -> Iterator[FileResult]:
    """Restores one file, for Spark's `mapPartitions`; *rows* are all its rows."""
    prepare_process()
    file = task.file
    tally_builder = TallyBuilder(task.part.archive_id, task.of.partition)
    with Spool(start=task.start, end=file.end, codec=file.codec) as spool:
        before = file.start - 1
        for row in rows:
            record = record_of(row)
            if not before < record.offset < file.end:
                break  # a foreign record or a wrong order: the tally will differ
            before = record.offset
            tally_builder.add(record)
            spool.add(record)
        spool.finish()
        if tally_builder.tally != file.tally:
            yield FileResult()
            return
        settings = without_source(task.wave.files.load())
        archive = ArchiveCluster(settings.source_alias, task.part, of=task.of, spool=spool)
        result = asyncio.run(_task_attempt(task, settings, archive, end=spool.next_offset).run())
        yield FileResult(task_result=result, wanted_earlier=archive.wanted_earlier)


def _task_attempt(
    task: FileTask, settings: SourceSettings, archive: ArchiveCluster, *, end: int
) -> SeedTaskAttempt:
    """Returns the attempt of a seed task that copies one partition, with the archive as source."""

    async def connect(settings: SourceSettings, resolve: Resolve) -> tuple[Cluster, Cluster]:
        return archive, await Cluster.connect(settings.target_producer, resolve=resolve)

    topic, partition = task.of
    seed_range = SeedRange(
        index=task.index,
        topic=topic,
        partition=partition,
        start=task.start,
        end=end,
        bytes=task.file.tally.bytes,
    )
    return SeedTaskAttempt(
        SeedTask(ranges=(seed_range,)),
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
