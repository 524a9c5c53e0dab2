"""A flow starts while one of its partitions cannot be taken over.

That partition waits with a reason, and the others continue. A start is the first one, a takeover, or the restart of a
task after writes without a response.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mirrorflow_core.topics.topic_acls import AclBinding, Operation, PatternType, Permission
from mirrorflow_core.writer.claim import claims_topic
from mirrorflow_kafka.admin import admin
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import FOREVER, load
from tests.harness.replicator import Replicator
from tests.integration.kafka.disks import move_replicas, small_disk
from tests.integration.kafka.flows import DAY_MS, Flow, call_cluster, now_ms, reassign
from tests.integration.kafka.test_failures_access import allow_source, allow_target, client, lines

pytestmark = pytest.mark.faults

COUNT = 300
TOPIC = 2  # ResourceType
# A former coordinator is given up after 30 s, a commit waits 10 s for responses, and a leader is given up after 5 s.
# The rest is for a busy machine.
SOON_S = 90.0
TRANSACTIONS = "__transaction_state"
# Writing a checkpoint file to a full disk would make the disk fail early.
CHECKPOINT_INTERVALS = (
    "replica.high.watermark.checkpoint.interval.ms",
    "log.flush.offset.checkpoint.interval.ms",
    "log.flush.start.offset.checkpoint.interval.ms",
)

Names = Callable[[], str]


@pytest.fixture(scope="module")
def secured() -> Iterator[KafkaCluster]:
    """A broker that grants nothing by default."""
    with KafkaCluster(name="guarded", listeners=("SASL_PLAINTEXT",), authorizer=True) as cluster:
        yield cluster


@contextmanager
def denied(cluster: KafkaCluster, operation: str, topic: str) -> Iterator[None]:
    """Denies *operation* on *topic* to the user of the flow during the block."""
    cluster.allow(operation, "TOPIC", topic, deny=True)
    yield
    binding = AclBinding(
        resource_type=TOPIC,
        resource_name=topic,
        pattern_type=PatternType.LITERAL,
        principal="User:mirror",
        host="*",
        operation=Operation[operation],
        permission_type=Permission.DENY,
    )
    call_cluster(cluster, lambda connected: admin.delete_acls(connected, [binding]))


def wait_for_records(flow: Flow, topic: str, count: int) -> None:
    wait_until(
        f"{count} records of {topic} are committed", lambda: flow.copied(topic) >= count, timeout_s=SOON_S
    )


def wait_for_reason(replicator: Replicator, reason: str, topic: str, number: int = 0) -> str:
    """Waits until a partition reports *reason*, and returns its message."""

    def message() -> str:
        status = replicator.partition(topic, number)
        return status["message"] if status.get("reason") == reason else ""

    return wait_until(f"{topic}-{number} reports {reason}", message)


@pytest.mark.parametrize("is_old", [False, True])
def test_other_partitions_start_even_if_writes_to_one_copy_are_denied(
    east: KafkaCluster, secured: KafkaCluster, unique_topic: Names, tmp_path: Path, *, is_old: bool
) -> None:
    """Write on one copy is denied while the flow runs. Then the process is killed and started again."""
    refused, others = (east.create_topic(unique_topic(), config=FOREVER) for _ in range(2))
    timestamp_ms = now_ms() - (40 * DAY_MS if is_old else 0)
    for topic in (refused, others):
        load(east, topic, COUNT, timestamp_ms=timestamp_ms)
    flow = Flow.new(east, secured, tmp_path, connector=lines("target", secured), worker=client(secured))
    allow_target(secured, flow.alias)

    with flow.replicator(f"{refused},{others}") as replicator:
        replicator.wait_until_caught_up(partitions=2)
        with denied(secured, "WRITE", flow.remote(refused)):
            for topic in (refused, others):
                load(east, topic, COUNT, first=COUNT, timestamp_ms=timestamp_ms)
            wait_for_records(flow, others, 2 * COUNT)
            replicator.wait_for_phase("stopped", refused)
            replicator.kill()
            load(east, others, COUNT, first=2 * COUNT, timestamp_ms=timestamp_ms)
            replicator.start()
            wait_for_records(flow, others, 3 * COUNT)
            status = replicator.wait_for_phase("stopped", refused)
        flow.assert_committed(refused)
        flow.assert_committed(others)

    assert status["reason"] == "NotAuthorized"
    assert f"Cluster guarded does not authorize Write on topic {flow.remote(refused)};" in status["message"]


def test_other_partitions_start_even_if_reads_of_one_source_topic_are_denied(
    secured: KafkaCluster, west: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    refused, others = (secured.create_topic(unique_topic()) for _ in range(2))
    for topic in (refused, others):
        load(secured, topic, COUNT)
        allow_source(secured, topic)
    flow = Flow.new(secured, west, tmp_path, connector=lines("source", secured))

    with flow.replicator(f"{refused},{others}") as replicator:
        replicator.wait_until_caught_up(partitions=2)
        with denied(secured, "READ", refused):
            replicator.kill()
            for topic in (refused, others):
                load(secured, topic, COUNT, first=COUNT)
            replicator.start()
            wait_for_records(flow, others, 2 * COUNT)
            status = replicator.wait_for_phase("stopped", refused)
        flow.assert_committed(refused)

    assert status["reason"] == "NotAuthorized"
    assert f"does not authorize Read on topic {refused};" in status["message"]


@pytest.mark.parametrize("restart", ["target", "process"])
def test_other_partitions_start_even_if_a_source_partition_has_no_leader(
    unique_topic: Names, tmp_path: Path, restart: str
) -> None:
    """One broker of the source is down. Then a broker of the target or the process restarts."""
    with (
        KafkaCluster(name="sources", brokers=3) as source,
        KafkaCluster(name="single") as target,
    ):
        topic = source.create_topic(unique_topic(), partitions=3)
        flow = Flow.new(source, target, tmp_path)
        load(source, topic, COUNT)
        with flow.replicator(topic) as replicator:
            replicator.wait_until_caught_up(partitions=3)
            before = flow.copied(topic)
            down = source.broker(source.leader(topic, 0))
            down.kill()
            wait_until("a partition has no leader", lambda: source.leader(topic, 0) < 0)
            others = [partition for partition in range(3) if source.leader(topic, partition) >= 0]
            if restart == "target":
                target.broker(1).kill()
                target.broker(1).start()
            else:
                replicator.kill()
                replicator.start()
            for partition in others:
                load(source, topic, COUNT, first=COUNT, partition=partition)
            wait_for_records(flow, topic, before + len(others) * COUNT)
            message = wait_for_reason(replicator, "SourceNotAnswering", topic)
            down.start()
            flow.assert_committed(topic)

    assert f"{topic}-0 of cluster {flow.alias} has no leader" in message
    assert "unfinished transactions" not in replicator.log_text()


@pytest.fixture
def blocked(tmp_path: Path, east: KafkaCluster, unique_topic: Names) -> Iterator[tuple[Flow, str]]:
    """A flow to three brokers, each with a proxy. The third broker leads only its partition of the copy."""
    config = {"transaction.state.log.num.partitions": "1", "offsets.topic.num.partitions": "1"}
    with KafkaCluster(name="behind", brokers=3, proxied=True, config=config) as target:
        properties = {"bootstrap.servers": target.proxied_bootstrap}
        connector = {"target.cluster.bootstrap.servers": target.proxied_bootstrap}
        flow = Flow.new(east, target, tmp_path, connector=connector, worker=properties)
        topic = east.create_topic(unique_topic(), partitions=3, config=FOREVER)
        copy = target.create_topic(flow.remote(topic), partitions=3, config=FOREVER)
        for partition in range(3):
            reassign(target, copy, [partition + 1], partition)
        yield flow, topic


def move_from_third(flow: Flow) -> None:
    """Moves the flow's own topics and the coordinators of its transactions away from the third broker."""
    for name in flow.target.topics():
        if flow.alias in name and name.endswith(".internal"):
            for partition in range(flow.target.partition_count(name)):
                reassign(flow.target, name, [1], partition)
    reassign(flow.target, TRANSACTIONS, [1, 2])
    claims = claims_topic(flow.alias)
    end = flow.target.total_end_offset(claims)
    # Each renewal of the claim, every 5 s, writes a record and a marker. By the second renewal, the processes know the
    # new leaders.
    wait_until("the claim is renewed twice", lambda: flow.target.total_end_offset(claims) >= end + 4)


@pytest.mark.parametrize("is_old", [False, True])
def test_other_partitions_commit_even_if_one_broker_does_not_respond(
    blocked: tuple[Flow, str], *, is_old: bool
) -> None:
    """Only this process cannot connect to the broker, so the broker remains the leader."""
    flow, topic = blocked
    timestamp_ms = now_ms() - (40 * DAY_MS if is_old else 0)
    load(flow.source, topic, COUNT, timestamp_ms=timestamp_ms)
    with flow.replicator(topic) as replicator:
        replicator.wait_until_caught_up(partitions=3)
        move_from_third(flow)
        flow.assert_committed(topic)
        before = flow.copied(topic)
        flow.target.proxy(3).blackhole()
        for partition in range(3):
            load(flow.source, topic, COUNT, first=COUNT, partition=partition, timestamp_ms=timestamp_ms)
        wait_for_records(flow, topic, before + 2 * COUNT)
        message = wait_for_reason(replicator, "TargetNotAnswering", topic, 2)
        replicator.kill()
        load(flow.source, topic, COUNT, first=2 * COUNT, partition=0, timestamp_ms=timestamp_ms)
        replicator.start()
        wait_for_records(flow, topic, before + 3 * COUNT)
        after_start = wait_for_reason(replicator, "TargetNotAnswering", topic, 2)
        flow.target.proxy(3).heal()
        flow.assert_committed(topic)

    # A plain partition may still wait for the response to its last batch.
    messages = (message, after_start) if is_old else (after_start,)
    assert all(f"broker 3 of cluster {flow.target.name}" in reported for reported in messages)


@pytest.mark.parametrize("is_old", [False, True])
def test_other_partitions_start_even_if_the_disk_of_one_copy_is_full(
    east: KafkaCluster, unique_topic: Names, tmp_path: Path, *, is_old: bool
) -> None:
    """A broker with two disks continues without the full one. That disk fails at the first write after the start."""
    full, others = (east.create_topic(unique_topic(), config=FOREVER) for _ in range(2))
    timestamp_ms = now_ms() - (40 * DAY_MS if is_old else 0)
    large = tmp_path / "large"
    with small_disk(tmp_path / "small", 24) as disk:
        config = {
            **disk.config,
            "log.dirs": f"{large},{disk.data}",
            "metadata.log.dir": str(large),
            **dict.fromkeys(CHECKPOINT_INTERVALS, "3600000"),
        }
        with KafkaCluster(name="two-disks", config=config) as target:
            flow = Flow.new(east, target, tmp_path)
            with flow.replicator(f"{full},{others}") as replicator:
                for topic in (full, others):
                    load(east, topic, COUNT, timestamp_ms=timestamp_ms)
                replicator.wait_until_caught_up(partitions=2)
                flow.assert_committed(full)
                replicator.kill()
                copy = flow.remote(full)
                move_replicas(
                    target, [topic_name for topic_name in target.topics() if topic_name != copy], large
                )
                move_replicas(target, [copy], disk.data)
                disk.fill()
                for topic in (full, others):
                    load(east, topic, COUNT, first=COUNT, timestamp_ms=timestamp_ms)
                replicator.start()
                wait_for_records(flow, others, 2 * COUNT)
                message = wait_for_reason(replicator, "TargetNotAnswering", full)
                disk.grow()
                target.broker(1).kill()
                target.broker(1).start()
                for topic in (full, others):
                    flow.assert_committed(topic)

    assert f"{copy}-0 of cluster {target.name} has no leader" in message
