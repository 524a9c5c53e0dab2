"""Java's clients find upstream clusters by heartbeats, Java's MirrorMaker copies heartbeats, and failures are reported.

The topic is `heartbeats` on every cluster. Therefore these tests have three clusters of their own and delete the topic
afterwards.
"""

import itertools
import re
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.mirror_client import JavaHeartbeat, clusters, heartbeats
from tests.harness.kafka.mm2 import MirrorMaker
from tests.harness.kafka.processes import wait_until
from tests.harness.replicator import Replicator

pytestmark = pytest.mark.more

TOPIC = "heartbeats"
NAME = "MirrorHeartbeatConnector"


@pytest.fixture(scope="module")
def first() -> Iterator[KafkaCluster]:
    with KafkaCluster(name="A") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def second() -> Iterator[KafkaCluster]:
    with KafkaCluster(name="B") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def third() -> Iterator[KafkaCluster]:
    with KafkaCluster(name="C") as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def _tidy(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    for name in {"first", "second", "third"} & set(request.fixturenames):
        cluster = request.getfixturevalue(name)
        for topic in cluster.topics():
            if not topic.startswith("__"):
                cluster.delete_topic(topic)


def heartbeat_process(
    source: KafkaCluster, target: KafkaCluster, folder: Path, properties: Mapping[str, str] | None = None
) -> Replicator:
    """Returns a process with only a MirrorHeartbeatConnector. Heartbeats go from *source* to *target*."""
    lines = {
        "name": NAME,
        "connector.class": NAME,
        "source.cluster.alias": source.name,
        "target.cluster.alias": target.name,
        "source.cluster.bootstrap.servers": source.bootstrap,
        "target.cluster.bootstrap.servers": target.bootstrap,
        "heartbeats.topic.replication.factor": "1",
    }
    worker = {"bootstrap.servers": target.bootstrap, "mirrorflow.http.listeners": "http://127.0.0.1:0"}
    return Replicator(
        form="standalone", files=(worker, lines | dict(properties or {})), folder=folder, name="heartbeats"
    )


def heartbeat_count(cluster: KafkaCluster, topic: str = TOPIC) -> int:
    """Returns the number of heartbeats in *topic*."""
    return cluster.end_offsets(topic)[0] if cluster.has_topic(topic) else 0


def wait_for_heartbeats(cluster: KafkaCluster, count: int, topic: str = TOPIC) -> None:
    wait_until(f"{topic} has {count} records", lambda: heartbeat_count(cluster, topic) >= count)


def status(replicator: Replicator, name: str = NAME) -> dict[str, Any]:
    return dict(replicator.rest(f"/connectors/{name}/status")[1])


def wait_for_state(replicator: Replicator, state: str) -> dict[str, Any]:
    """Waits until connector and task are in *state*, and returns the status."""

    current: dict[str, Any] = {}

    def reached() -> bool:
        current.update(status(replicator))
        return {state} == {current["connector"]["state"], *(task["state"] for task in current["tasks"])}

    wait_until(f"the connector is {state}", reached)
    return current


def ages(replicator: Replicator) -> dict[tuple[str, str, str], float]:
    """Returns `mirrorflow_heartbeat_age_seconds` by flow, cluster and topic."""
    ages_s = {}
    for line in replicator.metrics().splitlines():
        if line.startswith("mirrorflow_heartbeat_age_seconds{"):
            labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
            ages_s[labels["flow"], labels["cluster"], labels["topic"]] = float(line.rpartition(" ")[2])
    return ages_s


def test_a_process_may_run_only_a_heartbeat_connector(
    first: KafkaCluster, second: KafkaCluster, tmp_path: Path
) -> None:
    """Connect's REST API, readiness, progress and metrics report that it runs and copies nothing."""
    with heartbeat_process(first, second, tmp_path) as process:
        wait_for_heartbeats(second, 2)
        rest_status = wait_for_state(process, "RUNNING")
        names = process.rest("/connectors")[1]
        info = process.rest(f"/connectors/{NAME}")[1]
        tasks = process.rest(f"/connectors/{NAME}/tasks")[1]
        topics = process.rest(f"/connectors/{NAME}/topics")[1]
        root = process.rest("/")[1]
        ready = process.rest("/readyz")[0]
        progress = process.progress()
        heartbeat_ages = ages(process)
        metrics = process.metrics()
        assert 0 == process.stop()
        log = process.log_text()

    assert [NAME] == names
    assert [0] == [task["id"] for task in rest_status["tasks"]]
    assert "trace" not in rest_status["connector"]
    assert ([{"connector": NAME, "task": 0}], "source") == (info["tasks"], info["type"])
    assert NAME == tasks[0]["config"]["connector.class"]
    assert {NAME: {"topics": [TOPIC]}} == topics
    assert second.cluster_id == root["kafka_cluster_id"]
    assert 200 == ready
    assert ("RUNNING", {"total": 1, "running": 1, "failed": 0}) == (progress["state"], progress["tasks"])
    assert (0, "Idle", False) == (
        progress["partitions"]["total"],
        progress["replicating"],
        progress["caughtUp"],
    )
    assert heartbeat_ages.keys() == {("A->B", "B", TOPIC)}
    assert heartbeat_ages["A->B", "B", TOPIC] < 10
    assert f'kafka_connect_connector_status{{connector="{NAME}",task="0",status="running"}} 1' in metrics
    assert "WARNING" not in log
    assert not first.has_topic(TOPIC)


@pytest.mark.timing
def test_a_deleted_heartbeats_topic_is_created_again(
    first: KafkaCluster, second: KafkaCluster, tmp_path: Path
):
    with heartbeat_process(first, second, tmp_path):
        wait_for_heartbeats(second, 1)
        second.delete_topic(TOPIC)
        wait_for_heartbeats(second, 1)

    assert second.topic_config(TOPIC)["cleanup.policy"] == "compact"


def test_heartbeats_equal_javas_and_are_emitted_each_second(
    first: KafkaCluster, second: KafkaCluster, tmp_path: Path
) -> None:
    """Topic, key, value, timestamp and interval equal those of Java's Heartbeat."""
    with heartbeat_process(first, second, tmp_path) as mirrorflow:
        wait_for_heartbeats(second, 8)
        mirrorflow.stop()
    emitted = heartbeats(second)
    config = second.topic_config(TOPIC)

    assert 1 == second.topics()[TOPIC]
    assert "compact" == config["cleanup.policy"]
    assert {("A", "B", "000141000142")} == {
        (heartbeat.source_alias, heartbeat.target_alias, heartbeat.key) for heartbeat in emitted
    }
    assert [heartbeat.value for heartbeat in emitted] == [
        f"0000{heartbeat.timestamp_ms:016x}" for heartbeat in emitted
    ]
    assert [heartbeat.timestamp_ms for heartbeat in emitted] == [
        heartbeat.record_timestamp_ms for heartbeat in emitted
    ]
    assert 0.9 < _mean_interval_s(emitted) < 1.3


def _mean_interval_s(emitted: list[JavaHeartbeat]) -> float:
    times = [heartbeat.timestamp_ms / 1000 for heartbeat in emitted]
    return statistics.fmean(later - earlier for earlier, later in itertools.pairwise(times))


def test_java_finds_upstream_clusters_over_one_and_two_hops(
    first: KafkaCluster, second: KafkaCluster, third: KafkaCluster, tmp_path: Path
) -> None:
    """An mm2.properties has a chain. The reverse flows only emit heartbeats, and the copies identify their sources."""
    chain = {
        "clusters": "A, B, C",
        "A.bootstrap.servers": first.bootstrap,
        "B.bootstrap.servers": second.bootstrap,
        "C.bootstrap.servers": third.bootstrap,
        "A->B.enabled": "true",
        "B->C.enabled": "true",
        "topics": "nothing-but-heartbeats",
        "replication.factor": "1",
        "heartbeats.topic.replication.factor": "1",
        "offset-syncs.topic.replication.factor": "1",
        "checkpoints.topic.replication.factor": "1",
        "offset.storage.replication.factor": "1",
        "refresh.topics.interval.seconds": "1",
    }
    with Replicator.mm2(chain, folder=tmp_path) as mirrorflow:
        wait_for_heartbeats(second, 2, "A.heartbeats")
        wait_for_heartbeats(third, 2, "B.A.heartbeats")
        wait_for_heartbeats(third, 2, "B.heartbeats")
        names = set(mirrorflow.rest("/connectors")[1])
        expected = {
            ("A->B", "B", "A.heartbeats"),
            ("B->C", "C", "B.heartbeats"),
            ("B->C", "C", "B.A.heartbeats"),
        }
        wait_until("the heartbeat ages are reported", lambda: expected <= ages(mirrorflow).keys())
        heartbeat_ages = {key: age for key, age in ages(mirrorflow).items() if key in expected}
        assert 0 == mirrorflow.stop()

    assert {f"{source}->{target}.{NAME}" for source in "ABC" for target in "ABC" if source != target} <= names
    assert all(age < 30 for age in heartbeat_ages.values()), heartbeat_ages
    assert ((), {"A": -1, "B": -1, "C": -1, "D": -1}) == upstream(first)
    assert (("A",), {"A": 1, "B": -1, "C": -1, "D": -1}) == upstream(second)
    assert (("A", "B"), {"A": 2, "B": 1, "C": -1, "D": -1}) == upstream(third)
    copied = heartbeats(third, "B.A.heartbeats")
    assert {("B", "A"), ("C", "A")} >= {
        (heartbeat.source_alias, heartbeat.target_alias) for heartbeat in copied
    }


def upstream(cluster: KafkaCluster) -> tuple[tuple[str, ...], Mapping[str, int]]:
    """Returns what Java's client finds from *cluster*, which are all upstream clusters and the number of hops to each."""
    mirrored = clusters(cluster, ("A", "B", "C", "D"))
    return mirrored.upstream_clusters, mirrored.hops


def test_java_mirrormaker_copies_mirrorflows_heartbeats_and_writes_equal_ones(
    first: KafkaCluster, second: KafkaCluster, tmp_path: Path
) -> None:
    """Its copy of MirrorFlow's heartbeats is identical. Its own heartbeats differ only in their timestamps."""
    with (
        heartbeat_process(second, first, tmp_path / "back") as back,
        MirrorMaker(source=first, target=second, topics="nothing") as java,
    ):
        wait_for_heartbeats(second, 3)
        java.wait_until_replicated(TOPIC, 3)
        java.stop()
        back.stop()
    javas = heartbeats(second)
    copied = heartbeats(second, "A.heartbeats")
    with heartbeat_process(first, second, tmp_path / "forth") as forth:
        wait_for_heartbeats(second, len(javas) + 2)
        forth.stop()
    mirrorflow = heartbeats(second)[len(javas) :]

    assert copied == heartbeats(first)[: len(copied)]
    assert {"A": 1, "B": -1} == clusters(second, ("A", "B")).hops
    assert {heartbeat.key for heartbeat in javas} == {heartbeat.key for heartbeat in mirrorflow}
    assert all(heartbeat.value == f"0000{heartbeat.timestamp_ms:016x}" for heartbeat in (*javas, *mirrorflow))
    assert all(heartbeat.timestamp_ms == heartbeat.record_timestamp_ms for heartbeat in (*javas, *mirrorflow))


def test_heartbeats_on_the_source_replace_a_connector_of_the_reverse_flow(
    first: KafkaCluster, second: KafkaCluster, tmp_path: Path
) -> None:
    """With `mirrorflow.heartbeats.emit.to`, the source receives the heartbeats that B->A would emit."""
    with heartbeat_process(
        first, second, tmp_path, {"mirrorflow.heartbeats.emit.to": "target,source"}
    ) as both:
        wait_for_heartbeats(first, 2)
        wait_for_heartbeats(second, 2)
        both.stop()

    assert {("B", "A")} == {
        (heartbeat.source_alias, heartbeat.target_alias) for heartbeat in heartbeats(first)
    }
    assert {("A", "B")} == {
        (heartbeat.source_alias, heartbeat.target_alias) for heartbeat in heartbeats(second)
    }


@pytest.mark.faults
def test_a_lost_broker_fails_the_connector_until_it_returns(first: KafkaCluster, tmp_path: Path) -> None:
    """The same process is first FAILED and then RUNNING.

    Missed heartbeats are not emitted later, and meanwhile the age grows.
    """
    with KafkaCluster(name="lost") as target, heartbeat_process(first, target, tmp_path) as mirrorflow:
        wait_for_heartbeats(target, 2)
        target.broker(1).kill()
        failed_status = wait_for_state(mirrorflow, "FAILED")
        wait_until("the heartbeat age grows", lambda: ages(mirrorflow)["A->lost", "lost", TOPIC] > 3)
        before, stuck = mirrorflow.pid, mirrorflow.progress()
        target.broker(1).start()
        wait_for_state(mirrorflow, "RUNNING")
        wait_until("the heartbeat is recent", lambda: ages(mirrorflow)["A->lost", "lost", TOPIC] < 3)
        assert before == mirrorflow.pid
        times = [heartbeat.timestamp_ms for heartbeat in heartbeats(target)]

    assert "lost" in failed_status["connector"]["trace"]
    assert ("Stuck", "FAILED") == (stuck["replicating"], stuck["state"])
    assert times == sorted(times)
    assert max(later - earlier for earlier, later in itertools.pairwise(times)) > 2_500


def test_a_heartbeats_topic_that_cannot_be_created_is_reported_and_used_once_it_exists(
    first: KafkaCluster, second: KafkaCluster, tmp_path: Path
) -> None:
    """MM2's default of 3 replicas fails on one broker. REST names the setting. Once the topic exists, it is used."""
    with heartbeat_process(
        first, second, tmp_path, {"heartbeats.topic.replication.factor": "3"}
    ) as mirrorflow:
        failed_status = wait_for_state(mirrorflow, "FAILED")
        ready, progress = mirrorflow.rest("/readyz")[0], mirrorflow.progress()
        second.create_topic(TOPIC)
        wait_for_heartbeats(second, 2)
        wait_for_state(mirrorflow, "RUNNING")
        log = mirrorflow.log_text()

    for trace in (failed_status["connector"]["trace"], failed_status["tasks"][0]["trace"]):
        assert trace.startswith("heartbeats.topic.replication.factor: ")
        assert TOPIC in trace
    assert 503 == ready
    assert ("Stuck", 1) == (progress["replicating"], progress["tasks"]["failed"])
    assert 1 == sum("heartbeats.topic.replication.factor" in line for line in log.splitlines())


def test_a_source_that_refuses_heartbeats_causes_a_warning(second: KafkaCluster, tmp_path: Path) -> None:
    """The source grants only reading. The target receives its heartbeats, and REST reports the missing permission."""
    with KafkaCluster(name="guarded", listeners=("SASL_PLAINTEXT",), authorizer=True) as secured:
        secured.allow("DESCRIBE", "TOPIC", TOPIC)
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        client = secured.java_client("SASL_PLAINTEXT") | {
            "sasl.jaas.config": f'{module} required username="mirror" password="mirror-secret";'
        }
        lines = {f"source.cluster.{key}": value for key, value in client.items()}
        with heartbeat_process(
            secured, second, tmp_path, lines | {"mirrorflow.heartbeats.emit.to": "target,source"}
        ) as mirrorflow:
            wait_for_heartbeats(second, 2)
            refused = "No heartbeats to guarded"
            wait_until(
                "the refusal is reported", lambda: refused in status(mirrorflow)["connector"].get("trace", "")
            )
            rest_status = wait_for_state(mirrorflow, "RUNNING")
            for operation in ("CREATE", "WRITE", "DESCRIBE"):
                secured.allow(operation, "TOPIC", TOPIC)
            wait_for_heartbeats(secured, 2)
            wait_until("the warning is gone", lambda: "trace" not in status(mirrorflow)["connector"])

    assert TOPIC in rest_status["connector"]["trace"]


def source_process(source: KafkaCluster, target: KafkaCluster, folder: Path) -> Replicator:
    """Returns a MirrorSourceConnector that discovers topics every ten minutes, which is the default."""
    rarely = {"refresh.topics.interval.seconds": "600"}
    return Replicator.standalone(source, target, topics="orders", folder=folder, connector=rarely)


@pytest.mark.parametrize("flow", ["the same", "the opposite"])
def test_heartbeats_that_begin_after_the_source_connector_are_copied_at_once(
    flow: str, first: KafkaCluster, second: KafkaCluster, tmp_path: Path
) -> None:
    """Java's MirrorClient finds the source as upstream at once, not ten minutes later."""
    first.create_topic("orders")
    heartbeat = (
        heartbeat_process(first, second, tmp_path / "heartbeat", {"mirrorflow.heartbeats.emit.to": "source"})
        if flow == "the same"
        else heartbeat_process(second, first, tmp_path / "heartbeat")
    )

    with source_process(first, second, tmp_path / "source") as source:
        source.wait_until_caught_up()
        assert {"A": -1} == clusters(second, ["A"]).hops
        with heartbeat:
            wait_until("the source has heartbeats", lambda: first.has_topic(TOPIC))
            copied = wait_until(
                "the target has heartbeats", lambda: heartbeat_count(second, f"A.{TOPIC}") > 0
            )

    assert copied
    assert {"A": 1} == clusters(second, ["A"]).hops
