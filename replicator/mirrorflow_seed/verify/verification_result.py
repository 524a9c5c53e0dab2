"""Combines the summaries of all tasks of a verification into its result: counts, the report and the JSON summary.

Windows stay in the tasks, which write them to the table (`window_table`). A task returns their counts, the first that
are not equal, and segments: consecutive windows with one outcome, for the picture of each partition. So the driver's
memory grows with the number of tasks, of which a job has a bounded number.
"""

import heapq
import pickle
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, NamedTuple

from mirrorflow_seed.job_report import Cost, JobPhase, OutcomeCounts, VerifyReport
from mirrorflow_seed.verify.offset_windows import WindowOutcome, WindowResult

VERSION: Final = 1
# Limits of the JSON summary; the table contains all windows.
NOT_EQUAL_MAX: Final = 100
NOTES_MAX: Final = 100
ABSENT_OFFSET: Final = -1  # in the JSON summary, of a record that a side does not have
# Returned by all tasks together, some 500 bytes each with ten differences, and up to 2,300 with their keys; a task returns
# at least the minimum.
NOT_EQUAL_RETURNED_MAX: Final = 200_000
NOT_EQUAL_OF_TASK_MIN: Final = 10
WORST_LAST: Final = (
    WindowOutcome.EQUAL,
    WindowOutcome.REORDERED,
    WindowOutcome.UNDECIDED,
    WindowOutcome.DIFFERENT,
)


class WindowSegment(NamedTuple):
    """Consecutive windows of a partition, or one class of its keys, with one outcome; *begin* and *end* are source offsets."""

    topic: str
    partition: int
    begin: int
    end: int
    key_class: int | None  # of a compacted topic
    outcome: WindowOutcome
    windows: int
    records: int  # of the source


def segments_of(windows: Iterable[WindowResult]) -> list[WindowSegment]:
    """Returns the segments of *windows*, in their order."""
    segments: list[WindowSegment] = []
    for window in windows:
        added = WindowSegment(
            window.topic,
            window.partition,
            window.from_offset,
            window.to_offset,
            window.key_class,
            window.outcome,
            1,
            window.source_count,
        )
        if segments and _continues(segments[-1], added):
            last = segments[-1]
            segments[-1] = last._replace(
                end=added.end, windows=last.windows + 1, records=last.records + added.records
            )
        else:
            segments.append(added)
    return segments


def _continues(last: WindowSegment, added: WindowSegment) -> bool:
    return (
        last.end == added.begin
        and (last.topic, last.partition) == (added.topic, added.partition)
        and last.outcome is added.outcome
        and last.key_class is added.key_class is None
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSummary:
    """What the driver needs of the windows of one task."""

    counts: OutcomeCounts
    source_records: int
    target_records: int
    differing: int
    not_equal: bytes  # packed, the first that are not equal
    segments: bytes  # packed

    @classmethod
    def of(cls, windows: Sequence[WindowResult], *, not_equal_max: int = NOT_EQUAL_MAX) -> "WindowSummary":
        """Returns the summary of *windows*, with at most *not_equal_max* windows that are not equal."""
        not_equal = heapq.nsmallest(
            not_equal_max,
            (window for window in windows if window.outcome is not WindowOutcome.EQUAL),
            key=_order_of,
        )
        return cls(
            counts=count_outcomes(window.outcome for window in windows),
            source_records=sum(window.source_count for window in windows),
            target_records=sum(window.target_count for window in windows),
            differing=sum(window.differing for window in windows),
            not_equal=pack(not_equal) if not_equal else b"",
            segments=pack(segments_of(windows)),
        )


def pack(items: Sequence[WindowResult] | Sequence[WindowSegment]) -> bytes:
    """Returns *items* compressed, for `unpack`."""
    return zlib.compress(pickle.dumps(items))


def unpack(content: bytes) -> Any:
    """Returns the items of `pack`; an empty list if *content* is empty."""
    return pickle.loads(zlib.decompress(content)) if content else []  # noqa: S301 of our own tasks


def not_equal_max(tasks: int) -> int:
    """Returns how many windows that are not equal each of *tasks* returns: fewer of each where these are many."""
    return min(NOT_EQUAL_MAX, max(NOT_EQUAL_OF_TASK_MIN, NOT_EQUAL_RETURNED_MAX // max(tasks, 1)))


def _order_of(window: WindowResult) -> tuple[str, int, int, int, int]:
    return window.topic, window.partition, window.from_offset, window.to_offset, window.key_class or 0


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyTaskResult:
    """The windows of a task and their cost, without payload."""

    windows: WindowSummary
    part: str | None = None  # the file of the table that has the windows, if the task has written it
    unwritten: bytes = (
        b""  # packed, the windows that the driver writes, because the task does not reach its folder
    )
    listed: bytes = b""  # packed, all windows that are not equal, if the comparison lists all differences
    behind: int  # records that the target may not have yet
    bytes_read: int
    seconds: float
    memory_bytes: int  # peak of the process


@dataclass(slots=True)
class PartitionOverview:
    """What the windows of one partition have in common."""

    windows: int = 0
    begin: int = 0  # source offsets
    end: int = 0
    worst: WindowOutcome = WindowOutcome.EQUAL
    records: int = 0  # of the source

    def add(self, segment: WindowSegment) -> None:
        """Adds a segment."""
        self.begin = min(self.begin, segment.begin) if self.windows else segment.begin
        self.end = max(self.end, segment.end)
        self.worst = max(self.worst, segment.outcome, key=WORST_LAST.index)
        self.windows += segment.windows
        self.records += segment.records


@dataclass(frozen=True, kw_only=True)
class VerificationResult:
    """The result of a verification; `summaries` are of the windows of each task."""

    run_id: str
    flow: str
    source_alias: str
    target_alias: str
    sample: float  # the fraction of windows that was compared
    summaries: Sequence[WindowSummary]
    partitions: int
    behind: int  # records at the ends of partitions that the target may not have yet
    notes: Sequence[str] = ()
    cost: Cost = field(default_factory=Cost)
    seconds: float = 0.0
    task_memory_bytes: int = 0  # peak memory of a task's process

    def each_segment(self) -> Iterator[WindowSegment]:
        """Yields all segments, those of one task at a time."""
        for summary in self.summaries:
            yield from unpack(summary.segments)

    @cached_property
    def counts(self) -> OutcomeCounts:
        return OutcomeCounts(
            **{
                name: sum(getattr(summary.counts, name) for summary in self.summaries)
                for name in ("total", *(outcome.value for outcome in WindowOutcome))
            }
        )

    @property
    def source_records(self) -> int:
        return sum(summary.source_records for summary in self.summaries)

    @property
    def target_records(self) -> int:
        return sum(summary.target_records for summary in self.summaries)

    @property
    def differences(self) -> int:
        return sum(summary.differing for summary in self.summaries)

    @cached_property
    def not_equal(self) -> Sequence[WindowResult]:
        """At most NOT_EQUAL_MAX windows that are not equal, by topic, partition and offset: the first of those that tasks returned."""
        return heapq.nsmallest(
            NOT_EQUAL_MAX,
            (window for summary in self.summaries for window in unpack(summary.not_equal)),
            key=_order_of,
        )

    def overview(self) -> Mapping[tuple[str, int], PartitionOverview]:
        """Returns what is common to the windows of each topic and partition."""
        overviews: dict[tuple[str, int], PartitionOverview] = {}
        for segment in self.each_segment():
            overviews.setdefault((segment.topic, segment.partition), PartitionOverview()).add(segment)
        return overviews

    @property
    def is_equal(self) -> bool:
        """Whether all compared windows are equal; an undecided one is not."""
        counts = self.counts
        return counts.equal == counts.total

    @property
    def message(self) -> str:
        """The result as one sentence, without topic names."""
        counts = self.counts
        if not counts.total:
            return "There was nothing to compare."
        if self.is_equal:
            text = (
                "The only window is equal." if counts.total == 1 else f"All {counts.total} windows are equal."
            )
        else:
            parts = [
                f"{number} {name}"
                for name, number in (
                    ("different", counts.different),
                    ("reordered", counts.reordered),
                    ("undecided", counts.undecided),
                )
                if number
            ]
            of = f"{counts.total} window{'' if counts.total == 1 else 's'}"
            text = f"Of {of} {', '.join(parts)}; {counts.equal} {'is' if counts.equal == 1 else 'are'} equal."
        if self.behind:
            was = "record at the ends was" if self.behind == 1 else "records at the ends were"
            text += f" {self.behind} {was} not yet due on the target."
        if self.notes:
            lists = "note lists" if len(self.notes) == 1 else "notes list"
            text += f" {len(self.notes)} {lists} what was not compared."
        return text

    @property
    def report(self) -> VerifyReport:
        return VerifyReport(
            run_id=self.run_id,
            phase=JobPhase.SUCCEEDED,
            windows=self.counts,
            source_records=self.source_records,
            target_records=self.target_records,
            differences=self.differences,
            cost=self.cost,
            message=self.message,
        )

    def as_json(self, *, has_keys: bool = True) -> dict[str, Any]:
        """Returns the JSON summary, for a log without keys. It names topics, so it is not for a public status."""
        return {
            **self.report.as_json(),
            "version": VERSION,
            "flow": self.flow,
            "source": self.source_alias,
            "target": self.target_alias,
            "sample": self.sample,
            "isEqual": self.is_equal,
            "partitions": self.partitions,
            "behindRecords": self.behind,
            "seconds": round(self.seconds, 3),
            "taskMemoryBytes": self.task_memory_bytes,
            "notes": list(self.notes[:NOTES_MAX]),
            "notEqual": [_window(window, has_keys=has_keys) for window in self.not_equal],
            "notEqualShown": len(self.not_equal),
        }


def count_outcomes(outcomes: Iterable[WindowOutcome]) -> OutcomeCounts:
    """Returns how many of *outcomes* there are of each kind."""
    counter = Counter(outcomes)
    return OutcomeCounts(
        total=counter.total(),
        equal=counter[WindowOutcome.EQUAL],
        reordered=counter[WindowOutcome.REORDERED],
        different=counter[WindowOutcome.DIFFERENT],
        undecided=counter[WindowOutcome.UNDECIDED],
    )


def with_progress(first: VerifyReport, done: OutcomeCounts, **figures: Any) -> VerifyReport:
    """Returns *first*, the report of the plan, with the compared windows *done* and other *figures*."""
    undecided = first.windows.undecided + done.undecided
    windows = replace(done, total=first.windows.total, undecided=undecided)
    return replace(first, windows=windows, **figures)


def _window(window: WindowResult, *, has_keys: bool) -> dict[str, Any]:
    return {
        "topic": window.topic,
        "partition": window.partition,
        "targetTopic": window.target_topic,
        "fromOffset": window.from_offset,
        "toOffset": window.to_offset,
        "keyClass": window.key_class,
        "outcome": window.outcome.value,
        "sourceRecords": window.source_count,
        "targetRecords": window.target_count,
        "differing": window.differing,
        "reason": window.reason or "",
        "first": [
            {
                "kind": difference.kind.value,
                "sourceOffset": ABSENT_OFFSET
                if difference.source_offset is None
                else difference.source_offset,
                "targetOffset": ABSENT_OFFSET
                if difference.target_offset is None
                else difference.target_offset,
                "sourceDigest": difference.source_digest or "",
                "targetDigest": difference.target_digest or "",
                "fields": list(difference.fields),
                "key": difference.key if has_keys else None,
            }
            for difference in window.differences
        ],
    }
