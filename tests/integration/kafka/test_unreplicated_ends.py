"""Records that a leader has appended and that a replica lacks count when a switchover checks whether a cluster is
quiet, or copied.

Such a record is acknowledged when the replica returns or has left the ISR. That is up to broker.session.timeout.ms or
replica.lag.time.max.ms later, and even if a fence was set in the meantime. A fetch of it returns nothing and no error,
as from a new leader that does not know yet how far its predecessor served the log.
"""

import asyncio
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer

from mirrorflow_core.errors import BrokerError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.switchover.observation import PartitionEnd
from mirrorflow_core.wire.error_codes import OFFSET_NOT_AVAILABLE
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_reader import batches_between, read_once
from mirrorflow_kafka.admin.log_requests import LATEST
from mirrorflow_kafka.admin.transaction_log_reader import read_batches
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.switchover.quiescence import read_ends
from tests.harness.kafka.broker import Broker
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.installation import OLD_VERSION, VERSION
from tests.harness.kafka.processes import wait_until
from tests.integration.kafka.flows import call_cluster

# Longer than the test, so that the frozen replica stays in the ISR until it resumes.
PATIENT = {
    "broker.session.timeout.ms": "60000",
    "replica.lag.time.max.ms": "60000",
    "min.insync.replicas": "1",
}

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module", params=[VERSION, OLD_VERSION])
def trio(request: pytest.FixtureRequest) -> Iterator[KafkaCluster]:
    with KafkaCluster(name="trio", brokers=3, version=request.param, config=PATIENT) as cluster:
        yield cluster


def is_controller(node: Broker) -> bool:
    """Returns whether *node* is the active controller.

    Another controller would let the frozen broker leave the ISR.
    """
    return "controller activation" in node.log.read_text()


def replicated_topic(trio: KafkaCluster, name: str) -> str:
    """Creates the topic *name* with three replicas that are in sync: a broker that was frozen before may return late."""
    topic = trio.create_topic(name, replication_factor=3)

    def is_in_sync() -> bool:
        return len(trio.admin.list_topics(topic).topics[topic].partitions[0].isrs) == 3

    wait_until("all replicas are in sync", is_in_sync, poll_s=0.2)
    return topic


def test_a_partition_with_an_unreplicated_record_is_not_quiet(
    trio: KafkaCluster, unique_topic: Callable[[], str]
):
    topic = replicated_topic(trio, unique_topic())
    partition, leader = TopicPartition(topic, 0), trio.leader(topic, 0)
    acknowledged: list[object] = []
    producer = Producer({"bootstrap.servers": trio.bootstrap, "acks": "all", "linger.ms": 0})
    producer.produce(topic, b"replicated")
    producer.flush(30)
    follower = next(
        number for number, node in trio.nodes.items() if number != leader and not is_controller(node)
    )
    bootstrap = f"127.0.0.1:{trio.broker(leader).admin_port}"
    trio.broker(follower).freeze()
    try:
        producer.produce(topic, b"waits", on_delivery=lambda error, _: acknowledged.append(error))

        def ends() -> PartitionEnd:
            producer.poll(0)
            return call_cluster(trio, lambda cluster: read_ends(cluster, [partition]), bootstrap=bootstrap)[
                partition
            ]

        wait_until("the record is appended", lambda: ends().end == 2, poll_s=0.2)
        seen = ends()
        watermark = call_cluster(
            trio, lambda cluster: admin.offsets_at(cluster, [partition], LATEST), bootstrap=bootstrap
        )
        assert (1, 1, []) == (seen.last_stable, watermark[partition], acknowledged)
    finally:
        trio.broker(follower).thaw()
    producer.flush(60)
    assert [None] == acknowledged
    wait_until("it is replicated", lambda: ends().last_stable == 2, poll_s=0.2)


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_a_range_with_an_unreplicated_record_is_read_when_the_record_is_replicated(
    trio: KafkaCluster, unique_topic: Callable[[], str], isolation: str
):
    topic = replicated_topic(trio, unique_topic())
    partition, leader = TopicPartition(topic, 0), trio.leader(topic, 0)
    producer = Producer({"bootstrap.servers": trio.bootstrap, "acks": "all", "linger.ms": 0})
    producer.produce(topic, b"replicated")
    producer.flush(30)
    follower = next(
        number for number, node in trio.nodes.items() if number != leader and not is_controller(node)
    )
    read_committed = isolation == "read_committed"

    async def read(cluster: Cluster) -> tuple[int, int, list[int], list[int]]:
        # Before the freeze: a request for metadata may go to the frozen broker.
        await cluster.refresh([topic])
        await read_ends(cluster, [partition])
        await read_once(cluster, partition, 0)
        trio.broker(follower).freeze()
        producer.produce(topic, b"waits")
        while (await read_ends(cluster, [partition]))[partition].end < 2:
            producer.poll(0.1)
        fetched = await read_once(cluster, partition, 1, read_committed=read_committed)
        assert (fetched.error, bytes(fetched.records)) == (0, b"")
        served = fetched.last_stable_offset if read_committed else fetched.high_watermark
        batches = batches_between(cluster, partition, 0, 2, read_committed=read_committed, unserved_max_s=0.0)
        unserved: list[int] = []

        async def read_on() -> None:
            async for batch, _ in batches:
                unserved.append(batch.base_offset)

        with pytest.raises(BrokerError) as raised:
            await read_on()
        waiting = asyncio.create_task(read_batches(cluster, partition, 0, 2))
        await asyncio.sleep(0.5)
        assert not waiting.done()
        trio.broker(follower).thaw()
        return served, raised.value.code, unserved, [batch.base_offset for batch in await waiting]

    try:
        bootstrap = f"127.0.0.1:{trio.broker(leader).admin_port}"
        assert (1, OFFSET_NOT_AVAILABLE, [0], [0, 1]) == call_cluster(trio, read, bootstrap=bootstrap)
    finally:
        trio.broker(follower).thaw()
    producer.flush(60)
