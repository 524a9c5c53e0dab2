"""Detects whether the process of a name has certainly ended."""

import os
import socket
import subprocess
import sys

import pytest

from mirrorflow_replicator.named_process import has_ended

HOST = socket.gethostname()


def ended_pid() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait(60)
    return process.pid


def test_a_running_local_process_has_not_ended():
    assert not has_ended(f"{HOST}/{os.getpid()}/a1")


def test_an_exited_local_process_has_ended():
    assert has_ended(f"{HOST}/{ended_pid()}/a1")


@pytest.mark.parametrize("runner", [f"other-{HOST}/1/a1", "", HOST, f"{HOST}/x/a1"])
def test_a_remote_or_malformed_process_id_does_not_count_as_ended(runner: str):
    assert not has_ended(runner)
