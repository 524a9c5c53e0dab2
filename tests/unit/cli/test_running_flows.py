"""`mirrorflow status` lists the flows that run on this machine."""

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from mirrorflow_cli.__main__ import main
from mirrorflow_cli.errors import FailedError
from mirrorflow_cli.run_process import (
    LogFile,
    ProcessFiles,
    ReplicatorProcess,
    log_of_flow,
    registered,
    running_flows,
)

RUNS = """
import sys, time
from pathlib import Path
from mirrorflow_cli.run_process import ProcessFiles
from mirrorflow_cli.run_process import registered
with registered("killed", ProcessFiles(folder=Path(sys.argv[1]), connectors=())):
    print("runs", flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def _own_state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def files_in(folder: Path) -> ProcessFiles:
    return ProcessFiles(folder=folder, connectors=())


def test_a_flow_is_listed_while_it_runs(tmp_path: Path) -> None:
    assert () == running_flows()
    with registered("east-to-west", files_in(tmp_path)):
        (flow,) = running_flows()
        assert ("east-to-west", os.getpid(), None) == (flow.name, flow.pid, flow.url)
        (tmp_path / "url").write_text("http://127.0.0.1:1\n")
        (tmp_path / "pid").write_text("4321")
        assert [("http://127.0.0.1:1", 4321)] == [(flow.url, flow.replicator_pid) for flow in running_flows()]
    assert () == running_flows()


def test_a_flow_of_a_killed_run_is_not_listed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", RUNS, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        assert "runs\n" == run.stdout.readline()
        assert ["killed"] == [flow.name for flow in running_flows()]
        run.send_signal(signal.SIGKILL)
    assert () == running_flows()
    assert [] == list((tmp_path / "state").glob("mirrorflow/running/*"))


def test_a_flow_that_is_about_to_be_registered_is_not_removed_by_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another command may list the flows before this one has locked its file."""
    lock = fcntl.flock

    def flock(file: Any, operation: int) -> None:
        if operation & fcntl.LOCK_EX:
            assert () == running_flows()
        lock(file, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    with registered("east-to-west", files_in(tmp_path)):
        assert ["east-to-west"] == [flow.name for flow in running_flows()]


@pytest.mark.parametrize("state", ["/proc/none", None])
def test_a_flow_runs_unregistered_where_its_user_has_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str | None
) -> None:
    """The folder cannot be created, or the user has no home, as any user id in a container."""
    if state is None:
        monkeypatch.delenv("XDG_STATE_HOME")
        monkeypatch.setattr(Path, "home", _no_home)
    else:
        monkeypatch.setenv("XDG_STATE_HOME", state)

    with registered("east-to-west", files_in(tmp_path)) as path:
        assert None is path
        assert () == running_flows()
    with pytest.raises(FailedError, match="--log"):
        log_of_flow("east-to-west")


def _no_home() -> Path:
    raise RuntimeError("Could not determine home directory.")


def test_a_replicator_starts_although_the_file_of_its_process_id_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk does not stop a flow that is restarted."""
    write = Path.write_text

    def write_text(path: Path, *args: Any, **more: Any) -> int:
        if path.name == "pid":
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, *args, **more)

    monkeypatch.setattr(Path, "write_text", write_text)
    log = LogFile(tmp_path / "log")
    process = ReplicatorProcess(
        files_in(tmp_path),
        command=(sys.executable, "-c", "import sys; sys.stdin.read()"),
        environment={},
        log=log,
        prepared=None,
        clock=lambda: 0.0,
    )

    assert process.start_if_due()
    process.signal(signal.SIGKILL)
    while process.running and process.ended() is None:
        time.sleep(0.01)
    log.close()


def test_status_without_running_flows_prints_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == main(["status"])
    assert capsys.readouterr().out.startswith("No flow runs on this machine")
    assert 0 == main(["status", "--json"])
    assert {"flows": []} == json.loads(capsys.readouterr().out)


def test_status_fails_for_a_flow_that_does_not_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with registered("east-to-west", files_in(tmp_path)):
        assert 1 == main(["status", "west-to-east"])
    assert "No flow west-to-east runs on this machine" in capsys.readouterr().err


def test_status_shows_a_replicator_that_does_not_respond(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "pid").write_text("4321")
    with registered("east-to-west", files_in(tmp_path)):
        assert 0 == main(["status", "east-to-west"])
        out = capsys.readouterr().out
        assert "not answering" in out
        assert "replicator pid" in out
        assert "4321" in out
        assert 0 == main(["status", "--json"])
        (flow,) = json.loads(capsys.readouterr().out)["flows"]
    assert ("east-to-west", None, None) == (flow["flow"], flow["url"], flow["progress"])
    assert (os.getpid(), 4321) == (flow["pid"], flow["replicatorPid"])
