"""Topics that a switchover must know of, although the source does not list them."""

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from mirrorflow_core.errors import ClusterError, NotAuthorizedError
from mirrorflow_core.wire.error_codes import (
    LEADER_NOT_AVAILABLE,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_OR_PARTITION,
    raise_for,
)
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.client.metadata import TopicMetadata
from mirrorflow_replicator.switchover import sealed_partitions
from mirrorflow_replicator.switchover.sealed_partitions import SealedPartitions

OFFSETS = "mm2-offsets.east.internal"


class Source:
    """A cluster that lists *listed*, and returns for other topics the code of *unlisted*."""

    alias = "east"

    def __init__(self, listed: set[str], unlisted: Mapping[str, int]) -> None:
        self.listed, self.unlisted = listed, unlisted
        self.requested: list[list[str]] = []
        self.metadata = SimpleNamespace(topics={})

    async def list_topics(self) -> Mapping[str, TopicMetadata]:
        self.metadata.topics = {name: TopicMetadata(name=name) for name in self.listed}
        return dict(self.metadata.topics)

    async def refresh(self, topics: set[str]) -> None:
        self.requested.append(sorted(topics))
        for name in topics:
            self.metadata.topics[name] = TopicMetadata(name=name, error=self.unlisted.get(name, 0))

    def raise_for(self, code: int, request: str, subject: str) -> None:
        raise_for(code, cluster=self.alias, request=request, subject=subject)


class FlowWithoutOffsetsTopic:
    """A flow whose reads of positions give up after a minute, as those of a topic that does not exist."""

    def __init__(self, *_: object, **_options: object) -> None:
        self.runner = self

    async def run(self, _: object) -> None:
        raise_for(UNKNOWN_TOPIC_OR_PARTITION, cluster="east", request="Metadata")


def partitions_of(
    source: Source, copied: frozenset[str] | None, monkeypatch: pytest.MonkeyPatch
) -> SealedPartitions:
    """Returns the partitions of a pair; with *copied*, the flow has positions of these topics."""
    everything: Any = SimpleNamespace(
        selects=lambda _: True, is_heartbeats_topic=lambda _: False, target_topic=lambda name: name
    )
    for name in ("make_selection", "make_replication_policy", "make_naming"):
        monkeypatch.setattr(sealed_partitions, name, lambda _: everything)

    async def list_topics(cluster: Source) -> Mapping[str, TopicMetadata]:
        return await cluster.list_topics()

    async def copied_topics(_: object) -> frozenset[str] | None:
        return copied

    monkeypatch.setattr(admin, "list_topics", list_topics)
    if copied is not None:
        monkeypatch.setattr(SealedPartitions, "_copied_topics", copied_topics)
    clusters: Any = SimpleNamespace(source=source, target=source)
    settings: Any = SimpleNamespace(forward=SimpleNamespace(offsets=SimpleNamespace(topic=OFFSETS)))
    return SealedPartitions(settings, clusters)


def test_a_copied_topic_that_the_source_hides_is_reported(monkeypatch: pytest.MonkeyPatch):
    source = Source({"orders"}, {"payments": TOPIC_AUTHORIZATION_FAILED})
    partitions = partitions_of(source, frozenset({"orders", "payments"}), monkeypatch)

    with pytest.raises(NotAuthorizedError, match="Describe on topic payments"):
        asyncio.run(partitions.topics())


def test_a_topic_that_is_hidden_later_is_reported_each_time(monkeypatch: pytest.MonkeyPatch):
    """It has no position: nothing of it was copied when the first list was read."""
    source = Source({"orders", "payments"}, {"payments": TOPIC_AUTHORIZATION_FAILED})
    partitions = partitions_of(source, frozenset(), monkeypatch)

    assert asyncio.run(partitions.topics()) == {"orders", "payments"}
    source.listed = {"orders"}
    for _ in range(2):
        with pytest.raises(NotAuthorizedError, match="payments"):
            asyncio.run(partitions.topics())


def test_a_deleted_topic_is_requested_once(monkeypatch: pytest.MonkeyPatch):
    source = Source({"orders"}, {"payments": UNKNOWN_TOPIC_OR_PARTITION})
    partitions = partitions_of(source, frozenset({"payments"}), monkeypatch)

    for _ in range(2):
        assert asyncio.run(partitions.topics()) == {"orders"}
    assert source.requested == [["payments"]]


def test_a_topic_whose_state_is_not_known_is_no_deleted_topic(monkeypatch: pytest.MonkeyPatch):
    source = Source({"orders"}, {"payments": LEADER_NOT_AVAILABLE})
    partitions = partitions_of(source, frozenset({"payments"}), monkeypatch)

    with pytest.raises(ClusterError, match="LEADER_NOT_AVAILABLE"):
        asyncio.run(partitions.topics())


def test_a_flow_that_has_never_run_has_copied_nothing(monkeypatch: pytest.MonkeyPatch):
    """Its offsets topic does not exist. Waiting for it would hide the check that names a flow that does not run."""
    cluster = Source({"orders"}, {OFFSETS: UNKNOWN_TOPIC_OR_PARTITION})
    monkeypatch.setattr(sealed_partitions, "FlowClusters", FlowWithoutOffsetsTopic)

    assert asyncio.run(partitions_of(cluster, None, monkeypatch).topics()) == {"orders"}
