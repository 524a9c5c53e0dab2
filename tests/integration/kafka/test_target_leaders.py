"""Leaders of the target die, freeze, lose producer state, or return with fewer records.

There are three brokers with replication factor 3 and min ISR 2, unless a test differs. They are killed, so only this
file uses them.
"""

import asyncio
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from mirrorflow_core.connect.mirror_records import decode_map, offset_map_topic
from mirrorflow_core.errors import MirrorFlowError, MissingMarkerError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire.records import Record as WireRecord
from mirrorflow_core.writer.broker_requests import Producer
from mirrorflow_core.writer.position import WriterPosition
from mirrorflow_core.writer.transaction_log import decided_records
from mirrorflow_core.writer.transactional_ids import TransactionalIds
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_requests import LATEST
from mirrorflow_kafka.admin.transaction_log_reader import read_log
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.writer.flow_topics import FlowTopics
from mirrorflow_kafka.writer.partition_availability import unavailable_partitions
from mirrorflow_kafka.writer.producer_transactions import ProducerTransactions
from mirrorflow_replicator.switchover.flow_end import EndedFlow, WaitingPartitions, end_flow, ended_flow
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.installation import OLD_VERSION
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import FOREVER, Record, load, records
from tests.harness.replicator import Replicator
from tests.integration.kafka.flows import (
    DAY_MS,
    Flow,
    call_cluster,
    contents,
    now_ms,
    numbered,
    reassign,
    replicas,
    wait_until_ready,
    write_batches,
)
from tests.integration.kafka.groups import put_group
from tests.integration.kafka.switching import clear, settings_of
from tests.integration.kafka.test_checkpoints import Flow as CheckpointFlow
from tests.integration.kafka.test_connector import alter

pytestmark = pytest.mark.faults

BACKLOG = 60_000
SLOW = {"mirrorflow.bytes.per.second": "1Mi"}  # 12 MB take about 12 s
NEVER = {"offset.flush.interval.ms": "3600000"}
REPLICATED = {"replication.factor": "3"}
UNCLEAN = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
FOREIGN_BYTES = 33  # the value size that identifies foreign records


@pytest.fixture(scope="module")
def three_brokers() -> Iterator[KafkaCluster]:
    with KafkaCluster(name="trio", brokers=3, config={"min.insync.replicas": "2"}) as cluster:
        yield cluster


@pytest.fixture
def trio(three_brokers: KafkaCluster) -> Iterator[KafkaCluster]:
    """Three brokers. After each test, all are running and in sync again."""
    yield three_brokers
    heal(three_brokers)


@pytest.fixture
def flow(east: KafkaCluster, trio: KafkaCluster, tmp_path: Path) -> Flow:
    worker = {"offset.storage.replication.factor": "3"}
    return Flow.new(east, trio, tmp_path, connector=REPLICATED, worker=worker)


@pytest.fixture
def topic(east: KafkaCluster, unique_topic: Callable[[], str]) -> str:
    return east.create_topic(unique_topic())


def heal(cluster: KafkaCluster) -> None:
    """Starts or resumes every broker, and waits until all are in sync."""
    for node in cluster.nodes.values():
        if node.running:
            node.thaw()
        else:
            node.start()
    cluster.wait_for_brokers(len(cluster.nodes))
    wait_until("all replicas are in sync", lambda: all_in_sync(cluster), poll_s=0.2)


def all_in_sync(cluster: KafkaCluster) -> bool:
    topics = cluster.admin.list_topics(timeout=30).topics.values()
    return all(
        len(partition.isrs) == len(partition.replicas)
        for topic in topics
        for partition in topic.partitions.values()
    )


def wait_for_leader(cluster: KafkaCluster, topic: str, condition: Callable[[int], bool]) -> int:
    """Waits for a new leader that meets *condition*, and returns it."""

    def new_leader() -> int:
        leader = cluster.leader(topic, 0)
        return leader if leader > 0 and condition(leader) else 0

    return wait_until(f"{topic} has a new leader", new_leader, poll_s=0.1)


def last_sequence(cluster: KafkaCluster, topic: str, *, bootstrap: str) -> int:
    """Returns the largest sequence number of any producer in the state of the leader of partition 0."""

    async def describe(connected: Cluster) -> int:
        await connected.refresh([topic])
        partition = TopicPartition(topic, 0)
        response = (await admin.describe_producers(connected, [partition]))[partition]
        return max((producer.last_sequence for producer in response.producers), default=-1)

    return call_cluster(cluster, describe, bootstrap=bootstrap)


def address(cluster: KafkaCluster, broker: int) -> str:
    """Returns the address of a single broker."""
    return cluster.internal_bootstrap.split(",")[broker - 1]


def mapped_end(flow: Flow) -> int:
    """Returns the end of the stored offset map of the flow's only partition, as a source offset."""
    topic = offset_map_topic(flow.alias)
    if not flow.target.has_topic(topic):
        return -1
    stored = [record.value for record in records(flow.target, topic) if record.value is not None]
    return decode_map(stored[-1]).upstream_end if stored else -1


def own_records(cluster: KafkaCluster, topic: str) -> list[Record]:
    """Returns the records that are not foreign."""
    return [record for record in records(cluster, topic) if len(record.value or b"") != FOREIGN_BYTES]


def start_copier(stack: ExitStack, flow: Flow, topic: str, **more: str) -> Replicator:
    return stack.enter_context(flow.replicator(topic, {**SLOW, **more}))


@pytest.mark.parametrize("copiers", [1, 2])
def test_leaders_killed_during_a_backlog_lose_and_repeat_nothing(flow: Flow, topic: str, copiers: int):
    """The leader is killed twice with kill -9 while batches are in flight, and again with a second copier that was
    started by mistake.
    """
    load(flow.source, topic, BACKLOG, size_bytes=200)
    remote = flow.remote(topic)
    with ExitStack() as stack:
        running = [start_copier(stack, flow, topic) for _ in range(copiers)]
        for share in (0.1, 0.4):
            running[0].wait_for_copy(flow.target, remote, int(BACKLOG * share))
            killed = flow.target.leader(remote, 0)
            flow.target.broker(killed).kill()
            wait_for_leader(flow.target, remote, killed.__ne__)
            running[0].wait_for_copy(flow.target, remote, int(BACKLOG * (share + 0.15)))
            heal(flow.target)
        flow.assert_committed(topic)

    flow.assert_exact(topic)


def test_a_copy_with_too_few_replicas_in_sync_is_written_once_they_return(flow: Flow, topic: str):
    """Until then, the reported reason is that its writes would be refused."""
    remote = flow.target.create_topic(flow.remote(topic), replication_factor=2)
    load(flow.source, topic, BACKLOG, size_bytes=200)
    leader = flow.target.leader(remote, 0)
    follower = next(id_ for id_ in replicas(flow.target, remote) if id_ != leader)
    flow.target.broker(follower).kill()
    wait_until(
        "one replica is in sync",
        lambda: (
            [leader] == flow.target.admin.list_topics(remote, timeout=30).topics[remote].partitions[0].isrs
        ),
    )
    with flow.replicator(topic) as replicator:
        wait_until(
            "the reason is reported", lambda: replicator.partition(topic).get("reason") == "WritesRefused"
        )
        flow.target.broker(follower).start()
        replicator.wait_until_caught_up()

    flow.assert_exact(topic)


def test_a_process_stops_without_waiting_for_a_target_that_does_not_respond(flow: Flow, topic: str):
    """The next process reads from the logs what was copied."""
    flow = replace(flow, worker={**flow.worker, "task.shutdown.graceful.timeout.ms": "60000"})
    with flow.replicator(topic) as process:
        load(flow.source, topic, 1_000)
        process.wait_until_caught_up()
        for node in flow.target.nodes.values():
            node.freeze()
        assert process.stop() == 0
        assert "took no positions" in process.log_text()
        for node in flow.target.nodes.values():
            node.thaw()
        load(flow.source, topic, 1_000, first=1_000)
        process.start()
        process.wait_until_caught_up()

    flow.assert_exact(topic)


def test_a_first_batch_lost_with_its_leader_is_written_again(flow: Flow, topic: str):
    """The leader has batches that no replica has, while a second process waits. Then the leader is killed."""
    remote = flow.target.create_topic(flow.remote(topic), replication_factor=3)
    with ExitStack() as stack:
        first = stack.enter_context(flow.replicator(topic))
        load(flow.source, topic, 1)  # a position is stored before the first batch
        first.wait_for_copy(flow.target, remote, 1)
        wait_until_ready(stack.enter_context(flow.replicator(topic)))
        leader = flow.target.leader(remote, 0)
        followers = [id_ for id_ in flow.target.nodes if id_ != leader]
        for id_ in followers:
            flow.target.broker(id_).freeze()
        load(flow.source, topic, 2_000, first=1)
        wait_until(
            "the leader has batches that no replica has",
            lambda: last_sequence(flow.target, remote, bootstrap=address(flow.target, leader)) > 0,
        )
        flow.target.broker(leader).kill()
        for id_ in followers:
            flow.target.broker(id_).thaw()
        wait_for_leader(flow.target, remote, lambda current: current != leader)
        flow.assert_committed(topic)

    flow.assert_exact(topic)


def test_a_leader_that_resumes_after_an_election_does_not_affect_the_copy(flow: Flow, topic: str):
    """Requests wait in the socket of the suspended leader. It still responds to them after it resumes."""
    load(flow.source, topic, BACKLOG, size_bytes=200)
    remote = flow.remote(topic)
    with ExitStack() as stack:
        first = start_copier(stack, flow, topic)
        first.wait_for_copy(flow.target, remote, BACKLOG // 10)
        frozen = flow.target.leader(remote, 0)
        flow.target.broker(frozen).freeze()
        wait_for_leader(flow.target, remote, lambda leader: leader != frozen)
        start_copier(stack, flow, topic)
        first.wait_for_copy(flow.target, remote, BACKLOG // 2)
        flow.target.broker(frozen).thaw()
        flow.assert_committed(topic)

    flow.assert_exact(topic)


def test_records_lost_by_an_unclean_election_are_copied_again(
    flow: Flow, east: KafkaCluster, trio: KafkaCluster, unique_topic: Callable[[], str], tmp_path: Path
):
    """The new leader has some records of the copy, or none. Three flows copy exactly the lost records again. One flow
    runs and one was killed.

    The third flow left with a position, and its lost records were replaced by the same number of foreign ones.
    """
    part, nothing = east.create_topic(unique_topic()), east.create_topic(unique_topic())
    pattern = f"{part},{nothing}"
    dead_flow, left_flow = (
        Flow.new(east, trio, tmp_path, connector=REPLICATED, worker=flow.worker) for _ in range(2)
    )
    flows = (flow, dead_flow, left_flow)
    remotes = [process.remote(topic) for process in flows for topic in (part, nothing)]
    for remote in remotes:
        trio.create_topic(remote, replication_factor=3, config=UNCLEAN)
        reassign(trio, remote, [1, 2])
    with (
        flow.replicator(pattern) as alive,
        dead_flow.replicator(pattern, NEVER) as killed,
        left_flow.replicator(pattern) as stopped,
    ):
        running = (alive, killed, stopped)
        load(east, part, 1_000)
        for process in running:
            process.wait_until_caught_up(partitions=2)
        trio.broker(2).stop()
        load(east, part, 1_000, first=1_000)
        load(east, nothing, 1_500)
        for process in running:
            process.wait_until_caught_up(partitions=2)
        killed.kill()
        assert stopped.stop() == 0
        trio.broker(1).kill()
        trio.broker(2).start()
        for remote in remotes:
            wait_for_leader(trio, remote, lambda leader: leader == 2)
        load(trio, left_flow.remote(part), 1_000, size_bytes=FOREIGN_BYTES)
        load(trio, left_flow.remote(nothing), 1_500, size_bytes=FOREIGN_BYTES)
        load(east, part, 500, first=2_000)
        load(east, nothing, 500, first=1_500)
        killed.start()
        stopped.start()
        for process in running:
            process.wait_until_caught_up(partitions=2)
        for its_flow in flows:
            its_flow.wait_until_committed(part, nothing)
        trio.broker(1).start()

    for topic in (part, nothing):
        flow.assert_exact(topic)
        dead_flow.assert_exact(topic)
        assert contents(records(east, topic)) == contents(own_records(trio, left_flow.remote(topic)))


@pytest.mark.parametrize("is_killed", [False, True])
def test_records_lost_by_an_unclean_election_are_copied_again_in_transactions(
    flow: Flow, east: KafkaCluster, trio: KafkaCluster, unique_topic: Callable[[], str], *, is_killed: bool
):
    topic = east.create_topic(unique_topic(), config=FOREVER)
    remote = trio.create_topic(flow.remote(topic), replication_factor=3, config=UNCLEAN | FOREVER)
    reassign(trio, remote, [1, 2])
    old_ms = now_ms() - 40 * DAY_MS
    with flow.replicator(topic) as process:
        load(east, topic, 1_000, timestamp_ms=old_ms)
        process.wait_until_caught_up()
        trio.broker(2).stop()
        load(east, topic, 1_000, first=1_000, timestamp_ms=old_ms)
        process.wait_until_caught_up()
        wait_until("the offset map has all records", lambda: mapped_end(flow) == 2_000)
        if is_killed:
            process.kill()
        trio.broker(1).kill()
        trio.broker(2).start()
        wait_for_leader(trio, remote, lambda leader: leader == 2)
        load(east, topic, 500, first=2_000, timestamp_ms=old_ms)
        if is_killed:
            process.start()
        process.wait_until_caught_up()
        flow.wait_until_committed(topic)
        trio.broker(1).start()

    assert contents(records(east, topic)) == contents(records(trio, remote, isolation="read_committed"))


def test_an_offset_map_is_not_used_where_the_target_has_lost_records(
    east: KafkaCluster, trio: KafkaCluster, unique_topic: Callable[[], str], tmp_path: Path
):
    """The target loses its tail, and the map cannot be written. New records are copied to offsets that the old map
    contains.

    After a kill, the next process must not translate groups to the old offsets.
    """
    own = uuid.uuid4().hex[:8]
    flow = CheckpointFlow(source=east, target=trio, folder=tmp_path, alias=f"x{own}", target_alias=f"y{own}")
    topic, group = east.create_topic(unique_topic()), f"g-{own}"
    remote = trio.create_topic(flow.remote(topic), replication_factor=3, config=UNCLEAN)
    reassign(trio, remote, [1, 2])
    maps = trio.create_topic(
        f"mm2-offset-map.{flow.alias}.internal",
        config={"cleanup.policy": "compact", "min.insync.replicas": "1"},
    )
    reassign(trio, maps, [3])
    worker = {"offset.storage.replication.factor": "3", "offset.flush.interval.ms": "500"}
    process = flow.process(
        topic, worker=worker, connector=REPLICATED, checkpoints_topic_replication_factor="3"
    )
    with process:
        load(east, topic, 500)
        process.wait_for_copy(trio, remote, 500)
        checkpoints = f"{flow.alias}.checkpoints.internal"
        # The topic has three replicas, so its creation needs three brokers.
        wait_until("the checkpoints topic exists", lambda: trio.has_topic(checkpoints))
        trio.broker(2).stop()
        load(trio, remote, 100, size_bytes=FOREIGN_BYTES)
        load(east, topic, 400, first=500)
        process.wait_for_copy(trio, remote, 1_000)
        put_group(east, group, {(topic, 0): 700})
        assert (
            flow.wait_for_checkpoint(group, 700)["downstream_offset"] == own_records(trio, remote)[700].offset
        )
        alter(trio, maps, "max.message.bytes", "1")  # the map cannot be written
        process.freeze()
        trio.broker(1).kill()
        trio.broker(2).start()
        wait_for_leader(trio, remote, lambda leader: leader == 2)
        process.thaw()
        process.wait_for_copy(trio, remote, 900)
        load(trio, remote, 100, size_bytes=FOREIGN_BYTES)
        load(east, topic, 100, first=900)
        wait_until("all records are copied", lambda: len(own_records(trio, remote)) >= 1_000)
        process.kill()
        alter(trio, maps, "max.message.bytes", None)
        process.start()
        other = f"h-{own}"
        put_group(east, other, {(topic, 0): 700})
        checkpoint = flow.wait_for_checkpoint(other, 700)

    assert contents(records(east, topic)) == contents(own_records(trio, remote))
    assert checkpoint["downstream_offset"] <= own_records(trio, remote)[700].offset


def test_copying_to_an_emptied_target_continues_after_all_its_brokers_restart(
    flow: Flow, east: KafkaCluster, trio: KafkaCluster, topic: str, tmp_path: Path
):
    """DeleteRecords has deleted everything, and every broker has restarted. Leaders know the flows at most by their
    fences.

    One process runs and has its offsets. The other was killed, and its flow continues after its last stored position.
    """
    alerting = {**REPLICATED, "mirrorflow.source.loss.policy": "alert"}
    dead_flow = Flow.new(east, trio, tmp_path, connector=alerting, worker=flow.worker)
    load(east, topic, 2_000)
    with flow.replicator(topic) as alive, dead_flow.replicator(topic, NEVER) as killed:
        for process, its_flow in ((alive, flow), (killed, dead_flow)):
            process.wait_for_copy(trio, its_flow.remote(topic), 2_000)
        killed.kill()
        for its_flow in (flow, dead_flow):
            trio.delete_records(its_flow.remote(topic), {0: 2_000})
        for id_ in trio.nodes:
            trio.broker(id_).stop()
            trio.broker(id_).start()
            heal(trio)
        load(east, topic, 1_000, first=2_000)
        killed.start()
        for process, its_flow in ((alive, flow), (killed, dead_flow)):
            process.wait_until_caught_up()
            its_flow.wait_until_committed(topic)

    sent = contents(records(east, topic))
    copied_again = contents(records(trio, dead_flow.remote(topic)))
    assert sent[2_000:] == contents(records(trio, flow.remote(topic)))
    assert sent[-len(copied_again) :] == copied_again
    assert len(copied_again) >= 1_000


def test_a_partition_moved_to_a_broker_without_the_flows_batches_continues(flow: Flow, topic: str):
    """The records of the flow are deleted, and only foreign ones remain.

    The new broker may know the producer only by a fence.
    """
    remote = flow.target.create_topic(
        flow.remote(topic), replication_factor=1, config={"min.insync.replicas": "1"}
    )
    reassign(flow.target, remote, [1])
    load(flow.source, topic, 2_000)
    with flow.replicator(topic) as replicator:
        replicator.wait_until_caught_up()
        load(flow.target, remote, 300, size_bytes=FOREIGN_BYTES)
        flow.target.delete_records(remote, {0: 2_000})
        reassign(flow.target, remote, [2])
        load(flow.source, topic, 1_000, first=2_000)
        replicator.wait_until_caught_up()

    assert contents(records(flow.source, topic))[2_000:] == contents(own_records(flow.target, remote))


def test_a_source_that_lost_its_tail_follows_the_loss_policy(
    trio: KafkaCluster, west: KafkaCluster, unique_topic: Callable[[], str], tmp_path: Path
):
    """After an unclean election, the source's log is shorter than the copy.

    Then it grows again with different records.
    """
    topic = trio.create_topic(unique_topic(), replication_factor=3, config=UNCLEAN)
    reassign(trio, topic, [1, 2])
    flows = {
        policy: Flow.new(trio, west, tmp_path, connector={"mirrorflow.source.loss.policy": policy})
        for policy in ("fail", "alert", "restart")
    }
    load(trio, topic, 1_000)
    with ExitStack() as stack:
        running = {
            policy: stack.enter_context(its_flow.replicator(topic)) for policy, its_flow in flows.items()
        }
        for process in running.values():
            process.wait_until_caught_up()
        trio.broker(2).stop()
        load(trio, topic, 1_000, first=1_000)
        for policy, process in running.items():
            process.wait_for_copy(west, flows[policy].remote(topic), 2_000)
        before = contents(records(west, flows["fail"].remote(topic)))
        trio.broker(1).kill()
        trio.broker(2).start()
        wait_for_leader(trio, topic, lambda leader: leader == 2)
        load(trio, topic, 1_300, first=5_000)
        status = running["fail"].wait_for_phase("stopped", topic)
        for policy in ("alert", "restart"):
            running[policy].wait_until_caught_up()
            flows[policy].wait_until_committed(topic)
        # At this point, the high watermark of the new leader is above all copied offsets.
        new = contents(records(trio, topic))

    copied = {policy: contents(records(west, its_flow.remote(topic))) for policy, its_flow in flows.items()}
    assert "SourceDataLost" == status["reason"]
    assert before == copied["fail"]
    assert before + new[1_000:] == copied["alert"]
    assert before + new == copied["restart"]


def test_a_partition_whose_leader_has_died_is_not_taken_over(
    trio: KafkaCluster, unique_topic: Callable[[], str]
):
    """For some seconds, the metadata still has the leader."""
    topic = trio.create_topic(unique_topic(), partitions=3)
    leader = trio.leader(topic, 0)
    led_partitions = {
        TopicPartition(topic, number) for number in range(3) if trio.leader(topic, number) == leader
    }

    async def find_unavailable(connected: Cluster) -> dict[TopicPartition, MirrorFlowError]:
        copies = {TopicPartition(topic, number): TopicPartition(topic, number) for number in range(3)}
        await connected.refresh([topic])
        trio.broker(leader).kill()
        return await unavailable_partitions(connected, connected, copies)

    errors = call_cluster(trio, find_unavailable)

    assert errors.keys() == led_partitions
    assert {number.reason for number in errors.values()} == {"SourceNotAnswering"}


@pytest.mark.parametrize("count", [0, 50], ids=["of plain batches", "of transactions"])
def test_positions_without_a_commit_marker_are_kept_and_copying_continues(
    flow: Flow, trio: KafkaCluster, unique_topic: Callable[[], str], count: int
):
    """The process dies right after EndTxn, while the partition of the positions has no leader (KAFKA-20734)."""
    timestamp = now_ms() - 40 * DAY_MS if count else now_ms()
    topic = flow.source.create_topic(unique_topic(), config=FOREVER)
    trio.create_topic(flow.remote(topic), replication_factor=3, config=FOREVER)
    offsets = on_broker_2(trio, f"mm2-offsets.{flow.alias}.internal")
    write_batches(flow.source, topic, [numbered(0, 100, timestamp=timestamp)])
    with flow.replicator(topic) as process:
        process.wait_until_caught_up()
        flow.wait_until_committed(topic)
        process.kill()
        committed = numbered(100, count, timestamp=timestamp)
        call_cluster(trio, lambda target: commit_without_marker(trio, target, flow, topic, committed))
        heal(trio)
        assert stable_end(trio, offsets) < trio.end_offsets(offsets)[0]
        write_batches(flow.source, topic, [numbered(100, 100, timestamp=timestamp)])
        process.start()
        process.wait_until_caught_up()
        flow.assert_committed(topic)
        wait_until(
            "the positions are committed or aborted",
            lambda: stable_end(trio, offsets) == trio.end_offsets(offsets)[0],
        )


def test_a_lost_marker_of_positions_is_detected_before_the_next_transaction(
    flow: Flow, trio: KafkaCluster, topic: str
):
    """The next transaction could otherwise be aborted, and would abort the committed positions."""
    trio.create_topic(flow.remote(topic), replication_factor=3)
    offsets = on_broker_2(trio, f"mm2-offsets.{flow.alias}.internal")
    load(flow.source, topic, 100)
    with flow.replicator(topic) as process:
        process.wait_until_caught_up()
        process.kill()

    async def commit(target: Cluster) -> None:
        transactions, producer, position = await last_position(target, flow, topic)
        await transactions.store_positions(producer, [position])
        lose_leader(trio, offsets)
        await transactions.end(producer, commit=True)
        await transactions.wait_for_markers(producer)

    with pytest.raises(MissingMarkerError, match=offsets):
        call_cluster(trio, commit)


def on_broker_2(cluster: KafkaCluster, topic: str) -> str:
    """Creates an offsets topic with one partition that only broker 2 has."""
    config = {"cleanup.policy": "compact", "min.insync.replicas": "1"}
    cluster.create_topic(topic, config=config)
    reassign(cluster, topic, [2])
    return topic


def lose_leader(cluster: KafkaCluster, topic: str) -> None:
    cluster.broker(2).kill()
    wait_until(f"{topic} has no leader", lambda: cluster.leader(topic, 0) < 0, poll_s=0.1)


def stable_end(cluster: KafkaCluster, topic: str) -> int:
    return cluster.end_offsets(topic, isolation="read_committed")[0]


def freeze_in_transaction(running: Replicator, cluster: KafkaCluster, topic: str) -> None:
    """Freezes the flow while its transaction has records in partition 0 of *topic*."""

    def is_open() -> bool:
        running.freeze()
        if stable_end(cluster, topic) < cluster.end_offsets(topic)[0]:
            return True
        running.thaw()
        return False

    wait_until(f"a transaction has records in {topic}-0", is_open)


async def last_position(
    target: Cluster, flow: Flow, topic: str
) -> tuple[ProducerTransactions, Producer, WriterPosition]:
    """Returns the last stored position of partition 0 of *topic*, and the producer that stores the next one."""
    topics = FlowTopics(
        source_alias=flow.alias,
        connector="MirrorSourceConnector",
        offsets=f"mm2-offsets.{flow.alias}.internal",
        target_topic=flow.remote,
    )
    await target.refresh([topics.offsets, flow.remote(topic)])
    log = await read_log(target, TopicPartition(topics.offsets, 0), topics.position_in)
    transactions = ProducerTransactions(target, topics)
    while True:
        producer = await transactions.initialize(TransactionalIds(flow.alias).task(0).transactional)
        if isinstance(producer, Producer):
            break
        await asyncio.sleep(0.05)
    stored = decided_records(log, WriterPosition).committed
    return (
        transactions,
        producer,
        [stored_position for stored_position in stored if stored_position.topic == topic][-1],
    )


async def commit_without_marker(
    cluster: KafkaCluster, target: Cluster, flow: Flow, topic: str, copied: list[WireRecord]
) -> None:
    """Writes *copied* and their position in a transaction of the task, like its process does, and stops after EndTxn."""
    transactions, producer, position = await last_position(target, flow, topic)
    copy, count = TopicPartition(flow.remote(topic), 0), len(copied)
    if copied:
        await transactions.add_partitions(producer, [copy])
        position = replace(
            position,
            next_source_offset=position.next_source_offset + count,
            target_end=(await admin.offsets_at(target, [copy], LATEST))[copy] + count,
            records=position.records + count,
        )
        await transactions.append(producer, copy, copied)
    await transactions.store_positions(producer, [position])
    lose_leader(cluster, f"mm2-offsets.{flow.alias}.internal")
    await target.refresh()  # detects lost connections, because a commit is sent only once
    await admin.end_txn(target, *producer, committed=True, timeout_s=60)
    wait_until(
        "the copy is committed",
        lambda: stable_end(cluster, copy.topic) == cluster.end_offsets(copy.topic)[0],
    )


def test_a_partition_without_a_leader_does_not_block_other_partitions_of_its_task(
    east: KafkaCluster, tmp_path: Path, unique_topic: Callable[[], str]
):
    """Kafka 3.9's coordinator keeps an id busy until the marker is written. The task therefore uses its spare id."""
    topic = east.create_topic(unique_topic(), partitions=3, config=FOREVER)
    load(east, topic, BACKLOG, size_bytes=200, timestamp_ms=now_ms() - 40 * DAY_MS)
    ends = east.end_offsets(topic)
    with KafkaCluster(name="trio39", brokers=3, version=OLD_VERSION) as target:
        internal = {"offset-syncs.topic.replication.factor": "3", "replication.factor": "3"}
        flow = Flow.new(
            east, target, tmp_path, connector=internal, worker={"offset.storage.replication.factor": "3"}
        )
        remote = target.create_topic(flow.remote(topic), partitions=3, config=FOREVER)
        with flow.replicator(topic, SLOW) as running:
            running.wait_for_copy(target, remote, BACKLOG // 10)
            freeze_in_transaction(running, target, remote)
            killed = target.broker(target.leader(remote, 0))
            killed.kill()
            running.thaw()
            others = [partition for partition in ends if target.leader(remote, partition) != killed.id]
            wait_until(
                f"partitions {others} are copied",
                lambda: all(
                    running.partition(topic, partition).get("lagRecords") == 0 for partition in others
                ),
                timeout_s=120,
            )
            assert running.partition(topic, 0)["lagRecords"] != 0
            heal(target)
            flow.assert_committed(topic)

    assert "-spare" in running.log_text()


def test_the_end_of_a_flow_waits_for_a_partition_without_a_leader(flow: Flow, topic: str):
    """Meanwhile its writer cannot be fenced there, because brokers of 4.x write no marker to it, not even later.

    A switchover that does not wait has not ended the flow, which continues.
    """
    copy = flow.target.create_topic(flow.remote(topic), config=UNCLEAN)
    reassign(flow.target, copy, [3])
    load(flow.source, topic, 1_000)
    waiting: list[set[TopicPartition]] = []

    def give_up(partitions: WaitingPartitions) -> None:
        waiting.append(set(partitions))
        raise TimeoutError

    def wait(partitions: WaitingPartitions) -> None:
        waiting.append(set(partitions))
        if not flow.target.broker(3).running:
            flow.target.broker(3).start()

    def end(on_waiting: Callable[[WaitingPartitions], None]) -> EndedFlow:
        settings = settings_of(replicator)

        async def ended(cluster: Cluster) -> EndedFlow:
            await end_flow(settings, cluster, "to-west", on_waiting=on_waiting)
            return await ended_flow(settings, cluster, "to-west")

        return call_cluster(flow.target, ended)

    with flow.replicator(topic, NEVER) as replicator:
        replicator.wait_until_caught_up()
        flow.target.broker(3).kill()
        flow.target.wait_for_brokers(2)
        with pytest.raises(TimeoutError):
            end(give_up)
        assert not clear(replicator, flow.target)
        ended = end(wait)
        assert clear(replicator, flow.target)
        load(flow.source, topic, 500, first=1_000)
        replicator.wait_until_caught_up()

    flow.assert_exact(topic)
    assert all(partitions == {TopicPartition(topic, 0)} for partitions in waiting)
    assert len(waiting) >= 2
    assert ended.positions[TopicPartition(topic, 0)].next_source_offset == 1_000
