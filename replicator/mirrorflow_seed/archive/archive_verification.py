"""Verifies the target against an archive instead of the source, with the same windows, outcomes and result.

    read the manifest ──> plan, by a few records of the files ──> compare each range of the archive with the target

The source need not exist. Spark reads only the offsets of a range from its files, by Parquet's statistics. Records
that the flow has copied after the archive's end are not compared.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import SourceSettings
from mirrorflow_core.wire.records import encode_as_logged
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator import process
from mirrorflow_replicator.config.providers import Resolver
from mirrorflow_seed.archive.archive_source import BATCH_OFFSETS, ArchiveCluster, ArchiveLog
from mirrorflow_seed.archive.manifest import ArchivedFile, Manifest
from mirrorflow_seed.archive.parquet_rows import FILE_SCHEMA, one_task_session, record_of
from mirrorflow_seed.archive.restore_driver import read_manifest, require_isolation
from mirrorflow_seed.archive.restore_task import without_source
from mirrorflow_seed.errors import JobFailedError
from mirrorflow_seed.hadoop_folder import HadoopFolder
from mirrorflow_seed.job_report import Cost, VerifyReport
from mirrorflow_seed.job_status_server import Display
from mirrorflow_seed.settings import FlowFiles, JobSettings, require_archive
from mirrorflow_seed.spark_session import cause_of
from mirrorflow_seed.spark_tasks import share_files
from mirrorflow_seed.verify import verify_driver
from mirrorflow_seed.verify.offset_windows import VerifyRange
from mirrorflow_seed.verify.partition_planner import VerifyPlan
from mirrorflow_seed.verify.range_comparison import CompareSettings, VerifyRangeResult, compare_range
from mirrorflow_seed.verify.verification_result import VerificationResult, count_outcomes, with_progress
from mirrorflow_seed.verify.verify_plan import make_plan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


T = TypeVar("T")
# A fetch of at most SMALL_FETCH_BYTES needs only a few records; a larger one is a search.
SMALL_FETCH_BYTES: Final = 64 << 10
SMALL_FETCH_RECORDS: Final = 16
SEARCH_RECORDS: Final = 2_000


class ArchiveRowReader:
    """Reads rows of an archive's files."""

    def __init__(self, spark: "SparkSession", folder: HadoopFolder) -> None:
        self.slots = max(1, int(spark.sparkContext.defaultParallelism))
        self._spark = one_task_session(spark)
        self._folder = folder

    def cancel(self) -> None:
        """Cancels all running tasks."""
        self._spark.interruptAll()

    def first(self, file: ArchivedFile, offset: int, count: int) -> list[Any]:
        """Returns the first *count* rows of *file* from *offset* on."""
        found: list[Any] = self._frame([file], offset, file.end).limit(count).collect()
        return found

    def in_one_task(
        self,
        files: Sequence[ArchivedFile],
        start: int,
        end: int,
        work: Callable[[Iterator[Any]], Iterator[T]],
    ) -> list[T]:
        """Runs *work* in one task on the rows of *files* from *start* up to *end*, files in any order."""
        if not files:
            return list(work(iter(())))
        found: list[T] = self._frame(files, start, end).rdd.coalesce(1).mapPartitions(work).collect()
        return found

    def _frame(self, files: Sequence[ArchivedFile], start: int, end: int) -> Any:
        frame = self._spark.read.schema(FILE_SCHEMA).parquet(
            *(self._folder.uri_of(one.path) for one in files)
        )
        return frame.where(f"offset >= {start} AND offset < {end}")


class SpotReadArchive(ArchiveCluster):
    """An archive as a source cluster for reads of a few records of any partition, straight from its files."""

    def __init__(self, alias: str, manifest: Manifest, rows: ArchiveRowReader) -> None:
        super().__init__(alias, manifest)
        self._rows = rows

    def read_batches(self, partition: TopicPartition, offset: int, max_bytes: int) -> bytearray:
        """Returns one batch with the next records at or after *offset*, all from one file."""
        count = SMALL_FETCH_RECORDS if max_bytes <= SMALL_FETCH_BYTES else SEARCH_RECORDS
        for file in self.partitions[partition].files:
            if file.end <= offset:
                continue
            records = [record_of(row) for row in self._rows.first(file, offset, count)]
            if not records:
                continue
            reach = records[0].offset + BATCH_OFFSETS  # a batch's deltas have 32 bits
            near = [one for one in records if one.offset < reach]
            # If the file has no more records, the batch extends to its end.
            is_last = len(records) < count and len(near) == len(records)
            end = min(file.end, reach) if is_last else near[-1].offset + 1
            return encode_as_logged(near, codec=0, next_offset=end)
        return bytearray()


POLL_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveRangeTask:
    """The input of a task. `part` is the manifest of one partition, `archived` are the files with the range."""

    files: FlowFiles
    verify_range: VerifyRange
    compare_settings: CompareSettings
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
    progress: verify_driver.VerifyProgress,
) -> VerificationResult:
    """Plans and compares archive and target. Raises SeedError, SettingError, ClusterError."""
    began = time.perf_counter()
    settings = without_source(files.load())
    folder = HadoopFolder(spark, require_archive(job))
    manifest = read_manifest(folder)
    require_isolation(manifest, settings, folder.address)
    rows = ArchiveRowReader(spark, folder)
    verify_plan = asyncio.run(_plan(settings, job, manifest, rows))
    compare_settings = verify_driver.compare_settings_of(settings, job)
    first = verify_driver.first_report(job, verify_plan)
    progress.begin(first)
    results = _compare_ranges(
        rows,
        manifest,
        verify_plan.ranges,
        share_files(spark, files, are_mounted=job.has_mounted_files),
        compare_settings,
        lambda done: progress.publish(progress_report(first, done)),
    )
    return verify_driver.combine_results(settings, job, verify_plan, results, time.perf_counter() - began)


def progress_report(first: VerifyReport, done: Sequence[VerifyRangeResult]) -> VerifyReport:
    """Returns *first* with the results *done* added."""
    windows = [window for one in done for window in one.windows]
    return with_progress(
        first,
        count_outcomes(one.outcome for one in windows),
        source_records=sum(one.source_count for one in windows),
        target_records=sum(one.target_count for one in windows),
        differences=sum(one.differing for one in windows),
        cost=Cost(
            executor_seconds=sum(one.seconds for one in done), bytes_read=sum(one.bytes_read for one in done)
        ),
    )


async def _plan(
    settings: SourceSettings, job: JobSettings, manifest: Manifest, rows: ArchiveRowReader
) -> VerifyPlan:
    archive = SpotReadArchive(settings.source_alias, manifest, rows)
    target = await _target(settings)
    try:
        plan_settings = replace(verify_driver.plan_settings_of(job), target_may_be_ahead=True)
        return await make_plan(archive, target, settings, plan_settings)
    finally:
        await target.close()


def _compare_ranges(
    rows: ArchiveRowReader,
    manifest: Manifest,
    ranges: Sequence[VerifyRange],
    files: FlowFiles,
    compare_settings: CompareSettings,
    publish: Callable[[list[VerifyRangeResult]], None],
) -> list[VerifyRangeResult]:
    """Runs a one-task Spark job per range, as many at once as there are cores. Raises JobFailedError."""
    slots = max(1, min(rows.slots, len(ranges)))
    if compare_settings.bytes_per_second is not None:
        compare_settings = replace(
            compare_settings, bytes_per_second=compare_settings.bytes_per_second / slots
        )
    done: list[VerifyRangeResult] = []

    def one(verify_range: VerifyRange) -> None:
        key = TopicPartition(verify_range.topic, verify_range.partition)
        archived = manifest.partitions[key]
        reaching = tuple(
            file
            for file in archived.files
            if file.start < verify_range.source_to and file.end > verify_range.source_from
        )
        topic = next(topic for topic in manifest.topics if topic.name == key.topic)
        part = replace(manifest, topics=(replace(topic, partitions=(replace(archived, files=()),)),))
        task = ArchiveRangeTask(
            files=files,
            verify_range=verify_range,
            compare_settings=compare_settings,
            part=part,
            archived=reaching,
        )
        work = partial(compare_files, task=task)
        try:
            done.extend(rows.in_one_task(reaching, verify_range.source_from, verify_range.source_to, work))
        except Exception as error:
            raise JobFailedError(f"{key} cannot be compared: {cause_of(error)}") from error

    with ThreadPoolExecutor(max_workers=slots) as pool:
        waiting = {pool.submit(one, verify_range) for verify_range in ranges}
        try:
            while waiting:
                ended, waiting = wait(waiting, timeout=POLL_S)
                for future in ended:
                    future.result()
                publish(list(done))
        except BaseException:
            # After a signal or a failed range, do not wait for the others.
            pool.shutdown(wait=False, cancel_futures=True)
            rows.cancel()
            raise
    return done


def compare_files(rows: Iterator[Any], task: ArchiveRangeTask) -> Iterator[VerifyRangeResult]:
    """Compares one range, for Spark's `mapPartitions`; *rows* are its rows, file by file."""
    process.settle_in()
    verify_range = task.verify_range
    with ArchiveLog(task.archived, start=verify_range.source_from, end=verify_range.source_to) as log:
        for row in rows:
            log.add(record_of(row))
        log.finish()
        yield asyncio.run(_compare_range(task, log))


async def _compare_range(task: ArchiveRangeTask, log: ArchiveLog) -> VerifyRangeResult:
    verify_range, settings = task.verify_range, without_source(task.files.load())
    archive = ArchiveCluster(
        settings.source_alias,
        task.part,
        of=TopicPartition(verify_range.topic, verify_range.partition),
        spool=log,
    )
    target = await _target(settings)
    try:
        return await compare_range(
            {"source": archive, "target": target}, settings, verify_range, task.compare_settings
        )
    finally:
        await target.close()


async def _target(settings: SourceSettings) -> Cluster:
    resolve = Resolver(settings.providers).resolve_client
    return await Cluster.connect(settings.target_admin, resolve=resolve)
