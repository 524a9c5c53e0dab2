"""The send window, the bytes in flight without a response, follows the measured throughput."""

import pytest

from mirrorflow_core.send_window import LEAST_BYTES, TRANSIT_MAX_S, SendWindow

FIRST = SendWindow(2, growth=2)
LARGE = FIRST.after(2_000_000, 0.4).after(4_000_000, 0.8)  # measured at 5 MB/s


def test_a_window_grows_to_a_multiple_of_the_sent_bytes() -> None:
    """The first burst under a quota is sent at the speed of the network."""
    assert FIRST.after(LEAST_BYTES, 0.0).size_bytes == 2 * LEAST_BYTES


def test_an_unused_window_does_not_grow() -> None:
    assert LARGE.after(1_000, 0.001).size_bytes == LARGE.size_bytes


def test_a_window_without_a_growth_limit_follows_the_measured_rate_after_a_few_bytes() -> None:
    assert SendWindow(1).after(1_000, 0.001).size_bytes == pytest.approx(1_000_000, abs=1)


@pytest.mark.parametrize("bytes_per_s", [200_000, 50_000_000])
def test_a_window_grows_to_the_throughput_of_the_link(bytes_per_s: int) -> None:
    window = FIRST
    for _ in range(30):
        window = window.after(window.size_bytes, window.size_bytes / bytes_per_s)

    assert window.size_bytes == pytest.approx(2 * bytes_per_s, rel=0.01)


def test_a_window_shrinks_to_the_throughput_of_a_slower_link() -> None:
    window = LARGE.after(LARGE.size_bytes, LARGE.size_bytes / 1_000_000)

    assert window.size_bytes == pytest.approx(2_000_000)
    assert window.transit_s(500_000) == pytest.approx(0.5)


def test_a_window_never_shrinks_below_its_minimum_but_keeps_the_rate() -> None:
    window = LARGE.after(LEAST_BYTES, 64)

    assert window.size_bytes == LEAST_BYTES
    assert window.transit_s(1 << 10) == pytest.approx(0.25)


def test_a_late_response_to_few_bytes_proves_no_rate_below_the_first() -> None:
    """The broker was slow, not the link. A rate that more bytes have proved is kept."""
    assert LARGE.after(200, 2.1).transit_s(1 << 20) == FIRST.transit_s(1 << 20)
    slow = FIRST.after(LEAST_BYTES, 64)
    assert slow.after(200, 2.1).transit_s(1 << 20) == slow.transit_s(1 << 20) == 256


def test_a_transit_time_has_a_limit() -> None:
    assert FIRST.after(LEAST_BYTES, 3_600).transit_s(1 << 20) == TRANSIT_MAX_S


def test_the_expected_transit_time_is_long_before_a_rate_is_measured() -> None:
    assert FIRST.transit_s(1 << 20) == 64
