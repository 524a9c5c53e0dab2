"""Compares the last records of each partition with those of its copy, at the sealed ends.

Both sides end where the seal says and the flow has copied everything, so their last records are the same in the same order. Keys,
values and headers are compared; a topic with LogAppendTime has timestamps of its own.
"""

import asyncio
import hashlib
import struct
from collections.abc import Mapping, Sequence
from typing import Final

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.switchover.observation import SealVerification
from mirrorflow_core.switchover.seal import Seal
from mirrorflow_core.wire.records import Record
from mirrorflow_core.wire.records import decode as decode_records
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_reader import consumed_batches
from mirrorflow_kafka.admin.log_requests import EARLIEST, LATEST
from mirrorflow_kafka.client.cluster import Cluster

# Of each partition: more would be read while writes are refused. `mirrorflow verify` compares everything before.
TAIL_OFFSETS: Final = 1_000
PARTITIONS_AT_ONCE: Final = 16


async def compare_tails(
    source: Cluster,
    target: Cluster,
    seal: Seal,
    copies: Mapping[TopicPartition, TopicPartition],
    *,
    read_committed: bool,
) -> SealVerification:
    """Compares the partitions of *seal* with their *copies*. *read_committed*: as the flow reads. Raises ClusterError."""
    ends = seal.ends
    starts = await admin.offsets_at(source, ends, EARLIEST)
    copy_ends = await admin.offsets_at(target, copies.values(), LATEST)
    copy_starts = await admin.offsets_at(target, copies.values(), EARLIEST)
    limit = asyncio.Semaphore(PARTITIONS_AT_ONCE)

    async def difference(partition: TopicPartition) -> str:
        copy = copies[partition]
        async with limit:
            sent = await _tail(
                source, partition, starts[partition], ends[partition], read_committed=read_committed
            )
            # A copier may have aborted on the target what it has written again since.
            copied = await _tail(target, copy, copy_starts[copy], copy_ends[copy], read_committed=True)
        return tail_difference(partition, sent, copied)

    sentences = await asyncio.gather(*(difference(partition) for partition in ends))
    return SealVerification(
        seal_sha256=seal.sha256, differences=tuple(sentence for sentence in sentences if sentence)
    )


def tail_difference(partition: TopicPartition, sent: Sequence[bytes], copied: Sequence[bytes]) -> str:
    """Returns how the last records of both sides differ, given by digests; "" if they are equal as far as both are given."""
    count = min(len(sent), len(copied))
    if count == 0:
        is_equal = len(sent) == len(copied)
        return (
            "" if is_equal else f"{partition} has {len(sent)} records at its end and its copy {len(copied)}"
        )
    for back in range(1, count + 1):
        if sent[-back] != copied[-back]:
            return f"{partition} differs from its copy in the record {back} from its end"
    return ""


async def _tail(
    cluster: Cluster, partition: TopicPartition, start: int, end: int, *, read_committed: bool
) -> list[bytes]:
    """Returns a digest of each of the last records before *end*: the records themselves may be large."""
    first = max(start, end - TAIL_OFFSETS)
    return [
        record_digest(record)
        async for batch in consumed_batches(cluster, partition, first, end, read_committed=read_committed)
        for record in decode_records(batch)
        if first <= record.offset < end
    ]


def record_digest(record: Record) -> bytes:
    """Returns a digest of key, value and headers."""
    digest = hashlib.sha256()
    for part in (record.key, record.value, *(item for header in record.headers for item in header)):
        digest.update(struct.pack(">q", -1 if part is None else len(part)))
        digest.update(part or b"")
    return digest.digest()
