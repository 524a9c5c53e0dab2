"""What a source connector does about retention that a bulk job may hold, while the identity topic cannot be read."""

import asyncio
from collections.abc import Collection
from dataclasses import replace
from typing import Any, cast

import pytest

from mirrorflow_core.topics.retention_hold import identity_topic
from mirrorflow_core.wire.error_codes import LEADER_NOT_AVAILABLE, UNKNOWN_TOPIC_OR_PARTITION, error_for
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.client.metadata import EMPTY, PartitionMetadata, TopicMetadata
from mirrorflow_replicator.connectors.topic_discovery import TopicDiscovery
from tests.unit.connectors.flow_settings import settings
from tests.unit.connectors.test_topics_gone import arranged

TOPIC = identity_topic("east")


class OfflineTarget:
    """A target whose identity topic has no leader, or does not exist."""

    alias = "west"

    def __init__(self, *, has_topic: bool) -> None:
        partition = PartitionMetadata(leader=-1, leader_epoch=3, replicas=(1,), isr=())
        topic = TopicMetadata(name=TOPIC, partitions={0: partition})
        missing = TopicMetadata(name=TOPIC, error=UNKNOWN_TOPIC_OR_PARTITION)
        self.metadata = replace(EMPTY, topics={TOPIC: topic if has_topic else missing})
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
    async def refuse(*_: object, **__: object) -> None:
        raise error_for(LEADER_NOT_AVAILABLE, cluster="west", request="ListOffsets", subject=f"{TOPIC}-0")

    monkeypatch.setattr(admin, "offsets_at", refuse)


def synced(target: OfflineTarget) -> tuple[set[str], tuple[str, ...]]:
    """Returns the topics whose retention a sync of settings leaves alone, and its warnings."""

    async def ignore(_: object) -> None:
        pass

    async def run() -> tuple[set[str], tuple[str, ...]]:
        discovery, sync = TopicDiscovery(settings(), resolve=cast("Any", None)), SettingsSync()
        discovery._clusters = {"target": cast("Any", target)}
        await discovery._assign(arranged(["orders", "users"]), ignore)
        await discovery._sync_configs(cast("Any", sync))
        return sync.held, discovery._config_warnings

    return asyncio.run(run())


def test_no_retention_is_changed_while_holds_cannot_be_read():
    """A seed may be writing records that are older than the retention of their source."""
    held, warnings = synced(OfflineTarget(has_topic=True))

    assert held == {"east.orders", "east.users"}
    (warning,) = warnings
    assert f"Topic {TOPIC} of cluster west" in warning


def test_retention_follows_the_source_where_there_can_be_no_holds():
    assert synced(OfflineTarget(has_topic=False)) == (set(), ())
