"""Runs unplanned switchovers against simulated clusters: which failures they report and continue after."""

import asyncio
from typing import Any, cast

import pytest

from mirrorflow_core.errors import UnreachableError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.switchover.loss import EndEvidence, LossAssessment, PartitionCut, PartitionLoss
from mirrorflow_core.switchover.observation import (
    ClusterObservation,
    FenceState,
    FlowEnd,
    GroupClamp,
    PartitionEnd,
    SwitchoverObservation,
)
from mirrorflow_core.switchover.record import SwitchoverRecord
from mirrorflow_core.switchover.states import SwitchoverState, SwitchoverType
from mirrorflow_replicator.switchover import switchover_actions, switchover_runner
from mirrorflow_replicator.switchover.switchover_runner import SwitchoverRunner
from mirrorflow_replicator.switchover.unplanned_session import ENDS_ALONE, UnplannedActions

ORDERS = TopicPartition("orders", 0)
LOSS = LossAssessment(
    partitions=(
        PartitionLoss(topic="orders", partition=0, copied=7, source_end=9, evidence=EndEvidence.FLOW),
    )
)
CUTS = (
    PartitionCut(
        topic="orders", partition=0, source_topic_id="s", copied=7, target_topic_id="t", target_end=8
    ),
)


class LostWorld:
    """A target that works, and a source that responds but cannot be fenced; one object for journal, fences, flow and observer."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.records: dict[str, SwitchoverRecord] = {}
        self.active = "east"
        self.ended = ""
        self.groups: Any = None
        self.problem = ""
        self.can_fence = True
        self.settings = self.journal = self.source_fence = self.target_fence = self.partitions = self
        self.target = self.forward = self.forward_groups = self.endpoint_hook = self.endpoint_object = None
        self.source, self.to = "east", "west"
        self.source_fence_state: FenceState | None = FenceState.ABSENT
        self.hangs = False
        self.is_rollback_requested = False

    async def write(self, record: SwitchoverRecord) -> None:
        self.calls.append(record.state.value)
        self.records[record.id] = record

    async def confirm(self, alias: str) -> None:
        assert alias == "west"

    async def write_endpoint(self, to: str) -> None:
        self.calls.append(f"endpoint {to}")
        self.active = to

    async def topics(self) -> frozenset[str]:
        return frozenset({"orders"})

    async def set(self, topics: object) -> None:
        self.calls.append("try to fence")
        self.can_fence = False
        raise UnreachableError(cluster="east", addresses="east:9092", problem="no response")

    def note_groups(self, groups: object) -> None:
        self.groups = groups

    async def observe(self, record: SwitchoverRecord) -> SwitchoverObservation:
        ends = {ORDERS: PartitionEnd(topic_id="t", end=8, last_stable=8)}
        records = tuple(self.records.values())
        return SwitchoverObservation(
            runner="host/1/a",
            rollback_requested=self.is_rollback_requested,
            source=ClusterObservation(fence=self.source_fence_state),
            endpoint=self.active,
            flow_end=FlowEnd(switchover=self.ended),
            loss=LOSS,
            can_fence_source=self.can_fence,
            cuts=CUTS,
            clamp=None if self.groups is None else GroupClamp(),
            target=ClusterObservation(records=records, fence=FenceState.ABSENT, ends=ends),
        )


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> LostWorld:
    world = LostWorld()

    async def end_flow(_settings: object, _target: object, switchover: str, **_: object) -> None:
        world.calls.append("end")
        world.ended = switchover
        if world.hangs:
            world.is_rollback_requested = True
            await asyncio.Event().wait()

    async def clear_end(*_: object) -> None:
        world.calls.append("clear end")
        world.ended = ""

    monkeypatch.setattr(switchover_actions, "end_flow", end_flow)
    monkeypatch.setattr(switchover_actions, "clear_end", clear_end)
    for name in ("POLL_S", "RETRY_MIN_S", "RETRY_S"):
        monkeypatch.setattr(switchover_runner, name, 0)
    return world


def run(world: LostWorld, *, accepts_loss: bool = True) -> tuple[SwitchoverRecord, list[str]]:
    """Returns the last record, and the errors that were shown."""
    problems: list[str] = []
    record = SwitchoverRecord(
        id="one",
        pair="east-west",
        type=SwitchoverType.UNPLANNED,
        source="east",
        to="west",
        created_ms=0,
        accepts_loss=accepts_loss,
    )
    part = cast("Any", world)
    actions = UnplannedActions(part, part)
    runner = SwitchoverRunner(part, actions, on_step=lambda _, problem: problems.append(problem))
    last = asyncio.run(asyncio.wait_for(runner.run(record), 60))
    return last, [problem for problem in problems if problem]


def test_a_failed_fence_is_reported_and_the_flow_is_still_ended(world: LostWorld):
    last, problems = run(world)

    assert SwitchoverState.DEGRADED is last.state
    assert [
        "Assessing", "ForwardEnded", "try to fence", "end", "GroupsClamped", "Promoting", "endpoint west", "Degraded",
    ] == world.calls  # fmt: skip
    assert ["east" in problem for problem in problems] == [True]
    assert (LOSS, CUTS) == (last.loss, last.cuts)


def test_a_loss_that_is_not_accepted_changes_only_the_journal(world: LostWorld):
    last, _ = run(world, accepts_loss=False)

    assert SwitchoverState.REFUSED is last.state
    assert ["Assessing", "Refused"] == world.calls


def test_a_rollback_request_cancels_an_action_that_does_not_return(world: LostWorld):
    """Brokers before 4.0 cannot end a flow while a partition of its last transaction has no leader."""
    world.hangs = True

    last, _ = run(world)

    assert (SwitchoverState.LIFTED, "") == (last.state, world.ended)
    assert ["end", "RollingBack", "clear end", "Lifted"] == world.calls[-4:]


def test_a_promoted_planned_switchover_switches_the_endpoint_without_the_source(world: LostWorld):
    """Its process was killed, and then the source was lost. The reverse flow waits for the source."""
    world.can_fence = False
    planned = SwitchoverRecord(
        id="one",
        pair="east-west",
        type=SwitchoverType.PLANNED,
        source="east",
        to="west",
        created_ms=0,
        state=SwitchoverState.PROMOTING,
        epoch=1,
        runner="host/0/z",
    )
    world.records["one"], world.source_fence_state = planned, None
    part = cast("Any", world)
    runner = SwitchoverRunner(part, UnplannedActions(part, part), on_step=lambda *_: None)

    last = asyncio.run(asyncio.wait_for(runner.run(planned, until=ENDS_ALONE), 60))

    assert (SwitchoverState.REVERSING, last) == (last.state, world.records["one"])
    assert ["Promoting", "endpoint west", "Reversing"] == world.calls
