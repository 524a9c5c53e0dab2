"""Runs switchovers against simulated clusters: the order of the actions, their repeats and their rollback."""

import asyncio
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from mirrorflow_core.errors import UnreachableError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.switchover.actions import SwitchEndpoint
from mirrorflow_core.switchover.observation import (
    ClusterObservation,
    FenceState,
    FlowEnd,
    GroupPass,
    PartitionEnd,
    ReadinessCheck,
    ReverseFlow,
    SealVerification,
    SwitchoverObservation,
    TailDigest,
    TailDigests,
)
from mirrorflow_core.switchover.record import ReverseStart, SwitchoverLimits, SwitchoverRecord
from mirrorflow_core.switchover.seal import Seal
from mirrorflow_core.switchover.state_machine import SwitchoverStep
from mirrorflow_core.switchover.states import SwitchoverState, SwitchoverType
from mirrorflow_replicator.switchover import switchover_runner
from mirrorflow_replicator.switchover.errors import SwitchoverTakenError
from mirrorflow_replicator.switchover.hooks import HookSettings
from mirrorflow_replicator.switchover.observer import PlannedParts
from mirrorflow_replicator.switchover.pair_settings import FenceKind, SwitchoverSettings
from mirrorflow_replicator.switchover.switchover_actions import PlannedActions
from mirrorflow_replicator.switchover.switchover_runner import SwitchoverRunner

ORDERS = TopicPartition("orders", 0)
RECORD = SwitchoverRecord(
    id="one", pair="east-west", type=SwitchoverType.PLANNED, source="east", to="west", created_ms=0
)


class World:
    """Both clusters, and the parts that a runner calls. `failures`: errors that the next calls of a method raise."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.failures: dict[str, list[Exception]] = {}
        self.records: dict[str, SwitchoverRecord] = {}
        self.fences = {"east": FenceState.ABSENT, "west": FenceState.ABSENT}
        self.active = "east"
        self.ended = ""
        self.started = self.held = ""
        self.verification: SealVerification | None = None
        self.are_groups_there = False
        self.is_canary_tried = False
        self.rollback_in: SwitchoverState | None = None
        self.copied = 7
        self.unchanged_ms = 10_000
        self.problem = ""
        self.hangs_at, self.requests_rollback = "", False
        self.is_rollback_requested = False

    def _note(self, name: str) -> None:
        self.calls.append(name)
        if self.failures.get(name):
            raise self.failures[name].pop(0)

    async def _hang(self, name: str) -> None:
        if self.hangs_at == name:
            self.is_rollback_requested = self.requests_rollback
            await asyncio.Event().wait()

    # The journal.

    async def write(self, record: SwitchoverRecord) -> None:
        self._note(record.state.value)
        self.records[record.id] = record

    async def confirm(self, alias: str) -> None:
        if self.failures.get(f"confirm {alias}"):
            raise self.failures[f"confirm {alias}"].pop(0)

    def starts_on(self, alias: str) -> tuple[ReverseStart, ...]:
        return ()

    async def write_endpoint(self, to: str) -> None:
        self._note(f"endpoint {to}")
        self.active = to

    # The flows, the checks and the partitions.

    async def try_fence(self) -> None:
        self._note("try fence")
        self.is_canary_tried = True

    async def topics(self) -> frozenset[str]:
        return frozenset({"orders"})

    async def verify(self, seal: Seal, starts: tuple[ReverseStart, ...] = ()) -> None:
        self._note("verify")
        await self._hang("verify")
        self.verification = SealVerification(seal_sha256=seal.sha256)

    async def verify_ahead(
        self, ends: Mapping[TopicPartition, PartitionEnd], starts: tuple[ReverseStart, ...] = ()
    ) -> None:
        self._note(f"verify ahead {[end.end for end in ends.values()]}")
        self.unchanged_ms = 10_000

    async def finish_groups(self) -> None:
        self._note("groups")
        self.are_groups_there = True

    async def end(self, switchover: str) -> None:
        self._note("end")
        await self._hang("end")
        self.ended = switchover

    async def clear_end(self, switchover: str) -> None:
        self._note("clear end")
        self.ended = ""

    async def hold_reverse(self, switchover: str) -> None:
        self._note("hold reverse")
        self.held = switchover

    async def release_reverse(self, switchover: str) -> None:
        self._note("release reverse")
        self.held = ""

    async def start_reverse(self, switchover: str, starts: tuple[ReverseStart, ...]) -> None:
        self._note("start reverse")
        self.started, self.held = switchover, ""

    def request_rollback(self) -> None:
        raise AssertionError("the world decides when")

    async def observe(self, record: SwitchoverRecord) -> SwitchoverObservation:
        records = tuple(self.records.values())
        ends = {ORDERS: PartitionEnd(topic_id="id", end=7, last_stable=7)}
        checks: Mapping[ReadinessCheck, str] = dict.fromkeys(ReadinessCheck, "")
        if not self.is_canary_tried:
            checks = {check: "" for check in ReadinessCheck if check is not ReadinessCheck.FENCE}
        return SwitchoverObservation(
            runner="host/1/a",
            rollback_requested=self.is_rollback_requested or record.state is self.rollback_in,
            checks=checks,
            endpoint=self.active,
            flow_end=FlowEnd(switchover=self.ended),
            source=ClusterObservation(
                records=records,
                fence=self.fences["east"],
                ends=ends,
                unchanged_ms=self.unchanged_ms,
                tails=TailDigests(key="", partitions={ORDERS: TailDigest(records=7, digest="ab")}),
            ),
            copied={ORDERS: self.copied},
            verification=self.verification,
            groups=GroupPass(behind=() if self.are_groups_there else ("billing",)),
            target=ClusterObservation(records=records, fence=self.fences["west"], ends=ends),
            reverse=ReverseFlow(started_by=self.started, is_copying=bool(self.started), held_by=self.held),
        )


class SimulatedFence:
    """The fence of one cluster of a world."""

    is_set = False
    seen: FenceState | None = None

    def __init__(self, world: World, alias: str) -> None:
        self._world = world
        self._alias = alias

    async def state(self) -> FenceState:
        return self._world.fences[self._alias]

    async def uncovered(self, topics: object) -> frozenset[str]:
        return frozenset()

    async def plan(self, topics: object) -> None:
        pass

    async def set(self, topics: object) -> None:
        self._world._note(f"fence {self._alias}")
        self._world.fences[self._alias] = FenceState.COMPLETE

    async def lift(self) -> None:
        self._world._note(f"lift {self._alias}")
        self._world.fences[self._alias] = FenceState.ABSENT


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(switchover_runner, "POLL_S", 0)
    monkeypatch.setattr(switchover_runner, "RETRY_MIN_S", 0)
    monkeypatch.setattr(switchover_runner, "RETRY_S", 0)


def run(
    world: World,
    record: SwitchoverRecord = RECORD,
    *,
    hook: HookSettings | None = None,
    on_step: Callable[[Any, str], None] = lambda *_: None,
) -> SwitchoverRecord:
    part = cast("Any", world)
    settings = SwitchoverSettings(
        pair="east-west",
        forward=cast("Any", _Aliases("east", "west")),
        forward_groups=None,
        back=cast("Any", _Aliases("west", "east")),
        fence=FenceKind.DENY_ACL,
        endpoint_hook=hook,
        limits=record.limits,
    )
    parts = PlannedParts(
        settings=settings,
        clusters=part,
        journal=part,
        fences={alias: SimulatedFence(world, alias) for alias in ("east", "west")},
        flows=part,
        checks=part,
        partitions=part,
    )
    runner = SwitchoverRunner(part, PlannedActions(parts), on_step=on_step)
    return asyncio.run(asyncio.wait_for(runner.run(record), 60))


class _Aliases:
    def __init__(self, source: str, target: str) -> None:
        self.source_alias, self.target_alias = source, target


def unreachable() -> UnreachableError:
    return UnreachableError(cluster="west", addresses="west:9092", problem="no response")


def test_a_planned_switchover_announces_each_state_and_then_acts():
    world = World()

    last = run(world)

    assert SwitchoverState.DONE is last.state
    assert ("west", FenceState.COMPLETE) == (world.active, world.fences["east"])
    assert [
        "Checking", "try fence", "Fencing", "hold reverse", "fence east", "Quiescing", "Verifying", "verify",
        "GroupsFinal", "groups", "ForwardEnded", "end", "Promoting", "endpoint west", "Reversing", "start reverse", "Done",
    ] == world.calls  # fmt: skip


@pytest.mark.parametrize(
    ("copied", "calls"), [(7, ["verify ahead [7]"]), (6, [])], ids=["copied", "not copied yet"]
)
def test_a_complete_copy_is_compared_during_the_quiet_period(copied: int, calls: list[str]):
    world = World()
    world.copied, world.unchanged_ms = copied, 0

    record = run(world, replace(RECORD, limits=SwitchoverLimits(refused_ms=300)))

    compared = [call for call in world.calls if call.startswith("verify ahead")]
    assert calls == compared
    assert (SwitchoverState.DONE if calls else SwitchoverState.LIFTED) is record.state


def test_a_comparison_that_fails_during_the_quiet_period_is_repeated():
    world = World()
    world.unchanged_ms = 0
    world.failures["verify ahead [7]"] = [unreachable()]

    assert SwitchoverState.DONE is run(world).state


def test_a_rehearsal_lifts_the_fence_and_clears_the_flow_end():
    world = World()

    last = run(world, replace(RECORD, type=SwitchoverType.REHEARSAL))

    assert SwitchoverState.REHEARSED is last.state
    assert ("east", FenceState.ABSENT, "") == (world.active, world.fences["east"], world.ended)
    assert ["RollingBack", "lift east", "clear end", "Rehearsed"] == world.calls[-4:]
    assert "hold reverse" not in world.calls


@pytest.mark.parametrize(
    "state",
    [
        SwitchoverState.FENCING,
        SwitchoverState.QUIESCING,
        SwitchoverState.DRAINING,
        SwitchoverState.VERIFYING,
        SwitchoverState.GROUPS_FINAL,
        SwitchoverState.FORWARD_ENDED,
    ],
    ids=lambda state: state.value,
)
def test_a_requested_rollback_undoes_each_state_before_promoting(state: SwitchoverState):
    world = World()
    world.rollback_in = state
    world.copied = 6 if state is SwitchoverState.DRAINING else 7

    last = run(world)

    assert SwitchoverState.LIFTED is last.state
    assert ("east", FenceState.ABSENT, "") == (world.active, world.fences["east"], world.ended)
    assert not world.held
    assert "endpoint west" not in world.calls


@pytest.mark.parametrize("action", ["verify", "end"])
def test_a_switchover_rolls_back_if_an_action_does_not_return_within_the_time_limit(action: str):
    """Ending a flow initializes transactional ids.

    Brokers before 4.0 refuse that while a partition of the last transaction has no leader.
    """
    world = World()
    world.hangs_at = action

    last = run(world, replace(RECORD, limits=SwitchoverLimits(refused_ms=3_000)))

    assert (SwitchoverState.LIFTED, FenceState.ABSENT) == (last.state, world.fences["east"])


def test_setting_the_wall_clock_back_does_not_extend_the_time_limit(monkeypatch: pytest.MonkeyPatch):
    world, real = World(), time.time_ns
    world.hangs_at = "verify"

    def set_back() -> int:
        return real() - 3_600_000_000_000 * ("verify" in world.calls)

    monkeypatch.setattr(time, "time_ns", set_back)
    last = run(world, replace(RECORD, limits=SwitchoverLimits(refused_ms=3_000)))

    assert SwitchoverState.LIFTED is last.state


def test_a_rollback_request_cancels_an_action_that_does_not_return():
    world = World()
    world.hangs_at, world.requests_rollback = "end", True

    assert SwitchoverState.LIFTED is run(world).state


def test_a_rollback_request_after_promotion_is_ignored():
    world = World()
    world.rollback_in = SwitchoverState.PROMOTING

    assert SwitchoverState.DONE is run(world).state


@pytest.mark.parametrize(
    "action", ["Fencing", "fence east", "verify", "groups", "end", "endpoint west", "start reverse"]
)
def test_a_failed_action_is_reported_and_repeated(action: str):
    world = World()
    world.failures[action] = [unreachable()]
    problems: list[str] = []

    last = run(world, on_step=lambda _, problem: problems.append(problem))

    assert SwitchoverState.DONE is last.state
    assert 2 == world.calls.count(action)
    assert [str(unreachable())] == [problem for problem in problems if problem]


def test_a_failed_endpoint_hook_is_run_again(tmp_path: Path):
    """The first run leaves a file and fails; the second one finds the file."""
    code = "import os, sys; name = sys.argv[1]; known = os.path.exists(name); open(name, 'w'); sys.exit(not known)"
    world, problems = World(), list[str]()
    hook = HookSettings((sys.executable, "-c", code, str(tmp_path / "tried")), 60)

    last = run(world, hook=hook, on_step=lambda _, problem: problems.append(problem))

    assert SwitchoverState.DONE is last.state
    assert ["has ended with status 1 (action promote)." in problem for problem in problems if problem] == [
        True
    ]


def test_a_slow_hook_is_shown_while_it_runs(tmp_path: Path):
    """The hook ends only after its step was shown. Without that, the process would look dead."""
    shown, world = tmp_path / "shown", World()
    code = "import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.01)"
    hook = HookSettings((sys.executable, "-c", code, str(shown)), 60)

    def show(step: SwitchoverStep, _: str) -> None:
        if any(isinstance(action, SwitchEndpoint) for action in step.actions):
            shown.write_text(step.record.state.value)

    assert SwitchoverState.DONE is run(world, hook=hook, on_step=show).state
    assert "Promoting" == shown.read_text()


def test_a_new_state_is_shown_only_after_its_record_is_stored():
    world, shown = World(), list[SwitchoverState]()

    async def write(record: SwitchoverRecord) -> None:
        if record.state is SwitchoverState.PROMOTING:
            await until_shown.wait()
        await World.write(world, record)

    def show(step: SwitchoverStep, _: str) -> None:
        shown.append(step.record.state)
        if "have the state Promoting" in step.waits_for:
            until_shown.set()

    until_shown = asyncio.Event()
    world.write = write  # type: ignore[method-assign]
    assert SwitchoverState.DONE is run(world, on_step=show).state
    assert shown[shown.index(SwitchoverState.PROMOTING) - 1] is SwitchoverState.FORWARD_ENDED


def test_a_state_whose_record_was_not_stored_is_not_shown():
    """Nothing may be reported as promoted that no journal has as promoted: the next process may still roll back."""
    world, shown = World(), list[tuple[SwitchoverState, str]]()
    world.failures["Promoting"] = [unreachable(), unreachable()]

    last = run(world, on_step=lambda step, problem: shown.append((step.record.state, problem)))

    assert SwitchoverState.DONE is last.state
    assert [SwitchoverState.FORWARD_ENDED] * 2 == [state for state, problem in shown if problem]


def test_a_process_whose_switchover_was_taken_over_takes_no_action():
    world = World()
    taken = RECORD.moved_to(SwitchoverState.CHECKING, 1, epoch=1, runner="host/2/b")
    world.records["one"] = taken.revised().revised()

    with pytest.raises(SwitchoverTakenError):
        run(world, taken)

    assert [] == world.calls


def test_a_process_that_loses_the_lock_ends():
    world = World()
    world.failures["Verifying"] = [SwitchoverTakenError(pair="east-west")]

    with pytest.raises(SwitchoverTakenError):
        run(world)

    assert "Verifying" == world.calls[-1]


def test_a_process_that_has_lost_the_lock_does_not_lift_the_fence():
    """It may have been suspended since its last record, and the fence may be that of a different switchover."""
    world = World()
    world.rollback_in = SwitchoverState.VERIFYING
    world.failures["confirm east"] = [SwitchoverTakenError(pair="east-west")]

    with pytest.raises(SwitchoverTakenError):
        run(world)

    assert "lift east" not in world.calls


@pytest.mark.parametrize(
    ("action", "before"),
    [
        ("clear end", "fence east"),
        ("end", "ForwardEnded"),
        ("groups", "GroupsFinal"),
        ("start reverse", "Reversing"),
    ],
)
def test_a_process_that_has_lost_the_lock_does_not_change_the_flows(
    action: str, before: str, monkeypatch: pytest.MonkeyPatch
):
    """The next process may have promoted. If this one then clears the flow end, the flow copies records after the promotion."""
    world = World()
    world.ended = "one" if action == "clear end" else ""  # by an attempt that was interrupted

    async def confirm(_: str) -> None:
        if world.calls[-1] == before:
            raise SwitchoverTakenError(pair="east-west")

    monkeypatch.setattr(world, "confirm", confirm)
    with pytest.raises(SwitchoverTakenError):
        run(world)

    assert before == world.calls[-1]


def test_an_interrupted_switchover_sets_the_fence_again_first():
    world = World()
    world.failures["verify"] = [SwitchoverTakenError(pair="east-west")]
    with pytest.raises(SwitchoverTakenError):
        run(world)
    world.fences["east"] = FenceState.ABSENT
    interrupted = replace(world.records["one"], runner="host/0/z")
    world.records["one"] = interrupted
    world.calls.clear()

    last = run(world, interrupted)

    assert SwitchoverState.DONE is last.state
    assert ["Fencing", "fence east", "Quiescing", "Verifying"] == world.calls[:4]
