"""Requests about partition logs: append a batch, delete records, read sizes and producer states.

Appends are for offsets, decisions and tests. Copied batches use `client.broker_writer` instead, which pipelines
them. `client.leader_requests` chooses the broker and retries.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kafka.protocol.admin import DeleteRecordsRequest, DescribeLogDirsRequest, DescribeProducersRequest

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire import produce as wire
from mirrorflow_kafka.client.cluster import REQUEST_TIMEOUT_S, Cluster
from mirrorflow_kafka.client.connection import Connection
from mirrorflow_kafka.client.error_codes import raise_for
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


async def log_sizes(cluster: Cluster) -> dict[TopicPartition, int]:
    """Return the log size of every partition in bytes, at its largest replica.

    Partitions that no broker reports are absent. Raises NotAuthorizedError, ClusterError.
    """
    nodes = list(cluster.metadata.brokers)
    answers = await asyncio.gather(
        *(cluster.call(DescribeLogDirsRequest(topics=None), node_id=node) for node in nodes)
    )
    sizes: dict[TopicPartition, int] = {}
    for answer in answers:
        # Before version 3 a refusal is an empty list without an error code.
        raise_for(
            getattr(answer, "error_code", 0) or 0,
            cluster=cluster.alias,
            request="DescribeLogDirs",
            subject="",
        )
        for folder in answer.results:
            for topic in folder.topics:
                for one in topic.partitions:
                    if not one.is_future_key:
                        key = TopicPartition(topic.name, one.partition_index)
                        sizes[key] = max(sizes.get(key, 0), one.partition_size)
    return sizes


Codes = dict[TopicPartition, int]


async def delete_records(
    cluster: Cluster, before: Mapping[TopicPartition, int], *, timeout_ms: int = 30_000
) -> Codes:
    """Delete the records below an offset of each partition; return error codes, 0 for success.

    Raises ClusterError.
    """
    topic_class = DeleteRecordsRequest.DeleteRecordsTopic

    async def ask(connection: Connection, asked: Sequence[TopicPartition]) -> Codes:
        topics = [
            topic_class(
                name=topic,
                partitions=[
                    topic_class.DeleteRecordsPartition(
                        partition_index=one, offset=before[TopicPartition(topic, one)]
                    )
                    for one in numbers
                ],
            )
            for topic, numbers in by_topic(asked).items()
        ]
        request = DeleteRecordsRequest(topics=topics, timeout_ms=timeout_ms)
        answer = await connection.call(request, timeout_s=REQUEST_TIMEOUT_S)
        return {
            TopicPartition(topic.name, one.partition_index): one.error_code
            for topic in answer.topics
            for one in topic.partitions
        }

    return await of_leaders(cluster, before, ask, _code, lambda code: code)


async def produce(
    cluster: Cluster,
    batches: Mapping[TopicPartition, wire.Buffer],
    *,
    timeout_ms: int,
    transactional_id: str | None = None,
) -> Codes:
    """Append one batch to each partition with acks=all; return error codes, 0 for success.

    For offsets and decisions, not for copied records. Sent once only: after code 7 (REQUEST_TIMED_OUT) or 13
    (NETWORK_EXCEPTION) the batch may have been appended. Raises ClusterError.
    """

    async def ask(connection: Connection, asked: Sequence[TopicPartition]) -> Codes:
        by_topic: dict[str, list[tuple[int, wire.Buffer]]] = {}
        for key in asked:
            by_topic.setdefault(key.topic, []).append((key.partition, batches[key]))
        parts = wire.produce_request(by_topic, timeout_ms=timeout_ms, transactional_id=transactional_id)
        body = await connection.send(wire.API_KEY, wire.VERSION, parts, flexible=False)
        answers, _ = wire.read_produced(body)
        return {TopicPartition(*key): one.error for key, one in answers.items()}

    return await of_leaders(cluster, batches, ask, _code, lambda code: code, rounds_max=1, purpose="append")


def _code(*, error: int) -> int:
    return error
