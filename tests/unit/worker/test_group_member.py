"""A member of a Connect group handles assignments, revocations, rejoins and errors of a simulated coordinator."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from mirrorflow_core.connect.group_assignment import (
    CONFIG_MISMATCH,
    NO_URL,
    GroupAssignment,
    MemberState,
    Unit,
    decode_assignment,
    decode_state,
    encode_assignment,
    encode_state,
)
from mirrorflow_core.connect.worker_records import ConnectorConfig, TaskConfig, TasksCommit
from mirrorflow_core.connect.worker_state import WorkerConfigs
from mirrorflow_core.errors import MirrorFlowError, UnreachableError
from mirrorflow_core.settings import ClientSettings, GroupSettings
from mirrorflow_kafka.stores.group_membership import Joined, Membership, MemberStanding
from mirrorflow_kafka.stores.worker_topics import ConfigTopic
from mirrorflow_replicator.worker import config_decisions, group_member
from mirrorflow_replicator.worker.group_member import GroupMember

CONNECTOR, FIRST, SECOND = Unit(connector="c"), Unit(connector="c", task=0), Unit(connector="c", task=1)
LEADER = "other"
UNREACHABLE = UnreachableError(cluster="west", addresses="b:9092", problem="no response")


def assignment(
    *units: Unit,
    revoked: Sequence[Unit] = (),
    error: int = 0,
    offset: int = 0,
    leader_url: str = "http://leader/",
) -> bytes:
    value = GroupAssignment(
        error=error,
        leader=LEADER,
        leader_url=leader_url,
        config_offset=offset,
        assigned=frozenset(units),
        revoked=frozenset(revoked),
    )
    return encode_assignment(value, 2)


@dataclass
class CoordinatorStub:
    """Returns the next of *assignments* at each rebalance, and the next of *standings* at each heartbeat."""

    assignments: list[bytes]
    standings: list[MemberStanding | Exception] = field(default_factory=list)
    leader: str = LEADER
    members: Mapping[str, bytes] = field(default_factory=dict)
    member_states: list[MemberState] = field(default_factory=list)
    synced: list[Mapping[str, bytes]] = field(default_factory=list)

    async def join(self, metadata: Mapping[str, bytes]) -> Joined:
        state = metadata["sessioned"]
        self.member_states.append(decode_state(state))
        members = {"me": state, **self.members} if self.leader == "me" else {}
        return Joined(
            generation=len(self.member_states),
            member_id="me",
            leader_id=self.leader,
            protocol="sessioned",
            members=members,
        )

    async def sync(self, assignments: Mapping[str, bytes]) -> bytes:
        self.synced.append(assignments)
        if assignments:
            return assignments["me"]
        if not self.assignments:
            await asyncio.Event().wait()
        return self.assignments.pop(0)

    async def heartbeat(self) -> MemberStanding:
        next_ = self.standings.pop(0) if self.standings else MemberStanding.MEMBER
        if isinstance(next_, Exception):
            raise next_
        return next_


@dataclass
class ConfigTopicWithOffset:
    configs: WorkerConfigs = field(default_factory=WorkerConfigs)
    offset: int = 5


def two_tasks() -> ConfigTopicWithOffset:
    topic = ConfigTopicWithOffset()
    for record in (
        ConnectorConfig(connector="c", properties={}),
        TaskConfig(connector="c", task=0, properties={}),
        TaskConfig(connector="c", task=1, properties={}),
        TasksCommit(connector="c", tasks=2),
    ):
        topic.configs.take(record)
    return topic


def run(
    coordinator: CoordinatorStub, topic: ConfigTopicWithOffset, until: Callable[[GroupMember], bool]
) -> tuple[GroupMember, list[frozenset[Unit]]]:
    """Returns the node once *until* is true, and the units that it held at each call of `follow`."""
    followed: list[frozenset[Unit]] = []

    async def main() -> GroupMember:
        async def follow() -> None:
            followed.append(node.held)

        async def read() -> None:
            await asyncio.sleep(0)

        client = ClientSettings(alias="west", client_id="c", properties={})
        node = GroupMember(
            cast("Membership", coordinator),
            GroupSettings(group_id="g", client=client, heartbeat_s=0.001),
            url="http://me/",
            configs=cast("ConfigTopic", topic),
            read=read,
            follow=follow,
        )
        running = asyncio.create_task(node.run())
        async with asyncio.timeout(300):
            while not until(node):
                await asyncio.sleep(0.001)
                if running.done():
                    running.result()
        running.cancel()
        await asyncio.wait({running})
        return node

    return asyncio.run(main()), followed


def held(state: MemberState) -> frozenset[Unit]:
    return frozenset() if state.held is None else state.held.assigned


def test_revoked_units_end_before_the_next_rebalance_and_the_others_keep_running() -> None:
    coordinator = CoordinatorStub(
        [assignment(FIRST, SECOND), assignment(revoked=[SECOND]), assignment()],
        [MemberStanding.MEMBER, MemberStanding.REBALANCING],
    )
    node, followed = run(
        coordinator, ConfigTopicWithOffset(), lambda node: node.generation == 3 and not node.is_rebalancing
    )
    assert [{FIRST, SECOND}, {FIRST}, {FIRST}] == followed
    assert [set(), {FIRST, SECOND}, {FIRST}] == [held(state) for state in coordinator.member_states]
    assert "http://leader/" == node.leader_url


def test_a_node_writes_the_tasks_for_a_leader_without_http() -> None:
    """A leader with HTTP writes the tasks itself. A Java leader may have no listener."""
    coordinator = CoordinatorStub(
        [assignment(FIRST), assignment(leader_url=NO_URL)], [MemberStanding.REBALANCING]
    )
    acted = []

    def until(node: GroupMember) -> bool:
        if not node.is_rebalancing:
            acted.append(node.acts_for_leader)
        return node.generation == 2 and not node.is_rebalancing

    node, _ = run(coordinator, ConfigTopicWithOffset(), until)
    assert [False, True] == [acted[0], acted[-1]]
    assert not node.leads


def test_an_expired_member_stops_its_units_and_rejoins_without_any() -> None:
    coordinator = CoordinatorStub([assignment(FIRST), assignment(SECOND)], [MemberStanding.LOST])
    _, followed = run(coordinator, ConfigTopicWithOffset(), lambda node: node.held == {SECOND})
    assert [{FIRST}, set(), {SECOND}] == followed
    assert set() == held(coordinator.member_states[1])


def test_work_continues_while_the_coordinator_is_unreachable() -> None:
    coordinator = CoordinatorStub([assignment(FIRST)], [UNREACHABLE] * 5)
    node, followed = run(
        coordinator, ConfigTopicWithOffset(), lambda node: not coordinator.standings and node.problem is None
    )
    assert [{FIRST}] == followed
    assert {FIRST} == node.held
    assert 1 == len(coordinator.member_states)


def test_units_keep_running_while_the_leader_lags_in_the_config_topic() -> None:
    coordinator = CoordinatorStub(
        [assignment(FIRST), assignment(error=CONFIG_MISMATCH), assignment()], [MemberStanding.REBALANCING]
    )
    node, followed = run(
        coordinator, ConfigTopicWithOffset(), lambda node: node.generation == 3 and not node.is_rebalancing
    )
    assert {FIRST} == node.held
    assert all(units == {FIRST} for units in followed)


def test_first_failures_to_join_are_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster creates the coordinator on the first request. Failures after that are reported."""
    reported: list[MirrorFlowError] = []
    monkeypatch.setattr(group_member, "BACKOFF_MIN_S", 0.001)
    monkeypatch.setattr(GroupMember, "_note_problem", lambda _, error: reported.append(error))

    class UnreadyCoordinator(CoordinatorStub):
        failures = 4

        async def join(self, metadata: Mapping[str, bytes]) -> Joined:
            self.failures -= 1
            if self.failures >= 0:
                raise UNREACHABLE
            return await super().join(metadata)

    run(UnreadyCoordinator([assignment(FIRST)]), ConfigTopicWithOffset(), lambda node: node.held == {FIRST})
    assert [UNREACHABLE, UNREACHABLE] == reported


def test_unreadable_assignment_is_reported_and_causes_a_rejoin() -> None:
    coordinator = CoordinatorStub([b"", assignment(FIRST)])
    node, _ = run(
        coordinator, ConfigTopicWithOffset(), lambda node: node.held == {FIRST} and not node.is_rebalancing
    )
    assert node.problem is None


def test_a_leader_assigns_the_units_of_the_config_topic_and_rebalances_when_they_change() -> None:
    other = encode_state(MemberState(url="http://you/", config_offset=5), 2)
    coordinator = CoordinatorStub([], leader="me", members={"you": other})
    topic = two_tasks()

    def until(node: GroupMember) -> bool:
        if len(coordinator.member_states) == 1 and not node.is_rebalancing:
            topic.configs.take(ConnectorConfig(connector="c", properties=None))
            node.rejoin_if_due()
        return len(coordinator.member_states) >= 3 and not node.is_rebalancing

    node, followed = run(coordinator, topic, until)
    first = {name: decode_assignment(data) for name, data in coordinator.synced[0].items()}
    assert {CONNECTOR, FIRST, SECOND} == first["me"].assigned | first["you"].assigned
    assert not first["me"].assigned & first["you"].assigned
    assert "http://me/" == first["you"].leader_url
    assert frozenset() == node.held == followed[-1]
    assert config_decisions.units(topic.configs) == frozenset()


def test_a_leader_that_lags_behind_a_member_assigns_a_config_mismatch() -> None:
    ahead = encode_state(MemberState(url="u", config_offset=6), 2)
    coordinator = CoordinatorStub([], leader="me", members={"you": ahead})
    topic = two_tasks()

    def until(node: GroupMember) -> bool:
        if len(coordinator.synced) == 1:
            topic.offset = 6
        return not node.is_rebalancing

    run(coordinator, topic, until)
    assignments: list[Any] = [decode_assignment(members["you"]) for members in coordinator.synced]
    assert [CONFIG_MISMATCH, 0] == [decoded.error for decoded in assignments]
    assert frozenset() == assignments[0].assigned
