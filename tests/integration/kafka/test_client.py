"""MirrorFlow's client sends requests to real brokers, returns errors, and reconnects after brokers return."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from mirrorflow_core.errors import (
    AuthenticationFailedError,
    BrokerError,
    ConnectionLostError,
    UnreachableError,
)
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import ClientSettings
from mirrorflow_core.wire.records import Record, encode
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.client.cluster import Cluster
from tests.harness.kafka.cluster import KafkaCluster

LATEST, EARLIEST = -1, -2
BOUND_S = 90.0


def with_client(properties: dict[str, str], test: Callable[[Cluster], Awaitable[None]]) -> None:
    """Runs *test* with a connected client."""

    async def body() -> None:
        settings = ClientSettings(alias="east", client_id="tester", properties=properties)
        async with asyncio.timeout(BOUND_S):
            cluster = await Cluster.connect(settings, resolve=lambda unresolved: unresolved, timeout_s=30)
            try:
                await test(cluster)
            finally:
                await cluster.close()

    asyncio.run(body())


def on(kafka: KafkaCluster, test: Callable[[Cluster], Awaitable[None]]) -> None:
    with_client({"bootstrap.servers": kafka.bootstrap}, test)


async def wait_for_result(expected: object, ask: Callable[[], Awaitable[object]]) -> None:
    """Polls until the result is *expected*, within the limit of `with_client`.

    A broker's metadata may be older than the controller's.
    """
    while (result := await ask()) != expected:
        print(f"not yet {expected}: {result}")
        await asyncio.sleep(0.1)


def batch(producer_id: int, epoch: int, sequence: int) -> bytearray:
    """Returns a batch of one record with a producer identity."""
    record = Record(0, int(time.time() * 1000), b"key", b"value", ())
    return encode([record], codec=0, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)


def test_topics_are_created_extended_and_configured(
    east: KafkaCluster, unique_topic: Callable[[], str]
) -> None:
    """Each topic has its own result. An existing topic is not an error. Descriptions show the changes."""
    name = unique_topic()

    async def test(cluster: Cluster) -> None:
        topic = admin.NewTopic(name=name, partitions=2, configs={"cleanup.policy": "compact"})
        results = await admin.create_topics(cluster, [topic, admin.NewTopic(name="not valid", partitions=1)])
        assert results[name] is None
        invalid = results["not valid"]
        assert invalid is not None
        assert invalid.code == 17
        await admin.create_topic_and_wait(cluster, topic)
        assert await admin.create_partitions(cluster, {name: 3}) == {name: None}
        grown = (await admin.create_partitions(cluster, {name: 3}))[name]
        assert grown is not None
        assert grown.code == 37
        changes = [
            admin.ConfigChange(name="retention.ms", value="1000"),
            admin.ConfigChange(name="cleanup.policy", value=None),
        ]
        assert await admin.alter_topic_configs(cluster, {name: changes}) == {name: None}

        async def topic_overrides() -> dict[str, str | None]:
            entries = (await admin.describe_topic_configs(cluster, [name, "absent"]))[name]
            return {entry.name: entry.value for entry in entries if entry.source is admin.ConfigSource.TOPIC}

        await wait_for_result({"retention.ms": "1000"}, topic_overrides)
        await admin.create_topic_and_wait(cluster, topic)

        async def partitions() -> int:
            return len((await admin.list_topics(cluster))[name].partitions)

        await wait_for_result(3, partitions)

    on(east, test)


def test_leaders_return_offsets_and_producers_of_each_partition(
    east: KafkaCluster, unique_topic: Callable[[], str]
) -> None:
    """An unknown partition has its own error, which does not hide the results of the others."""
    name = unique_topic()
    first, second, absent = (TopicPartition(name, number) for number in (0, 1, 9))

    async def test(cluster: Cluster) -> None:
        await admin.create_topic_and_wait(cluster, admin.NewTopic(name=name, partitions=2))
        producer_id, epoch = await admin.init_producer_id(cluster, None, timeout_ms=60_000)

        async def produce_error() -> dict[TopicPartition, int]:
            return await admin.produce(cluster, {first: batch(producer_id, epoch, 0)}, timeout_ms=30_000)

        # A broker is the leader in the metadata slightly before it leads. A sequence number is accepted only once.
        await wait_for_result({first: 0}, produce_error)
        ends = await admin.list_offsets(cluster, [first, second, absent], LATEST)
        assert [ends[partition].offset for partition in (first, second)] == [1, 0]
        assert ends[absent].error == 3
        producers = await admin.describe_producers(cluster, [first, second])
        assert [
            (producer.producer_id, producer.last_sequence) for producer in producers[first].producers
        ] == [(producer_id, 0)]
        assert producers[second].producers == ()
        epochs = await admin.end_offset_for_leader_epoch(cluster, {first: 0})
        assert (epochs[first].end_offset, epochs[first].error) == (1, 0)
        assert await admin.delete_records(cluster, {first: 1}) == {first: 0}
        assert (await admin.list_offsets(cluster, [first], EARLIEST))[first].offset == 1

    on(east, test)


def test_transactions_keep_the_epoch_and_refuse_an_old_one(
    east: KafkaCluster, unique_topic: Callable[[], str]
) -> None:
    """An aborted empty transaction keeps the epoch. The next InitProducerId increases it and fences."""
    name = unique_topic()

    async def test(cluster: Cluster) -> None:
        await admin.create_topic_and_wait(cluster, admin.NewTopic(name=name, partitions=1))
        producer_id, epoch = await admin.init_producer_id(cluster, name, timeout_ms=60_000)
        for _ in range(3):
            await admin.add_partitions_to_txn(cluster, name, producer_id, epoch, [(name, 0)])
            await admin.end_txn(cluster, name, producer_id, epoch, committed=False)
        assert await admin.init_producer_id(cluster, name, timeout_ms=60_000) == (producer_id, epoch + 1)
        with pytest.raises(BrokerError) as caught:
            await admin.add_partitions_to_txn(cluster, name, producer_id, epoch, [(name, 0)])
        assert caught.value.code == 47

    on(east, test)


@pytest.mark.faults
def test_the_client_reconnects_after_all_brokers_restarted() -> None:
    """All connections and known brokers are lost. The client uses the bootstrap addresses again."""
    with KafkaCluster(name="restarted", brokers=1) as kafka:

        async def test(cluster: Cluster) -> None:
            connection = await cluster.connection(1, purpose="fetch")
            await asyncio.to_thread(kafka.broker(1).kill)
            assert isinstance(await connection.lost, ConnectionLostError)
            with pytest.raises(UnreachableError):
                await cluster.connection(1, purpose="fetch")
            refreshing = asyncio.create_task(cluster.refresh(None))
            await asyncio.to_thread(kafka.broker(1).start)
            await refreshing
            reconnected = await cluster.connection(1, purpose="fetch")
            assert reconnected.generation > connection.generation

        on(kafka, test)


@pytest.mark.faults
def test_requests_follow_a_leader_change() -> None:
    """After the leader is killed, the next leader responds with the replicated records."""
    with KafkaCluster(name="moving", brokers=3) as kafka:
        kafka.create_topic("orders", partitions=3, replication_factor=3)
        partitions = [TopicPartition("orders", number) for number in range(3)]

        async def test(cluster: Cluster) -> None:
            batches = {partition: batch(-1, -1, -1) for partition in partitions}
            await cluster.refresh(["orders"])
            assert set((await admin.produce(cluster, batches, timeout_ms=30_000)).values()) == {0}
            await asyncio.to_thread(kafka.broker(kafka.leader("orders", 0)).kill)
            ends = await admin.list_offsets(cluster, partitions, LATEST)
            assert [(ends[partition].offset, ends[partition].error) for partition in partitions] == [
                (1, 0)
            ] * 3

        on(kafka, test)


def test_tls_and_sasl_listeners_connect_or_give_the_reason() -> None:
    """Each protocol connects with Java's properties. Wrong properties cause a message that identifies the error."""
    with KafkaCluster(name="secure", listeners=("PLAINTEXT", "SSL", "SASL_SSL", "SASL_PLAINTEXT")) as kafka:

        async def test(cluster: Cluster) -> None:
            await cluster.refresh(None)
            assert cluster.cluster_id == kafka.cluster_id

        for listener in ("SSL", "SASL_SSL", "SASL_PLAINTEXT"):
            with_client(kafka.java_client(listener), test)
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            with_client(kafka.java_client("SASL_SSL", mechanism=mechanism), test)
        to_plaintext = {**kafka.java_client("SSL"), "bootstrap.servers": kafka.bootstrap_for("PLAINTEXT")}
        with pytest.raises(AuthenticationFailedError, match="plaintext"):
            with_client(to_plaintext, test)
        to_tls = {"bootstrap.servers": kafka.bootstrap_for("SSL")}
        with pytest.raises(UnreachableError, match="TLS"):
            with_client(to_tls, test)
        wrong = kafka.java_client("SASL_PLAINTEXT")
        wrong["sasl.jaas.config"] = wrong["sasl.jaas.config"].replace('password="', 'password="not-')
        with pytest.raises(AuthenticationFailedError, match="Invalid username or password") as caught:
            with_client(wrong, test)
        assert "not-" not in str(caught.value)
