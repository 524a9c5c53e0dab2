"""User-defined policies and filters (`python:package.module:Class`) in a MirrorFlow process between real clusters."""

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import load
from tests.harness.replicator import Replicator
from tests.integration.kafka.comparing import assert_copied
from tests.integration.kafka.groups import group_offsets, put_group

pytestmark = pytest.mark.more

LAG_MAX = 10
MODULE = '''
from mirrorflow_core.replication_policy import DefaultPolicy


class Behind(DefaultPolicy):
    """topic.alias, where MM2 has alias.topic."""

    def __init__(self, settings):
        super().__init__(settings.policy.separator)

    def remote_topic(self, alias, topic):
        return f"{topic}{self.separator}{alias}"

    def topic_source(self, topic):
        return None


class Topics:
    def __init__(self, settings):
        self.alias = settings.source_alias

    def should_replicate_topic(self, topic):
        return topic.endswith("-" + self.alias)


class Groups:
    def __init__(self, settings):
        self.alias = settings.source_alias

    def should_replicate_group(self, group):
        return group.startswith("wanted-" + self.alias)


class Settings:
    def __init__(self, settings):
        pass

    def should_replicate_config_property(self, name):
        return name == "retention.ms"
'''


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A folder for PYTHONPATH with the package `acme`."""
    folder = tmp_path / "python" / "acme"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "mirroring.py").write_text(MODULE)
    return folder.parent


def test_a_python_policy_and_three_python_filters_are_applied(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Callable[[], str], tmp_path: Path, package: Path
) -> None:
    """The policy names copies for records and for groups. The filters select topics, settings and groups."""
    alias = f"p{uuid.uuid4().hex[:6]}"
    stem = unique_topic()
    topic = east.create_topic(
        f"{stem}-{alias}", config={"retention.ms": "86400000", "segment.bytes": "2097152"}
    )
    other = east.create_topic(f"{stem}-other")
    for name in (topic, other):
        load(east, name, 200, keys=True)
    wanted, unwanted = f"wanted-{alias}", f"unwanted-{alias}"
    for group in (wanted, unwanted):
        put_group(east, group, {(topic, 0): 200})
    lines = {
        "source.cluster.alias": alias,
        "offset.lag.max": str(LAG_MAX),
        "replication.policy.class": "python:acme.mirroring:Behind",
        "topic.filter.class": "python:acme.mirroring:Topics",
        "config.property.filter.class": "python:acme.mirroring:Settings",
    }
    process = Replicator.standalone(
        east,
        west,
        topics="nothing of this name",
        folder=tmp_path,
        connector=lines,
        environment={"PYTHONPATH": str(package)},
    )
    worker, source = process.files
    assert isinstance(source, dict)
    checkpoint = {
        **source,
        "name": "MirrorCheckpointConnector",
        "connector.class": "MirrorCheckpointConnector",
        "group.filter.class": "python:acme.mirroring:Groups",
        "checkpoints.topic.replication.factor": "1",
        "refresh.groups.interval.seconds": "1",
        "emit.checkpoints.interval.seconds": "1",
        "sync.group.offsets.enabled": "true",
        "sync.group.offsets.interval.seconds": "1",
    }
    process.files = (worker, source, checkpoint)
    copy = f"{topic}.{alias}"

    with process:
        process.wait_for_copy(west, copy, 200)
        wait_until(
            "the group is translated",
            lambda: group_offsets(west, wanted).get((copy, 0), -1) >= 200 - LAG_MAX,
        )

    assert_copied(east, topic, west, copy, count=200)
    assert not [name for name in west.topics() if other in name]
    assert {} == group_offsets(west, unwanted)
    settings = west.topic_config(copy)
    assert ("86400000", "2097152") == (settings["retention.ms"], east.topic_config(topic)["segment.bytes"])
    assert settings["segment.bytes"] != "2097152"
