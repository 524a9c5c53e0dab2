"""Displays the progress of `mirrorflow run` as a live table on a terminal.

The table keeps within the terminal: columns that rarely change are left out first, then rows, so that the errors below it stay
visible.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from mirrorflow_cli.output import fitting, shortened
from mirrorflow_cli.run_causes import Cause, CauseAges, causes, is_moot, notes
from mirrorflow_cli.run_display import stopping_line
from mirrorflow_cli.run_progress import (
    COLUMNS,
    DISPENSABLE,
    FIGURES,
    Progress,
    RecentRates,
    by_topic,
    cells,
    companion_line,
    line_of,
)

ROWS_MAX = 30  # the summary line covers all
FRAME_LINES = 6  # of the table: title, three of the head, the last; and the cursor's
BORDERS = 3  # characters of a column besides its text
TOPIC_MIN = 12  # a shortened name that can still be told from others
EVENTS_MAX = 5  # the newest: restarts, and the last log line of an ended process


class TableDisplay:
    """Redraws a table in place and leaves the last state on the screen."""

    def __init__(self, title: str, console: Console | None = None) -> None:
        self._title = title
        self._console = console or Console()
        self._events: list[str] = []
        self._failure = ""
        self._progress: Progress | None = None
        self._causes: tuple[Cause, ...] = ()
        self._rates = RecentRates()
        self._ages = CauseAges()
        self._live = Live(console=self._console, auto_refresh=False)
        self._live.start()

    def started(self, pid: int, starts: int) -> None:
        self._event(f"replicator {'started' if starts == 1 else 'restarted'}, pid {pid}")

    def ended(self, status: int, last_log_line: str, restarts_in_s: float | None) -> None:
        how = f"signal {-status}" if status < 0 else f"status {status}"
        restart = "" if restarts_in_s is None else f", restart in {restarts_in_s:.1f} s"
        self._event(f"replicator ended ({how}){restart}. {last_log_line}".rstrip())

    def progress(self, progress: Progress) -> None:
        self._progress = self._rates.of(progress)
        self._causes = self._ages.of(causes(progress))
        self._draw()

    def caught_up(self) -> None:
        self._event("caught up with the end offsets seen at start")

    def stopping(self, *, is_interrupted: bool) -> None:
        self._event(stopping_line(is_interrupted=is_interrupted))

    def failed(self, sentence: str) -> None:
        self._failure = sentence
        self._event(sentence)

    def close(self) -> None:
        self._live.stop()

    def _event(self, text: str) -> None:
        self._events = [*self._events, text][-EVENTS_MAX:]
        self._draw()

    def _draw(self) -> None:
        progress = self._progress
        below = Group(*self._lines(), *(Text(event, style="dim") for event in self._events))
        rows = progress.partitions if progress is not None else ()
        height = self._console.height - len(self._console.render_lines(below)) - FRAME_LINES
        # An empty table would look as if there were nothing to copy.
        title: RenderableType = (
            _table(self._title, rows, width=self._console.width, rows_max=max(1, min(height, ROWS_MAX)))
            if rows
            else Text(self._title, style="italic")
        )
        self._live.update(Group(title, below), refresh=True)

    def _lines(self) -> list[Text]:
        """Returns a line for each connector, then the causes and the warnings of all."""
        progress = self._progress
        if progress is None:
            return [Text("starting")]
        shown = (cause for cause in self._causes if cause.text.rstrip(".") not in self._failure)
        return [
            Text(line_of(progress)),
            *(Text(companion_line(companion)) for companion in progress.companions),
            *(Text(row.line, style="red") for row in shown),
            *(Text(sentence, style="yellow") for sentence in notes(progress)),
        ]


def _table(title: str, rows: Sequence[Mapping[str, Any]], *, width: int, rows_max: int) -> Table:
    """Returns the table; each of its rows takes one line."""
    topics = [*by_topic(rows).items()]
    is_cut = len(topics) > rows_max
    shown_rows = [
        cells(topic, [{**row, "reason": ""} if is_moot(row) else row for row in partitions])
        for topic, partitions in topics[: rows_max - is_cut or 1]
    ]
    shown = fitting(COLUMNS, shown_rows, width=width - 1, gap=BORDERS, dispensable=DISPENSABLE)
    taken = sum(max(len(row[index]) for row in (COLUMNS, *shown_rows)) + BORDERS for index in shown[1:])
    topic_max = max(TOPIC_MIN, width - 1 - taken - BORDERS)
    table = Table(title=title, title_justify="left")
    for index in shown:
        name = COLUMNS[index]
        table.add_column(name, justify="right" if name in FIGURES else "left", no_wrap=True)
    for row in shown_rows:
        table.add_row(
            *(Text(shortened(row[index], topic_max) if index == 0 else row[index]) for index in shown)
        )
    if is_cut:
        table.add_row(f"and {len(topics) - len(shown_rows)} more")
    return table
