"""Detects that a source's log was truncated and rewritten below what was copied, before copying resumes.

An unclean election removes records that were copied and puts others at their offsets, under a later leader
epoch. The leader epoch of the last copied record is stored with its offset; the source's leader knows where
that epoch ended.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from mirrorflow_core.errors import BrokerError, ClusterError
from mirrorflow_core.exactly_once.alignment import OffsetPair
from mirrorflow_core.exactly_once.resumption import NONE, Truncation, truncated_at
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.stall_detection import Obstacle, ObstacleKind
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.client.error_codes import error_for, name_of
from mirrorflow_replicator.copy.copier_context import DetectedLoss
from mirrorflow_replicator.copy.partition_copier import PartitionCopier
from mirrorflow_replicator.copy.resume.source_scan import SourceScan

REQUEST = "OffsetForLeaderEpoch"
REWRITTEN = "the source's log was truncated and rewritten"


class EpochAnswers(NamedTuple):
    """Answers of the source's leaders by partition. A partition in neither field holds what was copied."""

    truncated: Mapping[TopicPartition, Truncation]
    refused: Mapping[TopicPartition, int]  # error codes: what the log holds is unknown


def ladders_of(lanes: Iterable[PartitionCopier]) -> dict[TopicPartition, Sequence[OffsetPair]]:
    """Returns the known offset pairs of the copiers that have an anchor and no known loss."""
    return {lane.source: lane.ladder() for lane in lanes if lane.anchor is not None and lane.loss is None}


async def truncations(
    source: Cluster, ladders: Mapping[TopicPartition, Sequence[OffsetPair]]
) -> EpochAnswers:
    """Returns where the source holds other records than were copied. Raises ClusterError.

    Each leader is asked once. A partition without an answer must not be copied: a fetch shows that the log
    was rewritten only since Kafka 2.7.
    """
    epochs = {
        one: ladder[0].source_epoch for one, ladder in ladders.items() if ladder[0].source_epoch != NONE
    }
    ends = await admin.end_offset_for_leader_epoch(source, epochs, rounds_max=1) if epochs else {}
    found = {
        one: truncated_at(ladders[one], end.leader_epoch, end.end_offset)
        for one, end in ends.items()
        if not end.error
    }
    return EpochAnswers(
        truncated={one: truncation for one, truncation in found.items() if truncation is not None},
        refused={one: end.error for one, end in ends.items() if end.error},
    )


async def truncation_of(
    source: Cluster, partition: TopicPartition, ladder: Sequence[OffsetPair]
) -> Truncation | None:
    """Returns the truncation of one partition, as `truncations`.

    Raises ClusterError, also where its leader refuses.
    """
    answers = await truncations(source, {partition: ladder})
    if code := answers.refused.get(partition):
        raise error_for(code, cluster=source.alias, request=REQUEST, subject=str(partition))
    return answers.truncated.get(partition)


def lasting_refusal(lane: PartitionCopier, code: int, *, source: str) -> ClusterError | None:
    """Returns the error of a leader that refused the question for *lane*; None if it is transient.

    *source* is the alias of its cluster. A transient error becomes the copier's obstacle.
    """
    error = error_for(code, cluster=source, request=REQUEST, subject=str(lane.source))
    if not (isinstance(error, BrokerError) and error.retriable):
        return error
    lane.obstacle = Obstacle(kind=ObstacleKind.EPOCH_REFUSED, name=name_of(code)).after(lane.obstacle)
    return None


async def lose_truncated(
    lane: PartitionCopier, truncation: Truncation, newest: OffsetPair, scan: SourceScan
) -> None:
    """Sets the loss of *lane*, whose last copied record is *newest*. Raises ClusterError."""
    offset = await scan.first_difference(truncation, newest)
    lane.loss = DetectedLoss(newest.source_offset + 1, offset, REWRITTEN)
