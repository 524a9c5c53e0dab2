"""Tests how partitions are cut and sampled."""

from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_seed.verify.offset_windows import VerifyPlanSettings

AT = TopicPartition("t", 0)


@given(
    st.integers(0, 5_000), st.integers(0, 5_000), st.floats(0.01, 1.0), st.integers(1, 400), st.integers(1, 5)
)
def test_ranges_are_in_order_within_their_bounds_and_cut_at_windows(
    begin: int, length: int, sample: float, window: int, windows: int
) -> None:
    """Without a sample all offsets are covered; with one, each window is covered completely or not at all."""
    end = begin + length
    settings = VerifyPlanSettings(run_id="r", sample=sample, window_offsets=window, range_windows=windows)
    found = settings.sampled_ranges(AT, begin, end)

    offsets = [at for start, stop in found for at in (start, stop)]
    assert offsets == sorted(offsets)
    assert all(begin <= at <= end for at in offsets)
    assert all(at % window == 0 or at in {begin, end} for at in offsets)
    assert all(stop - start <= window * windows for start, stop in found)
    if sample == 1.0:
        assert sum(stop - start for start, stop in found) == length
    sampled = {at // window for start, stop in found for at in range(start, stop)}
    assert sampled == {
        one for one in range(begin // window, -(-end // window)) if settings.is_sampled(AT, one)
    } - (set() if length else {begin // window})


def test_sample_depends_on_the_run_id_only() -> None:
    first = _sampled("1")
    assert 120 < sum(first) < 280
    assert first == _sampled("1")
    assert first != _sampled("2")


def _sampled(run_id: str) -> list[bool]:
    settings = VerifyPlanSettings(run_id=run_id, sample=0.1)
    return [settings.is_sampled(AT, window) for window in range(2_000)]
