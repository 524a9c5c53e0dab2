"""MirrorFlow and Java's MM2 write and read positions on a real target in turn."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from mirrorflow_core.connect.position_records import PositionKey, encode_key
from mirrorflow_core.errors import BrokerError, InternalTopicUnavailableError, InvalidSettingError
from mirrorflow_core.partitions import Position, TopicPartition
from mirrorflow_core.settings import ClientSettings, OffsetStorageSettings, OffsetStore
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.stores.compacted_topic import CompactedTopic
from mirrorflow_kafka.stores.position_store import OffsetsLog
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.mm2 import MirrorMaker
from tests.harness.kafka.tools import load

CONNECTOR = "MirrorSourceConnector"
FOO = TopicPartition("foo", 0)
BAR = TopicPartition("bar", 3)


@asynccontextmanager
async def connected(target: KafkaCluster, topic: str) -> AsyncIterator[tuple[Cluster, OffsetStorageSettings]]:
    client = ClientSettings(
        alias="west", client_id="test", properties={"bootstrap.servers": target.bootstrap}
    )
    cluster = await Cluster.connect(client, resolve=dict)
    try:
        yield cluster, OffsetStorageSettings(store=OffsetStore.KAFKA, topic=topic, client=client)
    finally:
        await cluster.close()


@asynccontextmanager
async def offsets_log(
    target: KafkaCluster, topic: str, connector: str = CONNECTOR
) -> AsyncIterator[OffsetsLog]:
    async with connected(target, topic) as (cluster, settings):
        yield OffsetsLog(cluster, settings, connector=connector, source_alias="east")


@asynccontextmanager
async def compacted_topic(target: KafkaCluster, topic: str) -> AsyncIterator[CompactedTopic]:
    async with connected(target, topic) as (cluster, settings):
        log = CompactedTopic(cluster, settings, key="offset.storage.topic")
        await log.open()
        yield log


def position(partition: TopicPartition, offset: int, *, epoch: int = 1) -> Position:
    return Position(
        topic=partition.topic, partition=partition.partition, source_offset=offset, source_epoch=epoch
    )


def now_ms() -> int:
    return int(time.time() * 1000)


def run(target: KafkaCluster, topic: str, use: Callable[[OffsetsLog], Awaitable[object]]) -> OffsetsLog:
    async def main() -> OffsetsLog:
        async with offsets_log(target, topic) as log:
            await log.open()
            await use(log)
            return log

    return asyncio.run(main())


async def nothing(log: OffsetsLog) -> None:
    """Writes nothing."""


def test_the_offsets_topic_is_compacted(west: KafkaCluster):
    """It has one partition: Connect's 25 would each have a marker at every commit."""
    run(west, "mm2-offsets.new.internal", nothing)

    assert (1, "compact") == (
        west.topics()["mm2-offsets.new.internal"],
        west.topic_config("mm2-offsets.new.internal")["cleanup.policy"],
    )


def test_an_offsets_topic_without_compaction_is_refused(west: KafkaCluster):
    """A topic that deletes records by age would lose positions, so no connector starts."""
    west.create_topic("forgets", partitions=3)

    with pytest.raises(InvalidSettingError, match=r"offset\.storage\.topic.*cleanup\.policy=delete"):
        run(west, "forgets", nothing)


def test_positions_outlive_the_process(west: KafkaCluster):
    """A second process reads the last values that the first process wrote."""

    async def first(log: OffsetsLog) -> None:
        await log.write([position(FOO, 5), position(BAR, 1)], now_ms=1_000)
        await log.write([position(FOO, 9, epoch=2)], now_ms=30_000)

    run(west, "mm2-offsets.twice.internal", first)
    positions = run(west, "mm2-offsets.twice.internal", nothing).positions

    assert positions == {
        FOO: replace(position(FOO, 9, epoch=2), written_ms=30_000),
        BAR: replace(position(BAR, 1), written_ms=1_000),
    }


def test_thousands_of_positions_are_written_at_once(west: KafkaCluster):
    """Batches stay below the topic's size limit, regardless of the number of partitions."""
    many = [position(TopicPartition("t" * 200, number), 7) for number in range(20_000)]

    async def write(log: OffsetsLog) -> None:
        await log.write(many, now_ms=1)

    run(west, "mm2-offsets.many.internal", write)

    assert len(many) == len(run(west, "mm2-offsets.many.internal", nothing).positions)


def test_a_position_stored_by_a_different_process_is_read(west: KafkaCluster):
    """`read_new` returns what a different process has appended since, for this connector only."""

    async def main() -> tuple[frozenset[TopicPartition], int, frozenset[TopicPartition]]:
        topic = "mm2-offsets.left.internal"
        async with (
            offsets_log(west, topic) as old,
            offsets_log(west, topic) as new,
            offsets_log(west, topic, connector="other") as other,
        ):
            for log in (old, new, other):
                await log.open()
            await old.write([position(FOO, 1)], now_ms=1)
            await other.write([position(BAR, 1)], now_ms=1)
            changed = await new.read_new()
            return changed, new.positions[FOO].source_offset, await new.read_new()

    assert (frozenset({FOO}), 1, frozenset()) == asyncio.run(main())


def test_the_latest_position_of_a_key_applies_in_any_partition(west: KafkaCluster):
    """New partitions move keys, and a client that does not know them writes to the old partitions.

    A reset deletes all positions of a key.
    """
    topic = "mm2-offsets.grown.internal"
    partitions = [TopicPartition("orders", number) for number in range(60)]

    async def main() -> tuple[set[int], set[int], int]:
        async with offsets_log(west, topic) as early, offsets_log(west, topic) as late:
            await early.open()
            await early.write([position(partition, 1) for partition in partitions], now_ms=1_000)
            west.add_partitions(topic, 30)
            await late.open()
            await late.write([position(partition, 2) for partition in partitions], now_ms=2_000)
            second = {partition.source_offset for partition in (await read_again()).values()}
            await early.write([position(partition, 3) for partition in partitions], now_ms=3_000)
            third = {partition.source_offset for partition in (await read_again()).values()}
        async with compacted_topic(west, topic) as log:
            keys = [encode_key(PositionKey(CONNECTOR, "east", *partition)) for partition in partitions]
            await log.read_new(lambda _: None)
            await log.append(dict.fromkeys(keys).items(), now_ms=2_500)
            return second, third, len(await read_again())

    async def read_again() -> Mapping[TopicPartition, Position]:
        async with offsets_log(west, topic) as log:
            await log.open()
            return log.positions

    assert asyncio.run(main()) == ({2}, {3}, 0)


def test_positions_are_refused_while_their_topic_is_missing(west: KafkaCluster):
    topic = "mm2-offsets.gone.internal"

    async def main() -> int:
        async with offsets_log(west, topic) as log:
            await log.open()
            west.delete_topic(topic)
            for _ in range(2):  # the old leader may refuse the first request
                with pytest.raises((InternalTopicUnavailableError, BrokerError)):
                    await log.write([position(FOO, 5)], now_ms=1_000)
            await log.open()
            await log.write([position(FOO, 5)], now_ms=1_000)
            return west.total_end_offset(topic)

    assert asyncio.run(main()) == 1


def test_java_continues_from_mirrorflows_positions_and_mirrorflow_from_javas(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Callable[[], str]
):
    """Java's MM2 copies exactly the records after MirrorFlow's position.

    MirrorFlow reads the position that Java stores when it stops.
    """
    topic = "mm2-offsets.east.internal"
    orders = east.create_topic(unique_topic(), partitions=2)
    copy = west.create_topic(f"east.{orders}", partitions=2)
    load(east, orders, 100, partition=0)
    load(east, orders, 50, partition=1)
    first, second = TopicPartition(orders, 0), TopicPartition(orders, 1)

    async def write(log: OffsetsLog) -> None:
        await log.write([position(first, 89), position(second, 49)], now_ms=now_ms())

    run(west, topic, write)
    with MirrorMaker(source=east, target=west, topics=orders) as java:
        java.wait_until_replicated(orders, 10)
        load(east, orders, 5, partition=1)
        java.wait_until_replicated(orders, 15)
        java.stop()
    read_log = run(west, topic, nothing)

    assert {0: 10, 1: 5} == west.end_offsets(copy)
    assert {first: 99, second: 54} == {
        partition: stored.source_offset
        for partition, stored in read_log.positions.items()
        if partition.topic == orders
    }
    assert () == read_log.warnings
