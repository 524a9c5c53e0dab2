"""Spark's history server shows each job under its own name."""

import json
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.harness.kafka.processes import Child, free_port, start, wait_until
from tests.harness.kafka.tools import load
from tests.harness.spark.standalone import LIGHT_JVM
from tests.integration.kafka.flows import Flow
from tests.integration.kafka.seeding import SeedProcess, files_of

pyspark = pytest.importorskip("pyspark")

JOBS = ("seed", "verify", "export", "restore")


@contextmanager
def history_server(events: Path, log: Path) -> Iterator[str]:
    """Starts the server on a folder of event logs, and yields its address."""
    port, home = free_port(), Path(pyspark.__file__).parent
    options = f"{LIGHT_JVM} -Dspark.history.fs.logDirectory={events.as_uri()} -Dspark.history.ui.port={port}"
    server: Child = start(
        "history-server",
        [str(home / "bin" / "spark-class"), "org.apache.spark.deploy.history.HistoryServer"],
        log=log,
        environment={"SPARK_HOME": str(home), "SPARK_HISTORY_OPTS": options, "SPARK_DAEMON_MEMORY": "256m"},
    )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.kill()  # `spark-class` replaces itself by the JVM


def test_the_history_server_shows_each_job_under_its_own_name(
    flow: Flow, unique_topic: Callable[[], str], tmp_path: Path
) -> None:
    topic = flow.source.create_topic(unique_topic())
    load(flow.source, topic, 100)
    files, events = files_of(flow, topic), tmp_path / "events"
    events.mkdir()
    for command in JOBS:
        job = {
            "run.id": "h1",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": events.as_uri(),
            **({"archive": str(tmp_path / "archive")} if command in {"export", "restore"} else {}),
        }
        process = SeedProcess(files=files, folder=tmp_path, job=job, command=command).start()
        assert process.wait()["status"] == 0, process.running.tail()

    with history_server(events, tmp_path / "history.log") as address:

        def names() -> set[str]:
            try:
                with urllib.request.urlopen(f"{address}/api/v1/applications", timeout=10) as response:
                    return {application["name"] for application in json.loads(response.read())}
            except OSError:
                return set()

        wait_until("all jobs are listed", lambda: len(names()) == len(JOBS))
        assert names() == {f"mirrorflow-{command}-h1" for command in JOBS}
