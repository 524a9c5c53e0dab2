"""Reads a range of a partition's log, one fetch at a time, outside of any fetch session.

A broker answers a fetch over the client's quota with a throttle time and no partitions
(KafkaApis.handleFetchRequest, SessionlessFetchContext.getThrottledResponse). The functions here wait that
long and fetch again; the time is added to `Cluster.throttle_ms`.

A new leader serves offsets only up to its own high watermark, which may be below what the former leader served, until its replicas
have fetched from it. It answers a fetch above it with no records and no error (UnifiedLog.read), and only a request for the end of the log
with an error (KIP-207). So an empty response is the end of a range only if the range is below the offset that the response names.
"""

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from typing import Final

from mirrorflow_core.backoff import Backoff, backoff_s
from mirrorflow_core.errors import (
    BrokerError,
    ClusterError,
    ConnectionLostError,
    CorruptRecordsError,
    UnreachableError,
)
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire import error_codes, fetch
from mirrorflow_core.wire.batch import COUNT_UNKNOWN, Batch, checksum_holds, split
from mirrorflow_core.wire.error_codes import OFFSET_NOT_AVAILABLE
from mirrorflow_core.wire.fetch import (
    NO_SESSION,
    AbortedFilter,
    FetchFrom,
    FetchKey,
    FetchResponse,
    PartitionFetchResponse,
    SessionRequest,
)
from mirrorflow_core.wire.records import decode as decode_records
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
FORMER_LEADER_S: Final = 1.0  # what takes longer may be in the log of another leader
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
        key = FetchKey(partition.topic.encode(), partition.partition)
        fetched = await send_fetch(
            cluster,
            connection,
            ((key, FetchFrom(offset, leader_epoch, max_bytes=max_bytes)),),
            read_committed=read_committed,
            max_wait_ms=max_wait_ms,
            max_bytes=max_bytes,
        )
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


async def send_fetch(
    cluster: Cluster,
    connection: Connection,
    partitions: tuple[tuple[FetchKey, FetchFrom], ...],
    *,
    read_committed: bool = False,
    max_wait_ms: int = 0,
    max_bytes: int = STRETCH_BYTES,
) -> FetchResponse:
    """Sends a request for *partitions* of one leader, and counts the throttle time of the response.

    Raises UnreachableError; ConnectionLostError if the response cannot be decoded or is empty without a reason.
    """
    version = min(FETCH_VERSION_MAX, connection.versions[fetch.API_KEY][1])
    body = fetch.fetch_request(
        version,
        SessionRequest(0, NO_SESSION, partitions),
        read_committed=read_committed,
        max_wait_ms=max_wait_ms,
        max_bytes=max_bytes,
    )
    response = await connection.send(fetch.API_KEY, version, (body,), flexible=version >= 12)
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
    cluster.add_throttle_ms(fetched.throttle_ms)
    connection.throttled(fetched.throttle_ms)
    return fetched
