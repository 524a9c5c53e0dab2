"""Finding the source offset of the record that the target has last, by reading the source after a known pair.

Two ways (DESIGN 4.2, clause 8). Counting, where nothing can have changed in the source since: no compaction, nothing
deleted after the pair. Matching record by record with what the target has, everywhere else.
"""

import hashlib
from collections.abc import AsyncIterator, Hashable
from dataclasses import dataclass

from mirrorflow_replicator.errors import UndecidedError
from mirrorflow_replicator.flow.alignment import GoOn, Pair
from mirrorflow_replicator.flow.identity import Identity
from mirrorflow_replicator.flow.matching import Matcher
from mirrorflow_replicator.flow.partitions import TopicPartition
from mirrorflow_replicator.flow.transforms import NO_EDITS, HeaderEdits
from mirrorflow_replicator.kafka.cluster import Cluster
from mirrorflow_replicator.kafka.witnesses import batches_between
from mirrorflow_replicator.wire.aborted import AbortedFilter
from mirrorflow_replicator.wire.batch import Batch
from mirrorflow_replicator.wire.records import Record, decode

# Records matched one by one, 100 bytes each in memory: what a flow copies in some minutes. More than that between two
# positions means that positions could not be written for as long.
MATCHED_RECORDS_MAX = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """A source partition now: its first offset and its end, and whether its topic is compacted."""

    first: int
    end: int
    compacted: bool


async def stream_batches(
    source: Cluster, partition: TopicPartition, start: int, end: int, *, read_committed: bool
) -> AsyncIterator[Batch]:
    """The batches of the stream (no control, no aborted ones) that hold source offsets from *start* up to *end*."""
    aborted = AbortedFilter()
    fed: object = None
    async for batch, answer in batches_between(source, partition, start, end, read_committed=read_committed):
        if answer is not fed:
            aborted.feed(answer.aborted)
            fed = answer
        if batch.count and (aborted.delivers(batch) if read_committed else not batch.is_control):
            yield batch


async def find_on(
    source: Cluster,
    partition: TopicPartition,
    target: Cluster,
    target_partition: TopicPartition,
    identity: Identity,
    at: GoOn,
    *,
    extent: Extent,
    read_committed: bool,
    header_edits: HeaderEdits | None,
) -> Pair:
    """The pair of *at*, by counting where that is enough, else by matching; *extent* is the source partition's now.

    *header_edits* is what was done to the source's headers when they were copied; None: that is not known any more.
    Raises UndecidedError.
    """
    if not extent.compacted and extent.first <= at.known.source_offset + 1:
        counted = await count_on(source, partition, at, end=extent.end, read_committed=read_committed)
        if counted is not None:
            return counted
    return await match_on(
        source,
        partition,
        target,
        target_partition,
        identity,
        at,
        extent=extent,
        read_committed=read_committed,
        header_edits=header_edits,
    )


async def count_on(
    source: Cluster, partition: TopicPartition, at: GoOn, *, end: int, read_committed: bool
) -> Pair | None:
    """The pair of *at* by counting records after `at.known`; None if the source has fewer."""
    left = at.walk_records
    start = at.known.source_offset + 1
    async for batch in stream_batches(source, partition, start, end, read_committed=read_committed):
        count = batch.count if batch.base_offset >= start and batch.count > 0 else -1
        if 0 <= count < left:
            left -= count
            continue
        offsets = [record.offset for record in decode(batch) if record.offset >= start]
        if len(offsets) < left:
            left -= len(offsets)
            continue
        return Pair(source_offset=offsets[left - 1], ordinal=at.ordinal, target_offset=at.target_offset)
    return None


async def match_on(
    source: Cluster,
    partition: TopicPartition,
    target: Cluster,
    target_partition: TopicPartition,
    identity: Identity,
    at: GoOn,
    *,
    extent: Extent,
    read_committed: bool,
    header_edits: HeaderEdits | None,
) -> Pair:
    """The pair of *at* by matching the target's records after `at.known` with the source's, in order.

    Where the source has none of them any more: the least offset that the last of them can have had.
    """
    copied: list[Hashable] = []
    as_copied = None if header_edits is None else NO_EDITS
    first_target = at.known.target_offset + 1
    async for batch, _ in batches_between(target, target_partition, first_target, at.target_offset + 1):
        if batch.producer_id == identity.producer_id and batch.producer_epoch == identity.producer_epoch:
            copied += [
                _mark(record, as_copied)
                for record in ([] if batch.is_control else decode(batch))
                if record.offset >= first_target
            ]
        if len(copied) > MATCHED_RECORDS_MAX:
            raise UndecidedError(
                topic=partition.topic,
                partition=partition.partition,
                evidence=f"more than {MATCHED_RECORDS_MAX} records were copied since the last position",
            )
    if len(copied) != at.walk_records:
        # The target was compacted too, or lost records: what is missing there may have been copied all the same.
        raise UndecidedError(
            topic=partition.topic,
            partition=partition.partition,
            evidence=f"of {at.walk_records} records copied since the last position the target still has {len(copied)}",
        )
    matcher = Matcher(copied)
    # Each record took an offset. What lies above this one is read again, so none is left out.
    last = at.known.source_offset + at.walk_records
    start = max(at.known.source_offset + 1, extent.first)
    async for batch in stream_batches(source, partition, start, extent.end, read_committed=read_committed):
        for record in decode(batch):
            if record.offset < start:
                continue
            if not matcher.has(_mark(record, header_edits)):
                return Pair(source_offset=last, ordinal=at.ordinal, target_offset=at.target_offset)
            last = record.offset
    return Pair(source_offset=last, ordinal=at.ordinal, target_offset=at.target_offset)


def _mark(record: Record, header_edits: HeaderEdits | None) -> bytes:
    """What identifies a record on both sides: timestamp, key, value and edited headers, if they count; never its offset."""
    headers = () if header_edits is None else header_edits.edited(record.headers)
    digest = hashlib.blake2b(digest_size=16)
    digest.update(b"%d;" % record.timestamp)
    for part in (record.key, record.value, *(item for header in headers for item in header)):
        digest.update(b"-;" if part is None else b"%d;" % len(part))
        digest.update(part or b"")
    return digest.digest()
