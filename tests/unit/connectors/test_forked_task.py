"""The worker forks its first task process before its event loop starts."""

import subprocess
import sys

import pytest

WAIT_S = 300.0
WORKER = """
import asyncio, os, sys
from mirrorflow_replicator.connectors import child_process
from mirrorflow_replicator.connectors.task_messages import Stop
from mirrorflow_replicator.process import die_with_parent

if child_process.fork_first():
    {task}
    sys.exit()

async def main():
    child = await child_process.spawn()
    {worker}

asyncio.run(main())
"""
REPORTING = (
    "sys.stdout.buffer.write(b'\\n'); sys.stdout.flush(); assert sys.stdin.buffer.read(4); sys.exit(3)"
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only")


def run(*, task: str, worker: str) -> str:
    """Runs a worker whose first task process runs *task* in `child`, and returns the output of *worker*."""
    code = WORKER.format(task=task, worker="\n    ".join(worker.split("; ")))
    completed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert (0, "") == (completed.returncode, completed.stderr)
    return completed.stdout


def test_forked_task_receives_messages_and_returns_output_and_exit_code():
    worker = "await child.started(); print(child.has_ended, child.send(Stop())); print(await child.wait(), child.has_ended)"

    assert "False True\n3 True\n" == run(task=REPORTING, worker=worker)


def test_forked_task_is_killed_on_request():
    worker = "await child.started(); child.kill(); print(await child.wait()); child.kill(); print([report async for report in child.reports()])"

    assert "-9\n[]\n" == run(task=REPORTING.replace("sys.exit(3)", "pass"), worker=worker)


def test_forked_task_reads_the_end_of_its_input():
    worker = "await child.started(); await child.close(); print(await child.wait())"
    task = "sys.stdout.buffer.write(b'\\n'); sys.stdout.flush(); sys.exit(len(sys.stdin.buffer.read()))"

    assert "0\n" == run(task=task, worker=worker)


def test_only_the_first_task_is_forked():
    worker = "print(len(child_process._forked)); await child.started(); child.kill(); await child.wait()"

    assert "0\n" == run(task=REPORTING, worker=worker)
