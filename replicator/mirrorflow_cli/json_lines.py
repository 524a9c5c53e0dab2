"""What `mirrorflow run --json` shows: one JSON object a line on stdout, progress and events alike."""

import json
import sys
from typing import TextIO

from mirrorflow_cli.progress import Progress


class JsonDisplay:
    """One JSON object a line on stdout; `event` says which."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout

    def started(self, pid: int, starts: int) -> None:
        """`started`: pid, starts."""
        self._event("started", pid=pid, starts=starts)

    def ended(self, status: int, last_words: str, restarts_in_s: float) -> None:
        """`ended`: status, message, restartsInSeconds."""
        self._event("ended", status=status, message=last_words, restartsInSeconds=restarts_in_s)

    def progress(self, seen: Progress) -> None:
        """`progress`: the source connector's own summary, its partitions, what it says of topics without a copy.

        And of each other connector `companion`: its name and class, state, message, warnings, groups, heartbeats.
        """
        self._event(
            "progress",
            connector=seen.connector,
            summary=dict(seen.summary),
            partitions=list(seen.partitions),
            uncopied=list(seen.uncopied),
        )
        for one in seen.companions:
            self._event("companion", **one.said)

    def caught_up(self) -> None:
        """`caughtUp`."""
        self._event("caughtUp")

    def stopping(self) -> None:
        """`stopping`."""
        self._event("stopping")

    def failed(self, sentence: str) -> None:
        """`failed`: message."""
        self._event("failed", message=sentence)

    def close(self) -> None:
        """Nothing is held back."""

    def _event(self, event: str, **fields: object) -> None:
        print(json.dumps({"event": event, **fields}, ensure_ascii=False), file=self._out, flush=True)
