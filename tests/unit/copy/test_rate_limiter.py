"""A rate is kept over time and changes at once; a pause of the process is noticed, and only a pause."""

import asyncio
import time
from itertools import pairwise

import pytest

from mirrorflow_replicator.copy import rate_limiter
from mirrorflow_replicator.copy.rate_limiter import BURST_S, PAUSE_S, PauseWatch, RateLimiter


class Clock:
    """Time that passes when a test moves it, or in a sleep."""

    def __init__(self, monkeypatch):
        self.now_s = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(time, "clock_gettime", lambda _: self.now_s)
        monkeypatch.setattr(asyncio, "sleep", self.sleep)

    async def sleep(self, seconds):
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def spend(limit, *sizes):
    async def all_of_them():
        for size_bytes in sizes:
            await limit.spend(size_bytes)

    asyncio.run(all_of_them())


def test_a_rate_is_kept_over_time(clock):
    """A hundred answers of 100 kB at 1 MB/s take ten seconds, less what one may run ahead."""
    began_s = clock.now_s

    spend(RateLimiter(1_000_000), *[100_000] * 100)

    assert 10 - BURST_S <= clock.now_s - began_s <= 10


def test_an_idle_while_is_not_saved_up(clock):
    """After an hour of silence the burst is as small as ever: the rate protects the others on the network now."""
    limit = RateLimiter(1_000_000)
    spend(limit, 1)
    clock.now_s += 3600
    began_s = clock.now_s

    spend(limit, *[100_000] * 20)

    assert clock.now_s - began_s >= 2 - BURST_S


def test_one_answer_larger_than_a_second_is_waited_for_all_the_same(clock):
    """An answer cannot be cut: what it was too much is paid before the next."""
    began_s = clock.now_s

    spend(RateLimiter(1_000), 10_000, 1)

    assert clock.now_s - began_s >= 10 - BURST_S


def test_the_end_of_a_wait_is_known_by_reader(clock):
    """A rate that a reader did not have to wait for has not held it back, whatever the others had."""
    fast, slow = RateLimiter(1 << 40), RateLimiter(1_000)

    spend(fast, 10_000)
    asyncio.run(slow.spend(10_000, reader=2))

    assert fast.held_until_s(0) < 0
    assert slow.held_until_s(1) < 0
    assert slow.held_until_s(2) == clock.now_s


@pytest.mark.parametrize("limit", [None, 0])
def test_without_a_limit_nothing_waits(clock, limit):
    began_s = clock.now_s

    spend(RateLimiter(limit), *[1 << 30] * 10)

    assert began_s == clock.now_s


def test_a_limit_changes_while_it_runs(clock):
    """From the next answer on."""
    limit = RateLimiter(1_000)
    spend(limit, 1_000)
    limit.limit(1_000_000)
    began_s = clock.now_s

    spend(limit, 1_000_000)

    assert clock.now_s - began_s <= 1.5


def test_a_pause_of_the_process_is_noticed_once(clock):
    """Others may have copied meanwhile: where to continue is determined anew."""
    pauses = []
    watch = PauseWatch(on_pause=lambda _: pauses.append(clock.now_s))
    watch.beat()
    clock.now_s += PAUSE_S + 0.01

    watch.beat()
    watch.beat()

    assert 1 == len(pauses)


def test_a_process_that_runs_is_left_alone(clock):
    """A resync interrupts writing."""
    pauses = []
    watch = PauseWatch(on_pause=lambda _: pauses.append(clock.now_s))
    for _ in range(100):
        clock.now_s += PAUSE_S - 0.01
        watch.beat()

    assert [] == pauses


def test_the_clock_counts_while_the_machine_sleeps():
    """A suspended machine is a pause too; the usual monotonic clock stands still in it."""
    readings = [time.clock_gettime(rate_limiter._CLOCK) for _ in range(3)]

    assert all(before <= after for before, after in pairwise(readings))
    assert getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC) == rate_limiter._CLOCK
