"""Who copies what, by load: complete, sticky, even where it is worth it, and never much at once."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.partition_assignment import (
    CATCH_UP_S,
    IDLE_BYTES_PER_S,
    MOVES_MAX,
    MOVES_MIN,
    MOVES_PART,
    PATIENCE,
    RECORD_BYTES,
    STAY,
    WORTH_BYTES_PER_S,
    Assignment,
    Balance,
    Rates,
    assign,
    assign_by_load,
    behind,
    lightened,
    loads,
    moved,
)
from mirrorflow_core.partitions import TopicPartition

MB = 1e6
PARTITION = st.builds(TopicPartition, st.sampled_from("abc"), st.integers(0, 9))
PARTITIONS = st.sets(PARTITION, max_size=20)
TASKS = st.integers(1, 6)
UNEVEN_HOMES = st.sampled_from((0, 0, 0, 0, 1, 2))
BYTES_PER_S = st.one_of(st.just(0.0), st.floats(0, 1e4), st.floats(0, 100 * MB))
LOADS = st.dictionaries(PARTITION, BYTES_PER_S)


def all_of(assignment: Assignment) -> list[TopicPartition]:
    return sorted(one for task in assignment for one in task)


def after(looks: int, assignment: Assignment, loads: dict[TopicPartition, float]) -> Assignment:
    balance = Balance()
    for _ in range(looks):
        balance, assignment = balance.checked(assignment, loads)
    return assignment


@given(PARTITIONS, TASKS)
def test_the_first_assignment_is_the_round_robin_of_java(now: set[TopicPartition], tasks: int) -> None:
    assert assign(now, tasks) == assign_by_load(now, tasks)


@given(PARTITIONS, PARTITIONS, TASKS, TASKS, LOADS)
def test_no_partition_is_lost_or_in_two_tasks_and_no_task_is_empty(
    before: set[TopicPartition],
    now: set[TopicPartition],
    earlier_tasks: int,
    tasks: int,
    loads: dict[TopicPartition, float],
) -> None:
    placed = assign_by_load(now, tasks, assign_by_load(before, earlier_tasks, (), loads), loads)
    for assignment in (placed, after(PATIENCE, placed, loads)):
        assert sorted(now) == all_of(assignment)
        assert min(tasks, len(now)) == len(assignment)
        assert all(task == tuple(sorted(task)) for task in assignment)
        assert all(assignment)


@given(PARTITIONS, PARTITIONS, TASKS, LOADS)
def test_a_new_topic_moves_nothing_else(
    before: set[TopicPartition], new: set[TopicPartition], tasks: int, loads: dict[TopicPartition, float]
) -> None:
    first = assign_by_load(before, tasks)
    second = assign_by_load(before | new, tasks, first, loads)
    assert all(set(had) <= set(has) for had, has in zip(first, second, strict=False))


@given(PARTITIONS, PARTITIONS, TASKS, LOADS)
def test_what_is_gone_moves_nothing_else_but_one_for_each_task_that_has_lost_all(
    before: set[TopicPartition], gone: set[TopicPartition], tasks: int, loads: dict[TopicPartition, float]
) -> None:
    first = assign_by_load(before, tasks)
    left = tuple(tuple(one for one in had if one not in gone) for had in first)
    second = assign_by_load(before - gone, tasks, first, loads)
    emptied = sum(not had for had in left)
    lost_task = sum(map(len, left[len(second) :]))
    assert len(moved(left, second)) <= emptied + lost_task
    if not emptied:
        assert left == second


@given(PARTITIONS, TASKS, LOADS)
def test_fewer_tasks_move_only_what_the_others_had(
    now: set[TopicPartition], tasks: int, loads: dict[TopicPartition, float]
) -> None:
    first = assign_by_load(now, tasks + 1, (), loads)
    second = assign_by_load(now, tasks, first, loads)
    assert all(set(had) <= set(has) for had, has in zip(first, second, strict=False))


def test_more_tasks_are_filled_evenly_and_nothing_moves_between_the_old_ones() -> None:
    now = {TopicPartition("t", number) for number in range(16)}
    first = assign_by_load(now, 2)
    second = assign_by_load(now, 4, first)
    assert [4, 4, 4, 4] == [len(task) for task in second]
    assert all(set(has) <= set(had) for had, has in zip(first, second[:2], strict=True))


@given(
    st.dictionaries(PARTITION, st.tuples(UNEVEN_HOMES, BYTES_PER_S), min_size=1),
    PARTITIONS,
    st.integers(1, 3),
)
def test_more_tasks_take_up_to_an_even_share_from_those_above_one_and_nothing_else_moves(
    known: dict[TopicPartition, tuple[int, float]], new: set[TopicPartition], more: int
) -> None:
    """However uneven it was. If no task is above its share, a task with several gives one to each task without any."""
    loads = {one: load for one, (_, load) in known.items()}
    tasks = [sorted(one for one, (at, _) in known.items() if at == task) for task in range(3)]
    before = tuple(tuple(had) for had in tasks if had)
    second = assign_by_load(known.keys() | new, len(before) + more, before, loads)
    weights = weights_of(all_of(second), loads)
    share = sum(weights.values()) / len(second)
    given_away = set(moved(before, second))
    assert given_away <= {one for had in second[len(before) :] for one in had}
    for had in second[len(before) :]:
        assert (
            len(had) == 1 or given_away.isdisjoint(had) or sum(weights[one] for one in had) <= share * 1.001
        )
    below = [had for had in second[: len(before)] if sum(weights[one] for one in had) < share * 0.999]
    gone = sum(len(given_away & set(had)) for had, has in zip(before, second, strict=False) if has in below)
    assert gone <= len(second) - len(before)


@given(PARTITIONS, TASKS, LOADS)
def test_a_rebalance_is_bounded_lowers_the_busiest_and_ends(
    now: set[TopicPartition], tasks: int, loads: dict[TopicPartition, float]
) -> None:
    assignment = assign_by_load(now, tasks)
    most = max(MOVES_MIN, min(MOVES_MAX, math.ceil(MOVES_PART * len(now))))
    for _ in range(len(now) + 1):
        better = lightened(assignment, loads)
        assert better == lightened(assignment, loads)
        assert len(moved(assignment, better)) <= most
        if better == assignment:
            return
        assert busiest_first(better, loads) < busiest_first(assignment, loads)
        assignment = better
    raise AssertionError("it never ends")


def weights_of(
    partitions: list[TopicPartition], loads: dict[TopicPartition, float]
) -> dict[TopicPartition, float]:
    """What each counts: one without a load as much as the average."""
    known = [loads[one] for one in partitions if one in loads]
    average = sum(known) / len(known) if known else 0.0
    return {one: IDLE_BYTES_PER_S + loads.get(one, average) for one in partitions}


def busiest_first(assignment: Assignment, loads: dict[TopicPartition, float]) -> list[float]:
    weights = weights_of(all_of(assignment), loads)
    return sorted((sum(weights[one] for one in task) for task in assignment), reverse=True)


@given(st.lists(st.floats(MB, 2 * MB), min_size=12, max_size=40), st.integers(2, 3))
def test_many_partitions_of_some_weight_end_within_half_of_an_even_share(
    weights: list[float], tasks: int
) -> None:
    """None of them is heavier than half of what a task should have; they begin all on one task."""
    partitions = [TopicPartition("t", number) for number in range(len(weights))]
    loads = dict(zip(partitions, weights, strict=True))
    assignment: Assignment = (
        tuple(partitions[tasks - 1 :]),
        *((one,) for one in partitions[: tasks - 1]),
    )
    while (better := lightened(assignment, loads)) != assignment:
        assignment = better
    even = sum(weights) / tasks
    assert busiest_first(assignment, loads)[0] <= 1.5 * even + WORTH_BYTES_PER_S


def test_a_hot_pair_is_separated_and_what_is_idle_does_not_come_along() -> None:
    first = assign_by_load({TopicPartition("t", number) for number in range(8)}, 3)
    hot = first[0][:2]
    second = after(PATIENCE, first, {one: 20 * MB if one in hot else 0.0 for one in all_of(first)})
    assert 1 == len(moved(first, second))
    assert not any(set(hot) <= set(task) for task in second)


def test_one_partition_that_is_hotter_than_all_others_moves_nothing() -> None:
    first = assign_by_load({TopicPartition("t", number) for number in range(8)}, 2)
    hottest = first[0][0]
    loads = {one: 50 * MB if one == hottest else 0.01 * MB for one in all_of(first)}
    assert first == after(5 * PATIENCE, first, loads)


def test_what_is_uneven_for_a_moment_moves_nothing() -> None:
    first = assign_by_load({TopicPartition("t", number) for number in range(8)}, 2)
    uneven = {one: 20 * MB if one in first[0] else 0.0 for one in all_of(first)}
    balance, assignment = Balance(), first
    for _ in range(5):
        for _ in range(PATIENCE - 1):
            balance, assignment = balance.checked(assignment, uneven)
        balance, assignment = balance.checked(assignment, dict.fromkeys(uneven, 0.0))
        assert first == assignment


def test_less_than_is_worth_a_move_moves_nothing() -> None:
    first = assign_by_load({TopicPartition("t", number) for number in range(8)}, 2)
    loads = {one: WORTH_BYTES_PER_S / 8 if one in first[0] else 0.0 for one in all_of(first)}
    assert first == after(5 * PATIENCE, first, loads)


@given(PARTITIONS, st.integers(2, 4), st.lists(LOADS, min_size=PATIENCE, max_size=30))
def test_what_has_moved_stays_for_a_while_whatever_loads_do(
    now: set[TopicPartition], tasks: int, all_loads: list[dict[TopicPartition, float]]
) -> None:
    balance, assignment = Balance(), assign_by_load(now, tasks)
    moved_at: dict[TopicPartition, int] = {}
    for look, measured in enumerate(all_loads):
        balance, better = balance.checked(assignment, measured)
        for one in moved(assignment, better):
            assert look - moved_at.get(one, -STAY) >= STAY
            moved_at[one] = look
        assignment = better


ONE, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)


def test_two_looks_give_a_rate_and_one_gives_none() -> None:
    once = Rates().updated({ONE: 1_000}, 50.0)
    assert {} == once.per_s
    assert {ONE: 20.0} == once.updated({ONE: 1_200, OTHER: 7}, 60.0).per_s


def test_a_burst_is_forgotten_and_a_change_is_followed_within_some_looks() -> None:
    rates, end = Rates().updated({ONE: 0}, 0.0), 0
    for look in range(1, 30):
        end += 1_000 if look < 10 else 100
        rates = rates.updated({ONE: end}, float(look))
    assert 100 == pytest.approx(rates.per_s[ONE], rel=0.05)


def test_a_topic_that_was_made_anew_or_is_gone_counts_nothing() -> None:
    rates = Rates().updated({ONE: 1_000, OTHER: 5}, 0.0).updated({ONE: 3}, 1.0)
    assert {ONE: 0.0} == rates.per_s


def test_lag_counts_and_unmeasured_records_have_the_average_size() -> None:
    behind = {ONE: round(CATCH_UP_S), OTHER: -1}
    assert {ONE: 30.0, OTHER: 10.0} == loads({ONE: 2.0, OTHER: 1.0}, behind, {ONE: 10.0})
    assert {OTHER: RECORD_BYTES} == loads({OTHER: 1.0}, {}, {})


def test_what_has_stopped_makes_no_work_however_much_is_before_it() -> None:
    ends = {ONE: 1_000, OTHER: 1_000}
    assert {ONE: 990, OTHER: 900} == behind(ends, {ONE: 9, OTHER: 99}, {})
    assert {OTHER: 900} == behind(ends, {ONE: 9, OTHER: 99}, {ONE: 9, OTHER: 50})
    assert {ONE: 0} == behind({ONE: 5}, {ONE: 9}, {})
