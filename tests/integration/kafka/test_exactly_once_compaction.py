"""Exactly-once with compacted topics on either side and kill -9.

Both sides end with the same value of each key, and no copied record is repeated. Values are unique unless a test states
otherwise.
"""

import struct
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import crc32c
import pytest

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire.records import Record as WireRecord
from mirrorflow_core.wire.records import encode
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.client.cluster import Cluster
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.compaction import (
    COMPACTED,
    QUICK_CLEANER,
    ROLL_KEY,
    force_compaction,
    roll_segment,
    wait_until_cleaned,
)
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import load, records
from tests.integration.kafka.flows import (
    Flow,
    call_cluster,
    contents,
    now_ms,
    numbered,
    wait_for_outcome,
    write_batches,
)

pytestmark = pytest.mark.more

# The copy keeps its own settings, and positions are stored as rarely as possible.
ALONE = {"sync.topic.configs.enabled": "false", "offset.flush.interval.ms": "3600000"}
KEYS = 50
MANY, MANY_PER_BATCH = 1_100_000, 10_000
ZSTD = 4


@pytest.fixture(scope="module")
def compacting() -> Iterator[KafkaCluster]:
    """A cluster whose log cleaner runs ten times a second."""
    with KafkaCluster(name="tidy", config=QUICK_CLEANER) as cluster:
        yield cluster


def keyed(first: int, count: int, *, keys: int = KEYS) -> list[list[WireRecord]]:
    """Returns batches of records whose value is their number and whose key is one of *keys*."""
    now = now_ms()
    return [
        [
            WireRecord(0, now, b"key-%d" % (number % keys), b"%012d" % number)
            for number in range(begin, begin + 20)
        ]
        for begin in range(first, first + count, 20)
    ]


def last_values(topic_contents: list[tuple[object, ...]]) -> dict[object, tuple[object, ...]]:
    return {content[1]: content for content in topic_contents if content[1] != ROLL_KEY}


def assert_copied_once(flow: Flow, topic: str) -> None:
    """Asserts the rules of this module while the copying process still runs."""
    flow.wait_until_committed(topic)
    sent = contents(records(flow.source, topic))
    copied = contents(records(flow.target, flow.remote(topic), isolation="read_committed"))
    assert last_values(sent) == last_values(copied)
    assert {} == {content: count for content, count in Counter(copied).items() if count > 1}
    both = set(sent) & set(copied)
    assert [content for content in sent if content in both] == [
        content for content in copied if content in both
    ]


def test_a_copy_that_was_compacted_before_a_restart_continues(
    east: KafkaCluster, compacting: KafkaCluster, unique_topic: Callable[[], str], tmp_path: Path
):
    """The target no longer has most copied records, so they cannot be compared with the source one by one."""
    flow = Flow.new(east, compacting, tmp_path, connector=ALONE)
    topic = east.create_topic(unique_topic(), config={"cleanup.policy": "compact"})
    remote = compacting.create_topic(flow.remote(topic), config=COMPACTED)
    write_batches(east, topic, keyed(0, 2_000))
    with flow.replicator(topic) as replicator:
        replicator.wait_until_caught_up()
        roll_segment(east, topic)
        replicator.wait_until_caught_up()
        wait_until_cleaned(compacting, remote, 2_000)
        replicator.kill()
        remaining = len(records(compacting, remote))
        write_batches(east, topic, keyed(2_000, 500))
        replicator.start()
        outcome = wait_for_outcome(replicator, topic, 2_501)
        assert "copying" == outcome["phase"], outcome["message"]
        assert_copied_once(flow, topic)

    assert remaining < 2_000


def test_a_duplicate_of_a_copied_record_is_copied_when_it_is_the_last_of_its_key(
    compacting: KafkaCluster, west: KafkaCluster, unique_topic: Callable[[], str], tmp_path: Path
):
    """The values A and B are copied.

    Then A is written again with the same timestamp, and compaction keeps only this record.
    """
    flow = Flow.new(compacting, west, tmp_path, connector=ALONE)
    topic = compacting.create_topic(unique_topic(), config=COMPACTED)
    west.create_topic(flow.remote(topic))
    now = now_ms()
    a, b = (WireRecord(0, now, b"key", value) for value in (b"a", b"b"))
    write_batches(compacting, topic, [[a, b]])
    with flow.replicator(topic) as replicator:
        replicator.wait_until_caught_up()
        replicator.kill()
        write_batches(compacting, topic, [[a]])
        force_compaction(compacting, topic)
        remaining = records(compacting, topic)
        replicator.start()
        replicator.wait_until_caught_up()
        flow.wait_until_committed(topic)

    assert [(b"key", b"a", 2), (ROLL_KEY, b"", 3)] == [
        (record.key, record.value, record.offset) for record in remaining
    ]
    assert last_values(contents(remaining)) == last_values(
        contents(records(west, flow.remote(topic), isolation="read_committed"))
    )


def test_a_source_with_gaps_of_an_earlier_compaction_is_copied_completely(
    compacting: KafkaCluster, west: KafkaCluster, unique_topic: Callable[[], str], tmp_path: Path
):
    """Compaction has removed copied records and left gaps. The current `cleanup.policy` does not show this."""
    flow = Flow.new(compacting, west, tmp_path, connector=ALONE)
    topic = compacting.create_topic(unique_topic(), config=COMPACTED)
    west.create_topic(flow.remote(topic))
    write_batches(compacting, topic, keyed(0, 1_000))
    with flow.replicator(topic) as replicator:
        replicator.wait_until_caught_up()
        replicator.kill()
        write_batches(compacting, topic, keyed(1_000, 1_500, keys=10_000))
        force_compaction(compacting, topic)
        compacting.alter_topic(topic, {"cleanup.policy": "delete"})
        remaining = len(records(compacting, topic))
        replicator.start()
        replicator.wait_until_caught_up()
        assert_copied_once(flow, topic)

    assert 50 + 1_500 + 1 == remaining


def write_many(cluster: KafkaCluster, topic: str) -> None:
    """Writes MANY records in batches of MANY_PER_BATCH. Each batch has the same records with new timestamps."""
    now = now_ms()
    keys = [WireRecord(0, now, b"%d" % number, b"") for number in range(MANY_PER_BATCH)]
    batch = encode(keys, codec=ZSTD, producer_id=-1, producer_epoch=-1, base_sequence=-1)

    async def write(connected: Cluster) -> None:
        await connected.refresh([topic])
        for number in range(MANY // MANY_PER_BATCH):
            struct.pack_into(">qq", batch, 27, now + number, now + number)  # base and max timestamp
            struct.pack_into(">I", batch, 17, crc32c.crc32c(bytes(batch[21:])))
            error_codes = await admin.produce(connected, {TopicPartition(topic, 0): batch}, timeout_ms=30_000)
            assert not any(error_codes.values()), error_codes

    call_cluster(cluster, write)


def test_a_first_copy_killed_after_a_million_records_continues(flow: Flow, unique_topic: Callable[[], str]):
    """A million records are copied in the first seconds.

    For a compacted source, the number of records does not prove progress.
    """
    flow.connector = ALONE
    topic = flow.source.create_topic(unique_topic(), config={"cleanup.policy": "compact"})
    write_many(flow.source, topic)
    with flow.replicator(topic) as replicator:
        replicator.wait_for_copy(flow.target, flow.remote(topic), MANY)
        replicator.kill()
        load(flow.source, topic, 1_000, keys=True)
        replicator.start()
        outcome = wait_for_outcome(replicator, topic, MANY + 1_000)
        assert "copying" == outcome["phase"], outcome["message"]
        flow.assert_committed(topic)


@pytest.mark.faults
def test_a_target_emptied_after_the_last_position_follows_the_loss_policy(
    east: KafkaCluster, compacting: KafkaCluster, unique_topic: Callable[[], str], tmp_path: Path
):
    """After kill -9, neither the target's log nor its restarted leader shows what was copied."""
    topic = east.create_topic(unique_topic(), config={"cleanup.policy": "compact"})
    write_batches(east, topic, keyed(0, 500))
    flows = {
        policy: Flow.new(
            east, compacting, tmp_path, connector={**ALONE, "mirrorflow.source.loss.policy": policy}
        )
        for policy in ("fail", "alert", "restart")
    }
    for flow in flows.values():
        compacting.create_topic(flow.remote(topic))
    with ExitStack() as stack:
        running = {policy: stack.enter_context(flow.replicator(topic)) for policy, flow in flows.items()}
        for policy, replicator in running.items():
            replicator.wait_until_caught_up()
            replicator.kill()
            compacting.delete_records(flows[policy].remote(topic), {0: 500})
        compacting.broker(1).stop()
        compacting.broker(1).start()
        write_batches(east, topic, keyed(500, 200))
        for replicator in running.values():
            replicator.start()
        outcomes = {
            policy: wait_for_outcome(replicator, topic, 700) for policy, replicator in running.items()
        }
        losses = {policy: running[policy].progress()["losses"] for policy in ("alert", "restart")}
        for policy in losses:
            flows[policy].wait_until_committed(topic)

    sent = contents(records(east, topic))
    copied = {
        policy: contents(records(compacting, flow.remote(topic), isolation="read_committed"))
        for policy, flow in flows.items()
    }
    assert ("stopped", "TargetDataLost") == (outcomes["fail"]["phase"], outcomes["fail"]["reason"])
    assert [] == copied["fail"]
    assert {"alert": "copying", "restart": "copying"} == {
        policy: outcomes[policy]["phase"] for policy in losses
    }
    assert {"alert": 1, "restart": 1} == losses
    # The target has new records once, after the records copied since the last stored position.
    assert copied["alert"][-200:] == sent[500:]
    assert copied["alert"] == sent[len(sent) - len(copied["alert"]) :]
    assert copied["restart"] == sent


@pytest.mark.faults
def test_a_compacted_target_is_continued_after_kill_9_of_both_sides(
    east: KafkaCluster, compacting: KafkaCluster, unique_topic: Callable[[], str], tmp_path: Path
):
    """The cleaner removes the flow's records and leaves one empty batch header.

    The broker loses its producer snapshots.
    """
    flow = Flow.new(east, compacting, tmp_path, connector=ALONE)
    topic = east.create_topic(unique_topic())
    remote = compacting.create_topic(flow.remote(topic), config=COMPACTED)
    now = now_ms()
    write_batches(
        east, topic, [numbered(number * 10, 10, timestamp=now, key=b"one") for number in range(100)]
    )
    with flow.replicator(topic) as replicator:
        replicator.wait_for_copy(compacting, remote, 1_000)
        replicator.kill()
    numbers = iter(range(100_000, 200_000))

    def compacted() -> bool:
        # A segment's age is that of its latest record.
        newer = WireRecord(0, now_ms(), b"one", b"%012d" % next(numbers))
        write_batches(compacting, remote, [[newer]])
        return all((record.value or b"") >= b"%012d" % 100_000 for record in records(compacting, remote))

    wait_until("the cleaner has removed all copied records", compacted, poll_s=1.0)
    broker = compacting.broker(1)
    broker.kill()
    for snapshot in broker.folder.glob(f"data/{remote}-0/*.snapshot"):
        snapshot.unlink()
    broker.start()
    new = [WireRecord(0, now, b"key-%d" % number, b"%012d" % number) for number in range(50)]
    write_batches(east, topic, [new])
    with flow.replicator(topic) as replicator:
        replicator.wait_until_caught_up()
        flow.wait_until_committed(topic)

    copied = contents(records(compacting, remote, isolation="read_committed"))
    assert contents(records(east, topic))[1_000:] == [record for record in copied if record[1] != b"one"]
