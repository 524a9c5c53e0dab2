"""Who is refused again and again steps out of the way, and comes back with one batch in flight (docs/exactly-once.md, clause 5)."""

import asyncio
import contextlib
import random
import time
from types import SimpleNamespace
from typing import Any

import pytest

from mirrorflow_core.errors import FencedError, UndecidedError
from mirrorflow_core.exactly_once.alignment import Need, ResumeAt
from mirrorflow_core.settings import LossPolicy
from mirrorflow_core.stall_detection import Obstacle, ObstacleKind
from mirrorflow_kafka.admin import target_probe
from mirrorflow_kafka.client.metadata import EMPTY
from mirrorflow_replicator.copy.copier_context import CopierState
from mirrorflow_replicator.copy.partition_copier import PartitionCopier
from mirrorflow_replicator.copy.resume import resumer as module
from mirrorflow_replicator.copy.resume.resumer import REFUSALS_IN_A_ROW, Resumer
from tests.unit.copy.leader import Leader
from tests.unit.copy.test_batch_packer import IDENTITY, WHEN
from tests.unit.copy.test_partition_copier import Copier, Source

BACK_OFF_S = (0.05, 0.08)
BOUND_S = 300.0
BLANK_S = 0.3


class Anchored:
    """Every lane has its anchor, and nothing was lost."""

    steps = SimpleNamespace(done="", on_loss=LossPolicy.FAIL)

    async def anchor(self, lanes: Any, heard: Any) -> frozenset[Any]:
        return frozenset()

    def unfenced_wait_s(self, lane: Any) -> float:
        return 0.0


def doubtful_lane() -> PartitionCopier:
    """Whose broker is connected."""
    chance = random.Random(1)
    lane = Copier(Source(chance), Leader(), chance, WHEN).lane
    lane.pipe = SimpleNamespace(is_connected=True, ready=lambda _: None)  # type: ignore[assignment]
    return lane


def aligner() -> Resumer:
    target: Any = SimpleNamespace(metadata=EMPTY, leader=lambda *_: 1, alias="west")
    anchoring: Any = Anchored()
    return Resumer(
        source=target,
        target=target,
        identity=IDENTITY,
        anchoring=anchoring,
        copier="a",
        read_committed=False,
        stale=print,
        pump=lambda: None,
    )


async def told_blank(monkeypatch: pytest.MonkeyPatch, *, times: int) -> PartitionCopier:
    """A lane whose target says so many times that it remembers the identity and no record of it, and then where to go on."""
    lane = doubtful_lane()
    over = asyncio.Event()
    lane.reader = SimpleNamespace(changed=lambda *_: over.set())  # type: ignore[assignment]
    lane.around.stopped = lambda *_: over.set()
    said = iter(range(times))

    async def ask(*_: Any, **__: Any) -> Any:
        return {lane.target: target_probe.ProbeResult(log_start=0, high_watermark=0)}

    async def settle(_: Any, __: Any, evidence: Any, **___: Any) -> Any:
        if next(said, None) is not None:
            return Need.BLANK, evidence
        pair = lane.ladder()[0]
        return ResumeAt(ordinal=pair.ordinal, target_offset=-1, known=pair, alone=False), evidence

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
    """How long it took to ask for a lane in doubt, and whether it then continues with one batch alone."""
    lane = doubtful_lane()
    gone = asyncio.Event()
    lane.reader = SimpleNamespace(changed=lambda *_: gone.set())  # type: ignore[assignment]
    lane.refusals = refusals
    asked: list[float] = []

    async def ask(*_: Any, **__: Any) -> Any:
        asked.append(time.monotonic())
        return {lane.target: target_probe.ProbeResult(log_start=0, high_watermark=0)}

    async def settle(_: Any, __: Any, evidence: Any, **___: Any) -> Any:
        pair = lane.ladder()[0]
        return ResumeAt(ordinal=pair.ordinal, target_offset=-1, known=pair, alone=False), evidence

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
    assert lane.state is CopierState.COPYING
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

    assert lane.state is CopierState.COPYING


def test_answers_that_do_not_settle_where_to_continue_are_an_obstacle_of_the_lane(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With their number and what they lack, as the reason why it stands still."""
    lane = asyncio.run(told_blank(monkeypatch, times=3))

    assert lane.obstacle == Obstacle(kind=ObstacleKind.UNSETTLED, message=Need.BLANK.value, times=3)


def test_a_partition_that_cannot_be_decided_says_what_is_known_and_where_more_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lane = doubtful_lane()

    async def settle(_: Any, __: Any, evidence: Any, **___: Any) -> Any:
        return Need.UNDECIDED, evidence

    lane.around.stopped = lambda *_: None
    monkeypatch.setattr(module, "settle", settle)
    asyncio.run(aligner()._decide(lane, target_probe.ProbeResult(log_start=3, high_watermark=8), None))

    assert isinstance(lane.error, UndecidedError)
    said = str(lane.error)
    assert "its log has offsets 3 to 8, and its leader remembers nothing of the flow" in said
    assert "`mirrorflow dump positions` shows the stored offsets" in said


def test_a_lane_whose_place_is_looked_for_in_the_logs_is_known_to_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The target has answered: it is not silent."""
    lane, seen = doubtful_lane(), []

    async def settle(_: Any, __: Any, evidence: Any, **___: Any) -> Any:
        seen.append(set(found.reading_logs))
        return Need.FENCED, evidence

    lane.around.stopped = lambda *_: None
    monkeypatch.setattr(module, "settle", settle)
    found = aligner()
    asyncio.run(found._decide(lane, target_probe.ProbeResult(log_start=0, high_watermark=0), None))

    assert seen == [{lane}]
    assert found.reading_logs == set()


def test_a_leader_that_keeps_remembering_none_makes_a_next_generation_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would stay so for a day, and take no batch but the first number."""
    began = time.monotonic()
    lane = asyncio.run(told_blank(monkeypatch, times=10_000))

    assert lane.state is CopierState.STOPPED
    assert isinstance(lane.error, FencedError)
    assert time.monotonic() - began >= BLANK_S
