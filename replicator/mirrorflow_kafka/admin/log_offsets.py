"""Reads partition offsets: by timestamp (ListOffsets), and at leader epoch ends (OffsetForLeaderEpoch).

`client.leader_requests` chooses the broker and retries.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kafka.protocol.consumer import ListOffsetsRequest, OffsetForLeaderEpochRequest

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_kafka.client.cluster import REQUEST_TIMEOUT_S, Cluster
from mirrorflow_kafka.client.connection import Connection
from mirrorflow_kafka.client.error_codes import raise_for
from mirrorflow_kafka.client.leader_requests import (
    ROUNDS_MAX,
    Key,
    believed_epoch,
    by_topic,
    of_leaders,
)

LATEST, EARLIEST = -1, -2  # ListOffsets timestamps


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedOffset:
    """The offset for a timestamp; -1 if no record is as new. Valid only if `error` is 0."""

    offset: int = -1
    timestamp: int = -1
    leader_epoch: int = -1
    error: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEnd:
    """The end offset of the largest leader epoch not above the requested one (KIP-101).

    -1 means unknown. Valid only if `error` is 0.
    """

    leader_epoch: int = -1
    end_offset: int = -1
    error: int = 0


async def list_offsets(
    cluster: Cluster,
    partitions: Iterable[Key],
    timestamp: int,
    read_committed: bool = False,  # noqa: FBT001, FBT002 as the brokers' isolation level
) -> dict[TopicPartition, ListedOffset]:
    """Return the offset at *timestamp* (ms since 1970; -1 the end, -2 the beginning) of each partition.

    The end is the high watermark, or the last stable offset with *read_committed*. Raises ClusterError.
    """
    partition_class = ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition

    async def ask(
        connection: Connection, asked: Sequence[TopicPartition]
    ) -> dict[TopicPartition, ListedOffset]:
        topics = [
            ListOffsetsRequest.ListOffsetsTopic(
                name=topic,
                partitions=[
                    partition_class(
                        partition_index=one,
                        current_leader_epoch=believed_epoch(cluster, topic, one),
                        timestamp=timestamp,
                    )
                    for one in numbers
                ],
            )
            for topic, numbers in by_topic(asked).items()
        ]
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=int(read_committed),
            topics=topics,
            min_version=2 if read_committed else 1,
        )
        answer = await connection.call(request, timeout_s=REQUEST_TIMEOUT_S)
        return {
            TopicPartition(topic.name, one.partition_index): ListedOffset(
                offset=one.offset,
                timestamp=one.timestamp,
                leader_epoch=_or(one.leader_epoch, -1),
                error=one.error_code,
            )
            for topic in answer.topics
            for one in topic.partitions
        }

    return await of_leaders(cluster, partitions, ask, ListedOffset, lambda answer: answer.error)


async def log_offsets(
    cluster: Cluster, partitions: Iterable[Key], timestamp: int, *, read_committed: bool = False
) -> dict[TopicPartition, ListedOffset]:
    """As `list_offsets`, but raises ClusterError if any partition returns an error."""
    listed = await list_offsets(cluster, partitions, timestamp, read_committed=read_committed)
    for partition, one in listed.items():
        raise_for(one.error, cluster=cluster.alias, request="ListOffsets", subject=str(partition))
    return listed


async def offsets_at(
    cluster: Cluster, partitions: Iterable[Key], timestamp: int, *, read_committed: bool = False
) -> dict[TopicPartition, int]:
    """As `log_offsets`, the offsets alone."""
    listed = await log_offsets(cluster, partitions, timestamp, read_committed=read_committed)
    return {partition: one.offset for partition, one in listed.items()}


async def end_offset_for_leader_epoch(
    cluster: Cluster, epochs: Mapping[TopicPartition, int], *, rounds_max: int = ROUNDS_MAX
) -> dict[TopicPartition, EpochEnd]:
    """Return where each partition's leader epoch ended, in at most *rounds_max* attempts.

    Raises ClusterError.
    """
    topic_class = OffsetForLeaderEpochRequest.OffsetForLeaderTopic

    async def ask(connection: Connection, asked: Sequence[TopicPartition]) -> dict[TopicPartition, EpochEnd]:
        topics = [
            topic_class(
                topic=topic,
                partitions=[
                    topic_class.OffsetForLeaderPartition(
                        partition=one,
                        current_leader_epoch=believed_epoch(cluster, topic, one),
                        leader_epoch=epochs[TopicPartition(topic, one)],
                    )
                    for one in numbers
                ],
            )
            for topic, numbers in by_topic(asked).items()
        ]
        request = OffsetForLeaderEpochRequest(replica_id=-1, topics=topics)
        answer = await connection.call(request, timeout_s=REQUEST_TIMEOUT_S)
        return {
            TopicPartition(topic.topic, one.partition): EpochEnd(
                leader_epoch=_or(one.leader_epoch, -1), end_offset=one.end_offset, error=one.error_code
            )
            for topic in answer.topics
            for one in topic.partitions
        }

    return await of_leaders(
        cluster, epochs, ask, EpochEnd, lambda answer: answer.error, rounds_max=rounds_max
    )


async def ends_of(cluster: Cluster, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Return the offset up to which each partition has lost nothing since that leader epoch began.

    0 where the log knows neither that epoch nor an earlier one. Partitions that return an error are absent.
    Raises ClusterError.
    """
    if not epochs:
        return {}
    found = await end_offset_for_leader_epoch(cluster, epochs)
    return {partition: max(0, one.end_offset) for partition, one in found.items() if not one.error}


def _or(value: int | None, default: int) -> int:
    return default if value is None else value
