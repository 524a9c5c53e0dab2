"""Whether the process that carries a switchover out has certainly ended."""

import os
import socket
import subprocess
import sys

import pytest

from mirrorflow_replicator.switchover.session import has_ended

HOST = socket.gethostname()


def ended_pid() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait(60)
    return process.pid


def test_a_process_of_this_machine_that_runs_has_not_ended():
    assert not has_ended(f"{HOST}/{os.getpid()}/a1")


def test_a_process_of_this_machine_that_no_longer_exists_has_ended():
    assert has_ended(f"{HOST}/{ended_pid()}/a1")


@pytest.mark.parametrize("runner", [f"other-{HOST}/1/a1", "", HOST, f"{HOST}/x/a1"])
def test_of_any_other_process_it_is_not_known(runner: str):
    assert not has_ended(runner)
