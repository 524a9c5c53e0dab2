"""Computes rates and windows: counters become records per second, samples a minimum, maximum and average.

The worker adds every task report with its time of arrival; readers query at any later time. As in Kafka's
own SampledStat, each partition keeps two half windows and nothing else: the counters as of their beginning,
and the samples since. So a partition costs the same however busy it is, and one that never moved costs
nothing. The caller supplies the clock, a monotonic one.

A rate limit may hold a task for longer than a window after one response. Meanwhile a rate is that from one delivery to the next,
however far apart they are: a flow that copies at its limit never looks as if it had stopped.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from mirrorflow_core.reports import ConnectorReport, PartitionPhase, PartitionReport, TaskReport

WINDOW_S = 30.0  # metrics.sample.window.ms of Kafka's clients
HALF_S = WINDOW_S / 2  # a query covers between one and two halves
SPAN_MIN_S = 1.0  # a shorter span would give absurd rates for a single batch
Counts = tuple[int, int, int]  # records, bytes, bytes of values
NOTHING: Counts = (0, 0, 0)


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

    def take(self, now_s: float, sample: float | None) -> None:
        """Adds *sample*, taken at *now_s*; does nothing for None, or for a negative one, as clocks differ."""
        if sample is None or sample < 0:
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


@dataclass(slots=True, kw_only=True)
class _Counter:
    """Counters now, as they were when each half window began, and as they were when each of the last two deliveries began.

    A delivery begins with the first record that is copied after a pause of `HALF_S`.
    """

    begin_s: float
    begin: Counts = NOTHING
    earlier: tuple[float, Counts] | None = None  # when the half window before began
    counts: Counts = NOTHING
    grown_s: float | None = None  # when the last record was copied
    delivery: tuple[float, Counts] | None = None  # when the newest one began
    delivery_before: tuple[float, Counts] | None = None

    def take(self, now_s: float, counts: Counts) -> None:
        """Sets the counters to *counts*, as of *now_s*."""
        if now_s - self.begin_s >= HALF_S:
            self.earlier = None if now_s - self.begin_s > WINDOW_S else (self.begin_s, self.begin)
            self.begin_s, self.begin = now_s, self.counts
        if counts != self.counts:
            if self.grown_s is None or now_s - self.grown_s >= HALF_S:
                self.delivery_before, self.delivery = self.delivery, (now_s, self.counts)
            self.grown_s = now_s
        self.counts = counts

    def rate(self, now_s: float, held_since_s: float | None) -> Rate:
        """Returns the rate over the window before *now_s*, or between deliveries; *held_since_s*: since when a rate limit holds the task."""
        if held_since_s is not None and (paced := self.paced(now_s, held_since_s)) is not None:
            return paced
        if now_s - self.begin_s > WINDOW_S:
            return NO_RATE
        begin_s, begin = self.earlier or (self.begin_s, self.begin)
        return _rate(begin, self.counts, now_s - begin_s)

    def paced(self, now_s: float, held_since_s: float) -> Rate | None:
        """Returns the rate from one delivery to the next; None while a window has several of them."""
        # The limit is seen to hold a task only after the first response that it holds.
        begun = [
            delivery
            for delivery in (self.delivery_before, self.delivery)
            if delivery is not None and delivery[0] >= held_since_s - HALF_S
        ]
        if not begun or self.grown_s is None or self.grown_s - begun[-1][0] >= HALF_S:
            return None
        (first_s, first), (last_s, last) = begun[0], begun[-1]
        if now_s - last_s <= last_s - first_s:
            return _rate(first, last, last_s - first_s)
        # The next delivery is late, or there has been only one.
        return None if now_s - last_s < HALF_S else _rate(first, self.counts, now_s - first_s)


def _rate(begin: Counts, end: Counts, span_s: float) -> Rate:
    return Rate(*((now - then) / max(SPAN_MIN_S, span_s) for now, then in zip(end, begin, strict=True)))


@dataclass(slots=True, kw_only=True)
class _Partition:
    """The state of one partition."""

    counter: _Counter
    ages: Window
    latencies: Window
    caught_up: bool = False  # had no lag when last reported
    caught_up_s: float | None = None  # last time without lag; None: never seen without


def lag_records(report: PartitionReport) -> int | None:
    """Returns the records (offsets) not yet copied; None while either end is unknown."""
    if report.source_offset is None or report.source_end_offset is None:
        return None
    return max(0, report.source_end_offset - report.source_offset)


def shown_lag_records(report: ConnectorReport, part: PartitionReport) -> int | None:
    """Returns `lag_records`, but None instead of a 0 that may be outdated.

    While a cluster is away, or the partition is stalled, no new end is known. A lag that is known has not become less.
    """
    lag = lag_records(part)
    is_outdated = report.source.reason or report.target.reason or part.is_stalled
    return None if lag == 0 and is_outdated else lag


class Samples:
    """The samples of all partitions: `observe` adds them; the other methods return rates, windows and ages."""

    __slots__ = ("_held", "_partitions", "_reported_s", "_tasks", "_throttles")

    def __init__(self) -> None:
        self._partitions: dict[tuple[str, str, int], _Partition] = {}
        self._tasks: dict[tuple[str, int], _Counter] = {}  # sums over their partitions
        self._reported_s: dict[tuple[str, int], float] = {}  # when each task reported last
        self._throttles: dict[tuple[str, int], tuple[int, float | None]] = {}
        self._held: dict[tuple[str, int], tuple[float, float]] = {}  # since when, and until when at least

    def observe(self, connector: str, report: TaskReport, now_s: float) -> None:
        """Adds a task's report, with the partitions that changed in it, as of *now_s*."""
        self._reported_s[connector, report.task] = now_s
        throttled = self._throttles.get((connector, report.task))
        if throttled is None or throttled[0] != report.throttle_ms:
            since = now_s if report.throttle_ms else None
            self._throttles[connector, report.task] = (report.throttle_ms, since)
        if report.is_rate_limited:
            since_s, until_s = self._held.get((connector, report.task), (now_s, now_s))
            self._held[connector, report.task] = (now_s if now_s - until_s > WINDOW_S else since_s, now_s)
        grown = [self._take(connector, partition, now_s) for partition in report.partitions]
        counter = self._tasks.setdefault((connector, report.task), _Counter(begin_s=now_s))
        counter.take(now_s, _sum((counter.counts, *grown)))

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
        return NO_RATE if known is None else known.counter.rate(now_s, self._held_since_s(connector, now_s))

    def rate_of_tasks(self, connector: str, now_s: float) -> Rate | None:
        """Returns the rate of all of *connector* where a rate limit holds it between its deliveries; None elsewhere.

        Elsewhere that is the sum of the rates of its partitions. A limit holds a task, and with many partitions each has a delivery
        so seldom that a sum would take long to be right. A task that has not reported for a window has moved to another node, or ended.
        """
        held_since_s = self._held_since_s(connector, now_s)
        counters = [
            counter
            for key, counter in self._tasks.items()
            if key[0] == connector and now_s - self._reported_s[key] <= WINDOW_S
        ]
        if held_since_s is None or all(counter.paced(now_s, held_since_s) is None for counter in counters):
            return None
        total = NO_RATE
        for counter in counters:
            total = total.plus(counter.rate(now_s, held_since_s))
        return total

    def _held_since_s(self, connector: str, now_s: float) -> float | None:
        """Returns since when a rate limit has held a task of *connector*, with pauses shorter than a window; None if none is held."""
        held = [
            since_s
            for (name, _), (since_s, until_s) in self._held.items()
            if name == connector and now_s - until_s <= WINDOW_S
        ]
        return min(held, default=None)

    def spreads(
        self, connector: str, topic: str, partition: int, now_s: float
    ) -> tuple[Spread | None, Spread | None]:
        """Returns record age and replication latency (ms) of the window; None where nothing was sampled."""
        known = self._partitions.get((connector, topic, partition))
        return (None, None) if known is None else (known.ages.spread(now_s), known.latencies.spread(now_s))

    def is_throttled(self, connector: str, now_s: float) -> bool:
        """Whether a broker throttled a task of *connector* within the window."""
        return any(
            name == connector and since_s is not None and now_s - since_s <= WINDOW_S
            for (name, _), (_, since_s) in self._throttles.items()
        )

    def lag_s(self, connector: str, report: PartitionReport, now_s: float, wall_s: float) -> float | None:
        """Returns the age in seconds, at most, of the oldest record to copy; 0 without lag, None if unknown.

        The record is no older than the newest delivered one (its timestamp against the wall clock *wall_s*),
        because logs are written in order; and it was written after the partition was last seen without lag.
        The lesser of both bounds is right for a backlog and for a topic that was quiet for days. Where
        neither is known, it is the time that the lag takes at the current rate.
        """
        lag = lag_records(report)
        if lag is None:
            return None
        if lag == 0:
            return 0.0
        known = self._partitions.get((connector, report.topic, report.partition))
        bounds = []
        if report.record_timestamp_ms is not None and report.record_timestamp_ms > 0:
            bounds.append(max(0.0, wall_s - report.record_timestamp_ms / 1000))
        if known is not None and known.caught_up_s is not None:
            # An open transaction counts as lag only once it has stalled the partition.
            since_ms = report.stalled_since_ms
            stalled_s = 0.0 if since_ms is None else now_s - since_ms / 1000
            bounds.append(max(0.0, now_s - known.caught_up_s, stalled_s))
        if bounds:
            return min(bounds)
        rate = self.rate(connector, report.topic, report.partition, now_s).records
        return lag / rate if rate > 0 else None

    def _take(self, connector: str, report: PartitionReport, now_s: float) -> Counts:
        """Adds a partition's report; returns by how much its counters have grown."""
        key = (connector, report.topic, report.partition)
        known = self._partitions.get(key)
        counts = (report.records, report.bytes, report.value_bytes)
        # A counter that went back is from a restarted task: the stored values belong to the previous one. The counts of a
        # task that began recently start at zero, as this report may be the first that we see of it.
        before = NOTHING if known is None else known.counter.counts
        if known is None or report.records < before[0] or report.bytes < before[1]:
            caught_up_s = None if known is None else known.caught_up_s
            known = _Partition(
                counter=_Counter(begin_s=now_s),
                ages=Window(now_s),
                latencies=Window(now_s),
                caught_up_s=caught_up_s,
            )
            self._partitions[key] = known
            before = NOTHING
        if report.records > before[0]:
            known.latencies.take(now_s, report.latency_ms)
            known.ages.take(now_s, report.record_age_ms)
        known.counter.take(now_s, counts)
        caught_up = lag_records(report) == 0 and report.phase is not PartitionPhase.STARTING
        # Quiet partitions are not reported: one without lag has stayed so until this very change.
        if caught_up or known.caught_up:
            known.caught_up_s = now_s
        known.caught_up = caught_up
        return counts[0] - before[0], counts[1] - before[1], counts[2] - before[2]


def _sum(counts: Iterable[Counts]) -> Counts:
    records, bytes_, value_bytes = (sum(column) for column in zip(*counts, strict=True))
    return records, bytes_, value_bytes
