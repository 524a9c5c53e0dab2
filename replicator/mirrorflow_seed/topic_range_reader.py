"""Reads a range of offsets of one partition in a Spark task, as Arrow record batches.

Records are those that consumers see: no markers, and with `read_committed` none of aborted transactions. Checksums are
verified. What the source has deleted meanwhile is a gap, which the caller reports or refuses.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from mirrorflow_core.errors import BrokerError, CorruptBatchError, CorruptRecordsError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import ClientSettings, SourceSettings
from mirrorflow_core.wire import error_codes
from mirrorflow_core.wire.batch import Batch, checksum_holds, split
from mirrorflow_core.wire.fetch import AbortedFilter, PartitionFetchResponse
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_reader import begins_before, read_through_elections
from mirrorflow_kafka.admin.log_requests import EARLIEST
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.config.providers import Resolver
from mirrorflow_replicator.copy.rate_limiter import RateLimiter
from mirrorflow_seed.errors import JobFailedError
from mirrorflow_seed.record_columns import ColumnBuilder
from mirrorflow_seed.verify.range_reader import OffsetRange

# Size of one fetch: a task holds this much, and some of it decoded.
FETCH_BYTES: Final = 4 << 20
# Uncompressed records that are decoded at once, besides the last batch of them.
CHUNK_BYTES: Final = 4 << 20
# A new leader may not serve yet what its predecessor served: wait this long, then fail.
UNSERVED_WAIT_S: Final = 30.0
UNSERVED_POLL_S: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceClient:
    """How tasks connect to the source and read it; *providers* resolve references to secrets, where a task runs."""

    settings: ClientSettings
    providers: Mapping[str, str] = field(repr=False)
    read_committed: bool

    @classmethod
    def of_flow(cls, settings: SourceSettings) -> "SourceClient":
        """Returns the consumer of a flow."""
        return cls(
            settings=settings.source_consumer,
            providers=settings.providers,
            read_committed=settings.read_committed,
        )

    async def connect(self) -> Cluster:
        """Connects to the source. Raises SettingError, ClusterError."""
        return await Cluster.connect(self.settings, resolve=Resolver(self.providers).resolve_client)


class TopicRangeReader:
    """Reads *offsets* of *partition*. `next_offset`, `gaps` and `bytes_read` are those after the records that it yielded last.

    *wants* skips batches, by their headers. `codec` is that of the first batch with records.
    """

    def __init__(
        self,
        client: SourceClient,
        partition: TopicPartition,
        offsets: OffsetRange,
        *,
        bytes_per_second: int | None = None,
        wants: Callable[[Batch], bool] = lambda _: True,
    ) -> None:
        self.next_offset = offsets.start
        self.gaps: list[OffsetRange] = []
        self.bytes_read = 0
        self.codec: int | None = None
        self._client = client
        self._partition = partition
        self._end = offsets.end
        self._rate_limiter = RateLimiter(bytes_per_second)
        self._wants = wants

    def columns(self) -> Generator[Any, None, None]:
        """Yields all records as Arrow record batches, and fetches more when those of the last response are used up.

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
        cluster = await self._client.connect()
        unserved_s = 0.0
        try:
            while self.next_offset < self._end:
                began, response = self.next_offset, await self._fetch(cluster)
                for columns in () if response is None else self._decoded(response):
                    yield columns
                if self.next_offset > began:
                    unserved_s = 0.0
                    continue
                if unserved_s >= UNSERVED_WAIT_S:
                    raise JobFailedError(
                        f"{self._partition} of {cluster.alias} does not serve offset {self.next_offset}, although its end"
                        f" was at {self._end} or beyond; start the job again when the cluster is healthy."
                    )
                unserved_s += UNSERVED_POLL_S
                await asyncio.sleep(UNSERVED_POLL_S)
        finally:
            await cluster.close()

    async def _fetch(self, cluster: Cluster) -> PartitionFetchResponse | None:
        """Fetches from the next offset; None if that was deleted, after advancing to the first that exists."""
        next_offset = self.next_offset
        try:
            response = await read_through_elections(
                cluster,
                self._partition,
                next_offset,
                read_committed=self._client.read_committed,
                max_bytes=FETCH_BYTES,
            )
        except BrokerError as error:
            if error.code != error_codes.OFFSET_OUT_OF_RANGE:
                raise
            first = (await admin.list_offsets(cluster, [self._partition], EARLIEST))[self._partition]
            if first.error or first.offset <= next_offset:
                raise JobFailedError(
                    f"{self._partition} of {cluster.alias} is shorter than when the job began, so it has lost records;"
                    " start the job again."
                ) from error
            end = min(first.offset, self._end)
            self.gaps.append(OffsetRange(next_offset, end))
            self.next_offset = end
            return None
        self.bytes_read += len(response.records)
        await self._rate_limiter.spend(len(response.records))
        return response

    def _decoded(self, response: PartitionFetchResponse) -> Iterator[Any]:
        """Yields the records of a response, and so few at once that their size is bounded by a batch and CHUNK_BYTES."""
        end, committed = self._end, self._client.read_committed
        aborted = AbortedFilter(response.aborted)
        next_offset = self.next_offset
        # That of the batch, or of the first of those that are decoded at once: records up to there may be deleted.
        corrupt_at = next_offset
        builder = ColumnBuilder(start=next_offset, end=end)
        try:
            for batch in split(response.records):
                if next_offset >= end or not begins_before(batch, end):
                    next_offset = end
                    break
                delivered = aborted.delivers(batch) if committed else not batch.is_control
                if batch.next_offset <= next_offset:
                    continue
                if delivered and batch.count and self._wants(batch):
                    self._add(builder, batch)
                corrupt_at = next_offset = min(batch.next_offset, end)
                if builder.size_bytes >= CHUNK_BYTES:
                    corrupt_at = self.next_offset
                    columns = builder.finish()
                    # Before they are given away: the caller may cut after them.
                    self.next_offset = corrupt_at = next_offset
                    if columns.num_rows:
                        yield columns
                    builder = ColumnBuilder(start=next_offset, end=end)
            corrupt_at = self.next_offset
            columns = builder.finish()
        except CorruptRecordsError as error:
            raise CorruptBatchError(
                topic=self._partition.topic,
                partition=self._partition.partition,
                offset=corrupt_at,
                problem=str(error),
            ) from error
        self.next_offset = next_offset
        if columns.num_rows:
            yield columns

    def _add(self, builder: ColumnBuilder, batch: Batch) -> None:
        if not checksum_holds(batch):
            raise CorruptRecordsError("its checksum does not hold")
        if self.codec is None:
            self.codec = batch.codec
        builder.add(batch)
