"""How a flow is owned, where the target allows it and where it does not."""

import asyncio
from typing import cast

import pytest

from mirrorflow_core.errors import (
    BrokerError,
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
ASSIGNMENT = (ORDERS[:1],)
NO_ACL = "west does not grant Write on transactional ids that begin with mirrorflow:east:"
UNREACHABLE = UnreachableError(cluster="west", addresses="a:1", problem="no leader")


class NamedCluster:
    """A cluster that is asked for nothing but its id."""

    def __init__(self, cluster_id: str) -> None:
        self.cluster_id = cluster_id


CLUSTERS = cast("tuple[Cluster, Cluster]", (NamedCluster("a"), NamedCluster("b")))


async def _nothing(*_: object, **__: object) -> None:
    """All topics are there."""


class Target:
    """A target that allows owners only if *why* is empty. Notes what is done with the flow."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
        self.why = why
        self.done: list[str] = []
        self.failures: list[Exception] = []  # of the next attempts to open the flow's topics
        self.changed = asyncio.Event()  # one of these
        self.takes: list[
            Fenced | None
        ] = []  # the outcomes of the next takeovers; None: taken, as all later ones
        monkeypatch.setattr(flow_owner, "why_unfenced", self._why)
        monkeypatch.setattr(FlowClusters, "open", self._open)
        monkeypatch.setattr(FlowClusters, "ensure_topics", _nothing)
        monkeypatch.setattr(FlowClusters, "stored_positions", self._no_positions)
        monkeypatch.setattr(UnfencedFlow, "start_task", self._start_unfenced)
        monkeypatch.setattr(FlowTakeover, "take", self._take)
        self.owner = self.new_owner(group="")

    def new_owner(self, *, group: str) -> FlowOwner:
        return FlowOwner(settings(), on_lost=lambda: self._note("finish the tasks"), group=group)

    def _note(self, done: str) -> None:
        self.done.append(done)
        self.changed.set()

    def start_of(self, partition: TopicPartition) -> int:
        """Return the timestamp from which the flow copies a partition without a position."""
        flow = self.owner._flow
        assert flow is not None
        return flow.clusters._start_at(partition)

    async def _why(self, *_: object) -> str:
        return self.why

    async def _open(self, *_: object, **__: object) -> None:
        self.changed.set()
        if self.failures:
            raise self.failures.pop(0)

    async def _no_positions(self, *_: object) -> dict[object, object]:
        return {}

    async def _start_unfenced(self, wanted: TaskAssignment, *_: object) -> Assign:
        producer = Producer("", 7, 0)
        producers = TaskProducers(plain=producer, transactional=producer)
        return Assign(assignment=wanted, start=SessionStart(producers=producers, points={}, problems={}))

    async def _take(self, clusters: FlowClusters, *_: object, **__: object) -> OwnedFlow | Fenced:
        if self.takes and (refused := self.takes.pop(0)):
            return refused
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


def test_what_could_not_be_opened_is_opened_at_the_next_attempt(monkeypatch: pytest.MonkeyPatch):
    """The offsets topic may have no leader while a broker is away."""
    target = Target(monkeypatch, why="")
    target.failures = [
        UNREACHABLE,
        BrokerError(cluster="west", request="Metadata", code=3, name="UNKNOWN_TOPIC_OR_PARTITION"),
    ]

    with pytest.raises(UnreachableError):
        asyncio.run(target.owner.own(CLUSTERS, ()))
    with pytest.raises(BrokerError):
        asyncio.run(target.owner.own(CLUSTERS, ()))


def test_a_flow_that_cannot_be_fenced_has_no_owner_and_a_warning(monkeypatch: pytest.MonkeyPatch):
    target = Target(monkeypatch, NO_ACL)

    asyncio.run(target.owner.own(CLUSTERS, ASSIGNMENT))

    assert target.done == []
    assert target.owner.warnings == (
        f"Records are copied at-least-once, because {NO_ACL}: after a failure some are copied again.",
    )


def test_a_job_that_must_own_the_flow_is_refused_where_it_cannot_be_fenced(monkeypatch: pytest.MonkeyPatch):
    target = Target(monkeypatch, NO_ACL)

    with pytest.raises(FlowUnfencedError, match="Write on transactional ids"):
        asyncio.run(target.owner.own(CLUSTERS, ASSIGNMENT, preempts=True))


def test_the_flow_is_taken_when_the_target_allows_it(monkeypatch: pytest.MonkeyPatch):
    """Its tasks finish before: they store how far they have copied."""
    target = Target(monkeypatch, NO_ACL)

    async def run() -> None:
        await target.owner.own(CLUSTERS, ASSIGNMENT)
        target.why = ""
        await until_done(target, "finish the tasks", "take the flow")

    asyncio.run(run())

    assert target.owner.warnings == ()


def test_tasks_continue_until_the_topics_of_a_flow_that_can_be_fenced_are_open(
    monkeypatch: pytest.MonkeyPatch,
):
    """The claims topic cannot be created while a broker is away; that is tried again."""
    target = Target(monkeypatch, NO_ACL)
    message = TaskAssignment(partitions=ORDERS[:1], initial=True)

    async def run() -> None:
        await target.owner.own(CLUSTERS, ASSIGNMENT)
        target.failures = [UNREACHABLE]
        target.why = ""
        target.changed.clear()
        await target.changed.wait()
        assert target.done == []
        assert (await target.owner.start_of(0, message)).assignment == message
        target.owner._held.release(0)  # the task finishes at once
        await until_done(target, "finish the tasks", "take the flow")

    asyncio.run(run())


@pytest.mark.parametrize("group", ["", "group"])
def test_a_flow_that_another_process_has_taken_is_taken_again_after_it(
    monkeypatch: pytest.MonkeyPatch, group: str
):
    """The tasks of a group continue under the claim of another of its processes."""
    target = Target(monkeypatch, why="")
    owner = target.owner = target.new_owner(group=group)

    async def refused(_: OwnedFlow) -> bool:
        return False

    async def run() -> None:
        await owner.own(CLUSTERS, ASSIGNMENT)
        monkeypatch.setattr(OwnedFlow, "renew", refused)
        monkeypatch.setattr(OwnedFlow, "holds_lock", refused)
        lost = [] if group else ["finish the tasks"]
        await until_done(target, "take the flow", *lost, "take the flow")

    asyncio.run(run())


def test_a_deleted_topic_of_claims_is_no_loss_of_the_flow(monkeypatch: pytest.MonkeyPatch):
    """The warning has the reason until the claim is stored in the new topic."""
    target = Target(monkeypatch, why="")
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
        await owner.own(CLUSTERS, ASSIGNMENT)
        monkeypatch.setattr(OwnedFlow, "renew", renew)
        monkeypatch.setattr(FlowClusters, "ensure_topics", ensure)
        await until_done(target, "take the flow", "renew")

    asyncio.run(run())

    assert ["mm2-claims.east.internal" in one for one in warnings] == [True]
    assert owner.warnings == ()
    assert not owner.is_waiting


def test_a_takeover_that_is_fenced_leaves_the_flow_to_the_newer_owner(monkeypatch: pytest.MonkeyPatch):
    target = Target(monkeypatch, why="")
    target.takes = [None, Fenced()]

    async def run() -> None:
        await target.owner.own(CLUSTERS, ASSIGNMENT)
        with pytest.raises(FlowTakenError):
            await target.owner.own(CLUSTERS, (*ASSIGNMENT, ORDERS[1:]))
        assert target.owner.is_waiting
        with pytest.raises(FlowTakenError):
            await target.owner.positions()

    asyncio.run(run())

    assert target.done == ["take the flow", "finish the tasks"]


def test_a_flow_that_was_never_copied_begins_where_the_settings_say(monkeypatch: pytest.MonkeyPatch):
    """Only with the partitions that it begins with, also where it has no owner."""
    target = Target(monkeypatch, NO_ACL)

    async def run() -> None:
        await target.owner.own(CLUSTERS, ASSIGNMENT)
        await target.owner.own(CLUSTERS, (*ASSIGNMENT, (TopicPartition("later", 0),)))

    asyncio.run(run())

    assert target.start_of(ORDERS[0]) == LATEST
    assert target.start_of(TopicPartition("later", 0)) == EARLIEST


def test_tasks_of_a_group_that_start_at_once_all_begin_where_the_settings_say(
    monkeypatch: pytest.MonkeyPatch,
):
    """A task must not replace the partitions of another, which would then begin at the earliest record."""
    target = Target(monkeypatch, NO_ACL)
    messages = [TaskAssignment(partitions=(one,), initial=True) for one in ORDERS]

    async def run() -> None:
        starting = [
            target.owner.start_in_group(CLUSTERS, task, message) for task, message in enumerate(messages)
        ]
        await asyncio.gather(*starting)

    asyncio.run(run())

    assert {target.start_of(one) for one in ORDERS} == {LATEST}
