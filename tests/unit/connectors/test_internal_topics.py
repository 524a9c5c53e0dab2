"""Which settings of the flow's own topics would lose records, and what they are changed to."""

import pytest

from mirrorflow_core.topics.topic_configs import ConfigChange, ConfigEntry
from mirrorflow_kafka.admin.topics import NewTopic
from mirrorflow_replicator.connectors.internal_topics import (
    UncorrectedTopics,
    corrections,
    internal_topics,
    internal_topics_of_source,
)
from tests.unit.connectors.flow_settings import settings

FOR_EVER = NewTopic(
    name="t",
    partitions=1,
    configs={"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"},
)
COMPACTED = NewTopic(name="t", partitions=1, configs={"cleanup.policy": "compact"})
LARGER = {"segment.bytes": "1048576"}


def entries(values: dict[str, str]) -> list[ConfigEntry]:
    return [ConfigEntry(name=name, value=value) for name, value in values.items()]


@pytest.mark.parametrize(
    ("topic", "found", "changed"),
    [
        (FOR_EVER, {**FOR_EVER.configs}, {}),
        (FOR_EVER, {**FOR_EVER.configs, **LARGER}, {}),
        (FOR_EVER, {**FOR_EVER.configs, "retention.ms": "604800000"}, {"retention.ms": "-1"}),
        (FOR_EVER, {**FOR_EVER.configs, "cleanup.policy": "compact"}, {"cleanup.policy": "delete"}),
        (
            FOR_EVER,
            {"cleanup.policy": "delete", "retention.ms": "1", "retention.bytes": "1"},
            {"retention.ms": "-1", "retention.bytes": "-1"},
        ),
        (COMPACTED, {"cleanup.policy": "delete"}, {"cleanup.policy": "compact"}),
        (COMPACTED, {"cleanup.policy": "compact,delete"}, {"cleanup.policy": "compact"}),
        (COMPACTED, {"cleanup.policy": "compact", "retention.ms": "604800000"}, {}),
        (COMPACTED, {}, {}),
        (COMPACTED, {"delete.retention.ms": "0"}, {"delete.retention.ms": "86400000"}),
        (COMPACTED, {"delete.retention.ms": "3600000"}, {}),
        (FOR_EVER, {"delete.retention.ms": "0"}, {}),
    ],
)
def test_only_what_would_lose_records_is_changed(
    topic: NewTopic, found: dict[str, str], changed: dict[str, str]
) -> None:
    expected = {ConfigChange(name=name, value=value) for name, value in changed.items()}

    assert expected == set(corrections(topic, entries(found)))


def test_a_topic_that_may_not_be_read_is_a_warning_as_well() -> None:
    """Beside those that lose records; the sentence names the right that is missing."""
    uncorrected = UncorrectedTopics(alias="west", refused=("Topic a loses records.",), unread=("b",))

    first, second = uncorrected.warnings
    assert first == "Topic a loses records."
    assert "topic b on west" in second
    assert "DescribeConfigs" in second


def test_all_topics_of_a_flow_are_created_compacted_but_that_of_its_decisions() -> None:
    """Compaction would delete decisions from the identity topic."""
    topics = [*internal_topics(settings()), *internal_topics_of_source(settings())]

    assert {topic.name: topic.configs["cleanup.policy"] for topic in topics} == {
        "mm2-claims.east.internal": "compact",
        "mm2-identity.east.internal": "delete",
        "mm2-offsets.east.internal": "compact",
        "mm2-offset-map.east.internal": "compact",
        "mm2-offset-syncs.west.internal": "compact",
    }
