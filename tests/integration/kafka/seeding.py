"""Seeds of a flow under attack: in this process, by a Spark session that a file's tests share, or as a process of its own."""

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
    """A Spark session as a job has it."""
    with spark_session(job_of({"master": master}), "tests") as context:
        yield context


def files_of(flow: Flow, topics: str, connector: Mapping[str, str] | None = None) -> FlowFiles:
    """The files that the flow's source connector would be given."""
    given = flow.replicator(topics, connector)
    given.folder.mkdir(parents=True)
    worker, source = given.files
    assert not isinstance(worker, str)
    assert not isinstance(source, str)
    return FlowFiles(
        worker=str(write_properties(given.folder / "worker.properties", dict(worker))),
        source=str(write_properties(given.folder / "source.properties", dict(source))),
    )


def seed(
    files: FlowFiles,
    spark: "SparkSession",
    *,
    watch: Callable[[SeedReport], None] | None = None,
    **job: str,
) -> tuple[int, SeedReport]:
    """Run it here until it ends: exit status and last report. *watch* is given each, and holds the driver up meanwhile."""
    said: list[SeedReport] = []

    def display(report: object) -> None:
        assert isinstance(report, SeedReport)
        said.append(report)
        if watch is not None:
            watch(report)

    status = run(
        files,
        job_of(QUICK | {key.replace("_", "."): value for key, value in job.items()}),
        display=display,
        spark=spark,
    )
    return status, said[-1]


@dataclass(kw_only=True, slots=True)
class SeedProcess:
    """A driver of its own, with its executor in it; *command* is a subcommand of `mirrorflow-seed`."""

    files: FlowFiles
    folder: Path
    job: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    command: str = "seed"
    child: Child | None = None
    said: Path = field(init=False)

    def start(self) -> "SeedProcess":
        """Start it; does not wait."""
        stem = self.folder / f"seed-{uuid.uuid4().hex[:8]}"
        self.said = stem.with_suffix(".json")
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
            environment={**self.environment, "TERMINATION_MESSAGE": str(self.said)},
        )
        return self

    @property
    def running(self) -> Child:
        """Its process."""
        assert self.child is not None
        return self.child

    def kill(self) -> None:
        """kill -9 of the driver alone: what it has started is to end by itself."""
        self.running.kill()

    def wait(self) -> dict[str, Any]:
        """Its last report, when it has ended."""
        wait_until(f"the seed ends\n{self.running.tail()}", lambda: not self.running.running)
        found: dict[str, Any] = json.loads(self.said.read_text()) if self.said.exists() else {}
        return found | {"status": self.running.process.returncode}

    def members(self) -> list[int]:
        """All processes of it."""
        return family(self.running.pid)

    def close(self) -> None:
        """End whatever is left."""
        if self.child is not None and self.child.running:
            for pid in self.members():
                os.kill(pid, 9)
            self.child.kill()  # waited for: a zombie is a warning in another test
