"""A commit waits for batches in flight, and no longer than it must: one silent broker does not hold up the others' lanes."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from mirrorflow_replicator.flow.partitions import TopicPartition
from mirrorflow_replicator.kafka import admin
from mirrorflow_replicator.kafka.metadata import EMPTY
from mirrorflow_replicator.runtime import pinning as module
from mirrorflow_replicator.runtime.pinning import Pinning
from mirrorflow_replicator.runtime.surroundings import State
from tests.unit.runtime.test_packing import IDENTITY

DRAIN_S = 0.2
BOUND_S = 10.0


class Lane:
    """What a pinning asks of a lane, and what it has told it."""

    state = State.COPYING
    doubts = 0
    stream = None

    def __init__(self, number: int, *, is_drained: bool) -> None:
        self.target = TopicPartition("orders", number)
        self.is_drained = is_drained
        self.packer = self
        self.is_old = False
        self.pin = self
        self.is_held = False
        self.held_at = 0.0
        self.released: list[bool] = []

    def join(self) -> None:
        """In the transaction."""

    def hold(self) -> None:
        self.is_held = True
        self.held_at = time.monotonic()

    def release(self, *, marked: bool) -> None:
        self.is_held = False
        self.released.append(marked)


class Target:
    """A coordinator that says yes; `ended` is when it was asked to commit."""

    alias = "west"
    metadata = EMPTY

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ended: list[float] = []
        monkeypatch.setattr(admin, "try_add_partitions_to_txn", self._add)
        monkeypatch.setattr(admin, "end_txn", self._end)
        monkeypatch.setattr(module, "DRAIN_S", DRAIN_S)
        monkeypatch.setattr(module, "COMMIT_EVERY_S", 0.01)
        monkeypatch.setattr(module, "COMMIT_SPREAD_S", 0.0)

    async def _add(self, *arguments: Any, **_: Any) -> dict[TopicPartition, int]:
        return dict.fromkeys(arguments[4], 0)

    async def _end(self, *_: Any, **__: Any) -> None:
        self.ended.append(time.monotonic())


async def _when(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  a lane has no event for it
        await asyncio.sleep(0.001)


async def _committed(target: Target, *lanes: Lane, emptied_after_s: float | None = None) -> float:
    """How long after the lanes were held it was committed."""
    pinning = Pinning(target, IDENTITY, source_alias="east", timeout_ms=60_000, pump=lambda: None)  # type: ignore[arg-type]
    running = asyncio.create_task(pinning.run())
    try:
        async with asyncio.timeout(BOUND_S):
            for lane in lanes:
                pinning.want(lane)  # type: ignore[arg-type]
            await _when(lambda: all(lane.is_held for lane in lanes))
            held_at = lanes[0].held_at
            if emptied_after_s is not None:
                await asyncio.sleep(emptied_after_s)
                for lane in lanes:
                    lane.is_drained = True
                    pinning.emptied(lane)  # type: ignore[arg-type]
            await _when(lambda: all(lane.released for lane in lanes))
            return target.ended[0] - held_at
    finally:
        running.cancel()


def test_a_lane_whose_broker_is_silent_holds_a_commit_up_for_a_moment_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it has in flight is refused behind the marker, so it must not go on as if the marker were behind it."""
    silent, quiet = Lane(0, is_drained=False), Lane(1, is_drained=True)

    took_s = asyncio.run(_committed(Target(monkeypatch), silent, quiet))

    assert took_s >= DRAIN_S * 0.9
    assert silent.released == [False]
    assert quiet.released == [True]


def test_a_commit_follows_the_last_answer_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COMMIT_EVERY_S", 0.01)
    target = Target(monkeypatch)
    monkeypatch.setattr(module, "DRAIN_S", BOUND_S)
    lane = Lane(0, is_drained=False)

    took_s = asyncio.run(_committed(target, lane, emptied_after_s=0.05))

    assert 0.04 <= took_s < BOUND_S / 2
    assert lane.released == [True]
