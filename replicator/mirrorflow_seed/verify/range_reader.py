"""Reads an offset range of one partition as consumers see it: batches in order, no markers, no aborted records.

It fetches the next batches while the caller uses the last ones. It skips no record silently: it retries, within
bounds, after leader changes, lost connections and throttling (`admin.log_reader`), waits for records that a new leader does
not serve yet, and raises DeletedMeanwhileError for records that the log has deleted meanwhile.
"""

import asyncio
import contextlib
from itertools import takewhile
from typing import Final, NamedTuple

from mirrorflow_core.errors import BrokerError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire import error_codes
from mirrorflow_core.wire.batch import Batch, first_size_bytes, split
from mirrorflow_core.wire.fetch import FETCH_BYTES_MAX, AbortedFilter, PartitionFetchResponse
from mirrorflow_kafka.admin.log_reader import (
    UNSERVED_MAX_S,
    begins_before,
    read_through_elections,
    served_end,
    unserved_error,
)
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_seed.errors import SeedError

# A side holds at most two responses, one in use and one arriving; its connection reuses their memory.
RESPONSE_BYTES: Final = 4 << 20
MAX_WAIT_MS: Final = 500
# A slow replica may return one empty response before the end; after this many, no record is left there.
EMPTY_RESPONSES_MAX: Final = 4
UNSERVED_POLL_S: Final = 0.2  # a broker answers at once where it serves nothing yet
# A broker that has just started may not know a topic yet: ask for this long before the topic counts as deleted.
DELETED_AFTER_S: Final = 5.0
KNOWN_DELETED_AFTER_S: Final = 0.5  # a later range of the same topic; long enough to ask once more


class DeletedMeanwhileError(SeedError):
    """Records of *partition* were deleted before they were read: by retention at *offset*, or its whole topic (None)."""

    def __init__(self, *, cluster: str, partition: TopicPartition, offset: int | None) -> None:
        self.partition = partition
        self.offset = offset
        what = partition.topic if offset is None else f"{partition} at offset {offset}"
        super().__init__(f"{cluster} has deleted {what} while it was being verified.")


class OffsetRange(NamedTuple):
    """Offsets of a partition from `start` up to `end` (exclusive)."""

    start: int
    end: int


class OffsetRangeReader:
    """Reads the batches of *offsets* of *partition*; the first and the last may reach beyond that range.

    *reads_ahead* is False to read only a few records.
    """

    def __init__(
        self,
        cluster: Cluster,
        partition: TopicPartition,
        offsets: OffsetRange,
        *,
        read_committed: bool,
        response_bytes: int = RESPONSE_BYTES,
        reads_ahead: bool = True,
    ) -> None:
        self.bytes_read = 0
        self._cluster = cluster
        self._partition = partition
        self._next, self._end = offsets
        self._read_committed = read_committed
        self._response_bytes = response_bytes
        self._reads_ahead = reads_ahead
        self._aborted_filter = AbortedFilter()
        self._empty = 0
        self._unserved_s = 0.0
        self._in_flight: asyncio.Task[PartitionFetchResponse] | None = None

    def start(self) -> None:
        """Starts the next fetch, unless one is in flight or the end is reached."""
        if self._in_flight is None and self._next < self._end:
            self._in_flight = asyncio.create_task(self._fetch(self._next))

    async def more(self) -> list[Batch] | None:
        """Returns the next batches, possibly []; None at the end. Raises ClusterError, CorruptRecordsError."""
        self.start()
        if self._in_flight is None:
            return None
        fetched = await self._in_flight
        self._in_flight = None
        batches = split(fetched.records)
        if not batches and len(fetched.records):
            # The batch is larger than the response: old brokers do not return the first batch whole.
            first_bytes = min(first_size_bytes(fetched.records), FETCH_BYTES_MAX)
            self._response_bytes = max(self._response_bytes, first_bytes)
        if batches or served_end(fetched, read_committed=self._read_committed) >= self._end:
            self._unserved_s = 0.0
            self._advance(batches)
        else:
            await self._wait_until_served()
        if self._reads_ahead:
            self.start()
        self.bytes_read += len(fetched.records)
        self._aborted_filter.feed(fetched.aborted)
        return [
            batch
            for batch in takewhile(lambda batch: begins_before(batch, self._end), batches)
            if self._is_delivered(batch) and batch.count
        ]

    async def close(self) -> None:
        """Cancels the fetch in flight."""
        if self._in_flight is not None:
            self._in_flight.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await self._in_flight

    def _advance(self, batches: list[Batch]) -> None:
        if batches:
            self._next = max(
                self._next, batches[-1].next_offset if batches[-1].magic == 2 else batches[-1].base_offset + 1
            )
            self._empty = 0
            return
        self._empty += 1
        if self._empty == EMPTY_RESPONSES_MAX:
            self._next = self._end

    async def _wait_until_served(self) -> None:
        if self._unserved_s >= UNSERVED_MAX_S:
            why = f", and the log has ended at {self._end} or beyond"
            raise unserved_error(self._cluster, self._partition, self._next, why)
        self._unserved_s += UNSERVED_POLL_S
        await asyncio.sleep(UNSERVED_POLL_S)

    def _is_delivered(self, batch: Batch) -> bool:
        if self._read_committed:
            return self._aborted_filter.delivers(batch)
        return not batch.is_control

    async def _fetch(self, offset: int) -> PartitionFetchResponse:
        cluster, partition = self._cluster, self._partition
        fetch = asyncio.ensure_future(
            read_through_elections(
                cluster,
                partition,
                offset,
                read_committed=self._read_committed,
                max_bytes=self._response_bytes,
                max_wait_ms=MAX_WAIT_MS,
                purpose="verify" if self._reads_ahead else "look",
            )
        )
        wait_s = KNOWN_DELETED_AFTER_S if is_unknown(cluster, partition.topic) else DELETED_AFTER_S
        try:
            while not fetch.done():
                await asyncio.wait((fetch,), timeout=wait_s)
                if not fetch.done() and is_unknown(cluster, partition.topic):
                    raise DeletedMeanwhileError(cluster=cluster.alias, partition=partition, offset=None)
            return await fetch
        except BrokerError as error:
            if error.code != error_codes.OFFSET_OUT_OF_RANGE:
                raise
            raise DeletedMeanwhileError(cluster=cluster.alias, partition=partition, offset=offset) from error
        finally:
            fetch.cancel()


def is_unknown(cluster: Cluster, topic: str) -> bool:
    """Returns whether the brokers have last reported that *topic* does not exist; a failed fetch asks them again."""
    known = cluster.metadata.topics.get(topic)
    return known is not None and known.error in {
        error_codes.UNKNOWN_TOPIC_OR_PARTITION,
        error_codes.UNKNOWN_TOPIC_ID,
    }
