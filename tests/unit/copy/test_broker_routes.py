"""Partitions are served by the brokers that lead them, whichever response reports a new leader."""

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

SOON_S = 60.0  # without a request it would take five minutes


class Broker:
    """A reader or a writer of one broker, which only keeps what it is given."""

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


class Leading:
    """A cluster of one topic with one partition; *leaders* are named one after the other, the last one forever."""

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
    """Routes with one partition, whose target is led by *target_leaders* one after the other."""

    def __init__(self, *target_leaders: int) -> None:
        self.source, self.target = Leading("orders", 1), Leading("east.orders", *target_leaders)
        clusters: dict[str, Any] = {"source": self.source, "target": self.target}
        new: Any = Broker
        self.routes = BrokerRoutes(**clusters, reader=new, writer=new, on_error=print)
        services: Any = SimpleNamespace(carry_out=lambda *_: None, count_buffered=lambda _: None)
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


def test_the_partitions_of_a_target_broker_that_cannot_be_reached_are_looked_up_until_another_leads_them() -> (
    None
):
    """Right after its death it is still named the leader; the next failure to connect finds its successor."""
    task = Task(1, 1, 2)

    async def main() -> None:
        await task.connect()
        assert task.target_node == 1
        running = asyncio.create_task(task.routes.run())
        async with asyncio.timeout(SOON_S):
            while task.target_node == 1:
                task.routes.writer_lost(1)
                await asyncio.sleep(0)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running

    asyncio.run(main())
    assert task.target_node == 2


def test_a_leader_that_was_elected_again_is_asked_again() -> None:
    """On the same connection: it may have come back with less than it had."""
    task = Task(1)

    async def main() -> list[int]:
        await task.connect()
        resyncs = [task.copier.resyncs]
        for asked, epoch in ((None, 0), (0, 0), (0, 1)):
            if asked is not None:
                task.copier.note_target_epoch(asked)
            task.target.epoch = epoch
            await task.connect()
            resyncs.append(task.copier.resyncs)
        return resyncs

    # The first one is of the connection.
    assert asyncio.run(main()) == [1, 1, 1, 2]
