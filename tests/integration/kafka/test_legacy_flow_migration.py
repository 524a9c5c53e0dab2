"""A flow of an earlier release, which had no owner: its first owner migrates it, once.

There is no such release here any more, so its state is written by hand: an identity, where its partitions began,
records of that identity, and positions.
"""

import json
from collections.abc import Callable

import pytest

from mirrorflow_core.connect.position_records import PositionKey, encode_key
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import ClientSettings, StorageTopicSettings
from mirrorflow_core.wire.records import Record, encode
from mirrorflow_core.writer.identity import Anchor, Identity, transactional_id
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.stores.compacted_topic import CompactedTopic
from mirrorflow_kafka.stores.decision_log import DecisionLog
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import load
from tests.integration.kafka.flows import Flow, asking, now_ms, numbered, write_batches

INVALID_PRODUCER_EPOCH = 47


async def begin(cluster: Cluster, flow: Flow, topic: str) -> Identity:
    """Decide an identity, and that the copy of *topic* begins at its beginning."""
    name = transactional_id(flow.alias)
    producer_id, epoch = await admin.init_producer_id(cluster, name, timeout_ms=60_000)
    identity = Identity(
        generation=1,
        producer_id=producer_id,
        producer_epoch=epoch,
        transactional_id=name,
        source_cluster_id=flow.source.cluster_id,
        target_cluster_id=flow.target.cluster_id,
        policy="default .",
        flow=f"{flow.alias}->{flow.target.name}",
        stream="isolation.level=read_uncommitted",
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
    decisions = DecisionLog(cluster, flow.alias, replication_factor=1)
    await decisions.ensure()
    await decisions.decide([identity, anchor], now_ms=now_ms())
    return identity


def write_as(flow: Flow, identity: Identity, topic: str, batch: list[Record], *, sequence: int) -> int:
    """Append a batch to the copy of *topic* as an earlier release did; the error code of the answer."""
    data = encode(
        batch,
        codec=0,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        base_sequence=sequence,
    )
    partition = TopicPartition(flow.remote(topic), 0)

    async def write(cluster: Cluster) -> int:
        await cluster.refresh([partition.topic])
        return (await admin.produce(cluster, {partition: data}, timeout_ms=30_000))[partition]

    return asking(flow.target, write)


async def store(cluster: Cluster, flow: Flow, topic: str, last: int, *, left: bool) -> None:
    """Write the position of an earlier release behind the record at source offset *last*."""
    fields = {
        "offset": last,
        "mirrorflow.source.offset": last,
        "mirrorflow.sequence": last,
        "mirrorflow.target.offset": last,
        "mirrorflow.epoch": 1,
        "mirrorflow.source.topic.id": "",
        "mirrorflow.target.topic.id": "",
        "mirrorflow.rungs": "",
        "mirrorflow.left": left,
        "mirrorflow.written.ms": now_ms(),
        "mirrorflow.copier": "earlier",
    }
    storage = StorageTopicSettings(
        topic=f"mm2-offsets.{flow.alias}.internal",
        partitions=25,
        replication_factor=1,
        topic_configs={},
        client=ClientSettings(alias=flow.target.name, client_id="earlier", properties={}),
    )
    log = CompactedTopic(cluster, storage, key="offset.storage.topic")
    await log.open()
    key = encode_key(PositionKey("MirrorSourceConnector", flow.alias, topic, 0))
    await log.append([(key, json.dumps(fields).encode())], now_ms=now_ms())


@pytest.mark.parametrize("left", [True, False], ids=["stopped", "killed"])
def test_an_earlier_flow_continues_behind_its_position(
    flow: Flow, unique_topic: Callable[[], str], *, left: bool
):
    """Of one that was killed, 30 records are behind the position."""
    topic = flow.source.create_topic(unique_topic())
    sent = numbered(0, 200, timestamp=now_ms())
    write_batches(flow.source, topic, [sent])
    flow.target.create_topic(flow.remote(topic))
    identity = asking(flow.target, lambda cluster: begin(cluster, flow, topic))
    assert 0 == write_as(flow, identity, topic, sent[:80], sequence=0)
    last = 79 if left else 49
    asking(flow.target, lambda cluster: store(cluster, flow, topic, last, left=left))
    with flow.replicator(topic) as replicator:
        replicator.wait_until_caught_up()
        flow.assert_exact(topic)


def test_an_earlier_flow_of_another_name_is_refused(flow: Flow, unique_topic: Callable[[], str]):
    topic = flow.source.create_topic(unique_topic())
    asking(flow.target, lambda cluster: begin(cluster, flow, topic))
    with flow.replicator(topic, {"mirrorflow.flow": "another"}) as replicator:
        wait_until("it is refused", lambda: "FlowExists" in str(replicator.progress()["reasons"]))


@pytest.mark.more
def test_a_flow_without_an_owner_is_moved_without_loss_or_repeat(flow: Flow, unique_topic: Callable[[], str]):
    """A batch that the old copier had sent, and that arrives late, is refused."""
    topic = flow.source.create_topic(unique_topic())
    sent = numbered(0, 1_000, timestamp=now_ms())
    write_batches(flow.source, topic, [sent[:600], sent[600:]])
    flow.target.create_topic(flow.remote(topic))
    identity = asking(flow.target, lambda cluster: begin(cluster, flow, topic))
    assert 0 == write_as(flow, identity, topic, sent[:600], sequence=0)
    with flow.replicator(topic) as moved:
        moved.wait_until_caught_up()
        late = write_as(flow, identity, topic, sent[600:700], sequence=600)
        moved.kill()
        moved.start()
        load(flow.source, topic, 100, first=1_000)
        moved.wait_until_caught_up()
        flow.assert_committed(topic)

    assert INVALID_PRODUCER_EPOCH == late
