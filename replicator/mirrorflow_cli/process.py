"""The process of a flow's connectors: its start, its end, and when it may start again.

It ends with the runner: by SIGKILL of the kernel (`bound`) and by the end of its stdin. It has a process group of its own,
so that Ctrl-C reaches the runner alone, which then stops it in order. What it reads and writes is
`files`'.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from mirrorflow_cli import bound
from mirrorflow_cli.files import ProcessFiles

RESTART_BACKOFF_MIN_S = 0.5
RESTART_BACKOFF_MAX_S = 30.0  # a broken cluster is asked twice a minute, and a healed one is noticed soon
# A process that lived so long did work, and its next death is news: the back-off begins anew.
HEALTHY_AFTER_S = 60.0
EXIT_SETTINGS = 2  # of the replicator: a setting is wrong, which no restart heals
TAIL_BYTES = 4_096  # of the log, to find the sentence it died with
# What the replicator logs begins so; a traceback's lines and the sentence of its exit do not.
_LOGGED = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} ([A-Z]+) ")
_NEWS = frozenset({"INFO", "DEBUG"})
REPLICATOR = (sys.executable, "-m", "mirrorflow_replicator", "standalone")


class ReplicatorProcess:
    """A process that is kept running. Times are of *clock*, in seconds."""

    def __init__(
        self,
        files: ProcessFiles,
        *,
        command: Sequence[str],
        log: IO[bytes] | None,
        clock: Callable[[], float],
    ) -> None:
        self.files = files
        self.starts = 0
        self.last_exit: int | None = None
        self._command = tuple(command)
        self._log = log
        self._clock = clock
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at_s = 0.0
        self._start_at_s = clock()
        self._backoff_s = RESTART_BACKOFF_MIN_S
        self._log_mark = 0

    def start_if_due(self) -> bool:
        """Start it if it does not run and its back-off has passed; whether it was started now."""
        if self._process is not None or self._clock() < self._start_at_s:
            return False
        self.files.forget_url()
        self._log_mark = self._log_size()
        output = self._log if self._log is not None else sys.stderr
        program = [*self._command, *self.files.arguments]
        self._process = subprocess.Popen(  # noqa: S603  our own program
            [sys.executable, "-I", "-S", bound.__file__, str(os.getpid()), *program],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env={
                **os.environ,
                "MIRRORFLOW_EXIT_WITH_STDIN": "1",
                "MIRRORFLOW_HTTP_FILE": str(self.files.http),
                # Its predecessor was our own child and is dead: nobody's silence has to be waited for.
                **({"MIRRORFLOW_PREDECESSOR_GONE": "1"} if self.starts else {}),
            },
            process_group=0,
        )
        self._started_at_s = self._clock()
        self.starts += 1
        return True

    def ended(self) -> int | None:
        """The exit status if it has ended since the last call (negative: the signal), and plan its restart."""
        if self._process is None or self._process.poll() is None:
            return None
        status = self._process.returncode
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process = None
        self.last_exit = status
        now_s = self._clock()
        if now_s - self._started_at_s >= HEALTHY_AFTER_S:
            self._backoff_s = RESTART_BACKOFF_MIN_S
        self._start_at_s = now_s + self._backoff_s
        self._backoff_s = min(self._backoff_s * 2, RESTART_BACKOFF_MAX_S)
        return int(status)

    @property
    def restarts_in_s(self) -> float:
        """How long until it may start again."""
        return max(0.0, self._start_at_s - self._clock())

    @property
    def running(self) -> bool:
        """Whether it has been started and its end was not seen."""
        return self._process is not None

    @property
    def pid(self) -> int | None:
        """Its process id, None if it does not run."""
        return None if self._process is None else self._process.pid

    def signal(self, number: signal.Signals) -> None:
        """Send *number* if it runs."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    def last_words(self) -> str:
        """What it has logged since its start that explains its end; empty where the log is not a file.

        The newest warning, error, last line of a traceback or bare sentence; where there is none, the last line.
        """
        if self._log is None or self._log_size() <= self._log_mark:
            return ""
        with Path(self._log.name).open("rb") as log:
            start = max(self._log_mark, self._log_size() - TAIL_BYTES)
            log.seek(start)
            text = log.read().decode("utf-8", "replace")
        lines = [line.strip() for line in text.split("\n") if line.strip()]
        if start > self._log_mark:
            lines = lines[1:] or lines  # the first is the rest of one
        return next((line for line in reversed(lines) if not _is_news(line)), lines[-1] if lines else "")

    def _log_size(self) -> int:
        return 0 if self._log is None else os.fstat(self._log.fileno()).st_size


def _is_news(line: str) -> bool:
    found = _LOGGED.match(line)
    return found is not None and found.group(1) in _NEWS
