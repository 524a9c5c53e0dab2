"""Share groups (KIP-932) are moved to the target.

Members there continue at the start offset, and no unfinished record is skipped.
"""

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_kafka.admin import share_groups
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.installation import NEWEST_VERSION, OLD_VERSION, write_properties
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tool_service import run_alone
from tests.harness.kafka.tools import load
from tests.harness.replicator import Replicator
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
    """Returns the offsets of *count* records that the only member of *group* has acknowledged.

    The member releases those in *skip*.
    """
    stem = cluster.home / f"share-{group}-{uuid.uuid4().hex[:6]}"
    client = write_properties(stem.with_suffix(".properties"), cluster.java_client("INTERNAL"))
    arguments = [f"client={client}", f"group={group}", f"topic={topic}", f"count={count}"]
    arguments += [f"skip={skip}"] if skip else []
    arguments += [f"reset={reset}"] if reset else []
    lines = run_alone("ShareReader", arguments, log=stem.with_suffix(".log")).splitlines()
    return sorted(int(line.split()[1]) for line in lines)


def start_offset(cluster: KafkaCluster, group: str, topic: str) -> int:
    """Returns the start offset of *group* in partition 0, or -1 if there is none."""
    starts = call_cluster(cluster, lambda client: share_groups.fetch_start_offsets(client, group))
    start = starts.get(TopicPartition(topic, 0))
    return -1 if start is None else start.offset


def prepared_group(flow: Flow, topic: str) -> str:
    """Returns a group that has acknowledged 49 of 100 records of *topic*.

    These are the first 40, and then nine of the next ten.
    """
    flow.source.create_topic(topic)
    load(flow.source, topic, 100)
    group = f"share-{uuid.uuid4().hex[:6]}"
    acknowledged = read_shared(flow.source, group, topic, count=49, skip="40", reset="earliest")
    assert acknowledged == [*range(40), *range(41, 50)]
    return group


@contextmanager
def moving(flow: Flow, topic: str, group: str) -> Iterator[Replicator]:
    """Runs the flow, which moves *group*."""
    with flow.process(
        topic,
        connector={"offset-syncs.topic.location": "target"},
        worker={"offset.flush.interval.ms": "500"},
        groups=group,
        sync_group_offsets_enabled="true",
    ) as process:
        yield process


def test_a_share_group_continues_on_the_target_at_its_start_offset(flow: Flow, unique_topic: Names) -> None:
    """Records acknowledged before the start offset are not delivered again.

    Records acknowledged after it are, and are counted.
    """
    topic = unique_topic()
    group, copy = prepared_group(flow, topic), flow.remote(topic)
    with moving(flow, topic, group) as process:
        wait_until("the group is on the target", lambda: start_offset(flow.target, group, copy) == 40)
        warnings = str(process.rest("/connectors/MirrorCheckpointConnector/status")[1])
        shown = flow.command("offsets", "--group", group)
    on_target = read_shared(flow.target, group, copy, count=60)

    assert "not synchronised" not in warnings
    assert "bound, 9 or fewer again" in shown
    assert on_target == [*range(40, 100)]


@pytest.mark.java
def test_a_share_group_moves_between_brokers_of_the_newest_release(
    tmp_path: Path, unique_topic: Names
) -> None:
    topic = unique_topic()
    with (
        KafkaCluster(name="near", version=NEWEST_VERSION) as near,
        KafkaCluster(name="far", version=NEWEST_VERSION) as far,
    ):
        flow = Flow(source=near, target=far, folder=tmp_path, alias="p", target_alias="q")
        group, copy = prepared_group(flow, topic), flow.remote(topic)
        with moving(flow, topic, group):
            wait_until("the group is on the target", lambda: start_offset(far, group, copy) == 40)

        assert read_shared(far, group, copy, count=60) == [*range(40, 100)]


@pytest.mark.java
def test_a_target_without_share_groups_is_reported(
    east: KafkaCluster, tmp_path: Path, unique_topic: Names
) -> None:
    """Its brokers do not support the requests. The records are copied."""
    topic, own = unique_topic(), uuid.uuid4().hex[:6]
    with KafkaCluster(name="old", version=OLD_VERSION) as old:
        flow = Flow(source=east, target=old, folder=tmp_path, alias=f"p{own}", target_alias="q")
        group = prepared_group(flow, topic)
        with moving(flow, topic, group) as process:
            wait_until(
                "the warning is there",
                lambda: (
                    "do not offer DescribeShareGroupOffsets"
                    in str(process.rest("/connectors/MirrorCheckpointConnector/status")[1])
                ),
            )
            process.wait_for_copy(old, flow.remote(topic), 100)
        # A new flow is used, because the first one belongs to the process that has run.
        unowned = Flow(source=east, target=old, folder=tmp_path, alias=f"c{own}", target_alias="q")
        checked = unowned.command("check", "--groups", group, "--topics", topic)

    assert f"Share group {group} cannot follow to q" in checked
