"""The flow's own topics are deleted, emptied or changed while it copies: it continues, or says within a minute what is wrong."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.tools import load
from tests.integration.kafka.flows import Flow


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
