"""A checkpoint connector has MM2's keys, defaults and prefixes, and refuses contradictory settings."""

import pytest

from mirrorflow_core.errors import InvalidSettingError, RefusedSettingError
from mirrorflow_core.settings import CheckpointSettings
from mirrorflow_replicator.config.checkpoint_properties import parse_checkpoint
from mirrorflow_replicator.config.dedicated_mode import load_mm2

CONNECTOR = {
    "name": "MirrorCheckpointConnector",
    "connector.class": "MirrorCheckpointConnector",
    "source.cluster.alias": "A",
    "target.cluster.alias": "B",
    "source.cluster.bootstrap.servers": "a:9092",
    "target.cluster.bootstrap.servers": "b:9093",
}
MM2 = """
clusters = A, B
A.bootstrap.servers = a:9092
B.bootstrap.servers = b:9092
A->B.enabled = true
B->A.emit.heartbeats.enabled = false
"""


def parse(**extra: str) -> CheckpointSettings:
    properties = CONNECTOR | {key.replace("__", "-").replace("_", "."): value for key, value in extra.items()}
    return parse_checkpoint(properties, {"bootstrap.servers": "b:9092"})


def test_checkpoint_defaults_equal_those_of_mm2():
    """The expected values are those of MirrorCheckpointConfig of Kafka 4.3."""
    settings = parse()

    assert ((".*",), ("console-consumer-.*", "connect-.*", "__.*")) == (
        settings.groups,
        settings.groups_exclude,
    )
    assert ((".*",), ("mm2.*\\.internal", ".*\\.replica", "__.*")) == (
        settings.topics,
        settings.topics_exclude,
    )
    assert (600.0, 60.0, None, 3, True) == (
        settings.refresh_groups_s,
        settings.emit_s,
        settings.sync_s,
        settings.replication_factor,
        settings.syncs_on_source,
    )


def test_every_key_of_a_checkpoint_connector_takes_effect():
    settings = parse(
        groups="orders, pay.*",
        groups_exclude="pay-test",
        refresh_groups_enabled="false",
        emit_checkpoints_interval_seconds="5",
        sync_group_offsets_enabled="true",
        sync_group_offsets_interval_seconds="7",
        checkpoints_topic_replication_factor="-1",
        offset__syncs_topic_location="target",
        group_filter_class="python:my.filters:Groups",
    )

    assert (("orders", "pay.*"), ("pay-test",), None, 5.0, 7.0, -1, False, "python:my.filters:Groups") == (
        settings.groups,
        settings.groups_exclude,
        settings.refresh_groups_s,
        settings.emit_s,
        settings.sync_s,
        settings.replication_factor,
        settings.syncs_on_source,
        settings.group_filter,
    )


def test_checkpoint_clients_have_the_prefixes_and_client_ids_of_mm2():
    """Consumers use `consumer.`, admin clients `admin.`, and the producer of checkpoints the worker's properties."""
    settings = parse(
        source_admin_request_timeout_ms="1",
        source_consumer_fetch_max_wait_ms="2",
        consumer_client_rack="r",
        target_cluster_security_protocol="SSL",
    )

    assert ("a:9092", "1") == (
        settings.source_admin.bootstrap_servers,
        settings.source_admin.properties["request.timeout.ms"],
    )
    assert ("2", "r") == (
        settings.source_consumer.properties["fetch.max.wait.ms"],
        settings.target_consumer.properties["client.rack"],
    )
    assert ("b:9093", "SSL") == (
        settings.target_admin.bootstrap_servers,
        settings.target_admin.properties["security.protocol"],
    )
    assert "b:9092" == settings.target_producer.bootstrap_servers
    assert [
        "A->B|MirrorCheckpointConnector-0|checkpoint-source-admin",
        "A->B|MirrorCheckpointConnector-0|checkpoint-target-admin",
        "connector-producer-MirrorCheckpointConnector-0",
    ] == [
        client.client_id
        for client in (settings.source_admin, settings.target_admin, settings.target_producer)
    ]


@pytest.mark.parametrize(
    ("extra", "key"),
    [
        ({"emit_offset__syncs_enabled": "false"}, "emit.offset-syncs.enabled"),
        ({"emit_checkpoints_enabled": "false"}, "emit.checkpoints.enabled"),
        ({"emit_checkpoints_interval_seconds": "0"}, "emit.checkpoints.interval.seconds"),
        ({"groups": "("}, "groups"),
        ({"checkpoints_topic_replication_factor": "0"}, "checkpoints.topic.replication.factor"),
        ({"offset__syncs_topic_location": "here"}, "offset-syncs.topic.location"),
        ({"source_cluster_bootstrap_servers": ""}, "source.cluster.bootstrap.servers"),
    ],
)
def test_invalid_checkpoint_setting_is_refused_by_key(extra: dict[str, str], key: str):
    with pytest.raises(InvalidSettingError) as caught:
        parse(**extra)
    assert key == caught.value.key


def test_java_group_filter_is_refused():
    """Without the filter the connector would translate groups that the user has not selected."""
    with pytest.raises(RefusedSettingError, match=r"^group\.filter\.class"):
        parse(group_filter_class="com.example.Groups")


def test_group_offsets_are_synchronised_without_checkpoints():
    """MM2 accepts these settings and does nothing."""
    settings = parse(emit_checkpoints_enabled="false", sync_group_offsets_enabled="true")
    assert (None, 60.0) == (settings.emit_s, settings.sync_s)


def test_mm2_properties_create_a_checkpoint_connector_for_each_enabled_flow():
    """The connector has the settings of its flow."""
    (herder,) = load_mm2(MM2 + "A->B.groups = orders\nsync.group.offsets.enabled = true\n")
    (settings,) = [
        connector.checkpoint for connector in herder.connectors if connector.checkpoint is not None
    ]

    assert (("orders",), 60.0, "a:9092", "b:9092") == (
        settings.groups,
        settings.sync_s,
        settings.source_admin.bootstrap_servers,
        settings.target_producer.bootstrap_servers,
    )


@pytest.mark.parametrize("line", ["emit.offset-syncs.enabled = false", "emit.checkpoints.enabled = false"])
def test_mm2_properties_without_checkpoints_still_copy(line: str):
    """Like MM2, only the checkpoint connector is left out; here a warning states it."""
    (herder,) = load_mm2(MM2 + f"A->B.{line}\n")

    assert not [connector for connector in herder.connectors if connector.checkpoint is not None]
    assert [connector for connector in herder.connectors if connector.source is not None]
    assert any("MirrorCheckpointConnector is not run" in warning for warning in herder.warnings)
