"""Receives the counts of a verification's tasks while they run, and publishes reports of them."""

import json
import secrets
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from mirrorflow_seed.job_report import Cost, OutcomeCounts, VerifyReport
from mirrorflow_seed.verify.offset_windows import WindowOutcome
from mirrorflow_seed.verify.verification_result import with_progress

OUTCOMES: Final = tuple(outcome.value for outcome in WindowOutcome)


class VerifyProgress:
    """Receives the counts of ended tasks, only for reports while the job runs; a task that is repeated counts once."""

    def __init__(self, publish: Callable[[VerifyReport], None] = lambda _: None) -> None:
        # Unguessable, so that only tasks of this job can post
        self.path = f"/task-reports/{secrets.token_hex(16)}"
        self.url: str | None = None  # where tasks post
        self.publish = publish
        self._first = VerifyReport(run_id="")
        self._counts: dict[str, Counter[str]] = {}
        self._total: Counter[str] = Counter()

    def connect(self, url: str | None, publish: Callable[[VerifyReport], None]) -> None:
        """Has tasks post to *url*, and reports go to *publish*."""
        self.url, self.publish = url, publish

    def begin(self, first: VerifyReport) -> None:
        """Publishes *first*, to which all later reports add: that of the plan, or one without figures."""
        self._first = first
        self.publish(first)

    def take(self, body: bytes) -> None:
        """Stores the counts of one task. Raises ValueError, KeyError, TypeError or AttributeError if *body* is not that."""
        message = json.loads(body)
        counts = {str(name): int(count) for name, count in message["counts"].items()}
        group = str(message["group"])
        self._total.subtract(self._counts.get(group, {}))
        self._total.update(counts)
        self._counts[group] = Counter(counts)

    def report(self, message: str = "") -> None:
        """Publishes the current report."""
        now = self._total
        newest = with_progress(
            self._first,
            OutcomeCounts(**{name: now[name] for name in OUTCOMES}),
            source_records=now["source"],
            target_records=now["target"],
            differences=now["differing"],
            cost=Cost(executor_seconds=now["milliseconds"] / 1000, bytes_read=now["bytes"]),
        )
        self.publish(replace(newest, message=message))
