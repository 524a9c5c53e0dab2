"""How long an unplanned switchover lets the fence of its source take, by the method of the fence."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import pytest

from mirrorflow_core.switchover import guards
from mirrorflow_core.switchover.observation import FenceState
from mirrorflow_replicator.switchover import lost_source_fence
from mirrorflow_replicator.switchover.errors import FenceUnavailableError
from mirrorflow_replicator.switchover.hooks import HookAction, SwitchoverHook
from mirrorflow_replicator.switchover.journal import FenceNote
from mirrorflow_replicator.switchover.lost_source_fence import LostSourceFence
from mirrorflow_replicator.switchover.pair_settings import FenceKind
from tests.unit.switchover.test_network_policy_fence import FakePolicies, fence


@dataclass
class FakeSwitchover:
    """Settings, journal and probe of an unplanned switchover whose source does not respond."""

    fence_hook: SwitchoverHook
    fence: FenceKind = FenceKind.HOOK
    source: str = "east"
    noted: FenceState = FenceState.ABSENT

    def __post_init__(self) -> None:
        self.variables: Mapping[str, str] = {}
        self.except_principals = ()
        self.cluster = None

    async def write_fence(self, alias: str, state: FenceState, **_: object) -> None:
        assert alias == "east"
        self.noted = state

    def fence_of(self, alias: str) -> FenceNote:
        assert alias == "east"
        return FenceNote(state=self.noted)

    def set(self) -> None:
        part = cast("Any", self)
        asyncio.run(LostSourceFence(part, part, part).set(["orders"]))


@dataclass(frozen=True)
class SlowHook:
    """A hook that takes *needs_s*, and may take *timeout_s*."""

    needs_s: float
    timeout_s: float

    async def run(self, action: HookAction, variables: Mapping[str, str]) -> None:
        await asyncio.sleep(self.needs_s)

    async def problem(self) -> str:
        return ""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lost_source_fence, "ATTEMPT_S", 0.05)
    monkeypatch.setattr(lost_source_fence, "LONGEST_S", 0.5, raising=False)


def test_a_network_policy_may_settle_for_as_long_as_an_attempt_takes():
    """By default, both are 5 s."""
    hook = replace(fence(FakePolicies()), settle_s=lost_source_fence.ATTEMPT_S)
    switchover = FakeSwitchover(hook, FenceKind.NETWORK_POLICY)

    switchover.set()

    assert FenceState.COMPLETE is switchover.noted


def test_a_hook_may_take_its_own_time():
    switchover = FakeSwitchover(SlowHook(needs_s=0.1, timeout_s=0.4))

    switchover.set()

    assert FenceState.COMPLETE is switchover.noted


def test_a_hook_is_stopped_when_an_unplanned_switchover_waits_no_longer():
    """Its own time may be minutes, and applications can write to neither side meanwhile."""
    switchover = FakeSwitchover(SlowHook(needs_s=60, timeout_s=60))

    with pytest.raises(FenceUnavailableError, match=r"within 0\.5 s"):
        switchover.set()

    assert FenceState.PARTIAL is switchover.noted


def test_an_attempt_ends_when_the_state_machine_waits_no_longer(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.undo()

    assert guards.FENCE_TRIED_MS == lost_source_fence.LONGEST_S * 1000
