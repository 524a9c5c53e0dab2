"""Observes whether producers still write to a cluster: ends of partitions, open transactions, and who writes.

The last stable offset equals the end where no transaction is open, and all replicas in sync have every record. An open
transaction outlives a fence: its coordinator writes the marker, whatever the producer may do (docs/switchover.md). So does a
record that was appended before the fence, but is not replicated: it is acknowledged when the slowest replica has it, or has left.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from mirrorflow_core.errors import ClusterError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.switchover.guards import some
from mirrorflow_core.switchover.observation import LastWrite, PartitionEnd
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_requests import LATEST, ActiveProducer
from mirrorflow_kafka.client.cluster import Cluster

NO_TRANSACTION: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class UndecidedTransaction:
    """A transaction that is open in a partition since *start_offset*; *transactional_id* is "" if it is not known."""

    partition: TopicPartition
    start_offset: int
    producer_id: int
    last_timestamp_ms: int
    transactional_id: str = ""

    def __str__(self) -> str:
        """Returns it as part of a sentence."""
        name = f" of transactional id {self.transactional_id}" if self.transactional_id else ""
        return f"a transaction{name} of producer {self.producer_id}, open in {self.partition} since offset {self.start_offset}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedProducerId:
    """A producer id that both clusters remember for a partition, with its epoch on each side.

    A client that keeps its id when it moves from the source to the target may then lose records: with equal epochs and a sequence number that
    the target remembers, the target answers as to a repeated batch and writes nothing.
    """

    partition: TopicPartition
    producer_id: int
    source_epoch: int
    target_epoch: int

    @property
    def loses_silently(self) -> bool:
        """Whether the target may acknowledge records without writing them; otherwise it refuses them."""
        return self.source_epoch == self.target_epoch


async def read_ends(
    cluster: Cluster, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, PartitionEnd]:
    """Returns the ends of *partitions*. Raises ClusterError if the leader of one does not return it.

    An end is that of the leader's log, after records that may still be acknowledged. The last stable offset is read first: so
    where both are equal, no transaction was open in between, and nothing waited for its replicas.
    """
    stable = await admin.offsets_at(cluster, partitions, LATEST, read_committed=True)
    ends = await admin.appended_ends(cluster, partitions)
    return {
        partition: PartitionEnd(
            topic_id=cluster.metadata.topic_id(partition.topic), end=end, last_stable=stable[partition]
        )
        for partition, end in ends.items()
    }


async def settled_ends(
    cluster: Cluster, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, PartitionEnd]:
    """Returns the ends of *partitions*. Raises ClusterError while one of them may still become shorter or longer."""
    ends = await read_ends(cluster, partitions)
    if unsettled := [partition for partition, end in ends.items() if end.last_stable < end.end]:
        problem = "a transaction is open, or not all replicas are in sync"
        raise ClusterError(f"{some(unsettled)} on {cluster.alias}: {problem}.", cluster=cluster.alias)
    return ends


async def open_transactions(
    cluster: Cluster, ends: Mapping[TopicPartition, PartitionEnd]
) -> tuple[UndecidedTransaction, ...]:
    """Returns the transactions that keep the last stable offset below an end of *ends*. Raises ClusterError."""
    unstable = [partition for partition, state in ends.items() if state.last_stable < state.end]
    producers = await _producers(cluster, unstable)
    transactions = [
        (partition, producer)
        for partition, of_partition in producers.items()
        for producer in of_partition
        if producer.current_txn_start_offset != NO_TRANSACTION
    ]
    names = await admin.transactional_ids_of(cluster, [producer.producer_id for _, producer in transactions])
    return tuple(
        UndecidedTransaction(
            partition=partition,
            start_offset=producer.current_txn_start_offset,
            producer_id=producer.producer_id,
            last_timestamp_ms=producer.last_timestamp,
            transactional_id=names.get(producer.producer_id, ""),
        )
        for partition, producer in transactions
    )


async def last_writes(cluster: Cluster, partitions: Collection[TopicPartition]) -> tuple[LastWrite, ...]:
    """Returns the producer of the newest record of each of *partitions* that has a known one. Raises ClusterError.

    Producers without idempotence have no id, so a partition to which only such write is absent.
    """
    producers = await _producers(cluster, partitions)
    newest = {
        partition: max(of_partition, key=lambda producer: producer.last_timestamp)
        for partition, of_partition in producers.items()
        if of_partition
    }
    return tuple(
        LastWrite(partition=partition, producer_id=producer.producer_id, written_ms=producer.last_timestamp)
        for partition, producer in newest.items()
    )


async def shared_producer_ids(
    source: Cluster, target: Cluster, partitions: Mapping[TopicPartition, TopicPartition]
) -> tuple[SharedProducerId, ...]:
    """Returns the producer ids that both leaders of a partition remember; *partitions*: source -> target. Raises ClusterError."""
    on_source = await _producers(source, [*partitions])
    on_target = await _producers(target, [*partitions.values()])
    return tuple(
        SharedProducerId(
            partition=partition,
            producer_id=producer.producer_id,
            source_epoch=producer.epoch,
            target_epoch=epochs[producer.producer_id],
        )
        for partition, producers in on_source.items()
        for epochs in [{known.producer_id: known.epoch for known in on_target[partitions[partition]]}]
        for producer in producers
        if producer.producer_id in epochs
    )


async def _producers(
    cluster: Cluster, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, tuple[ActiveProducer, ...]]:
    responses = await admin.describe_producers(cluster, partitions) if partitions else {}
    for partition, response in responses.items():
        cluster.raise_for(response.error, "DescribeProducers", str(partition))
    return {partition: response.producers for partition, response in responses.items()}
