"""Computes current records and bytes per second for displays that a user watches.

The process's own rates cover up to 30 seconds, as Kafka's metrics do: good for a graph, slow for a live
display. These cover the last 5 seconds, computed from successive answers and the process's own clock.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import replace

from mirrorflow_cli.progress import Progress

WINDOW_S = 5.0  # ten reports of a task: short enough to show a stop, long enough not to flicker
SPAN_MIN_S = 0.5  # with a shorter span, the timing of the two answers would dominate the rate

# (topic, partition) -> (records, bytes), of partitions with any
Counts = Mapping[tuple[str, int], tuple[int, int]]


class RecentRates:
    """Keeps the answers of the last 5 seconds for each connector."""

    def __init__(self) -> None:
        self._answers: dict[str, deque[tuple[float, Counts]]] = {}

    def of(self, progress: Progress) -> Progress:
        """Returns *progress* with its rates replaced. Call it with each answer, in order."""
        now_s, counts = progress.uptime_s, _counts(progress)
        answers = self._answers.setdefault(progress.connector, deque())
        if answers and now_s < answers[-1][0]:
            answers.clear()  # A lower uptime means another process.
        if not answers:
            # Counts start at zero, so in a young process all of them fall into this window.
            answers.append((0.0, {}) if now_s <= WINDOW_S else (now_s, counts))
        while len(answers) > 1 and now_s - answers[0][0] > WINDOW_S:
            answers.popleft()
        since_s, before = answers[0]
        answers.append((now_s, counts))
        return _with_rates(progress, counts, before, max(SPAN_MIN_S, now_s - since_s))


def _counts(progress: Progress) -> Counts:
    return {
        (str(row["topic"]), int(row["partition"])): (int(row["records"]), int(row["bytes"]))
        for row in progress.partitions
        if row.get("records")
    }


def _with_rates(progress: Progress, counts: Counts, before: Counts, span_s: float) -> Progress:
    nothing = (0, 0)
    records = bytes_ = 0.0
    rows = []
    for row in progress.partitions:
        key = (str(row["topic"]), int(row.get("partition", 0)))
        now, then = counts.get(key, nothing), before.get(key, nothing)
        # A count that decreased belongs to a restarted task, which counts from zero.
        moved = now if now < then else (now[0] - then[0], now[1] - then[1])
        rates = {"recordsPerSecond": moved[0] / span_s, "bytesPerSecond": moved[1] / span_s}
        records += rates["recordsPerSecond"]
        bytes_ += rates["bytesPerSecond"]
        rows.append({**row, **rates})
    summary = {**progress.summary, "recordsPerSecond": records, "bytesPerSecond": bytes_}
    return replace(progress, summary=summary, partitions=tuple(rows))
