"""The flow's own topics are deleted, emptied, changed or leaderless while it copies.

The flow continues, or reports why it cannot.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException

from mirrorflow_core.connect.mirror_records import offset_map_topic
from mirrorflow_core.writer.claim import claims_topic
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import FOREVER, load, records
from tests.harness.replicator import Replicator
from tests.integration.kafka.flows import DAY_MS, Flow, now_ms, reassign
from tests.integration.kafka.groups import put_group

TOPICS = {
    "claims": lambda flow: claims_topic(flow.alias),
    "positions": lambda flow: f"mm2-offsets.{flow.alias}.internal",
    "offset map": lambda flow: offset_map_topic(flow.alias),
    "offset syncs": lambda flow: f"mm2-offset-syncs.{flow.alias}.internal",
}
OF_OTHER_CONNECTORS = {
    "checkpoints": lambda flow: f"{flow.alias}.checkpoints.internal",
    "heartbeats": lambda _: "heartbeats",
}
REPLICATED = {
    "replication.factor": "3",
    "offset-syncs.topic.replication.factor": "3",
    "checkpoints.topic.replication.factor": "3",
    "heartbeats.topic.replication.factor": "3",
}
OFTEN = {
    "emit.checkpoints.interval.seconds": "1",
    "refresh.groups.interval.seconds": "1",
    "emit.heartbeats.interval.seconds": "1",
}
BACKLOG = 20_000
# These offset syncs belong to this flow only.
ON_TARGET = {"offset-syncs.topic.location": "target"}


def record_count(cluster: KafkaCluster, topic: str) -> int:
    """Returns how many records of *topic* a consumer of committed records receives."""
    return len(records(cluster, topic, isolation="read_committed"))


def lose(cluster: KafkaCluster, topic: str, event: str) -> None:
    """Deletes *topic*, or all of its records."""
    if event == "deleted":
        cluster.delete_topic(topic)
        return

    def delete_all_records() -> bool:
        cluster.alter_topic(topic, {"cleanup.policy": "delete"})
        try:
            cluster.delete_records(topic, cluster.end_offsets(topic))
        except KafkaException as error:
            if error.args[0].code() != KafkaError.POLICY_VIOLATION:
                raise
            return False  # the flow has corrected the policy, or the leader does not yet have it
        return True

    wait_until(f"{topic} is emptied", delete_all_records)


@pytest.mark.more
@pytest.mark.parametrize("which", TOPICS)
@pytest.mark.parametrize("event", ["deleted", "emptied"])
def test_a_flow_continues_after_the_loss_of_an_internal_topic(
    flow: Flow, unique_topic: Callable[[], str], which: str, event: str
):
    topic = flow.source.create_topic(unique_topic())
    load(flow.source, topic, 300)
    name = TOPICS[which](flow)
    with flow.replicator(topic, ON_TARGET) as replicator:
        replicator.wait_until_caught_up()
        wait_until(f"{name} has records", lambda: record_count(flow.target, name) > 0)
        lose(flow.target, name, event)
        wait_until(f"{name} exists again", lambda: flow.target.has_topic(name))
        wait_until(f"{name} has records", lambda: record_count(flow.target, name) > 0)
        load(flow.source, topic, 300, first=300)
        replicator.wait_until_caught_up()
        replicator.kill()
        load(flow.source, topic, 300, first=600)
        replicator.start()
        replicator.wait_until_caught_up()
        wait_until(
            f"{name} is compacted", lambda: flow.target.topic_config(name)["cleanup.policy"] == "compact"
        )

    flow.assert_exact(topic)


@pytest.mark.more
def test_positions_deleted_while_old_records_are_copied_are_stored_again(
    flow: Flow, unique_topic: Callable[[], str]
):
    """Old records are copied in transactions. Meanwhile, the offsets topic is deleted."""
    topic, old_ms = flow.source.create_topic(unique_topic(), partitions=3), now_ms() - 3 * DAY_MS
    load(flow.source, topic, 30_000, size_bytes=200, timestamp_ms=old_ms)
    name = TOPICS["positions"](flow)
    with flow.replicator(topic, {"mirrorflow.bytes.per.second": "512Ki"}) as replicator:
        wait_until("some records are copied", lambda: flow.copied(topic) > 3_000)
        flow.target.delete_topic(name)
        wait_until(
            f"{name} has records", lambda: flow.target.has_topic(name) and record_count(flow.target, name) > 0
        )
        replicator.wait_until_caught_up(partitions=3)
        flow.wait_until_committed(topic)

    flow.assert_exact(topic, reader="read_committed")


@pytest.mark.more
def test_adding_partitions_to_the_offsets_topic_repeats_no_record(
    east: KafkaCluster, west: KafkaCluster, tmp_path: Path, unique_topic: Callable[[], str]
):
    """A third of the keys move to other partitions of the topic. The old partitions keep older positions."""
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


@pytest.fixture(scope="module")
def three_brokers() -> Iterator[KafkaCluster]:
    with KafkaCluster(name="trio", brokers=3) as cluster:
        yield cluster


@pytest.fixture
def trio(three_brokers: KafkaCluster) -> Iterator[KafkaCluster]:
    """Three brokers. A broker that a test has stopped is started again afterwards."""
    yield three_brokers
    if not three_brokers.broker(3).running:
        three_brokers.broker(3).start()
    three_brokers.wait_for_brokers(3)


def all_connectors(flow: Flow, topic: str) -> Replicator:
    """Returns one process with a source, a checkpoint and a heartbeat connector, which copies about 0.5 MiB a second."""
    process = flow.replicator(topic, ON_TARGET | REPLICATED | {"mirrorflow.bytes.per.second": "512Ki"})
    worker, source = process.files
    assert isinstance(source, dict)
    others = (
        source | OFTEN | {"name": name, "connector.class": name}
        for name in ("MirrorCheckpointConnector", "MirrorHeartbeatConnector")
    )
    process.files = (worker, source, *others)
    return process


def put_on_broker(cluster: KafkaCluster, topic: str, brokers: list[int], partitions: int = 1) -> None:
    """Moves *topic* to *brokers*, and creates it if it is missing."""
    if not cluster.has_topic(topic):
        cluster.create_topic(topic, partitions=partitions, config={"cleanup.policy": "compact"})
    for partition in range(partitions):
        reassign(cluster, topic, brokers, partition)


@pytest.mark.faults
@pytest.mark.parametrize(
    ("which", "days"),
    [*((which, 0) for which in TOPICS | OF_OTHER_CONNECTORS), ("claims", 2), ("positions", 2)],
)
def test_an_internal_topic_without_a_leader_is_reported_until_it_has_one(
    east: KafkaCluster,
    trio: KafkaCluster,
    tmp_path: Path,
    unique_topic: Callable[[], str],
    which: str,
    days: int,
) -> None:
    """The broker with its only replica is down.

    Copying waits only if positions are missing. Records are recent or old.
    """
    flow = Flow.new(east, trio, tmp_path, worker={"offset.storage.replication.factor": "3"})
    topic = east.create_topic(unique_topic(), partitions=2, config=FOREVER)
    name, timestamp_ms = (TOPICS | OF_OTHER_CONNECTORS)[which](flow), now_ms() - days * DAY_MS
    message = f"Topic {name} of cluster {trio.name}, which is the flow's own, has no leader for partition 0; start the brokers"
    load(east, topic, BACKLOG, size_bytes=200, timestamp_ms=timestamp_ms)
    put_group(east, f"g-{flow.alias}", {(topic, 0): BACKLOG // 4})
    put_on_broker(trio, name, [3])
    trio.create_topic(flow.remote(topic), partitions=2, config=FOREVER)
    put_on_broker(trio, flow.remote(topic), [1, 2], 2)

    with all_connectors(flow, topic) as replicator:

        def is_reported() -> bool:
            return message in json.dumps(replicator.rest("/progress/partitions")[1])

        wait_until("some records are copied", lambda: flow.copied(topic) > BACKLOG // 10)
        trio.broker(3).kill()
        wait_until("the missing leader is reported", is_reported)
        if which == "positions":
            wait_until(
                "the partition reports it as its reason",
                lambda: message in replicator.partition(topic)["message"],
            )
        else:
            replicator.wait_until_caught_up(partitions=2)
        if which in {"claims", "positions"}:
            replicator.kill()
            replicator.start()
            wait_until("a new process reports it, too", is_reported)
        trio.broker(3).start()
        replicator.wait_until_caught_up(partitions=2)
        flow.assert_committed(topic)
        wait_until("it is not reported any more", lambda: not is_reported())
        replicator.kill()
        load(east, topic, 300, first=BACKLOG, timestamp_ms=timestamp_ms)
        replicator.start()
        flow.assert_committed(topic)

    if not days:
        flow.assert_exact(topic)
