"""The progress of a running flow is read from its target.

It is exact between two stored positions, and at the end of a log.
"""

from collections.abc import Callable

import pytest

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_replicator.switchover.drain import copied_offsets
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.tools import load
from tests.harness.replicator import Replicator
from tests.integration.kafka.flows import Flow
from tests.integration.kafka.switching import call_clusters, end, settings_of

PARTITIONS = 3
NEVER = {"offset.flush.interval.ms": "3600000"}
COMMITTED = {"source.consumer.isolation.level": "read_committed"}


@pytest.fixture
def topic(east: KafkaCluster, unique_topic: Callable[[], str]) -> str:
    return east.create_topic(unique_topic(), partitions=PARTITIONS)


def source_ends(flow: Flow, topic: str) -> dict[TopicPartition, int]:
    return {TopicPartition(topic, number): end for number, end in flow.source.end_offsets(topic).items()}


def copied(flow: Flow, process: Replicator, topic: str) -> dict[TopicPartition, int]:
    """Returns how far *process* has copied *topic*. The process may be copying at that time."""
    settings, ends = settings_of(process), source_ends(flow, topic)
    return call_clusters(
        flow.source, flow.target, lambda source, target: copied_offsets(settings, source, target, ends)
    )


def test_records_since_the_last_stored_position_are_counted(flow: Flow, topic: str):
    """The positions are stored when the task starts, and never again while it runs."""
    load(flow.source, topic, 1_000, keys=True)
    with flow.replicator(topic, NEVER) as replicator:
        replicator.wait_until_caught_up(partitions=PARTITIONS)
        load(flow.source, topic, 500, keys=True, first=1_000)
        replicator.wait_until_caught_up(partitions=PARTITIONS)
        while_running = copied(flow, replicator, topic)
        replicator.kill()
        load(flow.source, topic, 300, keys=True, first=1_500)
        ends = source_ends(flow, topic)
        while_behind = copied(flow, replicator, topic)
        ended = end(replicator, flow.target)

    assert sum(while_running.values()) == 1_500
    assert while_behind == while_running
    assert all(while_behind[key] < ends[key] for key in ends)
    assert while_running == {key: position.next_source_offset for key, position in ended.positions.items()}


@pytest.mark.parametrize("isolation", [{}, COMMITTED], ids=["read_uncommitted", "read_committed"])
def test_markers_at_the_end_of_a_log_count_as_copied(flow: Flow, topic: str, isolation: dict[str, str]):
    load(flow.source, topic, 300, transactional_id=f"application-{flow.alias}")
    with flow.replicator(topic, isolation) as replicator:
        replicator.wait_for_copy(flow.target, flow.remote(topic), 300)
        flow.assert_committed(topic)
        reached = copied(flow, replicator, topic)

    assert reached == source_ends(flow, topic)
    assert sum(reached.values()) > 300


def test_a_partition_without_a_position_was_not_copied_unless_it_is_empty(
    flow: Flow, topic: str, unique_topic: Callable[[], str]
):
    """The flow does not select the topic of the partition."""
    selected, empty = flow.source.create_topic(unique_topic()), flow.source.create_topic(unique_topic())
    for name in (selected, topic):
        load(flow.source, name, 30)
    with flow.replicator(selected) as replicator:
        replicator.wait_until_caught_up()

        assert copied(flow, replicator, topic) == dict.fromkeys(source_ends(flow, topic), 0)
        assert copied(flow, replicator, empty) == {TopicPartition(empty, 0): 0}
