"""Seeds of a flow with an owner (`mirrorflow.writer=fenced`): the job takes the flow, and the connector waits."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mirrorflow_replicator.connectors.source_host import WAITS
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import FOREVER, load
from tests.integration.kafka.flows import DAY_MS, Flow, now_ms
from tests.integration.kafka.seeding import SeedProcess, files_of
from tests.integration.kafka.test_fenced_writer import assert_committed_once

pytest.importorskip("pyspark")

RECORDS = 4_000
PARTITIONS = 3
FENCED = {"mirrorflow.writer": "fenced"}
# Slow enough that a kill comes in the middle.
SLOW = {"bytes.per.second": "1000000"}


@pytest.fixture
def flow(east: KafkaCluster, west: KafkaCluster, tmp_path: Path) -> Flow:
    return Flow.new(east, west, tmp_path, connector=FENCED)


@pytest.fixture
def job(flow: Flow, tmp_path: Path) -> Iterator[Callable[..., SeedProcess]]:
    """Starts a job of `mirrorflow-seed`; what is left of it ends with the test."""
    started: list[SeedProcess] = []

    def start(topic: str, **properties: str) -> SeedProcess:
        folder = tmp_path / str(len(started))
        folder.mkdir()
        process = SeedProcess(files=files_of(flow, topic), folder=folder, job=properties)
        started.append(process)
        return process.start()

    yield start
    for process in started:
        process.close()


def copied(flow: Flow, topic: str) -> int:
    return flow.target.total_end_offset(flow.remote(topic))


@pytest.mark.parametrize("age_ms", [0, 2 * DAY_MS], ids=["young", "old"])
def test_a_killed_seed_is_followed_by_another_and_by_the_connector(
    flow: Flow, unique_topic: Callable[[], str], job: Callable[..., SeedProcess], age_ms: int
) -> None:
    topic = flow.source.create_topic(unique_topic(), partitions=PARTITIONS, config=FOREVER)
    load(flow.source, topic, RECORDS, size_bytes=1_000, batch_bytes=65_536, timestamp_ms=now_ms() - age_ms)
    killed = job(topic, **SLOW)
    wait_until("some records are copied", lambda: copied(flow, topic) >= RECORDS // 8)
    killed.kill()
    finished = job(topic).wait()
    assert (finished["status"], finished["phase"]) == (0, "Succeeded"), finished
    load(flow.source, topic, 100, first=RECORDS)
    with flow.replicator(topic) as connector:
        connector.wait_until_caught_up(partitions=PARTITIONS)
        assert_committed_once(flow, topic)


def test_a_seed_takes_the_flow_from_the_connector_which_continues_behind_it(
    flow: Flow, unique_topic: Callable[[], str], job: Callable[..., SeedProcess]
) -> None:
    topic = flow.source.create_topic(unique_topic(), partitions=PARTITIONS)
    load(flow.source, topic, 10)
    with flow.replicator(topic) as connector:
        connector.wait_until_caught_up(partitions=PARTITIONS)
        load(flow.source, topic, RECORDS, first=10, size_bytes=1_000, batch_bytes=65_536)
        running = job(topic, **SLOW)
        wait_until("the connector waits", lambda: WAITS in str(connector.progress()))
        load(flow.source, topic, 100, first=RECORDS + 10)
        assert running.wait()["status"] == 0
        load(flow.source, topic, 100, first=RECORDS + 110)
        connector.wait_until_caught_up(partitions=PARTITIONS)

    flow.assert_exact(topic)
