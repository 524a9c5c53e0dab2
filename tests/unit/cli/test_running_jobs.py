"""A running Spark job is registered with its newest report and is not listed as a flow."""

from pathlib import Path
from typing import Any

import pytest

from mirrorflow_cli.run_process import running_flows
from mirrorflow_cli.running_jobs import RunningJob, running_jobs
from mirrorflow_console.local_jobs import LocalJobs
from mirrorflow_seed.job_report import JobPhase, SeedReport
from tests.unit.cli.test_spark_jobs import COMMANDS, parse
from tests.unit.console.flow_readings import FixedFlows
from tests.unit.console.served_console import served
from tests.unit.console.test_server import get


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder in which jobs of this test register."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def run_seed(monkeypatch: pytest.MonkeyPatch, meanwhile: Any) -> None:
    """Runs a seed that reports once and then calls *meanwhile*."""

    def run(*_: Any, display: Any, **__: Any) -> int:
        display(SeedReport(run_id="7", phase=JobPhase.RUNNING, partitions=4, done=1, wave=1))
        meanwhile()
        return 0

    monkeypatch.setattr("mirrorflow_seed.seed.seed_driver.run", run)
    assert COMMANDS["seed"].execute(parse("seed", "--run-id", "7")) == 0


def test_a_job_is_registered_with_its_report_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[RunningJob] = []

    def meanwhile() -> None:
        seen.extend(running_jobs())
        assert running_flows() == ()

    run_seed(monkeypatch, meanwhile)

    assert [(job.report["job"], job.report["runId"], job.report["phase"]) for job in seen] == [
        ("seed", "7", "Running")
    ]
    assert seen[0].flow
    assert running_jobs() == []


def test_the_page_of_jobs_lists_a_running_job_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies: list[str] = []

    def read_page() -> None:
        with served(FixedFlows(), jobs=LocalJobs()) as console:
            bodies.append(get(console, "/jobs")[2])

    run_seed(monkeypatch, read_page)
    read_page()

    assert "Seed of" in bodies[0]
    assert "1 of 4" in bodies[0]
    assert "No seed, verification" in bodies[1]


def test_a_job_runs_even_if_it_cannot_be_registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path of the state folder is a file."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))

    run_seed(monkeypatch, lambda: None)
