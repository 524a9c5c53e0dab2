"""The REST API of a live process, as clients of Kafka Connect use it: paths, bodies, and figures that agree with Kafka.

Bodies have the structure of Connect 4.3. `tests/unit/http/test_rest.py` tests them without a process.
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
class LiveProcess:
    """A process that has copied all records, and its target."""

    process: Replicator
    target: KafkaCluster


@pytest.fixture(scope="module")
def live(
    east: KafkaCluster, west: KafkaCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveProcess]:
    """Runs a process with two topics, three partitions and two tasks."""
    east.create_topic("rest-orders", partitions=2)
    east.create_topic("rest-bills")
    now_ms = time.time_ns() // 1_000_000
    for (topic, partition), count in COUNTS.items():
        produce(east, topic, [(partition, now_ms, None, b"value", []) for _ in range(count)])
    folder: Path = tmp_path_factory.mktemp("rest")
    connector = {"source.cluster.alias": ALIAS, "tasks.max": "2"}
    with Replicator.standalone(east, west, topics="rest-.*", folder=folder, connector=connector) as process:
        process.wait_until_caught_up(partitions=3)
        wait_until("the process is ready", lambda: process.rest("/readyz")[0] == 200)
        yield LiveProcess(process=process, target=west)
        process.kill()


def get(live: LiveProcess, path: str) -> object:
    """Returns the body of a GET with status 200."""
    status, body = live.process.rest(path)
    assert 200 == status, body
    return body


def test_root_has_the_targets_cluster_id(live: LiveProcess):
    """Connect returns the id of the cluster with its topics."""
    root = live.process.rest("/")[1]

    assert live.target.cluster_id == root["kafka_cluster_id"]
    assert {"version", "commit", "kafka_cluster_id"} == set(root)


def test_connectors_are_listed_and_expanded(live: LiveProcess):
    """`?expand=status&expand=info`, as Connect's user interfaces request it."""
    expanded = live.process.rest("/connectors?expand=status&expand=info")[1]

    assert [NAME] == get(live, "/connectors")
    assert {NAME: {"status", "info"}} == {name: set(parts) for name, parts in expanded.items()}
    assert get(live, f"/connectors/{NAME}") == expanded[NAME]["info"]
    assert get(live, f"/connectors/{NAME}/status") == expanded[NAME]["status"]


def test_status_has_the_workers_address(live: LiveProcess):
    """The worker id is its address, for the connector and for each task. Versions are as in Connect 4.1."""
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


def test_config_equals_the_connectors_file(live: LiveProcess):
    """Every line of the connector's file is returned."""
    assert live.process.files[1] == get(live, f"/connectors/{NAME}/config")


def test_each_partition_is_assigned_to_one_task(live: LiveProcess):
    """`task.assigned.partitions` of all tasks together contain each partition once."""
    tasks = live.process.rest(f"/connectors/{NAME}/tasks")[1]
    assigned = [
        partition for task in tasks for partition in task["config"]["task.assigned.partitions"].split(",")
    ]

    assert [{"connector": NAME, "task": number} for number in (0, 1)] == [task["id"] for task in tasks]
    assert ["rest-bills-0", "rest-orders-0", "rest-orders-1"] == sorted(assigned)


def test_active_topics_have_the_targets_names(live: LiveProcess):
    """Active topics are those to which records were written."""
    assert {NAME: {"topics": [f"{ALIAS}.rest-bills", f"{ALIAS}.rest-orders"]}} == get(
        live, f"/connectors/{NAME}/topics"
    )


def test_offsets_are_those_of_the_last_copied_records(live: LiveProcess):
    """As in KIP-875 for MM2, it is the offset of the last copied record, not of the next one."""
    offsets = live.process.rest(f"/connectors/{NAME}/offsets")[1]["offsets"]

    assert all(entry["partition"]["cluster"] == ALIAS for entry in offsets)
    assert {
        (entry["partition"]["topic"], entry["partition"]["partition"]): entry["offset"]["offset"]
        for entry in offsets
    } == {partition: count - 1 for partition, count in COUNTS.items()}


def test_health_and_readiness_are_reported(live: LiveProcess):
    """The paths are that of KIP-1017, and MirrorFlow's for probes."""
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
def test_missing_resources_return_connects_messages(live: LiveProcess, path: str, message: str):
    """Clients depend on these messages."""
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
def test_changing_requests_are_forbidden(live: LiveProcess, method: str, path: str):
    """By KIP-304, the status is 403 with Connect's body, and nothing changes."""
    status, body = live.process.rest(path, method=method, body={})

    assert (403, 403) == (status, body["error_code"])
    assert "rest.modify.enable" in body["message"]
    assert "RUNNING" == live.process.rest(f"/connectors/{NAME}/status")[1]["connector"]["state"]


def test_plugins_and_their_settings_are_listed(live: LiveProcess):
    """These are the four connectors and the settings of each."""
    plugins = {plugin["class"]: plugin["type"] for plugin in live.process.rest("/connector-plugins")[1]}
    known = {plugin["name"]: plugin for plugin in live.process.rest(f"/connector-plugins/{NAME}/config")[1]}

    assert "source" == plugins[CLASS]
    assert 4 == len(plugins)
    assert known["source.cluster.alias"]["required"]
    assert ("INT", "2") == (known["replication.factor"]["type"], known["replication.factor"]["default_value"])


def test_a_configuration_is_validated(live: LiveProcess):
    """PUT is allowed here, because it changes nothing.

    The running configuration is valid, and errors are reported by key.
    """
    path = f"/connector-plugins/{NAME}/config/validate"
    config = live.process.rest(f"/connectors/{NAME}/config")[1]
    valid = live.process.rest(path, method="PUT", body=config)[1]
    invalid = live.process.rest(path, method="PUT", body=config | {"tasks.max": "many", "topics": "("})[1]
    errors = {entry["value"]["name"]: entry["value"]["errors"] for entry in invalid["configs"]}

    assert (config["connector.class"], 0) == (valid["name"], valid["error_count"])
    assert 2 == invalid["error_count"]
    assert {"tasks.max", "topics"} == {name for name, messages in errors.items() if messages}


def test_tasks_report_the_metrics_of_strimzis_dashboard(live: LiveProcess):
    """For each task that has copied and stored positions, no record is in flight and its buffer is free."""

    def values(name: str) -> list[float]:
        pattern = rf"^{name}(?:\{{.*\}})? (\S+)$"
        return [float(number) for number in re.findall(pattern, live.process.metrics(), re.MULTILINE)]

    name = "kafka_connect_connector_task_offset_commit_avg_time_ms"
    wait_until("both tasks have stored positions", lambda: len(values(name)) == 2)
    assert all(0 < took_ms < 60_000 for took_ms in values(name))
    assert [0, 0] == values("kafka_connect_source_task_source_record_active_count")
    assert all(free_bytes > 0 for free_bytes in values("kafka_producer_buffer_available_bytes"))
    assert [2] == values("kafka_connect_coordinator_assigned_tasks")
    assert values("jvm_memory_used_bytes")[0] > 10_000_000
    assert values("jvm_threads_current")[0] >= 3


def test_progress_and_metrics_agree_with_kafka(live: LiveProcess):
    """Counts equal the target's end offsets, and no series is repeated."""
    metrics = live.process.metrics()
    series = Counter(line.rpartition(" ")[0] for line in metrics.splitlines() if line and line[0] != "#")
    record_counts = {
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

    assert COUNTS == record_counts == ends
    assert [] == [name for name, count in series.items() if count > 1]
    assert (60, 0, True, "exactly-once") == (
        progress["records"],
        progress["lagRecords"],
        progress["caughtUp"],
        next(guarantee for guarantee, count in progress["guarantee"].items() if count == 3),
    )


def test_changing_requests_are_not_implemented_even_if_enabled(
    east: KafkaCluster, west: KafkaCluster, tmp_path: Path
):
    """`rest.modify.enable=true` allows the request, but a standalone process does not implement it."""
    with Replicator.standalone(
        east, west, topics="none", folder=tmp_path, worker={"rest.modify.enable": "true"}
    ) as open_:
        status, body = open_.rest(f"/connectors/{NAME}/pause", method="PUT")

    assert (501, 501) == (status, body["error_code"])
