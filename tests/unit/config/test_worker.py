"""The files of a standalone process (KIP-304)."""

import pytest

from mirrorflow_core.errors import InvalidSettingError, RefusedSettingError, SettingError
from mirrorflow_core.settings import GroupSettings, MetricsLevel, SessionKeySettings
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


def test_three_connectors_of_one_process():
    """With or without Java's package; each has the settings of its own class."""
    worker = load_standalone(
        WORKER, [SOURCE.replace("org.apache.kafka.connect.mirror.", ""), CHECKPOINT, HEARTBEAT]
    )

    assert [
        (each.name, each.connector_class, each.source is not None, each.heartbeat is not None)
        for each in worker.connectors
    ] == [
        ("source", "MirrorSourceConnector", True, False),
        ("checkpoint", "MirrorCheckpointConnector", False, False),
        ("heartbeat", "MirrorHeartbeatConnector", False, True),
    ]
    assert worker.shared == {"bootstrap.servers": "b:9092"}
    assert worker.name == "standalone"
    assert worker.warnings == ()


def test_properties_are_kept_as_rest_shows_them():
    """As written, references unresolved."""
    properties = (
        load_standalone(WORKER, [SOURCE + "source.cluster.ssl.key.password=${env:X}\n"])
        .connectors[0]
        .properties
    )

    assert properties["source.cluster.ssl.key.password"] == "${env:X}"
    assert properties["connector.class"] == "org.apache.kafka.connect.mirror.MirrorSourceConnector"


def test_disabled_source_connector_copies_nothing():
    """`enabled=false` as in MM2."""
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
def test_http_listeners(worker: str, connector: str, listeners: tuple[str, ...]):
    """Connect's default and key, and our own, which wins."""
    assert listeners == load_standalone(WORKER + worker, [SOURCE + connector]).http.listeners


def test_http_is_read_only_unless_told_otherwise():
    """KIP-304. A worker that replaces one of Connect takes changes as that did."""
    assert not load_standalone(WORKER, [SOURCE]).http.modify_enabled
    assert load_standalone(WORKER + "rest.modify.enable=true\n", [SOURCE]).http.modify_enabled
    assert load_distributed(WORKER_OF_CONNECT, []).http.modify_enabled
    assert not load_distributed(WORKER_OF_CONNECT + "rest.modify.enable=false\n", []).http.modify_enabled


def test_a_connectors_file_may_open_rest_for_its_process() -> None:
    """The operator puts the key into the files of both; the worker's value wins."""
    opened = load_standalone(WORKER, [SOURCE + "rest.modify.enable=true\n"])

    assert (opened.http.modify_enabled, opened.warnings) == (True, ())
    closed = load_standalone(WORKER + "rest.modify.enable=false\n", [SOURCE + "rest.modify.enable=true\n"])
    assert not closed.http.modify_enabled


def test_the_advertised_address_is_that_of_any_worker():
    """A lone one is called by it in statuses, as Java's is."""
    lines = "rest.advertised.host.name=mirror.example\nrest.advertised.port=81\n"
    found = [load_standalone(WORKER + lines, [SOURCE]), load_distributed(WORKER_OF_CONNECT + lines, [])]

    assert {("mirror.example", 81)} == {(one.http.advertised_host, one.http.advertised_port) for one in found}


def test_tls_of_http_is_all_or_nothing():
    """Where any `listeners.https.` key is given, plain `ssl.` keys are the clients' alone."""
    plain = WORKER + "ssl.keystore.location=/a\nssl.key.password=p\n"

    assert load_standalone(plain, [SOURCE]).http.tls == {
        "ssl.keystore.location": "/a",
        "ssl.key.password": "p",
    }
    assert load_standalone(plain + "listeners.https.ssl.keystore.location=/b\n", [SOURCE]).http.tls == {
        "ssl.keystore.location": "/b"
    }


def test_worker_values_are_typed():
    """Metrics level and grace at stop."""
    worker = load_standalone(
        WORKER + "metrics.level=flow\ntask.shutdown.graceful.timeout.ms=1500\n", [SOURCE]
    )

    assert (worker.metrics_level, worker.shutdown_s) == (MetricsLevel.FLOW, 1.5)


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
def test_wrong_files_are_refused_by_key(worker: str, connectors: list[str], key: str):
    """The key to correct is a field of the error."""
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
def test_what_needs_java_is_refused(worker: str, connector: str, key: str):
    """Going on without it would copy something else than requested."""
    with pytest.raises(RefusedSettingError) as raised:
        load_standalone(WORKER + worker, [SOURCE + connector])
    assert key == raised.value.key


def test_stock_files_of_kafka_start_and_their_converters_are_warned_of():
    """Java would write JSON with them; here bytes are copied, and each connector that inherits them says so."""
    (found,) = load_standalone(STOCK_STANDALONE, [SOURCE]).connectors

    (warning,) = found.warnings
    assert warning.startswith(
        "ConverterNotUsed: the worker has key.converter=JsonConverter, value.converter=Json"
    )
    assert f"set key.converter and value.converter to {BYTES} in the connector" in warning
    assert found.warnings == load_distributed(STOCK_DISTRIBUTED, [SOURCE]).connectors[0].warnings


@pytest.mark.parametrize(
    ("worker", "connector"),
    [
        (f"key.converter={BYTES}\nvalue.converter={BYTES}\nheader.converter={BYTES}\n", ""),
        (STOCK, f"key.converter={BYTES}\nvalue.converter={BYTES}\n"),
        ("", ""),
    ],
)
def test_converters_that_keep_bytes_are_not_warned_of(worker: str, connector: str):
    """Those of the connector win over those of the worker."""
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
def test_built_in_equivalents_are_taken_without_a_word(line: str):
    """What Java's default classes do is built in."""
    assert load_standalone(WORKER, [SOURCE + line + "\n"]).warnings == ()


@pytest.mark.parametrize(
    ("slip", "proper", "value"),
    [
        ("topics.blacklist", "topics.exclude", "x"),
        ("topics.whitelist", "topics", "x"),
        ("config.properties.blacklist", "config.properties.exclude", "x"),
        ("refresh.topics", "refresh.topics.enabled", "false"),
        ("emit.heartbeats", "emit.heartbeats.enabled", "false"),
    ],
)
def test_old_names_and_slips_are_understood(slip: str, proper: str, value: str):
    """With a warning that names the right spelling; the right spelling wins."""
    worker = load_standalone(WORKER, [SOURCE + f"{slip}={value}\n"])
    assert value == worker.connectors[0].properties[proper]
    assert (f"{slip}: read as {proper}, which is its name.",) == worker.warnings

    both = load_standalone(WORKER, [SOURCE + f"{slip}={value}\n{proper}=true\n"])
    assert both.connectors[0].properties[proper] == "true"


def test_ignored_keys_are_listed_in_one_sentence():
    """Connect's sample files hold many of them; tuning of clients is not worth a word."""
    worker = load_standalone(
        WORKER + "session.timeout.ms=1\nplugin.path=/x\nproducer.linger.ms=5\n",
        [SOURCE + "errors.retry.timeout=1\n"],
    )

    assert worker.warnings == (
        "Without effect here (docs/settings.md says why): plugin.path, session.timeout.ms.",
        "Without effect here (docs/settings.md says why): errors.retry.timeout.",
    )


def test_comments_behind_values_are_named_without_the_value():
    """Cut off where they can only be comments; kept, as in Java, where a password may hold them."""
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


def group(**changed: str | None) -> GroupSettings | None:
    """Of `LINES` with *changed*; None leaves a line out."""
    lines = LINES | {key.replace("_", "."): value for key, value in changed.items()}
    text = "\n".join(f"{key}={value}" for key, value in lines.items() if value is not None)
    settings = load_distributed(text, [])
    assert settings.distributed is not None
    return settings.distributed.group


def test_a_worker_is_alone_unless_it_says_otherwise() -> None:
    assert None is group(dedicated_mode_enable_internal_rest=None)
    assert None is group(dedicated_mode_enable_internal_rest="false")
    found = group()
    assert found is not None
    assert ("A-mm2", ("sessioned", "compatible"), 10.0, 0.5) == (
        found.group_id,
        found.protocols,
        found.session_s,
        found.heartbeat_s,
    )
    assert SessionKeySettings() == found.keys


def test_connects_keys_are_heeded() -> None:
    found = group(
        session_timeout_ms="6000",
        heartbeat_interval_ms="700",
        connect_protocol="compatible",
        inter_worker_key_generation_algorithm="HmacSHA512",
        inter_worker_key_ttl_ms="0",
    )
    assert found is not None
    assert (("compatible",), 6.0, 0.7) == (found.protocols, found.session_s, found.heartbeat_s)
    assert ("HmacSHA512", 64, 0) == (found.keys.algorithm, found.keys.size_bytes, found.keys.ttl_ms)


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
def test_what_would_not_work_is_refused(key: str, value: str) -> None:
    with pytest.raises(SettingError, match=key.replace("_", ".")):
        group(**{key: value})
