"""What a leader remembers of batches that it verifies with the coordinator (KIP-890) holds up no partition."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mirrorflow_core.exactly_once.identity import Identity, transactional_id
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire.records import encode
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.client.error_codes import INVALID_TXN_STATE
from tests.harness.kafka.cluster import KafkaCluster
from tests.integration.kafka.flows import Flow, asking, numbered, write_batches
from tests.integration.kafka.test_exactly_once_permissions import MIRROR, client_of, guarded

pytestmark = pytest.mark.more

__all__ = ["guarded"]  # a fixture

Names = Callable[[], str]


def test_a_leader_that_remembers_a_sequence_too_low_does_not_hold_up_a_partition(
    flow: Flow, unique_topic: Names
):
    """It verifies a transactional batch, refuses it, and remembers its sequence (KIP-890): then it refuses all later ones.

    Only a transaction that is committed in such a partition, or a day of silence, makes it forget that.
    """
    topic = flow.source.create_topic(unique_topic())
    now_ms = time.time_ns() // 1_000_000
    write_batches(flow.source, topic, [numbered(0, 10, timestamp=now_ms)])
    with flow.replicator(topic) as replicator:
        replicator.wait_until_caught_up()
        replicator.stop()
        identity = flow.decisions().identity
        assert identity is not None
        code = asking(
            flow.target, lambda cluster: write_outside(cluster, identity, flow.remote(topic), now_ms)
        )
        write_batches(flow.source, topic, [numbered(10, 10, timestamp=now_ms)])
        replicator.start()
        replicator.wait_until_caught_up()
        said = replicator.partition(topic)

    assert code == INVALID_TXN_STATE
    assert said["reason"] == ""
    flow.assert_exact(topic)


def test_such_a_sequence_does_not_hold_up_a_flow_whose_transactional_id_was_taken_away(
    east: KafkaCluster, guarded: KafkaCluster, unique_topic: Names, tmp_path: Path
):
    """Nothing can commit any more, so another generation begins: with a producer id that no leader remembers anything of."""
    connector = client_of(guarded, MIRROR, side="target.cluster.")
    flow = Flow.new(east, guarded, tmp_path, connector=connector, worker=client_of(guarded, MIRROR))
    name = transactional_id(flow.alias)
    for operation in ("WRITE", "DESCRIBE"):
        guarded.allow(operation, "TRANSACTIONAL_ID", name, user=MIRROR.name)
    topic = east.create_topic(unique_topic())
    now_ms = time.time_ns() // 1_000_000
    write_batches(east, topic, [numbered(0, 10, timestamp=now_ms)])
    with flow.replicator(topic) as replicator:
        replicator.wait_until_caught_up()
        replicator.stop()
        before = flow.identity()
        code = asking(guarded, lambda cluster: write_outside(cluster, before, flow.remote(topic), now_ms))
        guarded.allow("ALL", "TRANSACTIONAL_ID", name, user=MIRROR.name, deny=True)
        write_batches(east, topic, [numbered(10, 10, timestamp=now_ms)])
        replicator.start()
        replicator.wait_until_caught_up()
        said = replicator.partition(topic)

    after = flow.identity()
    assert code == INVALID_TXN_STATE
    assert (before.generation, before.transactional_id) == (1, name)
    assert (after.generation, after.transactional_id) == (2, "")
    assert said["reason"] == ""
    flow.assert_exact(topic)


async def write_outside(cluster: Cluster, identity: Identity, topic: str, now_ms: int) -> int:
    """The answer to a transactional batch with sequence 0, of a transaction that the partition is not in."""
    data = encode(
        numbered(0, 1, timestamp=now_ms),
        codec=0,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        base_sequence=0,
        transactional=True,
    )
    await cluster.refresh([topic])
    partition = TopicPartition(topic, 0)
    answers = await admin.produce(
        cluster, {partition: data}, timeout_ms=30_000, transactional_id=identity.transactional_id
    )
    return answers[partition]
