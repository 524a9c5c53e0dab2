"""A commit waits for batches in flight, and no longer than it must: one silent broker does not hold up the others' lanes."""

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.client.error_codes import (
    INVALID_PRODUCER_ID_MAPPING,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
)
from mirrorflow_kafka.client.metadata import EMPTY
from mirrorflow_replicator.copy import shared_transaction as module
from mirrorflow_replicator.copy.copier_context import CopierState
from mirrorflow_replicator.copy.shared_transaction import (
    NO_TRANSACTIONAL_ID,
    TRANSACTIONAL_ID_EXPIRED,
    SharedTransaction,
)
from tests.unit.copy.test_batch_packer import IDENTITY

DRAIN_S = 0.2
BOUND_S = 300.0


class Lane:
    """What a pinning asks of a lane, and what it has told it."""

    state = CopierState.COPYING
    doubts = 0
    stream = None

    def __init__(self, number: int, *, is_drained: bool) -> None:
        self.target = TopicPartition("orders", number)
        self.is_drained = is_drained
        self.packer = self
        self.around = SimpleNamespace(pin_before_ms=0)
        self.pin = self
        self.is_held = False
        self.held_at = 0.0
        self.released: list[bool] = []

    def is_next_older(self, than_ms: int) -> bool:
        return False

    def doubt(self) -> None:
        self.doubts += 1

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
    code = 0  # of each partition that is to be taken into the transaction

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ended: list[float] = []
        monkeypatch.setattr(admin, "try_add_partitions_to_txn", self._add)
        monkeypatch.setattr(admin, "end_txn", self._end)
        monkeypatch.setattr(module, "DRAIN_S", DRAIN_S)
        monkeypatch.setattr(module, "COMMIT_EVERY_S", 0.01)
        monkeypatch.setattr(module, "COMMIT_SPREAD_S", 0.0)

    async def _add(self, *arguments: Any, **_: Any) -> dict[TopicPartition, int]:
        return dict.fromkeys(arguments[4], self.code)

    async def _end(self, *_: Any, **__: Any) -> None:
        self.ended.append(time.monotonic())


async def _when(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  a lane has no event for it
        await asyncio.sleep(0.001)


async def _committed(target: Target, *lanes: Lane, emptied_after_s: float | None = None) -> float:
    """How long after the lanes were held it was committed."""
    cluster: Any = target
    pinning = SharedTransaction(cluster, IDENTITY, source_alias="east", timeout_ms=60_000, pump=lambda: None)
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

    assert took_s >= 0.04
    assert lane.released == [True]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (TRANSACTIONAL_ID_AUTHORIZATION_FAILED, NO_TRANSACTIONAL_ID),
        (INVALID_PRODUCER_ID_MAPPING, TRANSACTIONAL_ID_EXPIRED),
    ],
)
def test_a_transactional_id_that_is_refused_is_not_used_any_more(
    monkeypatch: pytest.MonkeyPatch, code: int, reason: str
) -> None:
    """The coordinator answers so for each partition; the lane is copied by a single writer."""
    target, lane = Target(monkeypatch), Lane(0, is_drained=True)
    target.code = code
    cluster: Any = target

    async def given_up() -> str:
        pinning = SharedTransaction(
            cluster, IDENTITY, source_alias="east", timeout_ms=60_000, pump=lambda: None
        )
        running = asyncio.create_task(pinning.run())
        pinning.want(lane)  # type: ignore[arg-type]
        async with asyncio.timeout(BOUND_S):
            await _when(lambda: bool(lane.released))
        running.cancel()
        return pinning.unavailable

    assert asyncio.run(given_up()) == reason
    assert (lane.released, lane.doubts) == ([False], 1)
