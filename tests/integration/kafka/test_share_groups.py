"""Share groups (KIP-932) follow to the target: members there continue at the start offset, and nothing that was not finished is skipped."""

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_kafka.admin import share_groups
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.installation import write_properties
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tool_service import run_alone
from tests.harness.kafka.tools import load
from tests.integration.kafka.flows import call_cluster
from tests.integration.kafka.test_checkpoints import Flow

Names = Callable[[], str]


@pytest.fixture
def flow(east: KafkaCluster, west: KafkaCluster, tmp_path: Path) -> Flow:
    own = uuid.uuid4().hex[:8]
    return Flow(source=east, target=west, folder=tmp_path, alias=f"p{own}", target_alias=f"q{own}")


def read_shared(
    cluster: KafkaCluster, group: str, topic: str, *, count: int, skip: str = "", reset: str = ""
) -> list[int]:
    """Returns the offsets of *count* records that the only member of *group* has acknowledged; it releases those of *skip*."""
    stem = cluster.home / f"share-{group}-{uuid.uuid4().hex[:6]}"
    client = write_properties(stem.with_suffix(".properties"), cluster.java_client("INTERNAL"))
    arguments = [f"client={client}", f"group={group}", f"topic={topic}", f"count={count}"]
    arguments += [f"skip={skip}"] if skip else []
    arguments += [f"reset={reset}"] if reset else []
    lines = run_alone("ShareReader", arguments, log=stem.with_suffix(".log")).splitlines()
    return sorted(int(line.split()[1]) for line in lines)


def start_offset(cluster: KafkaCluster, group: str, topic: str) -> int:
    """Returns the start offset of *group* in partition 0; -1: none."""
    starts = call_cluster(cluster, lambda client: share_groups.fetch_start_offsets(client, group))
    start = starts.get(TopicPartition(topic, 0))
    return -1 if start is None else start.offset


def test_a_share_group_continues_on_the_target_where_it_was(flow: Flow, unique_topic: Names) -> None:
    """What was acknowledged before the start offset is not delivered again; what was acknowledged after it is, and is counted."""
    topic, group = flow.source.create_topic(unique_topic()), f"share-{uuid.uuid4().hex[:6]}"
    load(flow.source, topic, 100)
    acknowledged = read_shared(flow.source, group, topic, count=49, skip="40", reset="earliest")
    with flow.process(
        topic,
        connector={"offset-syncs.topic.location": "target"},
        worker={"offset.flush.interval.ms": "500"},
        groups=group,
        sync_group_offsets_enabled="true",
    ) as process:
        copy = flow.remote(topic)
        wait_until("the group is on the target", lambda: start_offset(flow.target, group, copy) == 40)
        warnings = str(process.rest("/connectors/MirrorCheckpointConnector/status")[1])
        shown = flow.command("offsets", "--group", group)
    on_target = read_shared(flow.target, group, copy, count=60)

    assert acknowledged == [*range(40), *range(41, 50)]
    assert "not synchronised" not in warnings
    assert "bound, 9 or fewer again" in shown
    assert on_target == [*range(40, 100)]
