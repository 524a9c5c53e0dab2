"""Reads a range of offsets of one partition in a Spark task, record by record: the decoded records of each batch.

Records are those that consumers see: no markers, and with `read_committed` none of aborted transactions. Checksums are
verified. What the source has deleted meanwhile is a gap, which the caller reports or refuses.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from mirrorflow_core.errors import BrokerError, CorruptBatchError, CorruptRecordsError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import ClientSettings, SourceSettings
from mirrorflow_core.wire import error_codes
from mirrorflow_core.wire.batch import Batch, checksum_holds, split
from mirrorflow_core.wire.fetch import AbortedFilter, PartitionFetchResponse
from mirrorflow_core.wire.records import Record, decode
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_reader import begins_before, read_through_elections
from mirrorflow_kafka.admin.log_requests import EARLIEST
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.config.providers import Resolver
from mirrorflow_replicator.copy.rate_limiter import RateLimiter
from mirrorflow_seed.errors import JobFailedError
from mirrorflow_seed.verify.range_reader import OffsetRange

# Size of one fetch: a task holds this much, and one batch of it decoded.
FETCH_BYTES: Final = 4 << 20
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


class DecodedBatch(NamedTuple):
    """A batch of the source, and those of its records that are in the range: at least one."""

    batch: Batch
    records: list[Record]


class TopicRangeReader:
    """Reads *offsets* of *partition*. `next_offset`, `gaps` and `bytes_read` are those after the last batch that it yielded.

    *wants* skips batches, by their headers.
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
        self._client = client
        self._partition = partition
        self._end = offsets.end
        self._rate_limiter = RateLimiter(bytes_per_second)
        self._wants = wants

    def batches(self) -> Generator[DecodedBatch, None, None]:
        """Yields all batches, and fetches more when those of the last response are used up.

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

    async def _fetched(self) -> AsyncGenerator[DecodedBatch, None]:
        cluster = await self._client.connect()
        unserved_s = 0.0
        try:
            while self.next_offset < self._end:
                began, response = self.next_offset, await self._fetch(cluster)
                for batch in () if response is None else self._decoded(response):
                    yield batch
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

    def _decoded(self, response: PartitionFetchResponse) -> Iterator[DecodedBatch]:
        """Yields the records of a response batch by batch, so that only one batch at a time is decompressed."""
        end, committed = self._end, self._client.read_committed
        aborted = AbortedFilter(response.aborted)
        try:
            for batch in split(response.records):
                if self.next_offset >= end or not begins_before(batch, end):
                    self.next_offset = end
                    return
                delivered = aborted.delivers(batch) if committed else not batch.is_control
                if batch.next_offset <= self.next_offset:
                    continue
                wanted = delivered and batch.count and self._wants(batch)
                records = self._records_of(batch) if wanted else []
                # Before the batch is given away: the caller may cut after it.
                self.next_offset = min(batch.next_offset, end)
                if records:
                    yield DecodedBatch(batch, records)
        except CorruptRecordsError as error:
            raise CorruptBatchError(
                topic=self._partition.topic,
                partition=self._partition.partition,
                offset=self.next_offset,
                problem=str(error),
            ) from error

    def _records_of(self, batch: Batch) -> list[Record]:
        if not checksum_holds(batch):
            raise CorruptRecordsError("its checksum does not hold")
        records = decode(batch)
        begin, end = self.next_offset, self._end
        # An old compressed batch has the offset of its last record.
        if batch.magic < 2 or batch.base_offset < begin or batch.next_offset > end:
            records = [record for record in records if begin <= record.offset < end]
        return records
