"""The only Spark test of `make test`: a seed that is killed continues, and is then verified."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import load
from tests.integration.kafka.flows import Flow
from tests.integration.kafka.seeding import SeedProcess, files_of

pytest.importorskip("pyspark")
pytestmark = pytest.mark.promise

RECORDS = 4_000
# Slow enough for a kill during copying.
SLOW = {"bytes.per.second": "1000000"}


@pytest.fixture
def job(flow: Flow, tmp_path: Path) -> Iterator[Callable[..., SeedProcess]]:
    """Starts a job of `mirrorflow-seed`. Its remaining processes end with the test."""
    started: list[SeedProcess] = []

    def start(topic: str, command: str = "seed", **properties: str) -> SeedProcess:
        folder = tmp_path / str(len(started))
        folder.mkdir()
        process = SeedProcess(files=files_of(flow, topic), folder=folder, job=properties, command=command)
        started.append(process)
        return process.start()

    yield start
    for process in started:
        process.close()


def test_a_killed_seed_copies_each_record_once_and_verifies_equal(
    flow: Flow, unique_topic: Callable[[], str], job: Callable[..., SeedProcess], tmp_path: Path
) -> None:
    topic = flow.source.create_topic(unique_topic(), partitions=2)
    load(flow.source, topic, RECORDS, size_bytes=1_000, batch_bytes=65_536)

    def copied() -> int:
        copy = flow.remote(topic)
        return flow.target.total_end_offset(copy)

    killed = job(topic, **SLOW)
    wait_until("some records are copied", lambda: copied() >= RECORDS // 8)
    killed.kill()
    finished = job(topic).wait()
    verified = job(topic, "verify", output=str(tmp_path / "out")).wait()

    assert (finished["status"], finished["phase"]) == (0, "Succeeded"), json.dumps(finished)
    assert verified["status"] == 0, json.dumps(verified)
    flow.assert_exact(topic)
