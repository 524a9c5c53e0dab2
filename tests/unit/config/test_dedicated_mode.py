"""mm2.properties: every block of MM2's README, and the derivation rules of MirrorMakerConfig."""

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

TWO = """
clusters = A, B
A.bootstrap.servers = a:9092
B.bootstrap.servers = b:9092
A->B.enabled = true
"""
SIX = BLOCKS["six clusters"]
NO_HEARTBEATS = "emit.heartbeats.enabled = false\n"


def herder(text: str, name: str = "A->B") -> WorkerSettings:
    return next(worker for worker in load_mm2(text) if worker.name == name)


def source(text: str, name: str = "A->B") -> SourceSettings:
    settings = herder(text, name).connectors[0].source
    assert settings is not None
    return settings


def enabled(workers: tuple[WorkerSettings, ...]) -> list[str]:
    return [worker.name for worker in workers if worker.connectors[0].source is not None]


def test_one_direction_has_a_herder_back_for_its_heartbeats():
    """MM2's surprise: B->A runs too, with its source connector disabled."""
    workers = load_mm2(TWO)

    assert [worker.name for worker in workers] == ["A->B", "B->A"]
    assert enabled(workers) == ["A->B"]


def test_each_herder_writes_its_heartbeats_to_its_own_target():
    """B->A, of which nothing else is enabled, writes to A what A->B then copies: by that B knows of A."""
    beats = {worker.name: worker.connectors[1].heartbeat for worker in load_mm2(TWO)}

    assert {
        "A->B": ("A", "B", "b:9092"),
        "B->A": ("B", "A", "a:9092"),
    } == {
        name: (
            settings.beats[0].source_alias,
            settings.beats[0].target_alias,
            settings.beats[0].producer.bootstrap_servers.split(",")[0],
        )
        for name, settings in beats.items()
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
    """The rule of MirrorMakerConfig.clusterPairs."""
    assert expected == [worker.name for worker in load_mm2(TWO + extra)]


def test_connectors_come_in_mm2_s_order_with_its_names():
    """Names are part of the keys of stored positions."""
    assert [connector.name for connector in herder(TWO).connectors] == [
        "MirrorSourceConnector",
        "MirrorHeartbeatConnector",
        "MirrorCheckpointConnector",
    ]


def test_readme_six_clusters():
    """Six clusters in three places: twelve flows, a herder for each of the thirty pairs."""
    workers = load_mm2(SIX)

    assert len(workers) == 30
    assert len(enabled(workers)) == 12


def test_readme_clusters_option_keeps_what_writes_nearby():
    """`--clusters west-1 west-2`: only flows whose target is listed."""
    assert enabled(load_mm2(SIX, ["west-1", "west-2"])) == [
        "west-1->west-2",
        "west-2->west-1",
        "east-1->west-1",
        "north-1->west-1",
    ]


def test_unknown_cluster_of_the_option_is_named():
    """A misspelt alias would start nothing, silently."""
    with pytest.raises(InvalidSettingError, match="'west-3'"):
        load_mm2(SIX, ["west-3"])


def test_readme_quick_start_with_its_slips():
    """Flow and cluster overrides, a comment behind a flag, `emit.heartbeats` without `.enabled`."""
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


def test_readme_active_active_with_topics_of_each_flow():
    """Each flow its own topics; what a flow says wins over what all say."""
    text = (
        TWO + "B->A.enabled = true\nA->B.topics = topic-1, topic-2\nA->B.groups = group-1\ntopics = other\n"
    )

    assert source(text).topics == ("topic-1", "topic-2")
    assert source(text, "B->A").topics == ("other",)


def test_readme_general_connect_config():
    """Connect's own settings without a prefix hold for every flow, `tasks.max` before all."""
    text = (
        TWO
        + "B->A.enabled = true\nB->A.tasks.max = 3\n"
        + "tasks.max = 2\n"
        + "offset.storage.replication.factor = 1\n"
        + "offset.storage.partitions = 5\n"
        + "task.shutdown.graceful.timeout.ms = 9000\n"
        + "security.protocol = SSL\n"
        + "key.converter = org.apache.kafka.connect.converters.ByteArrayConverter\n"
    )
    there, back = source(text), source(text, "B->A")

    assert (2, 3) == (there.tasks_max, back.tasks_max)
    assert {"2"} == {connector.properties["tasks.max"] for connector in herder(text).connectors}
    assert (1, 5) == (there.offsets.replication_factor, there.offsets.partitions)
    assert 9.0 == herder(text, "B->A").shutdown_s
    for client in (there.source_consumer, there.target_producer, there.offsets.client, back.source_admin):
        assert "SSL" == client.properties["security.protocol"]
    assert () == herder(text).warnings


@pytest.mark.parametrize(
    "key",
    [
        "errors.deadletterqueue.topic.name",  # of sink connectors, which the README names too
        "topic.creation.default.replication.factor",
        "offsets.storage.topic",
    ],
)
def test_readme_general_connect_config_that_mm2_drops_stops_nothing(key: str):
    """What would be refused for a flow is without effect at the top level, in MM2 as here."""
    assert f"{key}: it has no effect at the top level, as in MM2." in herder(TWO + f"{key} = x\n").warnings
    with pytest.raises(RefusedSettingError, match=key):
        load_mm2(TWO + f"A->B.{key} = x\n")


def test_readme_shared_configuration():
    """The README's race: two processes, one flow, other topics. Each file is read by itself; both name the same flow,
    by which the target recognizes them as one."""
    processes = [herder(TWO + f"A->B.topics = {topics}\n") for topics in ("foo", "bar")]
    flows = [process.connectors[0].source for process in processes]

    assert [("foo",), ("bar",)] == [flow.topics for flow in flows if flow is not None]
    assert 1 == len(
        {(flow.flow, flow.source_alias, flow.offsets.topic) for flow in flows if flow is not None}
    )
    assert [(), ()] == [process.warnings for process in processes]


def test_readme_connector_overrides():
    """`topics.blacklist`, `sync.group.offsets`, and `// comments` behind values."""
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


def test_readme_client_overrides():
    """Producer of the target, consumer and admin of the source."""
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


def test_readme_exactly_once():
    """Accepted as MM2 knows it; `listeners` is where processes with the same file call each other, and nothing else."""
    worker = herder(
        TWO
        + "B.exactly.once.source.support = enabled\nA.consumer.isolation.level = read_committed\n"
        + "dedicated.mode.enable.internal.rest = true\nlisteners = http://localhost:8080\n"
    )

    assert worker.http.listeners == ()
    assert worker.http.internal == ("http://localhost:8080",)
    assert worker.connectors[0].source is not None
    assert worker.connectors[0].source.read_committed


def test_processes_with_one_file_are_a_group_for_each_flow():
    """KIP-710: MM2's own group and topics on the target, and its three connectors as the leader writes them down."""
    worker = herder(
        TWO + "dedicated.mode.enable.internal.rest = true\nB.session.timeout.ms = 7000\n"
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
        one["name"] for one in worker.distributed.seeds
    ]
    assert "false" == worker.distributed.seeds[2]["enabled"]  # checkpoints cannot be without offset syncs


def test_secrets_in_plain_text_are_warned_of_by_key():
    """Config topics keep what the file has; a reference stays one."""
    reference = "A.ssl.key.password = ${env:WORD}\n"
    assert not any("in plain text" in warning for warning in herder(TWO + reference).warnings)

    (said,) = (
        warning
        for warning in herder(TWO + reference + "B.ssl.keystore.password = hunter2\n").warnings
        if "in plain text" in warning
    )

    assert said.startswith("B.ssl.keystore.password: in plain text")
    assert "hunter2" not in said


def test_process_joins_the_group_of_its_flow_without_internal_rest():
    """As Java's MirrorMaker, which has a group and topics for one process, too; nothing listens then."""
    worker = herder(TWO + "listeners = http://localhost:8080\n")

    assert worker.distributed is not None
    assert worker.distributed.group is not None
    assert ("A-mm2", "mm2-configs.A.internal", "mm2-status.A.internal") == (
        worker.distributed.group.group_id,
        worker.distributed.topics.configs.topic,
        worker.distributed.topics.statuses.topic,
    )
    assert ((), ()) == (worker.http.internal, worker.http.listeners)


def test_ssl_of_a_cluster_reaches_all_its_clients():
    """MirrorMakerConfigTest.testClusterConfigProperties and testClientConfigProperties."""
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


def test_worker_has_mm2_s_names_and_the_top_level_wins():
    """Defaults of the worker of A->B; `offset.storage.*` at the top level wins over the cluster's (a trap of MM2)."""
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


def test_connector_properties_are_those_that_mm2_stores():
    """Prefixes, defaults and what is dropped, as Connect's REST API would show it."""
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
def test_keys_that_mm2_drops_at_the_top_level_are_named(key: str):
    """MM2 drops them silently; so do we, aloud."""
    if key == "use.defaults.from":
        assert not source(TWO + f"{key} = source\n").use_defaults_from_source
    assert any(
        text.startswith(f"{key}: it has no effect at the top level")
        for text in herder(TWO + f"{key} = x\n").warnings
    )


def test_client_ids_are_mm2_s():
    """Quotas on the clusters name them."""
    settings = source(TWO + "A.consumer.client.id = me\n")

    assert settings.source_consumer.client_id == "me|A->B|MirrorSourceConnector-0|replication-consumer"
    assert settings.source_admin.client_id == "A->B|MirrorSourceConnector|replication-source-admin"
    assert settings.target_admin.client_id == "A->B|MirrorSourceConnector|replication-target-admin"
    assert settings.target_producer.client_id == "connector-producer-MirrorSourceConnector-0"
    assert settings.offsets.client.client_id == "A-mm2-A->B-offsets"


def test_references_stay_and_no_secret_is_in_the_settings(monkeypatch: pytest.MonkeyPatch):
    """MirrorMakerConfigTest.testLazyConfigResolution: resolved when a client is built, never before."""
    monkeypatch.setenv("MM_TEST_SECRET", "hunter2")
    text = TWO + (
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


def test_values_that_are_not_secret_may_be_references(monkeypatch: pytest.MonkeyPatch):
    """`clusters` and what is typed are resolved on this host when the process starts."""
    monkeypatch.setenv("MM_TEST_CLUSTERS", "A, B")
    monkeypatch.setenv("MM_TEST_TOPICS", "orders")
    text = TWO.replace("A, B", "${env:MM_TEST_CLUSTERS}") + (
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
        (TWO.replace("= true", "= false") + NO_HEARTBEATS, "clusters"),
        (TWO.replace("= true", "= yes"), "A->B.enabled"),
        (
            "clusters = A, B\nA->B.enabled = true\nB.bootstrap.servers = b:1",
            "source.cluster.bootstrap.servers",
        ),
        ("clusters = A, B\nA->B.enabled = true\nA.bootstrap.servers = a:1", "bootstrap.servers"),
    ],
)
def test_wrong_files_are_refused_by_key(text: str, key: str):
    """The key to correct is a field of the error."""
    with pytest.raises(InvalidSettingError) as raised:
        load_mm2(text)
    assert key == raised.value.key


def test_java_classes_of_a_flow_are_refused_with_the_whole_key():
    """The key as it stands in the file."""
    with pytest.raises(RefusedSettingError, match=r"^A->B\.errors\.tolerance is refused"):
        load_mm2(TWO + "A->B.errors.tolerance = all\n")


@pytest.mark.parametrize(
    "key", ["rest.extension.classes", "admin.listeners", "admin.listeners.https.ssl.protocol"]
)
def test_rest_keys_that_mm2_ignores_are_ignored_aloud(key: str):
    """In mm2 mode Java does not read them."""
    assert f"{key}: it has no effect in mm2 mode, as in Java." in herder(TWO + f"{key} = x\n").warnings


def test_misspelt_key_is_named_once_with_a_suggestion():
    """The most common cause of topics that are not copied."""
    warnings = herder(TWO + "A->B.topcs.exclude = x\n").warnings

    assert warnings == ("A->B.topcs.exclude: unknown, it has no effect; did you mean topics.exclude?",)


def test_flow_of_an_unlisted_cluster_is_named():
    """Its keys would otherwise be lost without a word."""
    assert any("does not list C" in text for text in herder(TWO + "A->C.enabled = true\n").warnings)


def test_start_and_http_of_the_process_are_read_from_the_top_level():
    """Own keys work at the top level."""
    text = (
        TWO
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
def test_an_alias_with_the_separator_is_refused_where_copies_would_go_in_circles(more: str):
    """As by the resource: MM2 copies us.east.orders back as us.west.us.east.orders, and so on."""
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
    ids=["one way", "another separator", "names only", "unchanged names"],
)
def test_an_alias_with_a_dot_is_fine_where_nothing_goes_in_circles(more: str):
    assert "us.east->us.west" in enabled(load_mm2(DOTTED + more))


def test_the_identity_policy_takes_an_empty_separator():
    """For years the way to keep names was a policy class beside an empty separator, so many files have both."""
    kept = "replication.policy.class = org.apache.kafka.connect.mirror.IdentityReplicationPolicy\nreplication.policy.separator =\n"
    settings = source(TWO + kept)
    policy = make_policy(settings.policy)

    assert policy.remote_topic("A", "orders") == "orders"
    assert policy.remote_topic("A", "heartbeats") == "A.heartbeats"
    # As Java's IdentityReplicationPolicy calls them then.
    assert policy.offset_syncs_topic("B") == "mm2-offset-syncsBinternal"
    assert policy.checkpoints_topic("A") == "Acheckpointsinternal"
    assert policy.is_internal_topic("mm2-offset-syncsBinternal")
    with pytest.raises(InvalidSettingError, match=r"it is empty, .*IdentityReplicationPolicy"):
        load_mm2(TWO + "replication.policy.separator =\n")


def test_an_expression_with_a_comma_is_refused_and_the_comma_named():
    """A list is split there: Java refuses the halves joined by |, too."""
    with pytest.raises(
        InvalidSettingError, match=r"orders\.\{1'.*one that holds a comma, as in \{1,3\}, is split there"
    ):
        load_mm2(TWO + "A->B.topics = orders.{1,3}\n")


CLUSTERS = (
    "clusters = A, B, C\nA.bootstrap.servers = a:1\nB.bootstrap.servers = b:1\nC.bootstrap.servers = c:1\n"
)
IDENTITY = "replication.policy.class = org.apache.kafka.connect.mirror.IdentityReplicationPolicy\n"
AROUND = "A->B.enabled = true\nB->C.enabled = true\nC->A.enabled = true\n"
BOTH_WAYS = "A->B.enabled = true\nB->A.enabled = true\n"


def warnings(lines: str) -> list[str]:
    """The warnings about flows of a file with *lines*, each once."""
    found = [warning for worker in load_mm2(CLUSTERS + lines) for warning in worker.warnings]
    return [one for one in dict.fromkeys(found) if "Without effect" not in one]


def test_an_ordinary_file_has_no_warning() -> None:
    assert [] == warnings(BOTH_WAYS)


def test_a_file_without_an_enabled_flow_is_warned_of() -> None:
    assert ["No flow is enabled, so only heartbeats are written"] == [
        one.partition(";")[0] for one in warnings("")
    ]


def test_an_empty_list_of_topics_is_warned_of() -> None:
    (found,) = warnings("A->B.enabled = true\nA->B.topics =\n")

    assert found.startswith("A->B.topics is empty")


def test_a_duplicate_key_is_warned_of() -> None:
    (found,) = warnings("A->B.enabled = true\nA->B.topics = x\nA->B.topics: y\n")

    assert "A->B.topics is set twice; the last line applies, as in Java." == found


@pytest.mark.parametrize(
    "topics",
    [
        "",
        "A->B.topics = orders\nB->A.topics = orders, payments\n",
        "A->B.topics = orders\n",
        "A->B.topics = or.*\nB->A.topics = .*s\n",
        f"A->B.topics = {'a' * 60}-1\nB->A.topics = (a|a)*\n",  # takes too long, so it is not known
    ],
)
def test_a_circle_of_unchanged_names_is_warned_of(topics: str) -> None:
    (found,) = warnings(BOTH_WAYS + IDENTITY + topics)

    assert found.startswith("A->B and B->A keep the names of topics")
    assert "so records of a topic that both select are copied in an endless loop" in found


@pytest.mark.parametrize(
    "topics",
    [
        "",
        "A->B.topics = orders\nB->C.topics = or.*\n",
        "A->B.topics = orders, payments\nB->C.topics = carts, orders\nC->A.topics = orders\n",
        "A->B.topics = or.*\nB->C.topics = .*s\nC->A.topics = [a-z]+\n",
    ],
)
def test_a_circle_of_three_is_warned_of(topics: str) -> None:
    (found,) = warnings(AROUND + IDENTITY + topics)

    assert found.startswith("A->B, B->C and C->A keep the names of topics")
    assert "so records of a topic that all of them select are copied in an endless loop" in found


def test_each_loop_is_reported_once_by_its_shortest_path() -> None:
    found = warnings(AROUND + "B->A.enabled = true\n" + IDENTITY)

    assert ["A->B and B->A", "A->B, B->C and C->A"] == [one.partition(" keep")[0] for one in found]


def test_many_clusters_in_many_circles_are_told_in_pairs() -> None:
    """Flows between all of twelve clusters make millions of circles."""
    names = [f"c{number}" for number in range(12)]
    flows = [
        EnabledFlow(source=one, target=other, topics=(".*",), keeps_names=True)
        for one in names
        for other in names
        if one != other
    ]

    assert 12 * 11 / 2 == len(list(flow_warnings(flows)))


@pytest.mark.parametrize(
    "lines",
    [
        BOTH_WAYS + IDENTITY + "A->B.topics = orders\nB->A.topics = payments\n",
        BOTH_WAYS + IDENTITY + "A->B.topics = orders\nB->A.topics = pay.*\n",
        "A->B.enabled = true\nB->C.enabled = true\n" + IDENTITY,
        AROUND + IDENTITY + "A->B.topics = orders\nB->C.topics = orders, pay.*\nC->A.topics = payments\n",
        AROUND + IDENTITY + "C->A.replication.policy.class = DefaultReplicationPolicy\n",
        BOTH_WAYS,
    ],
)
def test_flows_that_copy_nothing_in_a_circle_are_not_warned_of(lines: str) -> None:
    assert [] == warnings(lines)


def test_an_address_that_cannot_be_resolved_is_named_as_in_the_file():
    """Before anything is started."""
    text = TWO.replace("A.bootstrap.servers = ", "A.bootstrap.servers = ${env:MIRRORFLOW_UNSET}")
    providers = "config.providers = env\nconfig.providers.env.class = EnvVarConfigProvider\n"

    with pytest.raises(
        UnresolvedReferenceError,
        match=r"^A\.bootstrap\.servers: the reference \$\{env:MIRRORFLOW_UNSET\} cannot",
    ):
        load_mm2(f"{text}{providers}")


@pytest.mark.parametrize("key", ["transforms.h.value.literal", "predicates.p.pattern", "topics.blacklist"])
def test_a_text_of_the_user_s_own_keeps_what_looks_like_a_comment(key):
    warnings: list[str] = []

    assert setting_table.without_comments({key: "a # b"}, warnings) == {key: "a # b"}
    assert "is part of it, as in Java" in warnings[0]
