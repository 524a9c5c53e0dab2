"""What holds in a few runs of each scenario; many more: `make model SEEDS=1000`."""

import pytest

from tests.model.cases import undeclared
from tests.model.catalogue import SCENARIOS
from tests.model.running import run

SEEDS = range(4)


@pytest.mark.parametrize("name", SCENARIOS)
def test_what_is_promised_holds(name):
    """Of each seed the command line that shows its trace is in the message."""
    outcomes = [run(SCENARIOS[name], seed=seed) for seed in SEEDS]
    broken = [str(outcome) for outcome in outcomes if not outcome.is_good]

    assert not broken, "\n".join(broken)
    assert {word for one in outcomes for word in undeclared(name, one.judgement.allowed)} == set()


def test_scenarios_say_what_they_are_about():
    assert [one.name for one in SCENARIOS.values() if not one.about] == []
