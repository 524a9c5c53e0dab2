"""Partitions whose records change from old to recent leave the task's transaction."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.tools import FOREVER
from tests.integration.kafka.flows import DAY_MS, Flow, now_ms, numbered, write_to_each

pytestmark = pytest.mark.more

PARTITIONS = 8
ROUNDS = 27
TURN_ROUNDS, OLD_ROUNDS = 9, 3  # the first three of each nine rounds of a partition are old


def test_partitions_that_change_from_old_to_recent_records_are_copied_exactly_once(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Callable[[], str], tmp_path: Path
):
    """No process fails.

    Each round is copied before the next, so that recent records arrive while other partitions commit.
    """
    flow = Flow.new(east, west, tmp_path, connector={"tasks.max": "2"})
    topic = east.create_topic(unique_topic(), partitions=PARTITIONS, config=FOREVER)
    with flow.replicator(topic) as replicator:
        for number in range(ROUNDS):
            now = now_ms()
            is_old = [(number + partition) % TURN_ROUNDS < OLD_ROUNDS for partition in range(PARTITIONS)]
            write_to_each(
                east,
                topic,
                [numbered(number * 10, 10, timestamp=now - (2 * DAY_MS if old else 0)) for old in is_old],
            )
            replicator.wait_until_caught_up(partitions=PARTITIONS)

    flow.assert_exact(topic)
