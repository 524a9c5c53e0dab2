"""Reads a stretch of one partition as its consumers see it: batches in order, without markers and aborted transactions.

The next fetch is under way while the last one's batches are worked on. Promises: nothing is skipped in silence. A leader
that moves and a connection that is lost are tried again, a bounded number of times; what the log has deleted meanwhile is
`DeletedMeanwhileError`.
"""

import asyncio
import contextlib
import struct
from typing import Final

from mirrorflow_replicator.errors import ConnectionLostError, UnreachableError
from mirrorflow_replicator.flow.partitions import TopicPartition
from mirrorflow_replicator.kafka import codes
from mirrorflow_replicator.kafka.cluster import Cluster
from mirrorflow_replicator.kafka.pool import backoff_s
from mirrorflow_replicator.wire import fetch
from mirrorflow_replicator.wire.aborted import AbortedFilter
from mirrorflow_replicator.wire.batch import Batch, first_size_bytes, split
from mirrorflow_replicator.wire.fetch import FetchedPartition, FetchFrom, FetchKey
from mirrorflow_seed.errors import SeedError

# A side holds two answers at most, one that is worked on and one that arrives, and its connection keeps their memory.
ANSWER_BYTES: Final = 4 << 20
FETCH_VERSION_MAX: Final = 12  # the last that names topics; ids would say nothing more here
MAX_WAIT_MS: Final = 500
# An election takes seconds, a broker's death up to broker.session.timeout.ms (9 s): 0.1 to 1 s, 30 times.
ATTEMPTS_MAX: Final = 30
BACKOFF_MIN_S: Final = 0.1
BACKOFF_MAX_S: Final = 1.0
# What lies before a frozen end is there: an answer without it once may be a slow replica, again and again it was deleted.
EMPTY_MAX: Final = 4


class DeletedMeanwhileError(SeedError):
    """Retention has deleted records of *partition* while they were to be read."""

    def __init__(self, *, cluster: str, partition: TopicPartition, offset: int) -> None:
        self.partition = partition
        self.offset = offset
        super().__init__(f"{cluster} has deleted {partition} at offset {offset} while it was being verified.")


class StretchReader:
    """The batches of [begin, end) of *partition*, the first and the last of which may reach beyond.

    Who wants a few records alone does not read ahead.
    """

    def __init__(
        self,
        cluster: Cluster,
        partition: TopicPartition,
        begin: int,
        end: int,
        *,
        read_committed: bool,
        answer_bytes: int = ANSWER_BYTES,
        reads_ahead: bool = True,
    ) -> None:
        self.bytes_read = 0
        self._cluster = cluster
        self._partition = partition
        self._next, self._end = begin, end
        self._read_committed = read_committed
        self._answer_bytes = answer_bytes
        self._reads_ahead = reads_ahead
        self._delivered = AbortedFilter()
        self._empty = 0
        self._under_way: asyncio.Task[FetchedPartition] | None = None

    def start(self) -> None:
        """Begin to fetch."""
        if self._under_way is None and self._next < self._end:
            self._under_way = asyncio.create_task(self._fetch(self._next))

    async def more(self) -> list[Batch] | None:
        """The next batches, perhaps none; None at the end. Raises ClusterError, CorruptRecordsError."""
        self.start()
        if self._under_way is None:
            return None
        fetched = await self._under_way
        self._under_way = None
        found = split(fetched.records)
        if not found and len(fetched.records):
            # One batch larger than an answer: brokers give the first whole, but not those of old.
            self._answer_bytes = max(self._answer_bytes, first_size_bytes(fetched.records))
        self._move(found)
        if self._reads_ahead:
            self.start()
        self.bytes_read += len(fetched.records)
        self._delivered.feed(fetched.aborted)
        return [
            batch
            for batch in found
            if self._is_delivered(batch) and batch.base_offset < self._end and batch.count
        ]

    async def close(self) -> None:
        """Read no more."""
        if self._under_way is not None:
            self._under_way.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await self._under_way

    def _move(self, found: list[Batch]) -> None:
        if found:
            self._next = max(
                self._next, found[-1].next_offset if found[-1].magic == 2 else found[-1].base_offset + 1
            )
            self._empty = 0
            return
        self._empty += 1
        if self._empty == EMPTY_MAX:
            self._next = self._end

    def _is_delivered(self, batch: Batch) -> bool:
        if self._read_committed:
            return self._delivered.delivers(batch)
        return not batch.is_control

    async def _fetch(self, offset: int) -> FetchedPartition:
        for attempt in range(1, ATTEMPTS_MAX + 1):
            is_last = attempt == ATTEMPTS_MAX
            try:
                answer = await self._ask(offset)
            except UnreachableError:
                if is_last:
                    raise
            else:
                if not answer.error:
                    return answer
                self._judge(answer, offset, is_last=is_last)
            await asyncio.sleep(backoff_s(attempt, lowest_s=BACKOFF_MIN_S, highest_s=BACKOFF_MAX_S))
            with contextlib.suppress(UnreachableError):
                await self._cluster.refresh([self._partition.topic])
        raise AssertionError("the last attempt raises")

    def _judge(self, answer: FetchedPartition, offset: int, *, is_last: bool) -> None:
        """Raise unless it may be better soon."""
        code, alias = answer.error, self._cluster.alias
        if code == codes.OFFSET_OUT_OF_RANGE:
            raise DeletedMeanwhileError(cluster=alias, partition=self._partition, offset=offset)
        if is_last or not (codes.is_metadata_stale(code) or codes.is_retriable(code)):
            codes.raise_for(code, cluster=alias, request="Fetch", subject=str(self._partition))

    async def _ask(self, offset: int) -> FetchedPartition:
        leader = self._cluster.leader(*self._partition)
        if leader is None:
            await self._cluster.refresh([self._partition.topic])
            leader = self._cluster.leader(*self._partition)
        if leader is None:
            raise UnreachableError(
                cluster=self._cluster.alias,
                addresses=str(self._partition),
                problem="the partition has no leader",
            )
        connection = await self._cluster.connection(leader, purpose="verify" if self._reads_ahead else "look")
        version = min(FETCH_VERSION_MAX, connection.versions[fetch.API_KEY][1])
        key = FetchKey(self._partition.topic.encode(), self._partition.partition)
        body = fetch.fetch_request(
            version,
            session_id=0,
            session_epoch=-1,
            partitions=[(key, FetchFrom(offset, max_bytes=self._answer_bytes))],
            read_committed=self._read_committed,
            max_wait_ms=MAX_WAIT_MS,
            max_bytes=self._answer_bytes,
        )
        answer = await connection.send(fetch.API_KEY, version, (body,), flexible=version >= 12)
        try:
            fetched = fetch.read_fetched(version, answer)
        except (struct.error, IndexError) as error:
            raise ConnectionLostError(
                cluster=self._cluster.alias,
                address=connection.address,
                problem="its answer to Fetch cannot be read",
            ) from error
        return fetched.partitions[0]._replace(error=fetched.error or fetched.partitions[0].error)
