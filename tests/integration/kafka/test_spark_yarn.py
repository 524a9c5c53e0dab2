"""Jobs that `spark-submit` starts on a real YARN, with the driver here (client mode) and in a container (cluster mode)."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import load
from tests.harness.spark.yarn import YarnCluster
from tests.integration.kafka.flows import Flow
from tests.integration.kafka.seeding import files_of

pyspark = pytest.importorskip("pyspark")
pytestmark = pytest.mark.timeout(900)

RECORDS = 4_000
JOB_WAIT_S = 400.0
Mode = Literal["client", "cluster"]
RunJob = Callable[..., tuple[int, dict[str, Any], str]]


@pytest.fixture(scope="module")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[YarnCluster]:
    home = Path(pyspark.__file__).parent
    with YarnCluster(folder=tmp_path_factory.mktemp("yarn"), spark_home=home) as cluster:
        yield cluster


@pytest.fixture
def run_job(yarn: YarnCluster, flow: Flow, tmp_path: Path) -> RunJob:
    """Runs a job to its end; returns the status of spark-submit, the driver's last report, and the output."""

    def run(command: str, topics: str, *, mode: Mode, **settings: str) -> tuple[int, dict[str, Any], str]:
        files, report = files_of(flow, topics), tmp_path / f"{command}.json"
        report.unlink(missing_ok=True)
        sets = [f"--set={key.replace('_', '.')}={value}" for key, value in settings.items()]
        paths = [files.worker, files.source]
        # In a container the driver finds the files in its working directory.
        names = [Path(path).name for path in paths] if mode == "cluster" else paths
        child = yarn.submit(
            [command, "--worker", names[0], "--source", names[1], *sets],
            mode=mode,
            log=tmp_path / f"{command}.log",
            files=paths if mode == "cluster" else (),
            report=report,
        )
        try:
            wait_until(f"{command} ends", lambda: not child.running, timeout_s=JOB_WAIT_S)
        finally:
            child.kill()
        last = json.loads(report.read_text()) if report.exists() else {}
        return int(child.process.returncode or 0), last, child.log.read_text()

    return run


@pytest.mark.parametrize("mode", ["client", "cluster"])
def test_a_seed_and_a_verification_run_on_yarn(
    flow: Flow, unique_topic: Callable[[], str], run_job: RunJob, mode: Mode
):
    topic = flow.source.create_topic(unique_topic(), partitions=4)
    load(flow.source, topic, RECORDS, size_bytes=1_000, batch_bytes=65_536)

    status, seeded, log = run_job("seed", topic, mode=mode, lag_max="0")
    assert (status, seeded.get("phase"), seeded.get("records")) == (0, "Succeeded", RECORDS), log
    status, verified, log = run_job("verify", topic, mode=mode)
    assert (status, verified.get("phase"), verified.get("sourceRecords")) == (0, "Succeeded", RECORDS), log
    assert verified["differences"] == 0
    flow.assert_exact(topic)


def test_an_archive_is_written_and_restored_on_yarn(
    flow: Flow, unique_topic: Callable[[], str], run_job: RunJob, tmp_path: Path
):
    """The export's driver is in a container, that of the restore is here."""
    topic = flow.source.create_topic(unique_topic(), partitions=2)
    load(flow.source, topic, RECORDS, size_bytes=500)
    archive = str(tmp_path / "archive")

    status, exported, log = run_job("export", topic, mode="cluster", archive=archive)
    assert (status, exported.get("phase"), exported.get("records")) == (0, "Succeeded", RECORDS), log
    status, restored, log = run_job("restore", topic, mode="client", archive=archive)
    assert (status, restored.get("phase"), restored.get("records")) == (0, "Succeeded", RECORDS), log
    flow.assert_exact(topic)
