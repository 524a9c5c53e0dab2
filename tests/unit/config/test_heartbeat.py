"""The properties of a heartbeat connector have the same meaning as in MM2's MirrorHeartbeatConfig."""

import pytest

from mirrorflow_core.errors import InvalidSettingError
from mirrorflow_core.settings import HeartbeatSettings
from mirrorflow_replicator.config.heartbeat_properties import parse_heartbeat

WORKER = {"bootstrap.servers": "b:1", "security.protocol": "SSL", "producer.acks": "all"}
CONNECTOR = {
    "name": "MirrorHeartbeatConnector",
    "source.cluster.alias": "A",
    "target.cluster.alias": "B",
    "source.cluster.bootstrap.servers": "a:1",
}
EMIT_TO = "mirrorflow.heartbeats.emit.to"


def parsed(worker: dict[str, str] | None = None, /, **properties: str) -> HeartbeatSettings:
    overrides = {key.replace("_", "."): value for key, value in properties.items()}
    settings = parse_heartbeat(CONNECTOR | overrides, WORKER if worker is None else worker)
    assert settings is not None
    return settings


def test_heartbeat_defaults_equal_those_of_mm2():
    """Clients have MM2's ids and the worker's connection."""
    settings = parsed()
    [beat] = settings.beats

    assert (1.0, 3) == (settings.interval_s, settings.replication_factor)
    assert ("A->B", "A", "B") == (settings.flow, settings.source_alias, settings.target_alias)
    assert ("A", "B") == (beat.source_alias, beat.target_alias)
    assert ("B", "connector-producer-MirrorHeartbeatConnector-0") == (
        beat.producer.alias,
        beat.producer.client_id,
    )
    assert {"bootstrap.servers": "b:1", "security.protocol": "SSL", "acks": "all"} == beat.producer.properties
    assert "A->B|MirrorHeartbeatConnector|heartbeats-target-admin" == beat.admin.client_id
    assert {"bootstrap.servers": "b:1", "security.protocol": "SSL"} == beat.admin.properties


def test_admin_client_may_have_its_own_credentials():
    """The user who creates topics may differ from the user who writes."""
    settings = parsed(
        **{"target.cluster.bootstrap.servers": "b:2", "target.admin.sasl.jaas.config": "${file:x:y}"}
    )
    [beat] = settings.beats

    assert {"bootstrap.servers": "b:2", "sasl.jaas.config": "${file:x:y}"} == beat.admin.properties
    assert "b:1" == beat.producer.properties["bootstrap.servers"]


def test_connector_sets_the_target_of_a_worker_without_an_address():
    settings = parsed({}, target_cluster_bootstrap_servers="b:2")

    assert "b:2" == settings.beats[0].producer.bootstrap_servers


def test_heartbeats_on_the_source_are_those_of_the_opposite_flow():
    """The aliases are exchanged: these heartbeats have the target as their source."""
    settings = parsed(**{EMIT_TO: "target, source", "source.producer.linger.ms": "5"})
    target, source = settings.beats

    assert ("A", "B") == (target.source_alias, target.target_alias)
    assert ("B", "A") == (source.source_alias, source.target_alias)
    assert ("A", "A") == (source.producer.alias, source.admin.alias)
    assert {"bootstrap.servers": "a:1", "linger.ms": "5"} == source.producer.properties
    assert {"bootstrap.servers": "a:1"} == source.admin.properties


def test_heartbeats_only_on_the_source_need_no_target_address():
    settings = parsed({}, **{EMIT_TO: "source"})

    assert ["A"] == [beat.target_alias for beat in settings.beats]


@pytest.mark.parametrize(
    "properties",
    [
        {"emit.heartbeats.enabled": "false"},
        {"emit.heartbeats.enabled": "false", EMIT_TO: "target,source"},
        {"emit.heartbeats.interval.seconds": "-1"},
        {EMIT_TO: ""},
    ],
)
def test_disabled_heartbeats_are_not_written(properties: dict[str, str]):
    """A negative interval disables heartbeats, as in Java."""
    assert parse_heartbeat(CONNECTOR | properties, WORKER) is None


def test_heartbeats_do_not_depend_on_the_enabled_property():
    """As in MM2, a flow that is not enabled still has heartbeats."""
    assert parsed(enabled="false").beats


@pytest.mark.parametrize(
    ("key", "properties"),
    [
        ("emit.heartbeats.interval.seconds", {"emit.heartbeats.interval.seconds": "0"}),
        ("emit.heartbeats.interval.seconds", {"emit.heartbeats.interval.seconds": "1.5"}),
        ("heartbeats.topic.replication.factor", {"heartbeats.topic.replication.factor": "0"}),
        (EMIT_TO, {EMIT_TO: "both"}),
        ("target.cluster.alias", {"target.cluster.alias": "A"}),
        ("source.cluster.bootstrap.servers", {EMIT_TO: "source", "source.cluster.bootstrap.servers": " "}),
    ],
)
def test_invalid_heartbeat_setting_is_refused_by_key(key: str, properties: dict[str, str]):
    with pytest.raises(InvalidSettingError) as caught:
        parse_heartbeat(CONNECTOR | properties, WORKER)

    assert key == caught.value.key


def test_missing_target_address_is_refused_by_key():
    with pytest.raises(InvalidSettingError) as caught:
        parse_heartbeat(CONNECTOR, {})

    assert "bootstrap.servers" == caught.value.key


def test_heartbeats_use_the_replication_policy_of_the_flow():
    settings = parsed(replication_policy_separator="_", replication_policy_class="IdentityReplicationPolicy")

    assert ("_", "A") == (settings.policy.separator, settings.policy.source_alias)
