"""Pauses between attempts grow exponentially with jitter, up to a maximum."""

import asyncio

import pytest

from mirrorflow_core.backoff import JITTER, Backoff, backoff_s


def test_backoff_grows_to_its_maximum() -> None:
    """It is zero before the first failure, then doubles, and never exceeds the maximum plus jitter."""
    assert backoff_s(0, lowest_s=0.1, highest_s=1.0) == 0
    for failures in range(1, 2000):
        expected = min(0.1 * 2.0 ** min(failures - 1, 30), 1.0)
        pause_s = backoff_s(failures, lowest_s=0.1, highest_s=1.0)
        assert expected * (1 - JITTER) <= pause_s <= expected * (1 + JITTER)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Records the requested pauses without waiting."""
    requested: list[float] = []

    async def sleep(pause_s: float) -> None:
        requested.append(pause_s)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    return requested


def test_attempts_are_numbered_and_end_without_a_pause(pauses: list[float]) -> None:
    async def run() -> list[int]:
        return [attempt async for attempt in Backoff(min_s=0.1, max_s=1, attempts_max=4)]

    assert asyncio.run(run()) == [1, 2, 3, 4]
    assert pauses == [
        0.0,
        *(pytest.approx(expected, rel=JITTER + 0.01) for expected in (0.1, 0.2, 0.4)),
    ]


def test_pauses_grow_by_a_configured_factor(pauses: list[float]) -> None:
    async def run() -> None:
        async for _ in Backoff(min_s=0.1, max_s=0.2, attempts_max=5, growth=1.5):
            pass

    asyncio.run(run())

    assert pauses == [
        0.0,
        *(pytest.approx(expected, rel=JITTER + 0.01) for expected in (0.1, 0.15, 0.2, 0.2)),
    ]


def test_after_a_reset_the_next_attempt_follows_at_once(pauses: list[float]) -> None:
    async def run() -> None:
        backoff = Backoff(min_s=0.1, max_s=1)
        async for _ in backoff:
            if len(pauses) == 3:
                assert 0.1 < backoff.next_s < 1
                backoff.reset()
            if len(pauses) == 5:
                return

    asyncio.run(run())

    assert pauses[3] == 0
    assert pauses[4] == pytest.approx(0.1, rel=JITTER + 0.01)
