"""A source connector accepts the keys of MM2 and MirrorFlow, and refuses unsupported values."""

import pytest

from mirrorflow_core.errors import InvalidSettingError, RefusedSettingError
from mirrorflow_core.settings import LossPolicy, OffsetStore, PolicyKind, SourceSettings, StartPosition
from mirrorflow_replicator.config.plugins import make_config_rules
from mirrorflow_replicator.config.source_properties import for_task, parse_source

WORKER = {"bootstrap.servers": "b:9092", "security.protocol": "SSL", "producer.client.id": "w"}
CONNECTOR = {
    "name": "source",
    "connector.class": "MirrorSourceConnector",
    "source.cluster.alias": "A",
    "target.cluster.alias": "B",
    "source.cluster.bootstrap.servers": "a:9092",
    "target.cluster.bootstrap.servers": "b:9093",
}
NOW_MS = 1_700_000_000_000


def parse(worker: dict[str, str] | None = None, **extra: str) -> SourceSettings:
    properties = CONNECTOR | {key.replace("_", "."): value for key, value in extra.items()}
    return parse_source(properties, WORKER if worker is None else worker, now_ms=NOW_MS)


def test_source_defaults_equal_those_of_mm2_except_for_partitions_of_offsets():
    """The values are those of MirrorSourceConfig of Kafka 4.3, but positions are stored more often."""
    settings = parse()

    assert settings.topics == (".*",)
    assert settings.topics_exclude == ("mm2.*\\.internal", ".*\\.replica", "__.*")
    assert (
        settings.replication_factor,
        settings.tasks_max,
        settings.refresh_topics_s,
        settings.sync_configs_s,
        settings.flush_interval_s,
    ) == (2, 1, 600.0, 600.0, 5.0)
    assert (settings.policy.kind, settings.policy.separator, settings.flow) == (
        PolicyKind.DEFAULT,
        ".",
        "A->B",
    )
    assert (settings.start, settings.on_source_loss) == (StartPosition.EARLIEST, LossPolicy.FAIL)
    assert not settings.read_committed
    assert (
        settings.offsets.topic,
        settings.offsets.partitions,
        settings.offsets.replication_factor,
        settings.offsets.store,
    ) == ("mm2-offsets.A.internal", 1, -1, OffsetStore.KAFKA)


def test_topic_settings_excluded_by_any_mm2_version_are_excluded():
    """The list combines both defaults of `config.properties.exclude` that MM2 has had."""
    assert {
        "follower\\.replication\\.throttled\\.replicas",
        "leader\\.replication\\.throttled\\.replicas",
        "message\\.timestamp\\.difference\\.max\\.ms",
        "log\\.message\\.timestamp\\.before\\.max\\.ms",
        "log\\.message\\.timestamp\\.after\\.max\\.ms",
        "message\\.timestamp\\.type",
        "unclean\\.leader\\.election\\.enable",
        "min\\.insync\\.replicas",
    } == set(parse().config_exclude)


def test_prefixes_of_client_properties_have_the_precedence_of_mm2():
    """As in MirrorConnectorConfigTest: source.cluster (shared keys only) < consumer < source.consumer."""
    settings = parse(
        source_cluster_ssl_key_password="1",
        source_cluster_max_poll_records="dropped",
        consumer_max_poll_records="2",
        consumer_ssl_key_password="3",
        source_consumer_ssl_key_password="4",
        admin_ssl_key_password="5",
        source_admin_client_id="me",
    )

    assert settings.source_consumer.properties["ssl.key.password"] == "4"
    assert settings.source_consumer.properties["max.poll.records"] == "2"
    assert settings.source_admin.properties["ssl.key.password"] == "5"
    assert "max.poll.records" not in settings.source_admin.properties
    assert settings.source_admin.client_id == "me|A->B|source|replication-source-admin"
    assert settings.target_admin.bootstrap_servers == "b:9093"


def test_data_producer_uses_the_connection_of_the_worker():
    """`producer.override.` takes precedence over `target.producer.`, and that over the worker's `producer.`."""
    worker = WORKER | {"producer.a": "1", "producer.b": "1", "producer.c": "1"}

    producer = parse(
        worker, target_producer_b="2", target_producer_c="2", producer_override_c="3"
    ).target_producer

    assert tuple(producer.properties[key] for key in "abc") == ("1", "2", "3")
    assert (producer.bootstrap_servers, producer.properties["security.protocol"]) == ("b:9092", "SSL")


def test_target_address_may_be_in_either_file():
    """The worker's file or the connector's file may omit it."""
    assert parse({}).target_producer.bootstrap_servers == "b:9093"
    assert parse({}).offsets.client.bootstrap_servers == "b:9093"
    without_target = {
        key: value for key, value in CONNECTOR.items() if key != "target.cluster.bootstrap.servers"
    }
    settings = parse_source(without_target, WORKER)
    assert (
        settings.target_admin.bootstrap_servers,
        settings.target_admin.properties["security.protocol"],
    ) == ("b:9092", "SSL")


def test_client_ids_contain_the_task_number():
    """The ids are those of Java. Settings without a task number have the ids of task 0."""
    worker = {key: value for key, value in WORKER.items() if key != "producer.client.id"}
    settings = parse(worker, consumer_client_id="me")
    of_task_3 = for_task(settings, 3)

    assert settings.source_consumer.client_id == "me|A->B|source-0|replication-consumer"
    assert settings.target_producer.client_id == "connector-producer-source-0"
    assert of_task_3.source_consumer.client_id == "me|A->B|source-3|replication-consumer"
    assert of_task_3.target_producer.client_id == "connector-producer-source-3"


def test_client_id_of_the_user_replaces_that_of_the_data_producer():
    """As in Connect, both `producer.client.id` of the worker and `producer.override.client.id` replace it."""
    with_worker_id = for_task(parse(WORKER | {"producer.client.id": "w"}), 3)
    with_connector_id = for_task(
        parse(WORKER | {"producer.client.id": "w"}, producer_override_client_id="o"), 3
    )
    with_target_producer_id = for_task(parse({}, target_producer_client_id="s"), 3)

    assert with_worker_id.target_producer.client_id == "w"
    assert with_connector_id.target_producer.client_id == "o"
    assert with_target_producer_id.target_producer.client_id == "connector-producer-source-3"


@pytest.mark.parametrize(
    ("extra", "start", "timestamp_ms"),
    [
        ({"source_consumer_auto_offset_reset": "latest"}, StartPosition.LATEST, 0),
        ({"consumer_auto_offset_reset": "latest"}, StartPosition.LATEST, 0),
        ({"source_consumer_auto_offset_reset": "EARLIEST"}, StartPosition.EARLIEST, 0),
        (
            {"source_consumer_auto_offset_reset": "by_duration:PT1H"},
            StartPosition.TIMESTAMP,
            NOW_MS - 3_600_000,
        ),
        ({"mirrorflow_start_from": "timestamp:2023-11-14T22:13:20Z"}, StartPosition.TIMESTAMP, NOW_MS),
        ({"mirrorflow_start_from": "timestamp:17"}, StartPosition.TIMESTAMP, 17),
        (
            {"mirrorflow_start_from": "latest", "source_consumer_auto_offset_reset": "earliest"},
            StartPosition.LATEST,
            0,
        ),
    ],
)
def test_start_position_is_read_from_either_key(
    extra: dict[str, str], start: StartPosition, timestamp_ms: int
):
    """`mirrorflow.start.from` takes precedence over MM2's `auto.offset.reset`."""
    settings = parse(None, **extra)

    assert (start, timestamp_ms) == (settings.start, settings.start_timestamp_ms)


def test_every_key_of_a_source_connector_takes_effect():
    settings = parse(
        WORKER | {"offset.flush.interval.ms": "250"},
        topics="a, b.*",
        topics_exclude="",
        replication_factor="-1",
        tasks_max="3",
        refresh_topics_interval_seconds="30",
        sync_topic_configs_enabled="False",
        heartbeats_replication_enabled="false",
        replication_policy_class="org.apache.kafka.connect.mirror.IdentityReplicationPolicy",
        replication_policy_separator="_",
        replication_policy_internal_topic_separator_enabled="false",
        use_defaults_from="source",
        topic_filter_class="python:acme.filters:Mine",
        config_property_filter_class="DefaultConfigPropertyFilter",
        mirrorflow_flow="f",
        mirrorflow_source_loss_policy="alert",
        mirrorflow_bytes_per_second="50Mi",
    )

    assert settings.topics == ("a", "b.*")
    assert settings.topics_exclude == ()
    assert (
        settings.replication_factor,
        settings.tasks_max,
        settings.refresh_topics_s,
        settings.sync_configs_s,
        settings.flush_interval_s,
    ) == (-1, 3, 30.0, None, 0.25)
    assert (
        settings.policy.kind,
        settings.policy.separator,
        settings.policy.internal_separator_enabled,
        settings.policy.source_alias,
    ) == (PolicyKind.IDENTITY, "_", False, "A")
    assert (settings.heartbeats_replication, settings.use_defaults_from_source) == (False, True)
    assert (settings.topic_filter, settings.config_filter) == ("python:acme.filters:Mine", None)
    assert (settings.flow, settings.on_source_loss, settings.bytes_per_second) == (
        "f",
        LossPolicy.ALERT,
        52_428_800,
    )


def test_topics_that_wait_for_schemas_need_both_registries():
    registries = {
        f"{side}.cluster.schema.registry.url": f"https://registry-{side}" for side in ("source", "target")
    }
    waiting = {
        "mirrorflow.schemas.wait.topics": "orders.*, payments",
        "mirrorflow.schemas.wait.max.ms": "1500",
    }

    schema_wait = parse_source(CONNECTOR | registries | waiting, WORKER).schema_wait

    assert schema_wait is not None
    assert (schema_wait.topics, schema_wait.longest_s) == (("orders.*", "payments"), 1.5)
    assert schema_wait.schemas.target.properties == {"schema.registry.url": "https://registry-target"}
    assert parse_source(CONNECTOR | registries, WORKER).schema_wait is None
    with pytest.raises(InvalidSettingError, match=r"schema\.registry\.url"):
        parse_source(CONNECTOR | waiting, WORKER)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tasks.max", "0"),
        ("tasks.max", "many"),
        ("replication.factor", "0"),
        ("refresh.topics.interval.seconds", "0"),
        ("refresh.topics.enabled", "yes"),
        ("topics", "("),
        ("topics.exclude", "[a"),
        ("config.properties.exclude", "*"),
        ("use.defaults.from", "nowhere"),
        ("replication.policy.separator", "/"),
        ("replication.policy.class", "python:nonsense"),
        ("mirrorflow.start.from", "timestamp:yesterday"),
        ("mirrorflow.start.from", "somewhere"),
        ("source.consumer.auto.offset.reset", "none"),
        ("source.consumer.auto.offset.reset", "by_duration:1h"),
        ("mirrorflow.source.loss.policy", "ignore"),
        ("mirrorflow.bytes.per.second", "fast"),
        ("mirrorflow.bytes.per.second", "0"),
        ("mirrorflow.schemas.wait.topics", "("),
        ("exactly.once.support", "required"),
        ("exactly.once.support", "never"),
        ("transaction.boundary", "record"),
        ("transaction.boundary.interval.ms", "0"),
        ("target.cluster.alias", "A"),
        ("source.cluster.alias", ""),
        ("name", ""),
    ],
)
def test_invalid_source_value_is_refused_with_its_key_and_an_instruction(key: str, value: str):
    """The error has the key as a field, and its message ends with an instruction."""
    with pytest.raises(InvalidSettingError, match=r"; .+\.$") as raised:
        parse_source(CONNECTOR | {key: value}, WORKER)
    assert key == raised.value.key


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("replication.policy.class", "com.acme.Policy"),
        ("topic.filter.class", "com.acme.DefaultTopicFilter"),
        ("config.property.filter.class", "com.acme.Filter"),
    ],
)
def test_java_class_of_the_user_is_refused(key: str, value: str):
    """A different policy or filter would copy different topics."""
    with pytest.raises(RefusedSettingError) as raised:
        parse_source(CONNECTOR | {key: value}, WORKER)
    assert key == raised.value.key


@pytest.mark.parametrize("prefix", ["offset.storage.", "offset.storage.kafka."])
def test_offset_storage_accepts_both_prefixes(prefix: str):
    """The prefixes are those of Connect and KIP-304. Remaining keys are settings of the topic or the client."""
    offsets = parse(
        WORKER
        | {
            f"{prefix}topic": "positions",
            f"{prefix}partitions": "5",
            f"{prefix}replication.factor": "3",
            f"{prefix}min.insync.replicas": "2",
            f"{prefix}cleanup.policy": "delete",
            f"{prefix}bootstrap.servers": "o:9092",
        }
    ).offsets

    assert (
        offsets.topic,
        offsets.partitions,
        offsets.replication_factor,
        offsets.client.bootstrap_servers,
    ) == ("positions", 5, 3, "o:9092")
    assert offsets.topic_configs == {"min.insync.replicas": "2"}


def test_positions_may_be_stored_in_a_named_file():
    worker = WORKER | {"offset.storage.store": "file"}
    with pytest.raises(InvalidSettingError, match=r"^offset\.storage\.file\.filename"):
        parse(worker)

    offsets = parse(worker | {"offset.storage.file.filename": "/tmp/positions"}).offsets

    assert (offsets.store, offsets.file) == (OffsetStore.FILE, "/tmp/positions")


def test_acls_are_synchronised_every_ten_minutes_unless_disabled():
    """Keys and defaults are those of MM2, except for the keys that only report differences."""
    settings = parse()
    assert (settings.sync_acls_s, settings.acls_report_only, settings.configs_report_only) == (
        600.0,
        False,
        False,
    )

    assert parse(sync_topic_acls_enabled="false").sync_acls_s is None
    assert parse(sync_topic_acls_interval_seconds="7").sync_acls_s == 7.0
    reporting = parse(
        mirrorflow_sync_topic_acls_report_only="true", mirrorflow_sync_topic_configs_report_only="true"
    )
    assert (reporting.acls_report_only, reporting.configs_report_only) == (True, True)


def test_excluded_settings_of_single_topics_are_not_synchronised():
    """A colon separates two expressions, except in `(?:`."""
    settings = parse(
        mirrorflow_config_properties_exclude_by_topic=r"orders\.(?:eu|us)? : retention\..*, a(b)?:(?:b|c)"
    )
    assert settings.config_exceptions == ((r"orders\.(?:eu|us)?", r"retention\..*"), ("a(b)?", "(?:b|c)"))

    rules = make_config_rules(settings)
    names = ("retention.ms", "cleanup.policy", "b")
    assert [rules.of("orders.eu").selects(name) for name in names] == [False, True, True]
    assert [rules.of("a").selects(name) for name in names] == [True, True, False]
    assert [rules.of("orders").selects(name) for name in names] == [True, True, True]


@pytest.mark.parametrize("written", ["retention.ms", "a:b:c", "orders:", "or(ders:x"])
def test_topic_exception_that_is_not_a_pair_is_refused_by_key(written: str):
    with pytest.raises(InvalidSettingError) as raised:
        parse(mirrorflow_config_properties_exclude_by_topic=written)

    assert raised.value.key == "mirrorflow.config.properties.exclude.by.topic"
