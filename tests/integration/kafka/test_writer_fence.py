"""Behaviour of brokers on which the fencing of producers relies (docs/decisions/020-one-fenced-writer.md).

A single broker sends transaction markers to itself over its inter-broker listener. Here, that listener is behind a
proxy, so that a test controls when the markers arrive.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from mirrorflow_core.errors import BrokerError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire.batch import Batch, split
from mirrorflow_core.wire.error_codes import INVALID_PRODUCER_EPOCH, NONE
from mirrorflow_core.wire.records import encode
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_reader import read_once
from mirrorflow_kafka.admin.transaction_log_reader import aborted_transactions
from mirrorflow_kafka.client.cluster import Cluster
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.installation import OLD_VERSION, VERSION
from tests.harness.kafka.tools import records
from tests.integration.kafka.flows import call_cluster, numbered

pytestmark = pytest.mark.more

Names = Callable[[], str]
TRANSACTION_TIMEOUT_MS = 60_000
BATCH_RECORDS = 10
LATE_BATCHES = 4
POLL_S = 0.01


@pytest.fixture(scope="module", params=[VERSION, pytest.param(OLD_VERSION, marks=pytest.mark.java)])
def target(request: pytest.FixtureRequest) -> Iterator[KafkaCluster]:
    """A broker whose markers pass through `proxy(1)`. Clients use the other listener."""
    config = {"inter.broker.listener.name": "PROXIED"}
    with KafkaCluster(name="fence", version=request.param, proxied=True, config=config) as cluster:
        yield cluster


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochProducer:
    """A transactional id in one epoch. `append` writes plain or transactional batches."""

    cluster: Cluster
    transactional_id: str
    producer_id: int
    epoch: int

    @classmethod
    async def new(cls, cluster: Cluster, transactional_id: str) -> "EpochProducer":
        """Initialises *transactional_id*, which increases its epoch."""
        producer_id, epoch = await admin.init_producer_id(
            cluster, transactional_id, timeout_ms=TRANSACTION_TIMEOUT_MS
        )
        return cls(cluster=cluster, transactional_id=transactional_id, producer_id=producer_id, epoch=epoch)

    async def append(self, partition: TopicPartition, index: int, *, transactional: bool = False) -> int:
        """Writes the batch of this epoch with *index*, and returns the error code."""
        first = index * BATCH_RECORDS
        data = encode(
            numbered(first, BATCH_RECORDS, timestamp=time.time_ns() // 1_000_000),
            codec=0,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=first,
            transactional=transactional,
        )
        codes = await admin.produce(
            self.cluster,
            {partition: data},
            timeout_ms=30_000,
            transactional_id=self.transactional_id if transactional else None,
        )
        return codes[partition]

    async def add(self, *partitions: TopicPartition) -> None:
        await admin.add_partitions_to_txn(
            self.cluster, self.transactional_id, self.producer_id, self.epoch, partitions
        )

    async def end(self, *, committed: bool) -> None:
        await admin.end_txn(
            self.cluster, self.transactional_id, self.producer_id, self.epoch, committed=committed
        )


def test_late_batches_are_accepted_until_the_marker_is_written(target: KafkaCluster, unique_topic: Names):
    """EndTxn responds once the coordinator has decided. The leader refuses the old epoch only after the marker.

    Therefore a successor looks up the log end only after it has read the marker of its epoch.
    """
    partition = TopicPartition(target.create_topic(unique_topic()), 0)

    async def fence(cluster: Cluster) -> tuple[list[int], list[int], list[Batch]]:
        await cluster.refresh([partition.topic])
        old = await EpochProducer.new(cluster, f"{partition.topic}-plain")
        assert await old.append(partition, 0) == NONE
        target.proxy(1).blackhole()
        try:
            successor = await EpochProducer.new(cluster, old.transactional_id)
            await successor.add(partition)
            await successor.end(committed=False)
            before_marker = [await old.append(partition, index) for index in range(1, 1 + LATE_BATCHES)]
        finally:
            target.proxy(1).heal()
        await wait_for_marker(successor, partition)
        after_marker = [
            await old.append(partition, index) for index in range(1 + LATE_BATCHES, 1 + 2 * LATE_BATCHES)
        ]
        assert (successor.producer_id, successor.epoch) == (old.producer_id, old.epoch + 1)
        return before_marker, after_marker, await batches_of(cluster, partition)

    before_marker, after_marker, log = call_cluster(target, fence)

    assert before_marker == [NONE] * LATE_BATCHES
    assert after_marker == [INVALID_PRODUCER_EPOCH] * LATE_BATCHES
    assert [batch.is_control for batch in log] == [False] * (1 + LATE_BATCHES) + [True]


@pytest.mark.parametrize("newcomer_before", ["begin", "record", "commit"])
def test_a_claim_is_refused_once_a_newer_owner_has_initialised_the_lock(
    target: KafkaCluster, unique_topic: Names, newcomer_before: str
):
    """A claim is written in a transaction with the lock's id. Therefore only the latest owner can commit it."""
    partition = TopicPartition(target.create_topic(unique_topic()), 0)
    lock = f"{partition.topic}-lock"

    async def claim(cluster: Cluster) -> tuple[int, int]:
        await cluster.refresh([partition.topic])
        owner = await EpochProducer.new(cluster, lock)
        newcomer = None
        for step in ("begin", "record", "commit"):
            if step == newcomer_before:
                newcomer = await EpochProducer.new(cluster, lock)
            if code := await refusal(owner, step, partition):
                break
        assert newcomer is not None
        codes = [await refusal(newcomer, step, partition) for step in ("begin", "record", "commit")]
        await wait_for_marker(newcomer, partition)
        return code, max(codes)

    owner_code, newcomer_code = call_cluster(target, claim)

    assert (owner_code, newcomer_code) == (INVALID_PRODUCER_EPOCH, NONE)
    assert len(records(target, partition.topic, isolation="read_committed")) == BATCH_RECORDS


def test_a_leader_lists_transactions_that_were_open_at_an_offset_and_then_aborted(
    target: KafkaCluster, unique_topic: Names
):
    """After an unclean election, the next marker of an id also ends the previous transaction, whose own marker is lost."""
    partition = TopicPartition(target.create_topic(unique_topic()), 0)

    async def write(cluster: Cluster) -> tuple[list[dict[int, int]], int, int]:
        await cluster.refresh([partition.topic])
        names = ("committed", "aborted", "aborted-later")
        committed, aborted, later = [
            await EpochProducer.new(cluster, f"{partition.topic}-{name}") for name in names
        ]
        for producer in (committed, aborted):
            await producer.add(partition)
            assert await producer.append(partition, 0, transactional=True) == NONE  # 0 to 9, and 10 to 19
        for producer in (committed, aborted):
            await producer.end(committed=producer is committed)
            await wait_for_marker(producer, partition)  # 20 and 21
        await later.add(partition)
        assert await later.append(partition, 0, transactional=True) == NONE  # 22 to 31
        await later.end(committed=False)
        await wait_for_marker(later, partition)
        offsets = (5, 10, 15, 21, 22, 30)
        listed = [await aborted_transactions(cluster, partition, offset) for offset in offsets]
        return listed, aborted.producer_id, later.producer_id

    listed, aborted, later = call_cluster(target, write)

    assert listed == [{}, {}, {aborted: 10}, {aborted: 10}, {}, {later: 22}]


async def refusal(producer: EpochProducer, step: str, partition: TopicPartition) -> int:
    """Takes one step of a transaction with one batch, and returns the error code, which is NONE if the broker accepts
    it.
    """
    try:
        if step == "begin":
            await producer.add(partition)
        elif step == "record":
            return await producer.append(partition, 0, transactional=True)
        else:
            await producer.end(committed=True)
    except BrokerError as error:
        return error.code
    return NONE


async def wait_for_marker(producer: EpochProducer, partition: TopicPartition) -> None:
    """Waits until the log ends with a marker of *producer*'s epoch."""
    while True:
        last = (await batches_of(producer.cluster, partition))[-1]
        if last.is_control and (last.producer_id, last.producer_epoch) == (
            producer.producer_id,
            producer.epoch,
        ):
            return
        await asyncio.sleep(POLL_S)


async def batches_of(cluster: Cluster, partition: TopicPartition) -> list[Batch]:
    """Returns all batches of a small log, including markers."""
    return list(split((await read_once(cluster, partition, 0)).records))
