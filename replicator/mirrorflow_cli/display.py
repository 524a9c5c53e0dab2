"""Defines the display interface of `mirrorflow run`, and the display that prints plain lines.

Progress goes to stdout; restarts of the replicator, and errors, go to stderr. `table` has the live table,
`json_lines` the JSON lines.
"""

import sys
import time
from collections.abc import Callable
from typing import Protocol

from mirrorflow_cli.progress import Progress
from mirrorflow_cli.rates import RecentRates
from mirrorflow_cli.rows import (
    companion_line,
    companion_troubles,
    is_starting,
    lag_in_words,
    reasons,
    troubles,
)

LINE_INTERVAL_S = 10.0  # seconds; unlike a terminal, a log keeps every line


class Display(Protocol):
    """Receives the events and the progress of a run."""

    def started(self, pid: int, starts: int) -> None:
        """The replicator was started, for the *starts*-th time."""

    def ended(self, status: int, last_words: str, restarts_in_s: float | None) -> None:
        """The replicator has ended by itself.

        *status* is negative for a signal. *restarts_in_s* is None if the process is not started again.
        """

    def progress(self, seen: Progress) -> None:
        """The replicator has answered with its progress."""

    def caught_up(self) -> None:
        """Every partition has reached the end offset that it had at start."""

    def stopping(self, *, is_interrupted: bool) -> None:
        """The replicator is being stopped, by Ctrl-C or because the command is done."""

    def failed(self, sentence: str) -> None:
        """The run ends without success, for the reason *sentence*."""

    def close(self) -> None:
        """The run is over: no other call follows."""


class PlainDisplay:
    """Prints a progress line every 10 seconds, and at once when the state or a reason changes.

    Restarts of the replicator and errors go to stderr.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._shown_s = -LINE_INTERVAL_S
        self._words: tuple[str, ...] = ()
        self._last = ""  # the newest line, if it was not printed
        self._rates = RecentRates()
        self._troubles: frozenset[str] = frozenset()
        self._companions: dict[str, str] = {}  # connector -> the line that was printed last

    def started(self, pid: int, starts: int) -> None:
        """Prints one line."""
        self._say(f"replicator {'started' if starts == 1 else f'restarted ({starts - 1})'}, pid {pid}")

    def ended(self, status: int, last_words: str, restarts_in_s: float | None) -> None:
        """Prints one line, with the last error that the process has logged."""
        how = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
        restart = "" if restarts_in_s is None else f", restart in {restarts_in_s:.1f} s"
        self._say(f"replicator {how}{restart}" + (f": {last_words}" if last_words else ""))

    def progress(self, seen: Progress) -> None:
        """Prints progress lines to stdout and new errors to stderr.

        The source connector has one line; another connector has one when it has changed; an error is shown
        once.
        """
        found = [*troubles(seen), *(text for one in seen.companions for text in companion_troubles(one))]
        for sentence in found:
            if sentence not in self._troubles:
                self._say(sentence)
        self._troubles = frozenset(found)
        self._last = one_line(self._rates.of(seen))
        words = (str(seen.summary.get("replicating")), *reasons(seen))
        if words != self._words or self._clock() - self._shown_s >= LINE_INTERVAL_S:
            self._words = words
            self._show_last()
        for one in seen.companions:
            line = companion_line(one)
            if self._companions.get(one.connector) != line:
                self._companions[one.connector] = line
                print(line, flush=True)

    def caught_up(self) -> None:
        """Prints one line."""
        self._show_last()
        print("caught up with the end offsets seen at start", flush=True)

    def stopping(self, *, is_interrupted: bool) -> None:
        """Prints one line."""
        self._show_last()
        self._say(stopping_line(is_interrupted=is_interrupted))

    def failed(self, sentence: str) -> None:
        """Prints the sentence."""
        self._say(sentence)

    def close(self) -> None:
        """Prints the newest line if it was held back."""
        self._show_last()

    def _show_last(self) -> None:
        if self._last:
            self._shown_s = self._clock()
            print(self._last, flush=True)
            self._last = ""

    @staticmethod
    def _say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)


def stopping_line(*, is_interrupted: bool) -> str:
    """Returns the line to show while stopping; it mentions a second Ctrl-C only after a first one."""
    return "stopping; Ctrl-C again kills" if is_interrupted else "stopping"


def one_line(progress: Progress) -> str:
    """Returns the summary as text; "starting" while no figures are known."""
    if is_starting(progress):
        return f"{progress.connector}: starting"
    summary = progress.summary
    parts = [
        f"{progress.connector}: {summary.get('replicating', '')}",
        f"{progress.partitions_total} partitions",
        f"lag {lag_in_words(summary)}",
        f"{summary.get('recordsPerSecond', 0):,.0f} records/s",
        f"{summary.get('bytesPerSecond', 0) / 1e6:,.1f} MB/s",
        f"{summary.get('records', 0):,} copied",
        *reasons(progress),
    ]
    return ", ".join(parts)
