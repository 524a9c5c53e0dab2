"""What a source connector does about retention that a bulk job may hold, while the identity topic cannot be read."""

import asyncio
from collections.abc import Collection
from dataclasses import replace
from typing import Any, cast

import pytest

from mirrorflow_core.topics.retention_hold import Hold, HoldRecord, RetentionLease, identity_topic
from mirrorflow_core.wire.error_codes import (
    LEADER_NOT_AVAILABLE,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_OR_PARTITION,
    error_for,
)
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.client.metadata import EMPTY, PartitionMetadata, TopicMetadata
from mirrorflow_replicator.connectors.topic_discovery import TopicDiscovery
from tests.unit.connectors.flow_settings import settings
from tests.unit.connectors.test_topics_gone import arranged

TOPIC = identity_topic("east")


class OfflineTarget:
    """A target whose identity topic has no leader, or has *error*."""

    alias = "west"

    def __init__(self, *, error: int = 0) -> None:
        partition = PartitionMetadata(leader=-1, leader_epoch=3, replicas=(1,), isr=())
        topic = TopicMetadata(name=TOPIC, partitions={} if error else {0: partition}, error=error)
        self.metadata = replace(EMPTY, topics={TOPIC: topic})
        self.error = error or LEADER_NOT_AVAILABLE
        self.warnings = ()

    def leader(self, topic: str, partition: int) -> int | None:
        return self.metadata.leader(topic, partition)

    async def refresh(self, _: object = None) -> None:
        """Does nothing, because metadata is always current."""


class SettingsSync:
    """Notes the target topics whose retention it must leave alone."""

    def __init__(self) -> None:
        self.held: set[str] = set()

    async def sync_configs(self, _names: object, *, held: Collection[str]) -> tuple[str, ...]:
        self.held = set(held)
        return ()


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(target: OfflineTarget, *_: object, **__: object) -> None:
        raise error_for(target.error, cluster="west", request="ListOffsets", subject=TOPIC)

    monkeypatch.setattr(admin, "offsets_at", refuse)


def synced(
    target: OfflineTarget, *, read_before: Collection[HoldRecord] = ()
) -> tuple[set[str], tuple[str, ...]]:
    """Returns the topics whose retention a sync of settings leaves alone, and its warnings.

    *read_before*: what the connector has read from the identity topic earlier.
    """

    async def ignore(_: object) -> None:
        pass

    async def run() -> tuple[set[str], tuple[str, ...]]:
        discovery, sync = TopicDiscovery(settings(), resolve=cast("Any", None)), SettingsSync()
        discovery._clusters = {"target": cast("Any", target)}
        await discovery._assign(arranged(["orders", "users"]), ignore)
        await discovery._retention()
        for record in read_before:
            cast("Any", discovery._hold_log)._holds.take(record, 0.0)
        await discovery._sync_configs(cast("Any", sync))
        return sync.held, discovery._config_warnings

    return asyncio.run(run())


def test_no_retention_is_changed_while_holds_cannot_be_read():
    """A seed may be writing records that are older than the retention of their source."""
    held, warnings = synced(OfflineTarget())

    assert held == {"east.orders", "east.users"}
    (warning,) = warnings
    assert f"Topic {TOPIC} of cluster west" in warning


def test_retention_follows_the_source_where_there_can_be_no_holds():
    assert synced(OfflineTarget(error=UNKNOWN_TOPIC_OR_PARTITION)) == (set(), ())


def test_holds_that_were_read_count_after_describe_on_their_topic_is_revoked():
    """The seed continues: it has its own rights. Whether its lease is renewed cannot be read any more."""
    holds: list[HoldRecord] = [
        Hold(holder="seed", topic="east.orders", before={"retention.ms": "5000"}),
        RetentionLease(holder="seed", until_ms=1_800_000_000_000),
    ]
    hidden = OfflineTarget(error=TOPIC_AUTHORIZATION_FAILED)
    held, warnings = synced(hidden, read_before=holds)

    assert held == {"east.orders"}
    assert any(f"Describe on topic {TOPIC}" in warning for warning in warnings)


def test_an_identity_topic_that_was_always_hidden_is_ignored():
    """Most flows may not describe it, and have none."""
    assert synced(OfflineTarget(error=TOPIC_AUTHORIZATION_FAILED)) == (set(), ())
