"""Tests up to which offset each partition is seeded, and which task copies it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_seed.seed.seed_plan import (
    RECORD_BYTES,
    TASK_BYTES_MAX,
    TASK_PARTITIONS_MAX,
    SeedLog,
    SeedRange,
    lag_of,
    ranges_of,
    tasks_of,
    was_copied_before,
)

A0, A1, A2 = (TopicPartition("a", number) for number in range(3))

logs = st.dictionaries(
    st.builds(TopicPartition, st.sampled_from("abc"), st.integers(0, 50)),
    st.tuples(st.integers(0, 10**6), st.integers(0, 10**6), st.none() | st.integers(0, 10**12)).map(
        lambda drawn: SeedLog(start=drawn[0], end=drawn[0] + drawn[1], bytes=drawn[2])
    ),
)


@given(logs, st.integers(1, 50))
def test_each_unfinished_range_is_in_one_task(logs: dict[TopicPartition, SeedLog], slots: int) -> None:
    """Finished ranges are in no task. Tasks are sorted by size, and each slot has one if there are enough partitions."""
    ranges = ranges_of(logs, {}, {})

    tasks = tasks_of(ranges, slots=slots)

    indexes = sorted(seed_range.index for seed_task in tasks for seed_range in seed_task.ranges)
    assert indexes == [seed_range.index for seed_range in ranges if seed_range.start < seed_range.end]
    assert [seed_task.bytes for seed_task in tasks] == sorted(
        (seed_task.bytes for seed_task in tasks), reverse=True
    )
    assert len(tasks) >= min(len(indexes), slots)
    assert all(0 < len(seed_task.ranges) <= TASK_PARTITIONS_MAX for seed_task in tasks)


@given(st.lists(st.integers(0, 64 << 30), min_size=1, max_size=500), st.integers(0, 8))
def test_a_job_with_a_rate_limit_has_no_more_tasks_than_slots(sizes: list[int], slots: int) -> None:
    """All tasks run at the same time, each with its share of the rate."""
    ranges = [_range(index, size) for index, size in enumerate(sizes)]

    tasks = tasks_of(ranges, slots=slots, is_limited=True)

    assert len(tasks) == min(len(tasks_of(ranges, slots=10**9)), max(1, slots))
    assert sum(len(seed_task.ranges) for seed_task in tasks) == sum(
        seed_range.start < seed_range.end for seed_range in ranges
    )


@given(st.lists(st.integers(0, 64 << 30), min_size=1, max_size=100), st.integers(1, 8))
def test_tasks_have_similar_sizes(sizes: list[int], slots: int) -> None:
    """A task without its smallest partition is no larger than the smallest task."""
    tasks = tasks_of([_range(index, size) for index, size in enumerate(sizes)], slots=slots)

    for seed_task in tasks:
        assert seed_task.bytes - min(seed_range.bytes for seed_range in seed_task.ranges) <= tasks[-1].bytes
        assert seed_task.bytes <= TASK_BYTES_MAX + max(seed_range.bytes for seed_range in seed_task.ranges)


@given(logs, st.integers(0, 2 * 10**6))
def test_range_starts_at_the_next_offset_of_its_copy(
    logs: dict[TopicPartition, SeedLog], position: int
) -> None:
    """Its end is that of the source. Its size covers only the remaining records."""
    ranges = ranges_of(logs, dict.fromkeys(logs, position), {})

    for seed_range in ranges:
        log = logs[seed_range.source]
        assert (seed_range.start, seed_range.end) == (position, log.end)
        assert seed_range.bytes >= 0
        assert log.bytes is None or seed_range.bytes <= log.bytes


def test_a_range_has_the_size_from_the_broker_or_an_average():
    """The size is proportional to the remaining offsets."""
    known, unknown = TopicPartition("a", 0), TopicPartition("a", 1)
    logs = {known: SeedLog(start=0, end=100, bytes=5_000), unknown: SeedLog(start=0, end=100)}

    assert [seed_range.bytes for seed_range in ranges_of(logs, {known: 50}, {})] == [
        2_500,
        100 * RECORD_BYTES,
    ]


def test_a_slot_has_one_task_in_a_small_seed_and_several_in_a_large_one():
    """Several tasks per slot compensate wrong estimates. A small seed has too few bytes for that."""
    small = [_range(index, 256 << 20) for index in range(16)]
    large = [_range(index, 2 << 30) for index in range(64)]

    assert [len(seed_task.ranges) for seed_task in tasks_of(small, slots=2)] == [8, 8]
    assert len(tasks_of(large, slots=2)) == 16


def test_a_large_partition_has_its_own_task():
    """Small partitions share the other tasks."""
    large = [_range(index, 2 << 30) for index in range(2)]
    small = [_range(index, 1 << 20) for index in range(2, 10)]

    tasks = tasks_of([*small, *large], slots=3)

    assert [len(seed_task.ranges) for seed_task in tasks] == [1, 1, 8]


@pytest.mark.parametrize(
    ("sizes", "slots", "yields"),
    [
        ([1_000 << 30, *[5 << 30] * 9_800], 200, False),  # one large partition
        ([5 << 30] * 10_000, 200, False),
        ([1_000 << 30, 1_000 << 30, *[1 << 20] * 100], 2, True),  # both slots would be held for hours
        ([1_000 << 30, *[1 << 20] * 100], 2, False),
        ([1_000 << 30] * 2, 2, False),  # no task waits
        ([1_000 << 30, 1 << 20], 0, True),  # executors have not started
    ],
)
def test_tasks_yield_only_where_long_ones_would_hold_all_slots(
    sizes: list[int], slots: int, *, yields: bool
) -> None:
    """A task that yields waits until the wave has ended, so a large partition without a break ends the seed earlier."""
    ranges = [_range(index, size) for index, size in enumerate(sizes)]

    assert {seed_task.yields for seed_task in tasks_of(ranges, slots=slots)} == {yields}


def test_lag_counts_offsets_before_the_frozen_ends():
    """A copy beyond its frozen end does not reduce the lag of other partitions."""
    ranges = [_range(0, 1), _range(1, 1)]

    assert lag_of(ranges, {0: 150, 1: 40}) == 60


def _range(index: int, size: int) -> SeedRange:
    return SeedRange(index=index, topic="t", partition=index, start=0, end=100, bytes=size)


@pytest.mark.parametrize(
    ("positions", "expected"),
    [({}, False), ({A0: 5}, False), ({A0: 5, A1: 5}, True), ({A0: 1, A1: 0}, True)],
    ids=["none", "one-of-two", "all", "in-part"],
)
def test_a_flow_was_copied_before_if_each_partition_with_records_has_a_position(
    positions: dict[TopicPartition, int], *, expected: bool
) -> None:
    """An empty partition has no position. A flow without any position is new."""
    logs = {A0: SeedLog(start=0, end=5), A1: SeedLog(start=0, end=5), A2: SeedLog(start=0, end=0)}

    assert was_copied_before(ranges_of(logs, positions, {}), positions) == expected
    assert not was_copied_before(ranges_of({A2: SeedLog(start=0, end=0)}, {}, {}), {})
