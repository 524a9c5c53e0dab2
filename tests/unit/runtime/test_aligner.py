"""Who is refused again and again steps out of the way, and comes back with one batch in flight (DESIGN 4.2, clause 5)."""

import asyncio
import contextlib
import random
import time
from types import SimpleNamespace
from typing import Any

import pytest

from mirrorflow_replicator.errors import FencedError
from mirrorflow_replicator.flow.alignment import GoOn, Need
from mirrorflow_replicator.kafka import witnesses
from mirrorflow_replicator.kafka.metadata import EMPTY
from mirrorflow_replicator.runtime import aligner as module
from mirrorflow_replicator.runtime.aligner import REFUSALS_IN_A_ROW, Aligner
from mirrorflow_replicator.runtime.lane import Lane
from mirrorflow_replicator.runtime.surroundings import State
from tests.unit.runtime.leader import Leader
from tests.unit.runtime.test_lane import Copier, Source
from tests.unit.runtime.test_packing import IDENTITY, WHEN

BACK_OFF_S = (0.05, 0.08)
BOUND_S = 10.0
BLANK_S = 0.3


class Anchored:
    """Every lane has its anchor, and nothing was lost."""

    async def anchor(self, lanes: Any, heard: Any) -> frozenset[Any]:
        return frozenset()


def doubtful_lane() -> Lane:
    """Whose broker is connected."""
    chance = random.Random(1)
    lane = Copier(Source(chance), Leader(), chance, WHEN).lane
    lane.pipe = SimpleNamespace(is_connected=True, ready=lambda _: None)  # type: ignore[assignment]
    return lane


def aligner() -> Aligner:
    target: Any = SimpleNamespace(metadata=EMPTY, leader=lambda *_: 1, alias="west")
    anchoring: Any = Anchored()
    return Aligner(
        source=target,
        target=target,
        identity=IDENTITY,
        anchoring=anchoring,
        copier="a",
        read_committed=False,
        stale=print,
        pump=lambda: None,
    )


async def told_blank(monkeypatch: pytest.MonkeyPatch, *, times: int) -> Lane:
    """A lane whose target says so many times that it remembers the identity and no record of it, and then where to go on."""
    lane = doubtful_lane()
    over = asyncio.Event()
    lane.reader = SimpleNamespace(changed=lambda *_: over.set())  # type: ignore[assignment]
    lane.around.stopped = lambda *_: over.set()
    said = iter(range(times))

    async def ask(*_: Any, **__: Any) -> Any:
        return {lane.target: witnesses.Testimony(log_start=0, high_watermark=0)}

    async def settle(_: Any, __: Any, evidence: Any, **___: Any) -> Any:
        if next(said, None) is not None:
            return Need.BLANK, evidence
        pair = lane.ladder()[0]
        return GoOn(ordinal=pair.ordinal, target_offset=-1, known=pair, alone=False), evidence

    monkeypatch.setattr(module, "ask", ask)
    monkeypatch.setattr(module, "settle", settle)
    monkeypatch.setattr(module, "BLANK_S", BLANK_S)
    monkeypatch.setattr(module, "AGAIN_S", 0.01)
    found = aligner()
    found.doubtful(lane)
    running = asyncio.create_task(found.run())
    async with asyncio.timeout(BOUND_S):
        await over.wait()
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    return lane


async def gone_on(monkeypatch: pytest.MonkeyPatch, *, refusals: int) -> tuple[float, bool]:
    """How long it took to ask for a lane in doubt, and whether it then goes on with one batch alone."""
    lane = doubtful_lane()
    gone = asyncio.Event()
    lane.reader = SimpleNamespace(changed=lambda *_: gone.set())  # type: ignore[assignment]
    lane.refusals = refusals
    asked: list[float] = []

    async def ask(*_: Any, **__: Any) -> Any:
        asked.append(time.monotonic())
        return {lane.target: witnesses.Testimony(log_start=0, high_watermark=0)}

    async def settle(_: Any, __: Any, evidence: Any, **___: Any) -> Any:
        pair = lane.ladder()[0]
        return GoOn(ordinal=pair.ordinal, target_offset=-1, known=pair, alone=False), evidence

    monkeypatch.setattr(module, "ask", ask)
    monkeypatch.setattr(module, "settle", settle)
    monkeypatch.setattr(module, "BACK_OFF_S", BACK_OFF_S)
    began = time.monotonic()
    found = aligner()
    found.doubtful(lane)
    running = asyncio.create_task(found.run())
    async with asyncio.timeout(BOUND_S):
        await gone.wait()
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    assert lane.state is State.COPYING
    return asked[0] - began, lane.alone


def test_a_first_refusal_is_asked_about_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    _, alone = asyncio.run(gone_on(monkeypatch, refusals=REFUSALS_IN_A_ROW - 1))

    assert not alone


def test_after_two_refusals_in_a_row_it_waits_and_then_sends_one_batch_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    after_s, alone = asyncio.run(gone_on(monkeypatch, refusals=REFUSALS_IN_A_ROW))

    assert after_s >= BACK_OFF_S[0]
    assert alone


def test_a_leader_that_remembers_no_record_is_asked_again_for_it_may_be_one_of_the_past(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lane = asyncio.run(told_blank(monkeypatch, times=2))

    assert lane.state is State.COPYING


def test_a_leader_that_goes_on_remembering_none_makes_a_next_generation_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would stay so for a day, and take no batch but the first number."""
    began = time.monotonic()
    lane = asyncio.run(told_blank(monkeypatch, times=10_000))

    assert lane.state is State.STOPPED
    assert isinstance(lane.error, FencedError)
    assert time.monotonic() - began >= BLANK_S
