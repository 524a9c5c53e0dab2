"""Time in a world is virtual, and a process that does not run does not see it pass."""

import asyncio
import time

import pytest

from tests.model import loop as virtual_loop
from tests.model.catalogue import SCENARIOS
from tests.model.chooser import Seeded
from tests.model.clock import Clock, virtual
from tests.model.loop import new_loop
from tests.model.running import run
from tests.model.scenarios_faults import one_copier_and_any_fault


def fail(message, error):
    raise AssertionError(message) from error


def drive(clock, loops, until):
    """Step *loops* as a world does, without messages."""
    while True:
        for loop in loops:
            loop.run_now()
        at = min(loop.next_at for loop in loops)
        if at > until:
            clock.now = until
            return
        clock.now = max(clock.now, at)


def test_timers_of_several_processes_come_in_the_order_of_their_times():
    clock, told = Clock(), []

    async def process(name, pauses):
        for pause in pauses:
            await asyncio.sleep(pause)
            told.append((name, clock.now))

    began = clock.now
    loops = [new_loop(clock, name=name, on_error=fail) for name in "ab"]
    loops[0].create_task(process("a", (1.0, 2.0)))
    loops[1].create_task(process("b", (1.5, 0.5)))
    drive(clock, loops, began + 10)

    assert [(name, at - began) for name, at in told] == [("a", 1.0), ("b", 1.5), ("b", 2.0), ("a", 3.0)]


def test_a_frozen_process_finds_its_timers_overdue():
    clock, told = Clock(), []

    async def process():
        async with asyncio.timeout(60.0):
            await asyncio.sleep(1.0)
        told.append(asyncio.get_running_loop().time())

    loop = new_loop(clock, name="frozen", on_error=fail)
    loop.create_task(process())
    loop.run_now()
    clock.now += 30.0
    loop.run_now()

    assert told == [clock.now]


def test_a_process_that_never_waits_is_reported(monkeypatch):
    monkeypatch.setattr(virtual_loop, "CALLBACKS_PER_INSTANT_MAX", 1_000)
    clock = Clock()

    is_over: list[bool] = []
    loop = new_loop(clock, name="spinning", on_error=fail)

    def spin():
        if not is_over:
            loop.call_soon(spin)

    loop.call_soon(spin)
    with pytest.raises(virtual_loop.SpinningError, match="spinning"):
        loop.run_now()
    is_over.append(True)
    clock.now += 1.0
    loop.run_now()
    assert not loop.is_ready


def test_product_code_alone_reads_virtual_time():
    from mirrorflow_replicator.process.clock import now_ms

    clock = Clock()
    with virtual(clock, Seeded(0).random):
        inside, beside = now_ms(), time.time()
        clock.now += 3600.0
        later = now_ms()

    assert later - inside == 3_600_000
    assert abs(beside - time.time()) < 60
    assert abs(now_ms() / 1000 - time.time()) < 60


def test_a_seed_means_the_same_run_each_time():
    """Messages, times and choices: all of the trace."""
    scenario = SCENARIOS[one_copier_and_any_fault.__name__]
    first, second = (run(scenario, seed=3, traced=True) for _ in range(2))

    assert len(first.trace) > 100
    assert first.trace == second.trace


def test_a_run_can_be_had_again_by_its_choices():
    scenario = SCENARIOS["small_and_fresh"]
    chosen = run(scenario, choices=(0, 0, 0, 0, 0, 0, 0, 0, 1), traced=True)
    again = run(scenario, choices=chosen.taken, traced=True)

    assert chosen.happened == ["cut"]
    assert chosen.trace == again.trace
