"""The replicator process that `mirrorflow run` starts before it reads the flow.

It is forked on Linux and spawned elsewhere.
"""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

WAIT_S = 300.0
COMMAND = """
import os, sys
from mirrorflow_cli.prepared_replicator import PreparedReplicator

sys.platform = "{platform}"
with PreparedReplicator({{"MORE": "1"}}) as prepared:
    {body}
print("the command continues")
"""
TAKE = """log = open(sys.argv[1], "wb")
    process = prepared.take(["standalone", "worker", "connector"], {{}}, output=log.fileno())
    print(process.wait(), process.poll(), prepared.take([], {{}}, output=1))"""

pytestmark = pytest.mark.parametrize("form", ["forked", "spawned"])


def command_process(body: str, log: Path, form: str) -> subprocess.Popen[str]:
    """Starts a process that runs *body* with a prepared replicator of that *form*."""
    code = COMMAND.format(body=body.format(), platform="linux" if form == "forked" else "other")
    return subprocess.Popen(
        [sys.executable, "-c", code, str(log)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_a_prepared_replicator_runs_its_arguments_and_exits_without_running_the_command(
    form: str, tmp_path: Path
):
    log = tmp_path / "log"
    with command_process(TAKE, log, form) as process:
        out, _ = process.communicate(timeout=WAIT_S)

    assert (0, "2 2 None\nthe command continues\n") == (process.returncode, out)
    assert "connector cannot be read: No such file or directory.\n" == log.read_text()


def test_a_prepared_replicator_ends_when_the_command_leaves_its_block(form: str, tmp_path: Path):
    with command_process("print(prepared._process.pid)", tmp_path / "log", form) as process:
        out, _ = process.communicate(timeout=WAIT_S)

    pid, end = out.splitlines()
    assert "the command continues" == end
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)


def test_a_prepared_replicator_ends_when_the_command_is_killed(form: str, tmp_path: Path):
    body = "print(prepared._process.pid, flush=True); sys.stdin.read()"
    with command_process(body, tmp_path / "log", form) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        replicator = os.pidfd_open(pid)
        process.send_signal(signal.SIGKILL)

        assert [replicator] == select.select([replicator], [], [], WAIT_S)[0]
    os.close(replicator)
