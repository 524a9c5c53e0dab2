"""Records and bytes per second as they are now, for whoever watches a table.

The process's own rates cover up to thirty seconds, as Kafka's metrics do: right for a graph, late for a watcher. Here they
are replaced by those of the last five, from the counts of successive answers and the process's own clock.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import replace

from mirrorflow_cli.progress import Progress

WINDOW_S = 5.0  # ten reports of a task: short enough to see a stop, long enough not to flicker
SPAN_MIN_S = 0.5  # less says more of when the two answers were made than of what was copied

Counts = Mapping[
    tuple[str, int], tuple[int, int]
]  # records and bytes by topic and partition, of those with any


class RecentRates:
    """Remembers the answers of the last five seconds, one connector beside the other."""

    def __init__(self) -> None:
        self._answers: dict[str, deque[tuple[float, Counts]]] = {}

    def of(self, progress: Progress) -> Progress:
        """*progress* with its rates replaced; to be called with each answer, in order."""
        now_s, counts = progress.uptime_s, _counts(progress)
        answers = self._answers.setdefault(progress.connector, deque())
        if answers and now_s < answers[-1][0]:
            answers.clear()  # another process
        if not answers:
            # It counts from zero, so what a young one has copied is of this window.
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
        # A count that went back is a task that began anew, and counts from zero.
        moved = now if now < then else (now[0] - then[0], now[1] - then[1])
        rates = {"recordsPerSecond": moved[0] / span_s, "bytesPerSecond": moved[1] / span_s}
        records += rates["recordsPerSecond"]
        bytes_ += rates["bytesPerSecond"]
        rows.append({**row, **rates})
    summary = {**progress.summary, "recordsPerSecond": records, "bytesPerSecond": bytes_}
    return replace(progress, summary=summary, partitions=tuple(rows))
