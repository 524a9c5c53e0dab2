"""Tests how small ranges are grouped into tasks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_seed.verify import comparison_tasks
from mirrorflow_seed.verify.comparison_tasks import GROUP_OFFSETS_MAX, group_ranges
from mirrorflow_seed.verify.offset_windows import VerifyRange


def range_of(offsets: int) -> VerifyRange:
    return VerifyRange(
        topic="t",
        partition=0,
        target_topic="e.t",
        source_from=0,
        source_to=offsets,
        target_from=0,
        target_to=0,
    )


@given(st.lists(st.integers(0, 2_000_000), max_size=300), st.integers(1, 200))
def test_only_small_ranges_share_a_task(sizes: list[int], slots: int) -> None:
    """Each range is in one group, in order. Only a group of one range may exceed the limit."""
    ranges = [range_of(size) for size in sorted(sizes, reverse=True)]
    groups = group_ranges(ranges, slots)
    assert ranges == [verify_range for group in groups for verify_range in group]
    for group in groups:
        assert len(group) == 1 or sum(verify_range.offsets for verify_range in group) <= GROUP_OFFSETS_MAX


def test_idle_partitions_share_few_tasks() -> None:
    assert 100 == len(group_ranges([range_of(0) for _ in range(10_000)], 2))
    assert 16 <= len(group_ranges([range_of(1_000) for _ in range(200)], 4)) <= 20


def test_a_large_job_has_a_limited_number_of_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Returns whether its ranges are many or large."""
    monkeypatch.setattr(comparison_tasks, "TASKS_MAX", 50)
    assert 50 == len(group_ranges([range_of(1_000_000)] * 250, 8))
    assert 50 == len(group_ranges([range_of(0)] * (150 * 50), 8))


@given(st.lists(st.integers(0, 2_000_000), min_size=1, max_size=300), st.integers(1, 8))
def test_a_job_with_a_rate_limit_has_no_more_groups_than_slots(sizes: list[int], slots: int) -> None:
    """All groups run at the same time, each with its share of the rate."""
    ranges = [range_of(size) for size in sizes]
    groups = group_ranges(ranges, slots, is_limited=True)
    assert ranges == [verify_range for group in groups for verify_range in group]
    assert 1 <= len(groups) <= slots
