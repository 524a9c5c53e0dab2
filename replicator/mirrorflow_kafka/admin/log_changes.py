"""Appends single batches to partitions, and deletes records from their beginning.

Used for offsets, decisions and tests. Copied batches use `client.broker_writer` instead, which pipelines
them. `client.leader_requests` chooses the broker and retries.
"""

from collections.abc import Mapping, Sequence

from kafka.protocol.admin import DeleteRecordsRequest

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire import produce as wire
from mirrorflow_kafka.client.cluster import REQUEST_TIMEOUT_S, Cluster
from mirrorflow_kafka.client.connection import Connection
from mirrorflow_kafka.client.leader_requests import by_topic, of_leaders

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
