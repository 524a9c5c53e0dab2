"""Displays the progress of `mirrorflow run`: as plain lines, a live table on a terminal, or JSON lines.

Progress goes to stdout; restarts of the replicator, and errors, go to stderr. JSON lines go to stdout only.
"""

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from mirrorflow_cli.run_progress import (
    COLUMNS,
    FIGURES,
    Progress,
    RecentRates,
    by_topic,
    cells,
    companion_line,
    companion_problems,
    is_starting,
    lag_in_words,
    problems,
    reasons,
    totals,
)

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
        found = [
            *problems(progress),
            *(text for one in progress.companions for text in companion_problems(one)),
        ]
        for sentence in found:
            if sentence not in self._problems:
                self._print(sentence)
        self._problems = frozenset(found)
        self._last = one_line(self._rates.of(progress))
        words = (str(progress.summary.get("replicating")), *reasons(progress))
        if words != self._words or self._clock() - self._shown_s >= LINE_INTERVAL_S:
            self._words = words
            self._show_last()
        for one in progress.companions:
            line = companion_line(one)
            if self._companions.get(one.connector) != line:
                self._companions[one.connector] = line
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


ROWS_MAX = 30  # one screen; the summary line covers all
EVENTS_MAX = 5  # the newest: restarts, and the last log line of an ended process


class TableDisplay:
    """Redraws a table in place and leaves the last state on the screen."""

    def __init__(self, title: str, console: Console | None = None) -> None:
        self._title = title
        self._events: list[str] = []
        self._progress: Progress | None = None
        self._rates = RecentRates()
        self._live = Live(console=console, auto_refresh=False)
        self._live.start()

    def started(self, pid: int, starts: int) -> None:
        self._event(f"replicator {'started' if starts == 1 else 'restarted'}, pid {pid}")

    def ended(self, status: int, last_log_line: str, restarts_in_s: float | None) -> None:
        how = f"signal {-status}" if status < 0 else f"status {status}"
        restart = "" if restarts_in_s is None else f", restart in {restarts_in_s:.1f} s"
        self._event(f"replicator ended ({how}){restart}. {last_log_line}".rstrip())

    def progress(self, progress: Progress) -> None:
        self._progress = self._rates.of(progress)
        self._draw()

    def caught_up(self) -> None:
        self._event("caught up with the end offsets seen at start")

    def stopping(self, *, is_interrupted: bool) -> None:
        self._event(stopping_line(is_interrupted=is_interrupted))

    def failed(self, sentence: str) -> None:
        self._event(sentence)

    def close(self) -> None:
        self._live.stop()

    def _event(self, text: str) -> None:
        self._events = [*self._events, text][-EVENTS_MAX:]
        self._draw()

    def _draw(self) -> None:
        progress = self._progress
        rows = progress.partitions if progress is not None else ()
        # An empty table would look as if there were nothing to copy.
        title: RenderableType = _table(self._title, rows) if rows else Text(self._title, style="italic")
        self._live.update(
            Group(title, *_lines(progress), *(Text(event, style="dim") for event in self._events)),
            refresh=True,
        )


def _lines(progress: Progress | None) -> list[Text]:
    """Returns a line for each connector, then the errors of all."""
    if progress is None:
        return [Text("starting")]
    wrong = [*problems(progress), *(text for one in progress.companions for text in companion_problems(one))]
    return [
        Text(totals(progress)),
        *(Text(companion_line(one)) for one in progress.companions),
        *(Text(sentence, style="red") for sentence in wrong),
    ]


def _table(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(title=title, title_justify="left")
    for name in COLUMNS:
        table.add_column(name, justify="right" if name in FIGURES else "left", overflow="fold")
    topics = by_topic(rows)
    for topic, partitions in list(topics.items())[:ROWS_MAX]:
        table.add_row(*(Text(cell) for cell in cells(topic, partitions)))
    if len(topics) > ROWS_MAX:
        table.add_row(f"and {len(topics) - ROWS_MAX} more")
    return table


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
        """Prints `progress`: the source connector's summary, its partitions, and topics without a copy.

        Then prints one `companion` for each other connector: name and class, state, message, warnings,
        groups, heartbeats.
        """
        self._event(
            "progress",
            connector=progress.connector,
            summary=dict(progress.summary),
            partitions=list(progress.partitions),
            uncopied=list(progress.uncopied),
            nothingSelected=progress.nothing_selected,
        )
        for one in progress.companions:
            self._event("companion", **one.received)

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
