"""`spark-submit` starts jobs on a standalone Spark cluster, whose workers and driver have separate /tmp folders."""

import itertools
import json
import os
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mirrorflow_seed.spark_tasks import NO_TASK
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import Child, free_port, wait_until
from tests.harness.kafka.tools import load
from tests.harness.spark.standalone import SparkCluster, bridge
from tests.integration.kafka.flows import Flow
from tests.integration.kafka.seeding import files_of

pyspark = pytest.importorskip("pyspark")
pytestmark = [pytest.mark.skipif(os.getuid() != 0, reason="namespaces need root"), pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[3]
RECORDS = 4_000
WORKERS, CORES = 2, 4
# Two executor JVMs and one that schedules.
LIGHT = ("spark.executor.memory=512m", "spark.ui.showConsoleProgress=false")
ONE_CORE_EACH = (*LIGHT, f"spark.cores.max={WORKERS}")
# The driver counts the slots before all executors have registered.
ALL_CORES = (*LIGHT, f"spark.cores.max={WORKERS * CORES}", f"spark.default.parallelism={WORKERS * CORES}")
RATE = 2_000_000
# Records of 1 kB in each partition: one has more than half of all.
SIZES = (36_000, 6_000, *[3_000] * 6)


@pytest.fixture(scope="module")
def network() -> Iterator[str]:
    with bridge() as address:
        yield address


@pytest.fixture(scope="module")
def clusters(network: str) -> Iterator[tuple[KafkaCluster, KafkaCluster]]:
    """Two clusters whose addresses are reachable from the workers; 127.0.0.1 is not."""
    with KafkaCluster(name="near", address=network) as near, KafkaCluster(name="far", address=network) as far:
        yield near, far


@pytest.fixture
def flow(clusters: tuple[KafkaCluster, KafkaCluster], tmp_path: Path) -> Flow:
    return Flow.new(*clusters, tmp_path)


@pytest.fixture(scope="module")
def spark_cluster(network: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:  # noqa: ARG001
    folder = tmp_path_factory.mktemp("spark")
    home = Path(pyspark.__file__).parent
    with SparkCluster(folder=folder, spark_home=home, workers=WORKERS, cores=CORES) as cluster:
        yield cluster


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """Returns a folder that all hosts can access, like one on a shared file system."""
    with tempfile.TemporaryDirectory(dir=ROOT / ".cache") as folder:
        yield Path(folder)


@pytest.fixture
def submit(
    spark_cluster: SparkCluster, flow: Flow, tmp_path: Path
) -> Callable[..., tuple[int, dict[str, Any], str]]:
    """Runs a job until it ends, and returns exit status, last report and output."""

    def submit(command: str, topics: str, **job: str) -> tuple[int, dict[str, Any], str]:
        files, report_file = files_of(flow, topics), tmp_path / f"{command}.json"
        sets = [f"--set={key.replace('_', '.')}={value}" for key, value in job.items()]
        os.environ["TERMINATION_MESSAGE"] = str(report_file)
        try:
            child: Child = spark_cluster.submit(
                [command, "--worker", files.worker, "--source", files.source, *sets],
                log=tmp_path / f"{command}.log",
                conf=ONE_CORE_EACH,
            )
        finally:
            del os.environ["TERMINATION_MESSAGE"]
        wait_until(f"{command} ends", lambda: not child.running, timeout_s=400)
        report = json.loads(report_file.read_text()) if report_file.exists() else {}
        return int(child.process.returncode or 0), report, child.log.read_text()

    return submit


def test_seed_and_verification_run_on_the_workers_under_their_own_names(
    spark_cluster: SparkCluster,
    flow: Flow,
    unique_topic: Callable[[], str],
    submit: Callable[..., tuple[int, dict[str, Any], str]],
):
    topic = flow.source.create_topic(unique_topic(), partitions=4)
    load(flow.source, topic, RECORDS, size_bytes=1_000, batch_bytes=65_536)

    status, seeded, log = submit("seed", topic, lag_max="0", run_id="s1")
    assert (status, seeded.get("phase")) == (0, "Succeeded"), log
    assert seeded["records"] == RECORDS
    status, verified, log = submit("verify", topic, run_id="v1")
    assert (status, verified.get("phase")) == (0, "Succeeded"), log

    applications = {
        application["name"]: application for application in spark_cluster.state()["completedapps"]
    }
    assert {"mirrorflow-seed-s1", "mirrorflow-verify-v1"} <= applications.keys()
    assert all(application["cores"] == 2 for application in applications.values())
    flow.assert_exact(topic)


def test_archive_is_written_and_restored_by_workers_that_share_its_folder(
    flow: Flow,
    unique_topic: Callable[[], str],
    submit: Callable[..., tuple[int, dict[str, Any], str]],
    shared_folder: Path,
):
    """The folder is not below /tmp, because each worker has its own /tmp."""
    topic = flow.source.create_topic(unique_topic(), partitions=2)
    load(flow.source, topic, RECORDS, size_bytes=500)
    folder = str(shared_folder / "archive")

    for command, records in (("export", RECORDS), ("restore", RECORDS), ("verify", None)):
        status, report, log = submit(command, topic, archive=folder)
        assert (status, report.get("phase")) == (0, "Succeeded"), log
        assert records is None or report["records"] == records

    flow.assert_exact(topic)


@pytest.mark.timing
def test_eight_remote_tasks_keep_the_rate_of_the_job(
    spark_cluster: SparkCluster,
    flow: Flow,
    unique_topic: Callable[[], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    topic = flow.source.create_topic(unique_topic(), partitions=len(SIZES))
    for partition, records in enumerate(SIZES):
        load(flow.source, topic, records, size_bytes=1_000, batch_bytes=65_536, partition=partition)
    files, port = files_of(flow, topic), free_port()
    monkeypatch.setenv("HTTP_PORT", str(port))
    sets = (f"--set=bytes.per.second={RATE}", "--set=lag.max=0", "--set=run.id=rate")
    child = spark_cluster.submit(
        ["seed", "--worker", files.worker, "--source", files.source, *sets],
        log=tmp_path / "seed.log",
        conf=ALL_CORES,
    )
    seen: list[tuple[float, int]] = []

    def has_ended() -> bool:
        if report := _progress(port):
            seen.append((time.monotonic(), report["bytes"]))
        return not child.running

    try:
        wait_until("the seed ends", has_ended, timeout_s=400, poll_s=0.1)
    finally:
        child.kill()

    application = next(
        application
        for application in spark_cluster.state()["completedapps"]
        if application["name"] == "mirrorflow-seed-rate"
    )
    # Executors start one after the other, so the middle half counts, in which all tasks copy.
    total = sum(SIZES) * 1_000
    advanced = [later for earlier, later in itertools.pairwise(seen) if later[1] > earlier[1]]
    middle = [(at_s, copied) for at_s, copied in advanced if total / 4 <= copied <= total * 3 / 4]
    (first_s, first_bytes), (last_s, last_bytes) = middle[0], middle[-1]
    assert (child.process.returncode, application["cores"]) == (0, WORKERS * CORES), child.log.read_text()
    assert 0.9 * RATE <= (last_bytes - first_bytes) / (last_s - first_s) <= 1.1 * RATE


def test_a_spark_cluster_without_executors_is_reported(
    network: str,  # noqa: ARG001 the address of the master
    flow: Flow,
    unique_topic: Callable[[], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    topic = flow.source.create_topic(unique_topic())
    load(flow.source, topic, 10)
    flow.target.create_topic(flow.remote(topic))
    files, port = files_of(flow, topic), free_port()
    monkeypatch.setenv("HTTP_PORT", str(port))

    def message() -> str:
        child.must_run()
        return str(_progress(port).get("message", ""))

    home = Path(pyspark.__file__).parent
    with SparkCluster(folder=tmp_path, spark_home=home, workers=0) as empty:
        arguments = ["verify", "--worker", files.worker, "--source", files.source]
        child = empty.submit(arguments, log=tmp_path / "verify.log", conf=LIGHT)
        try:
            wait_until("the reason is reported", lambda: NO_TASK == message(), timeout_s=200)
        finally:
            child.kill()


def _progress(port: int) -> dict[str, Any]:
    """Returns the last report that a driver serves; empty where it does not serve one yet or any more."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/progress", timeout=5) as response:
            report: dict[str, Any] = json.loads(response.read())
    except OSError:
        return {}
    return report
