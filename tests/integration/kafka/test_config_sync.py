"""Topic settings that are only reported, and settings that are not synced for single topics."""

from collections.abc import Callable
from pathlib import Path

from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import wait_until
from tests.harness.replicator import Replicator
from tests.integration.kafka.test_failures_access import status

SOURCE = {"retention.ms": "3600000", "segment.bytes": "2000000"}
TARGET = {"retention.ms": "7200000", "segment.bytes": "3000000"}

Names = Callable[[], str]


def configs(cluster: KafkaCluster, topic: str) -> dict[str, str]:
    config = cluster.topic_config(topic)
    return {name: config[name] for name in SOURCE}


def test_report_only_mode_reports_differences_and_writes_none(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """The report has the current value of the target for each setting."""
    topic = east.create_topic(unique_topic(), config=SOURCE)
    copy = west.create_topic(f"{topic.upper()}.{topic}", config=TARGET)
    connector = {
        "source.cluster.alias": topic.upper(),
        "sync.topic.configs.interval.seconds": "1",
        "mirrorflow.sync.topic.configs.report.only": "true",
    }

    with Replicator.standalone(east, west, topics=topic, folder=tmp_path, connector=connector) as replicator:
        sentence = (
            f"Target topic {copy} would be given retention.ms=3600000 (now 7200000), "
            "segment.bytes=2000000 (now 3000000), but settings are only reported."
        )
        wait_until("the differences are reported", lambda: sentence in status(replicator))
        assert configs(west, copy) == TARGET


def test_a_setting_is_not_synced_on_topics_that_exclude_it(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """Other settings of the topic are synced. On other topics, including new ones, the setting is synced too."""
    topic = east.create_topic(unique_topic(), config=SOURCE)
    other = east.create_topic(f"{topic}-other", config=SOURCE)
    new = east.create_topic(f"{topic}-new", config=SOURCE)
    alias = topic.upper()
    for name in (topic, other):
        west.create_topic(f"{alias}.{name}", config=TARGET)
    connector = {
        "source.cluster.alias": alias,
        "sync.topic.configs.interval.seconds": "1",
        "mirrorflow.config.properties.exclude.by.topic": f"{topic}(?:-new)?:retention\\..*",
    }

    with Replicator.standalone(
        east, west, topics=f"{topic}.*", folder=tmp_path, connector=connector
    ) as replicator:
        replicator.wait_until_caught_up(partitions=3)
        wait_until(
            "the other topic has followed",
            lambda: configs(west, f"{alias}.{other}") == SOURCE,
        )
        wait_until(
            "the rest of the topic has followed",
            lambda: configs(west, f"{alias}.{topic}") == SOURCE | {"retention.ms": TARGET["retention.ms"]},
        )
        assert configs(west, f"{alias}.{new}") == SOURCE | {"retention.ms": "604800000"}
