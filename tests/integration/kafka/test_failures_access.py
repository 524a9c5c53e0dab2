"""Wrong passwords and missing permissions are in the log, in REST and in /progress.

Once corrected, the flow continues by itself.
"""

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
def secured() -> Iterator[KafkaCluster]:
    """A broker that requires a password and grants nothing by default.

    It is the source of some tests, and the target of others.
    """
    with KafkaCluster(name=ALIAS, listeners=("SASL_PLAINTEXT",), authorizer=True) as cluster:
        yield cluster


def lines(side: str, cluster: KafkaCluster, password: str = "mirror-secret") -> dict[str, str]:
    """Returns the connector's properties to connect to *cluster* as `mirror`."""
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
    return {entry["reason"] for entry in replicator.progress()["reasons"]}


def status(replicator: Replicator) -> str:
    """Returns everything that REST reports of the connector and its tasks."""
    name = replicator.rest("/connectors")[1][0]
    return str(replicator.rest(f"/connectors/{name}/status")[1])


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_corrected_password_is_used_without_a_restart(
    secured: KafkaCluster,
    east: KafkaCluster,
    west: KafkaCluster,
    unique_topic: Names,
    tmp_path: Path,
    side: str,
) -> None:
    """The file of ${file:...} first lacks the key, then has a wrong password, and then the correct one.

    No password is ever shown.
    """
    source, target = (secured, west) if side == "source" else (east, secured)
    topic = source.create_topic(unique_topic())
    alias = topic.upper()
    load(source, topic, 300, keys=True)
    allow_source(secured, topic)
    allow_target(secured, alias)
    secret = tmp_path / "secret.properties"
    secret.write_text("passwort=hunter2-wrong\n")
    reference = f"${{file:{secret}:password}}"
    provider = {
        "config.providers": "file",
        "config.providers.file.class": "org.apache.kafka.common.config.provider.FileConfigProvider",
    }
    worker = provider | (client(secured, reference) if side == "target" else {})
    connector = {"source.cluster.alias": alias, **lines(side, secured, reference)}

    with Replicator.standalone(
        source, target, topics=topic, folder=tmp_path, connector=connector, worker=worker
    ) as replicator:
        missing = wait_until("the missing secret is reported", lambda: replicator.progress().get("missing"))
        assert "SecretMissing" in reasons(replicator)
        secret.write_text("password=hunter2-wrong\n")
        wait_until("the wrong password is reported", lambda: "AuthenticationFailed" in reasons(replicator))
        refused = replicator.progress()
        rest_status = status(replicator)
        secret.write_text("password=mirror-secret\n")
        replicator.wait_until_caught_up()
        log = replicator.log_text()
        assert reasons(replicator) == set()

    assert {"path": str(secret), "key": "password"} == missing
    assert ("Unreachable", "AuthenticationFailed") == (refused[side]["reach"], refused[side]["reason"])
    assert "missing" not in refused
    message = f"Cluster {alias if side == 'source' else ALIAS} at {secured.bootstrap}: "
    assert message in rest_status
    assert message in log
    assert "hunter2" not in rest_status + log
    assert "mirror-secret" not in rest_status + log
    assert_copied(source, topic, target, f"{alias}.{topic}", count=300)


def allow_target(cluster: KafkaCluster, alias: str, *, but: str = "") -> None:
    """Grants what `mirrorflow acls` prints for the target of a flow with *alias*, except the operation *but* on the
    copies.
    """
    internal = ("READ", "WRITE", "CREATE", "DESCRIBE", "DESCRIBE_CONFIGS")
    for operation in (*internal, "ALTER", "ALTER_CONFIGS"):
        if operation != but:
            cluster.allow(operation, "TOPIC", f"{alias}.", prefixed=True)
    for operation in internal:
        for name in (
            f"mm2-offsets.{alias}.internal",
            f"mm2-offset-map.{alias}.internal",
            f"mm2-claims.{alias}.internal",
            f"mm2-identity.{alias}.internal",  # needed if the flow syncs ACLs
        ):
            cluster.allow(operation, "TOPIC", name)
    for operation in ("WRITE", "DESCRIBE"):
        cluster.allow(operation, "TRANSACTIONAL_ID", TransactionalIds(alias).prefix, prefixed=True)


@pytest.mark.parametrize("operation", ["DESCRIBE", "READ"])
def test_a_missing_source_permission_is_reported_until_it_is_granted(
    secured: KafkaCluster, west: KafkaCluster, unique_topic: Names, tmp_path: Path, operation: str
) -> None:
    """Without Describe the topic is not visible, and without Read its partition stops.

    Once granted, copying begins by itself.
    """
    topic = secured.create_topic(unique_topic())
    load(secured, topic, 300, keys=True)
    if operation == "READ":
        secured.allow("DESCRIBE", "TOPIC", topic)
    connector = {"source.cluster.alias": topic.upper(), **lines("source", secured)}

    with Replicator.standalone(
        secured, west, topics=topic, folder=tmp_path, connector=connector
    ) as replicator:
        if operation == "READ":
            partition_status = replicator.wait_for_phase("stopped", topic)
            assert partition_status["reason"] == "NotAuthorized"
            assert f"does not authorize Read on topic {topic}" in partition_status["message"]
            assert f"does not authorize Read on topic {topic}" in status(replicator)
        else:
            wait_until(
                "the missing permission is reported",
                lambda: "Describe on them is not granted" in status(replicator),
            )
        allow_source(secured, topic)
        replicator.wait_until_caught_up()
        assert reasons(replicator) == set()

    assert_copied(secured, topic, west, f"{topic.upper()}.{topic}", count=300)


@pytest.mark.parametrize("operation", ["CREATE", "WRITE"])
def test_a_missing_target_permission_is_reported_until_it_is_granted(
    east: KafkaCluster, secured: KafkaCluster, unique_topic: Names, tmp_path: Path, operation: str
) -> None:
    """Without Create the topic causes a warning, and without Write its partition stops. Once granted, it is copied."""
    topic = east.create_topic(unique_topic())
    alias = topic.upper()
    load(east, topic, 300, keys=True)
    allow_target(secured, alias, but=operation)
    connector = {"source.cluster.alias": alias, **lines("target", secured)}

    with Replicator.standalone(
        east, secured, topics=topic, folder=tmp_path, connector=connector, worker=client(secured)
    ) as replicator:
        if operation == "WRITE":
            partition_status = replicator.wait_for_phase("stopped", topic)
            assert partition_status["reason"] == "NotAuthorized"
        word = operation.capitalize()
        message = f"does not authorize {word} on topic {alias}.{topic}"
        wait_until("REST reports the missing permission", lambda: message in status(replicator))
        wait_until("the log reports the missing permission", lambda: message in replicator.log_text())
        secured.allow(operation, "TOPIC", f"{alias}.", prefixed=True)
        replicator.wait_until_caught_up()

    assert_copied(east, topic, secured, f"{alias}.{topic}", count=300)


def test_records_are_copied_to_a_target_that_cannot_coordinate_transactions(
    east: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """A single broker cannot create a transaction topic with three replicas. The flow does not wait for it."""
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
def test_a_flow_is_exactly_once_even_if_a_broker_was_down_at_its_start(
    east: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """The transaction topic needs three replicas. No transaction is coordinated before the third broker runs."""
    topic = east.create_topic(unique_topic())
    load(east, topic, 300, keys=True)
    with KafkaCluster(name="three", brokers=3) as three:
        three.create_topic("held", partitions=3, replication_factor=3)
        three.broker(3).stop()
        flow = Flow.new(east, three, tmp_path)
        with flow.replicator(topic) as replicator:
            wait_until(
                "the flow is about to start", lambda: three.has_topic(f"mm2-claims.{flow.alias}.internal")
            )
            three.broker(3).start()
            replicator.wait_until_caught_up()
            guarantee = replicator.partition(topic)["guarantee"]
            flow.assert_committed(topic)

    assert guarantee == "exactly-once"
