"""The flow's own topics are deleted, emptied or changed while it copies: it continues, or says within a minute what is wrong."""

from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException

from mirrorflow_core.connect.mirror_records import offset_map_topic
from mirrorflow_core.writer.claim import claims_topic
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import load, records
from tests.integration.kafka.flows import DAY_MS, Flow, now_ms

TOPICS = {
    "claims": lambda flow: claims_topic(flow.alias),
    "positions": lambda flow: f"mm2-offsets.{flow.alias}.internal",
    "offset map": lambda flow: offset_map_topic(flow.alias),
    "offset syncs": lambda flow: f"mm2-offset-syncs.{flow.alias}.internal",
}
ON_TARGET = {"offset-syncs.topic.location": "target"}  # so that they are of this flow alone


def record_count(cluster: KafkaCluster, topic: str) -> int:
    """How many records *topic* has that consumers of committed records get."""
    return len(records(cluster, topic, isolation="read_committed"))


def lose(cluster: KafkaCluster, topic: str, event: str) -> None:
    """Delete *topic*, or all of its records."""
    if event == "deleted":
        cluster.delete_topic(topic)
        return

    def emptied() -> bool:
        cluster.alter_topic(topic, {"cleanup.policy": "delete"})
        try:
            cluster.delete_records(topic, cluster.end_offsets(topic))
        except KafkaException as error:
            if error.args[0].code() != KafkaError.POLICY_VIOLATION:
                raise
            return False  # the flow has corrected it, or the leader has not heard of it yet
        return True

    wait_until(f"{topic} is emptied", emptied)


@pytest.mark.more
@pytest.mark.parametrize("which", TOPICS)
@pytest.mark.parametrize("event", ["deleted", "emptied"])
def test_a_flow_whose_internal_topic_is_lost_while_it_copies_continues(
    flow: Flow, unique_topic: Callable[[], str], which: str, event: str
):
    topic = flow.source.create_topic(unique_topic())
    load(flow.source, topic, 300)
    name = TOPICS[which](flow)
    with flow.replicator(topic, ON_TARGET) as replicator:
        replicator.wait_until_caught_up()
        wait_until("it has records", lambda: record_count(flow.target, name) > 0)
        lose(flow.target, name, event)
        wait_until("it is there again", lambda: flow.target.has_topic(name))
        wait_until("it has records", lambda: record_count(flow.target, name) > 0)
        load(flow.source, topic, 300, first=300)
        replicator.wait_until_caught_up()
        replicator.kill()
        load(flow.source, topic, 300, first=600)
        replicator.start()
        replicator.wait_until_caught_up()
        wait_until("it is compacted", lambda: flow.target.topic_config(name)["cleanup.policy"] == "compact")

    flow.assert_exact(topic)


@pytest.mark.more
def test_positions_in_transactions_that_are_lost_while_the_flow_copies_are_stored_again(
    flow: Flow, unique_topic: Callable[[], str]
):
    """Old records are copied in transactions; the topic is deleted in the middle of them."""
    topic, old_ms = flow.source.create_topic(unique_topic(), partitions=3), now_ms() - 3 * DAY_MS
    load(flow.source, topic, 30_000, size_bytes=200, timestamp_ms=old_ms)
    name = TOPICS["positions"](flow)
    with flow.replicator(topic, {"mirrorflow.bytes.per.second": "512Ki"}) as replicator:
        wait_until("some are copied", lambda: flow.copied(topic) > 3_000)
        flow.target.delete_topic(name)
        wait_until(
            "it has records", lambda: flow.target.has_topic(name) and record_count(flow.target, name) > 0
        )
        replicator.wait_until_caught_up(partitions=3)
        flow.wait_until_committed(topic)

    flow.assert_exact(topic, reader="read_committed")


@pytest.mark.more
def test_a_growing_offsets_topic_repeats_nothing(
    east: KafkaCluster, west: KafkaCluster, tmp_path: Path, unique_topic: Callable[[], str]
):
    """A third of the keys move to another of its partitions; those before hold positions that are older."""
    flow = Flow.new(east, west, tmp_path, worker={"offset.storage.partitions": "25"})
    topic = flow.source.create_topic(unique_topic(), partitions=12)
    load(flow.source, topic, 1_200)
    with flow.replicator(topic) as replicator:
        replicator.wait_until_caught_up(partitions=12)
        assert replicator.stop() == 0
        flow.target.add_partitions(f"mm2-offsets.{flow.alias}.internal", 30)
        replicator.start()
        load(flow.source, topic, 1_200, first=1_200)
        replicator.wait_until_caught_up(partitions=12)
        assert replicator.stop() == 0
        replicator.start()
        load(flow.source, topic, 12, first=2_400)
        replicator.wait_until_caught_up(partitions=12)

    flow.assert_exact(topic)
