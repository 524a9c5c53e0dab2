"""Each broken rule is found by the model, and by nothing but that it is broken."""

from pathlib import Path

import pytest

from tests.model.catalogue import SCENARIOS
from tests.model.mutants import MUTANTS
from tests.model.running import run

PAGE = Path(__file__).parents[2] / "docs" / "exactly-once.md"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_model_finds_what_is_broken(mutant):
    """Within the seeds that it is given; the same seed holds without it."""
    found = mutant.find()

    assert found is not None, (
        f"{mutant.seeds} of {mutant.scenarios} do not show that {mutant.rule!r} is broken"
    )
    seed = int(found.again.rpartition(" ")[2])
    assert run(SCENARIOS[found.scenario], seed=seed).is_good


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_rule_is_one_that_is_published(mutant):
    page = " ".join(PAGE.read_text().split())

    assert mutant.rule in page
