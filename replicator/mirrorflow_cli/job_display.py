"""What is shown of a Spark job on this machine while it runs: a bar on a terminal, elsewhere a line now and then, or JSON."""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol, TextIO

LINE_EVERY_S: Final = 5.0  # where nobody redraws


@dataclass(frozen=True, slots=True, kw_only=True)
class Telling:
    """How one kind of report is told: in a *line*, and as how much is *done* of how much, 0 as long as that is not known."""

    line: Callable[[Any], str]
    done: Callable[[Any], tuple[float, float]]


class Display(Protocol):
    """Is given each report."""

    def show(self, report: Any) -> None:
        """The newest."""

    def close(self) -> None:
        """There will be no other."""


def display_of(telling: Telling, *, as_json: bool, stream: TextIO | None = None) -> Display:
    """What fits *stream*, which is stdout unless it is named; JSON goes to stdout always."""
    if as_json:
        return JsonLines()
    shown_on = sys.stdout if stream is None else stream
    return Bar(telling, shown_on) if shown_on.isatty() else Lines(telling, shown_on)


class JsonLines:
    """One object a line."""

    def show(self, report: Any) -> None:
        """The newest."""
        print(json.dumps(report.as_json()), flush=True)

    def close(self) -> None:
        """Nothing is held back."""


class Lines:
    """A line every few seconds, and one for each new phase."""

    def __init__(
        self, telling: Telling, stream: TextIO, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._telling = telling
        self._stream = stream
        self._clock = clock
        self._phase = ""
        self._shown_s = 0.0

    def show(self, report: Any) -> None:
        """The newest."""
        now_s = self._clock()
        if report.phase.value != self._phase or now_s - self._shown_s >= LINE_EVERY_S:
            self._phase, self._shown_s = report.phase.value, now_s
            print(self._telling.line(report), file=self._stream, flush=True)

    def close(self) -> None:
        """Nothing is held back."""


class Bar:
    """A bar that is drawn anew in its place."""

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
        """The newest."""
        done, total = self._telling.done(report)
        self._progress.update(
            self._bar, description=self._telling.line(report), total=total or None, completed=done
        )

    def close(self) -> None:
        """What was drawn last stays."""
        self._progress.stop()
