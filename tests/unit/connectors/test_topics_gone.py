"""The warnings of a source connector about topics that are no longer visible."""

import asyncio
from collections.abc import Iterable
from typing import Any, cast

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_replicator.connectors.topic_discovery import TOPICS_GONE_MAX, TopicDiscovery
from mirrorflow_replicator.connectors.topic_sync import Arrangement
from tests.unit.connectors.flow_settings import settings


def arranged(topics: Iterable[str]) -> Arrangement:
    names = {topic: f"east.{topic}" for topic in topics}
    return Arrangement(
        partitions=tuple(TopicPartition(topic, 0) for topic in names),
        names=names,
        sizes=dict.fromkeys(names, 1),
        warnings=(),
        uncopied={},
        incomplete=False,
    )


def warnings_after(*listings: Iterable[str]) -> tuple[str, ...]:
    """Returns the warnings of a connector that has found the topics of *listings*, one after the other."""

    async def ignore(_: object) -> None:
        pass

    async def run() -> tuple[str, ...]:
        discovery = TopicDiscovery(settings(), resolve=cast("Any", None))
        for topics in listings:
            await discovery._assign(arranged(topics), ignore)
        return discovery.warnings

    return asyncio.run(run())


def test_a_topic_that_is_no_longer_visible_has_a_warning():
    (warning,) = warnings_after(["orders", "users"], ["users"])

    assert warning.startswith("Topic orders is no longer visible on east")
    assert "east.orders stays" in warning


def test_the_warning_ends_when_the_topic_is_created_again():
    assert not warnings_after(["orders", "users"], ["users"], ["orders", "users"])


def test_a_topic_that_is_deleted_twice_has_one_warning():
    assert len(warnings_after(["orders"], [], ["orders"], [])) == 1


def test_only_the_newest_topics_have_a_warning():
    topics = [f"orders-{number:02}" for number in range(TOPICS_GONE_MAX)]

    warnings = warnings_after(["users", *topics], topics, [])

    assert len(warnings) == TOPICS_GONE_MAX
    assert not any("Topic users" in warning for warning in warnings)
