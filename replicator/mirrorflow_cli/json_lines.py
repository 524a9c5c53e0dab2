"""What `mirrorflow run --json` shows: one JSON object a line on stdout, progress and events alike."""

import json
import sys
from collections.abc import Sequence
from typing import TextIO

from mirrorflow_cli.progress import Progress


class JsonDisplay:
    """One JSON object a line on stdout; `event` says which."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout

    def started(self, connector: str, pid: int, starts: int) -> None:
        """`started`: connector, pid, starts."""
        self._event("started", connector=connector, pid=pid, starts=starts)

    def ended(self, connector: str, status: int, last_words: str, restarts_in_s: float) -> None:
        """`ended`: connector, status, message, restartsInSeconds."""
        self._event(
            "ended", connector=connector, status=status, message=last_words, restartsInSeconds=restarts_in_s
        )

    def progress(self, seen: Sequence[Progress]) -> None:
        """`progress`: connector, the process's own summary, its partitions, and what it says of topics without a copy."""
        for one in seen:
            self._event(
                "progress",
                connector=one.connector,
                summary=dict(one.summary),
                partitions=list(one.partitions),
                uncopied=list(one.uncopied),
            )

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
