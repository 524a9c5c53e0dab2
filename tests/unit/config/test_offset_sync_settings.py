"""Settings of offset syncs have the meaning, topics and client ids of MM2."""

import pytest

from mirrorflow_core.errors import InvalidSettingError
from mirrorflow_replicator.config.connector_properties import offset_syncs_topic
from mirrorflow_replicator.config.dedicated_mode import load_mm2
from mirrorflow_replicator.config.source_properties import for_task, parse_source

PROPERTIES = {
    "name": "MirrorSourceConnector",
    "connector.class": "MirrorSourceConnector",
    "source.cluster.alias": "A",
    "target.cluster.alias": "B",
    "source.cluster.bootstrap.servers": "a:9092",
    "target.cluster.bootstrap.servers": "b:9092",
}
WORKER = {"bootstrap.servers": "worker:9092", "security.protocol": "SSL"}


def with_keys(properties, worker=WORKER):
    return parse_source(PROPERTIES | properties, worker)


def test_offset_syncs_are_written_to_the_source_by_default():
    settings = with_keys({})
    syncs = settings.syncs

    assert syncs is not None
    assert (syncs.on_source, syncs.replication_factor, syncs.lag_max) == (True, 3, 100)
    assert offset_syncs_topic(settings, on_source=syncs.on_source) == "mm2-offset-syncs.B.internal"
    assert (syncs.producer.alias, syncs.producer.bootstrap_servers) == ("A", "a:9092")
    assert syncs.producer.client_id == "A->B|MirrorSourceConnector-0|offset-syncs-source-producer"
    assert syncs.admin.client_id == "A->B|MirrorSourceConnector|offset-syncs-source-admin"


def test_client_id_of_the_sync_producer_contains_the_task_number():
    syncs = for_task(with_keys({}), 3).syncs

    assert syncs is not None
    assert syncs.producer.client_id == "A->B|MirrorSourceConnector-3|offset-syncs-source-producer"


def test_sync_topic_on_the_target_has_the_source_alias_in_its_name():
    settings = with_keys({"offset-syncs.topic.location": "target"})
    syncs = settings.syncs

    assert syncs is not None
    assert offset_syncs_topic(settings, on_source=syncs.on_source) == "mm2-offset-syncs.A.internal"
    assert (syncs.producer.alias, syncs.producer.bootstrap_servers) == ("B", "b:9092")
    assert syncs.producer.client_id == "A->B|MirrorSourceConnector-0|offset-syncs-target-producer"


def test_sync_clients_use_the_address_of_the_worker_by_default():
    properties = {key: value for key, value in PROPERTIES.items() if not key.startswith("target.cluster.b")}
    settings = parse_source(properties | {"offset-syncs.topic.location": "target"}, WORKER)

    assert settings.syncs is not None
    for client in (settings.syncs.producer, settings.syncs.admin):
        assert client.bootstrap_servers == "worker:9092"
        assert client.properties["security.protocol"] == "SSL"


@pytest.mark.parametrize(
    ("separator", "topic"), [("_", "mm2-offset-syncs_B_internal"), (".", "mm2-offset-syncs.B.internal")]
)
def test_sync_topic_name_uses_the_separator(separator, topic):
    settings = with_keys({"replication.policy.separator": separator})

    assert topic == offset_syncs_topic(settings, on_source=True)


def test_sync_producer_uses_properties_of_the_connector_and_not_of_the_worker():
    syncs = with_keys(
        {
            "source.cluster.sasl.mechanism": "PLAIN",
            "producer.acks": "all",
            "producer.sasl.mechanism": "SCRAM-SHA-256",
            "source.producer.sasl.mechanism": "SCRAM-SHA-512",
            "source.admin.sasl.mechanism": "OAUTHBEARER",
            "producer.override.acks": "1",
        }
    ).syncs

    assert syncs is not None
    assert syncs.producer.properties["sasl.mechanism"] == "SCRAM-SHA-512"
    assert syncs.producer.properties["acks"] == "all"
    assert syncs.admin.properties["sasl.mechanism"] == "OAUTHBEARER"


def test_any_integer_is_accepted_as_offset_lag():
    syncs = [with_keys({"offset.lag.max": text}).syncs for text in ("0", "-5", "9000000000")]

    assert [sync.lag_max for sync in syncs if sync] == [0, -5, 9_000_000_000]


def test_disabled_offset_syncs_are_not_written():
    assert with_keys({"emit.offset-syncs.enabled": "false"}).syncs is None


@pytest.mark.parametrize("key", ["offset-syncs.topic.location", "offset-syncs-source-producer.acks"])
def test_configuring_disabled_offset_syncs_is_refused(key):
    with pytest.raises(InvalidSettingError, match="false contradicts") as raised:
        with_keys({"emit.offset-syncs.enabled": "false", key: "target"})

    assert raised.value.key == "emit.offset-syncs.enabled"


def test_unknown_location_of_offset_syncs_is_refused():
    with pytest.raises(InvalidSettingError, match="nowhere"):
        with_keys({"offset-syncs.topic.location": "nowhere"})


def test_sync_producer_of_an_mm2_file_uses_properties_of_its_cluster():
    (herder, *_) = load_mm2(
        "clusters=A,B\nA.bootstrap.servers=a:1\nB.bootstrap.servers=b:1\nA->B.enabled=true\n"
        "A.producer.sasl.mechanism=PLAIN\nB.producer.sasl.mechanism=SCRAM-SHA-512\n"
        "A->B.offset-syncs.topic.location=target\noffset.lag.max=7\nB->A.emit.heartbeats.enabled=false\n"
    )
    settings = herder.connectors[0].source

    assert settings is not None
    assert settings.syncs is not None
    assert (settings.syncs.lag_max, settings.syncs.on_source) == (7, False)
    assert settings.syncs.producer.properties["sasl.mechanism"] == "SCRAM-SHA-512"
