"""Topic synchronisation creates target topics with the settings of their sources."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from mirrorflow_core.topics.topic_configs import ConfigChange, ConfigEntry, ConfigSource
from mirrorflow_core.wire.error_codes import TOPIC_AUTHORIZATION_FAILED, UNKNOWN_SERVER_ERROR, error_for
from mirrorflow_kafka.admin import admin, configs
from mirrorflow_kafka.admin.configs import DescribedConfigs
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
        self.refuses: dict[str, int] = {}  # error codes of topics whose settings it does not describe
        self.unknown: set[str] = set()  # topics that the broker which describes settings does not know yet

    async def refresh(self, _: object = None) -> None:
        """Does nothing, because metadata is always current."""

    @property
    def metadata(self) -> Any:
        topic = SimpleNamespace(error=0, partitions={0: None})
        return SimpleNamespace(topics=dict.fromkeys(self.policies, topic))

    def leader(self, _topic: str, _partition: int) -> int:
        return 1


async def describe(cluster: MemoryCluster, names: Iterable[str]) -> DescribedConfigs:
    described = DescribedConfigs({}, {}, frozenset(names) & cluster.unknown)
    for name in set(names) - cluster.unknown:
        if (code := cluster.refuses.get(name)) is None:
            described.configs[name] = (cluster.policies[name],)
        else:
            request, alias = "DescribeConfigs", cluster.alias
            described.refused[name] = error_for(code, cluster=alias, request=request, subject=name)
    return described


async def create(cluster: MemoryCluster, wanted: Iterable[NewTopic], **_: object) -> dict[str, None]:
    wanted = [*wanted]
    for topic in wanted:
        policy = topic.configs.get("cleanup.policy")
        cluster.policies[topic.name] = (
            BY_DEFAULT if policy is None else ConfigEntry(name="cleanup.policy", value=policy)
        )
    return dict.fromkeys(topic.name for topic in wanted)


async def alter(
    cluster: MemoryCluster, changes: Mapping[str, Sequence[ConfigChange]], **_: object
) -> dict[str, None]:
    for name, of_topic in changes.items():
        for change in of_topic:
            cluster.policies[name] = ConfigEntry(name=change.name, value=change.value)
    return dict.fromkeys(changes)


@pytest.fixture
def memory_clusters(monkeypatch: pytest.MonkeyPatch) -> tuple[MemoryCluster, MemoryCluster]:
    """A source and a target, whose topics the admin functions describe and change."""
    monkeypatch.setattr(admin, "try_describe_topic_configs", describe)
    monkeypatch.setattr(configs, "create_topics", create)
    monkeypatch.setattr(configs, "alter_topic_configs", alter)
    return MemoryCluster("east"), MemoryCluster("west")


def topic_sync(clusters: Any) -> TopicSync:
    flow = settings()
    return TopicSync(*clusters, settings=flow, selection=make_selection(flow))


@pytest.mark.parametrize("policy", ["compact", "compact,delete", "delete"])
def test_target_topic_is_created_with_the_cleanup_policy_of_its_source(
    memory_clusters: tuple[MemoryCluster, MemoryCluster], policy: str
):
    """A copy of a compacted topic with the policy delete would lose the oldest keys."""
    source, target = memory_clusters
    source.policies = {"orders": ConfigEntry(name="cleanup.policy", value=policy), "plain": BY_DEFAULT}

    asyncio.run(topic_sync(memory_clusters).arrange())

    assert target.policies["east.orders"].value == policy
    assert target.policies["east.plain"] == BY_DEFAULT


COMPACTED = ConfigEntry(name="cleanup.policy", value="compact")


def test_a_topic_whose_settings_are_denied_does_not_change_the_settings_of_other_new_copies(
    memory_clusters: tuple[MemoryCluster, MemoryCluster],
):
    source, target = memory_clusters
    source.policies = dict.fromkeys(("audit", "orders", "users"), COMPACTED)
    source.refuses = {"audit": TOPIC_AUTHORIZATION_FAILED}

    arrangement = asyncio.run(topic_sync(memory_clusters).arrange())

    assert target.policies["east.orders"].value == target.policies["east.users"].value == "compact"
    assert target.policies["east.audit"] == BY_DEFAULT
    (warning,) = arrangement.warnings
    assert "DescribeConfigs on topic audit" in warning


def test_a_copy_is_not_created_while_the_settings_of_its_topic_cannot_be_read(
    memory_clusters: tuple[MemoryCluster, MemoryCluster],
):
    """With the target's default settings, it could delete records that its source keeps."""
    source, target = memory_clusters
    source.policies = dict.fromkeys(("audit", "orders"), COMPACTED)
    source.refuses = {"audit": UNKNOWN_SERVER_ERROR}

    arrangement = asyncio.run(topic_sync(memory_clusters).arrange())

    assert target.policies == {"east.orders": COMPACTED}
    assert arrangement.incomplete
    assert [*arrangement.uncopied] == ["audit"]


def test_a_copy_is_not_created_without_the_settings_of_a_topic_that_a_broker_does_not_know_yet(
    memory_clusters: tuple[MemoryCluster, MemoryCluster],
):
    """One broker lists a new topic some time before another one can describe it."""
    source, target = memory_clusters
    source.policies = dict.fromkeys(("new", "orders"), COMPACTED)
    source.unknown = {"new"}
    sync = topic_sync(memory_clusters)

    arrangement = asyncio.run(sync.arrange())

    assert target.policies == {"east.orders": COMPACTED}
    assert arrangement.incomplete
    assert [*arrangement.uncopied] == ["new"]

    source.unknown = set()
    assert not asyncio.run(sync.arrange()).uncopied
    assert target.policies["east.new"] == COMPACTED


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("code", [TOPIC_AUTHORIZATION_FAILED, UNKNOWN_SERVER_ERROR])
def test_a_topic_whose_settings_cannot_be_read_does_not_keep_others_from_the_sync(
    memory_clusters: tuple[MemoryCluster, MemoryCluster], side: int, code: int
):
    names = {topic: f"east.{topic}" for topic in ("audit", "orders", "users")}
    source, target = memory_clusters
    source.policies = dict.fromkeys(names, COMPACTED)
    target.policies = dict.fromkeys(names.values(), BY_DEFAULT)
    memory_clusters[side].refuses = {("audit", "east.audit")[side]: code}

    warnings = asyncio.run(topic_sync(memory_clusters).sync_configs(names))

    assert target.policies["east.orders"].value == target.policies["east.users"].value == "compact"
    (warning,) = warnings
    assert warning.startswith("Topic settings are not synchronised: ")
    assert "audit" in warning


def test_many_topics_whose_settings_are_denied_have_one_warning(
    memory_clusters: tuple[MemoryCluster, MemoryCluster],
):
    names = {f"orders-{number}": f"east.orders-{number}" for number in range(500)}
    source, target = memory_clusters
    source.policies = dict.fromkeys(names, COMPACTED)
    target.policies = dict.fromkeys(names.values(), BY_DEFAULT)
    source.refuses = dict.fromkeys(names, TOPIC_AUTHORIZATION_FAILED)

    (warning,) = asyncio.run(topic_sync(memory_clusters).sync_configs(names))

    assert "499 more" in warning
