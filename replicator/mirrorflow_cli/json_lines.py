"""Prints what `mirrorflow run --json` shows: progress and events, one JSON object per line on stdout."""

import json
import sys
from typing import TextIO

from mirrorflow_cli.progress import Progress


class JsonDisplay:
    """Prints one JSON object per line on stdout; its `event` is the kind."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout

    def started(self, pid: int, starts: int) -> None:
        """Prints `started`: pid, starts."""
        self._event("started", pid=pid, starts=starts)

    def ended(self, status: int, last_words: str, restarts_in_s: float | None) -> None:
        """Prints `ended`: status, message, restartsInSeconds (null if the process is not started again)."""
        self._event("ended", status=status, message=last_words, restartsInSeconds=restarts_in_s)

    def progress(self, seen: Progress) -> None:
        """Prints `progress`: the source connector's summary, its partitions, and topics without a copy.

        Then prints one `companion` for each other connector: name and class, state, message, warnings,
        groups, heartbeats.
        """
        self._event(
            "progress",
            connector=seen.connector,
            summary=dict(seen.summary),
            partitions=list(seen.partitions),
            uncopied=list(seen.uncopied),
            nothingSelected=seen.nothing_selected,
        )
        for one in seen.companions:
            self._event("companion", **one.said)

    def caught_up(self) -> None:
        """Prints `caughtUp`."""
        self._event("caughtUp")

    def stopping(self, *, is_interrupted: bool) -> None:
        """Prints `stopping`: whether Ctrl-C interrupted the run."""
        self._event("stopping", interrupted=is_interrupted)

    def failed(self, sentence: str) -> None:
        """Prints `failed`: message."""
        self._event("failed", message=sentence)

    def close(self) -> None:
        """Does nothing: no output is held back."""

    def _event(self, event: str, **fields: object) -> None:
        print(json.dumps({"event": event, **fields}, ensure_ascii=False), file=self._out, flush=True)
