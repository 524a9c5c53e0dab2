"""Tests how a partition is split into ranges of sampled windows."""

from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_seed.verify.offset_windows import VerifyPlanSettings

PARTITION = TopicPartition("t", 0)


@given(
    st.integers(0, 5_000), st.integers(0, 5_000), st.floats(0.01, 1.0), st.integers(1, 400), st.integers(1, 5)
)
def test_ranges_are_ordered_within_bounds_and_aligned_to_windows(
    begin: int, length: int, sample: float, window: int, windows: int
) -> None:
    """Without sampling all offsets are covered. With sampling each window is covered completely or not at all."""
    end = begin + length
    settings = VerifyPlanSettings(run_id="r", sample=sample, window_offsets=window, range_windows=windows)
    ranges = settings.sampled_ranges(PARTITION, begin, end)

    offsets = [offset for start, stop in ranges for offset in (start, stop)]
    assert offsets == sorted(offsets)
    assert all(begin <= offset <= end for offset in offsets)
    assert all(offset % window == 0 or offset in {begin, end} for offset in offsets)
    assert all(stop - start <= window * windows for start, stop in ranges)
    if sample == 1.0:
        assert sum(stop - start for start, stop in ranges) == length
    sampled = {offset // window for start, stop in ranges for offset in range(start, stop)}
    assert sampled == {
        number
        for number in range(begin // window, -(-end // window))
        if settings.is_sampled(PARTITION, number)
    } - (set() if length else {begin // window})


def test_the_sample_depends_only_on_the_run_id() -> None:
    first = _sampled("1")
    assert 120 < sum(first) < 280
    assert first == _sampled("1")
    assert first != _sampled("2")


def _sampled(run_id: str) -> list[bool]:
    settings = VerifyPlanSettings(run_id=run_id, sample=0.1)
    return [settings.is_sampled(PARTITION, window) for window in range(2_000)]
