"""Passwords and permissions that are wrong: named in the log, REST and /progress; put right, the flow continues by itself."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mirrorflow_core.writer.transactional_ids import TransactionalIds
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import load
from tests.harness.replicator import Replicator
from tests.integration.kafka.comparing import assert_copied
from tests.integration.kafka.flows import Flow

pytestmark = pytest.mark.more

ALIAS = "guarded"

Names = Callable[[], str]


@pytest.fixture(scope="module")
def guarded() -> Iterator[KafkaCluster]:
    """A broker that wants a password and grants nothing by itself: source of some tests, target of others."""
    with KafkaCluster(name=ALIAS, listeners=("SASL_PLAINTEXT",), authorizer=True) as cluster:
        yield cluster


def lines(side: str, cluster: KafkaCluster, password: str = "mirror-secret") -> dict[str, str]:
    """The connector's lines to come in to *cluster* as `mirror`."""
    return {f"{side}.cluster.{key}": value for key, value in client(cluster, password).items()}


def client(cluster: KafkaCluster, password: str = "mirror-secret") -> dict[str, str]:
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    return cluster.java_client("SASL_PLAINTEXT") | {
        "sasl.jaas.config": f'{module} required username="mirror" password="{password}";'
    }


def allow_source(cluster: KafkaCluster, topic: str) -> None:
    for operation in ("READ", "DESCRIBE", "DESCRIBE_CONFIGS"):
        cluster.allow(operation, "TOPIC", topic)


def reasons(replicator: Replicator) -> set[str]:
    return {one["reason"] for one in replicator.progress()["reasons"]}


def status(replicator: Replicator) -> str:
    """Everything that REST says of the connector and its tasks."""
    name = replicator.rest("/connectors")[1][0]
    return str(replicator.rest(f"/connectors/{name}/status")[1])


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_wrong_password_is_named_and_put_right_without_a_restart(
    guarded: KafkaCluster,
    east: KafkaCluster,
    west: KafkaCluster,
    unique_topic: Names,
    tmp_path: Path,
    side: str,
) -> None:
    """The file that ${file:...} names gets its key, then the right one: the next attempt uses it. No password is ever shown."""
    source, target = (guarded, west) if side == "source" else (east, guarded)
    topic = source.create_topic(unique_topic())
    alias = topic.upper()
    load(source, topic, 300, keys=True)
    allow_source(guarded, topic)
    allow_target(guarded, alias)
    secret = tmp_path / "secret.properties"
    secret.write_text("passwort=hunter2-wrong\n")
    reference = f"${{file:{secret}:password}}"
    provider = {
        "config.providers": "file",
        "config.providers.file.class": "org.apache.kafka.common.config.provider.FileConfigProvider",
    }
    worker = provider | (client(guarded, reference) if side == "target" else {})
    connector = {"source.cluster.alias": alias, **lines(side, guarded, reference)}

    with Replicator.standalone(
        source, target, topics=topic, folder=tmp_path, connector=connector, worker=worker
    ) as replicator:
        missing = wait_until("what is missing is named", lambda: replicator.progress().get("missing"))
        assert "SecretMissing" in reasons(replicator)
        secret.write_text("password=hunter2-wrong\n")
        wait_until("it is named", lambda: "AuthenticationFailed" in reasons(replicator))
        refused = replicator.progress()
        said = status(replicator)
        secret.write_text("password=mirror-secret\n")
        replicator.wait_until_caught_up()
        log = replicator.log_text()
        assert reasons(replicator) == set()

    assert {"path": str(secret), "key": "password"} == missing
    assert ("Unreachable", "AuthenticationFailed") == (refused[side]["reach"], refused[side]["reason"])
    assert "missing" not in refused
    sentence = f"Cluster {alias if side == 'source' else ALIAS} at {guarded.bootstrap}: "
    assert sentence in said
    assert sentence in log
    assert "hunter2" not in said + log
    assert "mirror-secret" not in said + log
    assert_copied(source, topic, target, f"{alias}.{topic}", count=300)


def allow_target(cluster: KafkaCluster, alias: str, *, but: str = "") -> None:
    """What `mirrorflow acls` prints for the target of a flow under *alias*, without the operation *but* on the copies."""
    internal = ("READ", "WRITE", "CREATE", "DESCRIBE", "DESCRIBE_CONFIGS")
    for operation in (*internal, "ALTER", "ALTER_CONFIGS"):
        if operation != but:
            cluster.allow(operation, "TOPIC", f"{alias}.", prefixed=True)
    for operation in internal:
        for name in (
            f"mm2-offsets.{alias}.internal",
            f"mm2-offset-map.{alias}.internal",
            f"mm2-claims.{alias}.internal",
            f"mm2-identity.{alias}.internal",  # where ACLs are applied
        ):
            cluster.allow(operation, "TOPIC", name)
    for operation in ("WRITE", "DESCRIBE"):
        cluster.allow(operation, "TRANSACTIONAL_ID", TransactionalIds(alias).prefix, prefixed=True)


@pytest.mark.parametrize("operation", ["DESCRIBE", "READ"])
def test_what_the_source_does_not_grant_is_named_until_it_does(
    guarded: KafkaCluster, west: KafkaCluster, unique_topic: Names, tmp_path: Path, operation: str
) -> None:
    """Without Describe no topic is seen; without Read one is seen and stops. Granted, the copy begins by itself."""
    topic = guarded.create_topic(unique_topic())
    load(guarded, topic, 300, keys=True)
    if operation == "READ":
        guarded.allow("DESCRIBE", "TOPIC", topic)
    connector = {"source.cluster.alias": topic.upper(), **lines("source", guarded)}

    with Replicator.standalone(
        guarded, west, topics=topic, folder=tmp_path, connector=connector
    ) as replicator:
        if operation == "READ":
            said = replicator.wait_for_phase("stopped", topic)
            assert said["reason"] == "NotAuthorized"
            assert f"does not authorize Read on topic {topic}" in said["message"]
            assert f"does not authorize Read on topic {topic}" in status(replicator)
        else:
            wait_until("it is named", lambda: "Describe on them is not granted" in status(replicator))
        allow_source(guarded, topic)
        replicator.wait_until_caught_up()
        assert reasons(replicator) == set()

    assert_copied(guarded, topic, west, f"{topic.upper()}.{topic}", count=300)


@pytest.mark.parametrize("operation", ["CREATE", "WRITE"])
def test_what_the_target_does_not_grant_is_named_until_it_does(
    east: KafkaCluster, guarded: KafkaCluster, unique_topic: Names, tmp_path: Path, operation: str
) -> None:
    """Without Create the topic is named as a warning, without Write its partition stops; granted, it is copied."""
    topic = east.create_topic(unique_topic())
    alias = topic.upper()
    load(east, topic, 300, keys=True)
    allow_target(guarded, alias, but=operation)
    connector = {"source.cluster.alias": alias, **lines("target", guarded)}

    with Replicator.standalone(
        east, guarded, topics=topic, folder=tmp_path, connector=connector, worker=client(guarded)
    ) as replicator:
        if operation == "WRITE":
            said = replicator.wait_for_phase("stopped", topic)
            assert said["reason"] == "NotAuthorized"
        word = operation.capitalize()
        sentence = f"does not authorize {word} on topic {alias}.{topic}"
        wait_until("REST names it", lambda: sentence in status(replicator))
        wait_until("the log names it", lambda: sentence in replicator.log_text())
        guarded.allow(operation, "TOPIC", f"{alias}.", prefixed=True)
        replicator.wait_until_caught_up()

    assert_copied(east, topic, guarded, f"{alias}.{topic}", count=300)


def test_a_target_that_can_have_no_transactions_is_copied_to_all_the_same(
    east: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """One broker that wants three replicas of the topic of transactions never coordinates any; the flow does not wait for it."""
    topic = east.create_topic(unique_topic())
    load(east, topic, 300, keys=True)
    config = {"transaction.state.log.replication.factor": "3"}

    with (
        KafkaCluster(name="lone", config=config) as lone,
        Replicator.standalone(
            east, lone, topics=topic, folder=tmp_path, connector={"source.cluster.alias": topic}
        ) as replicator,
    ):
        replicator.wait_until_caught_up()
        replicator.stop()
        load(east, topic, 300, keys=True)
        replicator.start()
        replicator.wait_until_caught_up()
        replicator.stop()
        assert_copied(east, topic, lone, f"{topic}.{topic}", count=600)


@pytest.mark.faults
def test_a_broker_that_is_away_at_the_start_does_not_cost_the_flow_its_transactions(
    east: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """The topic of transactions needs three replicas, so nothing can be coordinated before the third broker is there."""
    topic = east.create_topic(unique_topic())
    load(east, topic, 300, keys=True)
    with KafkaCluster(name="three", brokers=3) as three:
        three.create_topic("held", partitions=3, replication_factor=3)
        three.broker(3).stop()
        flow = Flow.new(east, three, tmp_path)
        with flow.replicator(topic) as replicator:
            wait_until("it is about to begin", lambda: three.has_topic(f"mm2-claims.{flow.alias}.internal"))
            three.broker(3).start()
            replicator.wait_until_caught_up()
            guarantee = replicator.partition(topic)["guarantee"]
            flow.assert_committed(topic)

    assert guarantee == "exactly-once"
