"""Examines an answer by which the leader already had a batch with this flow's sequence numbers.

A leader answers a repeat with the offset and the timestamp of the batch that it remembers; the answer to an
append has no timestamp, unless the broker set it (LogAppendTime). That batch is another copier's with the
same records, or another producer's that wrote with the flow's producer id, epoch and next sequence number.
Then the flow's records were not written, although the answer says so.
"""

from mirrorflow_core.errors import PartitionError
from mirrorflow_core.exactly_once.alignment import LeaderMemory, OffsetPair, ResumeAt
from mirrorflow_core.exactly_once.resumption import NONE, Divergence
from mirrorflow_kafka.admin.log_reader import batches_between
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.copy.copier_context import DetectedLoss, Repeat
from mirrorflow_replicator.copy.partition_copier import PartitionCopier
from mirrorflow_replicator.copy.resume.source_scan import SourceScan

HOW = "another producer used this flow's producer id and wrote in the place of the next records"
DIFFERS = "the copy differs from the source: either its log was truncated and rewritten, or another producer used this flow's producer id"


class IdentityTakenError(PartitionError):
    """Another producer has written with the flow's producer id, epoch and next sequence number."""

    reason = "IdentityTaken"

    def __init__(
        self, *, topic: str, partition: int, target_topic: str, target_offset: int, producer_id: int
    ) -> None:
        self.target_offset = target_offset
        self.producer_id = producer_id
        super().__init__(
            f"another producer wrote to {target_topic} at offset {target_offset} with this flow's producer id {producer_id}, so "
            "records of the flow were not written there; stop that producer (one that moved here from another cluster "
            "without a restart), then set mirrorflow.source.loss.policy=alert to copy them, and what was in flight with them, behind it",
            topic=topic,
            partition=partition,
        )


def identity_taken(lane: PartitionCopier, target_offset: int, producer_id: int) -> IdentityTakenError:
    """Returns the error for *lane*: another producer has written in its place at *target_offset*."""
    return IdentityTakenError(
        topic=lane.topic,
        partition=lane.partition,
        target_topic=lane.target_topic,
        target_offset=target_offset,
        producer_id=producer_id,
    )


async def taken_by_stranger(
    target: Cluster, lane: PartitionCopier, repeat: Repeat, scan: SourceScan
) -> Divergence | None:
    """Returns where the copy stops being what was sent, up to the batch in the answer.

    None if nothing differs. Raises ClusterError.
    """
    stream, (span, base_offset) = lane.stream, repeat
    async for batch, _ in batches_between(target, lane.target, base_offset, base_offset + 1):
        if batch.is_log_append_time:
            lane.around.stamped.add(lane.target_topic)
            return None
    assert stream is not None
    known = stream.delivered
    if scan.extent.first > known.source_offset + 1:
        return None  # the source's retention has removed what the copy would be compared with
    found = await scan.difference(known, OffsetPair(NONE, span.last, base_offset + span.count - 1))
    return None if found.target_offset == NONE else found


def is_as_sent(lane: PartitionCopier, at: ResumeAt, memory: LeaderMemory | None) -> bool:
    """Returns whether the leader's last batch, by its timestamp, is the unanswered one that ends at *at*.

    So a failover of the target needs no reading if one batch was in flight. The batch must lie right behind
    the known pair: another producer's batch may lie between that pair and a later one.
    """
    if memory is None or lane.is_compacted or (lane.stream is not None and lane.stream.is_suspect):
        return False
    return any(
        (span.first, span.last) == (at.known.ordinal + 1, at.ordinal)
        and span.max_timestamp == memory.timestamp
        for span in lane.unanswered
    )


def loss_at(source_offset: int) -> DetectedLoss:
    """Returns the loss of records not written from *source_offset* on.

    By policy they are copied behind the other producer's.
    """
    return DetectedLoss(source_offset, source_offset, HOW)
