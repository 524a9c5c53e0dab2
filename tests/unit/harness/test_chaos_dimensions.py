"""The dimensions of a chaos trial are drawn reproducibly from a seed, and requested values are kept."""

import shlex

import pytest

from tests.chaos.__main__ import line_of
from tests.chaos.dimensions import CHOICES, draw
from tests.chaos.trial import Result
from tests.integration.kafka.test_chaos import RUNS

SEEDS = range(60)


@pytest.mark.parametrize("name", CHOICES)
def test_each_value_is_drawn_by_some_seed(name: str) -> None:
    assert set(CHOICES[name]) == {getattr(draw(seed, {}), name) for seed in SEEDS}


def test_the_arguments_of_a_trial_reproduce_it_with_a_different_seed() -> None:
    for seed in SEEDS:
        drawn = draw(seed, {})
        requested = dict(pair.split("=") for pair in shlex.split(drawn.arguments) if pair != "--set")

        assert drawn == draw(seed + 1, requested)


def test_a_requested_value_does_not_change_other_dimensions() -> None:
    assert draw(7, {}).tasks == draw(7, {"age": "old"}).tasks


@pytest.mark.parametrize("requested", [{"age": "ancient"}, {"colour": "red"}])
def test_an_unknown_dimension_or_value_is_refused(requested: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="is none of age=fresh"):
        draw(1, requested)


@pytest.mark.parametrize(
    "requested",
    [
        {"transactions": "denied", "copiers": "2"},
        {"transactions": "denied", "cleanup": "compact"},
        {"cleanup": "compact", "truncation": "alert"},
        {"transactions": "denied", "network": "late"},
        {"rights": "changing", "network": "late"},
    ],
)
def test_a_combination_without_a_promise_is_refused(requested: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="nothing is promised for"):
        draw(1, requested)


def test_no_seed_draws_a_combination_without_a_promise() -> None:
    for drawn in (draw(seed, {}) for seed in range(300)):
        assert drawn.transactions == "allowed" or (drawn.copiers, drawn.cleanup) == ("1", "delete")
        assert not (drawn.cleanup == "compact" and drawn.truncation != "never")
        assert not (drawn.has_authorizer and drawn.network == "late")


@pytest.mark.parametrize("name", CHOICES)
def test_each_value_is_used_by_a_run_of_make_test(name: str) -> None:
    """This includes both versions of the brokers."""
    requested = [draw(0, {"age": age} | dict(pair.split("=") for pair in RUNS[age].split())) for age in RUNS]

    assert set(CHOICES[name]) == {getattr(dimensions, name) for dimensions in requested}


def test_a_trial_is_summarized_in_one_line() -> None:
    drawn = draw(7, {"age": "old"})
    equal, unequal = (
        Result(seed=7, seconds=90, target_records=5, problems=list(p)) for p in ((), ("a\n b",))
    )

    assert line_of(drawn, equal).startswith("seed 7: age=old expiry=")
    assert line_of(drawn, equal).endswith("5 records, equal")
    assert line_of(drawn, unequal).endswith("NOT EQUAL: a b")
