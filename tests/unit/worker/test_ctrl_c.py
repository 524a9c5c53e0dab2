"""Ctrl-C at a terminal stops the worker and its tasks."""

import os
import pty
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from mirrorflow_core.java.properties import format_properties

WAIT_S = 120.0  # a limit for hangs; processes start slowly on a busy machine
NOWHERE = "127.0.0.1:1"
CONNECTOR = {
    "name": "source",
    "connector.class": "MirrorSourceConnector",
    "source.cluster.alias": "east",
    "target.cluster.alias": "west",
    "source.cluster.bootstrap.servers": NOWHERE,
    "target.cluster.bootstrap.servers": NOWHERE,
}
WORKER = {"bootstrap.servers": NOWHERE, "mirrorflow.http.listeners": "http://127.0.0.1:0"}


class Terminal:
    """A process in the foreground of its own terminal."""

    def __init__(self, *command: str) -> None:
        self.output = ""
        self._pid, self._terminal = pty.fork()
        if not self._pid:
            os.execv(command[0], command)

    def wait_for(self, text: str) -> None:
        """Reads until *text* was printed."""
        self._read(lambda: text in self.output)
        assert text in self.output, self.output

    def press_ctrl_c(self) -> None:
        os.write(self._terminal, b"\x03")

    def exit_status(self) -> int:
        """Reads until the process has ended; returns its exit status."""
        self._read(lambda: False)
        _, status = os.waitpid(self._pid, 0)
        return os.waitstatus_to_exitcode(status)

    def kill(self) -> None:
        """Kills the process if it has not ended. Its task then ends as well."""
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        os.close(self._terminal)

    def _read(self, is_done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        with suppress(OSError):  # Linux reports the end of a terminal as an error
            while not is_done() and time.monotonic() < deadline:
                self.output += os.read(self._terminal, 65_536).decode(errors="replace")


@pytest.fixture
def replicator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    files = tmp_path / "worker.properties", tmp_path / "connector.properties"
    for path, properties in zip(files, (WORKER, CONNECTOR), strict=True):
        path.write_text(format_properties(properties))
    terminal = Terminal(sys.executable, "-m", "mirrorflow_replicator", "standalone", *map(str, files))
    yield terminal
    terminal.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="terminals close differently elsewhere")
def test_ctrl_c_stops_a_replicator_without_a_traceback(replicator: Terminal) -> None:
    """The exit status is 130, like that of `mirrorflow run`."""
    replicator.wait_for("mirrorflow.task Cluster east cannot be reached")

    replicator.press_ctrl_c()

    assert 130 == replicator.exit_status()
    assert "Stopping; Ctrl-C again kills" in replicator.output
    assert "Traceback" not in replicator.output
