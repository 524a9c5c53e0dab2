"""Records that a leader has appended and that a replica lacks count when a switchover checks whether a cluster is
quiet.

Such a record is acknowledged when the replica returns or has left the ISR. That is up to broker.session.timeout.ms or
replica.lag.time.max.ms later, and even if a fence was set in the meantime.
"""

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.switchover.observation import PartitionEnd
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_requests import LATEST
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


def test_a_partition_with_an_unreplicated_record_is_not_quiet(
    trio: KafkaCluster, unique_topic: Callable[[], str]
):
    topic = trio.create_topic(unique_topic(), replication_factor=3)
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
