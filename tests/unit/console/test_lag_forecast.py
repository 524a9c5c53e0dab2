"""The forecast of when a flow will have caught up: a range, or the reason why there is none."""

import pytest

from mirrorflow_console.lag_forecast import LagSample, Outlook, forecast


def samples(*lags: int | None, step_s: float = 5.0, seconds: float | None = 100.0) -> list[LagSample]:
    return [LagSample(index * step_s, lag, seconds, 10.0, 100.0) for index, lag in enumerate(lags)]


def test_a_flow_without_lag_has_caught_up():
    assert forecast(samples(0)).outlook is Outlook.CAUGHT_UP


def test_a_flow_with_a_small_lag_is_keeping_up():
    assert forecast(samples(500, seconds=2.0)).outlook is Outlook.KEEPING_UP


def test_a_steady_rate_gives_a_single_time():
    estimate = forecast(samples(*range(10_000, 4_000, -100)))

    assert estimate.outlook is Outlook.ESTIMATE
    assert [estimate.least_s, estimate.most_s] == pytest.approx([205, 205])
    assert estimate.words == "in 3 min 25 s"


def test_a_changed_rate_gives_a_range():
    slow = list(range(20_000, 18_000, -50))  # 10 records/s for 200 s
    fast = list(range(18_000, 12_000, -500))  # then 100 records/s

    estimate = forecast(samples(*slow, *fast))

    assert estimate.outlook is Outlook.ESTIMATE
    assert estimate.least_s is not None
    assert estimate.most_s is not None
    assert estimate.least_s < estimate.most_s


def test_a_growing_lag_has_no_estimate():
    assert forecast(samples(*range(100, 5_000, 100))).words == "not at this rate"


def test_a_lag_that_shrinks_only_recently_has_no_latest_time():
    estimate = forecast(samples(*range(1_000, 20_000, 200), *range(20_000, 18_000, -100)))

    assert estimate.most_s is None
    assert estimate.words.endswith("or later")


@pytest.mark.parametrize("lags", [(), (None,), (900, 800), (900, None, None)])
def test_too_few_samples_give_an_unknown_forecast(lags):
    assert forecast(samples(*lags)).outlook is Outlook.UNKNOWN


def test_a_gap_in_the_samples_is_not_counted_as_progress():
    assert forecast(samples(900, *([None] * 20), 100)).outlook in {Outlook.ESTIMATE, Outlook.UNKNOWN}
