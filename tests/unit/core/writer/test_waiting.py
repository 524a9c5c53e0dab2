"""A newcomer waits until the owner has left or is dead.

It takes a flow with a different id only if that id is declared.
"""

import contextlib
from dataclasses import replace
from typing import Any

import pytest

from mirrorflow_core.writer import ownership
from mirrorflow_core.writer.broker_requests import Steps
from mirrorflow_core.writer.claim import ABANDONED_MS, RENEW_MS, Claim
from mirrorflow_core.writer.flow_plan import FlowPlan
from mirrorflow_core.writer.ownership import FlowExists, wait_for_turn
from mirrorflow_core.writer.transaction_log import DecidedRecords

OWN = Claim(flow="new", process="p", source_alias="east", tasks=1, lock_epoch=1, time_ms=0)
OLD = replace(OWN, flow="old")


def wait_for_old_flow(
    monkeypatch: pytest.MonkeyPatch, *, renewed_until_ms: int, left: bool, takes_over: tuple[str, ...]
) -> Any:
    """Returns the newcomer's result and its waiting time if the owner renews its claim until *renewed_until_ms*."""
    now_ms = 0

    def read_claims() -> Steps[DecidedRecords[Claim]]:
        renewed = min(now_ms, renewed_until_ms) // RENEW_MS
        claim = replace(OLD, time_ms=renewed, left=left and now_ms >= renewed_until_ms)
        yield from ()
        return DecidedRecords((claim,), ())

    monkeypatch.setattr(ownership, "read_claims", read_claims)
    steps = wait_for_turn(FlowPlan(claim=OWN, assignment=(), takes_over=takes_over))
    next(steps)
    while True:
        now_ms += ownership.POLL_MS
        try:
            steps.send((now_ms,))
        except StopIteration as end:
            return end.value, now_ms


def test_a_flow_not_named_in_take_over_from_is_never_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    result, _ = wait_for_old_flow(monkeypatch, renewed_until_ms=0, left=True, takes_over=())

    assert isinstance(result, FlowExists)
    assert result.claim.flow == "old"


def test_a_flow_named_in_take_over_from_is_refused_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    result, waited_ms = wait_for_old_flow(
        monkeypatch, renewed_until_ms=10**9, left=False, takes_over=("old",)
    )

    assert isinstance(result, FlowExists)
    assert waited_ms <= 2 * RENEW_MS


def test_a_flow_named_in_take_over_from_is_taken_at_once_after_it_has_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert wait_for_old_flow(monkeypatch, renewed_until_ms=0, left=True, takes_over=("old",)) == (
        None,
        ownership.POLL_MS,
    )


def test_a_deleted_claim_still_protects_its_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    """A running owner writes the claim again, but a dead one does not."""
    claims = [OWN, None, None, replace(OWN, time_ms=3)]

    def read_claims() -> Steps[DecidedRecords[Claim]]:
        claim = claims.pop(0) if len(claims) > 1 else claims[0]
        yield from ()
        return DecidedRecords((claim,) if claim else (), ())

    monkeypatch.setattr(ownership, "read_claims", read_claims)
    steps, now_ms = wait_for_turn(FlowPlan(claim=OWN, assignment=())), 0
    next(steps)
    with contextlib.suppress(StopIteration):
        while now_ms := now_ms + ownership.POLL_MS:
            steps.send((now_ms,))

    assert now_ms == 4 * ownership.POLL_MS + ABANDONED_MS


def test_a_waiting_process_reports_the_owner_of_the_flow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of the owner is reported too."""
    claims = [replace(OWN, process="host/1/a"), replace(OWN, process="host/2/b")]

    def read_claims() -> Steps[DecidedRecords[Claim]]:
        yield from ()
        return DecidedRecords((claims.pop(0),), ())

    monkeypatch.setattr(ownership, "read_claims", read_claims)
    owners: list[str | None] = []
    steps = wait_for_turn(
        FlowPlan(claim=OWN, assignment=()), lambda claim: owners.append(claim.running_process)
    )
    next(steps)
    for poll in (1, 2):
        steps.send((poll * ownership.POLL_MS,))

    assert ["process 1 on host host", "process 2 on host host"] == owners


def test_a_flow_named_in_take_over_from_that_died_is_taken_once_its_claim_is_abandoned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result, waited_ms = wait_for_old_flow(monkeypatch, renewed_until_ms=0, left=False, takes_over=("old",))

    assert result is None
    assert waited_ms >= ABANDONED_MS


def test_a_newcomer_waits_for_an_ended_flow_until_the_end_is_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds for a claim of any age, and for a flow that may continue the claimed flow."""
    cleared_ms, now_ms = 10 * ABANDONED_MS, 0
    ended = replace(OLD, left=True, ended="to-west")

    def read_claims() -> Steps[DecidedRecords[Claim]]:
        claim = ended if now_ms < cleared_ms else replace(OLD, left=True, time_ms=1)
        if now_ms < ABANDONED_MS // 2:
            claim = replace(OLD, time_ms=now_ms // RENEW_MS)
        yield from ()
        return DecidedRecords((claim,), ())

    monkeypatch.setattr(ownership, "read_claims", read_claims)
    steps = wait_for_turn(FlowPlan(claim=replace(OWN, flow="old"), assignment=()))
    next(steps)
    with contextlib.suppress(StopIteration):
        while now_ms := now_ms + ownership.POLL_MS:
            steps.send((now_ms,))

    assert now_ms == cleared_ms
