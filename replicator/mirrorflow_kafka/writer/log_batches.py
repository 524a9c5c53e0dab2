"""Reads logs up to the high watermark, with the records of open and aborted transactions and with all markers.

`mirrorflow_core.writer.transaction_log` decides which of those records are committed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, NamedTuple, TypeVar

from mirrorflow_core.backoff import backoff_s
from mirrorflow_core.errors import BrokerError, CorruptRecordsError, UnreachableError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire.batch import Batch, checksum_holds
from mirrorflow_core.wire.fetch import is_abort_marker
from mirrorflow_core.wire.records import Record
from mirrorflow_core.wire.records import decode as decode_records
from mirrorflow_core.writer.transaction_log import LogBatch, Marker
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_reader import STRETCH_BYTES, ThrottledError, batches_between
from mirrorflow_kafka.admin.log_requests import EARLIEST, LATEST
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.client.error_codes import OFFSET_OUT_OF_RANGE

RETRY_TIMEOUT_S: Final = 60.0
RETRY_MIN_S, RETRY_MAX_S = 0.1, 1.0
MARKER_POLL_S: Final = 0.02
FORMER_LEADER_S: Final = 1.0  # a marker that takes longer may be in the log of another leader
BYTES_PER_OFFSET: Final = 4096  # of a fetch; the first batch is returned whole anyway
T = TypeVar("T")
Decode = Callable[[Record], object | None]


async def retrying(read: Callable[[], Awaitable[T]]) -> T:
    """Repeat *read* after retriable errors; the last one is raised after RETRY_TIMEOUT_S."""
    now = asyncio.get_running_loop().time
    given_up_s = now() + RETRY_TIMEOUT_S
    failures = 0
    while True:
        try:
            return await read()
        except (UnreachableError, BrokerError, ThrottledError) as error:
            if now() >= given_up_s or not error.retriable:
                raise
        failures += 1
        await asyncio.sleep(backoff_s(failures, lowest_s=RETRY_MIN_S, highest_s=RETRY_MAX_S))


class ExpectedMarker(NamedTuple):
    """The marker of a transaction, not below *offset*."""

    producer_id: int
    producer_epoch: int
    offset: int

    def is_in(self, batches: Iterable[LogBatch]) -> bool:
        """Return whether it is one of *batches*."""
        return any(
            batch.marker is not None
            and batch.base_offset >= self.offset
            and (batch.producer_id, batch.producer_epoch) == self[:2]
            for batch in batches
        )


async def read_log(
    cluster: Cluster, partition: TopicPartition, decode: Decode, *, marker: ExpectedMarker | None = None
) -> tuple[LogBatch, ...]:
    """Return all batches of *partition*; *decode* returns the content of a record, or None to leave it out.

    It waits until *marker* is in the log: a former leader, which was frozen, answers with an old high watermark.
    Raises ClusterError, CorruptRecordsError.
    """

    async def read() -> tuple[LogBatch, ...]:
        end = (await admin.offsets_at(cluster, [partition], LATEST))[partition]
        start = (await admin.offsets_at(cluster, [partition], EARLIEST))[partition]
        return await _collect(cluster, partition, start, end, decode)

    now = asyncio.get_running_loop().time
    since_s = now()
    while True:
        batches = await retrying(read)
        if marker is None or marker.is_in(batches):
            return batches
        if now() - since_s >= RETRY_TIMEOUT_S:
            problem = "the marker of a transaction that has ended is not in its log"
            raise UnreachableError(cluster=cluster.alias, addresses=str(partition), problem=problem)
        if now() - since_s >= FORMER_LEADER_S:
            await cluster.refresh([partition.topic])
        await asyncio.sleep(MARKER_POLL_S)


async def read_batches(
    cluster: Cluster, partition: TopicPartition, start: int, end: int
) -> tuple[LogBatch, ...]:
    """Return the batches with offsets in [start, end) that the log still has, without their records.

    Raises ClusterError.
    """

    async def read() -> tuple[LogBatch, ...]:
        try:
            return await _collect(cluster, partition, start, end, None)
        except BrokerError as error:
            if error.code != OFFSET_OUT_OF_RANGE:
                raise
        log_start = (await admin.offsets_at(cluster, [partition], EARLIEST))[partition]
        return await _collect(cluster, partition, max(start, log_start), end, None)

    return await retrying(read)


async def _collect(
    cluster: Cluster, partition: TopicPartition, start: int, end: int, decode: Decode | None
) -> tuple[LogBatch, ...]:
    max_bytes = min(STRETCH_BYTES, max(1, end - start) * BYTES_PER_OFFSET)
    return tuple(
        [
            _log_batch(batch, decode, partition)
            async for batch, _ in batches_between(cluster, partition, start, end, max_bytes=max_bytes)
        ]
    )


def _log_batch(batch: Batch, decode: Decode | None, partition: TopicPartition) -> LogBatch:
    marker = None
    records: list[tuple[int, object]] = []
    if batch.is_control:
        marker = Marker.ABORT if is_abort_marker(batch) else Marker.COMMIT
    elif decode is not None:
        if not checksum_holds(batch):
            raise CorruptRecordsError(f"the batch at offset {batch.base_offset} of {partition} is damaged")
        for record in decode_records(batch):
            content = decode(record)
            if content is not None:
                records.append((record.offset, content))
    return LogBatch(
        base_offset=batch.base_offset,
        last_offset=batch.last_offset,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        is_transactional=batch.is_transactional,
        marker=marker,
        records=tuple(records),
    )
