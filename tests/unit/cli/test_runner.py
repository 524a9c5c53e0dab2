"""The runner restarts dead replicators, leaves no process running, and ends when the flow has caught up.

The replicator is `replicator_stub.py`, so no broker is needed. The runner is a process too, so that tests can kill it.
"""

import io
import json
import os
import signal
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest
from rich.console import Console

from mirrorflow_cli.run_display import PlainDisplay
from mirrorflow_cli.run_table import TableDisplay
from mirrorflow_core.backoff import JITTER
from tests.unit.cli import runner_process

WAIT_S = 300.0  # a limit for hangs; processes start slowly on a busy machine
POLL_S = 0.01


class RunnerProcess:
    """A runner process with a stub of the replicator."""

    def __init__(
        self, folder: Path, mode: str, *, until: bool, time_limit_s: float | None, more: Mapping[str, str]
    ) -> None:
        self.journal, self.out = folder / "journal", folder / "out"
        environment = {"STUB_JOURNAL": str(self.journal), **more}
        self.process = runner_process.start(
            folder, mode, until=until, time_limit_s=time_limit_s, environment=environment
        )

    def wait(self) -> int | None:
        """Returns the exit status; it is negative if a signal ended the process."""
        self.process.join(WAIT_S)
        return self.process.exitcode

    def send_signal(self, number: int) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def lines(self, word: str) -> list[str]:
        """The lines of the journal that begin with *word*, without the word."""
        text = self.journal.read_text() if self.journal.exists() else ""
        return [line.removeprefix(word + " ") for line in text.splitlines() if line.startswith(word + " ")]

    def events(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.out.read_text().splitlines() if line.endswith("}")]


def until(condition: Callable[[], object], what: str) -> None:
    """Waits until *condition* holds, at most `WAIT_S`."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"The condition was not met in time: {what}."
        time.sleep(POLL_S)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., RunnerProcess]]:
    """Starts runners; kills their processes afterwards."""
    started: list[RunnerProcess] = []

    def start(
        mode: str, *, until: bool = False, time_limit_s: float | None = None, **more: str
    ) -> RunnerProcess:
        started.append(RunnerProcess(tmp_path, mode, until=until, time_limit_s=time_limit_s, more=more))
        return started[-1]

    yield start
    for runner in started:
        runner.process.kill()
        runner.wait()
        for pid in runner.lines("start"):
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


def test_runner_exits_with_0_after_all_partitions_have_caught_up(run: Callable[..., RunnerProcess]) -> None:
    """The replicator is stopped by SIGTERM, not killed."""
    running = run("serve", until=True)

    assert 0 == running.wait()
    assert ["SIGTERM"] == running.lines("end")
    assert "caughtUp" in [event["event"] for event in running.events()]


def test_runner_fails_when_only_stopped_partitions_lag(run: Callable[..., RunnerProcess]) -> None:
    row = {
        "topic": "t",
        "phase": "stopped",
        "reachedStartEnd": False,
        "message": "t-0: the record is too large.",
    }
    running = run("serve", until=True, STUB_ROWS=json.dumps([row]))

    assert 1 == running.wait()
    assert "t-0: the record is too large." in str([e for e in running.events() if e["event"] == "failed"])


def test_runner_fails_when_a_topic_is_not_copied(run: Callable[..., RunnerProcess]) -> None:
    """All partitions have caught up, but one topic could not be created."""
    sentence = "Target topic east.t cannot be created: no."
    running = run("serve", until=True, STUB_UNCOPIED=json.dumps([sentence]))

    assert 1 == running.wait()
    assert sentence in str([e for e in running.events() if e["event"] == "failed"])
    assert [sentence] == next(e for e in running.events() if e["event"] == "progress")["uncopied"]


INFO = "2026-01-01 00:00:00,000 INFO mirrorflow.worker listening on http://127.0.0.1:1"
WARNING = "2026-01-01 00:00:01,000 WARNING mirrorflow.worker the disk is full"
JSON = '{{"time": "2026-01-01T00:00:00.000Z", "level": "{}", "logger": "mirrorflow", "message": "{}"}}'
TRACEBACK = 'Traceback (most recent call last):\n  File "x.py", line 1\nOSError: no more files'


@pytest.mark.parametrize(
    ("log_lines", "message"),
    [
        ([INFO], INFO),
        ([INFO, WARNING, INFO], WARNING),
        ([WARNING, WARNING.replace("WARNING", "ERROR"), INFO], WARNING.replace("WARNING", "ERROR")),
        ([INFO, TRACEBACK], "OSError: no more files"),
        ([INFO, TRACEBACK, INFO], "OSError: no more files"),
        ([WARNING, "Cluster west cannot be reached."], "Cluster west cannot be reached."),
        ([INFO + "x" * 5_000, INFO], INFO),
        ([], ""),
        ([JSON.format("INFO", "up"), JSON.format("WARNING", "the disk is full"), JSON.format("INFO", "still up")], "the disk is full"),
    ],
    ids=[
        "info only", "warning before info", "error after a warning", "traceback",
        "traceback before info", "last line without a level", "first line cut", "empty log",
        "JSON",
    ],
)  # fmt: skip
def test_the_end_of_a_replicator_is_reported_with_its_cause(
    run: Callable[..., RunnerProcess], log_lines: list[str], message: str
) -> None:
    """The cause is the newest warning, error or traceback in the log; without one, the last line."""
    running = run("crash", STUB_LOG="".join(line + "\n" for line in log_lines))
    until(lambda: "ended" in [event["event"] for event in running.events()], "the replicator has ended")

    assert message == next(event["message"] for event in running.events() if event["event"] == "ended")


def test_a_replicator_that_dies_is_restarted(run: Callable[..., RunnerProcess]) -> None:
    running = run("serve")
    until(lambda: len(running.lines("ready")) == 1, "the first replicator is ready")

    os.kill(int(running.lines("start")[0]), signal.SIGKILL)

    until(lambda: len(running.lines("ready")) == 2, "a second replicator is ready")
    assert -signal.SIGKILL in [event.get("status") for event in running.events()]


def test_the_wait_before_a_restart_doubles(run: Callable[..., RunnerProcess]) -> None:
    """Each wait is twice the previous one, apart from jitter."""
    running = run("die")
    until(lambda: len(running.lines("start")) >= 3, "the replicator was started three times")

    waits = [float(str(e["restartsInSeconds"])) for e in running.events() if e["event"] == "ended"]

    assert waits[:2] == [pytest.approx(expected, rel=JITTER + 0.1) for expected in (0.5, 1.0)]


def test_a_replicator_with_a_wrong_setting_is_not_restarted(run: Callable[..., RunnerProcess]) -> None:
    """A restart would not help: the runner ends with the status for wrong settings."""
    running = run("refuse")

    assert 2 == running.wait()
    assert 1 == len(running.lines("start"))
    (ended,) = (event for event in running.events() if event["event"] == "ended")
    assert (2, "the stub received refuse", None) == (
        ended["status"],
        ended["message"],
        ended["restartsInSeconds"],
    )


def test_displays_announce_only_restarts_that_will_happen(capsys: pytest.CaptureFixture[str]) -> None:
    screen = io.StringIO()
    table = TableDisplay("east → west", Console(file=screen, width=120))
    for display in (PlainDisplay(), table):
        display.ended(1, "", 0.5)
        display.ended(2, "offset.lag.max: many.", None)
    table.close()

    assert [
        "replicator ended with status 1, restart in 0.5 s",
        "replicator ended with status 2: offset.lag.max: many.",
    ] == capsys.readouterr().err.splitlines()
    drawn = screen.getvalue()
    assert "replicator ended (status 1), restart in 0.5 s." in drawn
    assert "replicator ended (status 2). offset.lag.max: many." in drawn


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the replicator watches its stdin")
@pytest.mark.parametrize("mode", ["serve", "ignore-sigterm"])
def test_the_replicator_ends_with_a_killed_runner(run: Callable[..., RunnerProcess], mode: str) -> None:
    """The replicator ends although it ignores SIGTERM and does not read stdin."""
    running = run(mode)
    until(lambda: running.lines("ready"), "the replicator is ready")
    pid = int(running.lines("start")[0])

    running.process.kill()

    until(lambda: not alive(pid), "the replicator has ended")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_the_replicator_gracefully(
    run: Callable[..., RunnerProcess], number: signal.Signals, status: int
) -> None:
    running = run("serve")
    until(lambda: running.lines("ready"), "the replicator is ready")

    running.send_signal(number)

    assert status == running.wait()
    assert ["SIGTERM"] == running.lines("end")


@pytest.mark.parametrize(
    ("number", "catches_up", "is_interrupted"),
    [(signal.SIGINT, False, True), (signal.SIGTERM, False, False), (None, True, False)],
    ids=["Ctrl-C", "SIGTERM", "caught up"],
)
def test_only_an_interrupted_run_announces_that_ctrl_c_kills(
    run: Callable[..., RunnerProcess],
    capsys: pytest.CaptureFixture[str],
    number: signal.Signals | None,
    *,
    catches_up: bool,
    is_interrupted: bool,
) -> None:
    running = run("serve", until=catches_up)
    if number is not None:
        until(lambda: running.lines("ready"), "the replicator is ready")
        running.send_signal(number)
    running.wait()

    assert [is_interrupted] == [e["interrupted"] for e in running.events() if e["event"] == "stopping"]
    PlainDisplay().stopping(is_interrupted=is_interrupted)
    assert ("stopping; Ctrl-C again kills\n" if is_interrupted else "stopping\n") == capsys.readouterr().err


@pytest.mark.timing  # the stub has to start within the time limit of one second
def test_a_run_that_has_not_caught_up_in_time_exits_with_1(run: Callable[..., RunnerProcess]) -> None:
    """The replicator is stopped gracefully."""
    lagging = {"topic": "t", "phase": "copying", "reachedStartEnd": False}
    running = run("serve", until=True, time_limit_s=1.0, STUB_ROWS=json.dumps([lagging]))

    assert 1 == running.wait()
    assert str(running.events()[-1]["message"]).startswith("Not caught up within 1 s: ")
    assert ["SIGTERM"] == running.lines("end")


def test_a_second_ctrl_c_kills_the_replicator(run: Callable[..., RunnerProcess]) -> None:
    """The runner does not wait for a replicator that ignores SIGTERM."""
    running = run("ignore-sigterm")
    until(lambda: running.lines("ready"), "the replicator is ready")
    running.send_signal(signal.SIGINT)
    until(lambda: "stopping" in running.out.read_text(), "the runner has received the first Ctrl-C")

    running.send_signal(signal.SIGINT)

    assert 130 == running.wait()
    assert not alive(int(running.lines("start")[0]))


def test_property_files_are_readable_only_by_the_user_and_removed_at_the_end(
    run: Callable[..., RunnerProcess], tmp_path: Path
) -> None:
    """They are in a folder of mode 0700 and contain references instead of secrets."""
    running = run("serve")
    until(lambda: running.lines("ready"), "the replicator is ready")
    worker, connector, other = (Path(name) for name in running.lines("ready")[0].split())

    assert 0o700 == stat.S_IMODE(worker.parent.stat().st_mode)
    assert 0o600 == stat.S_IMODE(connector.stat().st_mode)
    assert "x=${dir:/a:b}\n" == connector.read_text()
    assert "y=1\n" == other.read_text()
    assert "mirrorflow.http.listeners=http://127.0.0.1:0\n" in worker.read_text()

    running.send_signal(signal.SIGTERM)
    running.wait()

    assert [] == list(tmp_path.glob("mirrorflow-*"))
