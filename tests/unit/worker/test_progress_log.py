"""Progress lines in the worker's log, and `mirrorflow status` of a replicator started without `mirrorflow run`."""

import json
import os
import time
from pathlib import Path

import pytest

from mirrorflow_cli.__main__ import main
from mirrorflow_core.reports import ConnectorReport
from mirrorflow_replicator.worker.progress_log import LOG_LINE_S, ProgressLog
from mirrorflow_replicator.worker.running_processes import registered, registered_if_possible
from tests.unit.http.reports import connector, partition, task, view

NAME = "east->west.MirrorSourceConnector"


@pytest.fixture(autouse=True)
def _own_state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def source(records: int = 90, **changes: object) -> ConnectorReport:
    return connector(
        task(partition(records=records, source_offset=100)), name=NAME, flow="east->west", **changes
    )


def test_progress_is_logged_on_a_change_of_state_and_periodically(caplog: pytest.LogCaptureFixture) -> None:
    """Changed figures alone are logged only once per period."""
    caplog.set_level("INFO")
    now_s, report = 0.0, source()
    progress_log = ProgressLog(lambda: view(report), file=None, is_terminal=False, clock=lambda: now_s)
    progress_log.check()
    report = source(91)
    progress_log.check()
    report = source(91, is_standby=True)
    progress_log.check()
    report = source(91)
    progress_log.check()
    now_s, report = LOG_LINE_S, source(92)
    progress_log.check()
    progress_log.check()

    assert ["90 copied", "the reason", "91 copied", "92 copied"] == [
        " ".join(message.split()[-2:]) for message in caplog.messages
    ]


def test_a_disabled_flow_has_no_progress_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    report = source(properties={"enabled": "false"})

    ProgressLog(lambda: view(report), file=None, is_terminal=True).check()

    assert [] == caplog.messages


def test_status_shows_flows_of_a_replicator_without_a_runner(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = source(state="FAILED", reason="FlowExists", trace="Another flow has this alias.")
    with registered({"form": "mm2"}) as file:
        now_s = time.time()
        ProgressLog(lambda: view(report, now_s=now_s), file=file, is_terminal=False).check()
        assert 0 == main(["status", "east->west"])
        shown = capsys.readouterr().out
        assert 0 == main(["status", "--json"])

    assert "east->west" in shown.splitlines()[1]
    assert str(os.getpid()) in shown.splitlines()[1]
    assert "east->west: Another flow has this alias." in shown
    (flow,) = json.loads(capsys.readouterr().out)["flows"]
    assert (None, os.getpid(), 90) == (flow["pid"], flow["replicatorPid"], flow["progress"]["records"])
    assert not file.exists()


def test_status_shows_why_a_replicator_has_no_connectors_yet(capsys: pytest.CaptureFixture[str]) -> None:
    """For example, its worker cannot read the config topic."""
    warnings = ("Cluster west cannot be reached.",)
    with registered({"form": "mm2"}) as file:
        ProgressLog(lambda: view(now_s=time.time(), warnings=warnings), file=file, is_terminal=False).check()
        main(["status"])

    assert "mm2: Cluster west cannot be reached." in capsys.readouterr().out


def test_old_progress_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """A frozen process does not update its progress."""
    with registered({"form": "mm2"}) as file:
        ProgressLog(lambda: view(source(), now_s=time.time() - 600), file=file, is_terminal=False).check()
        main(["status"])

    assert "not answering" in capsys.readouterr().out


def test_a_replicator_runs_unregistered_without_a_writable_state_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))

    with registered_if_possible({"form": "mm2"}) as file:
        assert file is None
