"""Producers of others that bear a flow's producer id: ids are unique in one cluster only, and each cluster counts from 0.

A client that moves over from another cluster keeps its id, its epoch (0, unless it was fenced there) and its next sequence.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from mirrorflow_core.exactly_once.identity import Anchor, Identity, stream_definition, transactional_id
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.stores.decision_log import DecisionLog
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.tools import load, records
from tests.integration.kafka.flows import (
    Flow,
    asking,
    contents,
    now_ms,
    numbered,
    wait_for_outcome,
    write_as,
    write_batches,
)

pytestmark = pytest.mark.more

INVALID_PRODUCER_EPOCH = 47
HIGH_EPOCH = 16  # no client of another cluster was fenced so often
COPIED = 100
FEW, BACKLOG = 50, 20
FOREIGN = b"foreign"


def foreign_batch(count: int = 1) -> list[Any]:
    return [one._replace(key=FOREIGN) for one in numbered(0, count, timestamp=now_ms())]


def copied_by_us(flow: Flow, topic: str) -> list[tuple[object, ...]]:
    return [one for one in contents(records(flow.target, flow.remote(topic))) if one[1] != FOREIGN]


def test_a_stranger_of_a_low_epoch_is_refused(flow: Flow, unique_topic: Callable[[], str]):
    """It writes the flow's next number."""
    topic = flow.source.create_topic(unique_topic())
    load(flow.source, topic, COPIED)
    with flow.replicator(topic) as replicator:
        replicator.wait_until_caught_up()
        refused = write_as(flow, topic, foreign_batch(), sequence=COPIED, epoch=0)
        load(flow.source, topic, COPIED, first=COPIED)
        replicator.wait_until_caught_up()

    assert INVALID_PRODUCER_EPOCH == refused
    flow.assert_exact(topic)


def test_what_a_stranger_wrote_before_the_flow_began_hides_nothing(
    flow: Flow, unique_topic: Callable[[], str]
):
    """A leader that knows no producer takes the stranger's batch; its numbers must not pass for records of ours."""
    stem = unique_topic()
    topic, later = flow.source.create_topic(f"{stem}-first"), f"{stem}-later"
    with flow.replicator(f"{stem}-.*") as replicator:
        load(flow.source, topic, COPIED)
        replicator.wait_until_caught_up()
        flow.target.create_topic(flow.remote(later))
        assert 0 == write_as(flow, later, foreign_batch(10), sequence=0, epoch=0)
        flow.source.create_topic(later)
        load(flow.source, later, COPIED)
        replicator.wait_until_caught_up(partitions=2)

    assert contents(records(flow.source, later)) == copied_by_us(flow, later)


@pytest.mark.parametrize("count", [1, 10])
def test_a_stranger_who_takes_the_next_number_stops_the_partition(
    flow: Flow, unique_topic: Callable[[], str], count: int
):
    """Its batch is taken for the flow's next one, of as many records (a repeat for the leader) or of more (out of order)."""
    topic = flow.source.create_topic(unique_topic())
    load(flow.source, topic, COPIED)
    with flow.replicator(topic) as replicator:
        replicator.wait_until_caught_up()
        taken = write_as(flow, topic, foreign_batch(), sequence=COPIED)
        load(flow.source, topic, count, first=COPIED)
        said = wait_for_outcome(replicator, topic, COPIED + count)

    assert 0 == taken
    assert ("stopped", "IdentityTaken") == (said["phase"], said["reason"])
    assert contents(records(flow.source, topic))[:COPIED] == copied_by_us(flow, topic)


def test_a_stranger_of_the_same_moment_costs_no_record(flow: Flow, unique_topic: Callable[[], str]):
    """Its batch has the flow's next number, and as many records and the timestamp of the next batch; more of ours lie behind it.

    The partition stops; under another policy, set as the message advises, what was taken is copied. The second process has no
    stored offset, so the stranger's batch has to lie among the first copies, which are compared by content.
    """
    topic, now = flow.source.create_topic(unique_topic()), now_ms()
    load(flow.source, topic, FEW)
    with flow.replicator(topic) as replicator:
        replicator.wait_until_caught_up()
        taken = write_as(flow, topic, [foreign_batch()[0]._replace(timestamp=now)], sequence=FEW)
        write_batches(flow.source, topic, [[one] for one in numbered(FEW, BACKLOG, timestamp=now)])
        said = wait_for_outcome(replicator, topic, FEW + BACKLOG)
    with flow.replicator(topic, {"mirrorflow.source.loss.policy": "alert"}) as replicator:
        replicator.wait_until_caught_up()
        losses = replicator.progress()["losses"]

    sent, copied = (
        Counter(one) for one in (contents(records(flow.source, topic)), copied_by_us(flow, topic))
    )
    assert 0 == taken
    assert ("stopped", "IdentityTaken") == (said["phase"], said["reason"])
    assert 1 == losses
    assert not sent - copied
    assert (copied - sent).total() < BACKLOG, "no more than what was in flight is there twice"


def test_a_flow_of_a_low_epoch_moves_to_a_high_one_and_continues(
    flow: Flow, east: KafkaCluster, west: KafkaCluster, unique_topic: Callable[[], str]
):
    """It was begun in epoch 0, as all were, and died without a position: nothing is lost or repeated by the move."""
    topic = east.create_topic(unique_topic())
    sent = numbered(0, 1_000, timestamp=now_ms())
    write_batches(east, topic, [sent[:600], sent[600:]])
    west.create_topic(flow.remote(topic))

    async def begin(connected: Cluster) -> None:
        name = transactional_id(flow.alias)
        producer_id, epoch = await admin.init_producer_id(connected, name, timeout_ms=60_000)
        assert 0 == epoch
        log = DecisionLog(connected, flow.alias, replication_factor=1)
        await log.ensure()
        identity = Identity(
            generation=1,
            producer_id=producer_id,
            producer_epoch=epoch,
            transactional_id=name,
            source_cluster_id=east.cluster_id,
            target_cluster_id=west.cluster_id,
            policy="default .",
            flow=f"{flow.alias}->{west.name}",
            stream=stream_definition(read_committed=False),
            why="begin",
        )
        anchor = Anchor(
            generation=1,
            topic=topic,
            partition=0,
            step=0,
            ordinal=0,
            source_offset=0,
            target_offset=0,
            source_topic_id="",
            target_topic_id="",
            why="earliest",
        )
        await log.decide([identity, anchor], now_ms=now_ms())

    asking(west, begin)
    assert 0 == write_as(flow, topic, sent[:600], sequence=0)
    with flow.replicator(topic) as replicator:
        replicator.wait_until_caught_up()
        late = write_as(flow, topic, sent[600:700], sequence=600, epoch=0)
        load(east, topic, 100, first=1_000)
        replicator.wait_until_caught_up()

    flow.assert_exact(topic)
    assert INVALID_PRODUCER_EPOCH == late
    assert flow.identity().producer_epoch >= HIGH_EPOCH
