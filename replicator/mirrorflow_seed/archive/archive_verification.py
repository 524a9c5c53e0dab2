"""Verifies the target against an archive instead of the source, with the same windows, outcomes and result.

    read the commits ──> plan, by a few records of the files ──> compare each range of the archive with the target

The source need not exist. A task reads only the row groups with offsets of its range, by Parquet's statistics, but a file
that begins in its range as a whole: it compares it with its digests, so damage of the archive is not taken for a difference of the
target, nor for what the source had. Records that the flow has copied after the archive's end are not compared.
"""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from mirrorflow_core.errors import CorruptRecordsError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.replication_policy import flow_name
from mirrorflow_core.settings import SourceSettings
from mirrorflow_core.wire.records import Record, encode_as_logged
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator import process
from mirrorflow_replicator.config.providers import Resolver
from mirrorflow_seed.archive.archive_source import ArchiveCluster, ArchiveLog
from mirrorflow_seed.archive.commit_log import read_archive
from mirrorflow_seed.archive.log_batches import BATCH_OFFSETS
from mirrorflow_seed.archive.manifest import ArchivedFile, Manifest, part_of
from mirrorflow_seed.archive.parquet_files import read_batches, read_records
from mirrorflow_seed.archive.record_tally import TallyBuilder
from mirrorflow_seed.archive.restore_driver import require_isolation
from mirrorflow_seed.archive.restore_point import (
    ArchivePoint,
    cut_manifest,
    damaged_file,
    find_cuts,
    until_of,
)
from mirrorflow_seed.archive.restore_task import without_source
from mirrorflow_seed.job_status_server import Display
from mirrorflow_seed.record_columns import within
from mirrorflow_seed.settings import FlowFiles, JobSettings, require_archive
from mirrorflow_seed.spark_tasks import SparkTasks, share_files
from mirrorflow_seed.storage_folder import StorageFolder
from mirrorflow_seed.verify import comparison_tasks, planning_tasks, verify_driver
from mirrorflow_seed.verify.compared_sides import CompareSettings
from mirrorflow_seed.verify.offset_windows import VerifyPlanSettings, VerifyRange, VerifyRangeResult
from mirrorflow_seed.verify.partition_planner import PartitionLayout, VerifyPlan
from mirrorflow_seed.verify.range_comparison import compare_range
from mirrorflow_seed.verify.result_folder import ResultFolder
from mirrorflow_seed.verify.verification_result import VerificationResult
from mirrorflow_seed.verify.verify_plan import (
    joined_plan,
    limit_ranges,
    partition_layouts,
    plan_layouts,
    planning_groups,
)
from mirrorflow_seed.verify.verify_progress import VerifyProgress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# A fetch of at most SMALL_FETCH_BYTES needs only a few records; a larger one is a search.
SMALL_FETCH_BYTES: Final = 64 << 10
SMALL_FETCH_RECORDS: Final = 16
SEARCH_RECORDS: Final = 2_000


class SpotReadArchive(ArchiveCluster):
    """An archive as a source cluster for reads of a few records of any partition, straight from its files."""

    def __init__(self, alias: str, manifest: Manifest, folder: StorageFolder) -> None:
        super().__init__(alias, manifest)
        self._folder = folder

    def read_batches(self, partition: TopicPartition, offset: int, max_bytes: int) -> bytearray:
        """Returns one batch with the next records at or after *offset*, all from one file."""
        count = SMALL_FETCH_RECORDS if max_bytes <= SMALL_FETCH_BYTES else SEARCH_RECORDS
        for file in self.partitions[partition].files:
            if file.end <= offset:
                continue
            records = self._first(file, offset, count)
            if not records:
                continue
            reach = records[0].offset + BATCH_OFFSETS  # a batch's deltas have 32 bits
            near = [record for record in records if record.offset < reach]
            # If the file has no more records, the batch extends to its end.
            is_last = len(records) < count and len(near) == len(records)
            end = min(file.end, reach) if is_last else near[-1].offset + 1
            return encode_as_logged(near, codec=0, next_offset=end)
        return bytearray()

    def _first(self, file: ArchivedFile, offset: int, count: int) -> list[Record]:
        """Returns the first *count* records of *file* from *offset* on."""
        with self._folder.reading(file.path) as source:
            records = itertools.chain.from_iterable(read_records(source, start=offset, end=file.end))
            return list(itertools.islice(records, count))


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveRangeTask:
    """A range to compare. `part` is the manifest of one partition, `archived` are the files with the range."""

    verify_range: VerifyRange
    part: Manifest
    archived: tuple[ArchivedFile, ...]


def run(
    files: FlowFiles, job: JobSettings, *, display: Display | None = None, spark: "SparkSession | None" = None
) -> int:
    """Compares the target with `archive` and returns the exit status of `verify`.

    Raises SeedError, SettingError, ClusterError.
    """
    require_archive(job)
    return verify_driver.run(files, job, display=display, spark=spark, verify=verify_archive)


def verify_archive(
    files: FlowFiles,
    job: JobSettings,
    spark: "SparkSession",
    progress: VerifyProgress,
    result: ResultFolder,
) -> VerificationResult:
    """Plans and compares archive and target, and writes the table of *result*. Raises SeedError, SettingError, ClusterError."""
    began = time.perf_counter()
    settings = without_source(files.load())
    folder = StorageFolder(require_archive(job))
    task_files = share_files(spark, files, are_mounted=job.has_mounted_files)
    tasks = SparkTasks(spark)
    until_ms, whole = until_of(job.extra), read_archive(folder)
    require_isolation(whole, settings, folder.address)
    cuts = () if until_ms is None else find_cuts(tasks, folder, whole, until_ms)
    point, manifest = ArchivePoint(address=folder.address, cuts=cuts), cut_manifest(whole, cuts)
    plan_settings = replace(planning_tasks.plan_settings_of(job), target_may_be_ahead=True)
    notes: list[str] = []
    layouts = asyncio.run(_layouts(settings, plan_settings, manifest, folder, notes))
    plan_settings = limit_ranges(layouts, plan_settings)
    work = partial(plan_archived, plan_settings=plan_settings, files=task_files, point=point)
    groups = planning_groups(layouts, plan_settings)
    plans = (
        planning_tasks.plan_in_tasks(tasks, work, groups, progress)
        if len(groups) > 1
        else [asyncio.run(_plan(settings, plan_settings, manifest, folder, layouts))]
    )
    verify_plan = joined_plan(plans, notes)
    progress.begin(verify_driver.first_report(job, verify_plan))
    comparison = comparison_tasks.SparkComparison(
        tasks=tasks,
        inputs_of=lambda ranges: [_task(manifest, verify_range) for verify_range in ranges],
        compare=partial(compare_archived, files=task_files, address=folder.address),
        sides=comparison_tasks.KeySides(
            load=partial(_load, task_files), open=partial(_archive_sides, point=point)
        ),
        settings=comparison_tasks.compare_settings_of(settings, job),
        progress=progress,
        table=result.begin_table(flow_name(settings.flow)),
    )
    results = comparison.run(verify_plan.ranges)
    result.complete_table(results, verify_plan.undecided)
    return verify_driver.combine_results(settings, job, verify_plan, results, time.perf_counter() - began)


async def _layouts(
    settings: SourceSettings,
    plan_settings: VerifyPlanSettings,
    manifest: Manifest,
    folder: StorageFolder,
    notes: list[str],
) -> list[PartitionLayout]:
    archive = SpotReadArchive(settings.source_alias, manifest, folder)
    target = await _target(settings)
    try:
        return await partition_layouts(archive, target, settings, plan_settings, notes)
    finally:
        await target.close()


def plan_archived(
    layouts: list[PartitionLayout],
    *,
    plan_settings: VerifyPlanSettings,
    files: FlowFiles,
    point: ArchivePoint,
) -> VerifyPlan:
    """Plans these partitions of the archive in a Spark task."""
    process.tune_memory()
    settings, (folder, manifest) = without_source(files.load()), point.read()
    return asyncio.run(_plan(settings, plan_settings, manifest, folder, layouts))


async def _plan(
    settings: SourceSettings,
    plan_settings: VerifyPlanSettings,
    manifest: Manifest,
    folder: StorageFolder,
    layouts: Sequence[PartitionLayout],
) -> VerifyPlan:
    archive = SpotReadArchive(settings.source_alias, manifest, folder)
    target = await _target(settings)
    try:
        return await plan_layouts(archive, target, settings, plan_settings, layouts)
    finally:
        await target.close()


def _task(manifest: Manifest, verify_range: VerifyRange) -> ArchiveRangeTask:
    """Returns *verify_range* with the files that hold records of it."""
    key = TopicPartition(verify_range.topic, verify_range.partition)
    archived = manifest.partitions[key]
    return ArchiveRangeTask(
        verify_range=verify_range,
        part=part_of(manifest, key.topic, replace(archived, files=())),
        archived=tuple(
            file
            for file in archived.files
            if file.start < verify_range.source_to and file.end > verify_range.source_from
        ),
    )


def compare_archived(
    tasks: Sequence[ArchiveRangeTask], compare_settings: CompareSettings, *, files: FlowFiles, address: str
) -> list[VerifyRangeResult]:
    """Compares ranges of the archive at *address* with the target, in a Spark task."""
    process.tune_memory()
    settings, folder = without_source(files.load()), StorageFolder(address)
    return [_compare_range(task, settings, folder, compare_settings) for task in tasks]


def _load(files: FlowFiles) -> SourceSettings:
    return without_source(files.load())


def _compare_range(
    task: ArchiveRangeTask, settings: SourceSettings, folder: StorageFolder, compare_settings: CompareSettings
) -> VerifyRangeResult:
    return asyncio.run(_compare(task, settings, folder, compare_settings))


async def _compare(
    task: ArchiveRangeTask, settings: SourceSettings, folder: StorageFolder, compare_settings: CompareSettings
) -> VerifyRangeResult:
    async with _open(task, settings, folder) as sides:
        return await compare_range(sides, settings, task.verify_range, compare_settings)


async def _archive_sides(
    settings: SourceSettings, ranges: Sequence[VerifyRange], *, point: ArchivePoint
) -> AsyncIterator[Mapping[str, Cluster]]:
    """Yields the archive and the target, for each of *ranges* (`compared_sides.OpenSides`)."""
    folder, manifest = point.read()
    for verify_range in ranges:
        async with _open(_task(manifest, verify_range), settings, folder) as sides:
            yield sides


@contextlib.asynccontextmanager
async def _open(
    task: ArchiveRangeTask, settings: SourceSettings, folder: StorageFolder
) -> AsyncIterator[Mapping[str, Cluster]]:
    """Yields the range of the archive, as a source cluster, and the target."""
    verify_range = task.verify_range
    start, end = verify_range.source_from, verify_range.source_to
    with ArchiveLog(task.archived, start=start, end=end) as log:
        partition = TopicPartition(verify_range.topic, verify_range.partition)
        for file in task.archived:
            # A file may be in several ranges. Its start is in one of them.
            for batch in (
                _whole_file(folder, file, partition, task.part.archive_id)
                if start <= file.start
                else _file_range(folder, file, start, end)
            ):
                log.add(within(batch, start=start, end=end))
        log.finish()
        archive = ArchiveCluster(settings.source_alias, task.part, of=partition, spool=log)
        target = await _target(settings)
        try:
            yield {"source": archive, "target": target}
        finally:
            await target.close()


def _whole_file(
    folder: StorageFolder, file: ArchivedFile, partition: TopicPartition, archive_id: str
) -> Iterator[Any]:
    """Yields all records of *file*, as Arrow record batches, which belongs to *partition*. Raises ArchiveDamagedError at the end if they differ from its commit."""
    whole = TallyBuilder(archive_id, partition.partition)
    for batch in _file_range(folder, file, file.start, file.end):
        whole.add_columns(batch)
        yield batch
    if whole.tally != file.tally:
        raise damaged_file(folder, file.path)


def _file_range(folder: StorageFolder, file: ArchivedFile, start: int, end: int) -> Iterator[Any]:
    """Yields the records of *file*, as Arrow record batches, from offset *start* up to *end*. Raises ArchiveDamagedError if it is no Parquet file."""
    try:
        with folder.reading(file.path) as source:
            yield from read_batches(source, start=start, end=end)
    except CorruptRecordsError as error:
        raise damaged_file(folder, file.path) from error


async def _target(settings: SourceSettings) -> Cluster:
    resolve = Resolver(settings.providers).resolve_client
    return await Cluster.connect(settings.target_admin, resolve=resolve)
