"""The runner with real processes: it restarts dead ones, leaves no process behind, and detects when it is done.

The children are `stub.py`, so that these tests need no broker; the runner itself is a process too, because it is killed.
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

WAIT_S = 300.0  # ends a hang; processes start slowly on a busy machine
POLL_S = 0.01


class Running:
    """A runner with its stub."""

    def __init__(
        self, folder: Path, mode: str, *, until: bool, time_limit_s: float | None, more: Mapping[str, str]
    ) -> None:
        self.journal, self.out = folder / "journal", folder / "out"
        environment = {"STUB_JOURNAL": str(self.journal), **more}
        self.process = runner_process.start(
            folder, mode, until=until, time_limit_s=time_limit_s, environment=environment
        )

    def wait(self) -> int | None:
        """The exit status; negative where a signal ended it."""
        self.process.join(WAIT_S)
        return self.process.exitcode

    def send_signal(self, number: int) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def lines(self, word: str) -> list[str]:
        """The journal's lines that begin with *word*, without it."""
        text = self.journal.read_text() if self.journal.exists() else ""
        return [line.removeprefix(word + " ") for line in text.splitlines() if line.startswith(word + " ")]

    def events(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.out.read_text().splitlines() if line.endswith("}")]


def until(condition: Callable[[], object], what: str) -> None:
    """Wait for *condition*, at most `WAIT_S`."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(POLL_S)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """Start a runner; afterwards nothing of it is left."""
    started: list[Running] = []

    def start(mode: str, *, until: bool = False, time_limit_s: float | None = None, **more: str) -> Running:
        started.append(Running(tmp_path, mode, until=until, time_limit_s=time_limit_s, more=more))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.wait()
        for pid in one.lines("start"):
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


def test_runner_exits_0_once_everything_has_caught_up(run: Callable[..., Running]) -> None:
    """The process was stopped by a signal, not killed."""
    running = run("serve", until=True)

    assert 0 == running.wait()
    assert ["SIGTERM"] == running.lines("end")
    assert "caughtUp" in [event["event"] for event in running.events()]


def test_runner_gives_up_when_only_stopped_partitions_are_behind(run: Callable[..., Running]) -> None:
    """A waiting script learns why it cannot succeed."""
    row = {
        "topic": "t",
        "phase": "stopped",
        "reachedStartEnd": False,
        "message": "t-0: the record is too large.",
    }
    running = run("serve", until=True, STUB_ROWS=json.dumps([row]))

    assert 1 == running.wait()
    assert "t-0: the record is too large." in str([e for e in running.events() if e["event"] == "failed"])


def test_runner_does_not_exit_0_while_a_topic_is_not_copied(run: Callable[..., Running]) -> None:
    """All that there is has caught up, and a topic could not be created: status 1, with the reason."""
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
    ("logged", "words"),
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
        "nothing but news", "a warning before the last news", "an error after a warning", "a traceback",
        "a traceback before the last news", "the sentence that it ends with", "news cut in the middle", "silence",
        "JSON",
    ],
)  # fmt: skip
def test_death_is_reported_with_its_cause(run: Callable[..., Running], logged: list[str], words: str) -> None:
    """Not with whatever came last: the newest warning, error or traceback; without one, the last line."""
    running = run("crash", STUB_LOG="".join(line + "\n" for line in logged))
    until(lambda: "ended" in [event["event"] for event in running.events()], "it did not end")

    assert words == next(event["message"] for event in running.events() if event["event"] == "ended")


def test_process_that_dies_is_started_again(run: Callable[..., Running]) -> None:
    """Killed from outside, a new one serves."""
    running = run("serve")
    until(lambda: len(running.lines("ready")) == 1, "the first never served")

    os.kill(int(running.lines("start")[0]), signal.SIGKILL)

    until(lambda: len(running.lines("ready")) == 2, "no second one came")
    assert -signal.SIGKILL in [event.get("status") for event in running.events()]


def test_restarts_are_spaced_ever_wider(run: Callable[..., Running]) -> None:
    """Each wait is twice the one before, but for the jitter."""
    running = run("die")
    until(lambda: len(running.lines("start")) >= 3, "it was not restarted")

    waits = [float(str(e["restartsInSeconds"])) for e in running.events() if e["event"] == "ended"]

    assert waits[:2] == [pytest.approx(expected, rel=JITTER + 0.1) for expected in (0.5, 1.0)]


def test_wrong_setting_is_not_tried_again(run: Callable[..., Running]) -> None:
    """No restart heals it: the status is that of wrong settings, and no restart is announced."""
    running = run("refuse")

    assert 2 == running.wait()
    assert 1 == len(running.lines("start"))
    (ended,) = (event for event in running.events() if event["event"] == "ended")
    assert (2, "the stub received refuse", None) == (
        ended["status"],
        ended["message"],
        ended["restartsInSeconds"],
    )


def test_displays_announce_a_restart_only_where_there_is_one(capsys: pytest.CaptureFixture[str]) -> None:
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


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the process itself watches its stdin")
@pytest.mark.parametrize("mode", ["serve", "deaf"])
def test_process_does_not_outlive_a_runner_that_was_killed(run: Callable[..., Running], mode: str) -> None:
    """kill -9 of the runner, even with a process that looks at neither signals nor stdin."""
    running = run(mode)
    until(lambda: running.lines("ready"), "it never served")
    pid = int(running.lines("start")[0])

    running.process.kill()

    until(lambda: not alive(pid), "the process has outlived the runner")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_stops_in_order(run: Callable[..., Running], number: signal.Signals, status: int) -> None:
    """The process may finish what is in flight."""
    running = run("serve")
    until(lambda: running.lines("ready"), "it never served")

    running.send_signal(number)

    assert status == running.wait()
    assert ["SIGTERM"] == running.lines("end")


@pytest.mark.parametrize(
    ("number", "catches_up", "is_interrupted"),
    [(signal.SIGINT, False, True), (signal.SIGTERM, False, False), (None, True, False)],
    ids=["Ctrl-C", "SIGTERM", "caught up"],
)
def test_a_second_ctrl_c_is_offered_to_those_who_pressed_it_once(
    run: Callable[..., Running],
    capsys: pytest.CaptureFixture[str],
    number: signal.Signals | None,
    *,
    catches_up: bool,
    is_interrupted: bool,
) -> None:
    running = run("serve", until=catches_up)
    if number is not None:
        until(lambda: running.lines("ready"), "it never served")
        running.send_signal(number)
    running.wait()

    assert [is_interrupted] == [e["interrupted"] for e in running.events() if e["event"] == "stopping"]
    PlainDisplay().stopping(is_interrupted=is_interrupted)
    assert ("stopping; Ctrl-C again kills\n" if is_interrupted else "stopping\n") == capsys.readouterr().err


@pytest.mark.timing  # the stub has to start within the limit of a second
def test_what_has_not_caught_up_in_time_ends_with_1(run: Callable[..., Running]) -> None:
    """A script has a limit of its own; the process is stopped in order."""
    behind = {"topic": "t", "phase": "copying", "reachedStartEnd": False}
    running = run("serve", until=True, time_limit_s=1.0, STUB_ROWS=json.dumps([behind]))

    assert 1 == running.wait()
    assert str(running.events()[-1]["message"]).startswith("Not caught up within 1 s: ")
    assert ["SIGTERM"] == running.lines("end")


def test_second_ctrl_c_kills(run: Callable[..., Running]) -> None:
    """The runner does not wait half a minute for a process that does not listen."""
    running = run("deaf")
    until(lambda: running.lines("ready"), "it never served")
    running.send_signal(signal.SIGINT)
    until(lambda: "stopping" in running.out.read_text(), "the first Ctrl-C was not heard")

    running.send_signal(signal.SIGINT)

    assert 130 == running.wait()
    assert not alive(int(running.lines("start")[0]))


def test_property_files_are_this_users_alone_and_go_away(run: Callable[..., Running], tmp_path: Path) -> None:
    """References only, in a folder of mode 0700, removed at the end."""
    running = run("serve")
    until(lambda: running.lines("ready"), "it never served")
    worker, connector, other = (Path(name) for name in running.lines("ready")[0].split())

    assert 0o700 == stat.S_IMODE(worker.parent.stat().st_mode)
    assert 0o600 == stat.S_IMODE(connector.stat().st_mode)
    assert "x=${dir:/a:b}\n" == connector.read_text()
    assert "y=1\n" == other.read_text()
    assert "mirrorflow.http.listeners=http://127.0.0.1:0\n" in worker.read_text()

    running.send_signal(signal.SIGTERM)
    running.wait()

    assert [] == list(tmp_path.glob("mirrorflow-*"))
