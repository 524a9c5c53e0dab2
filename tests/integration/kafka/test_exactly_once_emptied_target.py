"""Targets whose retention has deleted copies: a flow continues after them from any stored offset."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.tools import load, records
from tests.integration.kafka.flows import Flow, contents, producers

pytestmark = pytest.mark.more

NEVER = {"offset.flush.interval.ms": "3600000"}
ALL = {0: -1}  # the offset up to which records are deleted


@pytest.mark.parametrize("deleted", [150, 300], ids=["a part", "everything"])
def test_a_copy_that_retention_has_deleted_is_continued(
    flow: Flow, unique_topic: Callable[[], str], deleted: int
):
    """The process is killed with kill -9 before it stores a position.

    Then the target deletes copies, and the source gets new records.
    """
    topic = flow.source.create_topic(unique_topic())
    load(flow.source, topic, 300)
    with flow.replicator(topic, NEVER) as replicator:
        replicator.wait_until_caught_up()
        replicator.kill()
        flow.target.delete_records(flow.remote(topic), {0: deleted})
        load(flow.source, topic, 100, first=300)
        replicator.start()
        replicator.wait_until_caught_up()

    sent = contents(records(flow.source, topic))
    assert sent[deleted:] == contents(records(flow.target, flow.remote(topic)))


def empty_after_idle_kills(flow: Flow, topic: str) -> None:
    """Copies ten records, kills three idle processes with kill -9, and deletes all records of the copy."""
    load(flow.source, topic, 10)
    with flow.replicator(topic) as replicator:
        replicator.wait_until_caught_up()
        assert replicator.stop() == 0
        for _ in range(3):
            replicator.start()
            replicator.wait_until_caught_up()
            replicator.kill()
    flow.target.delete_records(flow.remote(topic), ALL)


def assert_continued(flow: Flow, topic: str) -> None:
    load(flow.source, topic, 10, first=10)
    with flow.replicator(topic) as replicator:
        replicator.wait_until_caught_up()
    assert contents(records(flow.target, flow.remote(topic))) == contents(records(flow.source, topic))[10:]


def test_an_idle_copy_that_is_emptied_after_kills_is_continued(flow: Flow, unique_topic: Callable[[], str]):
    """Each start writes a marker. Only markers follow the last record, so that the deleted copies are no loss."""
    topic = flow.source.create_topic(unique_topic())
    empty_after_idle_kills(flow, topic)

    assert_continued(flow, topic)


@pytest.fixture
def emptied() -> Iterator[KafkaCluster]:
    """A cluster whose broker can be restarted."""
    with KafkaCluster(name="emptied") as cluster:
        yield cluster


@pytest.mark.faults
def test_an_emptied_copy_is_continued_although_its_leader_has_lost_the_producer_state(
    east: KafkaCluster, emptied: KafkaCluster, tmp_path: Path, unique_topic: Callable[[], str]
):
    """A restarted broker has no state of producers without batches in the log."""
    flow = Flow.new(east, emptied, tmp_path)
    topic = east.create_topic(unique_topic())
    empty_after_idle_kills(flow, topic)
    assert producers(emptied, flow.remote(topic))
    emptied.broker(1).stop()
    emptied.broker(1).start()
    assert not producers(emptied, flow.remote(topic))

    assert_continued(flow, topic)
