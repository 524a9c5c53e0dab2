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
from mirrorflow_replicator.wire.aborted import is_abort_marker
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
        memory = None
        if ours is not None:
            since = ours.current_txn_start_offset
            memory = Memory(epoch=ours.epoch, sequence=ours.last_sequence, open_since=since)
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

    Batches of a transaction that was aborted do not count: nobody who reads committed records sees them.
    What an earlier look has read, and found to hold nothing of ours, is not read again.
    """
    before, floor, reach = evidence.tail, scan_from(evidence), LOOK_BACK_RECORDS
    top = end = evidence.high_watermark if before is None else before.scanned_from
    read = _Read(producer_id, evidence.epoch, before)
    while end > floor:
        start = max(floor, top - reach)
        size = min(STRETCH_BYTES, reach * LOOK_BACK_BYTES)
        read.begin(start)
        async for batch, _ in batches_between(cluster, partition, start, end, max_bytes=size):
            read.take(batch)
        found = read.end(end)
        if found is not None:
            # The sequence counts what the batch had when it was written; the cleaner leaves that in the header.
            sequence = (found.base_sequence + found.last_offset_delta) % SEQUENCES
            return Tail(
                scanned_from=start,
                sequence=sequence,
                target_offset=found.last_offset,
                fenced=read.fenced,
            )
        end = start
        reach *= LOOK_BACK_GROWTH
    return Tail(
        scanned_from=floor,
        sequence=None,
        taken=read.taken,
        has_gaps=read.has_gaps,
        fenced=read.fenced,
        aborted=read.aborted,
    )


class _Read:
    """What stretches of a log show of one epoch, the highest stretch first, each from its beginning to its end."""

    __slots__ = ("_epoch", "_expected", "_found", "_id", "_marker", "_start", "_unmarked", "aborted", "fenced", "has_gaps", "taken")  # fmt: skip

    def __init__(self, producer_id: int, epoch: int, before: Tail | None) -> None:
        self._id, self._epoch = producer_id, epoch
        self.has_gaps = before is not None and before.has_gaps
        self.fenced = before is not None and before.fenced
        self.aborted = before is not None and before.aborted
        self.taken = False

    def begin(self, start: int) -> None:
        self._start = self._expected = start
        self._found: Batch | None = None
        self._unmarked: list[Batch] = []  # in a transaction whose end was not read yet
        self._marker: bool | None = None  # the first marker of ours here; True: an abort
        self.taken = False

    def take(self, batch: Batch) -> None:
        self.has_gaps |= batch.base_offset > self._expected
        self._expected = batch.next_offset
        ours = batch.producer_id == self._id
        self.fenced |= ours and batch.producer_epoch > self._epoch
        if ours and batch.is_control:
            self._mark(is_aborted=is_abort_marker(batch))
        if batch.is_control or not ours or batch.producer_epoch != self._epoch:
            self.taken |= batch.base_offset <= self._start
        elif batch.is_transactional:
            self._unmarked.append(batch)
        elif batch.base_sequence >= 0:
            self._found = batch

    def end(self, end: int) -> Batch | None:
        """The last batch of ours that counts, in the stretch that ends there."""
        self.has_gaps |= self._expected < end
        first = self._marker
        # What no marker follows is in the transaction that is open now.
        self._mark(is_aborted=self.aborted)
        self.aborted = self.aborted if first is None else first
        return self._found

    def _mark(self, *, is_aborted: bool) -> None:
        if self._marker is None:
            self._marker = is_aborted
        if self._unmarked and is_aborted:
            self.taken |= self._unmarked[0].base_offset <= self._start
        elif self._unmarked:
            self._found = self._unmarked[-1]
        self._unmarked = []
