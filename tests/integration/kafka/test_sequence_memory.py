"""Targets whose leaders forget a producer, or never let it have what it asks for: facts of "exactly once by sequence".

A leader drops what it remembers when the last record's *timestamp* is a day old, at a check that brokers make every ten
minutes and this one every second.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mirrorflow_core.wire.records import Record as WireRecord
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.listeners import User
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import FOREVER, load, records
from tests.integration.kafka.flows import (
    DAY_MS,
    STAGE_RECORDS,
    Flow,
    contents,
    large,
    numbered,
    write_batches,
)

pytestmark = pytest.mark.faults

STAGES = 3
SINGLE_WRITER = ("exactly-once-single-writer", "NoTransactionalId")


@pytest.fixture(scope="module")
def forgetful() -> Iterator[KafkaCluster]:
    """Forgets within a second what another broker forgets within ten minutes."""
    config = {"producer.id.expiration.check.interval.ms": "1000"}
    with KafkaCluster(name="forgetful", config=config) as cluster:
        yield cluster


@pytest.fixture
def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.fixture
def flow(east: KafkaCluster, forgetful: KafkaCluster, tmp_path: Path) -> Flow:
    return Flow.new(east, forgetful, tmp_path)


MIRROR = User(name="mirror", password="secret")


@pytest.fixture
def guarded() -> Iterator[KafkaCluster]:
    """A target that grants what MM2 needs, and no transactional id."""
    with KafkaCluster(
        name="guarded",
        authorizer=True,
        listeners=("SASL_PLAINTEXT",),
        users=(MIRROR,),
        config={"producer.id.expiration.check.interval.ms": "1000"},
    ) as cluster:
        for operation in (
            "READ",
            "WRITE",
            "CREATE",
            "DESCRIBE",
            "DESCRIBE_CONFIGS",
            "ALTER",
            "ALTER_CONFIGS",
        ):
            cluster.allow(operation, "TOPIC", "*")
        cluster.allow("DESCRIBE", "CLUSTER", "kafka-cluster")
        yield cluster


@pytest.fixture
def guarded_flow(guarded: KafkaCluster, east: KafkaCluster, tmp_path: Path) -> Flow:
    client = {
        f"target.cluster.{key}": value
        for key, value in guarded.java_client("SASL_PLAINTEXT", user=MIRROR).items()
    }
    worker = guarded.java_client("SASL_PLAINTEXT", user=MIRROR)
    return Flow.new(east, guarded, tmp_path, connector=client, worker=worker)


def test_old_records_are_copied_once_by_a_single_writer(
    guarded_flow: Flow, unique_topic: Callable[[], str], now_ms: int
):
    """Ten days old, timestamp 0, none at all, and no transactional id: forgotten while written, killed twice, and said so."""
    flow = guarded_flow
    stem = unique_topic()
    ages = {f"{stem}-days": now_ms - 10 * DAY_MS, f"{stem}-zero": 0, f"{stem}-none": -1}
    for topic in ages:
        flow.source.create_topic(topic, config=FOREVER)
    soon = {"offset.flush.interval.ms": "1000", "refresh.topics.interval.seconds": "1"}
    with flow.replicator(f"{stem}-.*", soon) as replicator:
        for stage in range(STAGES):
            for topic, timestamp in ages.items():
                write_batches(flow.source, topic, large(stage, timestamp=timestamp))
            for topic in ages:
                replicator.wait_for_copy(flow.target, flow.remote(topic), (stage + 1) * STAGE_RECORDS)
            wait_until(
                "a single writer is said",
                lambda: all(SINGLE_WRITER == guarantee(replicator.partition(topic)) for topic in ages),
            )
            wait_until("all is forgotten", lambda: all(flow.memory(topic) is None for topic in ages))
            if stage == 0:
                replicator.kill_task()
            if stage == 1:
                replicator.kill()
                replicator.start()

    for topic in ages:
        flow.assert_exact(topic)


def guarantee(said: dict[str, Any]) -> tuple[str, str]:
    return said.get("guarantee", ""), said.get("guaranteeReason", "")


def test_old_and_new_records_in_turn_are_copied_once(
    flow: Flow, unique_topic: Callable[[], str], now_ms: int
):
    """A leader that has just forgotten meets a pipeline of new records: the first of them goes alone."""
    topic = flow.source.create_topic(unique_topic(), config=FOREVER)
    for turn in range(4):
        old = [numbered(turn * 4_000 + at * 10, 10, timestamp=now_ms - 10 * DAY_MS) for at in range(20)]
        new = [numbered(turn * 4_000 + 200 + at * 10, 10, timestamp=now_ms) for at in range(200)]
        write_batches(flow.source, topic, old + new)
    with flow.replicator(topic, {"mirrorflow.bytes.per.second": "64Ki"}) as replicator:
        replicator.wait_for_copy(flow.target, flow.remote(topic), 3_000)
        replicator.kill()
        replicator.start()
        replicator.wait_for_copy(flow.target, flow.remote(topic), 4 * 2_200)
        replicator.wait_until_caught_up()
        said = replicator.partition(topic)

    flow.assert_exact(topic)
    assert "exactly-once" == said["guarantee"]


def test_a_compacted_target_remembers_us_after_kill_9_without_snapshots(
    flow: Flow, unique_topic: Callable[[], str], now_ms: int
):
    """The cleaner removes every record of ours and leaves one empty batch header: from that alone the leader knows."""
    topic = flow.source.create_topic(unique_topic())
    remote = flow.target.create_topic(
        flow.remote(topic),
        config={
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0.01",
            "max.compaction.lag.ms": "1000",
            "delete.retention.ms": "0",
            "segment.ms": "1000",
        },
    )
    write_batches(
        flow.source, topic, [numbered(at * 10, 10, timestamp=now_ms, key=b"one") for at in range(100)]
    )
    never = {"offset.flush.interval.ms": "3600000", "sync.topic.configs.enabled": "false"}
    with flow.replicator(topic, never) as replicator:
        replicator.wait_for_copy(flow.target, remote, 1_000)
        replicator.kill()
    number = iter(range(100_000, 200_000))

    def compacted() -> bool:
        # A segment is as old as its records say.
        newer = WireRecord(0, time.time_ns() // 1_000_000, b"one", b"%012d" % next(number))
        write_batches(flow.target, remote, [[newer]])
        return all((one.value or b"") >= b"%012d" % 100_000 for one in records(flow.target, remote))

    wait_until("the cleaner has taken all of ours", compacted, poll_s=1.0)
    broker = flow.target.broker(1)
    broker.kill()
    for snapshot in broker.folder.glob(f"data/{remote}-0/*.snapshot"):
        snapshot.unlink()
    broker.start()
    new = [WireRecord(0, now_ms, b"key-%d" % at, b"%012d" % at) for at in range(50)]
    write_batches(flow.source, topic, [new])
    with flow.replicator(topic, never) as replicator:
        replicator.wait_until_caught_up()

    found = contents(records(flow.target, remote))
    assert contents(records(flow.source, topic))[1_000:] == [one for one in found if one[1] != b"one"]


def test_without_a_transactional_id_a_plain_producer_id_serves(
    guarded_flow: Flow, east: KafkaCluster, unique_topic: Callable[[], str]
):
    """Nothing can be fenced then, and all else holds: kill -9, and another isolation level."""
    flow, topic = guarded_flow, east.create_topic(unique_topic())
    load(east, topic, 5_000)
    with flow.replicator(topic) as replicator:
        replicator.wait_until_caught_up()
        replicator.kill()
        load(east, topic, 1_000, first=5_000)
        replicator.start()
        replicator.wait_until_caught_up()
        assert replicator.stop() == 0
    load(east, topic, 1_000, first=6_000)
    with flow.replicator(topic, {"consumer.isolation.level": "read_committed"}) as replicator:
        replicator.wait_until_caught_up()

    flow.assert_exact(topic)
    decided = flow.decisions()
    assert ["", ""] == [
        identity.transactional_id for number in (1, 2) if (identity := decided.generation(number)) is not None
    ]


def test_strangers_behind_a_forgotten_identity_hide_nothing(
    guarded_flow: Flow, unique_topic: Callable[[], str], now_ms: int
):
    """Forgotten, and the end of the log is others': neither memory nor counting can tell, so the log is read back to ours.

    By one that knows its position, and by one that died before it wrote any. Neither may pin, or nothing would be forgotten.
    """
    flow = guarded_flow
    topic = flow.source.create_topic(unique_topic(), config=FOREVER)
    remote = flow.target.create_topic(flow.remote(topic), config=FOREVER)
    old = now_ms - 10 * DAY_MS
    never = {"offset.flush.interval.ms": "3600000"}
    for turn in range(3):
        write_batches(flow.source, topic, [numbered(turn * 1_000, 1_000, timestamp=old)])
        with flow.replicator(topic, never if turn == 1 else {}) as replicator:
            replicator.wait_until_caught_up()
            replicator.wait_for_copy(flow.target, remote, (turn + 1) * 1_000 + turn * 300)
            if turn == 1:
                replicator.kill()
            else:
                assert replicator.stop() == 0
        write_batches(flow.target, remote, [numbered(900_000 + at, 1, timestamp=now_ms) for at in range(300)])
        wait_until("all is forgotten", lambda: flow.memory(topic) is None)

    strange = b"0000009"
    found = contents(
        [one for one in records(flow.target, remote) if not (one.value or b"").startswith(strange)]
    )
    assert contents(records(flow.source, topic)) == found
    assert 3_000 == len(found)
