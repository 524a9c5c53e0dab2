"""mm2.properties is read as by MirrorMakerConfig, for every block of MM2's README."""

import pytest

from mirrorflow_core import setting_table
from mirrorflow_core.errors import InvalidSettingError, RefusedSettingError, UnresolvedReferenceError
from mirrorflow_core.replication_policy import make_policy
from mirrorflow_core.settings import SourceSettings, StartPosition, WorkerSettings
from mirrorflow_replicator.config.dedicated_mode import (
    EnabledFlow,
    cluster_properties,
    connector_properties,
    flow_warnings,
    load_mm2,
    worker_properties,
)
from tests.unit.cli.mm2_blocks import BLOCKS

ONE_WAY = """
clusters = A, B
A.bootstrap.servers = a:9092
B.bootstrap.servers = b:9092
A->B.enabled = true
"""
SIX_CLUSTERS = BLOCKS["six clusters"]
NO_HEARTBEATS = "emit.heartbeats.enabled = false\n"


def herder(text: str, name: str = "A->B") -> WorkerSettings:
    return next(worker for worker in load_mm2(text) if worker.name == name)


def source(text: str, name: str = "A->B") -> SourceSettings:
    settings = herder(text, name).connectors[0].source
    assert settings is not None
    return settings


def enabled(workers: tuple[WorkerSettings, ...]) -> list[str]:
    return [worker.name for worker in workers if worker.connectors[0].source is not None]


def test_disabled_opposite_flow_has_a_herder_for_heartbeats():
    """MM2 also runs B->A, with its source connector disabled."""
    workers = load_mm2(ONE_WAY)

    assert [worker.name for worker in workers] == ["A->B", "B->A"]
    assert enabled(workers) == ["A->B"]


def test_each_herder_writes_heartbeats_to_its_own_target():
    """B->A writes heartbeats to A, which A->B copies to B."""
    heartbeats = {worker.name: worker.connectors[1].heartbeat for worker in load_mm2(ONE_WAY)}

    assert {
        "A->B": ("A", "B", "b:9092"),
        "B->A": ("B", "A", "a:9092"),
    } == {
        name: (
            settings.beats[0].source_alias,
            settings.beats[0].target_alias,
            settings.beats[0].producer.bootstrap_servers.split(",")[0],
        )
        for name, settings in heartbeats.items()
        if settings is not None
    }


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ("", ["A->B", "B->A"]),
        (NO_HEARTBEATS, ["A->B"]),
        ("B->A.emit.heartbeats.enabled = false\n", ["A->B"]),
        (NO_HEARTBEATS + "B->A.emit.heartbeats.enabled = true\n", ["A->B", "B->A"]),
        (NO_HEARTBEATS + "B->A.enabled = true\n", ["A->B", "B->A"]),
    ],
)
def test_herders_exist_for_flows_and_heartbeats(extra: str, expected: list[str]):
    """The rule is that of MirrorMakerConfig.clusterPairs."""
    assert expected == [worker.name for worker in load_mm2(ONE_WAY + extra)]


def test_connectors_have_the_order_and_names_of_mm2():
    """The keys of stored positions contain these names."""
    assert [connector.name for connector in herder(ONE_WAY).connectors] == [
        "MirrorSourceConnector",
        "MirrorHeartbeatConnector",
        "MirrorCheckpointConnector",
    ]


def test_readme_six_clusters_have_twelve_flows():
    """Each of the thirty pairs of clusters has a herder, because of the heartbeats."""
    workers = load_mm2(SIX_CLUSTERS)

    assert len(workers) == 30
    assert len(enabled(workers)) == 12


def test_readme_clusters_option_keeps_flows_to_the_listed_clusters():
    """The option is `--clusters west-1 west-2`."""
    assert enabled(load_mm2(SIX_CLUSTERS, ["west-1", "west-2"])) == [
        "west-1->west-2",
        "west-2->west-1",
        "east-1->west-1",
        "north-1->west-1",
    ]


def test_unknown_cluster_of_the_option_is_refused_by_name():
    """A misspelt alias would otherwise start no flow without an error."""
    with pytest.raises(InvalidSettingError, match="'west-3'"):
        load_mm2(SIX_CLUSTERS, ["west-3"])


def test_readme_quick_start_is_accepted_with_warnings_about_its_mistakes():
    """Its mistakes are a comment after a value, and `emit.heartbeats` without `.enabled`."""
    workers = load_mm2(
        """
        # mm2.properties
        clusters = us-west, us-east
        us-west.bootstrap.servers = host1:9092
        us-east.bootstrap.servers = host2:9092
        topics = .*
        groups = group1, group2
        emit.checkpoints.interval.seconds = 10
        # configure a specific cluster
        us-west.offset.storage.topic = mm2-offsets
        # configure a specific source->target replication flow
        us-west->us-east.emit.heartbeats = false
        us-west->us-east.enabled = true     # disabled by default
        """
    )

    assert enabled(workers) == ["us-west->us-east"]
    assert workers[0].connectors[1].properties["emit.heartbeats.enabled"] == "false"
    assert any(text.startswith("us-west->us-east.enabled: the comment") for text in workers[0].warnings)
    assert any(text.startswith("us-west->us-east.emit.heartbeats: read as") for text in workers[0].warnings)


def test_readme_active_active_flows_have_their_own_topics():
    """A setting with the prefix of a flow takes precedence over one without a prefix."""
    text = (
        ONE_WAY
        + "B->A.enabled = true\nA->B.topics = topic-1, topic-2\nA->B.groups = group-1\ntopics = other\n"
    )

    assert source(text).topics == ("topic-1", "topic-2")
    assert source(text, "B->A").topics == ("other",)


def test_readme_connect_settings_without_a_prefix_apply_to_every_flow():
    """The most important such setting is `tasks.max`."""
    text = (
        ONE_WAY
        + "B->A.enabled = true\nB->A.tasks.max = 3\n"
        + "tasks.max = 2\n"
        + "offset.storage.replication.factor = 1\n"
        + "offset.storage.partitions = 5\n"
        + "task.shutdown.graceful.timeout.ms = 9000\n"
        + "security.protocol = SSL\n"
        + "key.converter = org.apache.kafka.connect.converters.ByteArrayConverter\n"
    )
    forward, backward = source(text), source(text, "B->A")

    assert (2, 3) == (forward.tasks_max, backward.tasks_max)
    assert {"2"} == {connector.properties["tasks.max"] for connector in herder(text).connectors}
    assert (1, 5) == (forward.offsets.replication_factor, forward.offsets.partitions)
    assert 9.0 == herder(text, "B->A").shutdown_s
    for client in (
        forward.source_consumer,
        forward.target_producer,
        forward.offsets.client,
        backward.source_admin,
    ):
        assert "SSL" == client.properties["security.protocol"]
    assert () == herder(text).warnings


@pytest.mark.parametrize(
    "key",
    [
        "errors.deadletterqueue.topic.name",  # a key of sink connectors, which the README also names
        "topic.creation.default.replication.factor",
        "offsets.storage.topic",
    ],
)
def test_readme_connect_settings_that_mm2_drops_have_a_warning(key: str):
    """A key that is refused for a flow has no effect at the top level in MM2 either."""
    assert (
        f"{key}: it has no effect at the top level, as in MM2." in herder(ONE_WAY + f"{key} = x\n").warnings
    )
    with pytest.raises(RefusedSettingError, match=key):
        load_mm2(ONE_WAY + f"A->B.{key} = x\n")


def test_processes_with_different_topics_belong_to_one_flow():
    """The README warns of this configuration: two processes of one flow with different topics."""
    processes = [herder(ONE_WAY + f"A->B.topics = {topics}\n") for topics in ("foo", "bar")]
    flows = [process.connectors[0].source for process in processes]

    assert [("foo",), ("bar",)] == [flow.topics for flow in flows if flow is not None]
    assert 1 == len(
        {(flow.flow, flow.source_alias, flow.offsets.topic) for flow in flows if flow is not None}
    )
    assert [(), ()] == [process.warnings for process in processes]


def test_readme_connector_overrides_are_accepted_with_old_names_and_comments():
    """The block contains `topics.blacklist`, `sync.group.offsets`, and `//` comments after values."""
    text = """
    clusters = primary, backup
    primary.bootstrap.servers = p:9092
    backup.bootstrap.servers = b:9092
    primary->backup.enabled = true
    backup.ssl.truststore.location = /usr/lib/cacerts // SSL cert location
    backup.security.protocol = SSL // if target cluster needs SSL to send message
    backup->primary.enabled = false // set to false if one-way replication is desired
    primary->backup.topics.blacklist = topics_to_blacklist
    primary->backup.emit.heartbeats.enabled = false
    primary->backup.sync.group.offsets = true
    """
    settings = source(text, "primary->backup")

    assert enabled(load_mm2(text)) == ["primary->backup"]
    assert settings.topics_exclude == ("topics_to_blacklist",)
    for client in (settings.target_producer, settings.target_admin, settings.offsets.client):
        assert client.properties["security.protocol"] == "SSL"
        assert client.properties["ssl.truststore.location"] == "/usr/lib/cacerts"
    assert "security.protocol" not in settings.source_consumer.properties


def test_readme_client_overrides_reach_their_clients():
    """The block sets properties of a target producer, a source consumer and a source admin client."""
    text = """
    clusters = primary, backup
    primary.bootstrap.servers = p:9092
    backup.bootstrap.servers = b:9092
    primary->backup.enabled = true
    backup.producer.compression.type = gzip
    backup.producer.buffer.memory = 32768
    primary.consumer.isolation.level = read_committed
    primary.admin.bootstrap.servers = localhost:9092
    """
    settings = source(text, "primary->backup")

    assert settings.target_producer.properties["compression.type"] == "gzip"
    assert settings.read_committed
    assert settings.source_consumer.bootstrap_servers == "p:9092"
    assert settings.source_admin.bootstrap_servers == "localhost:9092"


def test_readme_exactly_once_settings_are_accepted():
    """`listeners` has the address at which processes with the same file call each other."""
    worker = herder(
        ONE_WAY
        + "B.exactly.once.source.support = enabled\nA.consumer.isolation.level = read_committed\n"
        + "dedicated.mode.enable.internal.rest = true\nlisteners = http://localhost:8080\n"
    )

    assert worker.http.listeners == ()
    assert worker.http.internal == ("http://localhost:8080",)
    assert worker.connectors[0].source is not None
    assert worker.connectors[0].source.read_committed


def test_processes_with_one_file_form_a_group_for_each_flow():
    """The group and its topics are those of MM2 (KIP-710), and the leader stores the three connectors."""
    worker = herder(
        ONE_WAY + "dedicated.mode.enable.internal.rest = true\nB.session.timeout.ms = 7000\n"
        "rest.advertised.host.name = me\nrest.advertised.port = 81\nemit.offset-syncs.enabled = false\n"
    )

    assert worker.distributed is not None
    group, topics = worker.distributed.group, worker.distributed.topics
    assert group is not None
    assert ("A-mm2", ("A", "B"), 7.0, "me", 81) == (
        group.group_id,
        group.flow,
        group.session_s,
        worker.http.advertised_host,
        worker.http.advertised_port,
    )
    assert ("mm2-configs.A.internal", "mm2-status.A.internal") == (
        topics.configs.topic,
        topics.statuses.topic,
    )
    assert worker.http.internal == ("http://:8083",)
    assert not any("session.timeout.ms" in warning for warning in worker.warnings)
    assert [f"Mirror{word}Connector" for word in ("Source", "Heartbeat", "Checkpoint")] == [
        seed["name"] for seed in worker.distributed.seeds
    ]
    assert "false" == worker.distributed.seeds[2]["enabled"]  # checkpoints need offset syncs


def test_secret_in_plain_text_has_a_warning_with_its_key():
    """Otherwise the config topic would store the secret. A reference is stored unresolved."""
    reference = "A.ssl.key.password = ${env:WORD}\n"
    assert not any("in plain text" in text for text in herder(ONE_WAY + reference).warnings)

    (warning,) = (
        text
        for text in herder(ONE_WAY + reference + "B.ssl.keystore.password = hunter2\n").warnings
        if "in plain text" in text
    )

    assert warning.startswith("B.ssl.keystore.password: in plain text")
    assert "hunter2" not in warning


def test_client_certificates_are_required_of_the_clients_of_every_listener_for_users():
    """With the internal REST API, `ssl.client.auth` stays that of its listeners, which only other nodes call."""
    own = ONE_WAY + "mirrorflow.http.listeners = https://:8443\nmirrorflow.http.client.auth = required\n"
    alone = load_mm2(own)[0].http
    shared = load_mm2(own + "dedicated.mode.enable.internal.rest = true\n")[0].http

    assert ("required", None) == (alone.tls["ssl.client.auth"], alone.others_client_auth)
    assert (None, "required") == (shared.tls.get("ssl.client.auth"), shared.others_client_auth)


def test_process_joins_the_group_of_its_flow_without_the_internal_rest_api():
    """MM2 also uses a group and topics for a single process. The process then has no listener."""
    worker = herder(ONE_WAY + "listeners = http://localhost:8080\n")

    assert worker.distributed is not None
    assert worker.distributed.group is not None
    assert ("A-mm2", "mm2-configs.A.internal", "mm2-status.A.internal") == (
        worker.distributed.group.group_id,
        worker.distributed.topics.configs.topic,
        worker.distributed.topics.statuses.topic,
    )
    assert ((), ()) == (worker.http.internal, worker.http.listeners)


def test_security_settings_of_a_cluster_apply_to_all_its_clients():
    """The cases are those of MirrorMakerConfigTest.testClusterConfigProperties and testClientConfigProperties."""
    raw = {
        "clusters": "a, b",
        "a.bootstrap.servers": "servers-one",
        "b.bootstrap.servers": "servers-two",
        "security.protocol": "SSL",
        "a.security.protocol": "PLAINTEXT",
        "a.producer.security.protocol": "SASL_SSL",
        "ssl.key.password": "top",
        "a.other": "x",
    }

    a, b = cluster_properties(raw, "a"), cluster_properties(raw, "b")

    assert (
        a["security.protocol"],
        a["producer.security.protocol"],
        a["consumer.security.protocol"],
        a["admin.security.protocol"],
    ) == ("PLAINTEXT", "SASL_SSL", "PLAINTEXT", "PLAINTEXT")
    assert (b["security.protocol"], b["admin.security.protocol"]) == ("SSL", "SSL")
    assert b["producer.ssl.key.password"] == "top"
    assert a["other"] == "x"
    assert "producer.other" not in a


def test_worker_of_a_flow_has_the_names_of_mm2():
    """As in MM2, `offset.storage.*` at the top level takes precedence over the same key of a cluster."""
    raw = {
        "B.offset.storage.replication.factor": "3",
        "offset.storage.replication.factor": "1",
        "B.x": "y",
        "A.x": "z",
    }

    worker = worker_properties(raw, "A", "B")

    assert {
        "client.id": "A->B",
        "group.id": "A-mm2",
        "offset.storage.topic": "mm2-offsets.A.internal",
        "status.storage.topic": "mm2-status.A.internal",
        "config.storage.topic": "mm2-configs.A.internal",
        "offset.storage.replication.factor": "1",
        "x": "y",
    }.items() <= worker.items()


def test_connector_properties_equal_those_that_mm2_stores():
    """Connect's REST API of MM2 shows the same properties."""
    raw = {
        "clusters": "A, B",
        "A.bootstrap.servers": "a:1",
        "B.bootstrap.servers": "b:1",
        "A.consumer.client.rack": "r1",
        "B.producer.linger.ms": "5",
        "tasks.max": "4",
        "replication.policy.separator": "_",
        "use.defaults.from": "source",
        "consumer.isolation.level": "read_committed",
        "A->B.enabled": "true",
        "A->B.tasks.max": "2",
        "A->B.producer.override.acks": "all",
        "config.providers": "env",
    }

    assert connector_properties(raw, "A", "B", "MirrorSourceConnector") == {
        "name": "MirrorSourceConnector",
        "connector.class": "org.apache.kafka.connect.mirror.MirrorSourceConnector",
        "source.cluster.alias": "A",
        "target.cluster.alias": "B",
        "source.cluster.bootstrap.servers": "a:1",
        "source.producer.bootstrap.servers": "a:1",
        "source.consumer.bootstrap.servers": "a:1",
        "source.admin.bootstrap.servers": "a:1",
        "source.consumer.client.rack": "r1",
        "target.cluster.bootstrap.servers": "b:1",
        "target.producer.bootstrap.servers": "b:1",
        "target.consumer.bootstrap.servers": "b:1",
        "target.admin.bootstrap.servers": "b:1",
        "target.producer.linger.ms": "5",
        "replication.policy.separator": "_",
        "tasks.max": "2",
        "producer.override.acks": "all",
        "config.providers": "env",
        "enabled": "true",
    }


@pytest.mark.parametrize(
    "key", ["use.defaults.from", "consumer.isolation.level", "producer.override.client.id", "group.id"]
)
def test_keys_that_mm2_drops_at_the_top_level_have_a_warning(key: str):
    """MM2 drops them without a warning."""
    if key == "use.defaults.from":
        assert not source(ONE_WAY + f"{key} = source\n").use_defaults_from_source
    assert any(
        text.startswith(f"{key}: it has no effect at the top level")
        for text in herder(ONE_WAY + f"{key} = x\n").warnings
    )


def test_client_ids_equal_those_of_mm2():
    """Quotas on the clusters may refer to these ids."""
    settings = source(ONE_WAY + "A.consumer.client.id = me\n")

    assert settings.source_consumer.client_id == "me|A->B|MirrorSourceConnector-0|replication-consumer"
    assert settings.source_admin.client_id == "A->B|MirrorSourceConnector|replication-source-admin"
    assert settings.target_admin.client_id == "A->B|MirrorSourceConnector|replication-target-admin"
    assert settings.target_producer.client_id == "connector-producer-MirrorSourceConnector-0"
    assert settings.offsets.client.client_id == "A-mm2-A->B-offsets"


def test_references_are_kept_so_that_settings_contain_no_secret(monkeypatch: pytest.MonkeyPatch):
    """References are resolved when a client is created, as in MirrorMakerConfigTest.testLazyConfigResolution."""
    monkeypatch.setenv("MM_TEST_SECRET", "hunter2")
    text = ONE_WAY + (
        "config.providers = env\n"
        "config.providers.env.class = org.apache.kafka.common.config.provider.EnvVarConfigProvider\n"
        'A.sasl.jaas.config = x password="${env:MM_TEST_SECRET}";\n'
        "ssl.key.password = ${env:MM_TEST_SECRET}\n"
        "B.ssl.truststore.password = plain-secret\n"
    )
    worker = herder(text)
    settings = worker.connectors[0].source
    assert settings is not None

    assert settings.target_producer.properties["ssl.key.password"] == "${env:MM_TEST_SECRET}"
    assert settings.source_consumer.properties["sasl.jaas.config"] == 'x password="${env:MM_TEST_SECRET}";'
    assert "hunter2" not in str([connector.properties for connector in worker.connectors])
    assert "hunter2" not in repr(worker)
    assert "plain-secret" not in repr(worker)
    assert {"config.providers", "config.providers.env.class"} == set(settings.providers)


def test_clusters_and_topics_may_be_references(monkeypatch: pytest.MonkeyPatch):
    """The process resolves `clusters` and typed values when it starts."""
    monkeypatch.setenv("MM_TEST_CLUSTERS", "A, B")
    monkeypatch.setenv("MM_TEST_TOPICS", "orders")
    text = ONE_WAY.replace("A, B", "${env:MM_TEST_CLUSTERS}") + (
        "config.providers = env\n"
        "config.providers.env.class = org.apache.kafka.common.config.provider.EnvVarConfigProvider\n"
        "topics = ${env:MM_TEST_TOPICS}\n"
    )

    assert source(text).topics == ("orders",)
    assert herder(text).connectors[0].properties["topics"] == "${env:MM_TEST_TOPICS}"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("", "clusters"),
        ("clusters = A\nA.bootstrap.servers = a:1", "clusters"),
        (ONE_WAY.replace("= true", "= false") + NO_HEARTBEATS, "clusters"),
        (ONE_WAY.replace("= true", "= yes"), "A->B.enabled"),
        (
            "clusters = A, B\nA->B.enabled = true\nB.bootstrap.servers = b:1",
            "A.bootstrap.servers",
        ),
        ("clusters = A, B\nA->B.enabled = true\nA.bootstrap.servers = a:1", "B.bootstrap.servers"),
    ],
)
def test_invalid_mm2_file_is_refused_by_key(text: str, key: str):
    """The error has the key as a field."""
    with pytest.raises(InvalidSettingError) as raised:
        load_mm2(text)
    assert key == raised.value.key


def test_unsupported_setting_of_a_flow_is_refused_with_the_whole_key():
    """The error names the key of the file, with its prefix."""
    with pytest.raises(RefusedSettingError, match=r"^A->B\.errors\.tolerance is refused"):
        load_mm2(ONE_WAY + "A->B.errors.tolerance = all\n")


@pytest.mark.parametrize(
    "key", ["rest.extension.classes", "admin.listeners", "admin.listeners.https.ssl.protocol"]
)
def test_rest_keys_that_mm2_ignores_have_a_warning(key: str):
    """MM2 does not read them in dedicated mode."""
    assert f"{key}: it has no effect in mm2 mode, as in Java." in herder(ONE_WAY + f"{key} = x\n").warnings


def test_misspelt_key_has_one_warning_with_a_suggestion():
    """A misspelt key is the most common reason why topics are not copied."""
    warnings = herder(ONE_WAY + "A->B.topcs.exclude = x\n").warnings

    assert warnings == ("A->B.topcs.exclude: unknown, it has no effect; did you mean topics.exclude?",)


def test_flow_of_an_unlisted_cluster_has_a_warning():
    """Its keys would otherwise be ignored without a warning."""
    assert any("does not list C" in text for text in herder(ONE_WAY + "A->C.enabled = true\n").warnings)


def test_mirrorflow_keys_apply_at_the_top_level():
    text = (
        ONE_WAY
        + "mirrorflow.http.listeners = http://127.0.0.1:0\nmirrorflow.start.from = latest\nmetrics.level = topic\n"
    )

    assert herder(text).http.listeners == ("http://127.0.0.1:0",)
    assert herder(text).metrics_level.value == "topic"
    assert StartPosition.LATEST is source(text).start


DOTTED = """
clusters = us.east, us.west
us.east.bootstrap.servers = a:9092
us.west.bootstrap.servers = b:9092
us.east->us.west.enabled = true
"""


@pytest.mark.parametrize("more", ["", "us.west->us.east.topics = users.*"])
def test_alias_with_the_separator_is_refused_where_flows_would_copy_in_a_loop(more: str):
    """MM2 would copy us.east.orders back as us.west.us.east.orders, and so on without end."""
    with pytest.raises(InvalidSettingError) as raised:
        load_mm2(DOTTED + "us.west->us.east.enabled = true\n" + more)

    assert str(raised.value) == (
        "clusters: the alias us.east contains the separator '.', which ends the alias in a topic's name, so us.east->us.west "
        "and us.west->us.east would copy their own copies without end; choose another alias, or another "
        "replication.policy.separator."
    )


@pytest.mark.parametrize(
    "more",
    [
        "",
        "us.west->us.east.enabled = true\nreplication.policy.separator = _",
        "us.west->us.east.enabled = true\nus.west->us.east.topics = users",
        "us.west->us.east.enabled = true\nreplication.policy.class = IdentityReplicationPolicy",
    ],
    ids=["one direction", "different separator", "topic names without patterns", "identity policy"],
)
def test_alias_with_the_separator_is_accepted_without_a_loop(more: str):
    assert "us.east->us.west" in enabled(load_mm2(DOTTED + more))


def test_identity_policy_accepts_an_empty_separator():
    """Many existing files set both, because an empty separator was needed to keep topic names."""
    lines = "replication.policy.class = org.apache.kafka.connect.mirror.IdentityReplicationPolicy\nreplication.policy.separator =\n"
    settings = source(ONE_WAY + lines)
    policy = make_policy(settings.policy)

    assert policy.remote_topic("A", "orders") == "orders"
    assert policy.remote_topic("A", "heartbeats") == "A.heartbeats"
    # These are the names of Java's IdentityReplicationPolicy.
    assert policy.offset_syncs_topic("B") == "mm2-offset-syncsBinternal"
    assert policy.checkpoints_topic("A") == "Acheckpointsinternal"
    assert policy.is_internal_topic("mm2-offset-syncsBinternal")
    with pytest.raises(InvalidSettingError, match=r"it is empty, .*IdentityReplicationPolicy"):
        load_mm2(ONE_WAY + "replication.policy.separator =\n")


def test_expression_with_a_comma_is_refused_with_a_hint_about_the_comma():
    """Lists are split at commas. Java also refuses the two parts."""
    with pytest.raises(
        InvalidSettingError, match=r"orders\.\{1'.*one that holds a comma, as in \{1,3\}, is split there"
    ):
        load_mm2(ONE_WAY + "A->B.topics = orders.{1,3}\n")


CLUSTERS = (
    "clusters = A, B, C\nA.bootstrap.servers = a:1\nB.bootstrap.servers = b:1\nC.bootstrap.servers = c:1\n"
)
IDENTITY = "replication.policy.class = org.apache.kafka.connect.mirror.IdentityReplicationPolicy\n"
THREE_FLOWS = "A->B.enabled = true\nB->C.enabled = true\nC->A.enabled = true\n"
BOTH_WAYS = "A->B.enabled = true\nB->A.enabled = true\n"


def unique_warnings(lines: str) -> list[str]:
    """Returns each different warning about a file with *lines*."""
    repeated = [warning for worker in load_mm2(CLUSTERS + lines) for warning in worker.warnings]
    return [warning for warning in dict.fromkeys(repeated) if "Without effect" not in warning]


def test_valid_file_has_no_warning() -> None:
    assert [] == unique_warnings(BOTH_WAYS)


def test_file_without_an_enabled_flow_has_a_warning() -> None:
    assert ["No flow is enabled, so only heartbeats are written"] == [
        warning.partition(";")[0] for warning in unique_warnings("")
    ]


def test_empty_list_of_topics_has_a_warning() -> None:
    (warning,) = unique_warnings("A->B.enabled = true\nA->B.topics =\n")

    assert warning.startswith("A->B.topics is empty")


def test_duplicate_key_has_a_warning() -> None:
    (warning,) = unique_warnings("A->B.enabled = true\nA->B.topics = x\nA->B.topics: y\n")

    assert "A->B.topics is set twice; the last line applies, as in Java." == warning


@pytest.mark.parametrize(
    "topics",
    [
        "",
        "A->B.topics = orders\nB->A.topics = orders, payments\n",
        "A->B.topics = orders\n",
        "A->B.topics = or.*\nB->A.topics = .*s\n",
        f"A->B.topics = {'a' * 60}-1\nB->A.topics = (a|a)*\n",  # matching takes too long: a loop is possible
    ],
)
def test_loop_of_two_flows_with_unchanged_names_has_a_warning(topics: str) -> None:
    (warning,) = unique_warnings(BOTH_WAYS + IDENTITY + topics)

    assert warning.startswith("A->B and B->A keep the names of topics")
    assert "so records of a topic that both select are copied in an endless loop" in warning


@pytest.mark.parametrize(
    "topics",
    [
        "",
        "A->B.topics = orders\nB->C.topics = or.*\n",
        "A->B.topics = orders, payments\nB->C.topics = carts, orders\nC->A.topics = orders\n",
        "A->B.topics = or.*\nB->C.topics = .*s\nC->A.topics = [a-z]+\n",
    ],
)
def test_loop_of_three_flows_has_a_warning(topics: str) -> None:
    (warning,) = unique_warnings(THREE_FLOWS + IDENTITY + topics)

    assert warning.startswith("A->B, B->C and C->A keep the names of topics")
    assert "so records of a topic that all of them select are copied in an endless loop" in warning


def test_each_loop_is_reported_once_by_its_shortest_path() -> None:
    reported = unique_warnings(THREE_FLOWS + "B->A.enabled = true\n" + IDENTITY)

    assert ["A->B and B->A", "A->B, B->C and C->A"] == [warning.partition(" keep")[0] for warning in reported]


def test_loops_of_many_clusters_are_reported_in_pairs() -> None:
    """Flows between all of twelve clusters form millions of loops."""
    names = [f"c{number}" for number in range(12)]
    flows = [
        EnabledFlow(source=source_name, target=target_name, topics=(".*",), keeps_names=True)
        for source_name in names
        for target_name in names
        if source_name != target_name
    ]

    assert 12 * 11 / 2 == len(list(flow_warnings(flows)))


@pytest.mark.parametrize(
    "lines",
    [
        BOTH_WAYS + IDENTITY + "A->B.topics = orders\nB->A.topics = payments\n",
        BOTH_WAYS + IDENTITY + "A->B.topics = orders\nB->A.topics = pay.*\n",
        "A->B.enabled = true\nB->C.enabled = true\n" + IDENTITY,
        THREE_FLOWS
        + IDENTITY
        + "A->B.topics = orders\nB->C.topics = orders, pay.*\nC->A.topics = payments\n",
        THREE_FLOWS + IDENTITY + "C->A.replication.policy.class = DefaultReplicationPolicy\n",
        BOTH_WAYS,
    ],
)
def test_flows_without_a_loop_have_no_warning(lines: str) -> None:
    assert [] == unique_warnings(lines)


def test_unresolved_address_is_refused_with_the_key_of_the_file():
    text = ONE_WAY.replace("A.bootstrap.servers = ", "A.bootstrap.servers = ${env:MIRRORFLOW_UNSET}")
    providers = "config.providers = env\nconfig.providers.env.class = EnvVarConfigProvider\n"

    with pytest.raises(
        UnresolvedReferenceError,
        match=r"^A\.bootstrap\.servers: the reference \$\{env:MIRRORFLOW_UNSET\} cannot",
    ):
        load_mm2(f"{text}{providers}")


@pytest.mark.parametrize(
    "key",
    [
        "transforms.h.value.literal", "predicates.p.pattern", "topics.blacklist", "schema.registry.basic.auth.user.info",
        "sasl.oauthbearer.assertion.private.key.passphrase",
    ],
)  # fmt: skip
def test_free_text_value_keeps_a_suffix_that_looks_like_a_comment(key):
    warnings: list[str] = []

    assert setting_table.without_comments({key: "a # b"}, warnings) == {key: "a # b"}
    assert "is part of it, as in Java" in warnings[0]
