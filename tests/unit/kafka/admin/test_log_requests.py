"""Requests about partition logs: an unresponsive leader does not delay the others, and batches of a transaction are
numbered.
"""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, create_autospec

import pytest

from mirrorflow_core.errors import ClusterError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire.batch import Batch, split
from mirrorflow_core.wire.error_codes import (
    INVALID_PRODUCER_EPOCH,
    NETWORK_EXCEPTION,
    OFFSET_NOT_AVAILABLE,
    raise_for,
)
from mirrorflow_core.wire.records import SEQUENCE_MASK, Record, RecordOverLimitError
from mirrorflow_kafka.admin import admin, log_requests
from mirrorflow_kafka.admin.log_requests import EARLIEST, LATEST
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.client.metadata import Metadata, PartitionMetadata, TopicMetadata
from mirrorflow_kafka.client.pool import open_connection
from tests.unit.kafka.scripted import Broker, scripted

UNRESPONSIVE, RESPONSIVE = TopicPartition("orders", 0), TopicPartition("orders", 1)
END = 7


class Connection:
    muted_until_s = 0.0

    def __init__(self, *, is_unresponsive: bool, end: int = END) -> None:
        self._is_silent = is_unresponsive
        self._end = end

    async def call(self, request: Any, **_options: float) -> Any:
        if self._is_silent:
            await asyncio.Event().wait()
        parts = [
            SimpleNamespace(
                partition_index=getattr(partition, "partition_index", None),
                partition=getattr(partition, "partition", None),
                error_code=0,
                offset=self._end,
                end_offset=self._end,
                timestamp=-1,
                leader_epoch=3,
            )
            for topic in request.topics
            for partition in topic.partitions
        ]
        return SimpleNamespace(topics=[SimpleNamespace(name="orders", topic="orders", partitions=parts)])


class Leaders:
    """A cluster in which broker 0 leads partition 0 and does not respond."""

    alias = "west"
    metadata = Metadata(
        cluster_id="",
        controller_id=0,
        brokers={},
        topics={
            "orders": TopicMetadata(
                name="orders",
                partitions={
                    number: PartitionMetadata(
                        leader=number, leader_epoch=3, replicas=(number,), isr=(number,)
                    )
                    for number in (0, 1)
                },
            )
        },
    )

    def leader(self, topic: str, partition: int) -> int | None:
        return self.metadata.leader(topic, partition)

    async def connection(self, node_id: int, **_options: str) -> Connection:
        return Connection(is_unresponsive=node_id == UNRESPONSIVE.partition)

    async def refresh(self, _topics: Any) -> None:
        """Does nothing, because the metadata is up to date."""


class DeletingCluster(Leaders):
    """A cluster whose topic is deleted, as other callers see it, while a connection is opened."""

    async def connection(self, node_id: int, **_options: str) -> Connection:
        self.metadata = replace(self.metadata, topics={})
        return await super().connection(node_id)


def test_a_topic_may_be_deleted_while_a_connection_to_its_leader_is_opened():
    """The broker decides then: an unexpected error would end the process with all of its connectors."""
    cluster: Any = DeletingCluster()

    offsets = asyncio.run(admin.list_offsets(cluster, [RESPONSIVE], LATEST))
    cluster.metadata = Leaders.metadata
    ends = asyncio.run(admin.end_offset_for_leader_epoch(cluster, {RESPONSIVE: 3}))

    assert offsets[RESPONSIVE].offset == END
    assert ends[RESPONSIVE].end_offset == END


def test_only_partitions_of_an_unresponsive_leader_have_an_error():
    cluster: Any = Leaders()

    offsets = asyncio.run(admin.list_offsets(cluster, [UNRESPONSIVE, RESPONSIVE], LATEST, timeout_s=0.01))

    assert offsets[UNRESPONSIVE].error == NETWORK_EXCEPTION
    assert (offsets[RESPONSIVE].error, offsets[RESPONSIVE].offset) == (0, END)


class LeadersWithoutOffsets(Leaders):
    """A cluster whose leaders return -1 without an error."""

    async def connection(self, node_id: int, **_options: str) -> Connection:
        return Connection(is_unresponsive=False, end=-1)


@pytest.mark.parametrize("timestamp", [EARLIEST, LATEST])
def test_a_log_without_a_beginning_or_an_end_is_unavailable(timestamp: int):
    """Taken as an offset, a beginning of -1 would be the end of the log, and its records would be skipped."""
    cluster: Any = LeadersWithoutOffsets()

    assert asyncio.run(admin.list_offsets(cluster, [RESPONSIVE], timestamp))[RESPONSIVE].error == (
        OFFSET_NOT_AVAILABLE
    )


def test_a_time_after_the_last_record_has_no_offset():
    cluster: Any = LeadersWithoutOffsets()
    listed = asyncio.run(admin.list_offsets(cluster, [RESPONSIVE], 1_800_000_000_000))[RESPONSIVE]

    assert (listed.error, listed.offset) == (0, -1)


class TransactionLog:
    """A partition that accepts *accepted* batches of a transaction, and refuses the next one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, accepted: int = 1_000) -> None:
        self.batches: list[Batch] = []
        self.cluster = create_autospec(Cluster, instance=True, alias="west")
        self.cluster.raise_for.side_effect = lambda code, request, subject: raise_for(
            code, cluster="west", request=request, subject=subject
        )
        self._accepted = accepted
        monkeypatch.setattr(log_requests, "produce", self._produce)

    async def _produce(
        self, _: Cluster, batches: dict[TopicPartition, bytearray], **named: object
    ) -> dict[TopicPartition, int]:
        assert named == {"timeout_ms": 9, "transactional_id": "own"}
        ((partition, data),) = batches.items()
        if len(self.batches) == self._accepted:
            return {partition: INVALID_PRODUCER_EPOCH}
        self.batches += split(memoryview(data))
        return {partition: 0}

    def append(self, records: list[Record], *, base_sequence: int = 0, max_bytes: int = 1_000) -> int:
        return asyncio.run(
            admin.produce_in_transaction(
                self.cluster,
                RESPONSIVE,
                records,
                transactional_id="own",
                producer=(4, 2),
                base_sequence=base_sequence,
                max_bytes=max_bytes,
                timeout_ms=9,
            )
        )


def record(size_bytes: int = 300) -> Record:
    return Record(0, 0, None, b"x" * size_bytes)


def test_batches_of_a_transaction_are_numbered_without_a_gap_even_across_the_largest_number(
    monkeypatch: pytest.MonkeyPatch,
):
    log = TransactionLog(monkeypatch)
    first = SEQUENCE_MASK - 4

    after = log.append([record()] * 9, base_sequence=first)

    assert len(log.batches) > 1
    assert all((batch.producer_id, batch.producer_epoch) == (4, 2) for batch in log.batches)
    assert all(batch.is_transactional for batch in log.batches)
    expected = first
    for batch in log.batches:
        assert batch.base_sequence == expected
        expected = (expected + batch.count) & SEQUENCE_MASK
    assert (9, after) == (sum(batch.count for batch in log.batches), expected)


def test_a_refused_batch_of_a_transaction_raises_and_no_later_batch_is_sent(monkeypatch: pytest.MonkeyPatch):
    log = TransactionLog(monkeypatch, accepted=1)

    with pytest.raises(ClusterError):
        log.append([record()] * 9)

    assert len(log.batches) == 1


def test_no_record_is_sent_if_one_of_them_is_too_large(monkeypatch: pytest.MonkeyPatch):
    log = TransactionLog(monkeypatch)

    with pytest.raises(RecordOverLimitError) as refused:
        log.append([record(), record(2_000)])

    assert (1, []) == (refused.value.index, log.batches)


def test_a_truncated_produce_response_leaves_open_whether_the_batch_was_appended():
    async def script(broker: Broker) -> None:
        await broker.respond_to_api_versions()
        await broker.send((await broker.next()).response(b"\0\0\0\1"))
        await broker.next()

    async def main() -> dict[TopicPartition, int]:
        async with scripted(script) as port:
            connection = await open_connection(
                "127.0.0.1", port, client_id="tester", security=None, cluster="west"
            )
            cluster: Any = Leaders()
            cluster.connection = AsyncMock(return_value=connection)
            return dict(await log_requests.produce(cluster, {RESPONSIVE: b"batch"}, timeout_ms=1_000))

    assert asyncio.run(main()) == {RESPONSIVE: NETWORK_EXCEPTION}
