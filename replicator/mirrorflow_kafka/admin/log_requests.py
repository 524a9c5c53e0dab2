"""Requests about partition logs to their leaders: offsets, epochs, producers; appending and deleting records.

Each is sent in rounds (`leader_rounds`), and a partition that fails has its error code in the result.

Appends are for offsets, decisions and tests. Copied batches use `client.broker_writer` instead, which pipelines them.
"""

import asyncio
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kafka.protocol.admin.topics import DeleteRecordsRequest
from kafka.protocol.consumer.offsets import ListOffsetsRequest, OffsetForLeaderEpochRequest

from mirrorflow_core.light_dataclasses import dataclass
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire import error_codes
from mirrorflow_core.wire import produce as wire
from mirrorflow_core.wire.records import SEQUENCE_MASK, Record, encode_split
from mirrorflow_kafka.admin.leader_rounds import ROUNDS_MAX, Key, call_leaders, send_to_leaders
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.client.connection import Connection

# A batch before compression; brokers and consumers hold it decompressed.
BATCH_UNCOMPRESSED_BYTES_MAX = 1 << 20
Codes = dict[TopicPartition, int]
LATEST, EARLIEST = -1, -2  # ListOffsets timestamps
# ListOffsets replica ids: the end is the high watermark for a consumer, and that of the log for Kafka's "debugging" client.
CONSUMER_ID, DEBUGGING_ID = -1, -2


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
    *,
    rounds_max: int = ROUNDS_MAX,
    timeout_s: float = math.inf,
    replica_id: int = CONSUMER_ID,
) -> dict[TopicPartition, ListedOffset]:
    """Returns the offset at *timestamp* (ms since 1970; -1 the end, -2 the beginning) of each partition.

    The end is the high watermark, or the last stable offset with *read_committed*; with *replica_id* DEBUGGING_ID the end of the
    leader's log. A leader has *rounds_max* attempts and *timeout_s* for all of them. A beginning or an end of -1 is an error:
    OFFSET_NOT_AVAILABLE. Raises ClusterError.
    """
    topic_class = ListOffsetsRequest.ListOffsetsTopic

    def request(by_topic: dict[str, list[int]]) -> ListOffsetsRequest:
        topics = [
            topic_class(
                topic,
                [
                    topic_class.ListOffsetsPartition(
                        # A broker that knows another epoch returns an error; -1 if the topic was deleted meanwhile.
                        number,
                        cluster.metadata.leader_epoch(topic, number),
                        timestamp,
                    )
                    for number in numbers
                ],
            )
            for topic, numbers in by_topic.items()
        ]
        return ListOffsetsRequest(
            replica_id=replica_id,
            isolation_level=int(read_committed),
            topics=topics,
            min_version=2 if read_committed else 1,
        )

    results = await call_leaders(cluster, partitions, request, rounds_max=rounds_max, timeout_s=timeout_s)
    # Every log has a beginning and an end; only a time may have no offset.
    unknown = error_codes.OFFSET_NOT_AVAILABLE if timestamp in {EARLIEST, LATEST} else error_codes.NONE
    return {
        partition: ListedOffset(error=error)
        if (error := result.error_code or (unknown if result.offset < 0 else error_codes.NONE))
        else ListedOffset(
            offset=result.offset,
            timestamp=result.timestamp,
            leader_epoch=-1 if result.leader_epoch is None else result.leader_epoch,
        )
        for partition, result in results.items()
    }


async def log_offsets(
    cluster: Cluster, partitions: Iterable[Key], timestamp: int, *, read_committed: bool = False
) -> dict[TopicPartition, ListedOffset]:
    """As `list_offsets`, but raises ClusterError if any partition returns an error."""
    listed = await list_offsets(cluster, partitions, timestamp, read_committed=read_committed)
    for partition, result in listed.items():
        cluster.raise_for(result.error, "ListOffsets", str(partition))
    return listed


async def offsets_at(
    cluster: Cluster, partitions: Iterable[Key], timestamp: int, *, read_committed: bool = False
) -> dict[TopicPartition, int]:
    """As `log_offsets`, the offsets alone."""
    listed = await log_offsets(cluster, partitions, timestamp, read_committed=read_committed)
    return {partition: result.offset for partition, result in listed.items()}


async def appended_ends(cluster: Cluster, partitions: Iterable[Key]) -> dict[TopicPartition, int]:
    """Returns where the log of each partition's leader ends, also behind records that are not replicated yet.

    Those are not acknowledged (acks=all) and no consumer reads them, but they may be acknowledged any time later. Raises ClusterError.
    """
    listed = await list_offsets(cluster, partitions, LATEST, replica_id=DEBUGGING_ID)
    for partition, result in listed.items():
        cluster.raise_for(result.error, "ListOffsets", str(partition))
    return {partition: result.offset for partition, result in listed.items()}


async def end_offset_for_leader_epoch(
    cluster: Cluster,
    epochs: Mapping[TopicPartition, int],
    *,
    rounds_max: int = ROUNDS_MAX,
    timeout_s: float = math.inf,
) -> dict[TopicPartition, EpochEnd]:
    """Returns where each partition's leader epoch ended, in at most *rounds_max* attempts, as `list_offsets`."""
    topic_class = OffsetForLeaderEpochRequest.OffsetForLeaderTopic

    def request(by_topic: dict[str, list[int]]) -> OffsetForLeaderEpochRequest:
        topics = [
            topic_class(
                topic,
                [
                    topic_class.OffsetForLeaderPartition(
                        number,
                        cluster.metadata.leader_epoch(topic, number),
                        epochs[TopicPartition(topic, number)],
                    )
                    for number in numbers
                ],
            )
            for topic, numbers in by_topic.items()
        ]
        return OffsetForLeaderEpochRequest(replica_id=-1, topics=topics)

    results = await call_leaders(
        cluster,
        epochs,
        request,
        names=("topic", "partition"),
        rounds_max=rounds_max,
        timeout_s=timeout_s,
    )
    return {
        partition: EpochEnd(error=result.error_code)
        if result.error_code
        else EpochEnd(
            leader_epoch=-1 if result.leader_epoch is None else result.leader_epoch,
            end_offset=result.end_offset,
        )
        for partition, result in results.items()
    }


async def ends_of(cluster: Cluster, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Returns the offset up to which each partition has lost nothing since that leader epoch began.

    0 where the log knows neither that epoch nor an earlier one. Partitions that return an error are absent.
    Raises ClusterError.
    """
    if not epochs:
        return {}
    results = await end_offset_for_leader_epoch(cluster, epochs)
    return {partition: max(0, result.end_offset) for partition, result in results.items() if not result.error}


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
class ProducersResponse:
    """A leader's state of all producers of a partition. Valid only if `error` is 0."""

    error: int = 0
    producers: tuple[ActiveProducer, ...] = ()


async def describe_producers(
    cluster: Cluster, partitions: Iterable[Key], *, timeout_s: float = math.inf
) -> dict[TopicPartition, ProducersResponse]:
    """Returns the producer state of each partition's leader (Kafka 2.8 or later). Needs READ on the topics.

    A broker that was frozen and does not know yet that it lost leadership returns its old state without an
    error. Raises ClusterError.
    """
    from kafka.protocol.admin.transactions import DescribeProducersRequest  # noqa: PLC0415 few starts need it

    topic_class = DescribeProducersRequest.TopicRequest
    results = await call_leaders(
        cluster,
        partitions,
        lambda by_topic: DescribeProducersRequest(topics=[topic_class(*item) for item in by_topic.items()]),
        timeout_s=timeout_s,
    )
    return {
        partition: ProducersResponse(error=result.error_code)
        if result.error_code
        else ProducersResponse(producers=tuple(map(_producer, result.active_producers)))
        for partition, result in results.items()
    }


def _producer(state: Any) -> ActiveProducer:
    return ActiveProducer(
        producer_id=state.producer_id,
        epoch=state.producer_epoch,
        last_sequence=state.last_sequence,
        last_timestamp=state.last_timestamp,
        coordinator_epoch=state.coordinator_epoch,
        current_txn_start_offset=state.current_txn_start_offset,
    )


async def log_sizes(cluster: Cluster) -> dict[TopicPartition, int]:
    """Returns the log size of every partition in bytes, at its largest replica.

    Partitions that no broker reports are absent. Raises NotAuthorizedError, ClusterError.
    """
    from kafka.protocol.admin.cluster import DescribeLogDirsRequest  # noqa: PLC0415 for plans and checks alone

    nodes = list(cluster.metadata.brokers)
    responses = await asyncio.gather(
        *(cluster.call(DescribeLogDirsRequest(topics=None), node_id=node) for node in nodes)
    )
    sizes: dict[TopicPartition, int] = {}
    for response in responses:
        # Before version 3 a refusal is an empty list without an error code.
        cluster.raise_for(getattr(response, "error_code", 0) or 0, "DescribeLogDirs")
        for folder in response.results:
            for topic in folder.topics:
                for partition in topic.partitions:
                    if not partition.is_future_key:
                        key = TopicPartition(topic.name, partition.partition_index)
                        sizes[key] = max(sizes.get(key, 0), partition.partition_size)
    return sizes


class Appended(NamedTuple):
    """A partition's response to a batch: 0 and the offset of its first record, or an error code."""

    error_code: int
    base_offset: int | None


async def delete_records(
    cluster: Cluster, before: Mapping[TopicPartition, int], *, timeout_ms: int = 30_000
) -> Codes:
    """Deletes the records below an offset of each partition; returns error codes, 0 for success. Raises ClusterError."""
    topic_class = DeleteRecordsRequest.DeleteRecordsTopic

    def request(by_topic: dict[str, list[int]]) -> DeleteRecordsRequest:
        topics = [
            topic_class(
                topic,
                [
                    topic_class.DeleteRecordsPartition(number, before[TopicPartition(topic, number)])
                    for number in numbers
                ],
            )
            for topic, numbers in by_topic.items()
        ]
        return DeleteRecordsRequest(topics=topics, timeout_ms=timeout_ms)

    results = await call_leaders(cluster, before, request)
    return {partition: result.error_code for partition, result in results.items()}


async def produce(
    cluster: Cluster,
    batches: Mapping[TopicPartition, wire.Buffer],
    *,
    timeout_ms: int,
    transactional_id: str | None = None,
) -> Codes:
    """As `append`, the error codes alone."""
    results = await append(cluster, batches, timeout_ms=timeout_ms, transactional_id=transactional_id)
    return {partition: result.error_code for partition, result in results.items()}


async def append(
    cluster: Cluster,
    batches: Mapping[TopicPartition, wire.Buffer],
    *,
    timeout_ms: int,
    transactional_id: str | None = None,
) -> dict[TopicPartition, Appended]:
    """Appends one batch to each partition with acks=all; returns error codes, 0 for success, and where they are.

    For offsets and decisions, not for copied records. Sent once only: after code 7 (REQUEST_TIMED_OUT) or 13
    (NETWORK_EXCEPTION) the batch may have been appended. Raises ClusterError.
    """

    async def send(connection: Connection, requested: Sequence[TopicPartition]) -> dict[TopicPartition, Any]:
        by_topic: dict[str, list[tuple[int, wire.Buffer]]] = {}
        for key in requested:
            by_topic.setdefault(key.topic, []).append((key.partition, batches[key]))
        parts = wire.produce_request(by_topic, timeout_ms=timeout_ms, transactional_id=transactional_id)
        body = await connection.send(wire.API_KEY, wire.VERSION, parts, flexible=False)
        try:
            responses, throttle_ms = wire.parse_produce_response(body)
        except (struct.error, IndexError, ValueError) as error:
            raise connection.unreadable("Produce") from error
        connection.throttled(throttle_ms)
        return {
            TopicPartition(*key): Appended(response.error, response.base_offset)
            for key, response in responses.items()
        }

    results = await send_to_leaders(cluster, batches, send, rounds_max=1, purpose="append")
    return {
        partition: result if isinstance(result, Appended) else Appended(result.error_code, None)
        for partition, result in results.items()
    }


async def produce_in_transaction(
    cluster: Cluster,
    partition: TopicPartition,
    records: Sequence[Record],
    *,
    transactional_id: str,
    producer: tuple[int, int],
    base_sequence: int,
    max_bytes: int,
    timeout_ms: int,
    codec: int = 0,
) -> int:
    """Appends *records* in the open transaction, in batches of at most *max_bytes*; returns the sequence number after them.

    *producer* is the id and epoch, *base_sequence* the sequence number of the first record. Raises RecordOverLimitError, before
    anything is sent, and ClusterError: then only a new epoch can continue.
    """
    sequence = base_sequence
    for data, count in encode_split(
        records,
        max_bytes=max_bytes,
        max_uncompressed_bytes=BATCH_UNCOMPRESSED_BYTES_MAX,
        codec=codec,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=base_sequence,
        transactional=True,
    ):
        codes = await produce(
            cluster, {partition: data}, timeout_ms=timeout_ms, transactional_id=transactional_id
        )
        cluster.raise_for(codes[partition], "Produce", str(partition))
        sequence = (sequence + count) & SEQUENCE_MASK
    return sequence
