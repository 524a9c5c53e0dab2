"""Kafka 3.9 as source or target, and messages with magic 0 and 1, which only old brokers have written."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka.record.legacy_records import LegacyRecordBatchBuilder

from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.installation import OLD_VERSION
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import FOREVER, load, records
from tests.harness.replicator import Replicator
from tests.integration.kafka.comparing import assert_copied, contents
from tests.integration.kafka.groups import group_offsets, put_group, translated_by_java


@pytest.fixture(scope="module")
def old() -> Iterator[KafkaCluster]:
    """One 3.9 broker, used as source and as target."""
    with KafkaCluster(name="old", version=OLD_VERSION) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def new_cluster() -> Iterator[KafkaCluster]:
    """Provides a cluster of its own, because every other flow would copy heartbeats that remain on the shared one."""
    with KafkaCluster(name="young") as cluster:
        yield cluster


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_an_old_source_is_copied(old: KafkaCluster, west: KafkaCluster, tmp_path: Path, codec: str) -> None:
    """The source is Kafka 3.9 and the target is 4.3. Aborted transactions are not copied."""
    topic = old.create_topic(f"from-old-{codec}", partitions=2)
    load(old, topic, 1000, codec=codec, keys=True, headers=3, null_every=5)
    load(old, topic, 300, codec=codec, keys=True, first=1000, transactional_id=topic, abort_every=2)

    with Replicator.standalone(
        old,
        west,
        topics=topic,
        folder=tmp_path,
        connector={
            "source.cluster.alias": f"old-{codec}",
            "source.consumer.isolation.level": "read_committed",
        },
    ) as replicator:
        replicator.wait_until_caught_up(partitions=2)

    assert_copied(old, topic, west, f"old-{codec}.{topic}", isolation="read_committed")


def test_an_old_target_is_filled(east: KafkaCluster, old: KafkaCluster, tmp_path: Path) -> None:
    """The source is Kafka 4.3 and the target is 3.9. The flow is killed in between, and nothing is lost or repeated."""
    topic = east.create_topic("to-old", partitions=2)
    load(east, topic, 20_000, codec="lz4", keys=True, headers=3, null_every=5)

    with Replicator.standalone(east, old, topics=topic, folder=tmp_path) as replicator:
        replicator.wait_for_copy(old, "east.to-old", 1)
        replicator.kill()
        replicator.start()
        replicator.wait_until_caught_up(partitions=2)
        load(east, topic, 1000, codec="zstd", keys=True, first=20_000)
        replicator.wait_until_caught_up(partitions=2)

    assert_copied(east, topic, old, "east.to-old", count=21_000)


def old_messages(magic: int, codec: int, first: int, count: int, timestamp: int) -> bytes:
    """Returns a message set in the format of producers of Kafka 0.9 and 0.10, with the offsets that a broker assigns."""
    builder = LegacyRecordBatchBuilder(magic=magic, compression_type=codec, batch_size=1 << 20)
    for i in range(count):
        value = None if i % 5 == 4 else b"value-%d" % (first + i)
        builder.append(
            offset=first + i if magic == 0 or codec == 0 else i,
            timestamp=timestamp + i,
            key=b"%d" % i,
            value=value,
        )
    data = bytearray(builder.build())
    if codec:
        # The offset of a wrapper is that of its last message.
        data[0:8] = (first + count - 1).to_bytes(8, "big")
    return bytes(data)


def test_messages_of_old_formats_are_copied(old: KafkaCluster, west: KafkaCluster, tmp_path: Path) -> None:
    """The messages have magic 0 and 1, plain and compressed, in a segment that an upgraded broker has kept.

    Consumers of both topics receive the same records.
    """
    topic = old.create_topic("ancient", config=FOREVER)
    load(old, topic, 1)
    old.broker(1).stop()
    log = Path(old.home) / "1" / "data" / f"{topic}-0"
    now_ms = time.time_ns() // 1_000_000
    offset, written = 0, bytearray()
    for magic, codec in ((0, 0), (0, 1), (1, 0), (1, 1), (1, 0)):
        written += old_messages(magic, codec, offset, 20, now_ms - 100_000 + offset)
        offset += 20
    for file in log.iterdir():
        if (
            file.suffix in {".log", ".index", ".timeindex", ".snapshot", ".txnindex"}
            or "checkpoint" in file.name
        ):
            file.unlink()
    (log / "00000000000000000000.log").write_bytes(written)
    (log.parent / ".kafka_cleanshutdown").unlink(missing_ok=True)
    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        (log.parent / name).unlink(missing_ok=True)
    old.broker(1).start()
    load(old, topic, 10, first=offset)

    with Replicator.standalone(
        old, west, topics=topic, folder=tmp_path, connector={"source.cluster.alias": "ancient"}
    ) as replicator:
        replicator.wait_until_caught_up()
        status = replicator.partition(topic)

    expected = contents(records(old, topic))
    assert len(expected) == offset + 10
    assert expected == contents(records(west, f"ancient.{topic}"))
    assert status["batches"]["reencoded"] > 0


@pytest.mark.parametrize("end", ["source", "target"])
def test_groups_and_heartbeats_are_replicated_to_and_from_an_old_cluster(
    old: KafkaCluster, new_cluster: KafkaCluster, tmp_path: Path, end: str
) -> None:
    """One cluster has Kafka 3.9.

    Offset syncs are on the source, the group is translated, and heartbeats are on both clusters.
    """
    source, target = (old, new_cluster) if end == "source" else (new_cluster, old)
    topic = source.create_topic(f"groups-{end}")
    group, alias = f"g-old-{end}", f"o{end}"
    load(source, topic, 300, keys=True)
    put_group(source, group, {(topic, 0): 300})
    process = Replicator.standalone(
        source, target, topics=topic, folder=tmp_path, connector={"source.cluster.alias": alias}
    )
    worker, lines = process.files
    assert isinstance(lines, dict)
    lines |= {"offset.lag.max": "10", "target.cluster.alias": f"t{end}"}
    checkpoint = lines | {
        "name": "MirrorCheckpointConnector",
        "connector.class": "MirrorCheckpointConnector",
        "checkpoints.topic.replication.factor": "1",
        "refresh.groups.interval.seconds": "1",
        "emit.checkpoints.interval.seconds": "1",
        "sync.group.offsets.enabled": "true",
        "sync.group.offsets.interval.seconds": "1",
    }
    heartbeat = lines | {
        "name": "MirrorHeartbeatConnector",
        "connector.class": "MirrorHeartbeatConnector",
        "heartbeats.topic.replication.factor": "1",
        "mirrorflow.heartbeats.emit.to": "target, source",
    }
    process.files = (worker, lines, checkpoint, heartbeat)
    copy = f"{alias}.{topic}"

    with process:
        process.wait_for_copy(target, copy, 300)
        wait_until(
            "the target's group follows the source's",
            lambda: group_offsets(target, group).get((copy, 0), -1) >= 290,
        )
        for cluster in (source, target):
            wait_until(
                "heartbeats arrive",
                lambda: cluster.has_topic("heartbeats") and records(cluster, "heartbeats"),  # noqa: B023
            )

    assert translated_by_java(target, alias, group) == group_offsets(target, group)
    assert records(source, f"mm2-offset-syncs.t{end}.internal")
