"""After a switchover, the reverse flow copies only records that applications have written since, also in later rounds.

Both flows keep topic names, so a record that is copied back would be twice in the log of its own cluster. A Java
consumer compares both clusters record by record.
"""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mirrorflow_core.errors import StartConflictError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.switchover.flow_end import EndedFlow
from mirrorflow_replicator.switchover.flow_mover import FlowMover
from mirrorflow_replicator.switchover.reverse_start import hold_reverse, require_no_conflict, start_reverse
from mirrorflow_replicator.switchover.sealed_partitions import SealedPartitions
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import digest, load, records
from tests.harness.replicator import Replicator
from tests.integration.kafka.flows import Flow, by_partition
from tests.integration.kafka.switching import call_clusters, clear, end, settings_of

PARTITIONS = 3
IDENTITY = {"replication.policy.class": "org.apache.kafka.connect.mirror.IdentityReplicationPolicy"}


@pytest.fixture
def topic(east: KafkaCluster, west: KafkaCluster, unique_topic: Callable[[], str]) -> str:
    """A topic on both clusters. Applications find it there before the first record is copied."""
    name = east.create_topic(unique_topic(), partitions=PARTITIONS)
    return west.create_topic(name, partitions=PARTITIONS)


@pytest.fixture
def forward(east: KafkaCluster, west: KafkaCluster, tmp_path: Path) -> Flow:
    return Flow.new(east, west, tmp_path, connector=IDENTITY)


@pytest.fixture
def reverse(east: KafkaCluster, west: KafkaCluster, tmp_path: Path) -> Flow:
    return Flow.new(west, east, tmp_path, connector=IDENTITY)


def start(flow: Flow, process: Replicator, switchover: str, ended: EndedFlow) -> bool:
    """Starts *flow*, run by *process*, where the other flow has ended."""
    settings, starts = settings_of(process), ended.target_ends
    return call_clusters(
        flow.source,
        flow.target,
        lambda source, target: start_reverse(settings, source, target, switchover, starts),
    )


def wait_until_equal(flow: Flow, topic: str, count: int) -> None:
    """Waits until the target of *flow* has *count* records of *topic*, and asserts that both clusters have the same
    records.
    """

    def copied() -> bool:
        sums = digest(flow.target, topic, isolation="read_committed")
        return sum(number for number, _ in sums.values()) >= count

    wait_until(f"{count} records are on both sides", copied)
    sent, received = (by_partition(records(cluster, topic)) for cluster in (flow.source, flow.target))
    assert sent == received
    assert count == sum(map(len, sent.values()))


def test_each_flow_copies_only_records_written_since_the_opposite_flow_ended(
    forward: Flow, reverse: Flow, topic: str
):
    """There are three switchovers: to the other cluster, back, and to the other one again.

    Both processes run from the first switchover on.
    """
    load(forward.source, topic, 1_000, keys=True)
    with ExitStack() as stack:
        there = stack.enter_context(forward.replicator(topic))
        there.wait_until_caught_up(partitions=PARTITIONS)
        first = end(there, forward.target, "first")
        load(reverse.source, topic, 300, keys=True, first=1_000)
        back = reverse.replicator(topic)
        assert start(reverse, back, "first", first)
        assert not start(reverse, back, "first", first)
        stack.enter_context(back)
        wait_until_equal(reverse, topic, 1_300)

        second = end(back, reverse.target, "second")
        load(forward.source, topic, 200, keys=True, first=1_300)
        assert start(forward, there, "second", second)
        wait_until_equal(forward, topic, 1_500)

        third = end(there, forward.target, "third")
        load(reverse.source, topic, 100, keys=True, first=1_500)
        assert start(reverse, back, "third", third)
        wait_until_equal(reverse, topic, 1_600)


def test_a_reverse_flow_that_has_copied_before_is_refused(forward: Flow, reverse: Flow, topic: str):
    """It has not copied the records of the forward flow, and might skip records of applications in between."""
    load(reverse.source, topic, 30, keys=True)
    with reverse.replicator(topic) as back:
        back.wait_until_caught_up(partitions=PARTITIONS)
        assert back.stop() == 0
    load(forward.source, topic, 1_000, keys=True, first=30)
    with forward.replicator(topic) as there:
        there.wait_until_caught_up(partitions=PARTITIONS)
        first = end(there, forward.target, "first")
        with pytest.raises(
            StartConflictError, match="has not copied the records before the start"
        ) as refusal:
            start(reverse, back, "first", first)
        with pytest.raises(StartConflictError, match="has not copied the records before the start"):
            call_clusters(
                reverse.source,
                reverse.target,
                lambda source, target: require_no_conflict(
                    settings_of(back), source, target, first.target_ends
                ),
            )

    assert refusal.value.partitions.keys() == {f"{topic}-{number}" for number in range(PARTITIONS)}


def hold(flow: Flow, process: Replicator, switchover: str = "first") -> None:
    """Holds *flow*, run by *process*, as the switchover does before it fences the source."""
    settings = settings_of(process)
    call_clusters(
        flow.source,
        flow.target,
        lambda source, target: hold_reverse(settings, source, target, switchover, {}),
    )


def wait_until_warned(process: Replicator, text: str) -> None:
    """Waits until *process* reports *text*."""
    wait_until(f"it reports {text}", lambda: text in str(process.rest("/progress/partitions")[1]))


def test_a_reverse_flow_started_before_its_switchover_copies_nothing_back(
    forward: Flow, reverse: Flow, topic: str
):
    """It has never run, so no position prevents it from copying the copies.

    After a rollback, neither a waiting process nor the next one copies.
    """
    load(forward.source, topic, 1_000, keys=True)
    with ExitStack() as stack:
        there = stack.enter_context(forward.replicator(topic))
        there.wait_until_caught_up(partitions=PARTITIONS)
        too_early = reverse.replicator(topic)
        hold(reverse, too_early, "rolled back")
        with too_early:
            wait_until_warned(too_early, "is held until that starts it")
            assert clear(too_early, reverse.target, "rolled back")
            wait_until_warned(too_early, "Switchover rolled back, which should have started the flow")
        with reverse.replicator(topic) as restarted:
            wait_until_warned(restarted, "Switchover rolled back, which should have started the flow")
            hold(reverse, restarted)
            back = stack.enter_context(reverse.replicator(topic))
            wait_until_warned(back, "is held until that starts it")
        first = end(there, forward.target, "first")
        load(reverse.source, topic, 300, keys=True, first=1_000)

        assert start(reverse, back, "first", first)

        wait_until_equal(reverse, topic, 1_300)


def test_a_reverse_flow_waits_even_if_it_could_not_be_held_on_a_lost_cluster(
    forward: Flow, reverse: Flow, topic: str
):
    """Its source has the end of the other flow by a switchover.

    Until that switchover starts it, nothing is appended to the diverged tail.
    """
    load(forward.source, topic, 1_000, keys=True)
    with ExitStack() as stack:
        there = stack.enter_context(forward.replicator(topic))
        there.wait_until_caught_up(partitions=PARTITIONS)
        first = end(there, forward.target, "first")
        load(reverse.source, topic, 300, keys=True, first=1_000)
        names_other = {"target.cluster.alias": forward.alias}
        back = stack.enter_context(reverse.replicator(topic, names_other))
        wait_until_warned(back, "ended by switchover first, or is held until that starts it")
        assert forward.source.total_end_offset(topic) == 1_000

        assert start(reverse, back, "first", first)

        wait_until_equal(reverse, topic, 1_300)


@pytest.mark.more
def test_a_reverse_flow_that_was_killed_while_it_copied_is_refused_as_killed(
    forward: Flow, reverse: Flow, topic: str
):
    """Its claim is that of a running flow, but is not renewed. How far it has copied is unknown."""
    with reverse.replicator(topic) as killed, forward.replicator(topic) as there:
        killed.wait_until_caught_up(partitions=PARTITIONS)
        there.wait_until_caught_up(partitions=PARTITIONS)
        killed.kill()
        settings: Any = SimpleNamespace(
            forward=settings_of(there),
            forward_groups=None,
            back=settings_of(killed),
            source="east",
            to="west",
        )

        async def why_not_ready(source: Cluster, target: Cluster) -> str:
            clusters: Any = SimpleNamespace(source=source, target=target)
            return await FlowMover(settings, clusters, SealedPartitions(settings, clusters)).why_not_ready()

        why = call_clusters(forward.source, forward.target, why_not_ready)

    assert "was killed (process" in why
    assert why.endswith("reset the stored offsets of that flow, and repeat the switchover.")


def test_the_reverse_flow_omits_copies_of_deleted_topics_and_copies_new_topics_completely(
    forward: Flow, reverse: Flow, unique_topic: Callable[[], str]
):
    """The source no longer has the first topic. Applications have created the second topic on the target."""
    deleted, created = unique_topic(), unique_topic()
    forward.source.create_topic(deleted, partitions=PARTITIONS)
    load(forward.source, deleted, 1_000, keys=True)
    topics = f"{deleted},{created}"
    with ExitStack() as stack:
        there = stack.enter_context(forward.replicator(topics))
        there.wait_for_copy(forward.target, deleted, 1_000)
        forward.source.delete_topic(deleted)
        forward.target.create_topic(created)
        load(forward.target, created, 10)
        wait_until("the topic is deleted", lambda: deleted not in forward.source.topics())
        end(there, forward.target, "first")
        back = reverse.replicator(topics)
        settings: Any = SimpleNamespace(
            forward=settings_of(there), forward_groups=None, back=settings_of(back)
        )

        async def start_all(source: Cluster, target: Cluster) -> dict[TopicPartition, int]:
            clusters: Any = SimpleNamespace(source=source, target=target)
            mover = FlowMover(settings, clusters, SealedPartitions(settings, clusters))
            starts = {key: end.end for key, end in (await mover.settled_copy_ends()).items()}
            await start_reverse(settings.back, target, source, "first", starts)
            return starts

        starts = call_clusters(forward.source, forward.target, start_all)
        load(forward.target, deleted, 60, keys=True, first=1_000)
        stack.enter_context(back)
        back.wait_for_copy(reverse.target, created, 10)
        back.wait_for_copy(reverse.target, deleted, 60)
        load(forward.target, deleted, 40, keys=True, first=1_060)
        back.wait_for_copy(reverse.target, deleted, 100)

    assert starts.keys() == {TopicPartition(deleted, number) for number in range(PARTITIONS)}
    written = [
        record
        for record in records(forward.target, deleted)
        if record.offset >= starts[TopicPartition(deleted, record.partition)]
    ]
    assert by_partition(written) == by_partition(records(reverse.target, deleted))
    assert 100 == len(written)
