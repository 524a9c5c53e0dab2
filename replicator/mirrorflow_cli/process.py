"""Starts the process of a flow's connectors, detects its end, and restarts it with backoff.

The process ends with the runner: the kernel sends SIGKILL (`bound_process`), and its stdin closes. It has its
own process group, so Ctrl-C reaches only the runner, which then stops it gracefully. `files` manages its
files.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

from mirrorflow_cli import bound_process
from mirrorflow_cli.files import ProcessFiles
from mirrorflow_cli.log_file import LogFile
from mirrorflow_core.backoff import backoff_s

RESTART_BACKOFF_MIN_S = 0.5
RESTART_BACKOFF_MAX_S = 30.0  # contact a broken cluster twice a minute, notice recovery soon
# A process that ran this long was working, so its next end restarts the backoff from the minimum.
HEALTHY_AFTER_S = 60.0
EXIT_SETTINGS = 2  # exit status of the replicator for an invalid setting, which no restart fixes
TAIL_BYTES = 4_096  # bytes at the end of the log in which to search for the last error
# Start of a line that the replicator logs; lines of a traceback and its exit message do not match.
_LOGGED = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} ([A-Z]+) ")
_NEWS = frozenset({"INFO", "DEBUG"})
REPLICATOR = (sys.executable, "-m", "mirrorflow_replicator", "standalone")


class ReplicatorProcess:
    """A replicator process that is kept running. Times are in seconds of *clock*."""

    def __init__(
        self,
        files: ProcessFiles,
        *,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: LogFile | None,
        clock: Callable[[], float],
    ) -> None:
        self.files = files
        self.starts = 0
        self.last_exit: int | None = None
        self._command = tuple(command)
        self._environment = environment
        self._log = log
        self._clock = clock
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at_s = 0.0
        self._start_at_s = clock()
        self._quick_ends = 0  # in a row
        self._log_mark = 0

    def start_if_due(self) -> bool:
        """Starts the process if it does not run and its backoff is over; returns whether it did."""
        if self._process is not None or self._clock() < self._start_at_s:
            return False
        self.files.forget_url()
        self._log_mark = 0 if self._log is None else self._log.size_bytes
        output = sys.stderr if self._log is None else self._log.file
        program = [*self._command, *self.files.arguments]
        self._process = subprocess.Popen(  # noqa: S603  our own program
            [sys.executable, "-I", "-S", bound_process.__file__, str(os.getpid()), *program],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env={
                **os.environ,
                **self._environment,
                "MIRRORFLOW_EXIT_WITH_STDIN": "1",
                "MIRRORFLOW_HTTP_FILE": str(self.files.http),
            },
            process_group=0,
        )
        self._started_at_s = self._clock()
        self.starts += 1
        return True

    def ended(self) -> int | None:
        """Returns the exit status if the process has ended since the last call, and schedules its restart.

        A negative status is the signal. Returns None otherwise.
        """
        if self._process is None or self._process.poll() is None:
            return None
        status = self._process.returncode
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process = None
        self.last_exit = status
        now_s = self._clock()
        self._quick_ends = 1 if now_s - self._started_at_s >= HEALTHY_AFTER_S else self._quick_ends + 1
        self._start_at_s = now_s + backoff_s(
            self._quick_ends, lowest_s=RESTART_BACKOFF_MIN_S, highest_s=RESTART_BACKOFF_MAX_S
        )
        return int(status)

    @property
    def restarts_in_s(self) -> float:
        """Seconds until the process may start again."""
        return max(0.0, self._start_at_s - self._clock())

    @property
    def running(self) -> bool:
        """Whether the process was started and `ended` has not yet seen its end."""
        return self._process is not None

    @property
    def pid(self) -> int | None:
        """Its process id; None if it does not run."""
        return None if self._process is None else self._process.pid

    def signal(self, number: signal.Signals) -> None:
        """Sends *number* if the process runs."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    def last_words(self) -> str:
        """Returns the log line since the last start that best explains the end; "" if the log is not a file.

        This is the newest warning, error, last line of a traceback or unformatted line; failing that, the
        last line.
        """
        if self._log is None or self._log.size_bytes <= self._log_mark:
            return ""
        with self._log.path.open("rb") as log:
            start = max(self._log_mark, self._log.size_bytes - TAIL_BYTES)
            log.seek(start)
            text = log.read().decode("utf-8", "replace")
        lines = [line.strip() for line in text.split("\n") if line.strip()]
        if start > self._log_mark:
            lines = lines[1:] or lines  # The first line may be incomplete.
        found = [_level_and_words(line) for line in lines]
        return next(
            (words for level, words in reversed(found) if level not in _NEWS), found[-1][1] if found else ""
        )

    def rotate_log(self) -> None:
        """Rotates the log if it is large. Raises OSError."""
        if self._log is not None and self._log.rotate_if_large():
            self._log_mark = 0


def _level_and_words(line: str) -> tuple[str, str]:
    """Returns a log line's level ("" for any other line) and the text to show."""
    logged = _LOGGED.match(line)
    if logged is not None:
        return logged.group(1), line
    try:
        said = json.loads(line) if line.startswith("{") else {}
        return str(said["level"]), str(said["message"])
    except (ValueError, KeyError):
        return "", line
