"""Finds out which of the flow's records the target has last (docs/exactly-once.md, clause 4).

It collects the evidence for `exactly_once.alignment`, which decides and says how much of the log it needs to
see.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from mirrorflow_core.exactly_once.alignment import (
    SEQUENCES,
    Evidence,
    LeaderMemory,
    Need,
    Tail,
    Verdict,
    align,
    scan_from,
)
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire.aborted_transactions import is_abort_marker
from mirrorflow_core.wire.batch import Batch
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_reader import STRETCH_BYTES, batches_between
from mirrorflow_kafka.client.cluster import Cluster

LOOK_BACK_RECORDS = 1  # the first scan reads the batch with the last record
LOOK_BACK_GROWTH = 16  # each further scan covers this many times more records
# The fetch size per record of the range; the first scan covers one record. A broker returns the first batch
# whole in any case, so 5,000 leaders that forgot an idle flow cost one batch each, not STRETCH_BYTES.
LOOK_BACK_BYTES = 4096
LATEST, EARLIEST = -1, -2  # ListOffsets timestamps


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """A partition leader's response: an error code, or its producer state and the two ends of its log."""

    error: int = 0
    memory: LeaderMemory | None = None
    log_start: int = -1
    high_watermark: int = -1


async def ask(
    cluster: Cluster, partitions: Iterable[TopicPartition], *, producer_id: int
) -> Mapping[TopicPartition, ProbeResult]:
    """Return the leaders' state of *producer_id*, and where their logs begin and end.

    The producer state is read first: a record appended between the two requests makes the log longer than the
    state, which is detected. In the reverse order a record could be missed.
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
            found[partition] = ProbeResult(error=error)
            continue
        ours = next((p for p in answer.producers if p.producer_id == producer_id), None)
        memory = None
        if ours is not None:
            since = ours.current_txn_start_offset
            memory = LeaderMemory(
                epoch=ours.epoch,
                sequence=ours.last_sequence,
                open_since=since,
                timestamp=ours.last_timestamp,
            )
        found[partition] = ProbeResult(memory=memory, log_start=start.offset, high_watermark=end.offset)
    return found


async def settle(
    cluster: Cluster, partition: TopicPartition, evidence: Evidence, *, producer_id: int
) -> tuple[Verdict, Evidence]:
    """Read the log until `align` reaches a verdict; return the verdict and the evidence for it.

    Each scan ends at a known offset pair below the previous one, so there are at most as many scans as pairs.
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
    """Find the last batch of the identity, scanning ever larger ranges backwards down to `scan_from`.

    Batches of an aborted transaction do not count: read_committed consumers do not see them. A range that an
    earlier scan read without finding a batch of the identity is not read again.
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
            # The last sequence number is that of the batch as written: the log cleaner keeps it in the
            # header.
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
    """Collects the batches of one epoch in ranges of a log: the highest range first, each read forward."""

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
        self._unmarked: list[Batch] = []  # in a transaction whose end marker was not read yet
        self._marker: bool | None = None  # the identity's first marker in this range; True: an abort
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
        """Finish the range that ends at *end*; return the identity's last batch in it that counts."""
        self.has_gaps |= self._expected < end
        first = self._marker
        # Batches without a marker behind them in this range belong to the transaction that the range above
        # ends, or to the open one.
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
