"""Jobs on a server of Spark Connect: this process has no JVM, and the tasks run where the server's run."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.kafka.tools import load
from tests.harness.spark.connect import CLIENT_PACKAGES, connect_server
from tests.integration.kafka.flows import Flow
from tests.integration.kafka.seeding import SeedProcess, files_of

pyspark = pytest.importorskip("pyspark")
pytestmark = pytest.mark.timeout(900)

RECORDS = 4_000
RunJob = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    home = Path(pyspark.__file__).parent
    with connect_server(tmp_path_factory.mktemp("connect"), spark_home=home) as address:
        yield address


@pytest.fixture
def run_job(address: str, flow: Flow, tmp_path: Path) -> RunJob:
    """Runs a job to its end; returns its last report with the exit status."""

    def run(command: str, topics: str, **settings: str) -> dict[str, Any]:
        process = SeedProcess(
            files=files_of(flow, topics),
            folder=tmp_path,
            command=command,
            job={
                "spark.remote": address,
                **{key.replace("_", "."): value for key, value in settings.items()},
            },
            environment={"PYTHONPATH": str(CLIENT_PACKAGES)},
        ).start()
        try:
            return process.wait()
        finally:
            process.close()

    return run


def test_a_seed_and_a_verification_run_on_a_connect_server(
    flow: Flow, unique_topic: Callable[[], str], run_job: RunJob
):
    topic = flow.source.create_topic(unique_topic(), partitions=4)
    load(flow.source, topic, RECORDS, size_bytes=1_000, batch_bytes=65_536)

    seeded = run_job("seed", topic)
    assert (seeded["status"], seeded["phase"], seeded["records"]) == (0, "Succeeded", RECORDS), seeded
    verified = run_job("verify", topic)
    assert (verified["status"], verified["sourceRecords"], verified["differences"]) == (0, RECORDS, 0), (
        verified
    )
    flow.assert_exact(topic)


def test_an_archive_is_written_restored_and_compared_on_a_connect_server(
    flow: Flow, unique_topic: Callable[[], str], run_job: RunJob, tmp_path: Path
):
    topic = flow.source.create_topic(unique_topic(), partitions=2)
    load(flow.source, topic, RECORDS, size_bytes=500)
    archive = str(tmp_path / "archive")

    exported = run_job("export", topic, archive=archive)
    assert (exported["status"], exported["records"]) == (0, RECORDS), exported
    restored = run_job("restore", topic, archive=archive)
    assert (restored["status"], restored["records"]) == (0, RECORDS), restored
    verified = run_job("verify", topic, archive=archive)
    assert (verified["status"], verified["sourceRecords"], verified["differences"]) == (0, RECORDS, 0), (
        verified
    )
    flow.assert_exact(topic)
