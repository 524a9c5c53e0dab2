"""Reads the batches of a log for `mirrorflow_core.writer.transaction_log`, which decides which of their records are committed.

It reads up to the high watermark, with the records of open and aborted transactions and with all markers. Reads are repeated after
retriable errors. Flows read the topics of their own with it, and what they have written to a partition.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from mirrorflow_core.backoff import backoff_s
from mirrorflow_core.errors import (
    BrokerError,
    ClusterError,
    CorruptRecordsError,
    MissingMarkerError,
    UnreachableError,
)
from mirrorflow_core.light_dataclasses import dataclass
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire.batch import Batch, checksum_holds
from mirrorflow_core.wire.error_codes import OFFSET_OUT_OF_RANGE
from mirrorflow_core.wire.fetch import FetchFrom, FetchKey, PartitionFetchResponse, is_abort_marker
from mirrorflow_core.wire.records import Record
from mirrorflow_core.wire.records import decode as decode_records
from mirrorflow_core.writer.transaction_log import LogBatch, Marker
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_reader import (
    FORMER_LEADER_S,
    RETRY_MAX_S,
    RETRY_MIN_S,
    STRETCH_BYTES,
    UNSERVED_MAX_S,
    ThrottledError,
    batches_between,
    read_once,
    send_fetch,
    served_end,
    unserved_error,
)
from mirrorflow_kafka.admin.log_requests import EARLIEST, LATEST
from mirrorflow_kafka.client.cluster import Cluster

RETRY_TIMEOUT_S: Final = 60.0
MARKER_POLL_MIN_S, MARKER_POLL_S = 0.005, 0.02  # a marker takes some milliseconds
BYTES_PER_OFFSET: Final = 4096  # of a fetch; the first batch is returned whole anyway
T = TypeVar("T")
Decode = Callable[[Record], object | None]


async def retrying(read: Callable[[], Awaitable[T]], *, timeout_s: float = RETRY_TIMEOUT_S) -> T:
    """Repeats *read* after retriable errors; the last one is raised after *timeout_s*."""
    now = asyncio.get_running_loop().time
    given_up_s = now() + timeout_s
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
        """Returns whether it is one of *batches*."""
        return any(
            batch.marker is not None
            and batch.base_offset >= self.offset
            and (batch.producer_id, batch.producer_epoch) == self[:2]
            for batch in batches
        )


class LogSpan(NamedTuple):
    """The offsets of a log: its start, its end, and the present epoch of its leader (-1: unknown)."""

    start: int
    end: int
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class _CachedLog:
    topic_id: str
    span: LogSpan
    batches: tuple[LogBatch, ...]


class LogCache:
    """What `read_log` has read of the logs of one flow, so that it fetches only what was appended since.

    A log may have lost records, and have others in their places, where its topic was created again, another leader was elected, or
    records were deleted. Then it is read from its start again.
    """

    def __init__(self) -> None:
        self._logs: dict[TopicPartition, _CachedLog] = {}

    def known(self, partition: TopicPartition, topic_id: str, span: LogSpan) -> tuple[LogBatch, ...]:
        """Returns the first batches of the log that has *span* now; () if none is known to be in it."""
        cached = self._logs.get(partition)
        is_same_log = (
            cached is not None
            and topic_id != ""
            and span.leader_epoch >= 0
            and (cached.topic_id, cached.span.start) == (topic_id, span.start)
            and cached.span.leader_epoch == span.leader_epoch
            and cached.span.end <= span.end
        )
        return cached.batches if cached is not None and is_same_log else ()

    def take(
        self, partition: TopicPartition, topic_id: str, span: LogSpan, batches: tuple[LogBatch, ...]
    ) -> None:
        """Notes that *batches* are the log in *span*."""
        self._logs[partition] = _CachedLog(topic_id, span, batches)


async def log_spans(cluster: Cluster, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, LogSpan]:
    """Returns the span of each of *partitions* with two requests to each leader; nothing if one of them is not available."""
    try:
        return await _spans(cluster, partitions)
    except (UnreachableError, BrokerError):
        return {}


async def _spans(cluster: Cluster, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, LogSpan]:
    ends = await admin.log_offsets(cluster, partitions, LATEST)
    starts = await admin.offsets_at(cluster, partitions, EARLIEST)
    return {
        partition: LogSpan(starts[partition], end.offset, end.leader_epoch) for partition, end in ends.items()
    }


async def read_starts(
    cluster: Cluster, spans: Mapping[TopicPartition, LogSpan]
) -> dict[TopicPartition, PartitionFetchResponse]:
    """Returns what *spans* begin with, fetched by one request to each leader; what did not arrive is absent.

    Most logs of a flow's own are so short that they need no other request.
    """
    of_leader: dict[int, dict[TopicPartition, LogSpan]] = {}
    for partition, span in spans.items():
        leader = cluster.leader(*partition)
        if leader is not None and span.start < span.end:
            of_leader.setdefault(leader, {})[partition] = span

    async def fetch_from(
        leader: int, wanted: Mapping[TopicPartition, LogSpan]
    ) -> dict[TopicPartition, PartitionFetchResponse]:
        connection = await cluster.connection(leader, purpose="scan")
        keys = {FetchKey(partition.topic.encode(), partition.partition): partition for partition in wanted}
        starts = tuple(
            (key, FetchFrom(wanted[partition].start, max_bytes=_span_bytes(wanted[partition])))
            for key, partition in keys.items()
        )
        fetched = await send_fetch(cluster, connection, starts)
        return {keys[part.key]: part for part in fetched.partitions if not part.error and part.records}

    requests = (fetch_from(leader, wanted) for leader, wanted in of_leader.items())
    fetched: dict[TopicPartition, PartitionFetchResponse] = {}
    for outcome in await asyncio.gather(*requests, return_exceptions=True):
        if isinstance(outcome, dict):
            fetched |= outcome
        elif not isinstance(outcome, ClusterError):
            raise outcome
    return fetched


async def read_log(
    cluster: Cluster,
    partition: TopicPartition,
    decode: Decode,
    *,
    marker: ExpectedMarker | None = None,
    span: LogSpan | None = None,
    first: PartitionFetchResponse | None = None,
    cache: LogCache | None = None,
) -> tuple[LogBatch, ...]:
    """Returns all batches of *partition*, of a topic of the flow's own; *decode* returns the content of a record, or None to leave it out.

    It waits until *marker* is in the log: a former leader, which was frozen, answers with an old high watermark. *span* is what
    `log_spans` has returned, and *first* what `read_starts` has; both are asked for again where a read is repeated. *cache* is only used with this *decode*, and a
    *span* beside it is newer than the metadata of the topic, which is newer than the previous read. Raises ClusterError, CorruptRecordsError.
    """
    given = [] if span is None else [(span, first)]

    async def read() -> tuple[LogBatch, ...]:
        if given:
            present, begin = given.pop()
        else:
            present, begin = (await _spans(cluster, [partition]))[partition], None
        if cache is None:
            return await _collect(cluster, partition, present.start, present.end, decode, first=begin)
        topic_id = cluster.metadata.topic_id(partition.topic)
        known = cache.known(partition, topic_id, present)
        start = known[-1].last_offset + 1 if known else present.start
        # Another leader may lack what is known, so it must not add to that.
        epoch = present.leader_epoch if known else -1
        batches = known + await _collect(cluster, partition, start, present.end, decode, epoch)
        cache.take(partition, topic_id, present, batches)
        return batches

    now = asyncio.get_running_loop().time
    since_s, reads = now(), 0
    if span is None and cache is not None:
        # Metadata that is older than a new topic would have the id of the one before.
        await cluster.refresh([partition.topic])
    while True:
        with admin.naming_leaderless(cluster, partition.topic):
            batches = await retrying(read)
        reads += 1
        if marker is None or marker.is_in(batches):
            return batches
        if now() - since_s >= RETRY_TIMEOUT_S:
            raise MissingMarkerError(cluster=cluster.alias, partitions=str(partition))
        if now() - since_s >= FORMER_LEADER_S:
            await cluster.refresh([partition.topic])
        await asyncio.sleep(backoff_s(reads, lowest_s=MARKER_POLL_MIN_S, highest_s=MARKER_POLL_S))


async def read_batches(
    cluster: Cluster, partition: TopicPartition, start: int, end: int, *, timeout_s: float = RETRY_TIMEOUT_S
) -> tuple[LogBatch, ...]:
    """Returns the batches with offsets in [start, end) that the log still has, without their records.

    It is repeated as by `retrying`, and waits as `batches_between` for offsets that are not served. Raises ClusterError.
    """
    unserved_max_s = min(timeout_s, UNSERVED_MAX_S)

    async def read() -> tuple[LogBatch, ...]:
        try:
            return await _collect(cluster, partition, start, end, None, unserved_max_s=unserved_max_s)
        except BrokerError as error:
            if error.code != OFFSET_OUT_OF_RANGE:
                raise
        log_start = (await admin.offsets_at(cluster, [partition], EARLIEST))[partition]
        return await _collect(
            cluster, partition, max(start, log_start), end, None, unserved_max_s=unserved_max_s
        )

    return await retrying(read, timeout_s=timeout_s)


async def aborted_transactions(
    cluster: Cluster, partition: TopicPartition, offset: int, *, timeout_s: float = RETRY_TIMEOUT_S
) -> dict[int, int]:
    """Returns where transactions begin that were open at *offset* and then aborted, by producer id.

    A broker returns the aborted transactions that end after the fetch offset (TransactionIndex.collectAbortedTxns), and none for an
    offset that it does not serve: *offset* is below the last stable offset, and this is waited for. Raises ClusterError.
    """

    async def read() -> dict[int, int]:
        fetched = await read_once(cluster, partition, offset, read_committed=True, max_bytes=1)
        if served_end(fetched, read_committed=True) <= offset:
            raise unserved_error(cluster, partition, offset)
        return {producer_id: first for producer_id, first in fetched.aborted if first < offset}

    return await retrying(read, timeout_s=timeout_s)


async def _collect(
    cluster: Cluster,
    partition: TopicPartition,
    start: int,
    end: int,
    decode: Decode | None,
    leader_epoch: int = -1,
    first: PartitionFetchResponse | None = None,
    unserved_max_s: float = UNSERVED_MAX_S,
) -> tuple[LogBatch, ...]:
    max_bytes = _span_bytes(LogSpan(start, end))
    return tuple(
        [
            _log_batch(batch, decode, partition)
            async for batch, _ in batches_between(
                cluster,
                partition,
                start,
                end,
                max_bytes=max_bytes,
                leader_epoch=leader_epoch,
                first=first,
                unserved_max_s=unserved_max_s,
            )
        ]
    )


def _span_bytes(span: LogSpan) -> int:
    """Returns how much of *span* is fetched at once."""
    return min(STRETCH_BYTES, max(1, span.end - span.start) * BYTES_PER_OFFSET)


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
