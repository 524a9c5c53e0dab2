"""The REST of a live process as a client of Kafka Connect meets it: paths, bodies, and figures that agree with Kafka.

Shapes are those of Connect 4.3; what `tests/unit/http/test_rest.py` shows of bodies is here shown of a process.
"""

import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from mirrorflow_replicator.version import connect_version
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import wait_until
from tests.harness.replicator import Replicator
from tests.integration.kafka.comparing import produce

ALIAS = "restful"
NAME = "MirrorSourceConnector"
COUNTS = {("rest-orders", 0): 40, ("rest-orders", 1): 7, ("rest-bills", 0): 13}
CLASS = "org.apache.kafka.connect.mirror.MirrorSourceConnector"


@dataclass(frozen=True, kw_only=True, slots=True)
class Live:
    """A process that has copied everything."""

    process: Replicator
    target: KafkaCluster


@pytest.fixture(scope="module")
def live(east: KafkaCluster, west: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """Two topics, three partitions, two tasks."""
    east.create_topic("rest-orders", partitions=2)
    east.create_topic("rest-bills")
    now_ms = time.time_ns() // 1_000_000
    for (topic, partition), count in COUNTS.items():
        produce(east, topic, [(partition, now_ms, None, b"value", []) for _ in range(count)])
    folder: Path = tmp_path_factory.mktemp("rest")
    connector = {"source.cluster.alias": ALIAS, "tasks.max": "2"}
    with Replicator.standalone(east, west, topics="rest-.*", folder=folder, connector=connector) as process:
        process.wait_until_caught_up(partitions=3)
        wait_until("it is ready", lambda: process.rest("/readyz")[0] == 200)
        yield Live(process=process, target=west)
        process.kill()


def get(live: Live, path: str) -> object:
    """The body of a GET that is answered with 200."""
    status, body = live.process.rest(path)
    assert 200 == status, body
    return body


def test_root_names_the_targets_cluster(live: Live):
    """As Connect names the cluster that it keeps its topics in."""
    root = live.process.rest("/")[1]

    assert live.target.cluster_id == root["kafka_cluster_id"]
    assert {"version", "commit", "kafka_cluster_id"} == set(root)


def test_connectors_are_listed_and_expanded(live: Live):
    """`?expand=status&expand=info`, as Connect's user interfaces ask."""
    expanded = live.process.rest("/connectors?expand=status&expand=info")[1]

    assert [NAME] == get(live, "/connectors")
    assert {NAME: {"status", "info"}} == {name: set(parts) for name, parts in expanded.items()}
    assert get(live, f"/connectors/{NAME}") == expanded[NAME]["info"]
    assert get(live, f"/connectors/{NAME}/status") == expanded[NAME]["status"]


def test_status_has_the_workers_address(live: Live):
    """The worker's id is where it listens, for the connector and for each task; versions as Connect 4.1 reports them."""
    status = live.process.rest(f"/connectors/{NAME}/status")[1]
    runs = {
        "state": "RUNNING",
        "worker_id": live.process.url.removeprefix("http://"),
        "version": connect_version(),
    }

    assert runs == status["connector"]
    assert [{"id": number, **runs} for number in (0, 1)] == status["tasks"]
    assert "source" == status["type"]
    assert get(live, f"/connectors/{NAME}/tasks/1/status") == status["tasks"][1]


def test_config_is_the_file(live: Live):
    """Every line of the connector's file, by the name of the path."""
    assert live.process.files[1] == get(live, f"/connectors/{NAME}/config")


def test_tasks_share_the_partitions(live: Live):
    """`task.assigned.partitions` of all tasks together are the partitions, each once."""
    tasks = live.process.rest(f"/connectors/{NAME}/tasks")[1]
    assigned = [one for task in tasks for one in task["config"]["task.assigned.partitions"].split(",")]

    assert [{"connector": NAME, "task": number} for number in (0, 1)] == [task["id"] for task in tasks]
    assert ["rest-bills-0", "rest-orders-0", "rest-orders-1"] == sorted(assigned)


def test_topics_are_the_targets_names(live: Live):
    """Active topics are those that records were written to."""
    assert {NAME: {"topics": [f"{ALIAS}.rest-bills", f"{ALIAS}.rest-orders"]}} == get(
        live, f"/connectors/{NAME}/topics"
    )


def test_offsets_are_those_of_the_last_records(live: Live):
    """KIP-875 in MM2's terms: the offset of the last record copied, not of the next."""
    offsets = live.process.rest(f"/connectors/{NAME}/offsets")[1]["offsets"]

    assert all(one["partition"]["cluster"] == ALIAS for one in offsets)
    assert {
        (one["partition"]["topic"], one["partition"]["partition"]): one["offset"]["offset"] for one in offsets
    } == {place: count - 1 for place, count in COUNTS.items()}


def test_health_and_readiness(live: Live):
    """KIP-1017's, and ours for probes."""
    assert {"status": "healthy"}.items() <= dict(live.process.rest("/health")[1]).items()
    assert {"status": "ready"} == get(live, "/readyz")
    assert {"status": "alive"} == get(live, "/healthz")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/connectors/none", "Connector none not found"),
        ("/connectors/none/status", "No status found for connector none"),
        (f"/connectors/{NAME}/tasks/7/status", f"No status found for task {NAME}-7"),
        ("/none", "HTTP 404 Not Found"),
    ],
)
def test_what_is_not_there_has_connects_sentence(live: Live, path: str, message: str):
    """Clients tell by them."""
    assert (404, {"error_code": 404, "message": message}) == live.process.rest(path)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/connectors"),
        ("PUT", f"/connectors/{NAME}/config"),
        ("PATCH", f"/connectors/{NAME}/config"),
        ("DELETE", f"/connectors/{NAME}"),
        ("PUT", f"/connectors/{NAME}/pause"),
        ("PUT", f"/connectors/{NAME}/stop"),
        ("POST", f"/connectors/{NAME}/restart"),
        ("PATCH", f"/connectors/{NAME}/offsets"),
        ("DELETE", f"/connectors/{NAME}/offsets"),
        ("PUT", "/admin/loggers/root"),
    ],
)
def test_what_changes_something_is_forbidden(live: Live, method: str, path: str):
    """KIP-304: 403 with Connect's body, and nothing has changed."""
    status, body = live.process.rest(path, method=method, body={})

    assert (403, 403) == (status, body["error_code"])
    assert "rest.modify.enable" in body["message"]
    assert "RUNNING" == live.process.rest(f"/connectors/{NAME}/status")[1]["connector"]["state"]


def test_plugins_and_their_settings(live: Live):
    """The three connectors, and what each can be given."""
    plugins = {one["class"]: one["type"] for one in live.process.rest("/connector-plugins")[1]}
    known = {one["name"]: one for one in live.process.rest(f"/connector-plugins/{NAME}/config")[1]}

    assert "source" == plugins[CLASS]
    assert 3 == len(plugins)
    assert known["source.cluster.alias"]["required"]
    assert ("INT", "2") == (known["replication.factor"]["type"], known["replication.factor"]["default_value"])


def test_a_configuration_is_validated(live: Live):
    """PUT is allowed here, as it changes nothing: the running configuration is right, a wrong one is reported key by key."""
    path = f"/connector-plugins/{NAME}/config/validate"
    config = live.process.rest(f"/connectors/{NAME}/config")[1]
    right = live.process.rest(path, method="PUT", body=config)[1]
    wrong = live.process.rest(path, method="PUT", body=config | {"tasks.max": "many", "topics": "("})[1]
    errors = {one["value"]["name"]: one["value"]["errors"] for one in wrong["configs"]}

    assert (config["connector.class"], 0) == (right["name"], right["error_count"])
    assert 2 == wrong["error_count"]
    assert {"tasks.max", "topics"} == {name for name, found in errors.items() if found}


def test_tasks_measure_what_strimzis_dashboard_shows(live: Live):
    """Of each task that has copied and stored positions: nothing is under way, and all of its buffer is free."""

    def found(name: str) -> list[float]:
        pattern = rf"^{name}(?:\{{.*\}})? (\S+)$"
        return [float(number) for number in re.findall(pattern, live.process.metrics(), re.MULTILINE)]

    name = "kafka_connect_connector_task_offset_commit_avg_time_ms"
    wait_until("both tasks have stored positions", lambda: len(found(name)) == 2)
    assert all(0 < took < 60_000 for took in found(name))
    assert [0, 0] == found("kafka_connect_source_task_source_record_active_count")
    assert all(free > 0 for free in found("kafka_producer_buffer_available_bytes"))
    assert [2] == found("kafka_connect_coordinator_assigned_tasks")
    assert found("jvm_memory_used_bytes")[0] > 10_000_000
    assert found("jvm_threads_current")[0] >= 3


def test_progress_and_metrics_agree_with_kafka(live: Live):
    """Counts are those of the target's ends; no series stands twice."""
    metrics = live.process.metrics()
    series = Counter(line.rpartition(" ")[0] for line in metrics.splitlines() if line and line[0] != "#")
    counted = {
        (topic, int(partition)): int(float(count))
        for topic, partition, count in re.findall(
            rf'_record_count\{{source="{ALIAS}",target="west",topic="{ALIAS}\.([^"]+)",partition="(\d)"\}} (\S+)',
            metrics,
        )
    }
    ends = {
        (topic, partition): end
        for topic in ("rest-orders", "rest-bills")
        for partition, end in live.target.end_offsets(f"{ALIAS}.{topic}").items()
    }
    progress = live.process.progress()

    assert COUNTS == counted == ends
    assert [] == [name for name, count in series.items() if count > 1]
    assert (60, 0, True, "exactly-once") == (
        progress["records"],
        progress["lagRecords"],
        progress["caughtUp"],
        next(word for word, count in progress["guarantee"].items() if count == 3),
    )


def test_modifying_is_not_there_yet_even_if_enabled(east: KafkaCluster, west: KafkaCluster, tmp_path: Path):
    """`rest.modify.enable=true` opens the way, and says that there is nothing behind it."""
    with Replicator.standalone(
        east, west, topics="none", folder=tmp_path, worker={"rest.modify.enable": "true"}
    ) as open_:
        status, body = open_.rest(f"/connectors/{NAME}/pause", method="PUT")

    assert (501, 501) == (status, body["error_code"])
