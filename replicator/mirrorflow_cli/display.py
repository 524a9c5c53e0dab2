"""What `mirrorflow run` shows where nobody redraws: plain lines. And what every display is told.

Progress goes to stdout, what happens to the replicator, and trouble, to stderr. The live table is `table`'s, JSON lines are `json_lines`'.
"""

import sys
from typing import Protocol

from mirrorflow_cli.progress import Progress
from mirrorflow_cli.rates import RecentRates
from mirrorflow_cli.rows import companion_line, companion_troubles, is_starting, reasons, troubles


class Display(Protocol):
    """Who is told what happens."""

    def started(self, pid: int, starts: int) -> None:
        """The replicator was started, for the *starts*-th time."""

    def ended(self, status: int, last_words: str, restarts_in_s: float) -> None:
        """It has ended by itself; *status* is negative for a signal."""

    def progress(self, seen: Progress) -> None:
        """What it has answered."""

    def caught_up(self) -> None:
        """Everything that was there at start has been copied."""

    def stopping(self) -> None:
        """The replicator has been told to stop."""

    def failed(self, sentence: str) -> None:
        """It ends without success, for this reason."""

    def close(self) -> None:
        """Nothing more will be shown."""


class PlainDisplay:
    """A line a second on stdout, what happens to the replicator on stderr."""

    def __init__(self) -> None:
        self._rates = RecentRates()
        self._troubles: frozenset[str] = frozenset()
        self._companions: dict[str, str] = {}  # the line that each was shown with last

    def started(self, pid: int, starts: int) -> None:
        """One line."""
        self._say(f"replicator {'started' if starts == 1 else f'restarted ({starts - 1})'}, pid {pid}")

    def ended(self, status: int, last_words: str, restarts_in_s: float) -> None:
        """One line, with the last thing that the process has logged."""
        how = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
        self._say(
            f"replicator {how}, restart in {restarts_in_s:.1f} s" + (f": {last_words}" if last_words else "")
        )

    def progress(self, seen: Progress) -> None:
        """One line for the source connector, one for another where it says something new, one, once, for each trouble."""
        found = [*troubles(seen), *(text for one in seen.companions for text in companion_troubles(one))]
        for sentence in found:
            if sentence not in self._troubles:
                self._say(sentence)
        self._troubles = frozenset(found)
        print(one_line(self._rates.of(seen)), flush=True)
        for one in seen.companions:
            line = companion_line(one)
            if self._companions.get(one.connector) != line:
                self._companions[one.connector] = line
                print(line, flush=True)

    def caught_up(self) -> None:
        """One line."""
        print("caught up with the end offsets seen at start", flush=True)

    def stopping(self) -> None:
        """One line."""
        self._say("stopping; Ctrl-C again kills")

    def failed(self, sentence: str) -> None:
        """The sentence."""
        self._say(sentence)

    def close(self) -> None:
        """Nothing is held back."""

    @staticmethod
    def _say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)


def one_line(progress: Progress) -> str:
    """The summary in words; figures that are not known are left out."""
    if is_starting(progress):
        return f"{progress.connector}: starting"
    summary = progress.summary
    parts = [
        f"{progress.connector}: {summary.get('replicating', '')}",
        f"{progress.partitions_total} partitions",
        f"lag {summary.get('lagRecords', '?')}",
        f"{summary.get('recordsPerSecond', 0):,.0f} records/s",
        f"{summary.get('bytesPerSecond', 0) / 1e6:,.1f} MB/s",
        f"{summary.get('records', 0):,} copied",
        *reasons(progress),
    ]
    return ", ".join(parts)
