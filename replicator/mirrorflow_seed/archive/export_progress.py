"""Receives the progress of an export from its tasks."""

import json
import secrets
from collections.abc import Sequence

from mirrorflow_seed.archive.export_plan import ExportRange
from mirrorflow_seed.job_status_server import JobReporter


class ExportProgress:
    """Receives the counts of written files, only for reports while the job runs; a file that is repeated counts once."""

    def __init__(self) -> None:
        # Unguessable, so that only tasks of this job can post.
        self.path = f"/task-reports/{secrets.token_hex(16)}"
        self._counts: dict[tuple[int, int], tuple[int, int]] = {}  # records and bytes by range and start
        self._done: set[int] = set()  # ranges
        self._ranges: Sequence[ExportRange] = ()

    def begin(self, planned: Sequence[ExportRange], left: Sequence[ExportRange]) -> None:
        """Begins an increment, of which only the ranges *left* are to be written."""
        waiting = {part.index for part in left}
        self._ranges = planned
        self._counts = {}
        self._done = {part.index for part in planned if part.index not in waiting}

    def take(self, body: bytes) -> None:
        """Stores the counts of one file. Raises ValueError, KeyError, TypeError or AttributeError if *body* is not that."""
        message = json.loads(body)
        index = int(message["range"])
        self._counts[index, int(message["start"])] = int(message["records"]), int(message["bytes"])
        if message["is_last"]:
            self._done.add(index)

    def publish(self, reporter: JobReporter, problem: str) -> None:
        """Publishes the progress, and a *problem* of Spark; a partition is done when all its ranges are."""
        counts, done = dict(self._counts), set(self._done)
        waiting = {(part.topic, part.partition) for part in self._ranges if part.index not in done}
        reporter.running(
            done=len({(part.topic, part.partition) for part in self._ranges} - waiting),
            records=sum(records for records, _ in counts.values()),
            bytes=sum(size_bytes for _, size_bytes in counts.values()),
            message=problem,
        )
