"""Reads a range of offsets of one source partition and yields it as rows; one task of an export.

Guarantees: each record of the range once, in offset order, with verified checksums. Memory is bounded by one
fetch response and one decoded batch. Records that the source deleted meanwhile are reported as a gap. It runs
in Spark's Python worker; the JVM writes the rows.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from mirrorflow_core.errors import BrokerError, CorruptBatchError, CorruptRecordsError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import SourceSettings
from mirrorflow_core.wire.batch import Batch, checksum_holds, split
from mirrorflow_core.wire.fetch import AbortedFilter, FetchedPartition
from mirrorflow_core.wire.records import decode
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_reader import read_through_elections
from mirrorflow_kafka.admin.log_requests import EARLIEST
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.config.providers import Resolver
from mirrorflow_replicator.copy.rate_limiter import RateLimiter
from mirrorflow_seed.archive.export_plan import ExportRange
from mirrorflow_seed.archive.manifest import Gap
from mirrorflow_seed.archive.rows import ArchiveRow, row_of, timestamp_type
from mirrorflow_seed.errors import JobFailedError
from mirrorflow_seed.settings import FlowFiles
from mirrorflow_seed.verify.digests import Tally, TallyBuilder

# Size of one fetch: a task holds this much, and one batch of it decoded.
FETCH_BYTES = 4 << 20
OFFSET_OUT_OF_RANGE = 1
# A newly elected leader may not serve yet what its predecessor served: wait this long, then fail.
UNSERVED_WAIT_S = 30.0
UNSERVED_POLL_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeResult:
    """The result of a range; valid only if Spark reports that its task succeeded and its file exists."""

    index: int
    tally: Tally
    codec: int
    gaps: tuple[Gap, ...]
    bytes_read: int
    seconds: float  # of the task, while rows were taken from it


class RangeResults:
    """Spark's AccumulatorParam that keeps one receipt per range, even if a task runs twice."""

    def zero(self, value: object) -> dict[int, RangeResult]:
        return {}

    def addInPlace(  # noqa: N802 Spark's name
        self, one: dict[int, RangeResult], other: dict[int, RangeResult]
    ) -> dict[int, RangeResult]:
        return {**one, **other}


def read_ranges(
    ranges: Iterable[ExportRange], *, files: FlowFiles, archive_id: str, bytes_per_s: int | None, results: Any
) -> Iterator[tuple[object, ...]]:
    """Yields the rows of *ranges*, each preceded by topic and partition; adds receipts to the accumulator."""
    settings = files.load()
    for one in ranges:
        reader = RangeReader(settings, one, archive_id, bytes_per_s)
        for row in reader.rows():
            yield (one.topic, one.partition, *row)
        results.add({one.index: reader.result})


class RangeReader:
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
    def result(self) -> RangeResult:
        """The receipt; valid once all rows were read."""
        return RangeResult(
            index=self._range.index,
            tally=self._tally_builder.tally,
            codec=max(0, self._codec),
            gaps=tuple(self._gaps),
            bytes_read=self._bytes_read,
            seconds=time.monotonic() - self._began_s,
        )

    def rows(self) -> Iterator[ArchiveRow]:
        """Yields all rows; fetches again when the last response is used up.

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

    async def _fetch(self, cluster: Cluster) -> FetchedPartition | None:
        """Fetches from the current offset; None if that was deleted, after moving on to the first left."""
        committed = self._settings.read_committed
        try:
            answer = await read_through_elections(
                cluster, self._partition, self._at, read_committed=committed, max_bytes=FETCH_BYTES
            )
        except BrokerError as error:
            if error.code != OFFSET_OUT_OF_RANGE:
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

    def _batches(self, answer: FetchedPartition) -> Iterator[list[ArchiveRow]]:
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
