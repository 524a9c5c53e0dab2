"""Reads a range of a partition's log, one fetch at a time, outside of any fetch session.

A broker answers a fetch over the client's quota with a throttle time and no partitions
(KafkaApis.handleFetchRequest, SessionlessFetchContext.getThrottledResponse). The functions here wait that
long and fetch again; the time is added to `Cluster.throttle_ms`.

`read_log` and `read_batches` read up to the high watermark, with the records of open and aborted transactions and with
all markers. `mirrorflow_core.writer.transaction_log` decides which of those records are committed.

A new leader serves offsets only up to its own high watermark, which may be below what the former leader served, until its replicas
have fetched from it. It answers a fetch above it with no records and no error (UnifiedLog.read), and only a request for the end of the log
with an error (KIP-207). So an empty response is the end of a range only if the range is below the offset that the response names.
"""

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from mirrorflow_core.backoff import Backoff, backoff_s
from mirrorflow_core.errors import (
    BrokerError,
    ClusterError,
    ConnectionLostError,
    CorruptRecordsError,
    MissingMarkerError,
    UnreachableError,
)
from mirrorflow_core.light_dataclasses import dataclass
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire import error_codes, fetch
from mirrorflow_core.wire.batch import COUNT_UNKNOWN, Batch, checksum_holds, split
from mirrorflow_core.wire.error_codes import OFFSET_NOT_AVAILABLE, OFFSET_OUT_OF_RANGE
from mirrorflow_core.wire.fetch import (
    NO_SESSION,
    AbortedFilter,
    FetchFrom,
    FetchKey,
    FetchResponse,
    PartitionFetchResponse,
    SessionRequest,
    is_abort_marker,
)
from mirrorflow_core.wire.records import Record
from mirrorflow_core.wire.records import decode as decode_records
from mirrorflow_core.writer.transaction_log import LogBatch, Marker
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_requests import EARLIEST, LATEST
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.client.connection import Connection

STRETCH_BYTES: Final = 1 << 20  # per fetch; brokers still return a larger first batch whole
FETCH_VERSION_MAX: Final = 12  # the last version with topic names; topic ids are not needed here
# The longest single wait. Brokers measure quotas over about ten seconds, so longer throttle times mean that
# the quota is smaller than a batch; the reader then retries, because the quota may have been raised.
THROTTLE_WAIT_MAX_S: Final = 15.0
# How long a reader may be throttled without any data. A connector then reports the error and retries; the
# readers of a job share one quota, so each may have to wait for all the others.
THROTTLED_MAX_S: Final = 60.0
THROTTLED_TOGETHER_MAX_S: Final = 1800.0
# An election takes seconds, detecting a dead broker up to broker.session.timeout.ms (9 s): 30 waits of 0.1 to
# 1 s.
ATTEMPTS_MAX: Final = 30
BACKOFF_MIN_S: Final = 0.1
BACKOFF_MAX_S: Final = 1.0
RETRY_TIMEOUT_S: Final = 60.0
MARKER_POLL_MIN_S, MARKER_POLL_S = 0.005, 0.02  # a marker takes some milliseconds
FORMER_LEADER_S: Final = 1.0  # what takes longer may be in the log of another leader
BYTES_PER_OFFSET: Final = 4096  # of a fetch; the first batch is returned whole anyway
T = TypeVar("T")
Decode = Callable[[Record], object | None]
RETRY_MIN_S, RETRY_MAX_S = 0.1, 1.0
# How long a new leader may not serve what its predecessor served: its replicas fetch within replica.fetch.wait.max.ms (0.5 s), and a
# replica that does not is out of sync after replica.lag.time.max.ms (30 s).
UNSERVED_MAX_S: Final = 30.0


class ThrottledError(ClusterError):
    """Raised when a fetch quota of *cluster* let no data of *partition* through for *waited_s* seconds."""

    reason = "Throttled"
    retriable = True

    def __init__(self, *, cluster: str, partition: TopicPartition, client_id: str, waited_s: float) -> None:
        super().__init__(
            f"Cluster {cluster} throttles us and has returned nothing of {partition} for {waited_s:.0f} s; raise "
            f"consumer_byte_rate of client id {client_id} or of its user: a batch larger than the quota allows in ten "
            "seconds is never returned.",
            cluster=cluster,
        )


async def read_once(
    cluster: Cluster,
    partition: TopicPartition,
    offset: int,
    *,
    read_committed: bool = False,
    max_bytes: int = STRETCH_BYTES,
    max_wait_ms: int = 0,
    purpose: str = "scan",
    throttled_max_s: float = THROTTLED_MAX_S,
    leader_epoch: int = -1,
) -> PartitionFetchResponse:
    """Fetches once from *offset*, on the connection for *purpose*; only a leader of *leader_epoch* answers, unless it is -1.

    Raises the error of the partition's code (`error_codes.raise_for`), ThrottledError, UnreachableError.
    """
    now = asyncio.get_running_loop().time
    throttled_since: float | None = None
    while True:
        connection = await _leader(cluster, partition, purpose)
        version = min(FETCH_VERSION_MAX, connection.versions[fetch.API_KEY][1])
        key = FetchKey(partition.topic.encode(), partition.partition)
        body = fetch.fetch_request(
            version,
            SessionRequest(0, NO_SESSION, ((key, FetchFrom(offset, leader_epoch, max_bytes=max_bytes)),)),
            read_committed=read_committed,
            max_wait_ms=max_wait_ms,
            max_bytes=max_bytes,
        )
        response = await connection.send(fetch.API_KEY, version, (body,), flexible=version >= 12)
        fetched = _understood(connection, version, response)
        cluster.add_throttle_ms(fetched.throttle_ms)
        connection.throttled(fetched.throttle_ms)
        code = fetched.error or (fetched.partitions[0].error if fetched.partitions else error_codes.NONE)
        if code:
            if error_codes.is_metadata_stale(code):
                await cluster.refresh([partition.topic])
            error_codes.raise_for(code, cluster=cluster.alias, request="Fetch", subject=str(partition))
        if fetched.partitions:
            return fetched.partitions[0]
        throttled_since = now() if throttled_since is None else throttled_since
        waited_s = now() - throttled_since
        if waited_s >= throttled_max_s:
            raise ThrottledError(
                cluster=cluster.alias,
                partition=partition,
                client_id=connection.client_id,
                waited_s=waited_s,
            )
        await asyncio.sleep(min(fetched.throttle_ms / 1000, THROTTLE_WAIT_MAX_S))


async def read_through_elections(
    cluster: Cluster,
    partition: TopicPartition,
    offset: int,
    *,
    read_committed: bool = False,
    max_bytes: int = STRETCH_BYTES,
    max_wait_ms: int = 0,
    purpose: str = "scan",
) -> PartitionFetchResponse:
    """As `read_once`, for jobs of many readers: retries without a leader, and waits for a shared quota.

    It makes at most ATTEMPTS_MAX attempts, each throttled for at most THROTTLED_TOGETHER_MAX_S.
    """
    async for attempt in Backoff(min_s=BACKOFF_MIN_S, max_s=BACKOFF_MAX_S, attempts_max=ATTEMPTS_MAX):
        if attempt > 1:
            with contextlib.suppress(UnreachableError):
                await cluster.refresh([partition.topic])
        try:
            return await read_once(
                cluster,
                partition,
                offset,
                read_committed=read_committed,
                max_bytes=max_bytes,
                max_wait_ms=max_wait_ms,
                purpose=purpose,
                throttled_max_s=THROTTLED_TOGETHER_MAX_S,
            )
        except (UnreachableError, BrokerError) as error:
            if attempt == ATTEMPTS_MAX or not error.retriable:
                raise
    raise AssertionError("the last attempt raises")


async def batches_between(
    cluster: Cluster,
    partition: TopicPartition,
    start: int,
    end: int,
    *,
    read_committed: bool = False,
    max_bytes: int = STRETCH_BYTES,
    leader_epoch: int = -1,
    first: PartitionFetchResponse | None = None,
    unserved_max_s: float = UNSERVED_MAX_S,
) -> AsyncIterator[tuple[Batch, PartitionFetchResponse]]:
    """Yields the batches that hold offsets from *start* up to (not including) *end*, in order. *leader_epoch* is as in `read_once`.

    *first*: what was fetched from *start* already. Offsets below *end* may hold no batch, but *end* must be one that a leader has served:
    it waits *unserved_max_s* for that, and then raises a BrokerError with OFFSET_NOT_AVAILABLE. Raises as `read_once`.
    """
    now = asyncio.get_running_loop().time
    unserved_since_s, waits = now(), 0
    while start < end:
        fetched = first or await read_once(
            cluster,
            partition,
            start,
            read_committed=read_committed,
            max_bytes=max_bytes,
            leader_epoch=leader_epoch,
        )
        first = None
        moved = False
        for batch in split(fetched.records):
            if batch.next_offset <= start:
                continue
            if start >= end or not begins_before(batch, end):
                return
            yield batch, fetched
            start = batch.next_offset
            moved = True
        if moved:
            waits = 0
            continue
        if served_end(fetched, read_committed=read_committed) >= end:
            return
        unserved_since_s = unserved_since_s if waits else now()
        if now() - unserved_since_s >= unserved_max_s:
            raise unserved_error(cluster, partition, start, f", and the log has ended at {end} or beyond")
        waits += 1
        await asyncio.sleep(backoff_s(waits, lowest_s=RETRY_MIN_S, highest_s=RETRY_MAX_S))
        if now() - unserved_since_s >= FORMER_LEADER_S:
            with contextlib.suppress(UnreachableError):
                await cluster.refresh([partition.topic])


def begins_before(batch: Batch, offset: int) -> bool:
    """Returns whether *batch* may have records below *offset*: only their own offsets decide it for a compressed batch of magic 0 or 1.

    Such a batch has the offset of its last record. A damaged one may have any, so the caller gets it and reports it.
    """
    if batch.base_offset < offset or batch.count != COUNT_UNKNOWN:
        return batch.base_offset < offset
    try:
        return not checksum_holds(batch) or decode_records(batch)[0].offset < offset
    except CorruptRecordsError:
        return True


def served_end(fetched: PartitionFetchResponse, *, read_committed: bool) -> int:
    """Returns the offset after the last one that a fetch of this kind could return."""
    return fetched.last_stable_offset if read_committed else fetched.high_watermark


def unserved_error(cluster: Cluster, partition: TopicPartition, offset: int, why: str = "") -> ClusterError:
    """Returns the error of a reader of *partition*, whose leader does not serve *offset* and later ones. It is retriable."""
    return error_codes.error_for(
        OFFSET_NOT_AVAILABLE,
        cluster=cluster.alias,
        request="Fetch",
        subject=str(partition),
        message=f"its leader serves no offset from {offset} on{why}",
    )


async def consumed_batches(
    cluster: Cluster,
    partition: TopicPartition,
    start: int,
    end: int,
    *,
    read_committed: bool,
    max_bytes: int = STRETCH_BYTES,
    unserved_max_s: float = UNSERVED_MAX_S,
) -> AsyncIterator[Batch]:
    """Yields as `batches_between` what a consumer gets: no markers and, with *read_committed*, no aborted batches."""
    aborted, last = AbortedFilter(), None
    async for batch, fetched in batches_between(
        cluster,
        partition,
        start,
        end,
        read_committed=read_committed,
        max_bytes=max_bytes,
        unserved_max_s=unserved_max_s,
    ):
        if read_committed and fetched is not last:
            last = fetched
            aborted.feed(fetched.aborted)
        if aborted.delivers(batch) if read_committed else not batch.is_control:
            yield batch


async def _leader(cluster: Cluster, partition: TopicPartition, purpose: str) -> Connection:
    leader = cluster.leader(*partition)
    if leader is None:
        await cluster.refresh([partition.topic])
        leader = cluster.leader(*partition)
    if leader is None:
        raise error_codes.error_for(
            error_codes.LEADER_NOT_AVAILABLE, cluster=cluster.alias, request="Fetch", subject=str(partition)
        )
    return await cluster.connection(leader, purpose=purpose)


def _understood(connection: Connection, version: int, response: memoryview) -> FetchResponse:
    """Decodes a fetch response. Raises ConnectionLostError if it cannot be decoded or is empty without a reason."""
    problem = "its response to Fetch cannot be read"
    try:
        fetched = fetch.parse_fetch_response(version, response)
    except (struct.error, IndexError) as error:
        raise ConnectionLostError(
            cluster=connection.cluster, address=connection.address, problem=problem
        ) from error
    if not (fetched.partitions or fetched.error or fetched.throttle_ms):
        problem = "its response to Fetch has no partition and no reason for that"
        raise ConnectionLostError(cluster=connection.cluster, address=connection.address, problem=problem)
    return fetched


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
        version = min(FETCH_VERSION_MAX, connection.versions[fetch.API_KEY][1])
        keys = {FetchKey(partition.topic.encode(), partition.partition): partition for partition in wanted}
        starts = tuple(
            (key, FetchFrom(wanted[partition].start, max_bytes=_span_bytes(wanted[partition])))
            for key, partition in keys.items()
        )
        body = fetch.fetch_request(
            version, SessionRequest(0, NO_SESSION, starts), max_wait_ms=0, max_bytes=STRETCH_BYTES
        )
        response = await connection.send(fetch.API_KEY, version, (body,), flexible=version >= 12)
        fetched = _understood(connection, version, response)
        cluster.add_throttle_ms(fetched.throttle_ms)
        connection.throttled(fetched.throttle_ms)
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
