"""Dimensions of chaos: each value is drawn by some seed, the same seed draws the same, and what is asked for is kept."""

import shlex

import pytest

from tests.chaos.__main__ import line_of
from tests.chaos.dimensions import CHOICES, draw
from tests.chaos.trial import Result
from tests.integration.kafka.test_chaos import RUNS

SEEDS = range(60)


@pytest.mark.parametrize("name", CHOICES)
def test_each_value_is_drawn(name: str) -> None:
    assert set(CHOICES[name]) == {getattr(draw(seed, {}), name) for seed in SEEDS}


def test_the_arguments_of_a_trial_ask_for_the_same() -> None:
    for seed in SEEDS:
        drawn = draw(seed, {})
        asked = dict(pair.split("=") for pair in shlex.split(drawn.arguments) if pair != "--set")

        assert drawn == draw(seed + 1, asked)


def test_what_is_asked_for_changes_nothing_else() -> None:
    assert draw(7, {}).tasks == draw(7, {"age": "old"}).tasks


@pytest.mark.parametrize("asked", [{"age": "ancient"}, {"colour": "red"}])
def test_what_there_is_not_is_refused(asked: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="is none of age=fresh"):
        draw(1, asked)


@pytest.mark.parametrize(
    "asked",
    [
        {"transactions": "denied", "copiers": "2"},
        {"transactions": "denied", "cleanup": "compact"},
        {"cleanup": "compact", "truncation": "alert"},
        {"transactions": "denied", "network": "late"},
        {"rights": "changing", "network": "late"},
    ],
)
def test_a_combination_without_a_promise_is_refused(asked: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="nothing is promised for"):
        draw(1, asked)


def test_no_seed_draws_a_combination_without_a_promise() -> None:
    for drawn in (draw(seed, {}) for seed in range(300)):
        assert drawn.transactions == "allowed" or (drawn.copiers, drawn.cleanup) == ("1", "delete")
        assert not (drawn.cleanup == "compact" and drawn.truncation != "never")
        assert not (drawn.has_authorizer and drawn.network == "late")


@pytest.mark.parametrize("name", CHOICES)
def test_each_value_is_in_one_of_the_runs_of_make_test(name: str) -> None:
    """The brokers' versions, too: one of the runs is on the older one."""
    asked = [draw(0, {"age": age} | dict(pair.split("=") for pair in RUNS[age].split())) for age in RUNS]

    assert set(CHOICES[name]) == {getattr(one, name) for one in asked}


def test_a_trial_is_one_line_of_seed_dimensions_and_result() -> None:
    drawn = draw(7, {"age": "old"})
    equal, unequal = (
        Result(seed=7, seconds=90, target_records=5, problems=list(p)) for p in ((), ("a\n b",))
    )

    assert line_of(drawn, equal).startswith("seed 7: age=old expiry=")
    assert line_of(drawn, equal).endswith("5 records, equal")
    assert line_of(drawn, unequal).endswith("NOT EQUAL: a b")
