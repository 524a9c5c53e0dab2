"""Partitions whose records change from old to fresh: they leave the flow's transaction, and what their leader remembers of it.

A leader keeps a verification entry for a producer whose transactional batch came while its partition was in no transaction
(KIP-890). The entry holds the lowest sequence that was refused, and refuses every higher one until a batch or a marker of a
transaction is appended, or for a day.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.installation import OLD_VERSION
from tests.harness.kafka.tools import FOREVER, load
from tests.integration.kafka.flows import DAY_MS, Flow, now_ms, numbered, write_as, write_to_each

pytestmark = pytest.mark.more

INVALID_TXN_STATE = 48
PARTITIONS = 8
ROUNDS = 27
TURN_ROUNDS, OLD_ROUNDS = 9, 3  # of each nine rounds of a partition the first three are old


@pytest.fixture(scope="module")
def older() -> Iterator[KafkaCluster]:
    with KafkaCluster(name="older", version=OLD_VERSION) as cluster:
        yield cluster


@pytest.fixture(params=["4.3", pytest.param("3.9", marks=pytest.mark.java)])
def target(request: pytest.FixtureRequest) -> KafkaCluster:
    name = {"4.3": "west", "3.9": "older"}[request.param]
    cluster: KafkaCluster = request.getfixturevalue(name)
    return cluster


def test_a_refused_transactional_batch_does_not_block_fresh_records(
    east: KafkaCluster, target: KafkaCluster, unique_topic: Callable[[], str], tmp_path: Path
):
    """The entry holds the next sequence: the leader takes one batch outside a transaction and refuses all that follow."""
    flow, topic = Flow.new(east, target, tmp_path), east.create_topic(unique_topic())
    load(east, topic, 100)
    with flow.replicator(topic) as replicator:
        replicator.wait_until_caught_up()
        replicator.kill()
        refused = write_as(
            flow, topic, numbered(100, 1, timestamp=now_ms()), sequence=100, transactional=True
        )
        load(east, topic, 500, first=100, single_record_batches=True)
        replicator.start()
        replicator.wait_until_caught_up()
        load(east, topic, 100, first=600)
        replicator.wait_until_caught_up()

    assert INVALID_TXN_STATE == refused
    flow.assert_exact(topic)


def test_partitions_that_turn_from_old_to_fresh_records_are_copied_to_the_end(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Callable[[], str], tmp_path: Path
):
    """No fault at all. Two tasks share the transaction, so a commit of one ends it for the other's partitions as well.

    Each round is copied before the next is written: what is fresh comes while its partition is still in the transaction.
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
            copied = (number + 1) * 10 * PARTITIONS
            replicator.wait_for_copy(west, flow.remote(topic), copied)
        replicator.wait_until_caught_up(partitions=PARTITIONS)

    flow.assert_exact(topic)
