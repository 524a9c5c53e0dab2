"""The time at which a flow will have caught up: a range, or why there is none."""

import pytest

from mirrorflow_console.lag_forecast import LagSample, Outlook, forecast


def samples(*lags: int | None, step_s: float = 5.0, seconds: float | None = 100.0) -> list[LagSample]:
    return [LagSample(index * step_s, lag, seconds, 10.0, 100.0) for index, lag in enumerate(lags)]


def test_nothing_to_copy_is_caught_up():
    assert forecast(samples(0)).outlook is Outlook.CAUGHT_UP


def test_small_lag_is_kept_up_with():
    assert forecast(samples(500, seconds=2.0)).outlook is Outlook.KEEPING_UP


def test_steady_rate_gives_one_time():
    found = forecast(samples(*range(10_000, 4_000, -100)))

    assert found.outlook is Outlook.ESTIMATE
    assert [found.least_s, found.most_s] == pytest.approx([205, 205])
    assert found.words == "in 3 min 25 s"


def test_rate_that_changed_gives_a_range():
    slow = list(range(20_000, 18_000, -50))  # 10 a second for 200 s
    fast = list(range(18_000, 12_000, -500))  # then 100 a second

    found = forecast(samples(*slow, *fast))

    assert found.outlook is Outlook.ESTIMATE
    assert found.least_s is not None
    assert found.most_s is not None
    assert found.least_s < found.most_s


def test_growing_lag_has_no_time():
    assert forecast(samples(*range(100, 5_000, 100))).words == "not at this rate"


def test_lag_that_shrinks_only_lately_has_no_latest_time():
    found = forecast(samples(*range(1_000, 20_000, 200), *range(20_000, 18_000, -100)))

    assert found.most_s is None
    assert found.words.endswith("or later")


@pytest.mark.parametrize("lags", [(), (None,), (900, 800), (900, None, None)])
def test_too_little_knowledge_is_unknown(lags):
    assert forecast(samples(*lags)).outlook is Outlook.UNKNOWN


def test_gap_in_the_samples_is_no_progress():
    assert forecast(samples(900, *([None] * 20), 100)).outlook in {Outlook.ESTIMATE, Outlook.UNKNOWN}
