"""What a batch cannot be copied as: transactions, compacted topics, the broker's own time, batches that begin too early."""

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition

from tests.harness.kafka import tools
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import load, records
from tests.harness.replicator import Replicator
from tests.integration.kafka.comparing import Content, assert_copied, contents

# The copy of a compacted topic would be compacted as well, under the eyes of the comparison.
NOT_COMPACTED = "cleanup\\.policy, segment\\..*, message\\.timestamp\\.type"

Names = Callable[[], str]


def copy(
    east: KafkaCluster, west: KafkaCluster, topic: str, folder: Path, **connector: str
) -> dict[str, dict[str, int]]:
    """Copy *topic* to `copy_of` it by a flow of its own; what was said of partition 0. *connector* has _ for dots."""
    lines = {"source.cluster.alias": alias(topic)} | {
        key.replace("_", "."): v for key, v in connector.items()
    }
    with Replicator.standalone(east, west, topics=topic, folder=folder, connector=lines) as replicator:
        replicator.wait_until_caught_up()
        said = replicator.partition(topic)
        assert replicator.stop() == 0
    return said


def alias(topic: str) -> str:
    return topic.upper()


def copy_of(topic: str) -> str:
    return f"{alias(topic)}.{topic}"


def test_all_but_markers_is_copied_of_transactions(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """By default a flow reads uncommitted, as MM2 does: aborted records are copied too, markers are not."""
    topic = east.create_topic(unique_topic(), partitions=2)
    load(
        east, topic, 2000, keys=True, headers=2, transactional_id=topic, abort_every=3, transaction_records=50
    )

    copy(east, west, topic, tmp_path)

    assert_copied(east, topic, west, copy_of(topic), count=2000)
    # Copied records count for every reader: their transactions are the source's affair.
    assert tools.digest(west, copy_of(topic), isolation="read_committed") == tools.digest(
        west, copy_of(topic)
    )


def test_aborted_records_are_left_out_with_read_committed(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """With read_committed the copy is what a committed reader sees, and stops before a transaction that is open."""
    topic = east.create_topic(unique_topic(), partitions=2)
    written = load(
        east,
        topic,
        3000,
        codec="lz4",
        keys=True,
        transactional_id=topic,
        abort_every=3,
        transaction_records=50,
    )
    load(east, topic, 500, keys=True, first=3000)
    load(
        east,
        topic,
        100,
        first=3500,
        transactional_id=f"{topic}-open",
        leave_open=True,
        transaction_records=100,
    )
    load(east, topic, 50, keys=True, first=3600)

    copy(east, west, topic, tmp_path, source_consumer_isolation_level="read_committed")

    assert written.aborted > 0
    assert_copied(east, topic, west, copy_of(topic), isolation="read_committed", count=3500 - written.aborted)

    # A producer of the same id aborts what was left open; then the rest is copied.
    load(east, topic, 100, first=3700, transactional_id=f"{topic}-open", transaction_records=100)
    copy(east, west, topic, tmp_path, source_consumer_isolation_level="read_committed")

    assert_copied(east, topic, west, copy_of(topic), isolation="read_committed", count=3650 - written.aborted)


def seen(cluster: KafkaCluster, topic: str) -> int:
    """How many records a consumer of partition 0 finds now."""
    consumer = Consumer({"bootstrap.servers": cluster.internal_bootstrap, "group.id": "-", "log_level": 2})
    try:
        end = cluster.end_offsets(topic)[0]
        consumer.assign([TopicPartition(topic, 0, 0)])
        count = 0
        while True:
            messages = consumer.consume(10_000, timeout=5)
            count += len(messages)
            if not messages or messages[-1].offset() >= end - 1:
                return count
    finally:
        consumer.close()


def test_a_compacted_topic_is_copied_with_its_gaps_closed(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """What the cleaner has left, tombstones with a delete horizon among it, arrives in order, timestamps kept."""
    topic = east.create_topic(
        unique_topic(),
        config={
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0.01",
            "min.compaction.lag.ms": "0",
            "segment.bytes": "1048576",
            "segment.ms": "1000",
        },
    )
    for codec, size_bytes in (("none", 100), ("zstd", 150)):
        load(east, topic, 4000, codec=codec, size_bytes=size_bytes, keys=True, batch_bytes=4000)
    # Some keys again, many of them as tombstones.
    load(east, topic, 1500, keys=True, first=700, null_every=3, headers=2)

    def cleaned() -> bool:
        # Another record rolls the segment, so that everything before it can be cleaned.
        load_one(east, topic)
        return seen(east, topic) < 5000

    wait_until("the cleaner has been here", cleaned, poll_s=1.0)
    # From here on it stays as it is.
    before = settled(east, topic)

    said = copy(east, west, topic, tmp_path, config_properties_exclude=NOT_COMPACTED)

    assert contents(before) == contents(records(west, copy_of(topic)))
    assert any(one.value is None for one in before)
    assert before[-1].offset >= len(before)
    assert said["batches"]["reencoded"] > 0


def load_one(cluster: KafkaCluster, topic: str) -> None:
    load(cluster, topic, 1, keys=True, first=1_000_000)


def settled(cluster: KafkaCluster, topic: str) -> list[tools.Record]:
    """Its records once two looks have shown the same."""
    found: list[list[tools.Record]] = [records(cluster, topic)]

    def same() -> bool:
        found.append(records(cluster, topic))
        return found[-1] == found[-2]

    wait_until("the cleaner has nothing more to do", same, poll_s=1.0)
    return found[-1]


def test_the_time_that_a_source_broker_gave_is_kept(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """LogAppendTime at the source: the copy's records have those times, as CreateTime."""
    topic = east.create_topic(unique_topic(), config={"message.timestamp.type": "LogAppendTime"})
    load(
        east,
        topic,
        1000,
        codec="snappy",
        keys=True,
        headers=3,
        timestamp_ms=int(time.time() * 1000) - 9_000_000,
    )

    said = copy(east, west, topic, tmp_path)

    copied = records(west, copy_of(topic))
    original = records(east, topic)
    assert contents(original) == contents(copied)
    assert {"LogAppendTime"} == {one.timestamp_type for one in original}
    assert {"CreateTime"} == {one.timestamp_type for one in copied}
    assert said["batches"]["raw"] == 0


def test_a_target_may_give_its_own_time(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """LogAppendTime at the target: everything but the times is the source's, and offsets go on without a resync."""
    topic = east.create_topic(unique_topic())
    west.create_topic(copy_of(topic), config={"message.timestamp.type": "LogAppendTime"})
    load(east, topic, 1000, keys=True, headers=3)
    copy(east, west, topic, tmp_path)
    load(east, topic, 1000, keys=True, first=1000)

    copy(east, west, topic, tmp_path)

    copied = records(west, copy_of(topic))
    assert {"LogAppendTime"} == {one.timestamp_type for one in copied}
    assert timeless(records(east, topic)) == timeless(copied)


def timeless(found: list[tools.Record]) -> list[Content]:
    return contents([dataclasses.replace(one, timestamp=0) for one in found])


def test_a_target_may_compress_again(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """With compression.type at the target topic its broker writes the batches anew; the records are the source's."""
    topic = east.create_topic(unique_topic())
    west.create_topic(copy_of(topic), config={"compression.type": "gzip"})
    load(east, topic, 1000, codec="zstd", keys=True, headers=3)
    load(east, topic, 1000, codec="none", keys=True, first=1000)

    copy(east, west, topic, tmp_path, sync_topic_configs_enabled="false")

    assert west.topic_config(copy_of(topic))["compression.type"] == "gzip"
    assert_copied(east, topic, west, copy_of(topic), count=2000)


def test_small_batches_of_a_backlog_are_put_together(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """Single-record batches of a backlog become large ones, counted, and their records are the same."""
    topic = east.create_topic(unique_topic(), partitions=2)
    load(east, topic, 6000, size_bytes=200, keys=True, headers=1, null_every=9, single_record_batches=True)

    said = copy(east, west, topic, tmp_path)

    assert_copied(east, topic, west, copy_of(topic), count=6000)
    assert said["batches"]["coalesced"] > 1000


def test_a_copy_begins_in_the_middle_of_a_batch(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """Started from a moment within a batch, the copy begins with that record, not with the batch's first."""
    topic = east.create_topic(unique_topic())
    began_ms = int(time.time() * 1000) - 3_600_000
    load(
        east,
        topic,
        1000,
        codec="lz4",
        keys=True,
        batch_bytes=1_000_000,
        linger_ms=1000,
        timestamp_ms=began_ms,
        timestamp_step_ms=10,
    )

    said = copy(east, west, topic, tmp_path, mirrorflow_start_from=f"timestamp:{began_ms + 3333}")

    expected = [one for one in contents(records(east, topic)) if one[1] >= began_ms + 3333]
    assert expected == contents(records(west, copy_of(topic)))
    assert len(expected) == 666
    assert said["batches"]["reencoded"] == 1
