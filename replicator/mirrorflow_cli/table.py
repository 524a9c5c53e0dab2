"""Draws the live table of `mirrorflow run` on a terminal: one line per topic, with errors below.

`rows` formats the lines.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from mirrorflow_cli.display import stopping_line
from mirrorflow_cli.progress import Progress
from mirrorflow_cli.rates import RecentRates
from mirrorflow_cli.rows import (
    COLUMNS,
    FIGURES,
    by_topic,
    cells,
    companion_line,
    companion_troubles,
    totals,
    troubles,
)

ROWS_MAX = 30  # one screen; the summary line covers all
EVENTS_MAX = 5  # the newest: restarts, and the last log line of an ended process


class TableDisplay:
    """Redraws a table in place and leaves the last state on the screen."""

    def __init__(self, title: str, console: Console | None = None) -> None:
        self._title = title
        self._events: list[str] = []
        self._seen: Progress | None = None
        self._rates = RecentRates()
        self._live = Live(console=console, auto_refresh=False)
        self._live.start()

    def started(self, pid: int, starts: int) -> None:
        """Adds an event."""
        self._event(f"replicator {'started' if starts == 1 else 'restarted'}, pid {pid}")

    def ended(self, status: int, last_words: str, restarts_in_s: float | None) -> None:
        """Adds an event."""
        how = f"signal {-status}" if status < 0 else f"status {status}"
        restart = "" if restarts_in_s is None else f", restart in {restarts_in_s:.1f} s"
        self._event(f"replicator ended ({how}){restart}. {last_words}".rstrip())

    def progress(self, seen: Progress) -> None:
        """Redraws the table."""
        self._seen = self._rates.of(seen)
        self._draw()

    def caught_up(self) -> None:
        """Adds an event."""
        self._event("caught up with the end offsets seen at start")

    def stopping(self, *, is_interrupted: bool) -> None:
        """Adds an event."""
        self._event(stopping_line(is_interrupted=is_interrupted))

    def failed(self, sentence: str) -> None:
        """Adds an event."""
        self._event(sentence)

    def close(self) -> None:
        """Leaves the last state on the screen."""
        self._live.stop()

    def _event(self, text: str) -> None:
        self._events = [*self._events, text][-EVENTS_MAX:]
        self._draw()

    def _draw(self) -> None:
        seen = self._seen
        rows = seen.partitions if seen is not None else ()
        # An empty table would look as if there were nothing to copy.
        title: RenderableType = _table(self._title, rows) if rows else Text(self._title, style="italic")
        self._live.update(
            Group(
                title,
                *_lines(seen),
                *(Text(event, style="dim") for event in self._events),
            ),
            refresh=True,
        )


def _lines(seen: Progress | None) -> list[Text]:
    """Returns a line for each connector, then the errors of all."""
    if seen is None:
        return [Text("starting")]
    wrong = [*troubles(seen), *(text for one in seen.companions for text in companion_troubles(one))]
    return [
        Text(totals(seen)),
        *(Text(companion_line(one)) for one in seen.companions),
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
