"""A seed or a restore takes the flow over. A running connector waits, and continues after it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mirrorflow_replicator.connectors.source_connector import STANDBY_WARNING
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.listeners import User
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import FOREVER, digest, load, records
from tests.integration.kafka.flows import DAY_MS, Flow, now_ms
from tests.integration.kafka.seeding import SeedProcess, files_of

pytest.importorskip("pyspark")

RECORDS = 4_000
PARTITIONS = 3
MIRROR = User(name="mirror", password="secret")
# Slow enough for a kill during copying.
SLOW = {"bytes.per.second": "1000000"}


@pytest.fixture(scope="module")
def secured() -> Iterator[KafkaCluster]:
    """A target that grants *mirror* no transactional id."""
    with KafkaCluster(
        name="guarded", authorizer=True, listeners=("SASL_PLAINTEXT",), users=(MIRROR,)
    ) as cluster:
        for operation in ("READ", "WRITE", "CREATE", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS"):
            cluster.allow(operation, "TOPIC", "*", user=MIRROR.name)
        yield cluster


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., SeedProcess]]:
    """Starts a job of `mirrorflow-seed`. Its remaining processes end with the test."""
    started: list[SeedProcess] = []

    def start(flow: Flow, topic: str, command: str = "seed", **properties: str) -> SeedProcess:
        folder = tmp_path / str(len(started))
        folder.mkdir()
        process = SeedProcess(files=files_of(flow, topic), folder=folder, job=properties, command=command)
        started.append(process)
        return process.start()

    yield start
    for process in started:
        process.close()


def copied(flow: Flow, topic: str) -> int:
    return flow.target.total_end_offset(flow.remote(topic))


def wait_for_each_record_once(flow: Flow, topic: str) -> None:
    """Waits until readers of committed records receive each record once.

    The last ones may be committed a little later.
    """
    wait_until(
        "each record is committed once, in order",
        lambda: (
            digest(flow.target, flow.remote(topic), isolation="read_committed") == digest(flow.source, topic)
        ),
    )


@pytest.mark.parametrize("age_ms", [0, 2 * DAY_MS], ids=["young", "old"])
def test_a_killed_seed_is_continued_by_a_new_seed_and_by_the_connector(
    flow: Flow, unique_topic: Callable[[], str], start: Callable[..., SeedProcess], age_ms: int
) -> None:
    topic = flow.source.create_topic(unique_topic(), partitions=PARTITIONS, config=FOREVER)
    load(flow.source, topic, RECORDS, size_bytes=1_000, batch_bytes=65_536, timestamp_ms=now_ms() - age_ms)
    killed = start(flow, topic, **SLOW)
    wait_until("some records are copied", lambda: copied(flow, topic) >= RECORDS // 8)
    killed.kill()
    finished = start(flow, topic).wait()
    assert (finished["status"], finished["phase"]) == (0, "Succeeded"), finished
    load(flow.source, topic, 100, first=RECORDS)
    with flow.replicator(topic) as connector:
        connector.wait_until_caught_up(partitions=PARTITIONS)
        wait_for_each_record_once(flow, topic)


def test_a_connector_waits_for_a_seed_and_continues_after_it(
    flow: Flow, unique_topic: Callable[[], str], start: Callable[..., SeedProcess]
) -> None:
    topic = flow.source.create_topic(unique_topic(), partitions=PARTITIONS)
    load(flow.source, topic, 10)
    with flow.replicator(topic) as connector:
        connector.wait_until_caught_up(partitions=PARTITIONS)
        load(flow.source, topic, RECORDS, first=10, size_bytes=1_000, batch_bytes=65_536)
        running = start(flow, topic, **SLOW)
        wait_until("the connector waits", lambda: STANDBY_WARNING in str(connector.progress()))
        load(flow.source, topic, 100, first=RECORDS + 10)
        finished = running.wait()
        assert (finished["status"], finished["guarantee"]) == (0, "exactly-once"), finished
        load(flow.source, topic, 100, first=RECORDS + 110)
        connector.wait_until_caught_up(partitions=PARTITIONS)

    flow.assert_exact(topic)


def test_a_connector_waits_for_a_restore_and_continues_after_it(
    flow: Flow, unique_topic: Callable[[], str], start: Callable[..., SeedProcess], tmp_path: Path
) -> None:
    """The slow connector has copied some records of the archive."""
    topic = flow.source.create_topic(unique_topic(), partitions=2)
    load(flow.source, topic, RECORDS, size_bytes=1_000, batch_bytes=65_536)
    archive = {"archive": (tmp_path / "archive").as_uri(), "archive.file.bytes": "20000"}
    assert start(flow, topic, "export", **archive).wait()["status"] == 0
    load(flow.source, topic, 100, first=RECORDS)
    with flow.replicator(topic, {"mirrorflow.bytes.per.second": "10000"}) as connector:
        wait_until("the connector copies", lambda: copied(flow, topic) > 0)
        running = start(flow, topic, "restore", **archive, **SLOW)
        wait_until("the connector waits", lambda: STANDBY_WARNING in str(connector.progress()))
        finished = running.wait()
        assert finished["status"] == 0, finished
        assert "but not" not in finished["message"]
        assert "cannot be compared" not in finished["message"]
        connector.wait_until_caught_up(partitions=2)

    flow.assert_exact(topic)


@pytest.mark.parametrize("command", ["seed", "restore"])
def test_a_job_without_permission_reports_the_transactional_ids_to_grant(
    east: KafkaCluster,
    secured: KafkaCluster,
    unique_topic: Callable[[], str],
    start: Callable[..., SeedProcess],
    tmp_path: Path,
    command: str,
) -> None:
    client = secured.java_client("SASL_PLAINTEXT", user=MIRROR)
    connector = {f"target.cluster.{key}": value for key, value in client.items()}
    flow = Flow.new(east, secured, tmp_path, connector=connector, worker=client)
    topic = east.create_topic(unique_topic())
    load(east, topic, 10)
    archive = {"archive": (tmp_path / "archive").as_uri()}
    assert start(flow, topic, "export", **archive).wait()["status"] == 0

    job = start(flow, topic, command, **archive)

    assert job.wait()["status"] == 4
    [sentence] = [
        line for line in job.running.log.read_text().splitlines() if f"mirrorflow:{flow.alias}:" in line
    ]
    assert "transactional id" in sentence
    assert records(secured, flow.remote(topic)) == []
