"""Offset syncs on real brokers equal those of Java's MM2, and Java's own connector can use them."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Place

from mirrorflow_core.connect.mirror_records import decode_checkpoint, decode_offset_sync
from mirrorflow_core.offsets.offset_syncs import OffsetSyncStore, Sync
from mirrorflow_core.partitions import TopicPartition
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.mm2 import MirrorMaker
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import load, records
from tests.harness.replicator import Replicator
from tests.integration.kafka.test_failures_access import allow_source, lines, status

pytestmark = pytest.mark.more

SYNCS_WAIT_S = 120.0
# By default, positions are stored once a minute, together with the syncs that were not due.
QUICK_FLUSH = {"offset.flush.interval.ms": "1000"}
LAG_MAX = 100
Names = Callable[[], str]
Syncs = dict[int, list[Sync]]


@pytest.fixture(scope="module")
def secured() -> Iterator[KafkaCluster]:
    """A source that grants nothing by default."""
    with KafkaCluster(name="guarded", listeners=("SASL_PLAINTEXT",), authorizer=True) as cluster:
        yield cluster


def syncs_of(cluster: KafkaCluster, syncs_topic: str, topic: str) -> Syncs:
    """Returns the syncs of *topic* in the syncs topic, by partition and in order."""
    syncs: Syncs = {}
    if not cluster.has_topic(syncs_topic):
        return syncs
    for record in records(cluster, syncs_topic):
        assert record.partition == 0
        sync = decode_offset_sync(record.key, record.value)
        if sync.topic == topic:
            pair = Sync(sync.upstream_offset, sync.downstream_offset)
            syncs.setdefault(sync.partition, []).append(pair)
    return syncs


def offset_pairs(
    source: KafkaCluster, topic: str, target: KafkaCluster, copy: str
) -> dict[int, dict[int, int]]:
    """Returns the target offset of the source offset of every record, by partition."""
    pairs: dict[int, dict[int, int]] = {}
    sent, copied = records(source, topic, payload="sha256"), records(target, copy, payload="sha256")
    for sent_record, copied_record in zip(sent, copied, strict=True):
        assert (sent_record.partition, sent_record.key, sent_record.value) == (
            copied_record.partition,
            copied_record.key,
            copied_record.value,
        )
        pairs.setdefault(sent_record.partition, {})[sent_record.offset] = copied_record.offset
    return pairs


def wait_for_latest(
    cluster: KafkaCluster,
    syncs_topic: str,
    topic: str,
    expected: Mapping[int, int],
) -> Syncs:
    """Waits until the last sync of each partition is that of the record at that source offset."""

    def complete_syncs() -> Syncs | None:
        by_partition = syncs_of(cluster, syncs_topic, topic)
        last = {partition: syncs[-1].upstream_offset for partition, syncs in by_partition.items()}
        return by_partition if last == dict(expected) else None

    return wait_until(f"the expected syncs of {topic} are written", complete_syncs) or {}


def translated(syncs: list[Sync], offset: int) -> int | None:
    """Returns the target offset to which a store with *syncs* translates *offset*."""
    store, partition = OffsetSyncStore(must_read_to_end=False), TopicPartition("any", 0)
    store.mark_read_to_end()
    for sync in syncs:
        store.add(partition, sync)
    return store.translate_downstream(partition, offset)


def commit(cluster: KafkaCluster, group: str, offsets: list[Place]) -> None:
    """Commits *offsets* for a group without members."""
    client = Consumer({"bootstrap.servers": cluster.internal_bootstrap, "group.id": group, "log_level": 2})
    client.commit(offsets=offsets, asynchronous=False)
    client.close()


def checkpoints_of(cluster: KafkaCluster, topic: str, group: str) -> dict[tuple[str, int], tuple[int, int]]:
    """Returns upstream and downstream offset of the latest checkpoint of each partition of *group*."""
    checkpoints = {}
    if cluster.has_topic(topic):
        for record in records(cluster, topic):
            checkpoint = decode_checkpoint(record.key, record.value)
            if checkpoint.group == group:
                checkpoints[checkpoint.topic, checkpoint.partition] = (
                    checkpoint.upstream_offset,
                    checkpoint.downstream_offset,
                )
    return checkpoints


def write_history(source: KafkaCluster, topic: str) -> None:
    """Writes a thousand records without a gap to partition 0.

    Partition 1 gets transactions with markers, some of them aborted.
    """
    load(source, topic, 1_000, keys=True, partition=0)
    load(
        source,
        topic,
        200,
        keys=True,
        partition=1,
        transactional_id=topic,
        transaction_records=10,
        abort_every=3,
    )


@pytest.mark.parametrize("lag_max", [0, LAG_MAX])
def test_syncs_agree_with_those_of_java(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Names, tmp_path: Path, lag_max: int
) -> None:
    """Each sync is true for its record. The first and the last sync are those of the first and the last record.

    In Java, the syncs in between depend on how many requests are in flight, and a sync that is not due is never
    written.
    """
    topic = east.create_topic(unique_topic(), partitions=2)
    write_history(east, topic)
    java_settings = {
        f"{east.name}->{west.name}.offset.lag.max": str(lag_max),
        f"{west.name}.offset.flush.interval.ms": "1000",
    }
    with MirrorMaker(source=east, target=west, topics=topic, properties=java_settings) as java:
        java.wait_until_replicated(topic, 1_200)
        true_of_java = offset_pairs(east, topic, west, java.remote(topic))
        last_offsets = {partition: max(pairs) for partition, pairs in true_of_java.items()}
        by_java = wait_for_latest(east, f"mm2-offset-syncs.{west.name}.internal", topic, last_offsets)
        java.stop()
    connector = {
        "source.cluster.alias": topic.upper(),
        "target.cluster.alias": topic,
        "offset.lag.max": str(lag_max),
        **QUICK_FLUSH,
    }
    with Replicator.standalone(east, west, topics=topic, folder=tmp_path, connector=connector) as mirrorflow:
        mirrorflow.wait_until_caught_up(partitions=2)
        by_mirrorflow = wait_for_latest(east, f"mm2-offset-syncs.{topic}.internal", topic, last_offsets)
        written = sum(len(syncs) for syncs in by_mirrorflow.values())
        sample = f'target="{topic}"}} {written}\n'
        # A task reports its figures once a second.
        wait_until(
            f"the metric has {written}",
            lambda: sample in mirrorflow.metrics().partition("mirrorflow_offset_syncs_total{")[2],
        )
    true_of_mirrorflow = offset_pairs(east, topic, west, f"{topic.upper()}.{topic}")

    for syncs, true_pairs in ((by_java, true_of_java), (by_mirrorflow, true_of_mirrorflow)):
        for partition, pairs in syncs.items():
            assert all(
                true_pairs[partition][sync.upstream_offset] == sync.downstream_offset for sync in pairs
            )
            assert pairs == sorted(pairs), "a backward step would make a reader discard syncs"
    assert {0: 0, 1: 0} == {partition: syncs[0].upstream_offset for partition, syncs in by_mirrorflow.items()}
    if lag_max:
        # With ten requests in flight, Java drops syncs, possibly the first one. Java's first sync is always one of
        # MirrorFlow's.
        for partition, written_by_java in by_java.items():
            assert written_by_java[0].upstream_offset in {
                sync.upstream_offset for sync in by_mirrorflow[partition]
            }
        due = set(range(0, 1_000, LAG_MAX + 1))
        assert due <= {sync.upstream_offset for sync in by_mirrorflow[0]}
    for group in (0, 1, 500, 998, 999, 1_000):
        offset = translated(by_mirrorflow[0], group)
        assert offset is not None
        assert 0 <= offset <= group
    assert translated(by_mirrorflow[0], 1_000) == 1_000


def test_java_and_mirrorflow_translate_and_continue_each_others_syncs(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """Java's MirrorCheckpointConnector translates groups like MirrorFlow's store.

    The syncs were all written by MirrorFlow.
    """
    topic = east.create_topic(unique_topic(), partitions=2)
    group, syncs_topic, checkpoints_topic = (
        f"group-{topic}",
        f"mm2-offset-syncs.{west.name}.internal",
        (f"{east.name}.checkpoints.internal"),
    )
    write_history(east, topic)
    mirrorflow = Replicator.standalone(east, west, topics=topic, folder=tmp_path, connector=QUICK_FLUSH)
    with mirrorflow:
        mirrorflow.wait_until_caught_up(partitions=2)
        assert mirrorflow.stop() == 0
    true_pairs = offset_pairs(east, topic, west, f"{east.name}.{topic}")
    ends = {partition: max(pairs) for partition, pairs in true_pairs.items()}
    by_mirrorflow = wait_for_latest(east, syncs_topic, topic, ends)
    commit(east, group, [Place(topic, 0, 500), Place(topic, 1, ends[1] + 1)])

    settings = {
        f"{east.name}->{west.name}.emit.checkpoints.interval.seconds": "1",
        f"{east.name}->{west.name}.refresh.groups.interval.seconds": "1",
        f"{west.name}.offset.flush.interval.ms": "1000",
    }
    expected = {
        (f"{east.name}.{topic}", 0): (500, translated(by_mirrorflow[0], 500)),
        (f"{east.name}.{topic}", 1): (ends[1] + 1, true_pairs[1][ends[1]] + 1),
    }
    with MirrorMaker(source=east, target=west, topics=topic, properties=settings) as java:
        wait_until(
            "Java's checkpoints are as expected",
            lambda: checkpoints_of(west, checkpoints_topic, group) == expected,
            poll_s=0.5,
        )
        load(east, topic, 10, keys=True, partition=0)
        by_java = wait_for_latest(east, syncs_topic, topic, {0: 1_009, 1: ends[1]})
        java.stop()
    load(east, topic, 10, keys=True, partition=0)
    with mirrorflow:
        mirrorflow.wait_until_caught_up(partitions=2)
        after = wait_for_latest(east, syncs_topic, topic, {0: 1_019, 1: ends[1]})
    true_pairs = offset_pairs(east, topic, west, f"{east.name}.{topic}")

    assert by_java[0][: len(by_mirrorflow[0])] == by_mirrorflow[0]
    assert after[0][: len(by_java[0])] == by_java[0]
    assert all(true_pairs[0][sync.upstream_offset] == sync.downstream_offset for sync in after[0])
    assert after[0] == sorted(after[0])


def test_syncs_that_a_killed_process_did_not_write_are_written_by_the_next(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """The next process writes them even if no new record arrives."""
    topic = east.create_topic(unique_topic())
    load(east, topic, 150, keys=True)
    connector = {
        "source.cluster.alias": topic.upper(),
        "target.cluster.alias": topic,
        "offset.flush.interval.ms": "600000",
    }
    syncs_topic = f"mm2-offset-syncs.{topic}.internal"
    first = Replicator.standalone(east, west, topics=topic, folder=tmp_path / "a", connector=connector)
    with first:
        first.wait_until_caught_up()
        wait_for_latest(east, syncs_topic, topic, {0: 101})
        first.kill()

    with Replicator.standalone(
        east, west, topics=topic, folder=tmp_path / "b", connector=connector | QUICK_FLUSH
    ) as second:
        second.wait_until_caught_up()
        syncs = wait_for_latest(east, syncs_topic, topic, {0: 149})
        load(east, topic, 1, keys=True)
        syncs = wait_for_latest(east, syncs_topic, topic, {0: 150})

    true_pairs = offset_pairs(east, topic, west, f"{topic.upper()}.{topic}")
    assert all(true_pairs[0][sync.upstream_offset] == sync.downstream_offset for sync in syncs[0])


@pytest.mark.parametrize("location", ["source", "target"])
def test_the_syncs_topic_is_created_as_by_java_on_the_configured_side(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Names, tmp_path: Path, location: str
) -> None:
    topic = east.create_topic(unique_topic())
    load(east, topic, 10, keys=True)
    alias, other = topic.upper(), f"{topic}-target"
    connector = {
        "source.cluster.alias": alias,
        "target.cluster.alias": other,
        "offset-syncs.topic.location": location,
        **QUICK_FLUSH,
    }
    location_cluster, name = (east, other) if location == "source" else (west, alias)
    other_cluster, absent = (west, alias) if location == "source" else (east, other)
    with Replicator.standalone(east, west, topics=topic, folder=tmp_path, connector=connector) as mirrorflow:
        syncs = wait_for_latest(location_cluster, f"mm2-offset-syncs.{name}.internal", topic, {0: 9})
        assert "not written" not in status(mirrorflow)

    assert syncs[0] == [Sync(0, 0), Sync(9, 9)]
    assert location_cluster.topics()[f"mm2-offset-syncs.{name}.internal"] == 1
    assert location_cluster.topic_config(f"mm2-offset-syncs.{name}.internal")["cleanup.policy"] == "compact"
    assert not other_cluster.has_topic(f"mm2-offset-syncs.{absent}.internal")


def test_disabled_offset_syncs_create_no_topic(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    topic = east.create_topic(unique_topic())
    load(east, topic, 10, keys=True)
    aliases = {"source.cluster.alias": topic.upper(), "target.cluster.alias": topic}
    replicator = Replicator.standalone(east, west, topics=topic, folder=tmp_path, connector=aliases)
    process, connector = (dict(lines) for lines in replicator.files if not isinstance(lines, str))
    del connector["offset-syncs.topic.replication.factor"]
    replicator.files = (process, connector | {"emit.offset-syncs.enabled": "false"})
    with replicator as mirrorflow:
        mirrorflow.wait_until_caught_up()
        assert mirrorflow.stop() == 0

    assert not east.has_topic(f"mm2-offset-syncs.{topic}.internal")


def test_a_syncs_topic_without_permission_is_reported_and_written_once_granted(
    secured: KafkaCluster, west: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """The source grants only reading.

    All records are copied, and the missing permission is reported until it is granted.
    """
    topic = secured.create_topic(unique_topic())
    alias, syncs_topic = topic.upper(), f"mm2-offset-syncs.{topic}.internal"
    load(secured, topic, 300, keys=True)
    allow_source(secured, topic)
    connector = {
        "source.cluster.alias": alias,
        "target.cluster.alias": topic,
        **lines("source", secured),
        **QUICK_FLUSH,
    }
    with Replicator.standalone(
        secured, west, topics=topic, folder=tmp_path, connector=connector
    ) as mirrorflow:
        mirrorflow.wait_until_caught_up()
        message = f"Offset syncs are not written to topic {syncs_topic} of {alias}"
        wait_until("REST reports the topic", lambda: message in status(mirrorflow))
        wait_until("the log reports the topic", lambda: message in mirrorflow.log_text())
        assert f"does not authorize Create on topic {syncs_topic}" in status(mirrorflow)
        assert f"does not authorize Write on topic {syncs_topic}" in status(mirrorflow)
        load(secured, topic, 300, keys=True)
        mirrorflow.wait_until_caught_up()
        assert 'mirrorflow_errors_total{connector="MirrorSourceConnector"' in mirrorflow.metrics()
        for operation in ("CREATE", "WRITE", "DESCRIBE"):
            secured.allow(operation, "TOPIC", syncs_topic)
        syncs = wait_for_latest(secured, syncs_topic, topic, {0: 599})
        wait_until("nothing is reported any more", lambda: message not in status(mirrorflow))
        assert mirrorflow.stop() == 0

    assert syncs[0][0] == Sync(0, 0), "syncs that were due before are written"
