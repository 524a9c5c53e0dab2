"""Rolls a switchover back without its target: only what its state allows once the lock is held."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from mirrorflow_core.switchover.record import SwitchoverRecord
from mirrorflow_core.switchover.states import SwitchoverState, SwitchoverType
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.switchover import source_rollback as rollback_module
from mirrorflow_replicator.switchover.errors import RollbackOvertakenError
from mirrorflow_replicator.switchover.source_rollback import source_rollback
from tests.unit.connectors.flow_settings import settings

FENCING = SwitchoverRecord(
    id="one",
    pair="east-west",
    type=SwitchoverType.PLANNED,
    source="east",
    to="west",
    created_ms=1,
    state=SwitchoverState.FENCING,
)


class JournalOfSource:
    """A journal whose newest record becomes *after* when its lock is taken."""

    def __init__(self, after: SwitchoverRecord | None) -> None:
        self.newest: SwitchoverRecord | None = FENCING
        self._after = after

    def __call__(self, _: object) -> "JournalOfSource":
        return self

    async def take(self) -> None:
        self.newest = self._after

    async def write_renewal(self, *_: object) -> None:
        pass


def roll_back(monkeypatch: pytest.MonkeyPatch, after: SwitchoverRecord | None) -> SwitchoverRecord:
    """Opens the session for a switchover that was read as fencing; returns the record that it rolls back."""
    source: Any = SimpleNamespace(alias="east", close=AsyncMock())
    journal: Any = JournalOfSource(after)
    monkeypatch.setattr(Cluster, "connect", AsyncMock(return_value=source))
    monkeypatch.setattr(rollback_module, "ClusterJournal", lambda *_, **__: None)
    monkeypatch.setattr(rollback_module, "SwitchoverJournal", journal)
    monkeypatch.setattr(rollback_module, "wait_until_free", AsyncMock())
    monkeypatch.setattr(rollback_module, "require_same_method", lambda *_: None)
    monkeypatch.setattr(rollback_module, "fence_of_cluster", lambda *_: None)
    pair: Any = SimpleNamespace(pair="east-west", source="east", to="west", back=settings())

    async def run() -> SwitchoverRecord:
        async with source_rollback(pair, "one", on_step=lambda *_: None) as (record, _):
            return record

    try:
        return asyncio.run(run())
    finally:
        source.close.assert_awaited_once()


@pytest.mark.parametrize(
    "state",
    [
        SwitchoverState.FORWARD_ENDED,
        SwitchoverState.PROMOTING,
        SwitchoverState.REVERSING,
        SwitchoverState.DONE,
    ],
)
def test_a_switchover_that_went_on_before_the_lock_was_taken_is_not_rolled_back(
    monkeypatch: pytest.MonkeyPatch, state: SwitchoverState
):
    with pytest.raises(RollbackOvertakenError, match=f"one to west, in state {state.value}"):
        roll_back(monkeypatch, replace(FENCING, state=state))


@pytest.mark.parametrize("after", [None, replace(FENCING, id="two")])
def test_a_different_switchover_than_the_one_that_was_read_is_not_rolled_back(
    monkeypatch: pytest.MonkeyPatch, after: SwitchoverRecord | None
):
    with pytest.raises(RollbackOvertakenError, match="Switchover one was not rolled back"):
        roll_back(monkeypatch, after)


def test_the_record_as_read_with_the_lock_is_rolled_back(monkeypatch: pytest.MonkeyPatch):
    sealed = replace(FENCING, state=SwitchoverState.SEALED)

    assert sealed == roll_back(monkeypatch, sealed)
