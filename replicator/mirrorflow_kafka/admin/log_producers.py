"""Reads the producer state that partition leaders keep (DescribeProducers, KIP-664).

`client.leader_requests` chooses the broker and retries.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kafka.protocol.admin import DescribeProducersRequest

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_kafka.client.cluster import REQUEST_TIMEOUT_S, Cluster
from mirrorflow_kafka.client.connection import Connection
from mirrorflow_kafka.client.leader_requests import Key, by_topic, of_leaders


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveProducer:
    """A leader's state of one producer; -1 in `last_sequence` or `current_txn_start_offset` means none."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    current_txn_start_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducersAnswer:
    """A leader's state of all producers of a partition. Valid only if `error` is 0."""

    error: int = 0
    producers: tuple[ActiveProducer, ...] = ()


async def describe_producers(
    cluster: Cluster, partitions: Iterable[Key]
) -> dict[TopicPartition, ProducersAnswer]:
    """Return the producer state of each partition's leader (Kafka 2.8 or later). Needs READ on the topics.

    A broker that was frozen and does not know yet that it lost leadership returns its old state without an
    error. Raises ClusterError.
    """

    async def ask(
        connection: Connection, asked: Sequence[TopicPartition]
    ) -> dict[TopicPartition, ProducersAnswer]:
        topics = [
            DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=numbers)
            for topic, numbers in by_topic(asked).items()
        ]
        answer = await connection.call(DescribeProducersRequest(topics=topics), timeout_s=REQUEST_TIMEOUT_S)
        return {
            TopicPartition(topic.name, one.partition_index): ProducersAnswer(
                error=one.error_code, producers=tuple(map(_producer, one.active_producers))
            )
            for topic in answer.topics
            for one in topic.partitions
        }

    return await of_leaders(cluster, partitions, ask, ProducersAnswer, lambda answer: answer.error)


def _producer(one: Any) -> ActiveProducer:
    return ActiveProducer(
        producer_id=one.producer_id,
        epoch=one.producer_epoch,
        last_sequence=one.last_sequence,
        last_timestamp=one.last_timestamp,
        coordinator_epoch=one.coordinator_epoch,
        current_txn_start_offset=one.current_txn_start_offset,
    )
