"""Large batches, large records and a rate limit.

Batches are larger than a fetch or than the target's limit.
"""

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

from mirrorflow_core.wire.codecs import ZSTD
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import load
from tests.harness.replicator import Replicator
from tests.integration.kafka.comparing import assert_copied, produce
from tests.integration.kafka.flows import Flow, padded, write_batches

LARGE_BYTES = 12 << 20
LARGE_LIMITS = {"max.message.bytes": str(LARGE_BYTES)}
# Keeps the limits that a test sets on the copy.
OWN_LIMITS = {"sync.topic.configs.enabled": "false", "config.properties.exclude": "max\\.message\\.bytes"}

Names = Callable[[], str]


def flow(
    east: KafkaCluster, west: KafkaCluster, topics: str, alias: str, folder: Path, **connector: str
) -> Replicator:
    """Returns a flow with *alias*. *connector* has underscores instead of dots."""
    lines = OWN_LIMITS | {"source.cluster.alias": alias}
    lines |= {key.replace("_", "."): value for key, value in connector.items()}
    return Replicator.standalone(east, west, topics=topics, folder=folder, connector=lines)


def set_limit(cluster: KafkaCluster, topic: str, size_bytes: int) -> None:
    """Alters the topic's max.message.bytes."""
    entry = ConfigEntry("max.message.bytes", str(size_bytes), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    cluster.admin.incremental_alter_configs([resource])[resource].result(30)


def test_batches_larger_than_a_fetch_are_copied_unchanged(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """Records have 8 MB and batches 10 MB. The limits are raised on both clusters."""
    topic = east.create_topic(unique_topic(), config=LARGE_LIMITS)
    west.create_topic(f"large.{topic}", config=LARGE_LIMITS)
    sizes = [8_000_000] * 3 + [500_000] * 40
    now_ms = time.time_ns() // 1_000_000
    noise = random.Random(1)
    written: list[tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]] = [
        (0, now_ms, b"key", noise.randbytes(size), []) for size in sizes
    ]
    limit = str(LARGE_BYTES)
    produce(east, topic, written, {"message.max.bytes": limit, "batch.size": limit, "linger.ms": "300"})
    load(east, topic, 100, first=43)

    with flow(east, west, topic, "large", tmp_path) as replicator:
        replicator.wait_until_caught_up()
        status = replicator.partition(topic)

    assert_copied(east, topic, west, f"large.{topic}", count=143)
    assert (status["batches"]["reencoded"], status["reason"]) == (0, "")


def test_batches_larger_than_the_targets_limit_are_split(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """A target topic with a lower limit receives the same records in smaller batches."""
    topic = east.create_topic(unique_topic())
    west.create_topic(f"split.{topic}", config={"max.message.bytes": "20000"})
    load(east, topic, 2000, size_bytes=500, keys=True, headers=2, batch_bytes=300_000, codec="none")
    load(east, topic, 2000, first=2000, size_bytes=900, content="random", batch_bytes=300_000, codec="lz4")

    with flow(east, west, topic, "split", tmp_path) as replicator:
        replicator.wait_until_caught_up()
        status = replicator.partition(topic)

    assert_copied(east, topic, west, f"split.{topic}", count=4000)
    assert status["batches"]["reencoded"] > 0


@pytest.mark.more
def test_a_record_larger_than_the_targets_limit_stops_its_partition_until_the_limit_is_raised(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """Status, progress and metrics report it, and other partitions continue.

    With a higher limit, the partition continues by itself.
    """
    topic = east.create_topic(unique_topic(), partitions=2)
    west.create_topic(f"toolarge.{topic}", partitions=2, config={"max.message.bytes": "20000"})
    load(east, topic, 100, partition=0, keys=True)
    load(east, topic, 1, partition=0, size_bytes=50_000, content="random", first=100)
    load(east, topic, 100, partition=0, keys=True, first=101)
    load(east, topic, 1000, partition=1, keys=True)

    with flow(east, west, topic, "toolarge", tmp_path) as replicator:
        status = replicator.wait_for_phase("stopped", topic)
        assert (status["reason"], status["sourceOffset"]) == ("RecordTooLarge", 100)
        assert f"raise max.message.bytes of toolarge.{topic}" in status["message"]
        assert ("RecordTooLarge", 1) in [
            (entry["reason"], entry["count"]) for entry in replicator.progress()["reasons"]
        ]
        assert "RecordTooLarge" in replicator.metrics()
        wait_until("the other partition is copied", lambda: replicator.partition(topic, 1)["records"] == 1000)
        load(east, topic, 10, partition=1, keys=True, first=1000)
        wait_until("the other partition continues", lambda: replicator.partition(topic, 1)["records"] == 1010)
        assert replicator.partition(topic)["phase"] == "stopped"
        load(east, topic, 50, partition=0, keys=True, first=201)
        wait_until(
            "the lag of the stopped partition grows",
            lambda: replicator.partition(topic)["lagRecords"] == 151,
        )

        set_limit(west, f"toolarge.{topic}", 100_000)

        replicator.wait_until_caught_up(partitions=2)
        assert replicator.partition(topic)["reason"] == ""

    assert_copied(east, topic, west, f"toolarge.{topic}", count=1261)


def test_merged_batches_of_padding_are_read_by_every_client(flow: Flow, unique_topic: Names) -> None:
    """Each of the 1,500 records of 200 KiB takes 115 bytes when compressed.

    One batch of all would exceed librdkafka's limit.
    """
    topic = flow.source.create_topic(unique_topic())
    write_batches(flow.source, topic, padded(1_500, padding_bytes=200 << 10), codec=ZSTD)

    with flow.replicator(topic) as replicator:
        replicator.wait_until_caught_up()
        status = replicator.partition(topic)

    flow.assert_exact(topic)
    assert status["batches"]["coalesced"] > 0
    assert [b"%08d" % number for number in range(1_500)] == read_by_librdkafka(
        flow.target, flow.remote(topic), 1_500
    )


def read_by_librdkafka(cluster: KafkaCluster, topic: str, count: int) -> list[bytes]:
    """Returns the first 8 bytes of each value, read with librdkafka's defaults. Its first error is raised."""
    consumer = Consumer({"bootstrap.servers": cluster.internal_bootstrap, "group.id": topic, "log_level": 2})
    consumer.assign([TopicPartition(topic, 0, 0)])
    prefixes: list[bytes] = []
    try:
        while len(prefixes) < count:
            message = consumer.poll(30)
            assert message is not None, f"{len(prefixes)} of {count} read"
            assert message.error() is None, message.error()
            prefixes.append((message.value() or b"")[:8])
    finally:
        consumer.close()
    return prefixes


@pytest.mark.timing
def test_a_flow_keeps_its_bytes_per_second(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """24 MB at 2 MB/s take at least ten seconds, because less than 4 MB are copied ahead of the rate."""
    topic = east.create_topic(unique_topic(), partitions=2)
    load(east, topic, 24_000, size_bytes=1000, content="random")

    copy = f"limited.{topic}"
    began = time.monotonic()
    with flow(east, west, topic, "limited", tmp_path, mirrorflow_bytes_per_second="2000000"):
        wait_until("all records are copied", lambda: west.total_end_offset(copy) >= 24_000)
        took_s = time.monotonic() - began

    assert took_s > 10
    assert_copied(east, topic, west, copy, count=24_000)
