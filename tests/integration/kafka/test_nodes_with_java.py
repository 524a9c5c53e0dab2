"""A Java MM2 and ours, started with the same mm2.properties, in one group: they share a flow's tasks, and either leads."""

import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition

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
    "B.scheduled.rebalance.max.delay.ms": "0",  # Java's leader would wait for five minutes
}


@pytest.fixture
def clusters() -> Iterator[tuple[KafkaCluster, KafkaCluster]]:
    with KafkaCluster(name="A") as source, KafkaCluster(name="B") as target:
        source.create_topic(TOPIC, partitions=TASKS)
        yield source, target


def homes(node: Replicator) -> list[str]:
    """By worker id, who has each task that runs, as *node* says."""
    status, body = node.rest(f"/connectors/A-%3EB.{SOURCE}/status")
    tasks = body["tasks"] if status == 200 else []
    return [task["worker_id"] for task in tasks if task["state"] == "RUNNING"]


@contextmanager
def reader(
    cluster: KafkaCluster, topic: str, *, isolation: str = "read_uncommitted"
) -> Iterator[Callable[[], list[Message]]]:
    """Reads each record of a topic once; a call returns all that have arrived."""
    settings = {"group.id": "reader", "enable.auto.commit": False, "isolation.level": isolation}
    consumer = Consumer({"bootstrap.servers": cluster.internal_bootstrap, **settings})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(cluster.partition_count(topic))])
    found: list[Message] = []

    def read() -> list[Message]:
        found.extend(consumer.consume(10_000, 0.2))
        assert not [message.error() for message in found if message.error()]
        return found

    try:
        yield read
    finally:
        consumer.close()


def stored(positions: list[Message]) -> int:
    """Records up to the positions in MM2's topic, all partitions together."""
    newest = {
        message.key(): json.loads(value)["offset"] + 1
        for message in positions
        if (value := message.value()) is not None
        and (message.key() or b"").startswith(f'["{SOURCE}"'.encode())
    }
    return sum(newest.values())


def test_both_share_a_flow_and_either_leads(
    clusters: tuple[KafkaCluster, KafkaCluster], tmp_path: Path
) -> None:
    """Java comes to ours, ours is killed and comes back to a Java leader, Java is stopped: no record is lost or repeated."""
    source, target = clusters
    java = MirrorMaker(source=source, target=target, topics=TOPIC, properties=SHARED)
    ours = Replicator.mm2(java.all_properties(), folder=tmp_path)
    written = 0

    def write_and_wait(when: str) -> None:
        nonlocal written
        load(source, TOPIC, 200)
        written += 200
        # Java's tasks know of stored positions alone: what is copied since the last is copied again after kill -9.
        wait_until(f"positions are stored {when}", lambda: stored(positions()) == written)

    def wait_for_homes(when: str, count: int) -> None:
        wait_until(
            f"{count} nodes have all tasks {when}",
            lambda: len(found := homes(ours)) == TASKS and len(set(found)) == count,
        )

    with ExitStack() as stack:
        stack.enter_context(ours)
        wait_for_homes("before Java comes", 1)
        positions = stack.enter_context(reader(target, "mm2-offsets.A.internal"))
        write_and_wait("by ours")
        stack.enter_context(java)
        wait_for_homes("when Java has come", 2)
        write_and_wait("by both, ours leading")
        java.kill()
        wait_for_homes("when Java has died", 1)
        # Numbers of ours lie before Java's records in these partitions; they are no witness of what is copied.
        write_and_wait("by ours, behind Java")
        java.start()
        wait_for_homes("when Java is back", 2)
        write_and_wait("by both, ours leading still")
        ours.kill()
        write_and_wait("by Java")
        ours.start()
        wait_for_homes("when ours is back", 2)
        write_and_wait("by both, Java leading")
        java.stop()
        wait_for_homes("when Java has gone", 1)
        write_and_wait("by ours again")
        assert 0 == ours.stop()
    assert written == len(records(target, COPY))


EXACTLY = SHARED | {
    "B.exactly.once.source.support": "enabled",
    "B.mirrorflow.exactly.once.with.java": "true",
    # One partition: what a transaction that is left open hides there, it hides from all tasks.
    "B.offset.storage.partitions": "1",
}
RECORDS_PER_S = 400


@contextmanager
def stream_of_records(source: KafkaCluster) -> Iterator[list[int]]:
    """Writes records without a pause, to all partitions in turn; how many there are is the one item of the list."""
    written, over = [0], threading.Event()
    producer = Producer({"bootstrap.servers": source.bootstrap, "linger.ms": 5, "enable.idempotence": True})

    def write() -> None:
        while not over.wait(TASKS / RECORDS_PER_S):
            for partition in range(TASKS):
                producer.produce(TOPIC, str(written[0]).encode(), partition=partition)
                written[0] += 1

    writing = threading.Thread(target=write)
    writing.start()
    try:
        yield written
    finally:
        over.set()
        writing.join()
        assert producer.flush(30) == 0


def test_neither_repeats_what_the_other_has_committed(
    clusters: tuple[KafkaCluster, KafkaCluster], tmp_path: Path
) -> None:
    """Under load Java is frozen and wakes up, ours is killed, ours is frozen and wakes up, Java is killed: each record once."""
    source, target = clusters
    java = MirrorMaker(source=source, target=target, topics=TOPIC, properties=EXACTLY)
    ours = Replicator.mm2(java.all_properties(), folder=tmp_path)

    def copied() -> int:
        return sum(target.end_offsets(COPY, isolation="read_committed").values())

    def wait_for_homes(when: str, count: int) -> None:
        wait_until(
            f"{count} nodes have all tasks {when}",
            lambda: len(found := homes(ours)) == TASKS and len(set(found)) == count,
        )

    def wait_for_copies(when: str) -> None:
        """Until each partition has got on, twice: what is open is committed by then."""
        for _ in range(2):
            before = target.end_offsets(COPY, isolation="read_committed")
            wait_until(
                f"all partitions get on {when}",
                lambda before=before: all(  # type: ignore[misc]
                    end > before[partition] + 20
                    for partition, end in target.end_offsets(COPY, isolation="read_committed").items()
                ),
            )

    with ExitStack() as stack:
        stack.enter_context(ours)
        wait_for_homes("before Java comes", 1)
        with stream_of_records(source) as written:
            stack.enter_context(java)
            wait_for_homes("when Java has come", 2)
            wait_for_copies("by both")
            os.kill(java.pid, signal.SIGSTOP)
            wait_for_copies("by ours, while Java is frozen")
            os.kill(java.pid, signal.SIGCONT)
            wait_for_homes("when Java has woken up", 2)
            wait_for_copies("by both, Java a former zombie")
            ours.kill()
            wait_for_copies("by Java alone")
            ours.start()
            wait_for_homes("when ours is back", 2)
            ours.freeze()
            wait_for_copies("by Java, while ours is frozen")
            ours.thaw()
            wait_for_homes("when ours has woken up", 2)
            wait_for_copies("by both, ours a former zombie")
            java.kill()
            wait_for_copies("by ours alone")
        with reader(target, COPY, isolation="read_committed") as found:
            wait_until("all is copied", lambda: len(found()) >= written[0])
        assert ours.stop() == 0
    copies = Counter(committed(target))
    print(f"{written[0]} records, {copied()} offsets")
    assert {value: times for value, times in copies.items() if times > 1} == {}
    assert len(copies) == written[0]


def test_a_flow_goes_over_to_transactions_of_its_tasks_and_back(
    clusters: tuple[KafkaCluster, KafkaCluster], tmp_path: Path
) -> None:
    """Killed under load each time, before the first Java node comes and after the last has gone: each record once."""
    source, target = clusters
    lines = MirrorMaker(source=source, target=target, topics=TOPIC, properties=EXACTLY).all_properties()
    alone = {key: value for key, value in lines.items() if "with.java" not in key}

    def end() -> int:
        ends = target.end_offsets(COPY, isolation="read_committed") if target.has_topic(COPY) else {}
        return sum(ends.values())

    def wait_for_some(node: str) -> None:
        before = end()
        wait_until(f"{node} copies", lambda: end() > before + RECORDS_PER_S)

    with stream_of_records(source) as written:
        with Replicator.mm2(alone, folder=tmp_path / "before"):
            wait_for_some("the node before")
        with Replicator.mm2(lines, folder=tmp_path / "beside"):
            wait_for_some("the node beside Java")
    with Replicator.mm2(alone, folder=tmp_path / "last") as last:
        with reader(target, COPY, isolation="read_committed") as found:
            wait_until("all is copied", lambda: len(found()) >= written[0])
        assert last.stop() == 0
    copies = Counter(committed(target))
    assert {value: times for value, times in copies.items() if times > 1} == {}
    assert len(copies) == written[0]


def committed(target: KafkaCluster) -> list[bytes | None]:
    """The values that readers of committed records see."""
    return [record.value for record in records(target, COPY, isolation="read_committed")]
