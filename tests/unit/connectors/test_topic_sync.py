"""With which settings mirror topics are created."""

import asyncio
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from mirrorflow_core.topics.topic_configs import ConfigEntry, ConfigSource
from mirrorflow_kafka.admin import admin, topics
from mirrorflow_kafka.admin.topics import NewTopic
from mirrorflow_replicator.config.plugins import make_selection
from mirrorflow_replicator.connectors.topic_sync import TopicSync
from tests.unit.connectors.flow_settings import settings

BY_DEFAULT = ConfigEntry(name="cleanup.policy", value="delete", source=ConfigSource.DEFAULT)


class MemoryCluster:
    """A cluster of topics with one partition each, without connections."""

    def __init__(self, alias: str) -> None:
        self.alias = self.cluster_id = alias
        self.policies: dict[str, ConfigEntry] = {}

    async def refresh(self, _: object = None) -> None:
        """Metadata is always fresh."""

    @property
    def metadata(self) -> Any:
        one = SimpleNamespace(error=0, partitions={0: None})
        return SimpleNamespace(topics=dict.fromkeys(self.policies, one))

    def leader(self, _topic: str, _partition: int) -> int:
        return 1


async def describe(cluster: MemoryCluster, names: Iterable[str]) -> dict[str, list[ConfigEntry]]:
    return {name: [cluster.policies[name]] for name in names}


async def create(cluster: MemoryCluster, wanted: Iterable[NewTopic], **_: object) -> dict[str, None]:
    wanted = [*wanted]
    for one in wanted:
        own = one.configs.get("cleanup.policy")
        cluster.policies[one.name] = (
            BY_DEFAULT if own is None else ConfigEntry(name="cleanup.policy", value=own)
        )
    return dict.fromkeys(one.name for one in wanted)


@pytest.mark.parametrize("policy", ["compact", "compact,delete", "delete"])
def test_a_mirror_topic_is_created_with_the_cleanup_policy_of_its_source(
    monkeypatch: pytest.MonkeyPatch, policy: str
):
    """A compacted topic whose copy is not would lose its oldest keys there."""
    monkeypatch.setattr(admin, "describe_topic_configs", describe)
    monkeypatch.setattr(topics, "create_topics", create)
    source, target = MemoryCluster("east"), MemoryCluster("west")
    source.policies = {"orders": ConfigEntry(name="cleanup.policy", value=policy), "plain": BY_DEFAULT}
    found: Any = source, target
    flow = settings()

    asyncio.run(TopicSync(*found, settings=flow, selection=make_selection(flow)).arrange())

    assert target.policies["east.orders"].value == policy
    assert target.policies["east.plain"] == BY_DEFAULT
