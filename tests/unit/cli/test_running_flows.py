"""`mirrorflow status` lists the flows that run on this machine."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mirrorflow_cli.__main__ import main
from mirrorflow_cli.run_process import ProcessFiles, registered, running_flows

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
