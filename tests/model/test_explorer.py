"""An exploration runs each schedule once, the shorter ones first, and says what it has not reached."""

from dataclasses import replace

import pytest

from tests.model.catalogue import SCENARIOS
from tests.model.disturbances import CUT_AFTER, ELECT, freeze, kill
from tests.model.explorer import explore, successors
from tests.model.running import run
from tests.model.scenarios_small import small
from tests.model.source import OLD_S

FOUR_FAULTS = (CUT_AFTER, freeze(6.0), kill(arrives_after_s=2.0), ELECT)


def test_every_combination_is_reached_once():
    """A tree of three points with two, one and three ways."""
    ways = (2, 1, 3)
    waiting: list[tuple[int, ...]] = [()]
    seen = []
    while waiting:
        prefix = waiting.pop()
        taken = (*prefix, *(0,) * (len(ways) - len(prefix)))
        seen.append(taken)
        waiting += successors(prefix, taken, ways)

    assert sorted(seen) == [(a, 0, c) for a in range(2) for c in range(3)]


async def two_batches(world):
    """An old and a fresh batch, two copiers, four faults."""
    await small(world, FOUR_FAULTS, at_most=1, ages_s=(OLD_S, 0.0))


TWO_BATCHES = replace(SCENARIOS["small_and_ageing"], name="two_batches", play=two_batches)


def test_a_small_world_holds_with_some_disturbances():
    """Forty of its schedules, evenly spread."""
    found = explore(TWO_BATCHES, depth=1, schedules_max=40)

    assert found.failures == [], found.failures[0]
    assert found.is_complete_with(0)
    assert found.runs[1] == 40


@pytest.mark.faults
def test_a_small_world_holds_with_any_one_disturbance():
    """`make model EXPLORE=1` does so for larger worlds, and goes deeper."""
    found = explore(TWO_BATCHES, depth=1)

    assert found.failures == [], found.failures[0]
    assert found.is_complete
    assert found.runs[1] > 200


def test_what_the_limit_does_not_reach_is_counted():
    """The schedules are evenly spread, so the last third of the run is disturbed as well."""
    found = explore(SCENARIOS["small_and_fresh"], depth=1, schedules_max=6)

    assert found.runs == {0: 1, 1: 6}
    assert found.left[1] > 400
    assert found.is_complete_with(0)
    assert not found.is_complete


def test_a_failure_ends_the_exploration_and_leaves_the_rest():
    async def play(world):
        world.mistakes.append("made up")
        await SCENARIOS["small_and_old"].play(world)

    found = explore(replace(SCENARIOS["small_and_old"], name="broken", play=play), depth=1)

    assert len(found.failures) == 1
    assert found.runs == {0: 1}
    assert found.left[1] > 400
    assert not found.is_complete


def test_a_world_in_which_nothing_can_happen_has_one_schedule():
    quiet = replace(SCENARIOS["nothing_happens"], name="quiet")
    found = explore(quiet, depth=1)

    assert found.is_complete
    assert found.runs == {0: 1}


def test_a_marker_in_a_forgotten_log_hides_no_records():
    """A killed copier's AddPartitionsToTxn is late: the next commit leaves a marker where leaders had forgotten the flow."""
    choices = (*[0] * 40, 4, 0, 0, 2)

    assert (outcome := run(SCENARIOS["small_and_forgotten"], choices=choices)).is_good, outcome
