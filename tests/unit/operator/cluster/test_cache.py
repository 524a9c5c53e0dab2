"""The cache of API objects is updated by lists, watches and responses to the operator's writes, in any order."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from mirrorflow_operator.cluster import cache as module
from mirrorflow_operator.cluster.cache import ClusterCache, list_all
from mirrorflow_operator.cluster.client import CONFIG_MAP, MIRROR_FLOW, MIRROR_PAIR, SPARK_APPLICATION
from mirrorflow_operator.cluster.pair_cache import PairCache
from mirrorflow_operator.status.pair_observation import PairKey

KEY = ("flows", "east-to-west")


def config_map(*, uid: str, version: int) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": KEY[1],
            "namespace": KEY[0],
            "uid": uid,
            "resourceVersion": str(version),
            "labels": {"mirrorflow.io/flow": KEY[1]},
        },
    }


def uids(cache: ClusterCache) -> set[str]:
    return {child.uid for child in cache.children(KEY).values()}


def test_a_late_response_to_a_write_does_not_restore_a_deleted_object():
    """A pass may write an object while its flow is deleted.

    Later writes that rely on the restored object would conflict.
    """
    cache = ClusterCache()

    cache.handle_event(CONFIG_MAP, "DELETED", config_map(uid="a", version=8))
    changed = cache.put(CONFIG_MAP, config_map(uid="a", version=7))

    assert changed == frozenset()
    assert uids(cache) == set()


def test_a_new_object_with_the_name_of_a_deleted_one_is_cached():
    cache = ClusterCache()
    cache.put(CONFIG_MAP, config_map(uid="a", version=7))
    cache.handle_event(CONFIG_MAP, "DELETED", config_map(uid="a", version=8))

    cache.put(CONFIG_MAP, config_map(uid="b", version=9))

    assert uids(cache) == {"b"}


def test_a_flow_that_matches_the_selector_again_is_cached_again():
    """When a MirrorFlow loses the selected label, the API server reports it as deleted, although it keeps its uid."""
    cache = ClusterCache()

    def labelled(version: int) -> dict[str, Any]:
        metadata = {**config_map(uid="a", version=version)["metadata"], "labels": {"team": "payments"}}
        return {"metadata": metadata, "spec": {}}

    cache.put(MIRROR_FLOW, labelled(1))
    cache.handle_event(MIRROR_FLOW, "DELETED", labelled(2))
    assert not cache.flows

    cache.put(MIRROR_FLOW, labelled(3))

    assert set(cache.flows) == {KEY}


def test_only_the_newest_deletions_are_kept(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "DELETED_MAX", 2)
    cache = ClusterCache()
    for uid in "abc":
        cache.handle_event(CONFIG_MAP, "DELETED", config_map(uid=uid, version=8))

    for uid in "abc":
        cache.put(CONFIG_MAP, config_map(uid=uid, version=7))

    assert uids(cache) == {"a"}


class ListingClient:
    """An API server with two SparkApplications, of which the first has no spec."""

    async def chunks(self, *_: object, **__: object) -> AsyncIterator[tuple[int, list[dict[str, Any]]]]:
        labels = {"mirrorflow.io/run": "seed", "mirrorflow.io/run-of": KEY[1]}
        without_spec, whole = (
            {"metadata": {**config_map(uid=name, version=7)["metadata"], "name": name, "labels": labels}}
            for name in ("without-spec", "whole")
        )
        yield 7, [without_spec, {**whole, "spec": {}}]


def test_an_object_that_cannot_be_read_does_not_end_the_reading_of_others(caplog: pytest.LogCaptureFixture):
    """Otherwise one object that a bug cannot read would end the operator of all flows at each start."""
    cache = ClusterCache()

    changed = asyncio.run(list_all(ListingClient(), cache, None, kinds=[SPARK_APPLICATION]))  # type: ignore[arg-type]

    assert "whole" in uids(cache)
    assert {SPARK_APPLICATION.name: frozenset({KEY})} == changed
    assert "SparkApplication flows/without-spec cannot be read" in caplog.text


class PairListingClient:
    """An API server with a pair without members."""

    async def chunks(self, *_: object, **__: object) -> AsyncIterator[tuple[int, list[dict[str, Any]]]]:
        yield 7, [{"metadata": {**config_map(uid="pair", version=7)["metadata"], "generation": 1}}]


def test_a_pair_that_cannot_be_read_ends_the_reading_and_is_read_again(monkeypatch: pytest.MonkeyPatch):
    """A flow that a switchover has ended would be started if the operator knew nothing of its pair."""
    cache = ClusterCache()

    def fail(*_: object) -> frozenset[PairKey]:
        raise RuntimeError("a bug")

    def read() -> None:
        asyncio.run(list_all(PairListingClient(), cache, None, kinds=[MIRROR_PAIR]))  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(PairCache, "put_pair", fail)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="a bug"):
                read()
    read()

    assert len(cache.pairs.pairs) == 1
