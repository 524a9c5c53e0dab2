"""The forecast of when a flow will have caught up: a range, or the reason why there is none."""

import random
from itertools import pairwise

import pytest

from mirrorflow_console.lag_forecast import WINDOWS_S, LagSample, Outlook, forecast


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
    assert estimate.text == "in 3 min 25 s"


def test_a_changed_rate_gives_a_range():
    slow = list(range(20_000, 18_000, -50))  # 10 records/s for 200 s
    fast = list(range(18_000, 12_000, -500))  # then 100 records/s

    estimate = forecast(samples(*slow, *fast))

    assert estimate.outlook is Outlook.ESTIMATE
    assert estimate.least_s is not None
    assert estimate.most_s is not None
    assert estimate.least_s < estimate.most_s


def test_a_growing_lag_has_no_estimate():
    assert forecast(samples(*range(100, 5_000, 100))).text == "not at this rate"


def test_a_lag_that_shrinks_only_recently_has_no_latest_time():
    estimate = forecast(samples(*range(1_000, 20_000, 200), *range(20_000, 18_000, -100)))

    assert estimate.most_s is None
    assert estimate.text.endswith("or later")


@pytest.mark.parametrize("lags", [(), (None,), (900, 800), (900, None, None)])
def test_too_few_samples_give_an_unknown_forecast(lags):
    assert forecast(samples(*lags)).outlook is Outlook.UNKNOWN


def outlooks(lags: list[int], *, step_s: float) -> list[Outlook]:
    """Returns the outlook after each of *lags*, of which as many are known as a console keeps."""
    all_outlooks, was = [], Outlook.UNKNOWN
    for end in range(1, len(lags) + 1):
        known = [
            LagSample(index * step_s, lag, 100.0, 10.0, 100.0)
            for index, lag in enumerate(lags[:end])
            if (end - 1 - index) * step_s <= WINDOWS_S[-1]
        ]
        was = forecast(known, was=was).outlook
        all_outlooks.append(was)
    return all_outlooks


def changes(values: list[Outlook]) -> int:
    return sum(before is not after for before, after in pairwise(values))


def test_a_lag_that_grows_between_deliveries_has_no_estimate():
    """A rate limit lets a batch pass every 51 seconds, and the source grows by a tenth more than that."""
    lags = [50_000 + 11 * second - 10 * 51 * (second // 51) for second in range(0, 1_800, 5)]

    shown = outlooks(lags, step_s=5)

    assert changes(shown[shown.index(Outlook.NOT_AT_THIS_RATE) :]) == 0


def test_a_lag_that_stays_about_the_same_seldom_changes_its_outlook():
    """The flow copies as fast as the source grows, now a little faster and now a little more slowly."""
    chance = random.Random(7)
    lags, lag = [], 50_000
    for _ in range(720):
        lag += chance.randint(-200, 200)
        lags.append(lag)

    assert changes(outlooks(lags, step_s=5)) <= 20  # in an hour; by the newest window alone there are 88


def test_a_lag_that_begins_to_shrink_fast_is_forecast_again():
    grown = list(range(10_000, 20_000, 100))
    shown = outlooks([*grown, *range(20_000, 10_000, -1_000)], step_s=5)

    assert shown[len(grown) - 1] is Outlook.NOT_AT_THIS_RATE
    assert shown[-1] is Outlook.ESTIMATE


def test_a_gap_in_the_samples_is_not_counted_as_progress():
    assert forecast(samples(900, *([None] * 20), 100)).outlook in {Outlook.ESTIMATE, Outlook.UNKNOWN}
