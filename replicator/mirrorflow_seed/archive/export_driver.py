"""The driver of an export: plans, lets Spark tasks write the files, checks them, and writes the manifest last.

    claim the folder ──> read the source's offsets ──> one Spark task per range ──> check the files ──> manifest

Guarantees: a folder with other content is not changed; a folder with a manifest is a complete archive. After a kill, a
run with the same `run.id` starts over and deletes the files of the first one.

A task (`export_range`) reads its range once, in offset order, with verified checksums, and writes it to a Parquet file
column by column. Its memory is bounded by one fetch response, one decoded batch and one row group. Where a rename is
no copy, a file is moved to its folder by the driver alone, so a task that Spark has given up adds none. Elsewhere it is
written to its place, by a name that the range decides. Records that the source deleted meanwhile are reported as a gap.
"""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from mirrorflow_core.errors import BrokerError, CorruptBatchError, CorruptRecordsError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import SourceSettings
from mirrorflow_core.wire import error_codes
from mirrorflow_core.wire.batch import Batch, checksum_holds, split
from mirrorflow_core.wire.fetch import AbortedFilter, PartitionFetchResponse
from mirrorflow_core.wire.records import Record, decode
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_reader import read_through_elections
from mirrorflow_kafka.admin.log_requests import EARLIEST
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator import process
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
from mirrorflow_seed.archive.parquet_files import CODEC, FileWriter, columns_of, timestamp_type
from mirrorflow_seed.errors import EXIT_DONE, ArchiveError, ArchiveOccupiedError, JobFailedError
from mirrorflow_seed.job_report import Cost
from mirrorflow_seed.job_status_server import Display, JobReporter, post_message
from mirrorflow_seed.settings import FlowFiles, JobSettings, require_archive, whole_of
from mirrorflow_seed.spark_session import driver_address, job_error, spark_session
from mirrorflow_seed.spark_tasks import SparkTasks, rates_of_tasks, run_watched, share_files
from mirrorflow_seed.storage_folder import DATA_PREFIX, TEMPORARY_FOLDER, StorageFolder
from mirrorflow_seed.verify.record_digests import Tally, TallyBuilder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# In bytes of Kafka's log; Parquet files are smaller. Large enough to avoid tiny tasks and files.
FILE_BYTES = 128 << 20
FILE_BYTES_KEY = "archive.file.bytes"
# Size of one fetch: a task holds this much, and one batch of it decoded.
FETCH_BYTES = 4 << 20
# A new leader may not serve yet what its predecessor served: wait this long, then fail.
UNSERVED_WAIT_S = 30.0
UNSERVED_POLL_S = 0.2
# The ranges of one task, and its part of the job's rate in bytes per second
ExportGroup = tuple[tuple[ExportRange, ...], int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRangeResult:
    """The result of a range; valid only if Spark reports success and the file exists."""

    index: int
    tally: Tally
    codec: int
    gaps: tuple[Gap, ...]
    bytes_read: int
    seconds: float  # of the task
    path: str = ""  # of its file, where the task has written it; "" without records
    size_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveWriting:
    """The input that all tasks of an export share."""

    address: str  # of the folder
    archive_id: str
    url: str  # for progress messages; "" without

    def path_of(self, one: ExportRange, *, renames: bool) -> str:
        """Returns where a task writes the file of *one*: its place, or with *renames* a name of its own before."""
        name = file_name(one, self.archive_id)
        if renames:
            return f"{TEMPORARY_FOLDER}/{self.archive_id}/{secrets.token_hex(4)}-{name}"
        return f"{folder_of(TopicPartition(one.topic, one.partition))}/{name}"


def file_name(one: ExportRange, archive_id: str) -> str:
    """Returns the name of the file of *one*."""
    return f"part-{one.index:05d}-{archive_id}.{CODEC}.parquet"


def export_range(
    one: ExportRange, *, files: FlowFiles, archive: ArchiveWriting, bytes_per_second: int | None
) -> ExportRangeResult:
    """Writes the file of one range, in a Spark task, and reports it to the driver. Raises MirrorFlowError, SeedError."""
    process.tune_memory()
    folder = StorageFolder(archive.address)
    reader = ExportRangeReader(files.load(), one, archive.archive_id, bytes_per_second)
    path = archive.path_of(one, renames=folder.renames)
    size_bytes = 0
    batches = reader.batches()
    first = next(batches, None)
    if first is not None:
        with folder.writing(path) as stream, FileWriter(stream) as writer:
            writer.add(first)
            for batch in batches:
                writer.add(batch)
            writer.finish()
            size_bytes = stream.tell()
    result = replace(reader.result, path=path if size_bytes else "", size_bytes=size_bytes)
    post_message(
        archive.url, {"range": one.index, "records": result.tally.records, "bytes": result.tally.bytes}
    )
    return result


class ExportRangeReader:
    """Reads one range: `batches` yields its records as Arrow record batches, `result` is valid after them."""

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
        """The result; valid once all batches were read."""
        return ExportRangeResult(
            index=self._range.index,
            tally=self._tally_builder.tally,
            codec=max(0, self._codec),
            gaps=tuple(self._gaps),
            bytes_read=self._bytes_read,
            seconds=time.monotonic() - self._began_s,
        )

    def batches(self) -> Iterator[Any]:
        """Yields all Arrow record batches, and fetches more when those of the last response are used up.

        Raises MirrorFlowError, JobFailedError.
        """
        loop = asyncio.new_event_loop()
        fetched = self._fetched()
        try:
            while True:
                try:
                    yield loop.run_until_complete(anext(fetched))
                except StopAsyncIteration:
                    return
        finally:
            loop.run_until_complete(fetched.aclose())
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

    async def _fetched(self) -> AsyncGenerator[Any, None]:
        settings = self._settings
        resolve = Resolver(settings.providers).resolve_client
        cluster = await Cluster.connect(settings.source_consumer, resolve=resolve)
        unserved_s = 0.0
        try:
            while self._at < self._range.end:
                began, answer = self._at, await self._fetch(cluster)
                for batch in () if answer is None else self._decoded(answer):
                    yield batch
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

    def _decoded(self, answer: PartitionFetchResponse) -> Iterator[Any]:
        """Yields the records of a response batch by batch, so that only one batch at a time is decompressed."""
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
                if delivered and batch.count and (records := self._records_of(batch)):
                    yield columns_of(records, timestamp_type(batch))
                self._at = batch.next_offset
        except CorruptRecordsError as error:
            raise CorruptBatchError(
                topic=self._range.topic, partition=self._range.partition, offset=self._at, problem=str(error)
            ) from error

    def _records_of(self, batch: Batch) -> list[Record]:
        if not checksum_holds(batch):
            raise CorruptRecordsError("its checksum does not hold")
        if self._codec < 0:
            self._codec = batch.codec
        records = decode(batch)
        if batch.base_offset < self._at or batch.next_offset > self._range.end:
            records = [one for one in records if self._at <= one.offset < self._range.end]
        self._tally_builder.extend(records)
        return records


def require_own_files(
    present: Mapping[str, int],
    ranges: Sequence[ExportRange],
    results: Mapping[int, ExportRangeResult],
    *,
    archive_id: str,
    location: str,
) -> None:
    """Raises ArchiveError unless *present*, sizes by path, are the files of *results*, at their places."""
    expected = {
        place_of(one, archive_id): results[one.index].size_bytes
        for one in ranges
        if results[one.index].tally.records
    }
    for path, size_bytes in present.items():
        if expected.get(path) != size_bytes:
            raise ArchiveError(
                location=location,
                problem=f"{path} was written by another process meanwhile",
                action="export into a folder of its own",
            )
    if missing := expected.keys() - present.keys():
        raise ArchiveError(
            location=location,
            problem=f"the files of {len(missing)} ranges are missing, although their tasks succeeded",
            action="name a folder that driver and executors share, and start the export again",
        )


def place_of(one: ExportRange, archive_id: str) -> str:
    """Returns the path of the file of *one* in the archive."""
    return f"{folder_of(TopicPartition(one.topic, one.partition))}/{file_name(one, archive_id)}"


def archived_topics(
    snapshot: SourceSnapshot,
    ranges: tuple[ExportRange, ...],
    results: Mapping[int, ExportRangeResult],
    archive_id: str,
) -> tuple[ArchivedTopic, ...]:
    """Returns the topics for the manifest, sorted by name."""
    pieces: dict[TopicPartition, list[ExportRange]] = {one: [] for one in snapshot.extents}
    for one in ranges:
        pieces[TopicPartition(one.topic, one.partition)].append(one)

    def partition(key: TopicPartition) -> ArchivedPartition:
        mine = sorted(pieces[key], key=lambda one: one.start)
        archived = tuple(
            ArchivedFile(
                path=place_of(one, archive_id),
                size_bytes=results[one.index].size_bytes,
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
    progress = ExportProgress()
    with (
        JobReporter("export", job.run_id, display, handler=progress) as reporter,
        spark_session(job, f"mirrorflow-export-{job.run_id}", spark) as session,
    ):
        folder = StorageFolder(address)
        claim = json.dumps({"run": job.run_id, "flow": settings.flow, "archive": archive_id}).encode()
        _claim(folder, job.run_id, settings.flow, claim)
        task_files = share_files(session, files, are_mounted=job.has_mounted_files)
        snapshot = asyncio.run(read_source(settings))
        ranges = plan_ranges(snapshot.extents, snapshot.bytes_per_offset, file_bytes=file_bytes)
        reporter.running(total=len(snapshot.extents))
        tasks = SparkTasks(session)
        archive = ArchiveWriting(
            address=address,
            archive_id=archive_id,
            url=reporter.url_for_tasks(*driver_address(session)),
        )
        groups = _groups(ranges, tasks.slots, job.bytes_per_second, snapshot.bytes_per_offset)
        results = _write(
            tasks, groups, task_files, archive, lambda problem: progress.publish(reporter, ranges, problem)
        )
        if folder.renames:
            for one in ranges:
                if path := results[one.index].path:
                    folder.move(path, place_of(one, archive_id))
            folder.delete(TEMPORARY_FOLDER)
        require_own_files(folder.data(), ranges, results, archive_id=archive_id, location=folder.address)
        manifest = Manifest(
            archive_id=archive_id,
            flow=settings.flow,
            source_alias=settings.source_alias,
            source_cluster_id=snapshot.cluster_id,
            isolation="read_committed" if settings.read_committed else "read_uncommitted",
            started=started,
            finished=_now(),
            topics=archived_topics(snapshot, ranges, results, archive_id),
        )
        if folder.read(CLAIM_NAME) != claim:
            raise ArchiveError(
                location=folder.address,
                problem="another export has taken over the folder",
                action="wait for that export, or name another folder",
            )
        folder.write(MANIFEST_NAME, encode(manifest))
        folder.delete(CLAIM_NAME)
        _report_success(reporter, manifest, results.values())
    return EXIT_DONE


def _report_success(
    reporter: JobReporter, manifest: Manifest, results: Collection[ExportRangeResult]
) -> None:
    gap = manifest.gap_records
    reporter.succeeded(
        records=manifest.records,
        bytes=sum(one.tally.bytes for one in results),
        gap_records=gap,
        cost=Cost(
            executor_seconds=sum(one.seconds for one in results),
            bytes_read=sum(one.bytes_read for one in results),
            bytes_written=sum(one.size_bytes for one in manifest.files),
        ),
        message=f"{manifest.records} records of {len(manifest.topics)} topics are archived."
        + (f" {gap} offsets were deleted on the source before they were read." if gap else ""),
    )


def _claim(folder: StorageFolder, run_id: str, flow: str, claim: bytes) -> None:
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
        if name.startswith(DATA_PREFIX) or name == TEMPORARY_FOLDER:
            folder.delete(name)


def _groups(
    ranges: Sequence[ExportRange],
    slots: int,
    bytes_per_second: int | None,
    bytes_per_offset: Mapping[TopicPartition, float],
) -> list[ExportGroup]:
    """Returns the ranges of each task: one; with a rate, those of each slot, as all tasks may run at once."""
    if bytes_per_second is None:
        return [((one,), None) for one in ranges]
    groups = [found for at in range(slots) if (found := tuple(ranges[at::slots]))]
    sizes = [round(sum(one.size_bytes(bytes_per_offset) for one in group)) for group in groups]
    return list(zip(groups, rates_of_tasks(bytes_per_second, sizes), strict=True))


def export_group(group: ExportGroup, *, files: FlowFiles, archive: ArchiveWriting) -> list[ExportRangeResult]:
    """Writes the files of ranges one after the other, in a Spark task, at most at so many bytes per second."""
    ranges, rate = group
    return [export_range(one, files=files, archive=archive, bytes_per_second=rate) for one in ranges]


def _write(
    tasks: SparkTasks,
    groups: Sequence[ExportGroup],
    files: FlowFiles,
    archive: ArchiveWriting,
    publish: Callable[[str], None],
) -> Mapping[int, ExportRangeResult]:
    """Runs the tasks, and publishes their progress meanwhile; returns the result of each range. Raises JobFailedError."""
    work = partial(export_group, files=files, archive=archive)
    try:
        found = run_watched(tasks, work, groups, publish)
    except Exception as error:
        raise job_error(error, "The export has failed") from error
    return {one.index: one for group in found for one in group}


class ExportProgress:
    """Receives the counts of written files, only for reports while the job runs; a range that is repeated counts once."""

    def __init__(self) -> None:
        self.path = (
            f"/task-reports/{secrets.token_hex(16)}"  # unguessable, so that only tasks of this job can post
        )
        self._counts: dict[int, tuple[int, int]] = {}  # records and bytes of each range

    def take(self, body: bytes) -> None:
        """Stores the counts of one range. Raises ValueError, KeyError, TypeError or AttributeError if *body* is not that."""
        message = json.loads(body)
        self._counts[int(message["range"])] = int(message["records"]), int(message["bytes"])

    def publish(self, reporter: JobReporter, ranges: Sequence[ExportRange], problem: str) -> None:
        """Publishes the progress, and a *problem* of Spark; a partition is done when all its ranges are."""
        counts = dict(self._counts)
        waiting = {(one.topic, one.partition) for one in ranges if one.index not in counts}
        reporter.running(
            done=len({(one.topic, one.partition) for one in ranges} - waiting),
            records=sum(records for records, _ in counts.values()),
            bytes=sum(size_bytes for _, size_bytes in counts.values()),
            message=problem,
        )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
