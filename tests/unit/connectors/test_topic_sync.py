"""Topic synchronisation creates target topics with the settings of their sources."""

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
        """Does nothing, because metadata is always current."""

    @property
    def metadata(self) -> Any:
        topic = SimpleNamespace(error=0, partitions={0: None})
        return SimpleNamespace(topics=dict.fromkeys(self.policies, topic))

    def leader(self, _topic: str, _partition: int) -> int:
        return 1


async def describe(cluster: MemoryCluster, names: Iterable[str]) -> dict[str, list[ConfigEntry]]:
    return {name: [cluster.policies[name]] for name in names}


async def create(cluster: MemoryCluster, wanted: Iterable[NewTopic], **_: object) -> dict[str, None]:
    wanted = [*wanted]
    for topic in wanted:
        policy = topic.configs.get("cleanup.policy")
        cluster.policies[topic.name] = (
            BY_DEFAULT if policy is None else ConfigEntry(name="cleanup.policy", value=policy)
        )
    return dict.fromkeys(topic.name for topic in wanted)


@pytest.mark.parametrize("policy", ["compact", "compact,delete", "delete"])
def test_target_topic_is_created_with_the_cleanup_policy_of_its_source(
    monkeypatch: pytest.MonkeyPatch, policy: str
):
    """A copy of a compacted topic with the policy delete would lose the oldest keys."""
    monkeypatch.setattr(admin, "describe_topic_configs", describe)
    monkeypatch.setattr(topics, "create_topics", create)
    source, target = MemoryCluster("east"), MemoryCluster("west")
    source.policies = {"orders": ConfigEntry(name="cleanup.policy", value=policy), "plain": BY_DEFAULT}
    clusters: Any = source, target
    flow = settings()

    asyncio.run(TopicSync(*clusters, settings=flow, selection=make_selection(flow)).arrange())

    assert target.policies["east.orders"].value == policy
    assert target.policies["east.plain"] == BY_DEFAULT
