"""Runs mm2.properties files of users: Kafka's own example, both directions, and secrets by reference.

These flows copy every topic (`.*`), so they have two clusters of their own.
"""

import re
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.listeners import User
from tests.harness.kafka.mm2 import MirrorMaker
from tests.harness.kafka.processes import wait_until
from tests.harness.replicator import Replicator
from tests.integration.kafka.comparing import assert_copied, produce

# Config/connect-mirror-maker.properties of Kafka 4.x, except for the addresses and the topic refresh interval.
EXAMPLE = """
# Licensed to A under one or more contributor agreements
# see org.apache.kafka.clients.consumer.ConsumerConfig for more details

# specify any number of cluster aliases
clusters = A, B

# connection information for each cluster
# This is a comma separated host:port pairs for each cluster
# for e.g. "A_host1:9092, A_host2:9092, A_host3:9092"
A.bootstrap.servers = {a}
B.bootstrap.servers = {b}

# enable and configure individual replication flows
A->B.enabled = true

# regex which defines which topics gets replicated. For eg "foo-.*"
A->B.topics = .*

B->A.enabled = true
B->A.topics = .*

# Setting replication factor of newly created remote topics
replication.factor=1

############################# Internal Topic Settings  #############################
# The replication factor for mm2 internal topics "heartbeats", "B.checkpoints.internal" and
# "mm2-offset-syncs.B.internal"
# For anything other than development testing, a value greater than 1 is recommended to ensure availability such as 3.
checkpoints.topic.replication.factor=1
heartbeats.topic.replication.factor=1
offset-syncs.topic.replication.factor=1

# The replication factor for connect internal topics "mm2-configs.B.internal", "mm2-offsets.B.internal" and
# "mm2-status.B.internal"
# For anything other than development testing, a value greater than 1 is recommended to ensure availability such as 3.
offset.storage.replication.factor=1
status.storage.replication.factor=1
config.storage.replication.factor=1

# customize as needed
# replication.policy.separator = _
# sync.topic.acls.enabled = false
# emit.heartbeats.interval.seconds = 5
"""
FAST_FLOW = "mirrorflow.http.listeners = http://127.0.0.1:0\nrefresh.topics.interval.seconds = 1\n"
NO_HEARTBEATS = "emit.heartbeats.enabled = false\n"
CONNECTOR_KINDS = ("Source", "Heartbeat", "Checkpoint")  # the order in which MM2 configures them
SASL = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="{user}" password="{password}";'
SECRET = "s3cret of the harness"


@pytest.fixture(scope="module")
def north() -> Iterator[KafkaCluster]:
    users = (User(), User(name="mirror2", password=SECRET))
    with KafkaCluster(name="A", listeners=("PLAINTEXT", "SASL_PLAINTEXT"), users=users) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def south() -> Iterator[KafkaCluster]:
    with KafkaCluster(name="B") as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def _tidy(request: pytest.FixtureRequest) -> Iterator[None]:
    """Deletes the topics of both clusters, because every test copies all topics."""
    yield
    for name in {"north", "south"} & set(request.fixturenames):
        cluster = request.getfixturevalue(name)
        for topic in cluster.topics():
            if not topic.startswith("__"):
                cluster.delete_topic(topic)


def run(text: str, folder: Path, *arguments: str, **environment: str) -> Replicator:
    return Replicator(form="mm2", files=(text,), folder=folder, arguments=arguments, environment=environment)


def write(cluster: KafkaCluster, topic: str, count: int) -> None:
    """Writes *count* records with current timestamps, because retention would delete old ones."""
    now_ms = time.time_ns() // 1_000_000
    produce(cluster, topic, [(0, now_ms + n, b"%d" % n, topic.encode(), []) for n in range(count)])


def own_topics(cluster: KafkaCluster) -> set[str]:
    return {name for name in cluster.topics() if not name.startswith("__")}


def series(text: str) -> Counter[str]:
    """Counts each series (name and labels) in Prometheus's text format."""
    return Counter(line.rpartition(" ")[0] for line in text.splitlines() if line and line[0] != "#")


def test_kafkas_own_example_runs_unchanged(north: KafkaCluster, south: KafkaCluster, tmp_path: Path):
    """The example copies all topics in both directions. Copies and internal topics are not copied."""
    others = {"mm2-offset-syncs.X.internal", "mm2-offsets.X.internal", "X.checkpoints.internal"}
    for name in ("orders", *sorted(others)):
        write(north, north.create_topic(name), 5)
    write(south, south.create_topic("bills"), 7)
    internal_topics = {"mm2-offsets.{}.internal", "mm2-claims.{}.internal", "mm2-offset-syncs.{}.internal"}
    internal_topics |= {"mm2-offset-map.{}.internal", "{}.checkpoints.internal", "{}.heartbeats"}
    internal_topics |= {"mm2-configs.{}.internal", "mm2-status.{}.internal"}
    on_north = {"orders", "late", "heartbeats", "B.bills", "B.later"}
    on_north |= others | {name.format("B") for name in internal_topics}
    on_south = {"bills", "later", "heartbeats", "A.orders", "A.late"} | {
        name.format("A") for name in internal_topics
    }
    with run(EXAMPLE.format(a=north.bootstrap, b=south.bootstrap) + FAST_FLOW, tmp_path) as both:
        both.wait_for_copy(south, "A.orders", 5)
        both.wait_for_copy(north, "B.bills", 7)
        # A refresh that lists the topics created here also lists the copies and MirrorFlow's internal topics.
        write(north, north.create_topic("late"), 3)
        write(south, south.create_topic("later"), 3)
        both.wait_for_copy(south, "A.late", 3)
        both.wait_for_copy(north, "B.later", 3)
        # Heartbeats are copied in both directions, but their copies are not copied back.
        both.wait_for_copy(south, "A.heartbeats", 2)
        both.wait_for_copy(north, "B.heartbeats", 2)
        wait_until(
            "all topics exist",
            lambda: own_topics(north) >= on_north and own_topics(south) >= on_south,
        )
        connectors = both.rest("/connectors")[1]
        assert 0 == both.stop()

    # If ACLs are synced, an ACL pass may have begun.
    assert on_north == own_topics(north) - {"mm2-identity.B.internal"}
    assert on_south == own_topics(south) - {"mm2-identity.A.internal"}
    names = [f"{flow}.Mirror{kind}Connector" for flow in ("A->B", "B->A") for kind in sorted(CONNECTOR_KINDS)]
    assert names == connectors
    assert_copied(north, "orders", south, "A.orders", count=5)
    assert_copied(south, "bills", north, "B.bills", count=7)


def test_the_identity_policy_accepts_an_empty_separator(
    north: KafkaCluster, south: KafkaCluster, tmp_path: Path
):
    """Many files set both, because an empty separator was the old way to keep names."""
    write(north, north.create_topic("orders"), 5)
    text = EXAMPLE.format(a=north.bootstrap, b=south.bootstrap).replace("B->A.enabled = true", "")
    policy = "replication.policy.class = org.apache.kafka.connect.mirror.IdentityReplicationPolicy\n"

    with run(
        f"{text}{policy}replication.policy.separator =\n{NO_HEARTBEATS}{FAST_FLOW}", tmp_path
    ) as process:
        process.wait_for_copy(south, "orders", 5)
        assert 0 == process.stop()

    assert_copied(north, "orders", south, "orders", count=5)


def test_a_mistyped_topic_is_logged_and_reported_with_a_suggestion(
    north: KafkaCluster, south: KafkaCluster, tmp_path: Path
):
    """Heartbeats of the source are still copied. The process keeps running, because the topic may be created later."""
    write(north, north.create_topic("orders"), 5)
    north.create_topic("heartbeats")
    text = EXAMPLE.format(a=north.bootstrap, b=south.bootstrap).replace("B->A.enabled = true", "")
    sentence = "No topic of A is selected."

    with run(text.replace("A->B.topics = .*", "A->B.topics = ordrs") + FAST_FLOW, tmp_path) as flow:
        wait_until(
            "the log and the progress give the reason",
            lambda: sentence in flow.log_text() and flow.progress()["reasons"],
        )
        log_lines = [line for line in flow.log_text().splitlines() if sentence in line]
        (reason,) = flow.progress()["reasons"]
        warnings = [line for line in flow.metrics().splitlines() if line.startswith("mirrorflow_warnings")]
        assert 0 == flow.stop()

    assert len(log_lines) == 1
    assert "WARNING" in log_lines[0]
    assert log_lines[0].endswith("`topics` has ordrs: is orders meant?")
    assert "NothingMatches" == reason["reason"]
    assert "is orders meant?" in reason["example"]
    assert warnings


def test_names_progress_and_metrics_of_two_flows_in_one_process_differ(
    north: KafkaCluster, south: KafkaCluster, tmp_path: Path
):
    """Every flow has a MirrorSourceConnector.

    The names of connectors, the progress and the metrics contain the flow's name.
    """
    write(north, north.create_topic("same"), 11)
    write(south, south.create_topic("same"), 4)
    text = EXAMPLE.format(a=north.bootstrap, b=south.bootstrap) + FAST_FLOW + NO_HEARTBEATS
    with run(text, tmp_path) as both:
        both.wait_for_copy(south, "A.same", 11)
        both.wait_for_copy(north, "B.same", 4)
        both.wait_until_caught_up(partitions=2)
        names = [name for name in both.rest("/connectors")[1] if "Source" in name]
        delivered = {
            name: both.rest(f"/progress?connector={name.replace('>', '%3E')}")[1]["records"] for name in names
        }
        status = both.rest("/connectors/B-%3EA.MirrorSourceConnector/status")[1]
        offsets = both.rest("/connectors/A-%3EB.MirrorSourceConnector/offsets")[1]["offsets"]
        partitions = {(partition["connector"], partition["targetTopic"]) for partition in both.partitions()}
        metrics = both.metrics()
        address = both.url.removeprefix("http://")

    forth, back = "A->B.MirrorSourceConnector", "B->A.MirrorSourceConnector"
    assert [forth, back] == names
    assert {forth: 11, back: 4} == delivered
    assert {(forth, "A.same"), (back, "B.same")} == partitions
    assert ("RUNNING", f"{address}/B->A") == (
        status["connector"]["state"],
        status["connector"]["worker_id"],
    )
    assert [
        {"partition": {"cluster": "A", "partition": 0, "topic": "same"}, "offset": {"offset": 10}}
    ] == offsets
    assert [] == [name for name, count in series(metrics).items() if count > 1]
    assert re.search(r'record_count\{source="A",target="B",topic="A.same",partition="0"\} 11', metrics)
    assert re.search(r'record_count\{source="B",target="A",topic="B.same",partition="0"\} 4', metrics)


@pytest.mark.more
def test_clusters_option_runs_only_flows_to_those_clusters(
    north: KafkaCluster, south: KafkaCluster, tmp_path: Path
):
    """`--clusters B` runs only A->B, although the file enables both flows."""
    write(north, north.create_topic("orders"), 5)
    write(south, south.create_topic("bills"), 5)
    text = EXAMPLE.format(a=north.bootstrap, b=south.bootstrap) + FAST_FLOW + NO_HEARTBEATS
    with run(text, tmp_path, "--clusters", "B") as process:
        process.wait_for_copy(south, "A.orders", 5)
        names = process.rest("/connectors")[1]
        assert 0 == process.stop()

    assert sorted(f"A->B.Mirror{kind}Connector" for kind in CONNECTOR_KINDS) == sorted(names)
    assert not north.has_topic("B.bills")


def test_the_quick_start_of_mm2s_readme_runs_despite_its_errors(
    north: KafkaCluster, south: KafkaCluster, tmp_path: Path
):
    """It has a comment after a value, an unknown `emit.heartbeats`, and no replication factor for a single broker.

    MM2's default factor is 2, so the topic cannot be created. The log and REST report that in one sentence.
    """
    write(north, north.create_topic("orders"), 5)
    text = f"""
clusters = A, B
A.bootstrap.servers = {north.bootstrap}
B.bootstrap.servers = {south.bootstrap}
# customize these as needed
topics = .*
groups = .*
emit.checkpoints.interval.seconds = 10
# configure a specific cluster
B.offset.storage.topic = mm2-offsets
# configure a specific source->target replication flow
A->B.emit.heartbeats = false
A->B.enabled = true      # disabled by default
"""
    with run(text + FAST_FLOW, tmp_path) as quick:
        wait_until("the log reports the topic", lambda: "A.orders" in quick.log_text())
        status = quick.rest("/connectors/A-%3EB.MirrorSourceConnector/status")[1]
        log_lines = [line for line in quick.log_text().splitlines() if "A.orders" in line]
        wait_until(
            "the progress reports the flow as stuck", lambda: quick.progress()["replicating"] == "Stuck"
        )
        reasons = quick.progress()["reasons"]

    assert 1 == len(log_lines)
    assert "2" in log_lines[0]
    assert "A.orders" in status["connector"]["trace"]
    assert [("TopicNotCopied", 1)] == [(reason["reason"], reason["count"]) for reason in reasons]
    assert south.has_topic("mm2-offsets")


def test_secrets_are_resolved_from_references_and_shown_nowhere(
    north: KafkaCluster, south: KafkaCluster, tmp_path: Path
):
    """`${file:...}` and `${env:...}` are resolved where the process runs.

    REST, metrics and the log do not show the values.
    """
    write(north, north.create_topic("orders"), 5)
    secrets = tmp_path / "secrets.properties"
    secrets.write_text(f"password={SECRET}\n")
    jaas = SASL.format(user="${env:MIRROR_USER}", password=f"${{file:{secrets}:password}}")
    port = north.bootstrap_for("SASL_PLAINTEXT")
    text = f"""
clusters = A, B
config.providers = file, env
config.providers.file.class = org.apache.kafka.common.config.provider.FileConfigProvider
config.providers.env.class = org.apache.kafka.common.config.provider.EnvVarConfigProvider
A.bootstrap.servers = {port}
A.security.protocol = SASL_PLAINTEXT
A.sasl.mechanism = SCRAM-SHA-512
A.sasl.jaas.config = {jaas}
B.bootstrap.servers = {south.bootstrap}
A->B.enabled = true
A->B.topics = orders
replication.factor = 1
rest.modify.enable = false
"""
    with run(text + FAST_FLOW, tmp_path, MIRROR_USER="mirror2") as flow:
        flow.wait_for_copy(south, "A.orders", 5)
        shown = flow.rest("/connectors/A-%3EB.MirrorSourceConnector")[1]
        everything = str(shown) + flow.metrics() + flow.log_text() + str(flow.partitions())

    assert jaas == shown["config"]["source.cluster.sasl.jaas.config"]
    assert SECRET not in everything


def test_the_unchanged_file_of_a_java_mm2_continues_at_its_positions(
    north: KafkaCluster, south: KafkaCluster, tmp_path: Path
):
    """The positions are where the file configures them, so nothing is copied twice.

    The topics of Java's MM2 are not changed.
    """
    write(north, north.create_topic("orders"), 300)
    with MirrorMaker(source=north, target=south, topics="orders") as java:
        java.wait_until_replicated("orders", 300)
        java.stop()
    write(north, "orders", 200)
    with Replicator.mm2(java.all_properties(), folder=tmp_path) as mirrorflow:
        mirrorflow.wait_for_copy(south, "A.orders", 500)
        mirrorflow.wait_until_caught_up()
        assert 0 == mirrorflow.stop()
    assert_copied(north, "orders", south, "A.orders", count=500)
    write(north, "orders", 100)
    with java:
        java.wait_until_replicated("orders", 600)
        java.stop()

    assert_copied(north, "orders", south, "A.orders", count=600)
