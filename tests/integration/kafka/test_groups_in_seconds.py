"""Groups on the target are translated within seconds of each commit on the source, without waiting for a pass."""

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.tools import load
from tests.harness.replicator import Replicator
from tests.integration.kafka.groups import group_offsets, put_group
from tests.integration.kafka.test_checkpoints import Flow, flow  # noqa: F401 - a fixture

Names = Callable[[], str]
WAIT_S = 60.0


def flow_with_rare_passes(
    flow: Flow,  # noqa: F811
    topic: str,
    groups: str,
    *,
    connector: dict[str, str] | None = None,
    sync_s: int = 3600,
) -> Replicator:
    """Returns a process that is not yet started. No pass follows its first one, unless *sync_s* sets an interval."""
    return flow.process(
        topic,
        connector=connector,
        groups=groups,
        sync_group_offsets_enabled="true",
        refresh_groups_interval_seconds="3600",
        emit_checkpoints_interval_seconds="3600",
        sync_group_offsets_interval_seconds=str(sync_s),
    )


def test_a_group_is_translated_exactly_after_each_commit_while_records_are_copied(
    flow: Flow,  # noqa: F811
    unique_topic: Names,
):
    """Commits ahead of the copy become exact once the copy has reached them."""
    topic, group = flow.source.create_topic(unique_topic()), f"g-{uuid.uuid4().hex[:8]}"
    remote = flow.remote(topic)
    load(flow.source, topic, 100)
    put_group(flow.source, group, {(topic, 0): 10})
    with flow_with_rare_passes(flow, topic, group) as process:
        flow.wait_for_group(group, {(remote, 0): 10})
        moved = []
        for first in range(100, 400, 100):
            load(flow.source, topic, 100, first=first)
            put_group(flow.source, group, {(topic, 0): first + 73})
            moved.append(flow.wait_for_group(group, {(remote, 0): first + 73})[remote, 0])
        metrics = process.metrics()
        checkpoint = flow.checkpoints(group)[-1]

    assert moved == [173, 273, 373]
    assert (checkpoint["upstream_offset"], checkpoint["downstream_offset"]) == (373, 373)
    assert 'followed_by="commit-log"' in metrics


def test_a_new_group_is_found_by_its_commits(flow: Flow, unique_topic: Names):  # noqa: F811
    """Groups are listed again when a group commits that the last listing did not have."""
    topic, own = flow.source.create_topic(unique_topic()), uuid.uuid4().hex[:8]
    remote = flow.remote(topic)
    load(flow.source, topic, 100)
    put_group(flow.source, f"a-{own}", {(topic, 0): 10})
    with flow_with_rare_passes(flow, topic, f".*-{own}"):
        flow.wait_for_group(f"a-{own}", {(remote, 0): 10})
        put_group(flow.source, f"b-{own}", {(topic, 0): 20})
        flow.wait_for_group(f"b-{own}", {(remote, 0): 20})


def test_offsets_of_a_transaction_apply_only_if_it_commits(flow: Flow, unique_topic: Names):  # noqa: F811
    """A consumer that starts in the group on the source also receives only committed offsets."""
    topic, group = flow.source.create_topic(unique_topic()), f"g-{uuid.uuid4().hex[:8]}"
    remote = flow.remote(topic)
    load(flow.source, topic, 100)
    put_group(flow.source, group, {(topic, 0): 10})
    producer = Producer({"bootstrap.servers": flow.source.internal_bootstrap, "transactional.id": group})
    reader = Consumer({"bootstrap.servers": flow.source.internal_bootstrap, "group.id": group})
    producer.init_transactions(WAIT_S)

    def send(offset: int) -> None:
        producer.begin_transaction()
        positions = [TopicPartition(topic, 0, offset)]
        producer.send_offsets_to_transaction(positions, reader.consumer_group_metadata(), WAIT_S)

    with flow_with_rare_passes(flow, topic, group):
        flow.wait_for_group(group, {(remote, 0): 10})
        send(90)
        producer.abort_transaction(WAIT_S)
        send(30)
        producer.commit_transaction(WAIT_S)
        moved = flow.wait_for_group(group, {(remote, 0): 11})
    reader.close()

    assert moved == {(remote, 0): 30}


@pytest.fixture(scope="module")
def secured() -> Iterator[KafkaCluster]:
    """A source that grants nothing by default."""
    with KafkaCluster(name="guarded", listeners=("SASL_PLAINTEXT",), authorizer=True) as cluster:
        yield cluster


@pytest.mark.more
def test_groups_are_polled_without_permission_to_read_the_commit_log(
    secured: KafkaCluster, west: KafkaCluster, unique_topic: Names, tmp_path: Path
):
    """Groups that moved recently are read every few seconds. The metrics and the log have the method and the reason."""
    own = uuid.uuid4().hex[:8]
    flow = Flow(source=secured, target=west, folder=tmp_path, alias=f"e{own}", target_alias=f"w{own}")  # noqa: F811
    topic, group = secured.create_topic(unique_topic()), f"g-{own}"
    remote = flow.remote(topic)
    load(secured, topic, 100)
    put_group(secured, group, {(topic, 0): 10})
    secured.allow("READ", "TOPIC", topic)
    secured.allow("DESCRIBE_CONFIGS", "TOPIC", topic)
    secured.allow("DESCRIBE", "GROUP", group)
    client = secured.java_client("SASL_PLAINTEXT")
    lines = {f"source.cluster.{key}": value for key, value in client.items()}
    lines["offset-syncs.topic.location"] = "target"
    with flow_with_rare_passes(flow, topic, group, connector=lines, sync_s=10) as process:
        flow.wait_for_group(group, {(remote, 0): 10})
        put_group(secured, group, {(topic, 0): 20})  # a pass detects that it moves
        flow.wait_for_group(group, {(remote, 0): 20})
        put_group(secured, group, {(topic, 0): 30})
        flow.wait_for_group(group, {(remote, 0): 30})
        metrics = process.metrics()
        status = str(process.rest("/connectors/MirrorCheckpointConnector/status")[1])

    assert group_offsets(west, group) == {(remote, 0): 30}
    assert 'followed_by="polls"' in metrics
    assert "__consumer_offsets" not in status  # the missing permission is not a problem
