"""A source connector lists topics often after its start, then less often, and finally at the configured interval."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirrorflow_core.backoff import JITTER
from mirrorflow_replicator.connectors import topic_discovery
from mirrorflow_replicator.connectors.topic_discovery import (
    INCOMPLETE_MAX_S,
    INCOMPLETE_MIN_S,
    RELIST_MIN_S,
    RELIST_SHARE,
    TopicDiscovery,
    relist_after_s,
)
from tests.unit.connectors.flow_settings import settings
from tests.unit.connectors.test_topics_gone import arranged

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


class Listings:
    """The listings of a connector whose clock passes over each pause."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        loop = SimpleNamespace(time=lambda: self.now_s)
        monkeypatch.setattr(
            topic_discovery, "asyncio", SimpleNamespace(Event=asyncio.Event, get_running_loop=lambda: loop)
        )
        flow = replace(settings(), refresh_topics_s=INTERVAL_S)
        self._discovery = TopicDiscovery(flow, resolve=cast("Any", None))

    def pause_s(self, uncopied: Sequence[str]) -> float:
        """Returns the pause after a listing that finds the topics *uncopied* without a copy."""
        arrangement = replace(
            arranged(["users"]), uncopied=dict.fromkeys(uncopied, "refused"), incomplete=bool(uncopied)
        )
        pause_s = self._discovery._rearrange_after_s(arrangement)
        self.now_s += pause_s
        return pause_s

    def until(self, end_s: float, uncopied: Sequence[str]) -> list[float]:
        pauses_s = []
        while self.now_s < end_s:
            pauses_s.append(self.pause_s(uncopied))
        return pauses_s


def test_a_topic_that_never_gets_a_copy_does_not_keep_listings_frequent(monkeypatch: pytest.MonkeyPatch):
    """Both clusters list all of their topics each time."""
    pauses_s = Listings(monkeypatch).until(86_400, ["refused"])

    assert pauses_s[-1] == INTERVAL_S
    assert len(pauses_s) < 86_400 / INTERVAL_S + 40


def test_a_topic_without_a_copy_is_tried_again_soon_after_it_was_found(monkeypatch: pytest.MonkeyPatch):
    listings = Listings(monkeypatch)
    listings.until(86_400, ["refused"])

    assert listings.pause_s(["new", "refused"]) <= INCOMPLETE_MIN_S * (1 + JITTER)
    pauses_s = listings.until(listings.now_s + 60, ["new", "refused"])
    assert max(pauses_s) <= INCOMPLETE_MAX_S * (1 + JITTER)


def test_listings_are_as_frequent_as_configured_after_all_topics_have_copies(monkeypatch: pytest.MonkeyPatch):
    listings = Listings(monkeypatch)
    listings.until(86_400, ["refused"])

    assert listings.pause_s([]) == INTERVAL_S
    assert listings.pause_s(["refused"]) <= INCOMPLETE_MIN_S * (1 + JITTER)
