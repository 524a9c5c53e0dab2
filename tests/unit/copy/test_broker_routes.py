"""Partitions are served by the brokers that lead them, whichever response reports a new leader."""

import asyncio
import contextlib
from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_kafka.client.metadata import EMPTY, PartitionMetadata, TopicMetadata
from mirrorflow_replicator.copy.broker_routes import BrokerRoutes
from mirrorflow_replicator.copy.copier_context import CopierState
from mirrorflow_replicator.copy.partition_copier import UNKNOWN_EPOCH
from mirrorflow_replicator.copy.read_cursor import ReadCursor

SOON_S = 60.0  # without a request it would take five minutes


class Broker:
    """A reader or a writer of one broker, which only keeps what it is given."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.pipes = (self,)

    def pipe_for(self, topic: str, partition: int) -> "Broker":
        return self

    def add(self, *arguments: Any) -> None:
        pass

    def remove(self, *arguments: Any) -> None:
        pass

    async def close(self) -> None:
        pass


class Leading:
    """A cluster of one topic with one partition; *leaders* are named one after the other, the last one for ever."""

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


class Served(SimpleNamespace):
    """What the routes use of a copier."""

    def __hash__(self) -> int:  # type: ignore[override]  # a copier is one, whatever it holds
        return id(self)

    def read_by(self, reader: Any) -> None:
        self.reader = reader

    def write_through(self, pipe: Any) -> None:
        self.pipe = pipe
        self.resync()


def copier(resyncs: list[int] | None = None) -> Any:
    return Served(
        topic="t",
        partition=0,
        target_topic="east.t",
        source=TopicPartition("t", 0),
        target=TopicPartition("east.t", 0),
        writing=None,
        reader=None,
        pipe=None,
        cursor=ReadCursor(TopicPartition("t", 0), read_committed=False),
        target_epoch=UNKNOWN_EPOCH,
        state=CopierState.RESUMING,
        resync=lambda: None if resyncs is None else resyncs.append(1),
    )


def test_the_partitions_of_a_target_broker_that_cannot_be_reached_are_looked_up_until_another_leads_them() -> (
    None
):
    """Right after its death it is still named the leader; the next failure to connect finds its successor."""
    served = copier()

    async def main() -> None:
        source: Any = Leading("t", 1)
        target: Any = Leading("east.t", 1, 1, 2)
        new: Any = Broker
        routes = BrokerRoutes(source=source, target=target, reader=new, writer=new, on_error=print)
        await routes.add([served])
        assert served.pipe.node_id == 1
        running = asyncio.create_task(routes.run())
        async with asyncio.timeout(SOON_S):
            while served.pipe.node_id == 1:
                routes.writer_lost(1)
                await asyncio.sleep(0)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running

    asyncio.run(main())
    assert served.pipe.node_id == 2


def test_a_leader_that_was_elected_again_is_asked_again() -> None:
    """On the same connection: it may have come back with less than it had."""
    resyncs: list[int] = []
    served = copier(resyncs)

    async def main() -> None:
        target: Any = Leading("east.t", 1)
        source: Any = Leading("t", 1)
        new: Any = Broker
        routes = BrokerRoutes(source=source, target=target, reader=new, writer=new, on_error=print)
        await routes.add([served])
        resyncs.clear()
        for asked, epoch in ((UNKNOWN_EPOCH, 0), (0, 0), (0, 1)):
            served.target_epoch, target.epoch = asked, epoch
            assert not resyncs
            await routes.add([served])

    asyncio.run(main())
    assert resyncs == [1]
