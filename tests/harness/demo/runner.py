"""Runs `mirrorflow run` like a user, and finds the replicator process that it starts."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

from tests.harness.kafka.processes import family, wait_until

STOP_WAIT_S = 40.0  # longer than the command's grace period of 30 s
STOP_WAIT_HURRIED_S = 5.0
LOG_LINES_SHOWN = 20


class RunningFlow:
    """A process of `mirrorflow run -f FILE`.

    Its output is on this terminal unless *is_quiet*. The end of its context ends its processes.
    """

    def __init__(self, file: Path, *arguments: str | Path, is_quiet: bool = False) -> None:
        self._out = subprocess.DEVNULL if is_quiet else None
        self.log = file.with_suffix(".log")
        self.command = ["mirrorflow", "run", "-f", str(file), *map(str, arguments)]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        program = Path(sys.executable).parent / "mirrorflow"
        # The process has its own session, so that Ctrl-C reaches only the demo, which then stops the process
        # gracefully. It is killed with the demo.
        self._process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", program, *self.command[1:], "--log", self.log],
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=self._out,
            start_new_session=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self.stop(within_s=STOP_WAIT_HURRIED_S)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def replicator(self) -> int:
        """Returns the process id of the replicator, or 0 if there is none."""
        if self._process is None:
            return 0
        return next(iter(family(self._process.pid)[1:]), 0)  # the replicator is its only child

    def kill_replicator(self) -> int:
        """Kills the replicator with -9, waits for its end, and returns its former pid."""
        pid = wait_until("the replicator runs", self.replicator)
        os.kill(pid, signal.SIGKILL)
        wait_until("the replicator is gone", lambda: self.replicator() != pid)
        return pid

    def stop(self, *, within_s: float = STOP_WAIT_S) -> None:
        """Sends SIGTERM, and after *within_s* kill -9, which also ends its child processes."""
        if self._process is None:
            return
        if self.running:
            self._process.terminate()
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def log_tail(self) -> str:
        """Returns the end of the replicator's log."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "\n".join(lines[-LOG_LINES_SHOWN:])
