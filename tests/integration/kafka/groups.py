"""Consumer groups for tests, by clients that are not ours: librdkafka commits and consumes, Java translates."""

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.installation import java_command, write_properties
from tests.harness.kafka.processes import HarnessError, wait_until
from tests.harness.kafka.tool_service import run_alone
from tests.harness.kafka.tools import records

GROUP_WAIT_S = 120.0
Offsets = Mapping[tuple[str, int], int]


def put_group(
    cluster: KafkaCluster,
    group: str,
    offsets: Offsets,
    *,
    metadata: Mapping[tuple[str, int], str] | None = None,
) -> None:
    """As `kafka-consumer-groups --reset-offsets` does with a group without members, which it makes if need be.

    By a consumer that joins nothing: librdkafka's admin client dies of a coordinator that is not there yet.
    """
    given = metadata or {}
    # By librdkafka even "" is a byte of metadata.
    wanted = [
        TopicPartition(*key, offset, metadata=given[key]) if key in given else TopicPartition(*key, offset)
        for key, offset in offsets.items()
    ]
    with _alone(cluster, group) as consumer:

        def put() -> bool:
            try:
                answered = consumer.commit(offsets=wanted, asynchronous=False)
            except KafkaException:
                return False  # the first group of a cluster makes the offsets topic
            return all(one.error is None for one in answered)

        wait_until(f"{group} stands at {offsets}", put)


def group_offsets(cluster: KafkaCluster, group: str) -> dict[tuple[str, int], int]:
    """What the group has committed."""
    return {key: offset for key, (offset, _) in group_commits(cluster, group).items()}


def group_commits(cluster: KafkaCluster, group: str) -> dict[tuple[str, int], tuple[int, str]]:
    """The offsets that the group has committed, with their metadata."""
    every = [
        TopicPartition(topic, partition)
        for topic, partitions in cluster.topics().items()
        if not topic.startswith("__")
        for partition in range(partitions)
    ]
    with _alone(cluster, group) as consumer:

        def committed() -> list[TopicPartition] | None:
            try:
                return list(consumer.committed(every, timeout=GROUP_WAIT_S))
            except KafkaException:
                return None  # the first group of a cluster makes the offsets topic, and its coordinator moves

        found = wait_until(f"the offsets of {group}", committed) if every else []
    assert found is not None
    return {(one.topic, one.partition): (one.offset, one.metadata or "") for one in found if one.offset >= 0}


@contextmanager
def _alone(cluster: KafkaCluster, group: str) -> Iterator[Consumer]:
    consumer = Consumer(
        {"bootstrap.servers": cluster.internal_bootstrap, "group.id": group, "enable.auto.commit": False}
    )
    try:
        yield consumer
    finally:
        consumer.close()


def member(cluster: KafkaCluster, group: str, topic: str, **more: str | int | bool) -> Consumer:
    """A consumer that subscribes to *topic*; it fails where it would have to begin by a reset policy."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.internal_bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 500,
            **more,
        }
    )
    consumer.subscribe([topic])
    return consumer


def consume(cluster: KafkaCluster, group: str, topic: str) -> list[tuple[int, int, bytes]]:
    """What a consumer of *group* gets until the end of *topic*: partition, offset, value. It commits nothing."""
    # Behind the last record there may be markers.
    ends = {one.partition: one.offset + 1 for one in records(cluster, topic)}
    start = group_offsets(cluster, group)
    open_ = {part for part, end in ends.items() if start[topic, part] < end}
    consumer = member(cluster, group, topic)
    found: list[tuple[int, int, bytes]] = []

    def read() -> bool:
        message = consumer.poll(0.2)
        if message is not None:
            if message.error():
                raise HarnessError(str(message.error()))
            found.append((message.partition(), message.offset(), message.value()))
            if message.offset() + 1 >= ends[message.partition()]:
                open_.discard(message.partition())
        return not open_

    try:
        wait_until(f"{group} has read {topic}", read, poll_s=0)
    finally:
        consumer.close()
    return sorted(found)


def translated_by_java(cluster: KafkaCluster, alias: str, group: str) -> dict[tuple[str, int], int]:
    """RemoteClusterUtils.translateOffsets on *cluster* for a group of *alias*."""
    folder = cluster.home
    client = write_properties(
        folder / f"translate-{alias}-{group}.properties", cluster.java_client("INTERNAL")
    )
    command = java_command(
        "TranslateOffsets",
        f"client={client}",
        f"alias={alias}",
        f"group={group}",
        log=folder / "translate.log",
    )
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise HarnessError(f"TranslateOffsets failed:\n{done.stderr[-2000:]}")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {(line["topic"], line["partition"]): line["offset"] for line in lines}


def put_other_group(cluster: KafkaCluster, kind: str, group: str, topic: str) -> str:
    """Makes a group of *kind* share or streams by a Java client that joins and leaves; its type as the cluster reports it."""
    stem = cluster.home / f"other-{kind}-{group}"
    client = write_properties(stem.with_suffix(".properties"), cluster.java_client("INTERNAL"))
    arguments = [f"client={client}", f"kind={kind}", f"group={group}", f"topic={topic}"]
    return run_alone("OtherGroup", arguments, log=stem.with_suffix(".log")).strip()
