"""Seeds for tests of one flow.

A seed runs inside this process, in a Spark session that the tests of a file share, or as a separate process.
"""

import json
import os
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mirrorflow_seed.job_report import SeedReport
from mirrorflow_seed.seed.seed_driver import run
from mirrorflow_seed.settings import FlowFiles, job_of
from mirrorflow_seed.spark_session import spark_session
from tests.harness.kafka.installation import write_properties
from tests.harness.kafka.processes import Child, family, start, wait_until
from tests.integration.kafka.flows import Flow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CORES = 2
QUICK = {"lag.max": "0", "master": f"local[{CORES}]"}


@contextmanager
def session(master: str = f"local[{CORES}]") -> "Iterator[SparkSession]":
    """Yields a Spark session that is created as a job creates it."""
    with spark_session(job_of({"master": master}), "tests") as context:
        yield context


def files_of(flow: Flow, topics: str, connector: Mapping[str, str] | None = None) -> FlowFiles:
    """Writes the files that the flow's source connector would receive."""
    process = flow.replicator(topics, connector)
    process.folder.mkdir(parents=True)
    worker, source = process.files
    assert not isinstance(worker, str)
    assert not isinstance(source, str)
    return FlowFiles(
        worker=str(write_properties(process.folder / "worker.properties", dict(worker))),
        source=str(write_properties(process.folder / "source.properties", dict(source))),
    )


def seed(
    files: FlowFiles,
    spark: "SparkSession",
    *,
    watch: Callable[[SeedReport], None] | None = None,
    **job: str,
) -> tuple[int, SeedReport]:
    """Runs a seed in this process, and returns the exit status and the last report.

    *watch* is called with each report and blocks the driver.
    """
    reports: list[SeedReport] = []

    def display(report: object) -> None:
        assert isinstance(report, SeedReport)
        reports.append(report)
        if watch is not None:
            watch(report)

    status = run(
        files,
        job_of(QUICK | {key.replace("_", "."): value for key, value in job.items()}),
        display=display,
        spark=spark,
    )
    return status, reports[-1]


@dataclass(kw_only=True, slots=True)
class SeedProcess:
    """A process with the driver and its executor. *command* is a subcommand of `mirrorflow-seed`."""

    files: FlowFiles
    folder: Path
    job: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    command: str = "seed"
    child: Child | None = None
    report_file: Path = field(init=False)

    def start(self) -> "SeedProcess":
        """Starts the process, and does not wait for it."""
        stem = self.folder / f"seed-{uuid.uuid4().hex[:8]}"
        self.report_file = stem.with_suffix(".json")
        sets = [f"--set={key}={value}" for key, value in (QUICK | dict(self.job)).items()]
        self.child = start(
            "seed",
            [
                sys.executable,
                "-m",
                "mirrorflow_seed",
                self.command,
                "--worker",
                self.files.worker,
                "--source",
                self.files.source,
                *sets,
            ],
            log=stem.with_suffix(".log"),
            environment={**self.environment, "TERMINATION_MESSAGE": str(self.report_file)},
        )
        return self

    @property
    def running(self) -> Child:
        """Returns the driver process."""
        assert self.child is not None
        return self.child

    def kill(self) -> None:
        """Kills only the driver with kill -9. The processes that it has started must end by themselves."""
        self.running.kill()

    def wait(self) -> dict[str, Any]:
        """Waits for the end, and returns the last report with the exit status."""
        wait_until(f"the seed ends\n{self.running.tail()}", lambda: not self.running.running)
        report: dict[str, Any] = json.loads(self.report_file.read_text()) if self.report_file.exists() else {}
        return report | {"status": self.running.process.returncode}

    def members(self) -> list[int]:
        """Returns the ids of the driver and of all processes that it has started."""
        return family(self.running.pid)

    def close(self) -> None:
        """Ends all remaining processes."""
        if self.child is not None and self.child.running:
            for pid in self.members():
                os.kill(pid, 9)
            self.child.kill()  # waits for the end, because a zombie would cause a warning in a later test
