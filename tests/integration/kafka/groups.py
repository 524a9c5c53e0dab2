"""Consumer groups for tests with independent clients.

librdkafka commits and consumes, and Java translates.
"""

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
    """Sets the offsets of a group without members, like `kafka-consumer-groups --reset-offsets`, and creates the group
    if needed.

    It commits with a consumer that does not join, because librdkafka's admin client fails while the coordinator does
    not exist.
    """
    metadata_of = metadata or {}
    # librdkafka sends even "" as a byte of metadata.
    partitions = [
        TopicPartition(*key, offset, metadata=metadata_of[key])
        if key in metadata_of
        else TopicPartition(*key, offset)
        for key, offset in offsets.items()
    ]
    with _unjoined(cluster, group) as consumer:

        def put() -> bool:
            try:
                results = consumer.commit(offsets=partitions, asynchronous=False)
            except KafkaException:
                return False  # the first group of a cluster causes the creation of the offsets topic
            return all(result.error is None for result in results)

        wait_until(f"{group} is set to {offsets}", put)


def group_offsets(cluster: KafkaCluster, group: str) -> dict[tuple[str, int], int]:
    """Returns the offsets that the group has committed."""
    return {key: offset for key, (offset, _) in group_commits(cluster, group).items()}


def group_commits(cluster: KafkaCluster, group: str) -> dict[tuple[str, int], tuple[int, str]]:
    """Returns the offsets that the group has committed, with their metadata."""
    requested = [
        TopicPartition(topic, partition)
        for topic, partitions in cluster.topics().items()
        if not topic.startswith("__")
        for partition in range(partitions)
    ]
    with _unjoined(cluster, group) as consumer:

        def committed() -> list[TopicPartition] | None:
            try:
                return list(consumer.committed(requested, timeout=GROUP_WAIT_S))
            except KafkaException:
                return None  # the offsets topic is being created

        commits = wait_until(f"the offsets of {group} are read", committed) if requested else []
    assert commits is not None
    return {
        (commit.topic, commit.partition): (commit.offset, commit.metadata or "")
        for commit in commits
        if commit.offset >= 0
    }


@contextmanager
def _unjoined(cluster: KafkaCluster, group: str) -> Iterator[Consumer]:
    consumer = Consumer(
        {"bootstrap.servers": cluster.internal_bootstrap, "group.id": group, "enable.auto.commit": False}
    )
    try:
        yield consumer
    finally:
        consumer.close()


def member(cluster: KafkaCluster, group: str, topic: str, **more: str | int | bool) -> Consumer:
    """Returns a consumer that subscribes to *topic*. It fails on a partition without a committed offset."""
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
    """Consumes *topic* to its end in *group* without commits, and returns partition, offset and value of each record."""
    # Markers may follow the last record.
    ends = {record.partition: record.offset + 1 for record in records(cluster, topic)}
    start = group_offsets(cluster, group)
    open_ = {partition for partition, end in ends.items() if start[topic, partition] < end}
    consumer = member(cluster, group, topic)
    messages: list[tuple[int, int, bytes]] = []

    def read() -> bool:
        message = consumer.poll(0.2)
        if message is not None:
            if message.error():
                raise HarnessError(str(message.error()))
            messages.append((message.partition(), message.offset(), message.value()))
            if message.offset() + 1 >= ends[message.partition()]:
                open_.discard(message.partition())
        return not open_

    try:
        wait_until(f"{group} has read {topic}", read, poll_s=0)
    finally:
        consumer.close()
    return sorted(messages)


def translated_by_java(cluster: KafkaCluster, alias: str, group: str) -> dict[tuple[str, int], int]:
    """Calls RemoteClusterUtils.translateOffsets on *cluster* for a group of *alias*."""
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
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if result.returncode:
        raise HarnessError(f"TranslateOffsets failed:\n{result.stderr[-2000:]}")
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    return {(line["topic"], line["partition"]): line["offset"] for line in lines}


def put_other_group(cluster: KafkaCluster, kind: str, group: str, topic: str) -> str:
    """Creates a share or streams group (*kind*) with a Java client that joins and leaves, and returns the reported
    type.
    """
    stem = cluster.home / f"other-{kind}-{group}"
    client = write_properties(stem.with_suffix(".properties"), cluster.java_client("INTERNAL"))
    arguments = [f"client={client}", f"kind={kind}", f"group={group}", f"topic={topic}"]
    return run_alone("OtherGroup", arguments, log=stem.with_suffix(".log")).strip()
