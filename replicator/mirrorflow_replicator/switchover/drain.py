"""Reads from a flow's target how far it has copied each partition, while it runs.

A switchover waits until each partition is copied up to its sealed end. A status is not asked: it can be older than a takeover, and
the position that is stored can be some seconds old. What was written since is counted in the log of the copy.
Guarantee: no offset is higher than what consumers of the target can read. A position that is stored meanwhile can make it lower, and
so does an end that the source does not serve yet: that of an open transaction, of records that replicas lack, or after an election.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

from mirrorflow_core.errors import BrokerError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import SourceSettings
from mirrorflow_core.wire.error_codes import OFFSET_NOT_AVAILABLE
from mirrorflow_core.wire.records import decode
from mirrorflow_core.writer.broker_requests import Unavailable, gather, until_unavailable
from mirrorflow_core.writer.end_lookup import next_uncopied_offset
from mirrorflow_core.writer.stored_positions import read_positions
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_reader import consumed_batches
from mirrorflow_kafka.admin.log_requests import EARLIEST
from mirrorflow_kafka.admin.transaction_log_reader import LogCache
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.connectors.flow_clusters import FlowClusters
from mirrorflow_replicator.switchover.flow_end import NO_BARRIER

READS_AT_ONCE: Final = 16  # of the source, one for each partition that is not copied to its end
READ_BYTES: Final = 64 << 10  # of each: the first record decides, and a broker returns the first batch whole


async def copied_offsets(
    settings: SourceSettings,
    source: Cluster,
    target: Cluster,
    ends: Mapping[TopicPartition, int],
    *,
    logs: LogCache | None = None,
) -> dict[TopicPartition, int]:
    """Returns the next source offset to copy of each partition of *ends*; its end there if no record is left before it.

    Markers and aborted records follow the last record that is copied, so a position alone may never reach the end of a log. A
    partition without a position was not copied at all. *logs* shortens repeated calls. Raises ClusterError.
    """
    clusters = FlowClusters(settings, source, target, initial=set(), logs=logs)
    stored = (await clusters.runner.run(read_positions(NO_BARRIER))).committed
    newest = {position.topic_partition: position for position in stored}
    known = {key: newest[key] for key in ends if key in newest and newest[key].next_source_offset >= 0}
    counted = await clusters.runner.run(
        gather({key: until_unavailable(next_uncopied_offset(position)) for key, position in known.items()})
    )
    copied = {
        key: known[key].next_source_offset if isinstance(offset, Unavailable) else offset
        for key, offset in counted.items()
    }
    if unknown := ends.keys() - copied.keys():
        copied |= await admin.offsets_at(source, unknown, EARLIEST)
    limit = asyncio.Semaphore(READS_AT_ONCE)

    async def is_copied(key: TopicPartition, end: int) -> bool:
        async with limit:
            return not await _may_have_records(settings, source, key, copied[key], end)

    open_ends = {key: end for key, end in ends.items() if copied[key] < end}
    results = await asyncio.gather(*(is_copied(key, end) for key, end in open_ends.items()))
    return copied | {key: open_ends[key] for key, done in zip(open_ends, results, strict=True) if done}


async def _may_have_records(
    settings: SourceSettings, source: Cluster, partition: TopicPartition, start: int, end: int
) -> bool:
    """Returns whether the flow has a record to copy in [*start*, *end*), or some of these offsets are not served yet.

    The caller looks again soon, so nothing is waited for here.
    """
    batches = consumed_batches(
        source,
        partition,
        start,
        end,
        read_committed=settings.read_committed,
        max_bytes=READ_BYTES,
        unserved_max_s=0.0,
    )
    try:
        async for batch in batches:
            # Compaction can leave the offsets of a batch without its last records, or without any.
            if any(start <= record.offset < end for record in decode(batch)):
                return True
    except BrokerError as error:
        if error.code != OFFSET_NOT_AVAILABLE:
            raise
        return True
    return False
