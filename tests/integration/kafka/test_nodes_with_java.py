"""A Java MM2 and a MirrorFlow process form one group if they have the same mm2.properties.

They share tasks, and either may lead.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Message, TopicPartition

from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.mm2 import MirrorMaker
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import load, records
from tests.harness.replicator import Replicator
from tests.integration.kafka.dedicated import SOURCE

TOPIC, COPY = "orders", "A.orders"
TASKS = 4
SHARED = {
    "tasks.max": str(TASKS),
    "dedicated.mode.enable.internal.rest": "true",
    "listeners": "http://127.0.0.1:0",
    "emit.heartbeats.enabled": "false",
    "refresh.topics.interval.seconds": "1",
    "B.session.timeout.ms": "6000",
    "B.offset.flush.interval.ms": "1000",
    "B.scheduled.rebalance.max.delay.ms": "0",  # by default, Java's leader would wait for five minutes
}


@pytest.fixture
def clusters() -> Iterator[tuple[KafkaCluster, KafkaCluster]]:
    with KafkaCluster(name="A") as source, KafkaCluster(name="B") as target:
        source.create_topic(TOPIC, partitions=TASKS)
        yield source, target


def worker_ids(node: Replicator) -> list[str]:
    """Returns the worker ids of the running tasks, as *node* reports them."""
    status, body = node.rest(f"/connectors/A-%3EB.{SOURCE}/status")
    tasks = body["tasks"] if status == 200 else []
    return [task["worker_id"] for task in tasks if task["state"] == "RUNNING"]


@contextmanager
def reader(
    cluster: KafkaCluster, topic: str, *, isolation: str = "read_uncommitted"
) -> Iterator[Callable[[], list[Message]]]:
    """Yields a function that returns all records read from *topic* so far. Each record is read once."""
    settings = {"group.id": "reader", "enable.auto.commit": False, "isolation.level": isolation}
    consumer = Consumer({"bootstrap.servers": cluster.internal_bootstrap, **settings})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(cluster.partition_count(topic))])
    messages: list[Message] = []

    def read() -> list[Message]:
        messages.extend(consumer.consume(10_000, 0.2))
        assert not [message.error() for message in messages if message.error()]
        return messages

    try:
        yield read
    finally:
        consumer.close()


def stored(positions: list[Message]) -> int:
    """Returns the number of records before the stored positions in MM2's topic, over all partitions."""
    latest = {
        message.key(): json.loads(value)["offset"] + 1
        for message in positions
        if (value := message.value()) is not None
        and (message.key() or b"").startswith(f'["{SOURCE}"'.encode())
    }
    return sum(latest.values())


@pytest.mark.parametrize("internal_rest", ["true", "false"])
def test_java_and_mirrorflow_nodes_share_a_flow_and_either_leads(
    clusters: tuple[KafkaCluster, KafkaCluster], tmp_path: Path, internal_rest: str
) -> None:
    """Java joins, is killed and rejoins. MirrorFlow's process is killed and rejoins. Finally Java stops.

    No record is lost or repeated.
    """
    source, target = clusters
    java = MirrorMaker(
        source=source,
        target=target,
        topics=TOPIC,
        properties=SHARED | {"dedicated.mode.enable.internal.rest": internal_rest},
    )
    mirrorflow = Replicator.mm2(java.all_properties(), folder=tmp_path)
    written = 0

    def write_and_wait(event: str) -> None:
        nonlocal written
        load(source, TOPIC, 200)
        written += 200
        # Java's tasks continue at stored positions. After kill -9, they copy later records again.
        wait_until(f"positions are stored {event}", lambda: stored(positions()) == written)

    def wait_for_workers(event: str, count: int) -> None:
        wait_until(
            f"{count} nodes have all tasks {event}",
            lambda: len(ids := worker_ids(mirrorflow)) == TASKS and len(set(ids)) == count,
        )

    with ExitStack() as stack:
        stack.enter_context(mirrorflow)
        wait_for_workers("before Java joins", 1)
        positions = stack.enter_context(reader(target, "mm2-offsets.A.internal"))
        write_and_wait("by MirrorFlow")
        stack.enter_context(java)
        wait_for_workers("after Java has joined", 2)
        write_and_wait("by both, MirrorFlow leading")
        java.kill()
        wait_for_workers("after Java has died", 1)
        # In these partitions, MirrorFlow's sequence numbers precede Java's records, so they do not show what is copied.
        write_and_wait("by MirrorFlow, after Java")
        java.start()
        wait_for_workers("after Java has rejoined", 2)
        write_and_wait("by both, MirrorFlow still leading")
        mirrorflow.kill()
        write_and_wait("by Java")
        mirrorflow.start()
        wait_for_workers("after MirrorFlow has rejoined", 2)
        write_and_wait("by both, Java leading")
        java.stop()
        wait_for_workers("after Java has left", 1)
        write_and_wait("by MirrorFlow again")
        assert 0 == mirrorflow.stop()
    assert written == len(records(target, COPY))
