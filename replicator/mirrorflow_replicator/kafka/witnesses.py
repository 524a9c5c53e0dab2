"""Asking the target what it has of us (DESIGN 4.2, clause 4), and reading single stretches of a log.

The answers are evidence for `flow.alignment`, which decides, and says how much of the log it has to see for that.
"""

import struct
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, replace

from mirrorflow_replicator.errors import ConnectionLostError
from mirrorflow_replicator.flow.alignment import (
    SEQUENCES,
    Evidence,
    Memory,
    Need,
    Tail,
    Verdict,
    align,
    scan_from,
)
from mirrorflow_replicator.flow.partitions import TopicPartition
from mirrorflow_replicator.kafka import admin
from mirrorflow_replicator.kafka.cluster import Cluster
from mirrorflow_replicator.kafka.codes import raise_for
from mirrorflow_replicator.wire import fetch
from mirrorflow_replicator.wire.batch import Batch, split
from mirrorflow_replicator.wire.fetch import FetchedPartition, FetchFrom, FetchKey

STRETCH_BYTES = 1 << 20  # of one look into a log; a larger batch comes whole all the same
LOOK_BACK_RECORDS = 1  # the first look: the batch that holds the last record
LOOK_BACK_GROWTH = 16  # each further look reaches so much farther back
# Asked for in the first look, and so much more in each further one. A broker gives the first batch whole all the same, so
# 5,000 leaders that forgot an idle flow cost one batch each, not a stretch.
LOOK_BACK_BYTES = 4096
LATEST, EARLIEST = -1, -2  # ListOffsets timestamps


@dataclass(frozen=True, slots=True, kw_only=True)
class Testimony:
    """What a partition's leader says: an error code, or memory and the ends of its log."""

    error: int = 0
    memory: Memory | None = None
    log_start: int = -1
    high_watermark: int = -1


async def ask(
    cluster: Cluster, partitions: Iterable[TopicPartition], *, producer_id: int
) -> Mapping[TopicPartition, Testimony]:
    """Ask the leaders of *partitions* what they remember of *producer_id*, and where their logs begin and end.

    Producers are asked first: what is appended between the questions makes the log longer than the memory, which is
    noticed; the other way round a record could be missed.
    """
    wanted = tuple(partitions)
    producers = await admin.describe_producers(cluster, wanted)
    latest = await admin.list_offsets(cluster, wanted, LATEST)
    earliest = await admin.list_offsets(cluster, wanted, EARLIEST)
    found = {}
    for partition in wanted:
        answer, end, start = producers[partition], latest[partition], earliest[partition]
        error = answer.error or end.error or start.error
        if error:
            found[partition] = Testimony(error=error)
            continue
        ours = next((p for p in answer.producers if p.producer_id == producer_id), None)
        memory = None if ours is None else Memory(epoch=ours.epoch, sequence=ours.last_sequence)
        found[partition] = Testimony(memory=memory, log_start=start.offset, high_watermark=end.offset)
    return found


async def read_once(
    cluster: Cluster,
    partition: TopicPartition,
    offset: int,
    *,
    read_committed: bool = False,
    max_bytes: int = STRETCH_BYTES,
) -> FetchedPartition:
    """One stretch of a log from *offset* on; raises by the partition's error code."""
    leader = cluster.leader(*partition)
    if leader is None:
        await cluster.refresh([partition.topic])
        leader = cluster.leader(*partition)
    if leader is None:
        raise_for(5, cluster=cluster.alias, request="Fetch", subject=str(partition))
    assert leader is not None
    connection = await cluster.connection(leader, purpose="scan")
    version = min(12, connection.versions[fetch.API_KEY][1])
    body = fetch.fetch_request(
        version,
        session_id=0,
        session_epoch=-1,
        partitions=[
            (
                FetchKey(partition.topic.encode(), partition.partition),
                FetchFrom(offset, max_bytes=max_bytes),
            )
        ],
        read_committed=read_committed,
        max_wait_ms=0,
        max_bytes=max_bytes,
    )
    answer = await connection.send(fetch.API_KEY, version, (body,), flexible=version >= 12)
    try:
        fetched = fetch.read_fetched(version, answer)
    except (struct.error, IndexError) as error:
        raise ConnectionLostError(
            cluster=cluster.alias, address=connection.address, problem="its answer to Fetch cannot be read"
        ) from error
    code = fetched.error or fetched.partitions[0].error
    if code:
        if code in {3, 6}:
            await cluster.refresh([partition.topic])
        raise_for(code, cluster=cluster.alias, request="Fetch", subject=str(partition))
    return fetched.partitions[0]


async def batches_between(
    cluster: Cluster,
    partition: TopicPartition,
    start: int,
    end: int,
    *,
    read_committed: bool = False,
    max_bytes: int = STRETCH_BYTES,
) -> AsyncIterator[tuple[Batch, FetchedPartition]]:
    """The batches that hold offsets from *start* up to (not including) *end*, in order."""
    while start < end:
        fetched = await read_once(
            cluster, partition, start, read_committed=read_committed, max_bytes=max_bytes
        )
        moved = False
        for batch in split(fetched.records):
            if batch.next_offset <= start:
                continue
            if batch.base_offset >= end:
                return
            yield batch, fetched
            start = batch.next_offset
            moved = True
        if not moved:
            return


async def settle(
    cluster: Cluster, partition: TopicPartition, evidence: Evidence, *, producer_id: int
) -> tuple[Verdict, Evidence]:
    """What `align` says when it has seen as much of the log as it wants to, and the evidence with that.

    Each look ends at a known pair below the one before, so there are at most as many as there are pairs.
    """
    verdict = align(evidence)
    while verdict is Need.READ_TAIL:
        tail = await read_tail(cluster, partition, evidence, producer_id=producer_id)
        evidence = replace(evidence, tail=tail)
        verdict = align(evidence)
    return verdict, evidence


async def read_tail(
    cluster: Cluster, partition: TopicPartition, evidence: Evidence, *, producer_id: int
) -> Tail:
    """Find the last batch of the identity, looking back farther and farther, as far as `scan_from` says.

    What an earlier look has read, and found to hold nothing of ours, is not read again.
    """
    before, floor, reach = evidence.tail, scan_from(evidence), LOOK_BACK_RECORDS
    top = end = evidence.high_watermark if before is None else before.scanned_from
    has_gaps, taken = before is not None and before.has_gaps, False
    while end > floor:
        start = expected = max(floor, top - reach)
        found, taken = None, False
        size = min(STRETCH_BYTES, reach * LOOK_BACK_BYTES)
        async for batch, _ in batches_between(cluster, partition, start, end, max_bytes=size):
            has_gaps |= batch.base_offset > expected
            expected = batch.next_offset
            if batch.is_control or (batch.producer_id, batch.producer_epoch) != (producer_id, evidence.epoch):
                taken |= batch.base_offset <= start
            elif batch.base_sequence >= 0:
                found = batch
        has_gaps |= expected < end
        if found is not None:
            # The sequence counts what the batch had when it was written; the cleaner leaves that in the header.
            sequence = (found.base_sequence + found.last_offset_delta) % SEQUENCES
            return Tail(scanned_from=start, sequence=sequence, target_offset=found.last_offset)
        end = start
        reach *= LOOK_BACK_GROWTH
    return Tail(scanned_from=floor, sequence=None, taken=taken, has_gaps=has_gaps)
