"""Loads, measured from the ends of logs."""

import pytest

from mirrorflow_core.assignment.partition_loads import CATCH_UP_S, RECORD_BYTES, Rates, behind, loads
from mirrorflow_core.partitions import TopicPartition

ONE, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)


def test_two_looks_give_a_rate_and_one_gives_none() -> None:
    once = Rates().looked({ONE: 1_000}, 50.0)
    assert {} == once.per_s
    assert {ONE: 20.0} == once.looked({ONE: 1_200, OTHER: 7}, 60.0).per_s


def test_a_burst_is_forgotten_and_a_change_is_followed_within_some_looks() -> None:
    rates, end = Rates().looked({ONE: 0}, 0.0), 0
    for look in range(1, 30):
        end += 1_000 if look < 10 else 100
        rates = rates.looked({ONE: end}, float(look))
    assert 100 == pytest.approx(rates.per_s[ONE], rel=0.05)


def test_a_topic_that_was_made_anew_or_is_gone_counts_nothing() -> None:
    rates = Rates().looked({ONE: 1_000, OTHER: 5}, 0.0).looked({ONE: 3}, 1.0)
    assert {ONE: 0.0} == rates.per_s


def test_lag_counts_and_unmeasured_records_have_the_average_size() -> None:
    behind = {ONE: round(CATCH_UP_S), OTHER: -1}
    assert {ONE: 30.0, OTHER: 10.0} == loads({ONE: 2.0, OTHER: 1.0}, behind, {ONE: 10.0})
    assert {OTHER: RECORD_BYTES} == loads({OTHER: 1.0}, {}, {})


def test_what_has_stopped_makes_no_work_however_much_is_before_it() -> None:
    ends = {ONE: 1_000, OTHER: 1_000}
    assert {ONE: 990, OTHER: 900} == behind(ends, {ONE: 9, OTHER: 99}, {})
    assert {OTHER: 900} == behind(ends, {ONE: 9, OTHER: 99}, {ONE: 9, OTHER: 50})
    assert {ONE: 0} == behind({ONE: 5}, {ONE: 9}, {})
