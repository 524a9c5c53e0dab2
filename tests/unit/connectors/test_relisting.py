"""How often a source connector lists topics: soon after its start, then ever more rarely, at last as configured."""

from itertools import pairwise

from mirrorflow_replicator.connectors.topic_discovery import RELIST_MIN_S, RELIST_SHARE, relist_after_s

INTERVAL_S = 600.0
ROUNDING_S = 1e-6


def listings(every_s: float, until_s: float) -> list[float]:
    """When topics are listed, by the age of the connector."""
    at = [0.0]
    while at[-1] < until_s:
        at.append(at[-1] + relist_after_s(at[-1], every_s))
    return at


def test_a_topic_of_the_first_minutes_is_seen_within_a_quarter_of_the_connector_s_age():
    for before, after in pairwise(listings(INTERVAL_S, 2_400)):
        assert after - before <= max(RELIST_MIN_S, RELIST_SHARE * before) + ROUNDING_S


def test_the_steady_state_costs_what_is_configured():
    """Some thirty listings more than without, and from then on none."""
    day = listings(INTERVAL_S, 86_400)

    assert len(day) <= 86_400 / INTERVAL_S + 32
    late = [after - before for before, after in pairwise(day) if before > 2_400]
    assert all(abs(pause_s - INTERVAL_S) < ROUNDING_S for pause_s in late)


def test_a_shorter_interval_stays_as_it_is():
    assert {1.0} == {after - before for before, after in pairwise(listings(1.0, 60))}
