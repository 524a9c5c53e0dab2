"""Topics whose batches cannot be copied unchanged.

The reasons are transactions, compaction, broker timestamps, or a start inside a batch.
"""

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path

from tests.harness.kafka import tools
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import digest, load, records
from tests.harness.replicator import Replicator
from tests.integration.kafka.comparing import Content, assert_copied, contents

# The copy of a compacted topic would be compacted too, while it is compared.
NOT_COMPACTED = "cleanup\\.policy, segment\\..*, message\\.timestamp\\.type"

Names = Callable[[], str]


def copy(
    east: KafkaCluster, west: KafkaCluster, topic: str, folder: Path, **connector: str
) -> dict[str, dict[str, int]]:
    """Copies *topic* to `copy_of` the topic in its own flow, and returns the status of partition 0.

    *connector* has underscores instead of dots.
    """
    lines = {"source.cluster.alias": alias(topic)} | {
        key.replace("_", "."): value for key, value in connector.items()
    }
    with Replicator.standalone(east, west, topics=topic, folder=folder, connector=lines) as replicator:
        replicator.wait_until_caught_up()
        status = replicator.partition(topic)
        assert replicator.stop() == 0
    return status


def alias(topic: str) -> str:
    return topic.upper()


def copy_of(topic: str) -> str:
    return f"{alias(topic)}.{topic}"


def test_transactional_records_are_copied_without_markers(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """A flow reads uncommitted records by default, like MM2. Aborted records are copied too, but markers are not."""
    topic = east.create_topic(unique_topic(), partitions=2)
    load(
        east, topic, 2000, keys=True, headers=2, transactional_id=topic, abort_every=3, transaction_records=50
    )

    copy(east, west, topic, tmp_path)

    assert_copied(east, topic, west, copy_of(topic), count=2000)
    # Every reader receives the copied records, because they are not in transactions on the target.
    assert digest(west, copy_of(topic), isolation="read_committed") == digest(west, copy_of(topic))


def test_aborted_records_are_not_copied_with_read_committed(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """The copy has what a read_committed reader receives, and stops before an open transaction."""
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

    # A producer with the same id aborts the open transaction. Then the remaining records are copied.
    load(east, topic, 100, first=3700, transactional_id=f"{topic}-open", transaction_records=100)
    copy(east, west, topic, tmp_path, source_consumer_isolation_level="read_committed")

    assert_copied(east, topic, west, copy_of(topic), isolation="read_committed", count=3650 - written.aborted)


def test_a_compacted_topic_is_copied_with_its_gaps_closed(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """The cleaner leaves records, some of them tombstones with a delete horizon.

    They are copied in order with their timestamps.
    """
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
    # Writes some keys again, many of them as tombstones.
    load(east, topic, 1500, keys=True, first=700, null_every=3, headers=2)

    def cleaned() -> bool:
        # A new record rolls the segment, so that everything before it can be cleaned.
        load_one(east, topic)
        [(count, _)] = digest(east, topic).values()
        return count < 5000

    wait_until("the cleaner has removed records", cleaned, poll_s=1.0)
    # From here on, the topic does not change.
    before = settled(east, topic)

    status = copy(east, west, topic, tmp_path, config_properties_exclude=NOT_COMPACTED)

    assert contents(before) == contents(records(west, copy_of(topic)))
    assert any(record.value is None for record in before)
    assert before[-1].offset >= len(before)
    assert status["batches"]["reencoded"] > 0


def load_one(cluster: KafkaCluster, topic: str) -> None:
    load(cluster, topic, 1, keys=True, first=1_000_000)


def settled(cluster: KafkaCluster, topic: str) -> list[tools.Record]:
    """Returns the records once two reads have returned the same."""
    reads: list[list[tools.Record]] = [records(cluster, topic)]

    def is_unchanged() -> bool:
        reads.append(records(cluster, topic))
        return reads[-1] == reads[-2]

    wait_until("the cleaner has nothing more to do", is_unchanged, poll_s=1.0)
    return reads[-1]


def test_a_timestamp_set_by_the_source_broker_is_kept(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """With LogAppendTime on the source, the copy has the same timestamps as CreateTime."""
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

    status = copy(east, west, topic, tmp_path)

    copied = records(west, copy_of(topic))
    original = records(east, topic)
    assert contents(original) == contents(copied)
    assert {"LogAppendTime"} == {record.timestamp_type for record in original}
    assert {"CreateTime"} == {record.timestamp_type for record in copied}
    assert status["batches"]["raw"] == 0


def test_a_target_may_set_its_own_timestamps(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """With LogAppendTime on the target, everything but the timestamps equals the source, and no resync happens."""
    topic = east.create_topic(unique_topic())
    west.create_topic(copy_of(topic), config={"message.timestamp.type": "LogAppendTime"})
    load(east, topic, 1000, keys=True, headers=3)
    copy(east, west, topic, tmp_path)
    load(east, topic, 1000, keys=True, first=1000)

    copy(east, west, topic, tmp_path)

    copied = records(west, copy_of(topic))
    assert {"LogAppendTime"} == {record.timestamp_type for record in copied}
    assert without_timestamps(records(east, topic)) == without_timestamps(copied)


def without_timestamps(topic_records: list[tools.Record]) -> list[Content]:
    return contents([dataclasses.replace(record, timestamp=0) for record in topic_records])


def test_a_target_may_recompress_batches(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """With compression.type on the target topic, its broker rewrites the batches.

    The records equal those of the source.
    """
    topic = east.create_topic(unique_topic())
    west.create_topic(copy_of(topic), config={"compression.type": "gzip"})
    load(east, topic, 1000, codec="zstd", keys=True, headers=3)
    load(east, topic, 1000, codec="none", keys=True, first=1000)

    copy(east, west, topic, tmp_path, sync_topic_configs_enabled="false")

    assert west.topic_config(copy_of(topic))["compression.type"] == "gzip"
    assert_copied(east, topic, west, copy_of(topic), count=2000)


def test_small_batches_of_a_backlog_are_merged(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """Single-record batches of a backlog become large batches, which are counted. Their records are unchanged."""
    topic = east.create_topic(unique_topic(), partitions=2)
    load(east, topic, 6000, size_bytes=200, keys=True, headers=1, null_every=9, single_record_batches=True)

    status = copy(east, west, topic, tmp_path)

    assert_copied(east, topic, west, copy_of(topic), count=6000)
    assert status["batches"]["coalesced"] > 1000


def test_a_copy_may_begin_in_the_middle_of_a_batch(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """If the start timestamp is inside a batch, the copy begins with its record, not with the first one of the batch."""
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

    status = copy(east, west, topic, tmp_path, mirrorflow_start_from=f"timestamp:{began_ms + 3333}")

    expected = [record for record in contents(records(east, topic)) if record[1] >= began_ms + 3333]
    assert expected == contents(records(west, copy_of(topic)))
    assert len(expected) == 666
    assert status["batches"]["reencoded"] == 1
