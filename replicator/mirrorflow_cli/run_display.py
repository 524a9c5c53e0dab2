"""Displays the progress of `mirrorflow run`: as plain lines, a live table on a terminal, or JSON lines.

Progress goes to stdout; restarts of the replicator, and errors, go to stderr. JSON lines go to stdout only. The table keeps
within the terminal: columns that rarely change are left out first, then rows, so that the errors below it stay visible.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Protocol, TextIO

from mirrorflow_cli.run_causes import CauseAges, causes, notes
from mirrorflow_cli.run_progress import (
    Progress,
    RecentRates,
    companion_line,
    line_of,
)
from mirrorflow_replicator.http.progress_text import reasons, state_of

LINE_INTERVAL_S = 10.0  # seconds; unlike a terminal, a log keeps every line


class Display(Protocol):
    """Receives the events and the progress of a run."""

    def started(self, pid: int, starts: int) -> None:
        """The replicator was started, for the *starts*-th time."""

    def ended(self, status: int, last_log_line: str, restarts_in_s: float | None) -> None:
        """The replicator has ended by itself.

        *status* is negative for a signal. *restarts_in_s* is None if the process is not started again.
        """

    def progress(self, progress: Progress) -> None:
        """The replicator has answered with its progress."""

    def caught_up(self) -> None:
        """Every partition has reached the end offset that it had at start."""

    def stopping(self, *, is_interrupted: bool) -> None:
        """The replicator is being stopped, by Ctrl-C or because the command is done."""

    def failed(self, sentence: str) -> None:
        """The run fails, for the reason *sentence*."""

    def close(self) -> None:
        """Ends the display. No other call follows."""


class PlainDisplay:
    """Prints a progress line every 10 seconds, and at once when the state or a reason changes.

    Restarts of the replicator and errors go to stderr. A cause is printed once it has lasted for *hold_s*: within that
    time `failed` may be called with it.
    """

    def __init__(self, *, hold_s: float = 0.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._hold_s = hold_s
        self._ages = CauseAges(clock)
        self._shown_s = -LINE_INTERVAL_S
        self._fingerprint: tuple[str, ...] = ()
        self._last = ""  # the newest line, if it was not printed
        self._rates = RecentRates()
        self._problems: frozenset[str] = frozenset()
        self._companions: dict[str, str] = {}  # connector -> the line that was printed last

    def started(self, pid: int, starts: int) -> None:
        self._print(f"replicator {'started' if starts == 1 else f'restarted ({starts - 1})'}, pid {pid}")

    def ended(self, status: int, last_log_line: str, restarts_in_s: float | None) -> None:
        how = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
        restart = "" if restarts_in_s is None else f", restart in {restarts_in_s:.1f} s"
        self._print(f"replicator {how}{restart}" + (f": {last_log_line}" if last_log_line else ""))

    def progress(self, progress: Progress) -> None:
        """Prints progress lines to stdout and new errors to stderr.

        The source connector has one line; another connector has one when it has changed; an error is shown
        once.
        """
        sentences = {text: text for text in notes(progress)}
        for cause in self._ages.of(causes(progress)):
            if self._ages.known_s(cause) >= self._hold_s:
                sentences[cause.key] = cause.line
        for key, sentence in sentences.items():
            if key not in self._problems:
                self._print(sentence)
        self._problems = frozenset(sentences)
        seen = self._rates.of(progress)
        self._last = line_of(seen)
        fingerprint = (state_of(seen.summary), str(seen.is_standby), *reasons(seen.summary))
        if fingerprint != self._fingerprint or self._clock() - self._shown_s >= LINE_INTERVAL_S:
            self._fingerprint = fingerprint
            self._show_last()
        for companion in progress.companions:
            line = companion_line(companion)
            if self._companions.get(companion.connector) != line:
                self._companions[companion.connector] = line
                print(line, flush=True)

    def caught_up(self) -> None:
        self._show_last()
        print("caught up with the end offsets seen at start", flush=True)

    def stopping(self, *, is_interrupted: bool) -> None:
        self._show_last()
        self._print(stopping_line(is_interrupted=is_interrupted))

    def failed(self, sentence: str) -> None:
        self._print(sentence)

    def close(self) -> None:
        self._show_last()

    def _show_last(self) -> None:
        if self._last:
            self._shown_s = self._clock()
            print(self._last, flush=True)
            self._last = ""

    @staticmethod
    def _print(text: str) -> None:
        print(text, file=sys.stderr, flush=True)


def stopping_line(*, is_interrupted: bool) -> str:
    """Returns the line to show while stopping; it mentions a second Ctrl-C only after a first one."""
    return "stopping; Ctrl-C again kills" if is_interrupted else "stopping"


class JsonDisplay:
    """Prints one JSON object per line on stdout; its `event` is the kind."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout

    def started(self, pid: int, starts: int) -> None:
        self._event("started", pid=pid, starts=starts)

    def ended(self, status: int, last_log_line: str, restarts_in_s: float | None) -> None:
        """Prints `ended`: status, message, restartsInSeconds (null if the process is not started again)."""
        self._event("ended", status=status, message=last_log_line, restartsInSeconds=restarts_in_s)

    def progress(self, progress: Progress) -> None:
        """Prints `progress`: the source connector's summary, its partitions, why it does not copy, and its warnings.

        Then prints one `companion` for each other connector: name and class, state, message, warnings,
        groups, heartbeats.
        """
        self._event(
            "progress",
            connector=progress.connector,
            summary=dict(progress.summary),
            partitions=list(progress.partitions),
            uncopied=list(progress.uncopied),
            nothingSelected=progress.nothing_selected or "",
            causes=[
                {"message": cause.text, "partitions": cause.partitions, "forSeconds": cause.for_s}
                for cause in causes(progress)
            ],
            warnings=list(progress.warnings),
        )
        for companion in progress.companions:
            self._event("companion", **companion.received)

    def caught_up(self) -> None:
        self._event("caughtUp")

    def stopping(self, *, is_interrupted: bool) -> None:
        self._event("stopping", interrupted=is_interrupted)

    def failed(self, sentence: str) -> None:
        self._event("failed", message=sentence)

    def close(self) -> None:
        """Does nothing: no output is held back."""

    def _event(self, event: str, **fields: object) -> None:
        print(json.dumps({"event": event, **fields}, ensure_ascii=False), file=self._out, flush=True)
