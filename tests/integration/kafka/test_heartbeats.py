"""Heartbeats: Java's clients find upstream clusters by ours, Java's MirrorMaker copies them, and a failure is reported.

The topic is called `heartbeats` on every cluster, so these tests have three of their own; no test leaves it behind.
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


def beating(
    source: KafkaCluster, target: KafkaCluster, folder: Path, properties: Mapping[str, str] | None = None
) -> Replicator:
    """A process with a MirrorHeartbeatConnector and nothing else; heartbeats from *source* to *target*."""
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


def written(cluster: KafkaCluster, topic: str = TOPIC) -> int:
    """How many heartbeats *topic* has."""
    return cluster.end_offsets(topic)[0] if cluster.has_topic(topic) else 0


def wait_for_heartbeats(cluster: KafkaCluster, count: int, topic: str = TOPIC) -> None:
    wait_until(f"{count} in {topic}", lambda: written(cluster, topic) >= count)


def status(replicator: Replicator, name: str = NAME) -> dict[str, Any]:
    return dict(replicator.rest(f"/connectors/{name}/status")[1])


def wait_for_state(replicator: Replicator, state: str) -> dict[str, Any]:
    """Until connector and task are in *state*; what REST says then."""

    said: dict[str, Any] = {}

    def reached() -> bool:
        said.update(status(replicator))
        return {state} == {said["connector"]["state"], *(task["state"] for task in said["tasks"])}

    wait_until(f"it is {state}", reached)
    return said


def ages(replicator: Replicator) -> dict[tuple[str, str, str], float]:
    """`mirrorflow_heartbeat_age_seconds` by flow, cluster and topic."""
    found = {}
    for line in replicator.metrics().splitlines():
        if line.startswith("mirrorflow_heartbeat_age_seconds{"):
            labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
            found[labels["flow"], labels["cluster"], labels["topic"]] = float(line.rpartition(" ")[2])
    return found


def test_a_process_may_have_a_heartbeat_connector_and_nothing_else(
    first: KafkaCluster, second: KafkaCluster, tmp_path: Path
) -> None:
    """Connect's REST, readiness, progress and metrics say that it runs, and that it copies nothing."""
    with beating(first, second, tmp_path) as alone:
        wait_for_heartbeats(second, 2)
        said = wait_for_state(alone, "RUNNING")
        names = alone.rest("/connectors")[1]
        info = alone.rest(f"/connectors/{NAME}")[1]
        tasks = alone.rest(f"/connectors/{NAME}/tasks")[1]
        topics = alone.rest(f"/connectors/{NAME}/topics")[1]
        root = alone.rest("/")[1]
        ready = alone.rest("/readyz")[0]
        progress = alone.progress()
        young = ages(alone)
        metrics = alone.metrics()
        assert 0 == alone.stop()
        log = alone.log_text()

    assert [NAME] == names
    assert [0] == [task["id"] for task in said["tasks"]]
    assert "trace" not in said["connector"]
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
    assert young.keys() == {("A->B", "B", TOPIC)}
    assert young["A->B", "B", TOPIC] < 10
    assert f'kafka_connect_connector_status{{connector="{NAME}",task="0",status="running"}} 1' in metrics
    assert "WARNING" not in log
    assert not first.has_topic(TOPIC)


@pytest.mark.timing
def test_a_heartbeats_topic_that_is_deleted_is_created_again(
    first: KafkaCluster, second: KafkaCluster, tmp_path: Path
):
    with beating(first, second, tmp_path):
        wait_for_heartbeats(second, 1)
        second.delete_topic(TOPIC)
        wait_for_heartbeats(second, 1)

    assert second.topic_config(TOPIC)["cleanup.policy"] == "compact"


def test_heartbeats_are_javas_and_come_each_second(
    first: KafkaCluster, second: KafkaCluster, tmp_path: Path
) -> None:
    """Topic, key, value, timestamp and interval, as Java's Heartbeat and its topic have them."""
    with beating(first, second, tmp_path) as ours:
        wait_for_heartbeats(second, 8)
        ours.stop()
    found = heartbeats(second)
    config = second.topic_config(TOPIC)

    assert 1 == second.topics()[TOPIC]
    assert "compact" == config["cleanup.policy"]
    assert {("A", "B", "000141000142")} == {(one.source_alias, one.target_alias, one.key) for one in found}
    assert [one.value for one in found] == [f"0000{one.timestamp_ms:016x}" for one in found]
    assert [one.timestamp_ms for one in found] == [one.record_timestamp_ms for one in found]
    assert 0.9 < _mean_interval_s(found) < 1.3


def _mean_interval_s(found: list[JavaHeartbeat]) -> float:
    times = [one.timestamp_ms / 1000 for one in found]
    return statistics.fmean(later - earlier for earlier, later in itertools.pairwise(times))


def test_java_knows_by_them_what_is_upstream_over_one_and_two_hops(
    first: KafkaCluster, second: KafkaCluster, third: KafkaCluster, tmp_path: Path
) -> None:
    """An mm2.properties of a chain: the ways back have heartbeats alone, and by these the copies tell of their sources."""
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
    with Replicator.mm2(chain, folder=tmp_path) as ours:
        wait_for_heartbeats(second, 2, "A.heartbeats")
        wait_for_heartbeats(third, 2, "B.A.heartbeats")
        wait_for_heartbeats(third, 2, "B.heartbeats")
        names = set(ours.rest("/connectors")[1])
        expected = {
            ("A->B", "B", "A.heartbeats"),
            ("B->C", "C", "B.heartbeats"),
            ("B->C", "C", "B.A.heartbeats"),
        }
        wait_until("the pulse is reported", lambda: expected <= ages(ours).keys())
        pulse = {key: age for key, age in ages(ours).items() if key in expected}
        assert 0 == ours.stop()

    assert {f"{one}->{other}.{NAME}" for one in "ABC" for other in "ABC" if one != other} <= names
    assert all(age < 30 for age in pulse.values()), pulse
    assert ((), {"A": -1, "B": -1, "C": -1, "D": -1}) == upstream(first)
    assert (("A",), {"A": 1, "B": -1, "C": -1, "D": -1}) == upstream(second)
    assert (("A", "B"), {"A": 2, "B": 1, "C": -1, "D": -1}) == upstream(third)
    copied = heartbeats(third, "B.A.heartbeats")
    assert {("B", "A"), ("C", "A")} >= {(one.source_alias, one.target_alias) for one in copied}


def upstream(cluster: KafkaCluster) -> tuple[tuple[str, ...], Mapping[str, int]]:
    """What Java sees from *cluster*: all clusters upstream, and the hops to each."""
    seen = clusters(cluster, ("A", "B", "C", "D"))
    return seen.upstream_clusters, seen.hops


def test_a_java_mirrormaker_copies_ours_and_writes_the_same(
    first: KafkaCluster, second: KafkaCluster, tmp_path: Path
) -> None:
    """Its copy of our heartbeats is ours, byte for byte; what it writes itself differs from ours in its time alone."""
    with (
        beating(second, first, tmp_path / "back") as back,
        MirrorMaker(source=first, target=second, topics="nothing") as java,
    ):
        wait_for_heartbeats(second, 3)
        java.wait_until_replicated(TOPIC, 3)
        java.stop()
        back.stop()
    javas = heartbeats(second)
    copied = heartbeats(second, "A.heartbeats")
    with beating(first, second, tmp_path / "forth") as forth:
        wait_for_heartbeats(second, len(javas) + 2)
        forth.stop()
    ours = heartbeats(second)[len(javas) :]

    assert copied == heartbeats(first)[: len(copied)]
    assert {"A": 1, "B": -1} == clusters(second, ("A", "B")).hops
    assert {one.key for one in javas} == {one.key for one in ours}
    assert all(one.value == f"0000{one.timestamp_ms:016x}" for one in (*javas, *ours))
    assert all(one.timestamp_ms == one.record_timestamp_ms for one in (*javas, *ours))


def test_heartbeats_on_the_source_spare_a_connector_for_the_way_back(
    first: KafkaCluster, second: KafkaCluster, tmp_path: Path
) -> None:
    """`mirrorflow.heartbeats.emit.to`: the source gets those that B->A would write."""
    with beating(first, second, tmp_path, {"mirrorflow.heartbeats.emit.to": "target,source"}) as both:
        wait_for_heartbeats(first, 2)
        wait_for_heartbeats(second, 2)
        both.stop()

    assert {("B", "A")} == {(one.source_alias, one.target_alias) for one in heartbeats(first)}
    assert {("A", "B")} == {(one.source_alias, one.target_alias) for one in heartbeats(second)}


@pytest.mark.faults
def test_a_broker_that_is_lost_is_reported_and_its_return_noticed(
    first: KafkaCluster, tmp_path: Path
) -> None:
    """The same process, FAILED and then RUNNING; what was missed is not written later, and its age is seen meanwhile."""
    with KafkaCluster(name="lost") as target, beating(first, target, tmp_path) as ours:
        wait_for_heartbeats(target, 2)
        target.broker(1).kill()
        said = wait_for_state(ours, "FAILED")
        wait_until("its age grows", lambda: ages(ours)["A->lost", "lost", TOPIC] > 3)
        before, stuck = ours.pid, ours.progress()
        target.broker(1).start()
        wait_for_state(ours, "RUNNING")
        wait_until("it is young", lambda: ages(ours)["A->lost", "lost", TOPIC] < 3)
        assert before == ours.pid
        times = [one.timestamp_ms for one in heartbeats(target)]

    assert "lost" in said["connector"]["trace"]
    assert ("Stuck", "FAILED") == (stuck["replicating"], stuck["state"])
    assert times == sorted(times)
    assert max(later - earlier for earlier, later in itertools.pairwise(times)) > 2_500


def test_a_topic_that_cannot_be_created_is_named_and_found_when_it_is_there(
    first: KafkaCluster, second: KafkaCluster, tmp_path: Path
) -> None:
    """MM2's default of 3 replicas on one broker: REST names the setting; where the topic exists, it is used."""
    with beating(first, second, tmp_path, {"heartbeats.topic.replication.factor": "3"}) as ours:
        said = wait_for_state(ours, "FAILED")
        ready, progress = ours.rest("/readyz")[0], ours.progress()
        second.create_topic(TOPIC)
        wait_for_heartbeats(second, 2)
        wait_for_state(ours, "RUNNING")
        log = ours.log_text()

    for trace in (said["connector"]["trace"], said["tasks"][0]["trace"]):
        assert trace.startswith("heartbeats.topic.replication.factor: ")
        assert TOPIC in trace
    assert 503 == ready
    assert ("Stuck", 1) == (progress["replicating"], progress["tasks"]["failed"])
    assert 1 == sum("heartbeats.topic.replication.factor" in line for line in log.splitlines())


def test_a_source_that_refuses_heartbeats_is_a_warning(second: KafkaCluster, tmp_path: Path) -> None:
    """A source that grants reading alone: the target gets its heartbeats, and REST says what the source lacks."""
    with KafkaCluster(name="guarded", listeners=("SASL_PLAINTEXT",), authorizer=True) as guarded:
        guarded.allow("DESCRIBE", "TOPIC", TOPIC)
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        client = guarded.java_client("SASL_PLAINTEXT") | {
            "sasl.jaas.config": f'{module} required username="mirror" password="mirror-secret";'
        }
        lines = {f"source.cluster.{key}": value for key, value in client.items()}
        with beating(
            guarded, second, tmp_path, lines | {"mirrorflow.heartbeats.emit.to": "target,source"}
        ) as ours:
            wait_for_heartbeats(second, 2)
            refused = "No heartbeats to guarded"
            wait_until("it is reported", lambda: refused in status(ours)["connector"].get("trace", ""))
            said = wait_for_state(ours, "RUNNING")
            for operation in ("CREATE", "WRITE", "DESCRIBE"):
                guarded.allow(operation, "TOPIC", TOPIC)
            wait_for_heartbeats(guarded, 2)
            wait_until("it is over", lambda: "trace" not in status(ours)["connector"])

    assert TOPIC in said["connector"]["trace"]


def copying(source: KafkaCluster, target: KafkaCluster, folder: Path) -> Replicator:
    """A MirrorSourceConnector that lists topics as rarely as by default."""
    rarely = {"refresh.topics.interval.seconds": "600"}
    return Replicator.standalone(source, target, topics="orders", folder=folder, connector=rarely)


@pytest.mark.parametrize("flow", ["the same", "the opposite"])
def test_heartbeats_that_come_after_the_source_connector_are_copied_at_once(
    flow: str, first: KafkaCluster, second: KafkaCluster, tmp_path: Path
) -> None:
    """Java's MirrorClient then knows the source as upstream, not ten minutes later."""
    first.create_topic("orders")
    heartbeat = (
        beating(first, second, tmp_path / "heartbeat", {"mirrorflow.heartbeats.emit.to": "source"})
        if flow == "the same"
        else beating(second, first, tmp_path / "heartbeat")
    )

    with copying(first, second, tmp_path / "source") as source:
        source.wait_until_caught_up()
        assert {"A": -1} == clusters(second, ["A"]).hops
        with heartbeat:
            wait_until("the source has them", lambda: first.has_topic(TOPIC))
            seen = wait_until("the target has them", lambda: written(second, f"A.{TOPIC}") > 0)

    assert seen
    assert {"A": 1} == clusters(second, ["A"]).hops
