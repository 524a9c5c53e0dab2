"""An error of Spark is reported in one sentence with an exit status, without a stack trace of the JVM or of Python."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mirrorflow_seed.errors import EXIT_STOPPED, EXIT_USAGE
from tests.harness.kafka.processes import family, start, wait_until
from tests.harness.kafka.tools import load
from tests.integration.kafka.flows import Flow
from tests.integration.kafka.seeding import files_of

pyspark = pytest.importorskip("pyspark")
pytestmark = pytest.mark.timeout(300)

STACK = re.compile(r"Traceback|^\s+at .+\(|Caused by:", re.MULTILINE)
VERIFY = [sys.executable, "-m", "mirrorflow_seed", "verify", "--worker", "none", "--source", "none"]


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("master=foo", "Spark: Master must either be yarn or start with spark, k8s, or local"),
        ("master=local[x]", "Could not parse Master URL: 'local[x"),
        ("spark.driver.memory=12xyz", "Spark: Invalid maximum heap size: -Xmx12xyz"),
        ("spark.driver.memory=100m", "System memory 101384192 must be at least 471859200"),
        ("spark.executor.memory=lots", "Spark: Executor memory must be a positive number"),
        ("mastr=foo", "mastr: it is no property of a job; write master"),
    ],
)
def test_a_wrong_setting_is_reported_in_one_sentence(setting: str, sentence: str):
    finished = subprocess.run(
        [*VERIFY, "--set", setting], capture_output=True, text=True, timeout=200, check=False
    )
    lines = [line for line in finished.stderr.splitlines() if " INFO " not in line]

    assert finished.returncode == EXIT_USAGE
    assert sentence in lines[-1]
    assert not STACK.search(finished.stderr)


def test_a_missing_python_is_reported_in_one_sentence(
    flow: Flow, unique_topic: Callable[[], str], tmp_path: Path
):
    topic = flow.source.create_topic(unique_topic())
    load(flow.source, topic, 10)
    files = files_of(flow, topic)
    command = ["export", "--worker", files.worker, "--source", files.source, "--set", f"archive={tmp_path}/a"]
    finished = subprocess.run(
        [sys.executable, "-m", "mirrorflow_seed", *command, "--set", "master=local[1]"],
        env={**os.environ, "PYSPARK_PYTHON": "/nowhere/python"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )

    assert finished.returncode == EXIT_USAGE, finished.stderr
    assert (
        "spark.pyspark.python: Spark cannot run /nowhere/python; set it, or PYSPARK_PYTHON" in finished.stderr
    )
    assert not STACK.search(finished.stderr)


def test_an_interrupt_during_the_launch_of_the_jvm_leaves_no_process(tmp_path: Path):
    """An interrupted launch of PySpark could leave a JVM that never ends."""
    child = start("verify", [*VERIFY, "--set", "master=local[1]"], log=tmp_path / "verify.log")

    def has_child() -> bool:
        child.must_run()
        return len(family(child.pid)) > 1

    wait_until("the JVM is launched", has_child, timeout_s=120)
    pids = family(child.pid)
    os.kill(child.pid, signal.SIGINT)
    wait_until("verify ends", lambda: not child.running, timeout_s=120)
    wait_until("the JVM ends", lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), timeout_s=60)

    assert child.process.returncode == EXIT_STOPPED
    assert not STACK.search(child.log.read_text())
