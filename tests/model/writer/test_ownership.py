"""Tests the protocol of the fenced writer in random worlds, in all small worlds, and with a missing rule."""

from dataclasses import replace

import pytest

from tests.model.writer.exploring import explore, successors
from tests.model.writer.mutants import MUTANTS
from tests.model.writer.running import run
from tests.model.writer.scenarios import SCENARIOS, SMALL_WORLDS

SEEDS = 4  # for each scenario in `make check`
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
def test_late_requests_neither_repeat_nor_lose_records(scenario):
    options = replace(scenario.options, delays_requests=True, loss_rate=max(0.03, scenario.options.loss_rate))
    for seed in range(LATE_SEEDS):
        outcome = run(replace(scenario, options=options), seed=seed)

        assert outcome.is_good, (seed, outcome.broken, outcome.events)


@pytest.mark.faults
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("scenario", SMALL_WORLDS, ids=lambda scenario: scenario.name)
def test_every_schedule_of_a_small_world_keeps_the_guarantees(scenario):
    """Runs all schedules with one disturbance, and an even sample of those with two."""
    explored = explore(scenario)

    assert not explored.failures, (
        explored.failures[0].broken,
        explored.failures[0].choices,
        explored.failures[0].events,
    )
    assert explored.skipped[1] == 0


@pytest.mark.parametrize(
    "mutant", [mutant for mutant in MUTANTS if mutant.is_quick], ids=lambda mutant: mutant.name
)
def test_a_missing_rule_is_detected(mutant):
    assert mutant.find() is not None, f"no run of {mutant.scenarios} fails without the rule {mutant.rule!r}"


@pytest.mark.faults
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "mutant", [mutant for mutant in MUTANTS if not mutant.is_quick], ids=lambda mutant: mutant.name
)
def test_a_missing_rule_is_detected_after_a_long_search(mutant):
    assert mutant.find() is not None, f"no run of {mutant.scenarios} fails without the rule {mutant.rule!r}"


def test_a_seed_repeats_its_run():
    scenario = SCENARIOS["race"]

    assert run(scenario, seed=3).events == run(scenario, seed=3).events


def test_each_schedule_is_explored_once():
    """Explores a tree of three choices with two, one and three ways."""
    way_counts = (2, 1, 3)
    waiting: list[tuple[int, ...]] = [()]
    explored = []
    while waiting:
        prefix = waiting.pop()
        choices = (*prefix, *(0,) * (len(way_counts) - len(prefix)))
        explored.append(choices)
        waiting += successors(prefix, choices, way_counts)

    assert sorted(explored) == [(a, 0, c) for a in range(2) for c in range(3)]
