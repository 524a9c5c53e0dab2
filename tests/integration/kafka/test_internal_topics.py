"""The flow's own topics were created with a broker's defaults, or are emptied. The flow still restarts."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from mirrorflow_core.writer.claim import claims_topic
from mirrorflow_core.writer.transactional_ids import TransactionalIds
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.client.cluster import Cluster
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.listeners import User
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import load
from tests.harness.replicator import Replicator
from tests.integration.kafka.flows import Flow, call_cluster
from tests.integration.kafka.test_connector import alter

pytestmark = pytest.mark.more

WEEK = {"cleanup.policy": "delete", "retention.ms": "604800000"}
MIRROR = User(name="mirror", password="secret")


@pytest.fixture(scope="module")
def locked() -> Iterator[KafkaCluster]:
    """A target on which the flow may write and create topics, but may not change their settings."""
    with KafkaCluster(
        name="locked", authorizer=True, listeners=("SASL_PLAINTEXT",), users=(MIRROR,)
    ) as cluster:
        for operation in ("READ", "WRITE", "CREATE", "DESCRIBE", "DESCRIBE_CONFIGS"):
            cluster.allow(operation, "TOPIC", "*", user=MIRROR.name)
        yield cluster


def settings_of(cluster: KafkaCluster, topic: str) -> Mapping[str, str | None]:
    async def describe(connected: Cluster) -> Mapping[str, str | None]:
        entries = (await admin.describe_topic_configs(connected, [topic]))[topic]
        return {entry.name: entry.value for entry in entries}

    return call_cluster(cluster, describe)


def warnings_of(replicator: Replicator, about: str) -> list[str]:
    connectors = replicator.rest("/progress/partitions")[1]["connectors"]
    return [text for connector in connectors for text in connector["warnings"] if about in text]


def status_or_log(replicator: Replicator) -> str:
    """Returns the connector's status, or the log if the process has ended."""
    if not replicator.running:
        return replicator.log_text()
    return str(replicator.rest("/connectors/MirrorSourceConnector/status")[1])


def forget_claims(flow: Flow, event: str) -> None:
    name = claims_topic(flow.alias)
    if event == "retention":
        alter(flow.target, name, "cleanup.policy", "delete")
        flow.target.delete_records(name, {0: flow.target.end_offsets(name)[0]})
        return
    flow.target.delete_topic(name)


@pytest.mark.parametrize("event", ["retention", "deletion"])
def test_a_flow_without_its_claims_continues_after_its_positions(
    flow: Flow, unique_topic: Callable[[], str], event: str
):
    topic = flow.source.create_topic(unique_topic())
    load(flow.source, topic, 300)
    with flow.replicator(topic) as replicator:
        for number in range(1, 4):
            replicator.wait_until_caught_up()
            assert replicator.stop() == 0
            if number == 1:
                forget_claims(flow, event)
            load(flow.source, topic, 100, first=200 + 100 * number)
            replicator.start()
        replicator.wait_until_caught_up()

    flow.assert_exact(topic)


def test_a_claims_topic_that_would_lose_claims_is_given_compaction(
    flow: Flow, unique_topic: Callable[[], str]
):
    topic = flow.source.create_topic(unique_topic())
    name = flow.target.create_topic(claims_topic(flow.alias), config=WEEK | {"delete.retention.ms": "0"})
    load(flow.source, topic, 10)
    with flow.replicator(topic) as replicator:
        replicator.wait_until_caught_up()

    settings = settings_of(flow.target, name)
    assert (settings["cleanup.policy"], settings["delete.retention.ms"]) == ("compact", "86400000")


def test_an_offsets_topic_that_would_lose_positions_is_given_compaction(
    flow: Flow, unique_topic: Callable[[], str]
):
    topic = flow.source.create_topic(unique_topic())
    name = flow.target.create_topic(f"mm2-offsets.{flow.alias}.internal", config=WEEK)
    load(flow.source, topic, 10)
    with flow.replicator(topic) as replicator:
        replicator.wait_until_caught_up()

    assert settings_of(flow.target, name)["cleanup.policy"] == "compact"


def test_offset_syncs_on_the_source_that_would_be_lost_are_given_compaction(
    flow: Flow, unique_topic: Callable[[], str]
):
    """The source is MM2's default location of offset syncs."""
    topic = flow.source.create_topic(unique_topic())
    name = f"mm2-offset-syncs.{flow.target.name}.internal"
    if flow.source.has_topic(name):  # from a different test: its name has only the target's alias
        flow.source.alter_topic(name, WEEK)
    else:
        flow.source.create_topic(name, config=WEEK)
    with flow.replicator(topic) as replicator:
        wait_until(
            "the offset syncs topic is compacted",
            lambda: settings_of(flow.source, name)["cleanup.policy"] == "compact",
        )
        assert warnings_of(replicator, name) == []


def test_a_data_topic_with_the_name_of_the_offsets_topic_is_not_compacted(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Callable[[], str], tmp_path: Path
):
    """The connector fails with a message that names the topic."""
    topic, data = east.create_topic(unique_topic()), west.create_topic(unique_topic(), config=WEEK)
    flow = Flow.new(east, west, tmp_path, worker={"offset.storage.topic": data})
    with flow.replicator(topic) as replicator:
        wait_until("the connector names the topic", lambda: data in status_or_log(replicator))

    assert settings_of(west, data)["cleanup.policy"] == "delete"


def test_a_claims_topic_whose_settings_may_not_be_corrected_stops_the_connector(
    east: KafkaCluster, locked: KafkaCluster, unique_topic: Callable[[], str], tmp_path: Path
):
    """Retention would delete claims."""
    properties = locked.java_client("SASL_PLAINTEXT", user=MIRROR)
    connector = {f"target.cluster.{key}": value for key, value in properties.items()}
    flow = Flow.new(east, locked, tmp_path, connector=connector, worker=dict(properties))
    locked.allow("ALL", "TRANSACTIONAL_ID", TransactionalIds(flow.alias).prefix, prefixed=True)
    topic = east.create_topic(unique_topic())
    name = locked.create_topic(claims_topic(flow.alias), config=WEEK)
    with flow.replicator(topic) as replicator:
        wait_until(
            "the connector reports the cleanup policy",
            lambda: f"topic {name} has cleanup.policy=delete" in status_or_log(replicator),
        )


def test_a_claims_topic_whose_settings_may_not_be_read_is_a_warning(
    east: KafkaCluster, unique_topic: Callable[[], str], tmp_path: Path
):
    """Without the settings it is unknown whether claims are kept."""
    with KafkaCluster(
        name="silent", authorizer=True, listeners=("SASL_PLAINTEXT",), users=(MIRROR,)
    ) as silent:
        for operation in ("READ", "WRITE", "CREATE", "DESCRIBE"):
            silent.allow(operation, "TOPIC", "*", user=MIRROR.name)
        properties = silent.java_client("SASL_PLAINTEXT", user=MIRROR)
        connector = {f"target.cluster.{key}": value for key, value in properties.items()}
        flow = Flow.new(east, silent, tmp_path, connector=connector, worker=dict(properties))
        silent.allow("ALL", "TRANSACTIONAL_ID", TransactionalIds(flow.alias).prefix, prefixed=True)
        topic = east.create_topic(unique_topic())
        with flow.replicator(topic) as replicator:
            wait_until(
                "the warning is reported",
                lambda: warnings_of(replicator, f"The configs of topic {claims_topic(flow.alias)} on"),
            )
