"""Seeds whose drivers or executors are killed or frozen, and several jobs of one flow.

Each flow has a topic with recent records and one with records of ten days ago. The target's leaders expire a producer
within seconds, so all records are written in transactions. A reader of committed records receives each record once.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mirrorflow_replicator.process import now_ms
from mirrorflow_seed.spark_session import LIGHT_JVM
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import Child, family, free_port, frozen, wait_until
from tests.harness.kafka.processes import start as start_child
from tests.harness.kafka.tools import FOREVER, digest, load
from tests.integration.kafka.flows import DAY_MS, Flow
from tests.integration.kafka.seeding import SeedProcess, files_of

pyspark = pytest.importorskip("pyspark")

RECORDS = 8_000
RECORD_BYTES = 1_000
# For the whole job, which takes several seconds, so that it can be killed while it copies.
SLOW = {"bytes.per.second": "2000000"}
# Spark drops an executor that has sent no heartbeat for this time. The default is two minutes.
IMPATIENT = {
    "spark.network.timeout": "20s",
    "spark.network.timeoutInterval": "1s",
    "spark.executor.heartbeatInterval": "1s",
    "spark.executor.extraJavaOptions": LIGHT_JVM,
}
MIRRORFLOW = (sys.executable, "-m", "mirrorflow_cli")
EXECUTOR = b"CoarseGrainedExecutorBackend"
PYTHON_WORKER = b"pyspark.daemon"


@pytest.fixture(scope="module")
def forgetful() -> Iterator[KafkaCluster]:
    """A target that expires producers after four seconds, and checks every second."""
    config = {"producer.id.expiration.ms": "4000", "producer.id.expiration.check.interval.ms": "1000"}
    with KafkaCluster(name="forgetting", config=config) as cluster:
        yield cluster


@pytest.fixture
def flow(request: pytest.FixtureRequest, east: KafkaCluster, tmp_path: Path) -> Flow:
    return Flow.new(east, request.getfixturevalue(getattr(request, "param", "forgetful")), tmp_path)


@pytest.fixture
def topics(flow: Flow, unique_topic: Callable[[], str]) -> tuple[str, ...]:
    """Creates one topic of recent and one of old records, with two partitions each."""
    stem = unique_topic()
    ages = {f"{stem}-fresh": now_ms(), f"{stem}-old": now_ms() - 10 * DAY_MS}
    for topic, timestamp_ms in ages.items():
        flow.source.create_topic(topic, partitions=2, config=FOREVER)
        # Batches that are too large to be merged.
        load(
            flow.source,
            topic,
            RECORDS,
            size_bytes=RECORD_BYTES,
            batch_bytes=65_536,
            headers=1,
            timestamp_ms=timestamp_ms,
        )
    return tuple(ages)


@pytest.fixture
def start(flow: Flow, topics: tuple[str, ...], tmp_path: Path) -> Iterator[Callable[..., SeedProcess]]:
    """Starts a seed of *topics*. Its remaining processes end with the test."""
    files, processes = files_of(flow, f"{topics[0].removesuffix('-fresh')}-.*"), []

    def start(environment: dict[str, str] | None = None, **job: str) -> SeedProcess:
        properties = dict(SLOW) | job
        process = SeedProcess(files=files, folder=tmp_path, job=properties, environment=environment or {})
        processes.append(process.start())
        return process

    yield start
    for process in processes:
        process.close()


def test_a_new_driver_continues_after_a_stopped_driver_and_after_a_killed_one(
    flow: Flow, topics: tuple[str, ...], start: Callable[..., SeedProcess]
):
    """SIGTERM stops the first driver within seconds. kill -9 of the second driver leaves no process running."""
    stopped = start()
    _wait_for_copies(flow, topics, 1_000, stopped.running)
    os.kill(stopped.running.pid, signal.SIGTERM)
    report = stopped.wait()

    killed = start()
    _wait_for_copies(flow, topics, 6_000, killed.running)
    members = killed.members()
    killed.kill()
    last = start()  # at once: the executor of the killed driver may still write
    wait_until("all processes of the killed driver have ended", lambda: not _alive(members))
    last_report = last.wait()

    assert (report["status"], report["phase"]) == (3, "Paused")
    assert (last_report["status"], last_report["phase"], last_report["guarantee"]) == (
        0,
        "Succeeded",
        "exactly-once",
    )
    assert_committed_once(flow, topics)


def test_ctrl_c_stops_the_seed_command_gracefully_and_the_next_one_continues(
    flow: Flow, unique_topic: Callable[[], str], tmp_path: Path
):
    """`mirrorflow seed` is started like by a user on a laptop.

    Its open transaction is aborted, so the copy is read as committed.
    """
    topic = flow.source.create_topic(unique_topic())
    load(flow.source, topic, 3_000, size_bytes=RECORD_BYTES)
    clusters = ["--from", flow.source.bootstrap, "--to", flow.target.bootstrap, "--from-alias", flow.alias]
    command = [*MIRRORFLOW, "seed", *clusters, "--topics", topic, "--cores", "1", "--set", "lag.max=0"]

    first = start_child("command", [*command, "--rate", "400000"], log=tmp_path / "first.log")
    _wait_for_copies(flow, (topic,), 200, first)
    os.kill(first.pid, signal.SIGINT)
    wait_until("Ctrl-C ends the command", lambda: not first.running)
    second = start_child("command", command, log=tmp_path / "again.log")
    wait_until("the second command has ended", lambda: not second.running)

    assert (first.process.returncode, second.process.returncode) == (130, 0), first.tail() + second.tail()
    assert "succeeded, 1/1 partitions" in second.log.read_text()
    flow.assert_exact(topic, reader="read_committed")


def test_a_later_job_takes_the_flow_from_an_earlier_one_and_leaves_it_to_the_connector(
    flow: Flow, topics: tuple[str, ...], start: Callable[..., SeedProcess]
):
    stem = topics[0].removesuffix("-fresh")
    # The earlier job must still run when the later one is ready. It detects the takeover within a fetch of each task (1
    # MiB, ten seconds), before the later job has completed. Otherwise its driver takes the flow back, although there is
    # nothing to copy.
    earlier = start(**{"bytes.per.second": "200000"})
    _wait_for_copies(flow, topics, 100, earlier.running)
    with flow.replicator(f"{stem}-.*", {"mirrorflow.bytes.per.second": "1Mi"}) as replicator:
        later_report = start(**{"bytes.per.second": "1000000"}).wait()
        earlier_report = earlier.wait()
        load(flow.source, topics[0], 500, size_bytes=RECORD_BYTES)
        replicator.wait_until_caught_up(partitions=2 * len(topics))
        replicator.stop()  # stopped gracefully, so that the markers of its last transaction are written

    assert (later_report["status"], later_report["phase"]) == (0, "Succeeded")
    assert (earlier_report["status"], earlier_report["phase"]) == (4, "Failed")
    assert "FlowTaken" in earlier_report["message"]
    assert_committed_once(flow, topics)


@pytest.fixture
def spark_home(tmp_path: Path) -> Path:
    """Returns the folder from which Spark starts its processes, and in which they write their files."""
    home = tmp_path / "spark"
    home.mkdir()
    for part in ("bin", "jars"):
        (home / part).symlink_to(Path(pyspark.__file__).parent / part)
    return home


@pytest.fixture
def two_hosts(spark_home: Path) -> Iterator[tuple[str, list[Child]]]:
    """A standalone Spark cluster of two workers with different addresses. Yields its URL and the workers."""
    home, url = {"SPARK_HOME": str(spark_home)}, f"spark://127.0.0.1:{free_port()}"
    light = {"SPARK_DAEMON_JAVA_OPTS": LIGHT_JVM, "SPARK_DAEMON_MEMORY": "256m"}

    def daemon(name: str, host: str, port: int, *arguments: str) -> Child:
        command = [str(spark_home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}"]
        command += ["--host", host, "--port", str(port), "--webui-port", str(free_port()), *arguments]
        log = spark_home / f"{host}-{port}.log"
        return start_child("spark", command, log=log, environment=home | light)

    master = daemon("master.Master", "127.0.0.1", int(url.rpartition(":")[2]))
    worker_arguments = ("--cores", "1", "--memory", "1g", "--work-dir", str(spark_home / "work"), url)
    workers = [
        daemon("worker.Worker", host, free_port(), *worker_arguments) for host in ("127.0.0.2", "127.0.0.3")
    ]
    yield url, workers
    for child in (*workers, master):
        members = family(child.pid)
        child.kill()
        for pid in members:
            _signal(pid, signal.SIGKILL)


@pytest.mark.parametrize("flow", ["west", "forgetful"], indirect=True)
def test_records_of_a_speculative_task_are_copied_once(
    flow: Flow,
    topics: tuple[str, ...],
    start: Callable[..., SeedProcess],
    spark_home: Path,
    two_hosts: tuple[str, list[Child]],
):
    """Spark starts a slow task a second time on the other host. The copy fences the first attempt, which is frozen."""
    url, workers = two_hosts
    speculation = {
        "spark.speculation": "true",
        "spark.default.parallelism": "1",  # one task, and an idle host
        "spark.speculation.interval": "200ms",
        "spark.speculation.task.duration.threshold": "1s",
        "spark.executor.extraJavaOptions": LIGHT_JVM,
    }
    job = start({"SPARK_HOME": str(spark_home)}, master=url, **speculation)

    def hosts_with_tasks() -> list[list[int]]:
        job.running.must_run()
        return [
            tasks
            for worker in workers
            if (tasks := [pid for pid in family(worker.pid) if PYTHON_WORKER in _command(pid)])
        ]

    _wait_for_copies(flow, topics, 100, job.running)
    with frozen(hosts_with_tasks()[0]):
        wait_until("both hosts have a task", lambda: len(hosts_with_tasks()) == 2)
    report = job.wait()

    assert (report["status"], report["phase"]) == (0, "Succeeded")
    if flow.target.name == "west":
        flow.assert_exact(topics[0])
    assert_committed_once(flow, topics)


@pytest.mark.parametrize("flow", ["west"], indirect=True)
def test_killed_and_frozen_executors_lose_and_repeat_nothing(
    flow: Flow, topics: tuple[str, ...], start: Callable[..., SeedProcess], spark_home: Path
):
    """One executor is killed. The other one is frozen until Spark drops it, and resumes while its replacement runs.

    The target keeps producers for a day. Recent records are in plain batches, and old ones in transactions.
    """
    job = start({"SPARK_HOME": str(spark_home)}, master="local-cluster[2,1,1024]", **IMPATIENT)
    _wait_for_copies(flow, topics, 500, job.running)
    first = _executors(job)
    for pid in family(first[0]):
        _signal(pid, signal.SIGKILL)
    with frozen(family(first[1])):
        wait_until("two new executors run", lambda: len(set(_executors(job)) - set(first)) >= 2)
    report = job.wait()

    assert (report["status"], report["phase"]) == (0, "Succeeded")
    flow.assert_exact(topics[0])
    assert_committed_once(flow, topics)


def _wait_for_copies(flow: Flow, topics: tuple[str, ...], least: int, by: Child) -> None:
    """Waits until the copies together have *least* offsets. The process *by* must keep running."""

    def copied() -> bool:
        by.must_run()
        existing = flow.target.topics()
        ends = [
            flow.target.end_offsets(flow.remote(topic)) for topic in topics if flow.remote(topic) in existing
        ]
        return sum(sum(offsets.values()) for offsets in ends) >= least

    wait_until(f"{least} records are copied", copied)


def assert_committed_once(flow: Flow, topics: tuple[str, ...]) -> None:
    """Asserts that readers of committed records receive each record once and in order.

    Transactions of killed tasks are aborted.
    """
    for topic in topics:
        copied = digest(flow.target, flow.remote(topic), isolation="read_committed")
        assert copied == digest(flow.source, topic), topic


def _executors(job: SeedProcess) -> list[int]:
    """Returns the process ids of the running executor JVMs of *job*, the oldest first."""
    return sorted(pid for pid in job.members() if EXECUTOR in _command(pid))


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if _command(pid)]  # a zombie has no command line


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
