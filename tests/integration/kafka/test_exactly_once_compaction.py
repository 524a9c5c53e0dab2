"""Compacted topics on either side, and kill -9.

What is right for them: nothing is lost, both sides end with the same value of each key, and no record that is copied once is
there twice. Values are unique unless a test says otherwise.
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

# Settings of the copy are the test's own, and positions are stored as rarely as possible.
ALONE = {"sync.topic.configs.enabled": "false", "offset.flush.interval.ms": "3600000"}
KEYS = 50
MANY, MANY_PER_BATCH = 1_100_000, 10_000
ZSTD = 4


@pytest.fixture(scope="module")
def tidy() -> Iterator[KafkaCluster]:
    """Its cleaner looks for something to clean ten times a second."""
    with KafkaCluster(name="tidy", config=QUICK_CLEANER) as cluster:
        yield cluster


def keyed(first: int, count: int, *, keys: int = KEYS) -> list[list[WireRecord]]:
    """Batches of records whose value is their number, and whose key one of *keys*."""
    now = now_ms()
    return [
        [WireRecord(0, now, b"key-%d" % (at % keys), b"%012d" % at) for at in range(begin, begin + 20)]
        for begin in range(first, first + count, 20)
    ]


def last_values(found: list[tuple[object, ...]]) -> dict[object, tuple[object, ...]]:
    return {one[1]: one for one in found if one[1] != ROLL_KEY}


def assert_copied_once(flow: Flow, topic: str) -> None:
    """As the module says, while the process that copies still runs."""
    flow.wait_until_committed(topic)
    sent = contents(records(flow.source, topic))
    found = contents(records(flow.target, flow.remote(topic), isolation="read_committed"))
    assert last_values(sent) == last_values(found)
    assert {} == {one: count for one, count in Counter(found).items() if count > 1}
    both = set(sent) & set(found)
    assert [one for one in sent if one in both] == [one for one in found if one in both]


def test_a_copy_that_was_compacted_before_the_restart_continues(
    east: KafkaCluster, tidy: KafkaCluster, unique_topic: Callable[[], str], tmp_path: Path
):
    """Most of what was copied is gone from the target, so it cannot be matched with the source one by one."""
    flow = Flow.new(east, tidy, tmp_path, connector=ALONE)
    topic = east.create_topic(unique_topic(), config={"cleanup.policy": "compact"})
    remote = tidy.create_topic(flow.remote(topic), config=COMPACTED)
    write_batches(east, topic, keyed(0, 2_000))
    with flow.replicator(topic) as replicator:
        replicator.wait_until_caught_up()
        roll_segment(east, topic)
        replicator.wait_until_caught_up()
        wait_until_cleaned(tidy, remote, 2_000)
        replicator.kill()
        left = len(records(tidy, remote))
        write_batches(east, topic, keyed(2_000, 500))
        replicator.start()
        said = wait_for_outcome(replicator, topic, 2_501)
        assert "copying" == said["phase"], said["message"]
        assert_copied_once(flow, topic)

    assert left < 2_000


def test_a_twin_of_what_was_copied_is_copied_when_it_is_the_last_of_its_key(
    tidy: KafkaCluster, west: KafkaCluster, unique_topic: Callable[[], str], tmp_path: Path
):
    """A and B are copied; then A comes again, with the same timestamp, and compaction leaves nothing else."""
    flow = Flow.new(tidy, west, tmp_path, connector=ALONE)
    topic = tidy.create_topic(unique_topic(), config=COMPACTED)
    west.create_topic(flow.remote(topic))
    now = now_ms()
    a, b = (WireRecord(0, now, b"key", value) for value in (b"a", b"b"))
    write_batches(tidy, topic, [[a, b]])
    with flow.replicator(topic) as replicator:
        replicator.wait_until_caught_up()
        replicator.kill()
        write_batches(tidy, topic, [[a]])
        force_compaction(tidy, topic)
        left = records(tidy, topic)
        replicator.start()
        replicator.wait_until_caught_up()
        flow.wait_until_committed(topic)

    assert [(b"key", b"a", 2), (ROLL_KEY, b"", 3)] == [(one.key, one.value, one.offset) for one in left]
    assert last_values(contents(left)) == last_values(
        contents(records(west, flow.remote(topic), isolation="read_committed"))
    )


def test_a_source_that_is_not_compacted_any_more_is_copied_whole(
    tidy: KafkaCluster, west: KafkaCluster, unique_topic: Callable[[], str], tmp_path: Path
):
    """Compaction has removed what was copied, and left gaps; the present `cleanup.policy` does not show that."""
    flow = Flow.new(tidy, west, tmp_path, connector=ALONE)
    topic = tidy.create_topic(unique_topic(), config=COMPACTED)
    west.create_topic(flow.remote(topic))
    write_batches(tidy, topic, keyed(0, 1_000))
    with flow.replicator(topic) as replicator:
        replicator.wait_until_caught_up()
        replicator.kill()
        write_batches(tidy, topic, keyed(1_000, 1_500, keys=10_000))
        force_compaction(tidy, topic)
        tidy.alter_topic(topic, {"cleanup.policy": "delete"})
        left = len(records(tidy, topic))
        replicator.start()
        replicator.wait_until_caught_up()
        assert_copied_once(flow, topic)

    assert 50 + 1_500 + 1 == left


def write_many(cluster: KafkaCluster, topic: str) -> None:
    """MANY records in batches of MANY_PER_BATCH, all of one content but for their timestamps: made once, and stamped anew."""
    now = now_ms()
    keys = [WireRecord(0, now, b"%d" % at, b"") for at in range(MANY_PER_BATCH)]
    batch = encode(keys, codec=ZSTD, producer_id=-1, producer_epoch=-1, base_sequence=-1)

    async def write(connected: Cluster) -> None:
        await connected.refresh([topic])
        for number in range(MANY // MANY_PER_BATCH):
            struct.pack_into(">qq", batch, 27, now + number, now + number)  # base and maximal timestamp
            struct.pack_into(">I", batch, 17, crc32c.crc32c(bytes(batch[21:])))
            answers = await admin.produce(connected, {TopicPartition(topic, 0): batch}, timeout_ms=30_000)
            assert not any(answers.values()), answers

    call_cluster(cluster, write)


def test_a_first_copy_that_was_killed_behind_a_million_records_continues(
    flow: Flow, unique_topic: Callable[[], str]
):
    """That is what is copied in the first seconds. The source is compacted, so counting its records proves nothing by itself."""
    flow.connector = ALONE
    topic = flow.source.create_topic(unique_topic(), config={"cleanup.policy": "compact"})
    write_many(flow.source, topic)
    with flow.replicator(topic) as replicator:
        replicator.wait_for_copy(flow.target, flow.remote(topic), MANY)
        replicator.kill()
        load(flow.source, topic, 1_000, keys=True)
        replicator.start()
        said = wait_for_outcome(replicator, topic, MANY + 1_000)
        assert "copying" == said["phase"], said["message"]
        flow.assert_committed(topic)


@pytest.mark.faults
def test_a_target_emptied_behind_the_last_position_goes_by_policy(
    east: KafkaCluster, tidy: KafkaCluster, unique_topic: Callable[[], str], tmp_path: Path
):
    """After kill -9, neither the target's log nor its leader, which was started anew, shows what was copied."""
    topic = east.create_topic(unique_topic(), config={"cleanup.policy": "compact"})
    write_batches(east, topic, keyed(0, 500))
    flows = {
        policy: Flow.new(east, tidy, tmp_path, connector={**ALONE, "mirrorflow.source.loss.policy": policy})
        for policy in ("fail", "alert", "restart")
    }
    for flow in flows.values():
        tidy.create_topic(flow.remote(topic))
    with ExitStack() as stack:
        running = {policy: stack.enter_context(flow.replicator(topic)) for policy, flow in flows.items()}
        for policy, replicator in running.items():
            replicator.wait_until_caught_up()
            replicator.kill()
            tidy.delete_records(flows[policy].remote(topic), {0: 500})
        tidy.broker(1).stop()
        tidy.broker(1).start()
        write_batches(east, topic, keyed(500, 200))
        for replicator in running.values():
            replicator.start()
        said = {policy: wait_for_outcome(one, topic, 700) for policy, one in running.items()}
        counted = {policy: running[policy].progress()["losses"] for policy in ("alert", "restart")}
        for policy in counted:
            flows[policy].wait_until_committed(topic)

    sent = contents(records(east, topic))
    found = {
        policy: contents(records(tidy, flow.remote(topic), isolation="read_committed"))
        for policy, flow in flows.items()
    }
    assert ("stopped", "TargetDataLost") == (said["fail"]["phase"], said["fail"]["reason"])
    assert [] == found["fail"]
    assert {"alert": "copying", "restart": "copying"} == {policy: said[policy]["phase"] for policy in counted}
    assert {"alert": 1, "restart": 1} == counted
    # What came since is there once, behind what was copied after the last stored position.
    assert found["alert"][-200:] == sent[500:]
    assert found["alert"] == sent[len(sent) - len(found["alert"]) :]
    assert found["restart"] == sent


@pytest.mark.faults
def test_a_compacted_target_is_continued_after_kill_9_of_both_sides(
    east: KafkaCluster, tidy: KafkaCluster, unique_topic: Callable[[], str], tmp_path: Path
):
    """The cleaner removes every record of ours and leaves one empty batch header; the broker has lost its snapshots."""
    flow = Flow.new(east, tidy, tmp_path, connector=ALONE)
    topic = east.create_topic(unique_topic())
    remote = tidy.create_topic(flow.remote(topic), config=COMPACTED)
    now = now_ms()
    write_batches(east, topic, [numbered(at * 10, 10, timestamp=now, key=b"one") for at in range(100)])
    with flow.replicator(topic) as replicator:
        replicator.wait_for_copy(tidy, remote, 1_000)
        replicator.kill()
    number = iter(range(100_000, 200_000))

    def compacted() -> bool:
        # A segment is as old as its records say.
        newer = WireRecord(0, now_ms(), b"one", b"%012d" % next(number))
        write_batches(tidy, remote, [[newer]])
        return all((one.value or b"") >= b"%012d" % 100_000 for one in records(tidy, remote))

    wait_until("the cleaner has taken all of ours", compacted, poll_s=1.0)
    broker = tidy.broker(1)
    broker.kill()
    for snapshot in broker.folder.glob(f"data/{remote}-0/*.snapshot"):
        snapshot.unlink()
    broker.start()
    new = [WireRecord(0, now, b"key-%d" % at, b"%012d" % at) for at in range(50)]
    write_batches(east, topic, [new])
    with flow.replicator(topic) as replicator:
        replicator.wait_until_caught_up()
        flow.wait_until_committed(topic)

    found = contents(records(tidy, remote, isolation="read_committed"))
    assert contents(records(east, topic))[1_000:] == [one for one in found if one[1] != b"one"]
