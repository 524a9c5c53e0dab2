"""Computes rates and windows: counters become records per second, samples a minimum, maximum and average.

The worker adds every task report with its time of arrival; readers query at any later time. As in Kafka's
own SampledStat, each partition keeps two half windows and nothing else: the counters as of their beginning,
and the samples since. So a partition costs the same however busy it is, and one that never moved costs
nothing. The caller supplies the clock, a monotonic one.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from mirrorflow_core.reports import PartitionPhase, PartitionReport, TaskReport

WINDOW_S = 30.0  # metrics.sample.window.ms of Kafka's clients
HALF_S = WINDOW_S / 2  # a query covers between one and two halves
SPAN_MIN_S = 1.0  # a shorter span would give absurd rates for a single batch
Counts = tuple[int, int, int]  # records, bytes, bytes of values


class Spread(NamedTuple):
    """Minimum, maximum and average of the samples in a window."""

    minimum: float
    maximum: float
    average: float


class Window:
    """The samples of the last one to two halves, of a value that is sampled irregularly."""

    __slots__ = ("_begin_s", "_current", "_previous")

    def __init__(self, now_s: float) -> None:
        self._begin_s = now_s
        self._current, self._previous = [0.0] * 4, [0.0] * 4  # each: minimum, maximum, sum, count

    def take(self, now_s: float, sample: float) -> None:
        """Adds *sample*, taken at *now_s*; ignores a negative one."""
        if sample < 0:
            return
        self._turn(now_s)
        half = self._current
        half[0] = sample if half[3] == 0 else min(half[0], sample)
        half[1] = max(half[1], sample)
        half[2] += sample
        half[3] += 1

    def spread(self, now_s: float) -> Spread | None:
        """Returns the spread of the window now; None if nothing was sampled in it."""
        self._turn(now_s)
        halves = [half for half in (self._current, self._previous) if half[3]]
        if not halves:
            return None
        least, greatest, total, count = zip(*halves, strict=True)
        return Spread(min(least), max(greatest), sum(total) / sum(count))

    def _turn(self, now_s: float) -> None:
        halves = int((now_s - self._begin_s) / HALF_S)
        if halves > 0:
            self._previous = self._current if halves == 1 else [0.0] * 4
            self._current = [0.0] * 4
            self._begin_s += halves * HALF_S


@dataclass(slots=True, kw_only=True)
class _Partition:
    """The state of one partition: its counters now, and as they were when each half window began."""

    begin_s: float
    ages: Window
    latencies: Window
    begin: Counts = (0, 0, 0)
    earlier: tuple[float, Counts] | None = None  # when the half window before began
    counts: Counts = (0, 0, 0)
    caught_up: bool = False  # had no lag when last reported
    caught_up_s: float = -1.0  # last time without lag; below 0: never seen without


class Rate(NamedTuple):
    """Rates per second, of one partition or of many."""

    records: float = 0.0
    bytes: float = 0.0
    value_bytes: float = 0.0

    def plus(self, other: "Rate") -> "Rate":
        """Returns the sum of both."""
        return Rate(
            self.records + other.records, self.bytes + other.bytes, self.value_bytes + other.value_bytes
        )


NO_RATE = Rate()


def lag_records(report: PartitionReport) -> int:
    """Returns the records (offsets) not yet copied; -1 while either end is unknown."""
    if report.source_offset < 0 or report.source_end_offset < 0:
        return -1
    return max(0, report.source_end_offset - report.source_offset)


class Samples:
    """The samples of all partitions: `observe` adds them; the other methods return rates, windows and ages."""

    __slots__ = ("_partitions", "_throttles")

    def __init__(self) -> None:
        self._partitions: dict[tuple[str, str, int], _Partition] = {}
        self._throttles: dict[tuple[str, int], tuple[int, float]] = {}

    def observe(self, connector: str, report: TaskReport, now_s: float) -> None:
        """Adds a task's report, with the partitions that changed in it, as of *now_s*."""
        throttled = self._throttles.get((connector, report.task))
        if throttled is None or throttled[0] != report.throttle_ms:
            since = now_s if report.throttle_ms else -1.0
            self._throttles[connector, report.task] = (report.throttle_ms, since)
        for partition in report.partitions:
            self._take(connector, partition, now_s)

    def retain(self, connector: str, reports: Iterable[PartitionReport]) -> None:
        """Forgets the partitions of *connector* that are not in *reports*. Their topic is gone or left the flow."""
        kept = {(connector, report.topic, report.partition) for report in reports}
        gone = [key for key in self._partitions if key[0] == connector and key not in kept]
        for key in gone:
            del self._partitions[key]

    def rate(self, connector: str, topic: str, partition: int, now_s: float) -> Rate:
        """Returns a partition's rate over the window before *now_s*; zeros if it did not move.

        *topic* is the source topic.
        """
        known = self._partitions.get((connector, topic, partition))
        if known is None or now_s - known.begin_s > WINDOW_S:
            return NO_RATE
        begin_s, begin = known.earlier or (known.begin_s, known.begin)
        span = max(SPAN_MIN_S, now_s - begin_s)
        return Rate(*((now - then) / span for now, then in zip(known.counts, begin, strict=True)))

    def spreads(
        self, connector: str, topic: str, partition: int, now_s: float
    ) -> tuple[Spread | None, Spread | None]:
        """Returns record age and replication latency (ms) of the window; None where nothing was sampled."""
        known = self._partitions.get((connector, topic, partition))
        return (None, None) if known is None else (known.ages.spread(now_s), known.latencies.spread(now_s))

    def is_throttled(self, connector: str, now_s: float) -> bool:
        """Whether a broker throttled a task of *connector* within the window."""
        return any(
            name == connector and since_s >= 0 and now_s - since_s <= WINDOW_S
            for (name, _), (_, since_s) in self._throttles.items()
        )

    def lag_s(self, connector: str, report: PartitionReport, now_s: float, wall_s: float) -> float:
        """Returns the age in seconds, at most, of the oldest record to copy; 0 without lag, -1 if unknown.

        The record is no older than the newest delivered one (its timestamp against the wall clock *wall_s*),
        because logs are written in order; and it was written after the partition was last seen without lag.
        The lesser of both bounds is right for a backlog and for a topic that was quiet for days. Where
        neither is known, it is the time that the lag takes at the current rate.
        """
        lag = lag_records(report)
        if lag <= 0:
            return float(lag)
        known = self._partitions.get((connector, report.topic, report.partition))
        bounds = []
        if report.record_timestamp_ms > 0:
            bounds.append(max(0.0, wall_s - report.record_timestamp_ms / 1000))
        if known is not None and known.caught_up_s >= 0:
            # An open transaction counts as lag only once it has stalled the partition.
            stalled_s = now_s - report.stalled_since_ms / 1000 if report.is_stalled else 0.0
            bounds.append(max(0.0, now_s - known.caught_up_s, stalled_s))
        if bounds:
            return min(bounds)
        rate = self.rate(connector, report.topic, report.partition, now_s).records
        return lag / rate if rate > 0 else -1.0

    def _take(self, connector: str, report: PartitionReport, now_s: float) -> None:
        key = (connector, report.topic, report.partition)
        known = self._partitions.get(key)
        counts = (report.records, report.bytes, report.value_bytes)
        # A counter that went back is from a restarted task: the stored values belong to the previous one. The counts of a
        # task that began recently start at zero, as this report may be the first that we see of it.
        if known is None or report.records < known.counts[0] or report.bytes < known.counts[1]:
            caught_up_s = -1.0 if known is None else known.caught_up_s
            known = _Partition(
                begin_s=now_s, ages=Window(now_s), latencies=Window(now_s), caught_up_s=caught_up_s
            )
            self._partitions[key] = known
        elif now_s - known.begin_s >= HALF_S:
            known.earlier = None if now_s - known.begin_s > WINDOW_S else (known.begin_s, known.begin)
            known.begin_s, known.begin = now_s, known.counts
        if report.records > known.counts[0]:
            known.latencies.take(now_s, report.latency_ms)
            known.ages.take(now_s, report.record_age_ms)
        known.counts = counts
        caught_up = lag_records(report) == 0 and report.phase is not PartitionPhase.STARTING
        # Quiet partitions are not reported: one without lag has stayed so until this very change.
        if caught_up or known.caught_up:
            known.caught_up_s = now_s
        known.caught_up = caught_up
