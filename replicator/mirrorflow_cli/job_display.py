"""Shows a Spark job's progress: a bar on a terminal, otherwise a line every few seconds, or JSON."""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol, TextIO

LINE_EVERY_S: Final = 5.0  # seconds between lines, where the output is no terminal


@dataclass(frozen=True, slots=True, kw_only=True)
class Telling:
    """How one kind of report is shown.

    *line* returns its text; *done* returns (done, total), with total 0 while it is unknown.
    """

    line: Callable[[Any], str]
    done: Callable[[Any], tuple[float, float]]


class JobDisplay(Protocol):
    """Receives every report of a job."""

    def show(self, report: Any) -> None:
        """Shows *report*, the newest."""

    def close(self) -> None:
        """The job is over: no other report follows."""


def display_of(telling: Telling, *, as_json: bool, stream: TextIO | None = None) -> JobDisplay:
    """Returns the display that fits *stream* (default: stdout); JSON always goes to stdout."""
    if as_json:
        return JsonLines()
    shown_on = sys.stdout if stream is None else stream
    return Bar(telling, shown_on) if shown_on.isatty() else Lines(telling, shown_on)


class JsonLines:
    """Prints each report as one JSON object per line."""

    def show(self, report: Any) -> None:
        """Prints the report."""
        print(json.dumps(report.as_json()), flush=True)

    def close(self) -> None:
        """Does nothing: no output is held back."""


class Lines:
    """Prints a line every few seconds, and one for each new phase."""

    def __init__(
        self, telling: Telling, stream: TextIO, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._telling = telling
        self._stream = stream
        self._clock = clock
        self._phase = ""
        self._shown_s = 0.0

    def show(self, report: Any) -> None:
        """Prints the report if a line is due."""
        now_s = self._clock()
        if report.phase.value != self._phase or now_s - self._shown_s >= LINE_EVERY_S:
            self._phase, self._shown_s = report.phase.value, now_s
            print(self._telling.line(report), file=self._stream, flush=True)

    def close(self) -> None:
        """Does nothing: no output is held back."""


class Bar:
    """Redraws a progress bar in place."""

    def __init__(self, telling: Telling, stream: TextIO) -> None:
        from rich.console import Console  # noqa: PLC0415 for a terminal alone
        from rich.progress import BarColumn, Progress, TextColumn  # noqa: PLC0415

        self._telling = telling
        self._progress = Progress(
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%  {task.description}", markup=False),
            console=Console(file=stream),
        )
        self._bar = self._progress.add_task("preparing", total=None)
        self._progress.start()

    def show(self, report: Any) -> None:
        """Redraws the bar."""
        done, total = self._telling.done(report)
        self._progress.update(
            self._bar, description=self._telling.line(report), total=total or None, completed=done
        )

    def close(self) -> None:
        """Stops redrawing and leaves the last bar on the screen."""
        self._progress.stop()
