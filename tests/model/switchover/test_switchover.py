"""Explores every reachable state of small worlds with the product's own state machine, and with each guard removed."""

import pytest

from tests.model.switchover.exploring import explore
from tests.model.switchover.mutants import MUTANTS
from tests.model.switchover.scenarios import LARGE_SCENARIOS, SCENARIOS


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=lambda scenario: scenario.name)
def test_every_reachable_state_keeps_the_invariants(scenario):
    explored = explore(scenario.world)

    assert explored.violations == []
    assert explored.final_states == scenario.ends


@pytest.mark.faults
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("scenario", LARGE_SCENARIOS.values(), ids=lambda scenario: scenario.name)
def test_every_reachable_state_of_a_large_world_keeps_the_invariants(scenario):
    explored = explore(scenario.world)

    assert explored.violations == []
    assert explored.final_states == scenario.ends


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.rule)
def test_a_missing_guard_is_detected(mutant):
    assert mutant.explore().violations, f"no state of {mutant.scenario!r} violates an invariant without it"
