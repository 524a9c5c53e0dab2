"""The journal of switchovers on two real clusters: a process resumes the switchover of a killed one."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

import pytest

from mirrorflow_core.settings import ClientSettings
from mirrorflow_core.switchover.observation import FenceState
from mirrorflow_core.switchover.record import SwitchoverRecord
from mirrorflow_core.switchover.states import SwitchoverState, SwitchoverType
from mirrorflow_core.topics.topic_acls import TOPIC, AclBinding, Operation, PatternType, Permission
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.switchover.errors import SwitchoverTakenError
from mirrorflow_replicator.switchover.journal import ClusterJournal, SwitchoverJournal
from mirrorflow_replicator.switchover.pair_settings import FenceKind
from mirrorflow_replicator.switchover.returned_side import end_degraded
from mirrorflow_replicator.switchover.write_fences import NotedFence
from tests.harness.kafka.cluster import KafkaCluster

T = TypeVar("T")
Open = Callable[[], SwitchoverJournal]
ACCEPTED = SwitchoverRecord(
    id="first",
    pair="",
    type=SwitchoverType.PLANNED,
    source="east",
    to="west",
    created_ms=1_700_000_000_000,
    epoch=1,
)
DENY = AclBinding(
    resource_type=TOPIC,
    resource_name="orders",
    pattern_type=int(PatternType.LITERAL),
    principal="User:*",
    host="*",
    operation=int(Operation.WRITE),
    permission_type=int(Permission.DENY),
)


def run(
    east: KafkaCluster, west: KafkaCluster, pair: str, use: Callable[[Open, list[Cluster]], Awaitable[T]]
) -> T:
    """Runs *use* with a function that opens the journal as another process would, and both clients."""

    async def main() -> T:
        clusters = []
        for name, kafka in (("east", east), ("west", west)):
            properties = {"bootstrap.servers": kafka.bootstrap}
            settings = ClientSettings(alias=name, client_id="journal", properties=properties)
            clusters.append(await Cluster.connect(settings, resolve=dict))
        try:
            return await use(
                lambda: SwitchoverJournal([ClusterJournal(cluster, pair) for cluster in clusters]), clusters
            )
        finally:
            await asyncio.gather(*(cluster.close() for cluster in clusters))

    return asyncio.run(main())


def test_the_next_process_reads_the_record_and_the_notes_of_the_last_one(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Callable[[], str]
):
    record = replace(ACCEPTED, pair=unique_topic()).moved_to(SwitchoverState.CHECKING, 1_700_000_000_001)

    async def hand_over(open_journal: Open, _: list[Cluster]) -> SwitchoverJournal:
        first = open_journal()
        await first.take()
        await first.write(record)
        await first.write_fence("east", FenceState.PARTIAL, method=FenceKind.DENY_ACL, acls=[DENY])
        await first.write_endpoint("west")
        await first.write_endpoint("east")
        second = open_journal()
        await second.take()
        return second

    journal = run(east, west, record.pair, hand_over)

    assert (record, record) == journal.records
    assert FenceState.PARTIAL is journal.fence_of("east").state
    assert {DENY} == journal.fence_of("east").acls
    assert FenceState.ABSENT is journal.fence_of("west").state
    assert "east" == journal.active


def test_a_process_that_lost_the_lock_writes_nothing_more(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Callable[[], str]
):
    record = replace(ACCEPTED, pair=unique_topic())

    async def race(open_journal: Open, _: list[Cluster]) -> SwitchoverJournal:
        first, second = open_journal(), open_journal()
        await first.take()
        await second.take()
        with pytest.raises(
            SwitchoverTakenError, match=f"Another process carries out the switchover of {record.pair}"
        ):
            await first.write(record)
        with pytest.raises(SwitchoverTakenError):
            await first.write_endpoint("west")
        await second.read()
        return second

    journal = run(east, west, record.pair, race)

    assert () == journal.records
    assert journal.active is None


def test_the_newer_of_two_different_records_is_used(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Callable[[], str]
):
    """A process was killed between the writes to the two clusters."""
    older = replace(ACCEPTED, pair=unique_topic()).moved_to(SwitchoverState.CHECKING, 1)
    newer = older.moved_to(SwitchoverState.FENCING, 2, attempt=1)

    async def die_between(open_journal: Open, clusters: list[Cluster]) -> SwitchoverJournal:
        journal = open_journal()
        await journal.take()
        await journal.write(older)
        alone = ClusterJournal(clusters[1], older.pair)
        await alone.take()
        await alone.write_record(newer)
        await alone.write_note("fence:east", {"state": "complete", "method": "None", "acls": []})
        next_journal = open_journal()
        await next_journal.take()
        return next_journal

    journal = run(east, west, older.pair, die_between)

    assert newer == journal.newest
    assert {older, newer} == set(journal.records)


def test_the_later_of_two_switchovers_on_separated_clusters_is_used_after_they_are_reconciled(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Callable[[], str]
):
    """Each switchover has noted the endpoint and its fence only on its own target."""
    pair = unique_topic()

    async def move(
        open_journal: Open, cluster: Cluster, source: str, *, epoch: int
    ) -> tuple[str | None, FenceState]:
        alone = SwitchoverJournal([ClusterJournal(cluster, pair)])
        await alone.take()
        record = replace(
            ACCEPTED,
            id=f"to-{cluster.alias}",
            pair=pair,
            type=SwitchoverType.UNPLANNED,
            source=source,
            to=cluster.alias,
            epoch=epoch,
            state=SwitchoverState.DEGRADED,
        )
        await alone.write(record)
        await NotedFence(source, alone, hook=None, variables={}).set([])
        await NotedFence(cluster.alias, alone, hook=None, variables={}).lift()
        await alone.write_endpoint(cluster.alias)
        both = open_journal()
        await both.take()
        await end_degraded(both, NotedFence(cluster.alias, both, hook=None, variables={}))
        following = open_journal()
        await following.take()
        return following.active, following.fence_of(cluster.alias).state

    async def switch_over_twice(
        open_journal: Open, clusters: list[Cluster]
    ) -> list[tuple[str | None, FenceState]]:
        on_east, on_west = clusters
        return [
            await move(open_journal, on_west, "east", epoch=2),
            await move(open_journal, on_east, "west", epoch=4),
            await move(open_journal, on_west, "east", epoch=6),
        ]

    absent = FenceState.ABSENT
    assert [("west", absent), ("east", absent), ("west", absent)] == run(east, west, pair, switch_over_twice)


def test_pairs_share_the_journal_topic_but_have_separate_locks(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Callable[[], str]
):
    pair, other = unique_topic(), unique_topic()

    async def write_both(open_journal: Open, clusters: list[Cluster]) -> SwitchoverJournal:
        journal = open_journal()
        await journal.take()
        foreign = SwitchoverJournal([ClusterJournal(cluster, other) for cluster in clusters])
        await foreign.take()
        await foreign.write(replace(ACCEPTED, pair=other))
        await journal.write(replace(ACCEPTED, pair=pair))
        await journal.read()
        return journal

    journal = run(east, west, pair, write_both)

    assert {pair} == {record.pair for record in journal.records}
