"""What may be sent before answers are awaited goes by the time that earlier bytes took."""

import pytest

from mirrorflow_core.send_window import LEAST_BYTES, SendWindow

FIRST = SendWindow(2, growth=2)
LARGE = FIRST.after(2_000_000, 0.4).after(4_000_000, 0.8)  # 5 MB/s


def test_a_window_grows_to_a_multiple_of_what_was_sent() -> None:
    """The first burst under a quota passes at the speed of the network."""
    assert FIRST.after(LEAST_BYTES, 0.0).size_bytes == 2 * LEAST_BYTES


def test_a_window_that_is_not_used_does_not_grow() -> None:
    assert LARGE.after(1_000, 0.001).size_bytes == LARGE.size_bytes


def test_a_window_of_unlimited_growth_is_what_a_few_bytes_prove() -> None:
    assert SendWindow(1).after(1_000, 0.001).size_bytes == pytest.approx(1_000_000, abs=1)


@pytest.mark.parametrize("bytes_per_s", [200_000, 50_000_000])
def test_a_window_grows_to_what_the_link_carries_in_its_time(bytes_per_s: int) -> None:
    window = FIRST
    for _ in range(30):
        window = window.after(window.size_bytes, window.size_bytes / bytes_per_s)

    assert window.size_bytes == pytest.approx(2 * bytes_per_s, rel=0.01)


def test_a_window_falls_to_what_a_slower_link_carries() -> None:
    window = LARGE.after(LARGE.size_bytes, LARGE.size_bytes / 1_000_000)

    assert window.size_bytes == pytest.approx(2_000_000)
    assert window.transit_s(500_000) == pytest.approx(0.5)


def test_a_window_never_falls_below_the_first_one_but_knows_the_rate() -> None:
    window = LARGE.after(1_000, 60)

    assert window.size_bytes == LEAST_BYTES
    assert window.transit_s(1_000) == pytest.approx(60)


def test_bytes_are_expected_to_take_long_before_a_rate_is_measured() -> None:
    assert FIRST.transit_s(1 << 20) == 64
