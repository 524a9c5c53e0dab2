"""A flow owner takes, keeps and loses a flow, or runs without ownership where the target forbids it."""

import asyncio
from typing import cast

import pytest

from mirrorflow_core.errors import (
    BrokerError,
    ClusterError,
    FlowEndedError,
    FlowTakenError,
    FlowUnfencedError,
    InternalTopicUnavailableError,
    UnreachableError,
)
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.writer.broker_requests import Producer
from mirrorflow_core.writer.flow_lock import Fenced
from mirrorflow_core.writer.flow_plan import SessionStart, TaskProducers
from mirrorflow_core.writer.ownership import Ownership
from mirrorflow_kafka.admin.log_requests import EARLIEST, LATEST
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.connectors import flow_owner
from mirrorflow_replicator.connectors.flow_clusters import FlowClusters
from mirrorflow_replicator.connectors.flow_owner import FlowOwner
from mirrorflow_replicator.connectors.flow_ownership_states import OwnedFlow, UnfencedFlow
from mirrorflow_replicator.connectors.flow_takeover import FlowTakeover
from mirrorflow_replicator.connectors.task_messages import Assign, TaskAssignment
from tests.unit.connectors.flow_settings import settings

ORDERS = tuple(TopicPartition("orders", number) for number in range(3))
TASKS = (ORDERS[:1],)
NO_ACL = "west does not grant Write on transactional ids that begin with mirrorflow:east:"
UNREACHABLE = UnreachableError(cluster="west", addresses="a:1", problem="no leader")


class NamedCluster:
    """A cluster of which only the id is used."""

    def __init__(self, cluster_id: str) -> None:
        self.cluster_id = cluster_id


CLUSTERS = cast("tuple[Cluster, Cluster]", (NamedCluster("a"), NamedCluster("b")))


async def _do_nothing(*_: object, **__: object) -> None:
    """Returns at once, because all topics exist."""


class Target:
    """A target that allows an owner only if *reason* is None. It records what is done with the flow."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, reason: str | None) -> None:
        self.reason = reason
        self.done: list[str] = []
        self.failures: list[Exception] = []  # errors of the next attempts to open the flow's topics
        self.changed = asyncio.Event()  # set after each attempt and action
        # The outcomes of the next takeovers. None is a success; later takeovers succeed.
        self.takeovers: list[Fenced | None] = []
        monkeypatch.setattr(flow_owner, "why_unfenced", self._why_unfenced)
        monkeypatch.setattr(FlowClusters, "open", self._open)
        monkeypatch.setattr(FlowClusters, "ensure_topics", _do_nothing)
        monkeypatch.setattr(FlowClusters, "stored_positions", self._no_positions)
        monkeypatch.setattr(UnfencedFlow, "start_task", self._start_unfenced)
        monkeypatch.setattr(FlowTakeover, "take", self._take)
        self.ended_by = ""  # the switchover that has ended the flow
        self.source_problem: ClusterError | None = (
            None  # why the source does not show whether the flow was ended
        )
        self.source_problems = 0  # how often that error was raised
        monkeypatch.setattr(FlowTakeover, "refuse_ended", self._refuse_ended)
        self.owner = self.new_owner(group=None)

    def new_owner(self, *, group: str | None) -> FlowOwner:
        return FlowOwner(settings(), on_lost=lambda: self._note("finish the tasks"), group=group)

    def _note(self, action: str) -> None:
        self.done.append(action)
        self.changed.set()

    def start_timestamp_of(self, partition: TopicPartition) -> int:
        """Returns the timestamp from which the flow copies a partition without a position."""
        flow = self.owner._flow
        assert flow is not None
        return flow.clusters._start_at(partition)

    async def _why_unfenced(self, *_: object) -> str | None:
        return self.reason

    async def _open(self, *_: object, **__: object) -> None:
        self.changed.set()
        if self.failures:
            raise self.failures.pop(0)

    async def _refuse_ended(self, *_: object) -> None:
        if self.source_problem is not None:
            self.source_problems += 1
            self.changed.set()
            raise self.source_problem
        if self.ended_by:
            raise FlowEndedError(source="east", target="west", switchover=self.ended_by)

    async def _no_positions(self, *_: object) -> dict[object, object]:
        return {}

    async def _start_unfenced(self, wanted: TaskAssignment, *_: object) -> Assign:
        producer = Producer("", 7, 0)
        producers = TaskProducers(plain=producer, transactional=producer)
        return Assign(assignment=wanted, start=SessionStart(producers=producers, points={}, problems={}))

    async def _take(self, clusters: FlowClusters, *_: object, **__: object) -> OwnedFlow | Fenced:
        if self.takeovers and (fenced := self.takeovers.pop(0)):
            return fenced
        self._note("take the flow")
        plan = self.owner._takeover.plan(clusters, tasks=1)
        return OwnedFlow(clusters, Ownership(plan=plan, lock=Producer("lock", 1, 16), tasks=()))


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_owner, "RENEW_S", 0.001)
    monkeypatch.setattr(flow_owner, "CHECK_S", 0)


async def until_done(target: Target, *expected: str) -> None:
    async with asyncio.timeout(300):
        while target.done != [*expected]:
            target.changed.clear()
            await target.changed.wait()


def test_next_attempt_opens_the_topics_again_after_a_failure(monkeypatch: pytest.MonkeyPatch):
    """The offsets topic may have no leader while a broker is unavailable."""
    target = Target(monkeypatch, reason=None)
    target.failures = [
        UNREACHABLE,
        BrokerError(cluster="west", request="Metadata", code=3, name="UNKNOWN_TOPIC_OR_PARTITION"),
    ]

    with pytest.raises(UnreachableError):
        asyncio.run(target.owner.own(CLUSTERS, ()))
    with pytest.raises(BrokerError):
        asyncio.run(target.owner.own(CLUSTERS, ()))


def test_flow_that_cannot_be_fenced_has_a_warning_and_no_owner(monkeypatch: pytest.MonkeyPatch):
    target = Target(monkeypatch, NO_ACL)

    asyncio.run(target.owner.own(CLUSTERS, TASKS))

    assert target.done == []
    assert target.owner.warnings == (
        f"Records are copied at-least-once, because {NO_ACL}: after a failure some are copied again.",
    )


def test_preempting_owner_is_refused_where_the_flow_cannot_be_fenced(monkeypatch: pytest.MonkeyPatch):
    target = Target(monkeypatch, NO_ACL)

    with pytest.raises(FlowUnfencedError, match="Write on transactional ids"):
        asyncio.run(target.owner.own(CLUSTERS, TASKS, preempts=True))


def test_flow_is_taken_as_soon_as_the_target_allows_it(monkeypatch: pytest.MonkeyPatch):
    """Its tasks finish first, so that they store their positions."""
    target = Target(monkeypatch, NO_ACL)

    async def run() -> None:
        await target.owner.own(CLUSTERS, TASKS)
        target.reason = None
        await until_done(target, "finish the tasks", "take the flow")

    asyncio.run(run())

    assert target.owner.warnings == ()


def test_tasks_run_until_the_topics_of_the_fenced_flow_are_open(
    monkeypatch: pytest.MonkeyPatch,
):
    """The owner retries while the claims topic cannot be created."""
    target = Target(monkeypatch, NO_ACL)
    assignment = TaskAssignment(partitions=ORDERS[:1], initial=True)

    async def run() -> None:
        await target.owner.own(CLUSTERS, TASKS)
        target.failures = [UNREACHABLE]
        target.reason = None
        target.changed.clear()
        await target.changed.wait()
        assert target.done == []
        assert (await target.owner.start_of(0, assignment)).assignment == assignment
        target.owner._held.release(0)  # the task finishes at once
        await until_done(target, "finish the tasks", "take the flow")

    asyncio.run(run())


@pytest.mark.parametrize("group", [None, "group"])
def test_flow_lost_to_a_different_process_is_taken_again(monkeypatch: pytest.MonkeyPatch, group: str | None):
    """The tasks of a group run on under the claim of another process of the group."""
    target = Target(monkeypatch, reason=None)
    owner = target.owner = target.new_owner(group=group)

    async def refused(_: OwnedFlow) -> bool:
        return False

    async def run() -> None:
        await owner.own(CLUSTERS, TASKS)
        monkeypatch.setattr(OwnedFlow, "renew", refused)
        monkeypatch.setattr(OwnedFlow, "holds_lock", refused)
        lost = [] if group else ["finish the tasks"]
        await until_done(target, "take the flow", *lost, "take the flow")

    asyncio.run(run())


def test_flow_is_kept_when_its_claims_topic_was_deleted(monkeypatch: pytest.MonkeyPatch):
    """A warning names the topic until the claim is stored again."""
    target = Target(monkeypatch, reason=None)
    owner, is_missing = target.owner, True
    warnings: list[str] = []

    async def renew(_: OwnedFlow) -> bool:
        if is_missing:
            raise InternalTopicUnavailableError(cluster="west", topic="mm2-claims.east.internal")
        if "renew" not in target.done:
            target._note("renew")
        return True

    async def ensure(*_: object, **__: object) -> None:
        nonlocal is_missing
        warnings.extend(owner.warnings)
        is_missing = False

    async def run() -> None:
        await owner.own(CLUSTERS, TASKS)
        monkeypatch.setattr(OwnedFlow, "renew", renew)
        monkeypatch.setattr(FlowClusters, "ensure_topics", ensure)
        await until_done(target, "take the flow", "renew")

    asyncio.run(run())

    assert ["mm2-claims.east.internal" in warning for warning in warnings] == [True]
    assert owner.warnings == ()
    assert not owner.is_waiting


def test_fenced_takeover_leaves_the_flow_to_the_newer_owner(monkeypatch: pytest.MonkeyPatch):
    target = Target(monkeypatch, reason=None)
    target.takeovers = [None, Fenced()]

    async def run() -> None:
        await target.owner.own(CLUSTERS, TASKS)
        with pytest.raises(FlowTakenError):
            await target.owner.own(CLUSTERS, (*TASKS, ORDERS[1:]))
        assert target.owner.is_waiting
        with pytest.raises(FlowTakenError):
            await target.owner.positions()

    asyncio.run(run())

    assert target.done == ["take the flow", "finish the tasks"]


def test_initial_partitions_begin_at_the_configured_position(monkeypatch: pytest.MonkeyPatch):
    """Partitions that are assigned later begin at the earliest record."""
    target = Target(monkeypatch, NO_ACL)

    async def run() -> None:
        await target.owner.own(CLUSTERS, TASKS)
        await target.owner.own(CLUSTERS, (*TASKS, (TopicPartition("later", 0),)))

    asyncio.run(run())

    assert target.start_timestamp_of(ORDERS[0]) == LATEST
    assert target.start_timestamp_of(TopicPartition("later", 0)) == EARLIEST


def test_simultaneous_tasks_of_a_group_all_begin_at_the_configured_position(
    monkeypatch: pytest.MonkeyPatch,
):
    """One task must not replace the initial partitions of another task."""
    target = Target(monkeypatch, NO_ACL)
    assignments = [TaskAssignment(partitions=(partition,), initial=True) for partition in ORDERS]

    async def run() -> None:
        starting = [
            target.owner.start_in_group(CLUSTERS, task, assignment)
            for task, assignment in enumerate(assignments)
        ]
        await asyncio.gather(*starting)

    asyncio.run(run())

    assert {target.start_timestamp_of(partition) for partition in ORDERS} == {LATEST}


def test_tasks_of_a_flow_without_an_owner_finish_when_it_is_ended(monkeypatch: pytest.MonkeyPatch):
    """They start again only after the end is cleared."""
    target = Target(monkeypatch, NO_ACL)
    assignment = TaskAssignment(partitions=ORDERS[:1], initial=True)

    async def run() -> None:
        await target.owner.own(CLUSTERS, TASKS)
        await target.owner.start_of(0, assignment)
        target.ended_by = "to-west"
        await until_done(target, "finish the tasks")
        with pytest.raises(FlowEndedError, match="was ended by switchover to-west"):
            await target.owner.start_of(0, assignment)
        target.ended_by = ""
        assert (await target.owner.start_of(0, assignment)).assignment == assignment

    asyncio.run(run())


def test_an_unreachable_source_is_not_reported_as_a_missing_renewal_of_the_claim(
    monkeypatch: pytest.MonkeyPatch,
):
    """The tasks of a flow without an owner keep running.

    The connector keeps trying to read whether the flow was ended.
    """
    target = Target(monkeypatch, NO_ACL)

    async def run() -> None:
        await target.owner.own(CLUSTERS, TASKS)
        before = target.owner.warnings
        target.source_problem = UnreachableError(cluster="east", addresses="e:9092", problem="timed out")
        while target.source_problems < 2:
            target.changed.clear()
            await target.changed.wait()
        assert before == target.owner.warnings

    asyncio.run(run())

    assert "finish the tasks" not in target.done


def test_unread_claims_of_the_source_do_not_hide_another_warning(monkeypatch: pytest.MonkeyPatch):
    target = Target(monkeypatch, NO_ACL)

    async def run() -> None:
        await target.owner.own(CLUSTERS, TASKS)
        (unfenced,) = target.owner.warnings
        target.owner._takeover.unread = "Topic a is hidden."
        unread, other = target.owner.warnings
        assert unread.endswith(": Topic a is hidden.")
        assert unfenced == other

    asyncio.run(run())
