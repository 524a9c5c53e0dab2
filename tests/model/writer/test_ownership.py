"""The protocol of one fenced writer, in simulated worlds: random ones, all small ones, and broken ones."""

from dataclasses import replace

import pytest

from tests.model.writer.exploring import explore, successors
from tests.model.writer.mutants import MUTANTS
from tests.model.writer.running import run
from tests.model.writer.scenarios import SCENARIOS, SMALL_WORLDS

SEEDS = 4  # of each scenario, in `make check`
MORE_SEEDS = 400
LATE_SEEDS = 60


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=lambda scenario: scenario.name)
def test_each_record_arrives_once_and_in_order(scenario):
    for seed in range(SEEDS):
        outcome = run(scenario, seed=seed)

        assert outcome.is_good, (seed, outcome.broken, outcome.events)


@pytest.mark.faults
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=lambda scenario: scenario.name)
def test_each_record_arrives_once_and_in_order_for_many_seeds(scenario):
    for seed in range(SEEDS, MORE_SEEDS):
        outcome = run(scenario, seed=seed)

        assert outcome.is_good, (seed, outcome.broken, outcome.events)


@pytest.mark.faults
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=lambda scenario: scenario.name)
def test_late_requests_of_any_kind_repeat_and_lose_nothing(scenario):
    options = replace(scenario.options, delays_requests=True, loss_rate=max(0.03, scenario.options.loss_rate))
    for seed in range(LATE_SEEDS):
        outcome = run(replace(scenario, options=options), seed=seed)

        assert outcome.is_good, (seed, outcome.broken, outcome.events)


@pytest.mark.faults
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("scenario", SMALL_WORLDS, ids=lambda scenario: scenario.name)
def test_every_schedule_of_a_small_world_holds(scenario):
    """All schedules with one disturbance; those with two are sampled evenly."""
    found = explore(scenario)

    assert not found.failures, (found.failures[0].broken, found.failures[0].taken, found.failures[0].events)
    assert found.left[1] == 0


@pytest.mark.parametrize("mutant", [one for one in MUTANTS if one.is_quick], ids=lambda mutant: mutant.name)
def test_a_missing_rule_is_found(mutant):
    assert mutant.find() is not None, f"{mutant.scenarios} do not show that {mutant.rule!r} is broken"


@pytest.mark.faults
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "mutant", [one for one in MUTANTS if not one.is_quick], ids=lambda mutant: mutant.name
)
def test_a_missing_rule_is_found_after_long_search(mutant):
    assert mutant.find() is not None, f"{mutant.scenarios} do not show that {mutant.rule!r} is broken"


def test_a_seed_repeats_its_run():
    scenario = SCENARIOS["race"]

    assert run(scenario, seed=3).events == run(scenario, seed=3).events


def test_each_schedule_is_explored_once():
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
