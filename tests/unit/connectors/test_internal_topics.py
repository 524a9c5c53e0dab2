"""Settings of internal topics that would lose records are corrected."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast
from unittest.mock import AsyncMock, create_autospec

import pytest

from mirrorflow_core.errors import ClusterError, InternalTopicUnavailableError
from mirrorflow_core.topics.topic_configs import ConfigChange, ConfigEntry
from mirrorflow_core.wire.error_codes import BrokerRefusal
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.topics import NewTopic
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.client.metadata import EMPTY
from mirrorflow_replicator.connectors import topic_discovery
from mirrorflow_replicator.connectors.internal_topics import (
    UncorrectedTopics,
    corrections,
    create_again,
    internal_topics,
    internal_topics_of_source,
)
from mirrorflow_replicator.connectors.topic_discovery import TopicDiscovery
from mirrorflow_replicator.copy import offset_map_writer
from tests.unit.connectors.flow_settings import settings

KEPT_FOREVER = NewTopic(
    name="t",
    partitions=1,
    configs={"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"},
)
COMPACTED = NewTopic(name="t", partitions=1, configs={"cleanup.policy": "compact"})
LARGER = {"segment.bytes": "1048576"}


def entries(values: dict[str, str]) -> list[ConfigEntry]:
    return [ConfigEntry(name=name, value=value) for name, value in values.items()]


@pytest.mark.parametrize(
    ("topic", "current", "corrected"),
    [
        (KEPT_FOREVER, {**KEPT_FOREVER.configs}, {}),
        (KEPT_FOREVER, {**KEPT_FOREVER.configs, **LARGER}, {}),
        (KEPT_FOREVER, {**KEPT_FOREVER.configs, "retention.ms": "604800000"}, {"retention.ms": "-1"}),
        (KEPT_FOREVER, {**KEPT_FOREVER.configs, "cleanup.policy": "compact"}, {"cleanup.policy": "delete"}),
        (
            KEPT_FOREVER,
            {"cleanup.policy": "delete", "retention.ms": "1", "retention.bytes": "1"},
            {"retention.ms": "-1", "retention.bytes": "-1"},
        ),
        (COMPACTED, {"cleanup.policy": "delete"}, {"cleanup.policy": "compact"}),
        (COMPACTED, {"cleanup.policy": "compact,delete"}, {"cleanup.policy": "compact"}),
        (COMPACTED, {"cleanup.policy": "compact", "retention.ms": "604800000"}, {}),
        (COMPACTED, {}, {}),
        (COMPACTED, {"delete.retention.ms": "0"}, {"delete.retention.ms": "86400000"}),
        (COMPACTED, {"delete.retention.ms": "3600000"}, {}),
        (KEPT_FOREVER, {"delete.retention.ms": "0"}, {}),
    ],
)
def test_only_settings_that_would_lose_records_are_corrected(
    topic: NewTopic, current: dict[str, str], corrected: dict[str, str]
) -> None:
    expected = {ConfigChange(name=name, value=value) for name, value in corrected.items()}

    assert expected == set(corrections(topic, entries(current)))


def test_topic_whose_settings_may_not_be_read_has_a_warning() -> None:
    """The warning names the missing permission."""
    uncorrected = UncorrectedTopics(alias="west", refused=("Topic a loses records.",), unread=("b",))

    first, second = uncorrected.warnings
    assert first == "Topic a loses records."
    assert "topic b on west" in second
    assert "DescribeConfigs" in second


def test_internal_topics_except_the_identity_topic_are_compacted() -> None:
    """Compaction would delete records of the identity topic that are still needed."""
    topics = [*internal_topics(settings()), *internal_topics_of_source(settings())]

    assert {topic.name: topic.configs["cleanup.policy"] for topic in topics} == {
        "mm2-claims.east.internal": "compact",
        "mm2-identity.east.internal": "delete",
        "mm2-offsets.east.internal": "compact",
        "mm2-offset-map.east.internal": "compact",
        "mm2-offset-syncs.west.internal": "compact",
    }


def test_deleted_topics_are_recreated_with_the_settings_of_their_first_creation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Readers of the offset map must be able to read its newest segment."""
    cluster = create_autospec(Cluster, instance=True, alias="west")
    cluster.leader.return_value = None
    cluster.metadata = EMPTY
    created: list[NewTopic] = []

    async def create(_: Cluster, topics: Sequence[NewTopic]) -> dict[str, BrokerRefusal | None]:
        created.extend(topics)
        return {topic.name: None for topic in topics}

    monkeypatch.setattr(admin, "create_topics", create)
    monkeypatch.setattr(admin, "wait_for_leaders", AsyncMock())
    name = "mm2-offset-map.east.internal"
    [again] = (topic for topic in internal_topics(settings()) if topic.name == name)

    asyncio.run(create_again(cluster, [again], {name}))
    first = AsyncMock(side_effect=ClusterError("the test ends here", cluster="west"))
    monkeypatch.setattr(offset_map_writer, "create_own_topic", first)
    maps = offset_map_writer.MapLog(cluster, name, replication_factor=again.replication_factor)
    with pytest.raises(ClusterError):
        asyncio.run(maps.read(set()))

    assert first.await_args is not None
    assert [first.await_args.args[1]] == created
    assert "52428800" == again.configs["segment.bytes"]


def test_a_topic_that_is_created_again_and_has_no_leader_yet_is_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a failure of the connector, it would have all topics of both clusters listed again."""
    error = InternalTopicUnavailableError(cluster="west", topic="mm2-claims.east.internal", leaderless=0)
    corrected = AsyncMock(return_value=UncorrectedTopics(alias="east", refused=(), unread=()))
    monkeypatch.setattr(topic_discovery, "create_again", AsyncMock(side_effect=[error, None]))
    monkeypatch.setattr(topic_discovery, "correct_topic_configs", corrected)
    discovery = TopicDiscovery(settings(), resolve=cast("Any", None))
    discovery._clusters = {
        side: create_autospec(Cluster, instance=True, alias=alias, warnings=())
        for side, alias in (("source", "east"), ("target", "west"))
    }

    asyncio.run(discovery._check_internal_topics())

    [warning] = discovery.warnings
    assert str(error) in warning
    assert corrected.await_count == 1
