"""The same seed draws the same trial of switchovers, and each kind of trial has its own faults."""

from itertools import islice

import pytest

from tests.chaos.switchover.__main__ import EXACT, line_of
from tests.chaos.switchover.actors import state_in
from tests.chaos.switchover.schedule import (
    CHOICES,
    KINDS,
    UNPLANNED_STATES,
    Fault,
    drawn_dimensions,
    state_faults,
    timed_faults,
    unplanned_moves,
)
from tests.chaos.switchover.trial import SwitchoverResult


def test_the_same_seed_draws_the_same_trial():
    assert drawn_dimensions(7, {}) == drawn_dimensions(7, {})
    assert [*islice(state_faults(7, "all"), 20)] == [*islice(state_faults(7, "all"), 20)]
    assert [*islice(timed_faults(7, "all"), 20)] == [*islice(timed_faults(7, "all"), 20)]


@pytest.mark.parametrize("name", CHOICES)
def test_each_value_of_each_dimension_is_drawn(name: str):
    drawn = {getattr(drawn_dimensions(seed, {}), name) for seed in range(100)}

    assert set(CHOICES[name]) == drawn


def test_a_requested_value_is_kept_and_an_unknown_one_refused():
    assert "6" == drawn_dimensions(1, {"partitions": "6"}).partitions
    with pytest.raises(ValueError, match="partitions=7 is none of producers=idempotent"):
        drawn_dimensions(1, {"partitions": "7"})


@pytest.mark.parametrize("kind", ["command", "flows", "brokers"])
def test_each_kind_of_trial_draws_only_its_own_faults(kind: str):
    drawn = {fault.fault for fault in islice(state_faults(1, kind), 200)}

    assert set(KINDS[kind]) == drawn


def test_all_allowed_faults_are_drawn():
    assert set(Fault) == {fault.fault for fault in islice(state_faults(1, "all"), 400)}
    assert set(Fault) - set(KINDS["command"]) == {
        fault.fault for fault in islice(timed_faults(1, "all"), 400)
    }


def test_the_first_switchover_is_unplanned_if_any_is():
    requested = {"moves": "4", "unplanned": "killed"}
    drawn = [unplanned_moves(seed, drawn_dimensions(seed, requested)) for seed in range(20)]

    assert all(kinds[0] and len(kinds) == 4 for kinds in drawn)
    assert {True, False} == {kind for kinds in drawn for kind in kinds[1:]}
    assert [False] * 4 == unplanned_moves(1, drawn_dimensions(1, requested | {"unplanned": "none"}))


def test_faults_of_an_unplanned_switchover_occur_in_its_own_states():
    faults = islice(state_faults(1, "all", UNPLANNED_STATES), 100)

    assert set(UNPLANNED_STATES) == {fault.state for fault in faults}


def test_a_trial_without_faults_has_none():
    assert [] == [*state_faults(1, "none"), *timed_faults(1, "none"), *timed_faults(1, "command")]


@pytest.mark.parametrize(
    ("line", "state"),
    [
        ("16:06:45Z  Fencing       Waits until the journals have it.", "Fencing"),
        ("16:06:45Z  Done", "Done"),
        ("east is the active member of chaos.", ""),
        ("Continues switchover chaos-1, which is in state Fencing.", ""),
        ("", ""),
    ],
)
def test_the_state_is_read_from_a_line_of_the_display(line: str, state: str):
    assert state == state_in(line)


def test_a_line_names_the_first_problem_of_a_broken_trial():
    dimensions = drawn_dimensions(1, {})

    exact = line_of(dimensions, SwitchoverResult(seed=1))
    broken = line_of(dimensions, SwitchoverResult(seed=1, problems=["a record\n is lost", "more"]))

    assert exact.endswith(EXACT)
    assert broken.endswith("BROKEN: a record is lost")
