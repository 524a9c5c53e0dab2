"""Partitions are routed to the brokers that lead them, whichever response reports a new leader."""

import asyncio
import contextlib
from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from mirrorflow_core.copying.partition import PartitionCopier
from mirrorflow_kafka.client.metadata import EMPTY, PartitionMetadata, TopicMetadata
from mirrorflow_replicator.copy.broker_routes import BrokerRoutes
from mirrorflow_replicator.copy.partition_dispatch import PartitionDispatch
from tests.unit.core.copying.stubs import new_copier, new_session

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

    async def close(self) -> None:
        pass


class LedPartition:
    """A cluster with one partition. Each refresh returns the next of *leaders*; the last one stays."""

    alias = "west"

    def __init__(self, name: str, *leaders: int) -> None:
        self.name = name
        self.leaders = list(leaders)
        self.epoch = 0
        self.metadata = EMPTY

    async def refresh(self, topics: Iterable[str]) -> None:
        leader = self.leaders.pop(0) if len(self.leaders) > 1 else self.leaders[0]
        partition = PartitionMetadata(leader=leader, leader_epoch=self.epoch, replicas=(), isr=())
        topics = {self.name: TopicMetadata(name=self.name, partitions={0: partition})}
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
            changed=lambda _: None, carry_out=lambda *_: None, count_buffered=lambda _: None
        )
        self.copier: PartitionCopier = new_copier(new_session(), 0)
        self.dispatch = PartitionDispatch(self.copier, services)
        self.routes.add(self.dispatch)

    async def connect(self) -> None:
        await self.routes.connect([self.copier])

    @property
    def target_node(self) -> int:
        connection: Any = self.dispatch.connection
        assert isinstance(connection, Broker)
        return connection.node_id


def test_metadata_is_refreshed_until_an_unreachable_broker_has_been_replaced_as_leader() -> None:
    """Right after it fails, metadata still names it as the leader; a later failure to connect finds the new leader."""
    task = Task(1, 1, 2)

    async def main() -> None:
        await task.connect()
        assert task.target_node == 1
        job = asyncio.create_task(task.routes.run())
        async with asyncio.timeout(SOON_S):
            while task.target_node == 1:
                task.routes.writer_lost(1)
                await asyncio.sleep(0)
        job.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await job

    asyncio.run(main())
    assert task.target_node == 2


def test_a_reelected_leader_causes_a_resync() -> None:
    """The connection stays, but the leader may have lost records."""
    task = Task(1)

    async def main() -> list[int]:
        await task.connect()
        resyncs = [task.copier.resyncs]
        for noted_epoch, epoch in ((None, 0), (0, 0), (0, 1)):
            if noted_epoch is not None:
                task.copier.note_target_epoch(noted_epoch)
            task.target.epoch = epoch
            await task.connect()
            resyncs.append(task.copier.resyncs)
        return resyncs

    # The connection itself causes the first resync.
    assert asyncio.run(main()) == [1, 1, 1, 2]
