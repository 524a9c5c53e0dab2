"""Reads the tail of a partition from the old side: what its consumers of committed records get, batch by batch.

Memory is bounded by one fetch and one decoded batch of each partition that is read.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from mirrorflow_core.errors import CorruptBatchError, CorruptRecordsError, UnreachableError
from mirrorflow_core.switchover.diverged_tail import DivergedTail, TailCount
from mirrorflow_core.wire.batch import Batch, checksum_holds, split
from mirrorflow_core.wire.fetch import AbortedFilter
from mirrorflow_core.wire.records import Record, decode
from mirrorflow_kafka.admin.log_reader import begins_before, read_through_elections
from mirrorflow_kafka.client.cluster import Cluster

FETCH_BYTES: Final = 1 << 20
# A new leader may not serve yet what its predecessor served: wait this long, then fail.
UNSERVED_WAIT_S: Final = 30.0
UNSERVED_POLL_S: Final = 0.2


class TailBatch(NamedTuple):
    """The records of a batch that are in the tail; none of an aborted transaction, whose records are counted in `aborted`."""

    records: Sequence[Record]
    producer_id: int
    codec: int
    aborted: int
    next_offset: int  # where reading continues


async def tail_batches(cluster: Cluster, tail: DivergedTail, start: int) -> AsyncIterator[TailBatch]:
    """Yields the batches of *tail* from offset *start* on, without markers.

    Raises ClusterError, and CorruptBatchError for a batch that is damaged.
    """
    aborted, offset, unserved_s = AbortedFilter(), start, 0.0
    while offset < tail.end:
        fetched = await read_through_elections(
            cluster, tail.partition, offset, read_committed=True, max_bytes=FETCH_BYTES
        )
        aborted.feed(fetched.aborted)
        began = offset
        for batch in split(fetched.records):
            if offset >= tail.end or not begins_before(batch, tail.end):
                offset = tail.end
                break
            is_delivered = _is_delivered(aborted, batch, tail)
            if batch.next_offset <= offset:
                continue
            records = _records(batch, tail, offset) if is_delivered else []
            lost = 0 if is_delivered or batch.is_control else batch.count
            offset = min(batch.next_offset, tail.end)
            yield TailBatch(records, batch.producer_id, batch.codec, lost, offset)
        if offset > began:
            unserved_s = 0.0
            continue
        if unserved_s >= UNSERVED_WAIT_S:
            problem = f"{tail.partition} does not serve offset {offset}, although its end was at {tail.end}"
            raise UnreachableError(cluster=cluster.alias, addresses="its brokers", problem=problem)
        unserved_s += UNSERVED_POLL_S
        await asyncio.sleep(UNSERVED_POLL_S)


async def count_tail(cluster: Cluster, tail: DivergedTail) -> TailCount:
    """Reads *tail* and returns what is in it. Raises as `tail_batches`."""
    count, aborted = TailCount(), 0
    async for batch in tail_batches(cluster, tail, tail.start):
        count = count.with_records(batch.records, batch.producer_id)
        aborted += batch.aborted
    return replace(count, aborted=aborted)


def _is_delivered(aborted: AbortedFilter, batch: Batch, tail: DivergedTail) -> bool:
    try:
        return aborted.delivers(batch)
    except CorruptRecordsError as error:
        raise _corrupt(tail, batch, str(error)) from error


def _records(batch: Batch, tail: DivergedTail, offset: int) -> list[Record]:
    if not checksum_holds(batch):
        raise _corrupt(tail, batch, "its checksum does not hold")
    try:
        return [record for record in decode(batch) if offset <= record.offset < tail.end]
    except CorruptRecordsError as error:
        raise _corrupt(tail, batch, str(error)) from error


def _corrupt(tail: DivergedTail, batch: Batch, problem: str) -> CorruptBatchError:
    return CorruptBatchError(
        topic=tail.partition.topic,
        partition=tail.partition.partition,
        offset=batch.base_offset,
        problem=problem,
    )
