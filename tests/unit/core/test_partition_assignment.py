"""Partitions are assigned to tasks by load.

Each partition has a task, the load is balanced, and few partitions move at a time.
"""

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
UNEVEN_TASKS = st.sampled_from((0, 0, 0, 0, 1, 2))
BYTES_PER_S = st.one_of(st.just(0.0), st.floats(0, 1e4), st.floats(0, 100 * MB))
LOADS = st.dictionaries(PARTITION, BYTES_PER_S)


def all_of(assignment: Assignment) -> list[TopicPartition]:
    return sorted(partition for task in assignment for partition in task)


def after_checks(checks: int, assignment: Assignment, loads: dict[TopicPartition, float]) -> Assignment:
    balance = Balance()
    for _ in range(checks):
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
    for assignment in (placed, after_checks(PATIENCE, placed, loads)):
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
    assert all(set(before) <= set(has) for before, has in zip(first, second, strict=False))


@given(PARTITIONS, PARTITIONS, TASKS, LOADS)
def test_deleted_partitions_move_at_most_one_partition_to_each_emptied_task(
    before: set[TopicPartition], deleted: set[TopicPartition], tasks: int, loads: dict[TopicPartition, float]
) -> None:
    first = assign_by_load(before, tasks)
    left = tuple(tuple(partition for partition in task if partition not in deleted) for task in first)
    second = assign_by_load(before - deleted, tasks, first, loads)
    emptied = sum(not task for task in left)
    lost_task = sum(map(len, left[len(second) :]))
    assert len(moved(left, second)) <= emptied + lost_task
    if not emptied:
        assert left == second


@given(PARTITIONS, TASKS, LOADS)
def test_fewer_tasks_move_only_partitions_of_removed_tasks(
    now: set[TopicPartition], tasks: int, loads: dict[TopicPartition, float]
) -> None:
    first = assign_by_load(now, tasks + 1, (), loads)
    second = assign_by_load(now, tasks, first, loads)
    assert all(set(old) <= set(new) for old, new in zip(first, second, strict=False))


def test_new_tasks_are_filled_evenly_and_nothing_moves_between_old_ones() -> None:
    now = {TopicPartition("t", number) for number in range(16)}
    first = assign_by_load(now, 2)
    second = assign_by_load(now, 4, first)
    assert [4, 4, 4, 4] == [len(task) for task in second]
    assert all(set(new) <= set(old) for old, new in zip(first, second[:2], strict=True))


@given(
    st.dictionaries(PARTITION, st.tuples(UNEVEN_TASKS, BYTES_PER_S), min_size=1),
    PARTITIONS,
    st.integers(1, 3),
)
def test_new_tasks_take_up_to_an_even_share_from_tasks_above_it(
    known: dict[TopicPartition, tuple[int, float]], new: set[TopicPartition], more: int
) -> None:
    """If no task is above its share, a task with several partitions gives one to each empty task."""
    loads = {partition: load for partition, (_, load) in known.items()}
    tasks = [
        sorted(partition for partition, (owner, _) in known.items() if owner == task) for task in range(3)
    ]
    before = tuple(tuple(task) for task in tasks if task)
    second = assign_by_load(known.keys() | new, len(before) + more, before, loads)
    weights = weights_of(all_of(second), loads)
    share = sum(weights.values()) / len(second)
    given_away = set(moved(before, second))
    assert given_away <= {partition for task in second[len(before) :] for partition in task}
    for task in second[len(before) :]:
        assert (
            len(task) == 1
            or given_away.isdisjoint(task)
            or sum(weights[partition] for partition in task) <= share * 1.001
        )
    below = [
        task
        for task in second[: len(before)]
        if sum(weights[partition] for partition in task) < share * 0.999
    ]
    lost = sum(len(given_away & set(old)) for old, new in zip(before, second, strict=False) if new in below)
    assert lost <= len(second) - len(before)


@given(PARTITIONS, TASKS, LOADS)
def test_a_rebalance_is_limited_reduces_the_highest_load_and_ends(
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
        assert loads_descending(better, loads) < loads_descending(assignment, loads)
        assignment = better
    raise AssertionError("the rebalance does not end")


def weights_of(
    partitions: list[TopicPartition], loads: dict[TopicPartition, float]
) -> dict[TopicPartition, float]:
    """Returns the weight of each partition. A partition without a load has the average weight."""
    known = [loads[partition] for partition in partitions if partition in loads]
    average = sum(known) / len(known) if known else 0.0
    return {partition: IDLE_BYTES_PER_S + loads.get(partition, average) for partition in partitions}


def loads_descending(assignment: Assignment, loads: dict[TopicPartition, float]) -> list[float]:
    weights = weights_of(all_of(assignment), loads)
    return sorted((sum(weights[partition] for partition in task) for task in assignment), reverse=True)


@given(st.lists(st.floats(MB, 2 * MB), min_size=12, max_size=40), st.integers(2, 3))
def test_rebalancing_light_partitions_ends_within_half_of_an_even_share(
    weights: list[float], tasks: int
) -> None:
    """No partition is heavier than half an even share. Almost all start on one task."""
    partitions = [TopicPartition("t", number) for number in range(len(weights))]
    loads = dict(zip(partitions, weights, strict=True))
    assignment: Assignment = (
        tuple(partitions[tasks - 1 :]),
        *((partition,) for partition in partitions[: tasks - 1]),
    )
    while (better := lightened(assignment, loads)) != assignment:
        assignment = better
    even = sum(weights) / tasks
    assert loads_descending(assignment, loads)[0] <= 1.5 * even + WORTH_BYTES_PER_S


def test_two_busy_partitions_are_separated_without_moving_idle_ones() -> None:
    first = assign_by_load({TopicPartition("t", number) for number in range(8)}, 3)
    hot = first[0][:2]
    second = after_checks(
        PATIENCE, first, {partition: 20 * MB if partition in hot else 0.0 for partition in all_of(first)}
    )
    assert 1 == len(moved(first, second))
    assert not any(set(hot) <= set(task) for task in second)


def test_a_partition_with_more_load_than_all_others_together_is_not_moved() -> None:
    first = assign_by_load({TopicPartition("t", number) for number in range(8)}, 2)
    hottest = first[0][0]
    loads = {partition: 50 * MB if partition == hottest else 0.01 * MB for partition in all_of(first)}
    assert first == after_checks(5 * PATIENCE, first, loads)


def test_a_brief_imbalance_moves_nothing() -> None:
    first = assign_by_load({TopicPartition("t", number) for number in range(8)}, 2)
    uneven = {partition: 20 * MB if partition in first[0] else 0.0 for partition in all_of(first)}
    balance, assignment = Balance(), first
    for _ in range(5):
        for _ in range(PATIENCE - 1):
            balance, assignment = balance.checked(assignment, uneven)
        balance, assignment = balance.checked(assignment, dict.fromkeys(uneven, 0.0))
        assert first == assignment


def test_a_small_imbalance_moves_nothing() -> None:
    first = assign_by_load({TopicPartition("t", number) for number in range(8)}, 2)
    loads = {
        partition: WORTH_BYTES_PER_S / 8 if partition in first[0] else 0.0 for partition in all_of(first)
    }
    assert first == after_checks(5 * PATIENCE, first, loads)


@given(PARTITIONS, st.integers(2, 4), st.lists(LOADS, min_size=PATIENCE, max_size=30))
def test_a_moved_partition_stays_for_a_minimum_time(
    now: set[TopicPartition], tasks: int, all_loads: list[dict[TopicPartition, float]]
) -> None:
    balance, assignment = Balance(), assign_by_load(now, tasks)
    moved_at: dict[TopicPartition, int] = {}
    for check, measured in enumerate(all_loads):
        balance, better = balance.checked(assignment, measured)
        for partition in moved(assignment, better):
            assert check - moved_at.get(partition, -STAY) >= STAY
            moved_at[partition] = check
        assignment = better


FIRST, SECOND = TopicPartition("t", 0), TopicPartition("t", 1)


def test_two_measurements_give_a_rate_and_one_gives_none() -> None:
    rates = Rates().updated({FIRST: 1_000}, 50.0)
    assert {} == rates.per_s
    assert {FIRST: 20.0} == rates.updated({FIRST: 1_200, SECOND: 7}, 60.0).per_s


def test_the_rate_follows_a_change_within_some_measurements() -> None:
    rates, end = Rates().updated({FIRST: 0}, 0.0), 0
    for second in range(1, 30):
        end += 1_000 if second < 10 else 100
        rates = rates.updated({FIRST: end}, float(second))
    assert 100 == pytest.approx(rates.per_s[FIRST], rel=0.05)


def test_a_recreated_topic_has_no_rate_and_a_deleted_one_no_entry() -> None:
    rates = Rates().updated({FIRST: 1_000, SECOND: 5}, 0.0).updated({FIRST: 3}, 1.0)
    assert {FIRST: 0.0} == rates.per_s


def test_lag_adds_load_and_unmeasured_records_have_the_average_size() -> None:
    lag = {FIRST: round(CATCH_UP_S), SECOND: -1}
    assert {FIRST: 30.0, SECOND: 10.0} == loads({FIRST: 2.0, SECOND: 1.0}, lag, {FIRST: 10.0})
    assert {SECOND: RECORD_BYTES} == loads({SECOND: 1.0}, {}, {})


def test_a_stopped_partition_has_no_lag() -> None:
    ends = {FIRST: 1_000, SECOND: 1_000}
    assert {FIRST: 990, SECOND: 900} == behind(ends, {FIRST: 9, SECOND: 99}, {})
    assert {SECOND: 900} == behind(ends, {FIRST: 9, SECOND: 99}, {FIRST: 9, SECOND: 50})
    assert {FIRST: 0} == behind({FIRST: 5}, {FIRST: 9}, {})
