"""Streams groups, and groups over two hops. Share groups are in test_share_groups."""

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.mirror_client import clusters, translated_offsets
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import load
from tests.harness.replicator import Replicator
from tests.integration.kafka.groups import group_offsets, put_group, put_other_group
from tests.integration.kafka.test_checkpoints import Flow

pytestmark = pytest.mark.more

Names = Callable[[], str]


@pytest.fixture
def flow(east: KafkaCluster, west: KafkaCluster, tmp_path: Path) -> Flow:
    own = uuid.uuid4().hex[:8]
    return Flow(source=east, target=west, folder=tmp_path, alias=f"p{own}", target_alias=f"q{own}")


def test_a_streams_group_is_reported_as_not_synchronised(flow: Flow, unique_topic: Names) -> None:
    """The status, the metrics and the command contain its name and the reason.

    Consumer groups are translated as usual.
    """
    topic, own = flow.source.create_topic(unique_topic()), uuid.uuid4().hex[:6]
    load(flow.source, topic, 100)
    streams, group = f"streams-{own}", f"group-{own}"
    assert "Streams" == put_other_group(flow.source, "streams", streams, topic)
    put_group(flow.source, group, {(topic, 0): 50})
    with flow.process(
        topic,
        connector={"offset-syncs.topic.location": "target"},
        worker={"offset.flush.interval.ms": "500"},
        groups=f".*-{own}",
        sync_group_offsets_enabled="true",
    ) as process:
        flow.wait_for_group(group, {(flow.remote(topic), 0): 50})
        status = str(process.rest("/connectors/MirrorCheckpointConnector/status")[1])
        metrics = process.metrics()
    command = {name: flow.command("offsets", "--group", name) for name in (group, streams)}

    assert f"Group {streams} of {flow.alias} is not synchronised: it is a streams group" in status
    assert 'state="not-synchronised"} 1' in metrics
    assert {group} == {line["record"]["group"] for line in flow.dumped("checkpoints")}
    assert {} == group_offsets(flow.target, streams)
    assert "exact" in command[group]
    assert "exact" not in command[streams]


@pytest.fixture
def two_clusters() -> Iterator[tuple[KafkaCluster, KafkaCluster]]:
    """Provides two clusters for one test, because every other flow would copy the heartbeats of a chain."""
    with KafkaCluster(name="near") as near, KafkaCluster(name="far") as far:
        yield near, far


def test_java_reads_checkpoints_and_copies_over_two_hops(
    two_clusters: tuple[KafkaCluster, KafkaCluster], unique_topic: Names, tmp_path: Path
) -> None:
    """An mm2.properties has a chain of three clusters. The second hop translates what the first hop has written."""
    east, west = two_clusters
    own = uuid.uuid4().hex[:6]
    a, b, c = (f"{name}{own}" for name in "abc")
    topic, group = east.create_topic(f"{unique_topic()}-chain"), f"chain-{own}"
    load(east, topic, 1000, transactional_id=f"t-{own}", transaction_records=50)
    put_group(east, group, {(topic, 0): 306})  # three hundred records and six markers
    chain = {
        "clusters": f"{a}, {b}, {c}",
        f"{a}.bootstrap.servers": east.bootstrap,
        f"{b}.bootstrap.servers": west.bootstrap,
        f"{c}.bootstrap.servers": east.bootstrap,
        f"{a}->{b}.enabled": "true",
        f"{b}->{c}.enabled": "true",
        "topics": ".*-chain",
        "groups": group,
        "sync.group.offsets.enabled": "true",
        "sync.group.offsets.interval.seconds": "1",
        "emit.checkpoints.interval.seconds": "1",
        "refresh.groups.interval.seconds": "1",
        "refresh.topics.interval.seconds": "1",
        "offset.flush.interval.ms": "500",
        "replication.factor": "1",
        "heartbeats.topic.replication.factor": "1",
        "offset-syncs.topic.replication.factor": "1",
        "checkpoints.topic.replication.factor": "1",
        "offset.storage.replication.factor": "1",
    }
    first, second = f"{a}.{topic}", f"{b}.{a}.{topic}"
    with Replicator.mm2(chain, folder=tmp_path):
        translated = wait_until(
            "the second hop has a checkpoint",
            lambda: (
                (offsets := translated_offsets(east, b, group))
                and offsets.get((second, 0)) == (300, "")
                and offsets
            ),
            poll_s=2.0,
        )
        wait_until(
            "the group is translated over both hops",
            lambda: group_offsets(east, group).get((second, 0)) == 300,
        )
    mirrored = clusters(east, (a, b))

    assert translated is not None
    assert (300, "") == translated_offsets(west, a, group)[first, 0]
    assert {f"{b}.checkpoints.internal"} <= set(mirrored.checkpoint_topics)
    assert second in mirrored.remote_topics
