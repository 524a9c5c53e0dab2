"""Combines all windows of a verification into its result: counts, the report and the JSON summary.

Tasks return their windows packed. The driver unpacks those of one task at a time, so its memory does not grow with what
a window takes as an object: some 650 bytes, and 40 packed.
"""

import heapq
import pickle
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

from mirrorflow_seed.job_report import Cost, JobPhase, OutcomeCounts, VerifyReport
from mirrorflow_seed.verify.offset_windows import WindowOutcome, WindowResult

VERSION: Final = 1
# Limits of the JSON summary; the table contains all windows.
NOT_EQUAL_MAX: Final = 100
NOTES_MAX: Final = 100
WORST_LAST: Final = (
    WindowOutcome.EQUAL,
    WindowOutcome.REORDERED,
    WindowOutcome.UNDECIDED,
    WindowOutcome.DIFFERENT,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedWindows:
    """The windows of one task, compressed, and their counts."""

    counts: OutcomeCounts
    source_records: int
    target_records: int
    differing: int
    content: bytes

    @classmethod
    def of(cls, windows: Iterable[WindowResult]) -> "PackedWindows":
        """Returns *windows*, packed."""
        listed = list(windows)
        return cls(
            counts=count_outcomes(window.outcome for window in listed),
            source_records=sum(window.source_count for window in listed),
            target_records=sum(window.target_count for window in listed),
            differing=sum(window.differing for window in listed),
            content=zlib.compress(pickle.dumps(listed)),
        )

    def unpack(self) -> list[WindowResult]:
        """Returns the windows."""
        windows: list[WindowResult] = pickle.loads(zlib.decompress(self.content))  # noqa: S301 of our own tasks
        return windows


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyTaskResult:
    """The windows of a task and their cost, without payload."""

    windows: PackedWindows
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

    def add(self, window: WindowResult) -> None:
        """Adds a window."""
        self.begin = min(self.begin, window.from_offset) if self.windows else window.from_offset
        self.end = max(self.end, window.to_offset)
        self.worst = max(self.worst, window.outcome, key=WORST_LAST.index)
        self.windows += 1
        self.records += window.source_count


@dataclass(frozen=True, kw_only=True)
class VerificationResult:
    """The result of a verification; `windows` are those of each task."""

    run_id: str
    flow: str
    source_alias: str
    target_alias: str
    sample: float  # the fraction of windows that was compared
    windows: Sequence[PackedWindows]
    partitions: int
    behind: int  # records at the ends of partitions that the target may not have yet
    notes: Sequence[str] = ()
    cost: Cost = field(default_factory=Cost)
    seconds: float = 0.0
    task_memory_bytes: int = 0  # peak memory of a task's process

    def each_window(self) -> Iterator[WindowResult]:
        """Yields all windows, those of one task at a time."""
        for packed in self.windows:
            yield from packed.unpack()

    @property
    def counts(self) -> OutcomeCounts:
        return OutcomeCounts(
            **{
                name: sum(getattr(packed.counts, name) for packed in self.windows)
                for name in ("total", *(outcome.value for outcome in WindowOutcome))
            }
        )

    @property
    def source_records(self) -> int:
        return sum(packed.source_records for packed in self.windows)

    @property
    def target_records(self) -> int:
        return sum(packed.target_records for packed in self.windows)

    @property
    def differences(self) -> int:
        return sum(packed.differing for packed in self.windows)

    @cached_property
    def not_equal(self) -> Sequence[WindowResult]:
        """The first NOT_EQUAL_MAX windows that are not equal, by topic, partition and offset."""
        return heapq.nsmallest(
            NOT_EQUAL_MAX,
            (
                window
                for packed in self.windows
                if packed.counts.equal < packed.counts.total
                for window in packed.unpack()
                if window.outcome is not WindowOutcome.EQUAL
            ),
            key=lambda window: (
                window.topic,
                window.partition,
                window.from_offset,
                window.to_offset,
                window.key_class,
            ),
        )

    def overview(self) -> Mapping[tuple[str, int], PartitionOverview]:
        """Returns what is common to the windows of each topic and partition."""
        overviews: dict[tuple[str, int], PartitionOverview] = {}
        for window in self.each_window():
            overviews.setdefault((window.topic, window.partition), PartitionOverview()).add(window)
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

    def as_json(self) -> dict[str, Any]:
        """Returns the JSON summary. It names topics, so it is not for a public status."""
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
            "notEqual": [_window(window) for window in self.not_equal],
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


def _window(window: WindowResult) -> dict[str, Any]:
    return {
        "topic": window.topic,
        "partition": window.partition,
        "targetTopic": window.target_topic,
        "fromOffset": window.from_offset,
        "toOffset": window.to_offset,
        "keyClass": None if window.key_class < 0 else window.key_class,
        "outcome": window.outcome.value,
        "sourceRecords": window.source_count,
        "targetRecords": window.target_count,
        "differing": window.differing,
        "reason": window.reason,
        "first": [
            {
                "kind": difference.kind.value,
                "sourceOffset": difference.source_offset,
                "targetOffset": difference.target_offset,
                "sourceDigest": difference.source_digest,
                "targetDigest": difference.target_digest,
                "fields": list(difference.fields),
            }
            for difference in window.differences
        ],
    }
