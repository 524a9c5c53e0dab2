"""The files of a standalone process (KIP-304) and of a distributed worker are parsed into settings."""

import pytest

from mirrorflow_core.errors import InvalidSettingError, RefusedSettingError, SettingError
from mirrorflow_core.settings import GroupSettings, MetricNames, MetricsLevel, SessionKeySettings
from mirrorflow_replicator.config.worker_properties import load_distributed, load_standalone

WORKER = "bootstrap.servers=b:9092\n"
WORKER_OF_CONNECT = """
bootstrap.servers=b:9092
group.id=connect
config.storage.topic=c
status.storage.topic=s
offset.storage.topic=o
"""
SOURCE = """
name=source
connector.class=org.apache.kafka.connect.mirror.MirrorSourceConnector
source.cluster.alias=A
target.cluster.alias=B
source.cluster.bootstrap.servers=a:9092
"""
CHECKPOINT = SOURCE.replace("name=source", "name=checkpoint").replace("MirrorSource", "MirrorCheckpoint")
HEARTBEAT = SOURCE.replace("name=source", "name=heartbeat").replace("MirrorSource", "MirrorHeartbeat")

# The settings of config/connect-standalone.properties and config/connect-distributed.properties of Kafka 4.3.
STOCK = """
bootstrap.servers=localhost:9092
key.converter=org.apache.kafka.connect.json.JsonConverter
value.converter=org.apache.kafka.connect.json.JsonConverter
key.converter.schemas.enable=true
value.converter.schemas.enable=true
offset.flush.interval.ms=10000
"""
STOCK_STANDALONE = STOCK + "offset.storage.file.filename=/tmp/connect.offsets\n"
STOCK_DISTRIBUTED = (
    STOCK
    + """
group.id=connect-cluster
offset.storage.topic=connect-offsets
offset.storage.replication.factor=1
config.storage.topic=connect-configs
config.storage.replication.factor=1
status.storage.topic=connect-status
status.storage.replication.factor=1
"""
)
BYTES = "org.apache.kafka.connect.converters.ByteArrayConverter"


def test_standalone_process_runs_all_three_connectors():
    """Connector classes may be named with or without the Java package."""
    worker = load_standalone(
        WORKER, [SOURCE.replace("org.apache.kafka.connect.mirror.", ""), CHECKPOINT, HEARTBEAT]
    )

    assert [
        (
            connector.name,
            connector.connector_class,
            connector.source is not None,
            connector.heartbeat is not None,
        )
        for connector in worker.connectors
    ] == [
        ("source", "MirrorSourceConnector", True, False),
        ("checkpoint", "MirrorCheckpointConnector", False, False),
        ("heartbeat", "MirrorHeartbeatConnector", False, True),
    ]
    assert worker.shared == {"bootstrap.servers": "b:9092"}
    assert worker.name == "standalone"
    assert worker.warnings == ()


def test_properties_are_kept_as_written():
    """References stay unresolved, as the REST API shows them."""
    properties = (
        load_standalone(WORKER, [SOURCE + "source.cluster.ssl.key.password=${env:X}\n"])
        .connectors[0]
        .properties
    )

    assert properties["source.cluster.ssl.key.password"] == "${env:X}"
    assert properties["connector.class"] == "org.apache.kafka.connect.mirror.MirrorSourceConnector"


def test_disabled_source_connector_has_no_source_settings():
    assert load_standalone(WORKER, [SOURCE + "enabled=false\n"]).connectors[0].source is None


@pytest.mark.parametrize(
    ("worker", "connector", "listeners"),
    [
        ("", "", ("http://:8083",)),
        ("listeners=http://h:1\n", "", ("http://h:1",)),
        (
            "listeners=http://h:1\nmirrorflow.http.listeners=http://h:2,https://h:3\n",
            "",
            ("http://h:2", "https://h:3"),
        ),
        ("", "mirrorflow.http.listeners=http://h:0\n", ("http://h:0",)),
        ("mirrorflow.http.listeners=\n", "", ()),
    ],
)
def test_http_listeners_are_read_from_either_key(worker: str, connector: str, listeners: tuple[str, ...]):
    """`mirrorflow.http.listeners` takes precedence over Connect's `listeners`."""
    assert listeners == load_standalone(WORKER + worker, [SOURCE + connector]).http.listeners


def test_http_of_a_standalone_process_is_read_only_by_default():
    """A distributed worker accepts changes by default, as in Connect."""
    assert not load_standalone(WORKER, [SOURCE]).http.modify_enabled
    assert load_standalone(WORKER + "rest.modify.enable=true\n", [SOURCE]).http.modify_enabled
    assert load_distributed(WORKER_OF_CONNECT, []).http.modify_enabled
    assert not load_distributed(WORKER_OF_CONNECT + "rest.modify.enable=false\n", []).http.modify_enabled


def test_connector_file_may_allow_changes_over_rest() -> None:
    """The value in the worker's file takes precedence."""
    modifiable = load_standalone(WORKER, [SOURCE + "rest.modify.enable=true\n"])

    assert (modifiable.http.modify_enabled, modifiable.warnings) == (True, ())
    read_only = load_standalone(WORKER + "rest.modify.enable=false\n", [SOURCE + "rest.modify.enable=true\n"])
    assert not read_only.http.modify_enabled


def test_advertised_address_is_read_in_every_mode():
    """A single worker has this address in statuses, as in Java."""
    lines = "rest.advertised.host.name=mirror.example\nrest.advertised.port=81\n"
    workers = [load_standalone(WORKER + lines, [SOURCE]), load_distributed(WORKER_OF_CONNECT + lines, [])]

    assert {("mirror.example", 81)} == {
        (worker.http.advertised_host, worker.http.advertised_port) for worker in workers
    }


def test_https_listener_keys_replace_the_ssl_keys_of_clients():
    """With any `listeners.https.` key, `ssl.` keys without a prefix apply only to clients."""
    ssl_keys = WORKER + "ssl.keystore.location=/a\nssl.key.password=p\n"

    assert load_standalone(ssl_keys, [SOURCE]).http.tls == {
        "ssl.keystore.location": "/a",
        "ssl.key.password": "p",
    }
    assert load_standalone(ssl_keys + "listeners.https.ssl.keystore.location=/b\n", [SOURCE]).http.tls == {
        "ssl.keystore.location": "/b"
    }


def test_metrics_level_and_shutdown_timeout_are_parsed():
    worker = load_standalone(
        WORKER + "metrics.level=flow\ntask.shutdown.graceful.timeout.ms=1500\n", [SOURCE]
    )

    assert (worker.metrics_level, worker.shutdown_s) == (MetricsLevel.FLOW, 1.5)


@pytest.mark.parametrize(
    ("worker", "connector", "forms"),
    [
        ("", "", {MetricNames.LEGACY}),
        ("metric.names.formats=legacy, new\n", "", {MetricNames.LEGACY, MetricNames.NEW}),
        ("", "metric.names.formats=new\n", {MetricNames.NEW}),
        ("metric.names.formats=new\n", "metric.names.formats=legacy\n", {MetricNames.NEW}),
    ],
)
def test_names_of_metrics_are_parsed_from_the_worker_or_a_connector(worker, connector, forms):
    assert load_standalone(WORKER + worker, [SOURCE + connector]).metric_names == forms


@pytest.mark.parametrize("value", ["both", ""])
def test_unknown_names_of_metrics_are_refused(value):
    with pytest.raises(InvalidSettingError, match=r"metric\.names\.formats: .*legacy or new"):
        load_standalone(WORKER + f"metric.names.formats={value}\n", [SOURCE])


@pytest.mark.parametrize(
    ("worker", "connectors", "key"),
    [
        (WORKER, [], "connector.class"),
        (WORKER, [SOURCE, SOURCE], "name"),
        (WORKER, [SOURCE.replace("connector.class", "x")], "connector.class"),
        (WORKER, [SOURCE.replace("name=", "x=")], "name"),
        ("", [SOURCE], "bootstrap.servers"),
        (WORKER + "listeners=h:1", [SOURCE], "listeners"),
        (WORKER + "metrics.level=atom", [SOURCE], "metrics.level"),
    ],
)
def test_invalid_worker_file_is_refused_by_key(worker: str, connectors: list[str], key: str):
    """The error has the key as a field."""
    with pytest.raises(InvalidSettingError) as raised:
        load_standalone(worker, connectors)
    assert key == raised.value.key


@pytest.mark.parametrize(
    ("worker", "connector", "key"),
    [
        ("", "connector.class=com.acme.Connector\n", "connector.class"),
        ("", "transforms=mask\ntransforms.mask.type=x\n", "transforms.mask.type"),
        (
            "",
            "predicates=p\npredicates.p.type=org.apache.kafka.connect.transforms.predicates.HasHeaderKey\n",
            "predicates.p.type",
        ),
        ("", "value.converter=org.apache.kafka.connect.json.JsonConverter\n", "value.converter"),
        ("", "errors.tolerance=all\n", "errors.tolerance"),
        ("", "forwarding.admin.class=com.acme.ForwardingAdmin\n", "forwarding.admin.class"),
        ("", "source.consumer.interceptor.classes=com.acme.I\n", "source.consumer.interceptor.classes"),
        (
            "",
            "source.cluster.ssl.engine.factory.class=com.acme.E\n",
            "source.cluster.ssl.engine.factory.class",
        ),
        ("rest.extension.classes=com.acme.R\n", "", "rest.extension.classes"),
        ("admin.listeners=http://h:1\n", "", "admin.listeners"),
    ],
)
def test_setting_that_needs_a_java_class_is_refused(worker: str, connector: str, key: str):
    """Without the class the process would copy different records than requested."""
    with pytest.raises(RefusedSettingError) as raised:
        load_standalone(WORKER + worker, [SOURCE + connector])
    assert key == raised.value.key


def test_converters_of_kafka_sample_files_have_a_warning():
    """Java would write JSON with them, but MirrorFlow copies bytes. Each connector that inherits them has a warning."""
    (connector,) = load_standalone(STOCK_STANDALONE, [SOURCE]).connectors

    (warning,) = connector.warnings
    assert warning.startswith(
        "ConverterNotUsed: the worker has key.converter=JsonConverter, value.converter=Json"
    )
    assert f"set key.converter and value.converter to {BYTES} in the connector" in warning
    assert connector.warnings == load_distributed(STOCK_DISTRIBUTED, [SOURCE]).connectors[0].warnings


@pytest.mark.parametrize(
    ("worker", "connector"),
    [
        (f"key.converter={BYTES}\nvalue.converter={BYTES}\nheader.converter={BYTES}\n", ""),
        (STOCK, f"key.converter={BYTES}\nvalue.converter={BYTES}\n"),
        ("", ""),
    ],
)
def test_converters_that_keep_bytes_have_no_warning(worker: str, connector: str):
    """The connector's converters take precedence over the worker's."""
    assert () == load_standalone(WORKER + worker, [SOURCE + connector]).connectors[0].warnings


@pytest.mark.parametrize(
    "line",
    [
        "replication.policy.class=org.apache.kafka.connect.mirror.DefaultReplicationPolicy",
        "replication.policy.class=python:acme.policies:Mine",
        "topic.filter.class=org.apache.kafka.connect.mirror.DefaultTopicFilter",
        "group.filter.class=DefaultGroupFilter",
        "forwarding.admin.class=org.apache.kafka.clients.admin.ForwardingAdmin",
        "value.converter=org.apache.kafka.connect.converters.ByteArrayConverter",
        "errors.tolerance=none",
        "transforms=",
    ],
)
def test_built_in_equivalents_of_java_classes_have_no_warning(line: str):
    assert load_standalone(WORKER, [SOURCE + line + "\n"]).warnings == ()


@pytest.mark.parametrize(
    ("old_name", "name", "value"),
    [
        ("topics.blacklist", "topics.exclude", "x"),
        ("topics.whitelist", "topics", "x"),
        ("config.properties.blacklist", "config.properties.exclude", "x"),
        ("refresh.topics", "refresh.topics.enabled", "false"),
        ("emit.heartbeats", "emit.heartbeats.enabled", "false"),
    ],
)
def test_old_name_of_a_setting_is_accepted_with_a_warning(old_name: str, name: str, value: str):
    """The warning contains the current name. A value with the current name takes precedence."""
    worker = load_standalone(WORKER, [SOURCE + f"{old_name}={value}\n"])
    assert value == worker.connectors[0].properties[name]
    assert (f"{old_name}: read as {name}, which is its name.",) == worker.warnings

    both = load_standalone(WORKER, [SOURCE + f"{old_name}={value}\n{name}=true\n"])
    assert both.connectors[0].properties[name] == "true"


def test_keys_without_effect_are_listed_in_one_warning():
    """Connect's sample files contain many of them. Tuning settings of clients cause no warning."""
    worker = load_standalone(
        WORKER + "session.timeout.ms=1\nplugin.path=/x\nproducer.linger.ms=5\n",
        [SOURCE + "errors.retry.timeout=1\n"],
    )

    assert worker.warnings == (
        "Without effect here (docs/settings.md says why): plugin.path, session.timeout.ms.",
        "Without effect here (docs/settings.md says why): errors.retry.timeout.",
    )


def test_comment_after_a_value_has_a_warning_without_the_value():
    """A comment is removed unless the value may contain its text, as a password may."""
    worker = load_standalone(
        WORKER,
        [
            SOURCE
            + "tasks.max=2 # two\ntopics=a # b\nsource.cluster.ssl.key.password=s3cret # x\nsource.consumer.isolation.level=read_committed // y\n"
        ],
    )
    source = worker.connectors[0].source
    assert source is not None

    assert (source.tasks_max, source.topics, source.read_committed) == (2, ("a # b",), True)
    assert source.source_consumer.properties["ssl.key.password"] == "s3cret # x"
    assert len(worker.warnings) == 4
    assert "s3cret" not in str(worker.warnings)


LINES = {
    "bootstrap.servers": "b:9092",
    "group.id": "A-mm2",
    "client.id": "A->B",
    "config.storage.topic": "c",
    "status.storage.topic": "s",
    "offset.storage.topic": "o",
    "dedicated.mode.enable.internal.rest": "true",
}


def group(**overrides: str | None) -> GroupSettings | None:
    """Returns the group of a worker file of `LINES` and *overrides*; None removes a line."""
    lines = LINES | {key.replace("_", "."): value for key, value in overrides.items()}
    text = "\n".join(f"{key}={value}" for key, value in lines.items() if value is not None)
    settings = load_distributed(text, [])
    assert settings.distributed is not None
    return settings.distributed.group


def test_worker_has_no_group_unless_the_internal_rest_api_is_enabled() -> None:
    assert None is group(dedicated_mode_enable_internal_rest=None)
    assert None is group(dedicated_mode_enable_internal_rest="false")
    settings = group()
    assert settings is not None
    assert ("A-mm2", ("sessioned", "compatible"), 10.0, 0.5) == (
        settings.group_id,
        settings.protocols,
        settings.session_s,
        settings.heartbeat_s,
    )
    assert SessionKeySettings() == settings.keys


def test_group_settings_of_connect_take_effect() -> None:
    settings = group(
        session_timeout_ms="6000",
        heartbeat_interval_ms="700",
        connect_protocol="compatible",
        inter_worker_key_generation_algorithm="HmacSHA512",
        inter_worker_key_ttl_ms="0",
    )
    assert settings is not None
    assert (("compatible",), 6.0, 0.7) == (settings.protocols, settings.session_s, settings.heartbeat_s)
    assert ("HmacSHA512", 64, 0) == (settings.keys.algorithm, settings.keys.size_bytes, settings.keys.ttl_ms)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("group_id", ""),
        ("connect_protocol", "eager"),
        ("heartbeat_interval_ms", "10000"),
        ("inter_worker_signature_algorithm", "HmacSHA1"),
        ("inter_worker_key_generation_algorithm", "HmacROT13"),
        ("rebalance_timeout_ms", "60000"),
    ],
)
def test_unsupported_group_setting_is_refused(key: str, value: str) -> None:
    with pytest.raises(SettingError, match=key.replace("_", ".")):
        group(**{key: value})
