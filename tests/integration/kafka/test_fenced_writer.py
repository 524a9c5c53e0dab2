"""One process owns the flow, and only its tasks write to their partitions.

After every stop and kill, readers of committed records receive each record once. With plain batches, all readers do.
"""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from mirrorflow_replicator.connectors.source_connector import STANDBY_WARNING
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import FOREVER, digest, load, records
from tests.integration.kafka.flows import DAY_MS, Flow, now_ms, numbered, write_to_each

PARTITIONS = 3


@pytest.fixture
def flow(east: KafkaCluster, west: KafkaCluster, tmp_path: Path) -> Flow:
    return Flow.new(east, west, tmp_path, connector={"tasks.max": "2"})


@pytest.mark.parametrize(
    "age_ms", [pytest.param(0, id="young"), pytest.param(2 * DAY_MS, id="old", marks=pytest.mark.more)]
)
def test_a_graceful_restart_repeats_nothing_for_any_reader(
    flow: Flow, east: KafkaCluster, unique_topic: Callable[[], str], age_ms: int
):
    topic = east.create_topic(unique_topic(), partitions=PARTITIONS, config=FOREVER)
    timestamp_ms = now_ms() - age_ms
    load(east, topic, 3_000, timestamp_ms=timestamp_ms)
    with flow.replicator(topic) as replicator:
        replicator.wait_until_caught_up(partitions=PARTITIONS)
        load(east, topic, 3_000, first=3_000, timestamp_ms=timestamp_ms)
        assert replicator.stop() == 0
        replicator.start()
        replicator.wait_until_caught_up(partitions=PARTITIONS)

    flow.assert_exact(topic)


def test_kill_9_repeats_no_old_records_for_read_committed_consumers(
    flow: Flow, east: KafkaCluster, west: KafkaCluster, unique_topic: Callable[[], str]
):
    topic = east.create_topic(unique_topic(), partitions=PARTITIONS, config=FOREVER)
    load(east, topic, 50_000, timestamp_ms=now_ms() - 2 * DAY_MS)
    with flow.replicator(topic) as replicator:
        replicator.wait_for_copy(west, flow.remote(topic), 1)
        replicator.kill()
        replicator.start()
        replicator.wait_until_caught_up(partitions=PARTITIONS)
        flow.assert_committed(topic)


def test_the_first_transactional_position_of_a_task_is_stored(
    flow: Flow, east: KafkaCluster, west: KafkaCluster, unique_topic: Callable[[], str]
):
    """Before the task, the owner of the flow stores positions with the same producer."""
    topic = east.create_topic(unique_topic(), config=FOREVER)
    old_ms = now_ms() - 2 * DAY_MS
    load(east, topic, 10, timestamp_ms=old_ms)
    with flow.replicator(topic) as replicator:
        replicator.wait_until_caught_up()
        wait_until(
            "the records are committed",
            lambda: digest(west, flow.remote(topic), isolation="read_committed") == digest(east, topic),
        )
        replicator.kill()
        replicator.start()
        replicator.wait_until_caught_up()
        load(east, topic, 10, first=10, timestamp_ms=old_ms)
        replicator.wait_until_caught_up()

    flow.assert_exact(topic)


def test_old_and_recent_records_are_copied_in_turns(
    flow: Flow, east: KafkaCluster, unique_topic: Callable[[], str]
):
    topic = east.create_topic(unique_topic(), partitions=PARTITIONS, config=FOREVER)
    with flow.replicator(topic) as replicator:
        for number in range(10):
            age_ms = 2 * DAY_MS if number % 3 == 0 else 0
            batches = [numbered(number * 10, 10, timestamp=now_ms() - age_ms)] * PARTITIONS
            write_to_each(east, topic, batches)
            replicator.wait_until_caught_up(partitions=PARTITIONS)

    flow.assert_exact(topic)


@pytest.mark.more
def test_a_topic_that_is_created_later_is_copied_as_well(
    flow: Flow, east: KafkaCluster, unique_topic: Callable[[], str]
):
    name = unique_topic()
    first = east.create_topic(f"{name}.first", partitions=PARTITIONS)
    load(east, first, 1_000)
    with flow.replicator(f"{name}.*", {"refresh.topics.interval.seconds": "1"}) as replicator:
        replicator.wait_until_caught_up(partitions=PARTITIONS)
        second = east.create_topic(f"{name}.second", partitions=PARTITIONS)
        load(east, second, 1_000)
        load(east, first, 1_000, first=1_000)
        replicator.wait_until_caught_up(partitions=2 * PARTITIONS)
        assert replicator.stop() == 0

    flow.assert_exact(first)
    flow.assert_exact(second)


@pytest.mark.more
def test_a_second_process_is_ready_and_takes_over_when_the_first_stops(
    flow: Flow, east: KafkaCluster, unique_topic: Callable[[], str]
):
    topic = east.create_topic(unique_topic(), partitions=PARTITIONS)
    load(east, topic, 1_000)
    with ExitStack() as running:
        owner = running.enter_context(flow.replicator(topic))
        owner.wait_until_caught_up(partitions=PARTITIONS)
        waiting = running.enter_context(flow.replicator(topic))
        wait_until("the second process is ready", lambda: waiting.rest("/readyz")[0] == 200)
        load(east, topic, 1_000, first=1_000)
        owner.wait_until_caught_up(partitions=PARTITIONS)
        assert owner.stop() == 0
        load(east, topic, 1_000, first=2_000)
        waiting.wait_until_caught_up(partitions=PARTITIONS)

    flow.assert_exact(topic)


def test_a_recreated_source_topic_is_reported_as_data_loss(
    flow: Flow, east: KafkaCluster, unique_topic: Callable[[], str]
):
    """The records at equal offsets differ, although both topics have the same number of records."""
    topic = east.create_topic(unique_topic())
    load(east, topic, 10)
    with flow.replicator(topic) as replicator:
        replicator.wait_until_caught_up()
        assert replicator.stop() == 0
        east.delete_topic(topic)
        east.create_topic(topic)
        load(east, topic, 20, first=100)
        replicator.start()
        stopped = replicator.wait_for_phase("stopped", topic)

    assert stopped["reason"] == "SourceDataLost"


def test_the_restart_policy_refills_a_deleted_target_topic(
    flow: Flow, east: KafkaCluster, west: KafkaCluster, unique_topic: Callable[[], str]
):
    topic = east.create_topic(unique_topic())
    load(east, topic, 10)
    with flow.replicator(topic, {"mirrorflow.source.loss.policy": "restart"}) as replicator:
        replicator.wait_until_caught_up()
        assert replicator.stop() == 0
        west.delete_topic(flow.remote(topic))
        replicator.start()
        replicator.wait_for_copy(west, flow.remote(topic), 10)
        replicator.wait_until_caught_up()

    flow.assert_exact(topic)


@pytest.mark.faults
def test_a_frozen_owner_is_fenced_and_waits_after_it_resumes(
    flow: Flow, east: KafkaCluster, unique_topic: Callable[[], str]
):
    topic = east.create_topic(unique_topic(), partitions=PARTITIONS)
    load(east, topic, 1_000)
    with ExitStack() as running:
        frozen = running.enter_context(flow.replicator(topic))
        frozen.wait_until_caught_up(partitions=PARTITIONS)
        successor = running.enter_context(flow.replicator(topic))
        wait_until("the successor is ready", lambda: successor.rest("/readyz")[0] == 200)
        frozen.freeze()
        load(east, topic, 20_000, first=1_000)
        successor.wait_for_phase("copying", topic)
        frozen.thaw()
        successor.wait_until_caught_up(partitions=PARTITIONS)
        wait_until("the thawed process waits", lambda: STANDBY_WARNING in str(frozen.progress()))
        assert frozen.partitions() == []
        load(east, topic, 1_000, first=21_000)
        successor.wait_until_caught_up(partitions=PARTITIONS)
        flow.assert_committed(topic)


def test_a_renamed_copy_begins_after_the_last_position(
    flow: Flow, east: KafkaCluster, west: KafkaCluster, unique_topic: Callable[[], str]
):
    topic = east.create_topic(unique_topic())
    load(east, topic, 10)
    with flow.replicator(topic) as replicator:
        replicator.wait_until_caught_up()
        assert replicator.stop() == 0
    load(east, topic, 5, first=10)
    with flow.replicator(topic, {"replication.policy.separator": "__"}) as replicator:
        replicator.wait_until_caught_up()

    assert len(records(west, flow.remote(topic))) == 10
    assert len(records(west, f"{flow.alias}__{topic}")) == 5


def test_kill_9_repeats_nothing_for_any_reader(
    flow: Flow, east: KafkaCluster, west: KafkaCluster, unique_topic: Callable[[], str]
):
    topic = east.create_topic(unique_topic(), partitions=PARTITIONS)
    load(east, topic, 100_000)
    with flow.replicator(topic) as replicator:
        for records_copied in (1, 20_000, 60_000):
            replicator.wait_for_copy(west, flow.remote(topic), records_copied)
            replicator.kill()
            replicator.start()
        replicator.wait_until_caught_up(partitions=PARTITIONS)

    flow.assert_exact(topic)


def test_plain_batches_leave_source_and_target_offsets_equal(
    flow: Flow, east: KafkaCluster, west: KafkaCluster, unique_topic: Callable[[], str]
):
    topic = east.create_topic(unique_topic())
    load(east, topic, 1_000)
    with flow.replicator(topic) as replicator:
        replicator.wait_until_caught_up()
        load(east, topic, 1_000, first=1_000)
        replicator.wait_until_caught_up()

    assert [record.offset for record in records(west, flow.remote(topic))] == list(range(2_000))


def test_a_source_with_gaps_is_copied_once_across_kills(
    flow: Flow, east: KafkaCluster, west: KafkaCluster, unique_topic: Callable[[], str]
):
    """Each transaction of the source leaves a marker, which takes an offset but has no record."""
    topic = east.create_topic(unique_topic())
    total = 0
    with flow.replicator(topic) as replicator:
        for _ in range(3):
            for _ in range(5):
                load(east, topic, 100, first=total, transaction=10)
                total += 100
            load(east, topic, 500, first=total)
            total += 500
            replicator.wait_for_copy(west, flow.remote(topic), total - 200)
            replicator.kill()
            replicator.start()
        replicator.wait_until_caught_up()
        flow.assert_committed(topic)


def test_a_target_that_sets_timestamps_gets_each_record_once_across_a_kill(
    flow: Flow, east: KafkaCluster, west: KafkaCluster, unique_topic: Callable[[], str]
):
    topic = east.create_topic(unique_topic(), config=FOREVER)
    west.create_topic(flow.remote(topic), config={"message.timestamp.type": "LogAppendTime"})
    east_old = numbered(0, 100, timestamp=now_ms() - 2 * DAY_MS)
    write_to_each(east, topic, [east_old])
    with flow.replicator(topic, {"sync.topic.configs.enabled": "false"}) as replicator:
        replicator.wait_for_copy(west, flow.remote(topic), 100)
        load(east, topic, 20_000, first=100)
        replicator.wait_for_copy(west, flow.remote(topic), 101)
        replicator.kill()
        replicator.start()
        replicator.wait_until_caught_up()

    copied = [record.value for record in records(west, flow.remote(topic))]
    assert copied == [record.value for record in records(east, topic)]
