"""The driver of an export: plans, writes the files in a Spark job, checks them, and writes the manifest last.

    claim the folder ──> read the source's offsets ──> one Spark task per range ──> check the files ──> manifest

Guarantees: a folder with other content is not changed; a folder with a manifest is a complete archive. After a kill, a
run with the same `run.id` starts over and deletes the files of the first one.

A task (`ExportRangeReader`) yields each record of its range once, in offset order, with verified checksums, and the JVM
writes the rows. Its memory is bounded by one fetch response and one decoded batch. Records that the source deleted
meanwhile are reported as a gap.
"""

import asyncio
import json
import re
import secrets
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from mirrorflow_core.errors import BrokerError, CorruptBatchError, CorruptRecordsError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import SourceSettings
from mirrorflow_core.wire import error_codes
from mirrorflow_core.wire.batch import Batch, checksum_holds, split
from mirrorflow_core.wire.fetch import AbortedFilter, PartitionFetchResponse
from mirrorflow_core.wire.records import decode
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_reader import read_through_elections
from mirrorflow_kafka.admin.log_requests import EARLIEST
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.config.providers import Resolver
from mirrorflow_replicator.copy.rate_limiter import RateLimiter
from mirrorflow_seed.archive.export_plan import ExportRange, SourceSnapshot, plan_ranges, read_source
from mirrorflow_seed.archive.manifest import (
    CLAIM_NAME,
    MANIFEST_NAME,
    ArchivedConfig,
    ArchivedFile,
    ArchivedPartition,
    ArchivedTopic,
    Gap,
    Manifest,
    encode,
    folder_of,
)
from mirrorflow_seed.archive.parquet_rows import (
    FOLDER_COLUMNS,
    ROW_SCHEMA,
    ArchiveRow,
    row_of,
    timestamp_type,
)
from mirrorflow_seed.errors import EXIT_DONE, ArchiveError, ArchiveOccupiedError, JobFailedError
from mirrorflow_seed.hadoop_folder import DATA_PREFIX, HadoopFolder
from mirrorflow_seed.job_report import Cost
from mirrorflow_seed.job_status_server import Display, JobReporter
from mirrorflow_seed.settings import FlowFiles, JobSettings, require_archive, whole_of
from mirrorflow_seed.spark_session import cause_of, spark_session
from mirrorflow_seed.spark_tasks import share_files
from mirrorflow_seed.verify.record_digests import Tally, TallyBuilder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# In bytes of Kafka's log; Parquet files are smaller. Large enough to avoid tiny tasks and files.
FILE_BYTES = 128 << 20
FILE_BYTES_KEY = "archive.file.bytes"
# Parquet keeps a row group in memory until it writes it.
ROW_GROUP_BYTES = 16 << 20
ROW_GROUP_CHECK_ROWS = 100  # rows between size checks of the group, for rows of a megabyte
CODEC = "zstd"
LEFT_BEHIND = ("_temporary",)  # files that a killed Spark job leaves
POLL_S = 0.5
# Spark names a file after its task, whose number is the index of the range in the plan.
_FILE_INDEX = re.compile(r"part-(\d+)-")
# Size of one fetch: a task holds this much, and one batch of it decoded.
FETCH_BYTES = 4 << 20
# A new leader may not serve yet what its predecessor served: wait this long, then fail.
UNSERVED_WAIT_S = 30.0
UNSERVED_POLL_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRangeResult:
    """The result of a range; valid only if Spark reports success and the file exists."""

    index: int
    tally: Tally
    codec: int
    gaps: tuple[Gap, ...]
    bytes_read: int
    seconds: float  # of the task, while rows were taken from it


class ExportRangeResults:
    """An AccumulatorParam of Spark that keeps one result per range, even if its task runs twice."""

    def zero(self, value: object) -> dict[int, ExportRangeResult]:
        return {}

    def addInPlace(  # noqa: N802 Spark's name
        self, one: dict[int, ExportRangeResult], other: dict[int, ExportRangeResult]
    ) -> dict[int, ExportRangeResult]:
        return {**one, **other}


def read_ranges(
    ranges: Iterable[ExportRange], *, files: FlowFiles, archive_id: str, bytes_per_s: int | None, results: Any
) -> Iterator[tuple[object, ...]]:
    """Yields the rows of *ranges*, each after its topic and partition; adds a result of each to *results*."""
    settings = files.load()
    for one in ranges:
        reader = ExportRangeReader(settings, one, archive_id, bytes_per_s)
        for row in reader.rows():
            yield (one.topic, one.partition, *row)
        results.add({one.index: reader.result})


class ExportRangeReader:
    """Reads one range: `rows` yields its rows, `result` is valid after them."""

    def __init__(
        self, settings: SourceSettings, one: ExportRange, archive_id: str, bytes_per_s: int | None
    ) -> None:
        self._settings = settings
        self._range = one
        self._partition = TopicPartition(one.topic, one.partition)
        self._tally_builder = TallyBuilder(archive_id, one.partition)
        self._codec = -1
        self._gaps: list[Gap] = []
        self._bytes_read = 0
        self._rate_limiter = RateLimiter(bytes_per_s)
        self._at = one.start
        self._began_s = time.monotonic()

    @property
    def result(self) -> ExportRangeResult:
        """The result; valid once all rows were read."""
        return ExportRangeResult(
            index=self._range.index,
            tally=self._tally_builder.tally,
            codec=max(0, self._codec),
            gaps=tuple(self._gaps),
            bytes_read=self._bytes_read,
            seconds=time.monotonic() - self._began_s,
        )

    def rows(self) -> Iterator[ArchiveRow]:
        """Yields all rows, and fetches more when those of the last response are used up.

        Raises MirrorFlowError, JobFailedError.
        """
        loop = asyncio.new_event_loop()
        fetched = self._fetched_rows()
        try:
            while True:
                try:
                    rows = loop.run_until_complete(anext(fetched))
                except StopAsyncIteration:
                    return
                yield from rows
        finally:
            loop.run_until_complete(fetched.aclose())
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

    async def _fetched_rows(self) -> AsyncGenerator[list[ArchiveRow], None]:
        settings = self._settings
        resolve = Resolver(settings.providers).resolve_client
        cluster = await Cluster.connect(settings.source_consumer, resolve=resolve)
        unserved_s = 0.0
        try:
            while self._at < self._range.end:
                began, answer = self._at, await self._fetch(cluster)
                for rows in () if answer is None else self._batches(answer):
                    yield rows
                if self._at > began:
                    unserved_s = 0.0
                else:
                    if unserved_s >= UNSERVED_WAIT_S:
                        raise JobFailedError(
                            f"{self._partition} of {settings.source_alias} does not serve offset {self._at}, although its"
                            f" end was at {self._range.end} or beyond; start the export again when the cluster is healthy."
                        )
                    unserved_s += UNSERVED_POLL_S
                    await asyncio.sleep(UNSERVED_POLL_S)
        finally:
            await cluster.close()

    async def _fetch(self, cluster: Cluster) -> PartitionFetchResponse | None:
        """Fetches from the current offset; None if that was deleted, after advancing to the first that exists."""
        committed = self._settings.read_committed
        try:
            answer = await read_through_elections(
                cluster, self._partition, self._at, read_committed=committed, max_bytes=FETCH_BYTES
            )
        except BrokerError as error:
            if error.code != error_codes.OFFSET_OUT_OF_RANGE:
                raise
            first = (await admin.list_offsets(cluster, [self._partition], EARLIEST))[self._partition]
            if first.error or first.offset <= self._at:
                raise JobFailedError(
                    f"{self._partition} of {cluster.alias} is shorter than when the export began, so it has lost records;"
                    " start the export again."
                ) from error
            end = min(first.offset, self._range.end)
            self._gaps.append(Gap(start=self._at, end=end))
            self._at = end
            return None
        self._bytes_read += len(answer.records)
        await self._rate_limiter.spend(len(answer.records))
        return answer

    def _batches(self, answer: PartitionFetchResponse) -> Iterator[list[ArchiveRow]]:
        """Yields the rows of a response batch by batch, so that only one batch at a time is decompressed."""
        end, committed = self._range.end, self._settings.read_committed
        aborted = AbortedFilter(answer.aborted)
        try:
            for batch in split(answer.records):
                if batch.base_offset >= end:
                    self._at = end
                    return
                delivered = aborted.delivers(batch) if committed else not batch.is_control
                if batch.next_offset <= self._at:
                    continue
                if delivered and batch.count:
                    yield self._rows_of(batch)
                self._at = batch.next_offset
        except CorruptRecordsError as error:
            raise CorruptBatchError(
                topic=self._range.topic, partition=self._range.partition, offset=self._at, problem=str(error)
            ) from error

    def _rows_of(self, batch: Batch) -> list[ArchiveRow]:
        if not checksum_holds(batch):
            raise CorruptRecordsError("its checksum does not hold")
        kind = timestamp_type(batch)
        if self._codec < 0:
            self._codec = batch.codec
        rows = []
        for record in decode(batch):
            if self._at <= record.offset < self._range.end:
                self._tally_builder.add(record)
                rows.append(row_of(record, kind))
        return rows


def written_files(
    present: Mapping[str, int],
    ranges: tuple[ExportRange, ...],
    results: Mapping[int, ExportRangeResult],
    *,
    location: str,
) -> Mapping[int, tuple[str, int]]:
    """Returns the path and size in bytes of each range's file; *present* maps existing paths to sizes.

    A range without records has no file. Raises ArchiveError if a file is missing or unexpected.
    """
    found: dict[int, tuple[str, int]] = {}
    by_index = {one.index: one for one in ranges}
    missing = [one.index for one in ranges if one.index not in results]
    for path, size_bytes in present.items():
        match = _FILE_INDEX.search(path.rpartition("/")[2])
        index = int(match.group(1)) if match else -1
        one = by_index.get(index)
        expected = one is not None and path.startswith(
            folder_of(TopicPartition(one.topic, one.partition)) + "/"
        )
        if not expected or index in found:
            raise ArchiveError(
                location=location,
                problem=f"{path} was written by another process meanwhile",
                action="export into a folder of its own",
            )
        found[index] = (path, size_bytes)
    missing += [index for index, one in results.items() if one.tally.records and index not in found]
    if missing:
        raise ArchiveError(
            location=location,
            problem=f"the files of {len(missing)} ranges are missing, although Spark reported success",
            action="start the export again",
        )
    return found


def archived_topics(
    snapshot: SourceSnapshot,
    ranges: tuple[ExportRange, ...],
    results: Mapping[int, ExportRangeResult],
    written: Mapping[int, tuple[str, int]],
) -> tuple[ArchivedTopic, ...]:
    """Returns the topics for the manifest, sorted by name."""
    pieces: dict[TopicPartition, list[ExportRange]] = {one: [] for one in snapshot.extents}
    for one in ranges:
        pieces[TopicPartition(one.topic, one.partition)].append(one)

    def partition(key: TopicPartition) -> ArchivedPartition:
        mine = sorted(pieces[key], key=lambda one: one.start)
        archived = tuple(
            ArchivedFile(
                path=written[one.index][0],
                size_bytes=written[one.index][1],
                start=one.start,
                end=one.end,
                codec=results[one.index].codec,
                tally=results[one.index].tally,
            )
            for one in mine
            if results[one.index].tally.records
        )
        gaps = tuple(gap for one in mine for gap in results[one.index].gaps)
        extent = snapshot.extents[key]
        return ArchivedPartition(
            number=key.partition, start=extent.start, end=extent.end, files=archived, gaps=gaps
        )

    return tuple(
        ArchivedTopic(
            name=name,
            topic_id=snapshot.topic_ids[name],
            configs=tuple(
                ArchivedConfig(
                    name=one.name, value=one.value, source=int(one.source), read_only=one.read_only
                )
                for one in snapshot.configs.get(name, ())
                if not one.sensitive
            ),
            partitions=tuple(partition(key) for key in sorted(snapshot.extents) if key.topic == name),
        )
        for name in sorted(snapshot.topic_ids)
    )


def run(
    files: FlowFiles, job: JobSettings, *, display: Display | None = None, spark: "SparkSession | None" = None
) -> int:
    """Writes the flow's topics to `archive`; returns the exit status. Raises SeedError, MirrorFlowError."""
    settings = files.load()
    address, file_bytes = require_archive(job), whole_of(job.extra, FILE_BYTES_KEY, FILE_BYTES)
    archive_id, started = secrets.token_hex(8), _now()
    with (
        JobReporter("export", job.run_id, display) as reporter,
        spark_session(job, f"mirrorflow-export-{job.run_id}", spark, light=False) as session,
    ):
        folder = HadoopFolder(session, address)
        claim = json.dumps({"run": job.run_id, "flow": settings.flow, "archive": archive_id}).encode()
        _claim(folder, job.run_id, settings.flow, claim)
        task_files = share_files(session, files, are_mounted=job.has_mounted_files)
        snapshot = asyncio.run(read_source(settings))
        ranges = plan_ranges(snapshot.extents, snapshot.bytes_per_offset, file_bytes=file_bytes)
        reporter.running(total=len(snapshot.extents))
        bytes_per_s = None
        if job.bytes_per_second is not None:
            bytes_per_s = max(
                1, job.bytes_per_second // max(1, min(len(ranges), session.sparkContext.defaultParallelism))
            )
        read = partial(read_ranges, files=task_files, archive_id=archive_id, bytes_per_s=bytes_per_s)
        results = _write(session, folder, ranges, read, reporter)
        files_written = written_files(folder.data(), ranges, results, location=folder.address)
        manifest = Manifest(
            archive_id=archive_id,
            flow=settings.flow,
            source_alias=settings.source_alias,
            source_cluster_id=snapshot.cluster_id,
            isolation="read_committed" if settings.read_committed else "read_uncommitted",
            started=started,
            finished=_now(),
            topics=archived_topics(snapshot, ranges, results, files_written),
        )
        if folder.read(CLAIM_NAME) != claim:
            raise ArchiveError(
                location=folder.address,
                problem="another export has taken over the folder",
                action="wait for that export, or name another folder",
            )
        folder.write(MANIFEST_NAME, encode(manifest))
        folder.delete(CLAIM_NAME)
        gap = manifest.gap_records
        reporter.succeeded(
            records=manifest.records,
            bytes=sum(one.tally.bytes for one in results.values()),
            gap_records=gap,
            cost=Cost(
                executor_seconds=sum(one.seconds for one in results.values()),
                bytes_read=sum(one.bytes_read for one in results.values()),
                bytes_written=sum(one.size_bytes for one in manifest.files),
            ),
            message=f"{manifest.records} records of {len(manifest.topics)} topics are archived."
            + (f" {gap} offsets were deleted on the source before they were read." if gap else ""),
        )
    return EXIT_DONE


def _claim(folder: HadoopFolder, run_id: str, flow: str, claim: bytes) -> None:
    """Claims the folder if it is empty or claimed by the same run. Raises ArchiveOccupiedError."""
    present = folder.entries()
    if MANIFEST_NAME in present:
        raise ArchiveOccupiedError(
            location=folder.address, problem="it already holds an archive", action="name another folder"
        )
    if present:
        before = json.loads(folder.read(CLAIM_NAME) or b"{}")
        if (before.get("run"), before.get("flow")) != (run_id, flow):
            raise ArchiveOccupiedError(
                location=folder.address,
                problem="it is not empty"
                + (
                    f", run {before['run']} of flow {before['flow']} has not finished there" if before else ""
                ),
                action="name another folder, or finish that run with its run.id",
            )
    folder.write(CLAIM_NAME, claim)
    for name in present:
        if name.startswith(DATA_PREFIX) or name in LEFT_BEHIND:
            folder.delete(name)


def _write(
    session: "SparkSession",
    folder: HadoopFolder,
    ranges: tuple[ExportRange, ...],
    read: Callable[..., Iterator[tuple[object, ...]]],
    reporter: JobReporter,
) -> Mapping[int, ExportRangeResult]:
    """Writes the rows that *read* yields in its tasks; returns the result of each range."""
    if not ranges:
        return {}
    context = session.sparkContext
    results = context.accumulator({}, ExportRangeResults())
    spark = session.newSession()
    # Each task writes one folder. Concurrent writers avoid a sort by folder, which would lose the order.
    spark.conf.set("spark.sql.maxConcurrentOutputFileWriters", "2")
    rows = context.parallelize(ranges, len(ranges)).mapPartitions(partial(read, results=results))
    frame = spark.createDataFrame(rows, ROW_SCHEMA, verifySchema=False)
    stop = threading.Event()

    def publish() -> None:
        while not stop.wait(POLL_S):
            _publish(reporter, ranges, dict(results.value))

    publishing = threading.Thread(target=publish, name="publishing", daemon=True)
    publishing.start()
    try:
        (
            frame.write.mode("append")
            .option("compression", CODEC)
            .option("parquet.block.size", str(ROW_GROUP_BYTES))
            .option("parquet.page.size.row.check.min", str(ROW_GROUP_CHECK_ROWS))
            .option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
            .partitionBy(*FOLDER_COLUMNS)
            .parquet(folder.uri)
        )
    except Exception as error:
        raise JobFailedError(f"The export has failed: {cause_of(error)}") from error
    finally:
        stop.set()
        publishing.join()
    return dict(results.value)


def _publish(
    reporter: JobReporter, ranges: tuple[ExportRange, ...], results: Mapping[int, ExportRangeResult]
) -> None:
    """Publishes the progress; a partition is done when all its ranges are."""
    waiting = {(one.topic, one.partition) for one in ranges if one.index not in results}
    all_of = {(one.topic, one.partition) for one in ranges}
    reporter.running(
        done=len(all_of - waiting),
        records=sum(one.tally.records for one in results.values()),
        bytes=sum(one.tally.bytes for one in results.values()),
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
