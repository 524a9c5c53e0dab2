"""Seeds whose drivers and executors are killed or frozen, and several jobs of one flow.

One topic of each flow is fresh, one ten days old, and the target's leaders forget a producer within seconds by the age of its
records, so all records are in transactions. Whatever happens, a reader of committed records finds each one once.
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
# For the whole job: several seconds of work, so that there is a middle to be killed in.
SLOW = {"bytes.per.second": "2000000"}
# Spark gives an executor up that has been silent for so long; two minutes as it comes.
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
    """Forgets within four seconds, and looks every second."""
    config = {"producer.id.expiration.ms": "4000", "producer.id.expiration.check.interval.ms": "1000"}
    with KafkaCluster(name="forgetting", config=config) as cluster:
        yield cluster


@pytest.fixture
def flow(request: pytest.FixtureRequest, east: KafkaCluster, tmp_path: Path) -> Flow:
    return Flow.new(east, request.getfixturevalue(getattr(request, "param", "forgetful")), tmp_path)


@pytest.fixture
def topics(flow: Flow, unique_topic: Callable[[], str]) -> tuple[str, ...]:
    """A fresh one and an old one, of two partitions each."""
    stem = unique_topic()
    ages = {f"{stem}-fresh": now_ms(), f"{stem}-old": now_ms() - 10 * DAY_MS}
    for topic, timestamp_ms in ages.items():
        flow.source.create_topic(topic, partitions=2, config=FOREVER)
        # Batches large enough to be written by themselves.
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
    """Starts a seed of *topics*; whatever is left of it ends with the test."""
    files, made = files_of(flow, f"{topics[0].removesuffix('-fresh')}-.*"), []

    def start(environment: dict[str, str] | None = None, **job: str) -> SeedProcess:
        given = dict(SLOW) | job
        process = SeedProcess(files=files, folder=tmp_path, job=given, environment=environment or {})
        made.append(process.start())
        return process

    yield start
    for process in made:
        process.close()


def test_a_driver_that_is_stopped_and_one_that_is_killed_are_followed_by_one_that_continues(
    flow: Flow, topics: tuple[str, ...], start: Callable[..., SeedProcess]
):
    """In order within seconds, or by kill -9, after which nothing of it is left running."""
    stopped = start()
    _wait_for_copies(flow, topics, 1_000, stopped.running)
    os.kill(stopped.running.pid, signal.SIGTERM)
    said = stopped.wait()

    killed = start()
    _wait_for_copies(flow, topics, 6_000, killed.running)
    members = killed.members()
    killed.kill()
    last = start()  # at once: its executor may still write
    wait_until("all that it started has ended", lambda: not _alive(members))
    ended = last.wait()

    assert (said["status"], said["phase"]) == (3, "Paused")
    assert (ended["status"], ended["phase"], ended["guarantee"]) == (0, "Succeeded", "exactly-once")
    assert_committed_once(flow, topics)


def test_ctrl_c_ends_the_command_in_order_and_the_next_one_continues(
    flow: Flow, unique_topic: Callable[[], str], tmp_path: Path
):
    """`mirrorflow seed`, as a user on a laptop starts it."""
    topic = flow.source.create_topic(unique_topic())
    load(flow.source, topic, 3_000, size_bytes=RECORD_BYTES)
    places = ["--from", flow.source.bootstrap, "--to", flow.target.bootstrap, "--from-alias", flow.alias]
    command = [*MIRRORFLOW, "seed", *places, "--topics", topic, "--cores", "1", "--set", "lag.max=0"]

    first = start_child("command", [*command, "--rate", "400000"], log=tmp_path / "first.log")
    _wait_for_copies(flow, (topic,), 200, first)
    os.kill(first.pid, signal.SIGINT)
    wait_until("Ctrl-C ends it", lambda: not first.running)
    again = start_child("command", command, log=tmp_path / "again.log")
    wait_until("it has caught up", lambda: not again.running)

    assert (first.process.returncode, again.process.returncode) == (130, 0), first.tail() + again.tail()
    assert "succeeded, 1/1 partitions" in again.log.read_text()
    flow.assert_exact(topic)


def test_a_later_job_takes_the_flow_from_an_earlier_one_and_leaves_it_to_the_connector(
    flow: Flow, topics: tuple[str, ...], start: Callable[..., SeedProcess]
):
    stem = topics[0].removesuffix("-fresh")
    # The earlier one must not be done when the later one is ready. It notices within a fetch of each task (1 MiB, so ten
    # seconds), before the later one is done: else its driver takes the flow back, and has nothing left to copy.
    earlier = start(**{"bytes.per.second": "200000"})
    _wait_for_copies(flow, topics, 100, earlier.running)
    with flow.replicator(f"{stem}-.*", {"mirrorflow.bytes.per.second": "1Mi"}) as replicator:
        ended = start(**{"bytes.per.second": "1000000"}).wait()
        failed = earlier.wait()
        load(flow.source, topics[0], 500, size_bytes=RECORD_BYTES)
        replicator.wait_until_caught_up(partitions=2 * len(topics))
        replicator.stop()  # in order: the markers of its last transaction are written

    assert (ended["status"], ended["phase"]) == (0, "Succeeded")
    assert (failed["status"], failed["phase"]) == (1, "Failed")
    assert "FlowTaken" in failed["message"]
    assert_committed_once(flow, topics)


@pytest.fixture
def spark_home(tmp_path: Path) -> Path:
    """Where Spark starts its own processes from, and leaves their work."""
    home = tmp_path / "spark"
    home.mkdir()
    for part in ("bin", "jars"):
        (home / part).symlink_to(Path(pyspark.__file__).parent / part)
    return home


@pytest.fixture
def two_hosts(spark_home: Path) -> Iterator[tuple[str, list[Child]]]:
    """Spark's own cluster of two machines, by their addresses at least: its URL, and its workers."""
    home, url = {"SPARK_HOME": str(spark_home)}, f"spark://127.0.0.1:{free_port()}"
    light = {"SPARK_DAEMON_JAVA_OPTS": LIGHT_JVM, "SPARK_DAEMON_MEMORY": "256m"}

    def daemon(name: str, host: str, port: int, *arguments: str) -> Child:
        command = [str(spark_home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}"]
        command += ["--host", host, "--port", str(port), "--webui-port", str(free_port()), *arguments]
        log = spark_home / f"{host}-{port}.log"
        return start_child("spark", command, log=log, environment=home | light)

    master = daemon("master.Master", "127.0.0.1", int(url.rpartition(":")[2]))
    each = ("--cores", "1", "--memory", "1g", "--work-dir", str(spark_home / "work"), url)
    workers = [daemon("worker.Worker", host, free_port(), *each) for host in ("127.0.0.2", "127.0.0.3")]
    yield url, workers
    for child in (*workers, master):
        members = family(child.pid)
        child.kill()
        for pid in members:
            _signal(pid, signal.SIGKILL)


@pytest.mark.parametrize("flow", ["west", "forgetful"], indirect=True)
def test_what_spark_starts_twice_on_suspicion_is_copied_once(
    flow: Flow,
    topics: tuple[str, ...],
    start: Callable[..., SeedProcess],
    spark_home: Path,
    two_hosts: tuple[str, list[Child]],
):
    """Speculation: a task that takes long is begun on another machine as well, and fences the first, which is frozen."""
    url, workers = two_hosts
    suspicious = {
        "spark.speculation": "true",
        "spark.default.parallelism": "1",  # one task, and a host that is idle
        "spark.speculation.interval": "200ms",
        "spark.speculation.task.duration.threshold": "1s",
        "spark.executor.extraJavaOptions": LIGHT_JVM,
    }
    job = start({"SPARK_HOME": str(spark_home)}, master=url, **suspicious)

    def at_work() -> list[list[int]]:
        job.running.must_run()
        return [
            tasks
            for worker in workers
            if (tasks := [pid for pid in family(worker.pid) if PYTHON_WORKER in _command(pid)])
        ]

    _wait_for_copies(flow, topics, 100, job.running)
    with frozen(at_work()[0]):
        wait_until("both hosts have a task", lambda: len(at_work()) == 2)
    ended = job.wait()

    assert (ended["status"], ended["phase"]) == (0, "Succeeded")
    if flow.target.name == "west":
        flow.assert_exact(topics[0])
    assert_committed_once(flow, topics)


@pytest.mark.parametrize("flow", ["west"], indirect=True)
def test_executors_that_are_killed_and_frozen_cost_time_alone(
    flow: Flow, topics: tuple[str, ...], start: Callable[..., SeedProcess], spark_home: Path
):
    """One is killed; one is frozen until Spark has given it up, and thawed beside its successor.

    On a target that remembers: fresh records are in plain batches, old ones in transactions.
    """
    job = start({"SPARK_HOME": str(spark_home)}, master="local-cluster[2,1,1024]", **IMPATIENT)
    _wait_for_copies(flow, topics, 500, job.running)
    first = _executors(job)
    for pid in family(first[0]):
        _signal(pid, signal.SIGKILL)
    with frozen(family(first[1])):
        wait_until("two others work instead", lambda: len(set(_executors(job)) - set(first)) >= 2)
    ended = job.wait()

    assert (ended["status"], ended["phase"]) == (0, "Succeeded")
    flow.assert_exact(topics[0])
    assert_committed_once(flow, topics)


def _wait_for_copies(flow: Flow, topics: tuple[str, ...], least: int, by: Child) -> None:
    """Until so many offsets of all copies together are taken *by* that process, which has to be alive."""

    def copied() -> bool:
        by.must_run()
        there = flow.target.topics()
        ends = [
            flow.target.end_offsets(flow.remote(topic)) for topic in topics if flow.remote(topic) in there
        ]
        return sum(sum(one.values()) for one in ends) >= least

    wait_until(f"{least} records are copied", copied)


def assert_committed_once(flow: Flow, topics: tuple[str, ...]) -> None:
    """Each record once and in order, for readers of committed records: a transaction of a killed task is aborted."""
    for topic in topics:
        copied = digest(flow.target, flow.remote(topic), isolation="read_committed")
        assert copied == digest(flow.source, topic), topic


def _executors(job: SeedProcess) -> list[int]:
    """The JVMs of its executors that live, the oldest first."""
    return sorted(pid for pid in job.members() if EXECUTOR in _command(pid))


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if _command(pid)]  # a zombie has none


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
