"""The progress messages of a seed's tasks to the driver, over HTTP.

A task posts its counts and what blocks it, once a second. They are only for the report: a task that cannot reach the
driver copies all the same, and the driver reads offsets from the target. Messages identify partitions by their index
in the plan.
"""

import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from mirrorflow_seed.job_status_server import post_message

TASK_REPORT_EVERY_S: Final = 1.0
# A task that has not reported for this long does not count as active; tasks report every second.
SILENT_S: Final = 15.0
MESSAGE_CHARACTERS_MAX: Final = 2_000  # of an error: one sentence and the broker's message


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedTaskReport:
    """The progress of one task attempt; counts are since it began. `next_offsets` are by index of the range.

    `reason` and `message` describe the error that blocks it; the message may name topics.
    """

    attempt: str
    records: int = 0
    bytes: int = 0
    seconds: float = 0.0
    next_offsets: Mapping[int, int] = field(default_factory=dict)
    ended: bool = False
    reason: str | None = None
    message: str | None = None


class Coordinator:
    """Receives the reports of all task attempts in the driver; each attempt is counted once, however often it reports."""

    def __init__(self) -> None:
        self.next_offsets: dict[int, int] = {}
        # Unguessable, so that only tasks of this job can post
        self.path = f"/task-reports/{secrets.token_hex(16)}"
        self._reports: dict[str, tuple[float, SeedTaskReport]] = {}
        self._ended: set[str] = set()
        self._records = self._bytes = 0
        self._seconds = 0.0

    def take(self, body: bytes) -> None:
        """Stores the report in *body*. Raises ValueError, KeyError, TypeError or AttributeError if it is not one."""
        message = json.loads(body)
        report = SeedTaskReport(
            attempt=str(message["attempt"]),
            records=int(message["records"]),
            bytes=int(message["bytes"]),
            seconds=float(message["seconds"]),
            next_offsets={int(index): int(offset) for index, offset in message["next"].items()},
            ended=bool(message["ended"]),
            reason=None if message["reason"] is None else str(message["reason"]),
            message=None if message["message"] is None else str(message["message"]),
        )
        self.receive(report)

    def receive(self, report: SeedTaskReport) -> None:
        """Stores *report* as the latest report of its attempt."""
        for index, offset in report.next_offsets.items():
            self.next_offsets[index] = max(offset, self.next_offsets.get(index, -1))
        if report.attempt in self._ended:
            return
        if not report.ended:
            self._reports[report.attempt] = (time.monotonic(), report)
            return
        self._reports.pop(report.attempt, None)
        self._ended.add(report.attempt)
        self._records += report.records
        self._bytes += report.bytes
        self._seconds += report.seconds

    @property
    def active(self) -> int:
        """The number of attempts that have reported recently."""
        now_s = time.monotonic()
        return sum(now_s - at_s < SILENT_S for at_s, _ in list(self._reports.values()))

    @property
    def unfinished(self) -> int:
        """The number of attempts that have not reported their end; once no task runs, these were killed."""
        return len(self._reports)

    @property
    def errors_by_reason(self) -> dict[str, tuple[int, str]]:
        """Maps the reason of an error to the number of active attempts that it blocks, and one message."""
        now_s = time.monotonic()
        errors: dict[str, tuple[int, str]] = {}
        for at_s, report in list(self._reports.values()):
            if report.reason and now_s - at_s < SILENT_S:
                errors[report.reason] = (errors.get(report.reason, (0, ""))[0] + 1, report.message or "")
        return errors

    @property
    def totals(self) -> tuple[int, int, float]:
        """The records, bytes and seconds of all attempts so far."""
        reports = [report for _, report in list(self._reports.values())]
        return (
            self._records + sum(report.records for report in reports),
            self._bytes + sum(report.bytes for report in reports),
            self._seconds + sum(report.seconds for report in reports),
        )


def send_report(url: str | None, report: SeedTaskReport) -> bool:
    """Posts *report* to the driver at *url*, if there is one; returns whether that succeeded. Blocks for a few seconds at most."""
    body: dict[str, Any] = {
        "attempt": report.attempt,
        "records": report.records,
        "bytes": report.bytes,
        "seconds": report.seconds,
        "next": dict(report.next_offsets),
        "ended": report.ended,
        "reason": report.reason,
        "message": None if report.message is None else report.message[:MESSAGE_CHARACTERS_MAX],
    }
    return post_message(url, body)
