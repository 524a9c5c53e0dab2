"""Partitions are routed to the brokers that lead them, regardless of which response reports a new leader."""

import asyncio
import contextlib
import uuid
from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from mirrorflow_core.copying.effects import Effect, Signal
from mirrorflow_core.copying.partition import PartitionCopier, ResumeFacts
from mirrorflow_core.errors import UnreachableError
from mirrorflow_kafka.client.metadata import EMPTY, NO_TOPIC_ID, PartitionMetadata, TopicMetadata
from mirrorflow_replicator.copy.broker_routes import BrokerRoutes
from mirrorflow_replicator.copy.partition_dispatch import PartitionDispatch
from tests.unit.core.copying.stubs import new_copier, new_session

FIRST_ID, SECOND_ID = uuid.UUID(int=1), uuid.UUID(int=2)
UNREACHABLE = UnreachableError(cluster="west", addresses="b:9092", problem="refused")
SOON_S = 60.0  # without a refresh request, metadata would be refreshed after five minutes


class Broker:
    """A stub reader or writer of one broker."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.connections = (self,)

    def connection_for(self, topic: str, partition: int) -> "Broker":
        return self

    def add(self, *arguments: Any) -> None:
        pass

    def remove(self, *arguments: Any) -> None:
        pass

    def changed(self, *arguments: Any) -> None:
        pass

    async def close(self) -> None:
        pass


class LedPartition:
    """A cluster with one partition.

    Each refresh returns the next of *leaders*, and finally the last one repeatedly.
    """

    alias = "west"

    def __init__(self, name: str, *leaders: int) -> None:
        self.name = name
        self.leaders = list(leaders)
        self.epoch = 0
        self.topic_id = NO_TOPIC_ID
        self.metadata = EMPTY

    async def refresh(self, topics: Iterable[str]) -> None:
        leader = self.leaders.pop(0) if len(self.leaders) > 1 else self.leaders[0]
        partition = PartitionMetadata(leader=leader, leader_epoch=self.epoch, replicas=(), isr=())
        topics = {self.name: TopicMetadata(name=self.name, partitions={0: partition}, topic_id=self.topic_id)}
        self.metadata = replace(EMPTY, topics=topics)

    def leader(self, topic: str, partition: int) -> int:
        return self.metadata.topics[topic].partitions[partition].leader


class Task:
    """Routes with one partition, whose target has the *target_leaders* in this order."""

    def __init__(self, *target_leaders: int) -> None:
        self.source, self.target = LedPartition("orders", 1), LedPartition("east.orders", *target_leaders)
        clusters: dict[str, Any] = {"source": self.source, "target": self.target}
        broker: Any = Broker
        self.routes = BrokerRoutes(**clusters, reader=broker, writer=broker, on_error=print)
        services: Any = SimpleNamespace(
            changed=lambda _: None, carry_out=self.carry_out, count_buffered=lambda _: None
        )
        self.copier: PartitionCopier = new_copier(new_session(), 0)
        self.dispatch = PartitionDispatch(self.copier, services)
        self.routes.add(self.dispatch)

    def carry_out(self, dispatch: PartitionDispatch, effect: Effect) -> None:
        """Carries out the effect that concerns routes."""
        if effect is Signal.REFRESH_LEADER:
            self.routes.stale(dispatch.copier)

    async def connect(self) -> None:
        await self.routes.connect([self.copier])

    @property
    def target_node(self) -> int:
        connection: Any = self.dispatch.connection
        assert isinstance(connection, Broker)
        return connection.node_id


def test_metadata_is_refreshed_until_an_unreachable_broker_has_been_replaced_as_leader() -> None:
    """Shortly after the failure, metadata still names the broker as the leader.

    The new leader is found after a later failure to connect.
    """
    task = Task(1, 1, 2)

    async def main() -> None:
        await task.connect()
        assert task.target_node == 1
        job = asyncio.create_task(task.routes.run())
        async with asyncio.timeout(SOON_S):
            while task.target_node == 1:
                task.routes.writer_lost(1, UNREACHABLE)
                await asyncio.sleep(0)
        job.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await job

    asyncio.run(main())
    assert task.target_node == 2


def test_a_reelected_leader_causes_a_resync() -> None:
    """The connection stays, but the leader may have lost records."""
    task = Task(1)
    facts = ResumeFacts(is_connected=True, source_topic_id="", target_topic_id="", target_epoch=0)

    async def main() -> list[int]:
        await task.connect()
        resyncs = [task.copier.resyncs]
        for has_begun, epoch in ((False, 0), (True, 0), (True, 1)):
            if has_begun:
                task.copier.resumed(facts, 0)
            task.target.epoch = epoch
            await task.connect()
            resyncs.append(task.copier.resyncs)
        return resyncs

    # The connection itself causes the first resync.
    assert asyncio.run(main()) == [1, 1, 1, 2]


@pytest.mark.parametrize(
    ("topic_id", "is_resynced"), [(NO_TOPIC_ID, False), (FIRST_ID, False), (SECOND_ID, True)]
)
def test_a_source_topic_that_was_created_again_causes_a_resync(
    topic_id: uuid.UUID, *, is_resynced: bool
) -> None:
    """The offsets of the earlier topic are meaningless in the new one."""
    task = Task(1)
    task.source.topic_id = FIRST_ID

    async def main() -> list[int]:
        await task.connect()
        facts = ResumeFacts(
            is_connected=True, source_topic_id=str(FIRST_ID), target_topic_id="", target_epoch=0
        )
        task.copier.resumed(facts, 0)
        resyncs = [task.copier.resyncs]
        task.source.topic_id = topic_id
        await task.connect()
        return [*resyncs, task.copier.resyncs]

    before, after = asyncio.run(main())
    assert after - before == is_resynced


@pytest.mark.parametrize(("topic_id", "reader"), [(FIRST_ID, 2), (SECOND_ID, 1)])
def test_a_topic_that_was_created_again_is_not_read_from_the_replica_that_the_old_leader_preferred(
    topic_id: uuid.UUID, reader: int
) -> None:
    """The response of the old topic arrives when the metadata have the new one, which has other records at the same offsets."""
    task = Task(1)
    task.source.topic_id = FIRST_ID

    async def main() -> None:
        await task.connect()
        facts = ResumeFacts(
            is_connected=True, source_topic_id=str(FIRST_ID), target_topic_id="", target_epoch=0
        )
        task.copier.resumed(facts, 0)
        task.source.topic_id = topic_id
        await task.source.refresh([task.source.name])
        task.routes.read_from(task.dispatch, 2)

    asyncio.run(main())

    assert task.dispatch.reader is task.routes.readers[reader]
    assert (task.copier in task.routes.without_leader) is (reader == 1)
