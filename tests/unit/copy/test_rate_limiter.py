"""The rate limit holds over time and changes at once; pauses of the process are detected."""

import asyncio
import time
from itertools import pairwise

import pytest

from mirrorflow_replicator.copy import rate_limiter
from mirrorflow_replicator.copy.rate_limiter import BURST_S, PAUSE_S, PauseWatch, RateLimiter


class Clock:
    """A clock that moves only when the test or a sleep advances it."""

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
    async def spend_all():
        for size_bytes in sizes:
            await limit.spend(size_bytes)

    asyncio.run(spend_all())


def test_the_rate_limit_holds_over_time(clock):
    """A hundred responses of 100 kB at 1 MB/s take ten seconds, less the allowed burst."""
    began_s = clock.now_s

    spend(RateLimiter(1_000_000), *[100_000] * 100)

    assert 10 - BURST_S <= clock.now_s - began_s <= 10


def test_idle_time_does_not_increase_the_burst(clock):
    """The burst after an idle hour is as small as before, because the limit protects the network at every moment."""
    limit = RateLimiter(1_000_000)
    spend(limit, 1)
    clock.now_s += 3600
    began_s = clock.now_s

    spend(limit, *[100_000] * 20)

    assert clock.now_s - began_s >= 2 - BURST_S


def test_a_response_over_the_limit_delays_the_next_one(clock):
    """A response cannot be split. The wait for its excess bytes comes before the next response."""
    began_s = clock.now_s

    spend(RateLimiter(1_000), 10_000, 1)

    assert clock.now_s - began_s >= 10 - BURST_S


def test_the_end_of_a_wait_is_recorded_for_each_reader(clock):
    """A reader that did not wait was not limited, although other readers were."""
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


def test_a_changed_limit_applies_to_the_next_response(clock):
    limit = RateLimiter(1_000)
    spend(limit, 1_000)
    limit.limit(1_000_000)
    began_s = clock.now_s

    spend(limit, 1_000_000)

    assert clock.now_s - began_s <= 1.5


def test_a_reader_waits_until_the_rate_limit_covers_its_response(clock):
    limit = RateLimiter(1_000)
    began_s = clock.now_s
    spend(limit, 60_000)
    paid_s, clock.now_s = clock.now_s, began_s + 30

    assert limit.held_s == paid_s - clock.now_s

    clock.now_s = paid_s
    assert limit.held_s == 0


def test_the_size_of_a_response_is_bounded_by_the_rate_limit():
    """A response of full size would block its reader for minutes, and all partitions would be copied in bursts."""
    assert RateLimiter(20 << 10).response_bytes_max == 40 << 10
    assert RateLimiter(1).response_bytes_max == 2
    assert RateLimiter(None).response_bytes_max is None


def test_a_pause_of_the_process_is_detected_once(clock):
    """Another process may have copied during the pause, so the position is determined again."""
    pauses = []
    watch = PauseWatch(on_pause=lambda _: pauses.append(clock.now_s))
    watch.beat()
    clock.now_s += PAUSE_S + 0.01

    watch.beat()
    watch.beat()

    assert 1 == len(pauses)


def test_a_running_process_does_not_count_as_paused(clock):
    """A needless resync would interrupt writing."""
    pauses = []
    watch = PauseWatch(on_pause=lambda _: pauses.append(clock.now_s))
    for _ in range(100):
        clock.now_s += PAUSE_S - 0.01
        watch.beat()

    assert [] == pauses


def test_the_clock_runs_while_the_machine_is_suspended():
    """A suspension is a pause too, but the usual monotonic clock does not advance during it."""
    readings = [time.clock_gettime(rate_limiter._CLOCK) for _ in range(3)]

    assert all(before <= after for before, after in pairwise(readings))
    assert getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC) == rate_limiter._CLOCK
