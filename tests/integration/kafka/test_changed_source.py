"""Sources or targets were changed, or settings that affect what is copied.

A loss is reported and handled by the loss policy. All other records are copied once.
"""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from mirrorflow_core.connect.position_records import PositionKey, encode_key
from mirrorflow_core.wire.records import Record as WireRecord
from mirrorflow_core.wire.records import partition_for
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import load, records
from tests.harness.replicator import Replicator
from tests.integration.kafka.flows import Flow, contents, numbered, write_batches

POLICIES = ("fail", "alert", "restart")
NEVER = {"offset.flush.interval.ms": "3600000"}


@pytest.fixture
def topic(east: KafkaCluster, unique_topic: Callable[[], str]) -> str:
    return east.create_topic(unique_topic())


def now_ms() -> int:
    return int(time.time() * 1000)


def test_a_source_compacted_after_the_last_position_is_continued(flow: Flow, unique_topic: Callable[[], str]):
    """The source no longer has the copied records."""
    topic = flow.source.create_topic(
        unique_topic(),
        config={
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0.01",
            "max.compaction.lag.ms": "1000",
            "segment.ms": "1000",
        },
    )
    # The copy is not compacted, so that it can be compared.
    flow.target.create_topic(flow.remote(topic))
    no_config_sync = {"sync.topic.configs.enabled": "false"}
    began = now_ms()

    def keyed(first: int, count: int) -> list[list[WireRecord]]:
        return [
            [
                WireRecord(0, began + number, b"key-%d" % (number % 50), b"%08d" % number)
                for number in range(start, start + 20)
            ]
            for start in range(first, first + count, 20)
        ]

    write_batches(flow.source, topic, keyed(0, 1_000))
    with flow.replicator(topic, no_config_sync) as replicator:
        replicator.wait_until_caught_up()
        assert replicator.stop() == 0
    write_batches(flow.source, topic, keyed(1_000, 1_000))
    with flow.replicator(topic, {**no_config_sync, **NEVER}) as replicator:
        replicator.wait_until_caught_up()
        replicator.kill()
    copied = contents(records(flow.target, flow.remote(topic)))
    write_batches(flow.source, topic, [[WireRecord(0, began, b"new-%d" % n, b"") for n in range(200)]])

    def compacted() -> bool:
        # The active segment is never cleaned, so new records roll it.
        write_batches(flow.source, topic, [[WireRecord(0, now_ms(), b"roll", b"")]])
        return len(records(flow.source, topic)) < 1_000

    wait_until("the cleaner has removed copied records", compacted, poll_s=1.0)
    with flow.replicator(topic, no_config_sync) as replicator:
        replicator.wait_until_caught_up()
        flow.wait_until_committed(topic)

    all_copied = contents(records(flow.target, flow.remote(topic), isolation="read_committed"))
    sent = [content for content in contents(records(flow.source, topic)) if content[1] != b"roll"]
    added = [content for content in all_copied[len(copied) :] if content[1] != b"roll"]
    assert copied == all_copied[: len(copied)]
    assert [content for content in sent if content not in set(copied)] == added


def test_a_changed_isolation_level_applies_after_copied_records(flow: Flow, topic: str):
    """With read_uncommitted, aborted records are copied; with read_committed, they are not."""
    transactional: dict[str, Any] = {
        "transactional_id": f"t-{flow.alias}",
        "transaction_records": 50,
        "abort_every": 3,
    }
    load(flow.source, topic, 3_000, **transactional)
    with flow.replicator(topic, NEVER) as replicator:
        replicator.wait_until_caught_up()
        flow.wait_until_committed(topic)
        replicator.kill()
    first = contents(records(flow.target, flow.remote(topic)))
    load(flow.source, topic, 3_000, first=3_000, **transactional)
    committed = {"consumer.isolation.level": "read_committed"}
    with flow.replicator(topic, {**committed, **NEVER}) as replicator:
        replicator.wait_until_caught_up()
        replicator.kill()
        load(flow.source, topic, 1_000, first=6_000)
        replicator.start()
        replicator.wait_until_caught_up()
        flow.wait_until_committed(topic)

    copied = contents(records(flow.target, flow.remote(topic), isolation="read_committed"))
    everything = contents(records(flow.source, topic))
    committed_contents = contents(records(flow.source, topic, isolation="read_committed"))
    assert everything[:3_000] == first == copied[:3_000]
    assert [content for content in committed_contents if content not in set(first)] == copied[3_000:]
    assert len(everything) > len(copied)


def test_copying_continues_after_a_position_that_java_has_stored(flow: Flow, topic: str):
    """Java's MM2 has copied in the meantime, or the offset was altered."""
    load(flow.source, topic, 2_000)
    with flow.replicator(topic) as replicator:
        replicator.wait_until_caught_up()
        assert replicator.stop() == 0
    java_position(flow, topic, 2_499)
    load(flow.source, topic, 1_000, first=2_000)
    with flow.replicator(topic) as replicator:
        replicator.wait_until_caught_up()
        replicator.kill()
        load(flow.source, topic, 200, first=3_000)
        replicator.start()
        replicator.wait_until_caught_up()
        flow.wait_until_committed(topic)

    sent = contents(records(flow.source, topic))
    copied = records(flow.target, flow.remote(topic), isolation="read_committed")
    assert sent[:2_000] + sent[2_500:] == contents(copied)


def java_position(flow: Flow, topic: str, offset: int) -> None:
    """Stores a position like Java's MM2, with the same bytes and in the same partition."""
    store = f"mm2-offsets.{flow.alias}.internal"
    key = encode_key(PositionKey("MirrorSourceConnector", flow.alias, topic, 0))
    record = WireRecord(0, now_ms(), key, b'{"offset":%d}' % offset)
    write_batches(flow.target, store, [[record]], partition=partition_for(key, flow.target.topics()[store]))


class Losses:
    """Three flows of the same topics, one for each loss policy."""

    def __init__(
        self, east: KafkaCluster, west: KafkaCluster, folder: Path, stack: ExitStack, **connector: str
    ) -> None:
        """*connector*: settings of all three, with underscores for dots."""
        lines = {key.replace("_", "."): value for key, value in connector.items()}
        self.flows = {
            policy: Flow.new(east, west, folder, connector={"mirrorflow.source.loss.policy": policy, **lines})
            for policy in POLICIES
        }
        self._stack = stack
        self.running: dict[str, Replicator] = {}

    def start(self, topics: str) -> None:
        """Starts the process of every flow."""
        for policy, flow in self.flows.items():
            self.running[policy] = self._stack.enter_context(flow.replicator(topics))

    def copied(self, topic: str, policy: str) -> list[tuple[object, ...]]:
        """Returns what readers of committed records see."""
        flow = self.flows[policy]
        return contents(records(flow.target, flow.remote(topic), isolation="read_committed"))

    def wait_until_copied(self, topic: str) -> None:
        """Waits until the flows that continue after a loss have copied and committed everything."""
        for policy in ("alert", "restart"):
            self.running[policy].wait_until_caught_up()
            self.flows[policy].wait_until_committed(topic)

    def wait_for_end(self, topic: str, policy: str, end: list[tuple[object, ...]]) -> None:
        """Waits until the copy ends with exactly these records."""
        wait_until(
            f"{policy}: the copy ends with {len(end)} records",
            lambda: self.copied(topic, policy)[-len(end) :] == end,
        )

    def assert_reported(self, reason: str, topic: str) -> None:
        """Asserts that the flows that continued report the loss.

        It is in the partition's status, in the log, and in counters for alerts.
        """
        for policy in ("alert", "restart"):
            running = self.running[policy]
            status, metrics, progress = running.partition(topic), running.metrics(), running.progress()
            sentence = f"as mirrorflow.source.loss.policy={policy} says"
            assert (reason, "copying") == (status["reason"], status["phase"])
            assert sentence in status["message"]
            assert sentence in running.log_text()
            assert 1 == progress["losses"]
            assert (reason, 1) in [(entry["reason"], entry["count"]) for entry in progress["reasons"]]
            assert re.search(r"^mirrorflow_losses_total\{.*\} 1$", metrics, re.MULTILINE)
            assert re.search(
                rf'^mirrorflow_errors_total\{{.*reason="{reason}".*\}} 1$', metrics, re.MULTILINE
            )


def stop(replicator: Replicator, _source: KafkaCluster) -> None:
    replicator.stop()


def start(replicator: Replicator) -> None:
    replicator.start()


def freeze(replicator: Replicator, source: KafkaCluster) -> None:
    """Freezes the process between two fetches."""
    replicator.freeze_between_fetches(source)


def thaw(replicator: Replicator) -> None:
    replicator.thaw()


Interrupt = Callable[[Replicator, KafkaCluster], None]
Resume = Callable[[Replicator], None]


@pytest.fixture
def losses(east: KafkaCluster, west: KafkaCluster, tmp_path: Path) -> Iterator[Losses]:
    with ExitStack() as stack:
        yield Losses(east, west, tmp_path, stack)


def test_records_deleted_before_they_were_copied_follow_the_loss_policy(
    losses: Losses, east: KafkaCluster, unique_topic: Callable[[], str]
):
    """Retention has deleted records after the position.

    With fail the flow reports the offset, with alert it continues and counts them, and with restart it begins again.
    """
    check_records_deleted_before_they_were_copied(losses, east, unique_topic(), stop, start)


@pytest.mark.faults
def test_records_deleted_before_they_were_copied_follow_the_loss_policy_while_running(
    losses: Losses, east: KafkaCluster, unique_topic: Callable[[], str]
):
    check_records_deleted_before_they_were_copied(losses, east, unique_topic(), freeze, thaw)


def check_records_deleted_before_they_were_copied(
    losses: Losses, east: KafkaCluster, topic: str, interrupt: Interrupt, resume: Resume
) -> None:
    east.create_topic(topic)
    load(east, topic, 1_000)
    losses.start(topic)
    for replicator in losses.running.values():
        replicator.wait_until_caught_up()
        interrupt(replicator, east)
    load(east, topic, 1_000, first=1_000)
    east.delete_records(topic, {0: 1_400})
    remaining = contents(records(east, topic))
    for replicator in losses.running.values():
        resume(replicator)
    status = losses.running["fail"].wait_for_phase("stopped", topic)
    losses.wait_until_copied(topic)

    before = losses.copied(topic, "fail")
    assert 1_000 == len(before)
    assert ("SourceDataLost", True) == (
        status["reason"],
        "the next offset to copy was 1000" in status["message"],
    )
    assert before + remaining == losses.copied(topic, "alert") == losses.copied(topic, "restart")
    assert 400 == losses.running["alert"].progress()["lostRecords"]
    losses.assert_reported("SourceDataLost", topic)


# If nothing is lost, the policy makes no difference.
@pytest.mark.parametrize(
    ("policy", "deleted_to"),
    [
        *(("fail", 600), ("fail", 1_000), ("fail", 1_400), ("alert", 1_400), ("restart", 1_400)),
        *(
            pytest.param(policy, deleted_to, marks=pytest.mark.more)
            for policy in ("alert", "restart")
            for deleted_to in (600, 1_000)
        ),
    ],
)
def test_records_deleted_after_they_were_copied_are_no_loss(
    east: KafkaCluster,
    west: KafkaCluster,
    tmp_path: Path,
    unique_topic: Callable[[], str],
    policy: str,
    deleted_to: int,
):
    """The process is killed with kill -9 before it stores a position.

    Then retention deletes the records at the last position, so that they cannot be compared.
    """
    topic = east.create_topic(unique_topic())
    flow = Flow.new(east, west, tmp_path, connector={"mirrorflow.source.loss.policy": policy}, worker=NEVER)
    load(east, topic, 1_000)
    with flow.replicator(topic) as replicator:
        replicator.wait_until_caught_up()
    before = contents(records(east, topic))
    load(east, topic, 1_000, first=1_000)
    east.delete_records(topic, {0: deleted_to})
    with flow.replicator(topic) as replicator:
        if policy == "fail" and deleted_to > 1_000:
            status = replicator.wait_for_phase("stopped", topic)
            assert ("SourceDataLost", True) == (
                status["reason"],
                "the next offset to copy was 1000" in status["message"],
            )
            return
        replicator.wait_until_caught_up()
        flow.wait_until_committed(topic)
        lost = replicator.progress()["lostRecords"]

    assert max(0, deleted_to - 1_000) == lost
    remaining = contents(records(east, topic))[max(0, 1_000 - deleted_to) :]
    copied = records(west, flow.remote(topic), isolation="read_committed")
    assert before + remaining == contents(copied)


def test_a_recreated_source_topic_follows_the_loss_policy(
    losses: Losses, east: KafkaCluster, unique_topic: Callable[[], str]
):
    """Offsets of the new topic are unrelated to those of the old one, even if the new topic is longer."""
    check_a_recreated_source_topic(losses, east, unique_topic(), stop, start)


@pytest.mark.faults
def test_a_recreated_source_topic_follows_the_loss_policy_while_running(
    losses: Losses, east: KafkaCluster, unique_topic: Callable[[], str]
):
    check_a_recreated_source_topic(losses, east, unique_topic(), freeze, thaw)


def check_a_recreated_source_topic(
    losses: Losses, east: KafkaCluster, topic: str, interrupt: Interrupt, resume: Resume
) -> None:
    east.create_topic(topic)
    load(east, topic, 1_000)
    losses.start(topic)
    for replicator in losses.running.values():
        replicator.wait_until_caught_up()
        interrupt(replicator, east)
    before = contents(records(east, topic))
    east.delete_topic(topic)
    east.create_topic(topic)
    load(east, topic, 1_500, first=10_000)
    new = contents(records(east, topic))
    for replicator in losses.running.values():
        resume(replicator)
    status = losses.running["fail"].wait_for_phase("stopped", topic)
    losses.wait_until_copied(topic)
    load(east, topic, 100, first=20_000)
    more = contents(records(east, topic))[1_500:]
    losses.wait_until_copied(topic)

    assert before == losses.copied(topic, "fail")
    assert ("SourceDataLost", True) == (status["reason"], "deleted and created again" in status["message"])
    assert before + new + more == losses.copied(topic, "alert") == losses.copied(topic, "restart")
    losses.assert_reported("SourceDataLost", topic)


@pytest.mark.more
def test_a_recreated_source_topic_of_a_flow_that_began_at_the_end_is_copied_from_its_beginning(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Callable[[], str], tmp_path: Path
):
    """The process that began the flow still runs. `mirrorflow.start.from` is for partitions that were never copied."""
    topic = east.create_topic(unique_topic())
    load(east, topic, 300)
    with ExitStack() as stack:
        losses = Losses(east, west, tmp_path, stack, mirrorflow_start_from="latest")
        losses.start(topic)
        for replicator in losses.running.values():
            replicator.wait_for_phase("copying", topic)
        load(east, topic, 200, first=300)
        before = contents(records(east, topic))[300:]
        for policy in POLICIES:
            losses.wait_for_end(topic, policy, before)
        east.delete_topic(topic)
        east.create_topic(topic)
        load(east, topic, 400, first=10_000)
        new = contents(records(east, topic))
        losses.running["fail"].wait_for_phase("stopped", topic)
        losses.wait_until_copied(topic)

        assert before + new == losses.copied(topic, "alert") == losses.copied(topic, "restart")
        losses.assert_reported("SourceDataLost", topic)


def test_a_recreated_target_topic_follows_the_loss_policy(
    losses: Losses, east: KafkaCluster, unique_topic: Callable[[], str]
):
    """With fail the flow reports that copies are missing, with alert it continues after them, and with restart it fills
    the new topic from the beginning.

    Requests of a running process that were in flight may have reached the new topic.
    """
    check_a_recreated_target_topic(losses, east, unique_topic(), stop, start)


@pytest.mark.faults
def test_a_recreated_target_topic_follows_the_loss_policy_while_running(
    losses: Losses, east: KafkaCluster, unique_topic: Callable[[], str]
):
    check_a_recreated_target_topic(losses, east, unique_topic(), freeze, thaw)


def check_a_recreated_target_topic(
    losses: Losses, east: KafkaCluster, topic: str, interrupt: Interrupt, resume: Resume
) -> None:
    east.create_topic(topic)
    load(east, topic, 1_000)
    losses.start(topic)
    for flow, replicator in zip(losses.flows.values(), losses.running.values(), strict=True):
        replicator.wait_until_caught_up()
        interrupt(replicator, east)
        flow.target.delete_topic(flow.remote(topic))
        flow.target.create_topic(flow.remote(topic))
    load(east, topic, 500, first=1_000)
    for replicator in losses.running.values():
        resume(replicator)
    status = losses.running["fail"].wait_for_phase("stopped", topic)
    losses.wait_for_end(topic, "alert", contents(records(east, topic))[1_000:])
    losses.wait_for_end(topic, "restart", contents(records(east, topic)))
    load(east, topic, 100, first=1_500)
    sent = contents(records(east, topic))
    losses.wait_for_end(topic, "alert", sent[1_000:])
    losses.wait_for_end(topic, "restart", sent)

    in_flight = sent[1_000:1_500] if interrupt is not stop else []
    assert ("TargetDataLost", True) == (
        status["reason"],
        "was deleted and created again" in status["message"],
    )
    assert sent[1_000:] == losses.copied(topic, "alert")
    restarted, failed = losses.copied(topic, "restart"), losses.copied(topic, "fail")
    assert restarted[-len(sent) :] == sent
    assert restarted[: -len(sent)] == in_flight[: len(restarted) - len(sent)]
    assert failed == in_flight[: len(failed)]
    losses.assert_reported("TargetDataLost", topic)


def test_a_target_topic_recreated_while_the_flow_is_idle_is_detected_with_the_next_batch(
    losses: Losses, east: KafkaCluster, unique_topic: Callable[[], str]
):
    """The new topic accepts the next batch as its first one, at an offset that cannot be correct."""
    topic = east.create_topic(unique_topic())
    load(east, topic, 1_000)
    losses.start(topic)
    for flow, replicator in zip(losses.flows.values(), losses.running.values(), strict=True):
        replicator.wait_until_caught_up()
        flow.target.delete_topic(flow.remote(topic))
        flow.target.create_topic(flow.remote(topic))
    load(east, topic, 500, first=1_000)

    status = losses.running["fail"].wait_for_phase("stopped", topic)
    sent = contents(records(east, topic))
    losses.wait_for_end(topic, "alert", sent[1_000:])
    losses.wait_for_end(topic, "restart", sent)
    assert ("TargetDataLost", True) == (
        status["reason"],
        "was deleted and created again" in status["message"],
    )


def test_records_of_all_shapes_are_copied_once(flow: Flow, topic: str):
    """These are decreasing timestamps, gaps, tombstones, and large batches between small ones, with kill -9 in between."""
    timestamp = now_ms()
    batches = [numbered(i * 7, 7, timestamp=timestamp - i) for i in range(100)]
    batches += [numbered(10_000 + i, 1, timestamp=timestamp, key=b"k") for i in range(100)]
    write_batches(flow.source, topic, batches)
    with flow.replicator(topic, NEVER) as replicator:
        replicator.wait_until_caught_up()
        replicator.kill()
        write_batches(flow.source, topic, [numbered(20_000, 2_000, timestamp=timestamp)])
        replicator.start()
        replicator.wait_until_caught_up()

    flow.assert_exact(topic)
