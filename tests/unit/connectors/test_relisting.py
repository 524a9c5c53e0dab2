"""A source connector lists topics often after its start, then less often, and finally at the configured interval."""

from itertools import pairwise

from mirrorflow_replicator.connectors.topic_discovery import RELIST_MIN_S, RELIST_SHARE, relist_after_s

INTERVAL_S = 600.0
ROUNDING_S = 1e-6


def listings(every_s: float, until_s: float) -> list[float]:
    """Returns the ages of the connector at which it lists topics."""
    ages_s = [0.0]
    while ages_s[-1] < until_s:
        ages_s.append(ages_s[-1] + relist_after_s(ages_s[-1], every_s))
    return ages_s


def test_pause_between_listings_is_at_most_a_share_of_the_connector_age():
    for before, after in pairwise(listings(INTERVAL_S, 2_400)):
        assert after - before <= max(RELIST_MIN_S, RELIST_SHARE * before) + ROUNDING_S


def test_listings_reach_the_configured_interval():
    """Until then, about thirty additional listings happen on the first day."""
    day = listings(INTERVAL_S, 86_400)

    assert len(day) <= 86_400 / INTERVAL_S + 32
    late = [after - before for before, after in pairwise(day) if before > 2_400]
    assert all(abs(pause_s - INTERVAL_S) < ROUNDING_S for pause_s in late)


def test_an_interval_shorter_than_the_first_pauses_is_used_from_the_start():
    assert {1.0} == {after - before for before, after in pairwise(listings(1.0, 60))}
