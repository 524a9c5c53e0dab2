"""Offset syncs on real brokers: as Java MM2 writes them for the same records, and so that Java's own connector lives on ours."""

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
# Java stores positions, and with them the syncs that were not due, once a minute by default.
QUICK_FLUSH = {"offset.flush.interval.ms": "1000"}
LAG_MAX = 100
Names = Callable[[], str]
Syncs = dict[int, list[Sync]]


@pytest.fixture(scope="module")
def guarded() -> Iterator[KafkaCluster]:
    """A source that grants nothing by itself."""
    with KafkaCluster(name="guarded", listeners=("SASL_PLAINTEXT",), authorizer=True) as cluster:
        yield cluster


def syncs_of(cluster: KafkaCluster, syncs_topic: str, topic: str) -> Syncs:
    """What the syncs topic holds of *topic*, by partition and in order."""
    found: Syncs = {}
    if not cluster.has_topic(syncs_topic):
        return found
    for record in records(cluster, syncs_topic):
        assert record.partition == 0
        sync = decode_offset_sync(record.key, record.value)
        if sync.topic == topic:
            pair = Sync(sync.upstream_offset, sync.downstream_offset)
            found.setdefault(sync.partition, []).append(pair)
    return found


def lies(source: KafkaCluster, topic: str, target: KafkaCluster, copy: str) -> dict[int, dict[int, int]]:
    """Source offset -> target offset of every record, by partition."""
    pairs: dict[int, dict[int, int]] = {}
    sent, copied = records(source, topic, payload="sha256"), records(target, copy, payload="sha256")
    for one, other in zip(sent, copied, strict=True):
        assert (one.partition, one.key, one.value) == (other.partition, other.key, other.value)
        pairs.setdefault(one.partition, {})[one.offset] = other.offset
    return pairs


def wait_for_newest(
    cluster: KafkaCluster,
    syncs_topic: str,
    topic: str,
    newest: Mapping[int, int],
) -> Syncs:
    """Until the last sync of each partition is that of the record at that source offset."""

    def there() -> Syncs | None:
        found = syncs_of(cluster, syncs_topic, topic)
        last = {partition: syncs[-1].upstream_offset for partition, syncs in found.items()}
        return found if last == dict(newest) else None

    return wait_until(f"the newest syncs of {topic}", there) or {}


def translated(syncs: list[Sync], offset: int) -> int | None:
    """What a store that has read *syncs* says."""
    store, partition = OffsetSyncStore(must_read_to_end=False), TopicPartition("any", 0)
    store.mark_read_to_end()
    for sync in syncs:
        store.add(partition, sync)
    return store.translate_downstream(partition, offset)


def commit(cluster: KafkaCluster, group: str, places: list[Place]) -> None:
    """A group without members stands at *places*."""
    client = Consumer({"bootstrap.servers": cluster.internal_bootstrap, "group.id": group, "log_level": 2})
    client.commit(offsets=places, asynchronous=False)
    client.close()


def checkpoints_of(cluster: KafkaCluster, topic: str, group: str) -> dict[tuple[str, int], tuple[int, int]]:
    """The newest checkpoint of each place of *group*: upstream and downstream offset."""
    found = {}
    if cluster.has_topic(topic):
        for record in records(cluster, topic):
            one = decode_checkpoint(record.key, record.value)
            if one.group == group:
                found[one.topic, one.partition] = (one.upstream_offset, one.downstream_offset)
    return found


def write_history(source: KafkaCluster, topic: str) -> None:
    """Partition 0: a thousand records without a gap. Partition 1: transactions, some aborted, with their markers."""
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
def test_the_same_records_give_the_syncs_that_java_gives(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Names, tmp_path: Path, lag_max: int
) -> None:
    """Both say the truth of every record they speak of, begin with the first one and end with the last one.

    What lies between depends in Java on how many requests are in flight; it never says what is not due.
    """
    topic = east.create_topic(unique_topic(), partitions=2)
    write_history(east, topic)
    java_settings = {
        f"{east.name}->{west.name}.offset.lag.max": str(lag_max),
        f"{west.name}.offset.flush.interval.ms": "1000",
    }
    with MirrorMaker(source=east, target=west, topics=topic, properties=java_settings) as java:
        java.wait_until_replicated(topic, 1_200)
        true_of_java = lies(east, topic, west, java.remote(topic))
        newest = {partition: max(pairs) for partition, pairs in true_of_java.items()}
        by_java = wait_for_newest(east, f"mm2-offset-syncs.{west.name}.internal", topic, newest)
        java.stop()
    connector = {
        "source.cluster.alias": topic.upper(),
        "target.cluster.alias": topic,
        "offset.lag.max": str(lag_max),
        **QUICK_FLUSH,
    }
    with Replicator.standalone(east, west, topics=topic, folder=tmp_path, connector=connector) as ours:
        ours.wait_until_caught_up(partitions=2)
        by_us = wait_for_newest(east, f"mm2-offset-syncs.{topic}.internal", topic, newest)
        written = sum(len(syncs) for syncs in by_us.values())
        sample = f'target="{topic}"}} {written}\n'
        # A task reports its figures once a second.
        wait_until(
            f"the metric says {written}",
            lambda: sample in ours.metrics().partition("mirrorflow_offset_syncs_total{")[2],
        )
    true_of_us = lies(east, topic, west, f"{topic.upper()}.{topic}")

    for syncs, true in ((by_java, true_of_java), (by_us, true_of_us)):
        for partition, pairs in syncs.items():
            assert all(true[partition][one.upstream_offset] == one.downstream_offset for one in pairs)
            assert pairs == sorted(pairs), "no step back makes a reader forget"
    assert {0: 0, 1: 0} == {partition: ours_[0].upstream_offset for partition, ours_ in by_us.items()}
    if lag_max:
        # Java drops syncs beside ten requests in flight, on a busy machine also the first. The first that it has is one of ours.
        for partition, written_by_java in by_java.items():
            assert written_by_java[0].upstream_offset in {one.upstream_offset for one in by_us[partition]}
        due = set(range(0, 1_000, LAG_MAX + 1))
        assert due <= {one.upstream_offset for one in by_us[0]}
    for group in (0, 1, 500, 998, 999, 1_000):
        told = translated(by_us[0], group)
        assert told is not None
        assert 0 <= told <= group
    assert translated(by_us[0], 1_000) == 1_000


def test_java_translates_by_our_syncs_and_we_and_java_write_them_in_turns(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """Java's MirrorCheckpointConnector translates groups as our own store does, from syncs that only we have written."""
    topic = east.create_topic(unique_topic(), partitions=2)
    group, syncs_topic, checkpoints_topic = (
        f"group-{topic}",
        f"mm2-offset-syncs.{west.name}.internal",
        (f"{east.name}.checkpoints.internal"),
    )
    write_history(east, topic)
    ours = Replicator.standalone(east, west, topics=topic, folder=tmp_path, connector=QUICK_FLUSH)
    with ours:
        ours.wait_until_caught_up(partitions=2)
        assert ours.stop() == 0
    true = lies(east, topic, west, f"{east.name}.{topic}")
    ends = {partition: max(pairs) for partition, pairs in true.items()}
    by_us = wait_for_newest(east, syncs_topic, topic, ends)
    commit(east, group, [Place(topic, 0, 500), Place(topic, 1, ends[1] + 1)])

    settings = {
        f"{east.name}->{west.name}.emit.checkpoints.interval.seconds": "1",
        f"{east.name}->{west.name}.refresh.groups.interval.seconds": "1",
        f"{west.name}.offset.flush.interval.ms": "1000",
    }
    expected = {
        (f"{east.name}.{topic}", 0): (500, translated(by_us[0], 500)),
        (f"{east.name}.{topic}", 1): (ends[1] + 1, true[1][ends[1]] + 1),
    }
    with MirrorMaker(source=east, target=west, topics=topic, properties=settings) as java:
        wait_until(
            "Java's checkpoints",
            lambda: checkpoints_of(west, checkpoints_topic, group) == expected,
            poll_s=0.5,
        )
        load(east, topic, 10, keys=True, partition=0)
        by_java = wait_for_newest(east, syncs_topic, topic, {0: 1_009, 1: ends[1]})
        java.stop()
    load(east, topic, 10, keys=True, partition=0)
    with ours:
        ours.wait_until_caught_up(partitions=2)
        after = wait_for_newest(east, syncs_topic, topic, {0: 1_019, 1: ends[1]})
    true = lies(east, topic, west, f"{east.name}.{topic}")

    assert by_java[0][: len(by_us[0])] == by_us[0]
    assert after[0][: len(by_java[0])] == by_java[0]
    assert all(true[0][one.upstream_offset] == one.downstream_offset for one in after[0])
    assert after[0] == sorted(after[0])


def test_syncs_go_on_after_a_kill_and_nothing_is_left_out(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """What the killed process had not written yet is written by the next one, though no record comes any more."""
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
        wait_for_newest(east, syncs_topic, topic, {0: 101})
        first.kill()

    with Replicator.standalone(
        east, west, topics=topic, folder=tmp_path / "b", connector=connector | QUICK_FLUSH
    ) as second:
        second.wait_until_caught_up()
        found = wait_for_newest(east, syncs_topic, topic, {0: 149})
        load(east, topic, 1, keys=True)
        found = wait_for_newest(east, syncs_topic, topic, {0: 150})

    true = lies(east, topic, west, f"{topic.upper()}.{topic}")
    assert all(true[0][one.upstream_offset] == one.downstream_offset for one in found[0])


@pytest.mark.parametrize("location", ["source", "target"])
def test_the_topic_is_made_where_it_is_wanted_as_java_makes_it(
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
    home, name = (east, other) if location == "source" else (west, alias)
    away, absent = (west, alias) if location == "source" else (east, other)
    with Replicator.standalone(east, west, topics=topic, folder=tmp_path, connector=connector) as ours:
        found = wait_for_newest(home, f"mm2-offset-syncs.{name}.internal", topic, {0: 9})
        assert "not written" not in status(ours)

    assert found[0] == [Sync(0, 0), Sync(9, 9)]
    assert home.topics()[f"mm2-offset-syncs.{name}.internal"] == 1
    assert home.topic_config(f"mm2-offset-syncs.{name}.internal")["cleanup.policy"] == "compact"
    assert not away.has_topic(f"mm2-offset-syncs.{absent}.internal")


def test_switched_off_no_topic_is_made(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    topic = east.create_topic(unique_topic())
    load(east, topic, 10, keys=True)
    aliases = {"source.cluster.alias": topic.upper(), "target.cluster.alias": topic}
    replicator = Replicator.standalone(east, west, topics=topic, folder=tmp_path, connector=aliases)
    process, connector = (dict(lines) for lines in replicator.files if not isinstance(lines, str))
    del connector["offset-syncs.topic.replication.factor"]
    replicator.files = (process, connector | {"emit.offset-syncs.enabled": "false"})
    with replicator as ours:
        ours.wait_until_caught_up()
        assert ours.stop() == 0

    assert not east.has_topic(f"mm2-offset-syncs.{topic}.internal")


def test_a_topic_that_may_not_be_written_is_named_and_costs_no_record_and_granted_it_is_written(
    guarded: KafkaCluster, west: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """A source that grants only reading: the flow copies, and says what is missing until it is there."""
    topic = guarded.create_topic(unique_topic())
    alias, syncs_topic = topic.upper(), f"mm2-offset-syncs.{topic}.internal"
    load(guarded, topic, 300, keys=True)
    allow_source(guarded, topic)
    connector = {
        "source.cluster.alias": alias,
        "target.cluster.alias": topic,
        **lines("source", guarded),
        **QUICK_FLUSH,
    }
    with Replicator.standalone(guarded, west, topics=topic, folder=tmp_path, connector=connector) as ours:
        ours.wait_until_caught_up()
        sentence = f"Offset syncs are not written to topic {syncs_topic} of {alias}"
        wait_until("REST names it", lambda: sentence in status(ours))
        wait_until("the log names it", lambda: sentence in ours.log_text())
        assert f"does not authorize Create on topic {syncs_topic}" in status(ours)
        assert f"does not authorize Write on topic {syncs_topic}" in status(ours)
        load(guarded, topic, 300, keys=True)
        ours.wait_until_caught_up()
        assert 'mirrorflow_errors_total{connector="MirrorSourceConnector"' in ours.metrics()
        for operation in ("CREATE", "WRITE", "DESCRIBE"):
            guarded.allow(operation, "TOPIC", syncs_topic)
        found = wait_for_newest(guarded, syncs_topic, topic, {0: 599})
        wait_until("nothing is missing", lambda: sentence not in status(ours))
        assert ours.stop() == 0

    assert found[0][0] == Sync(0, 0), "what was due meanwhile was not forgotten"
