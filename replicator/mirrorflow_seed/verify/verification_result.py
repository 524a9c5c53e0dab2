"""Combines all windows of a verification into its result: counts, the report and the JSON summary."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from mirrorflow_seed.job_report import Cost, JobPhase, OutcomeCounts, VerifyReport
from mirrorflow_seed.verify.offset_windows import WindowOutcome, WindowResult

VERSION: Final = 1
# Limits of the JSON summary; the table contains all windows.
NOT_EQUAL_MAX: Final = 100
NOTES_MAX: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationResult:
    """The result of a verification. `windows` are sorted by topic, partition and offset."""

    run_id: str
    flow: str
    source_alias: str
    target_alias: str
    sample: float  # the fraction of windows that was compared
    windows: Sequence[WindowResult]
    partitions: int
    behind: int  # records at the ends of partitions that the target may not have yet
    notes: Sequence[str] = ()
    cost: Cost = field(default_factory=Cost)
    seconds: float = 0.0
    task_memory_bytes: int = 0  # peak memory of a task's process

    @property
    def counts(self) -> OutcomeCounts:
        return count_outcomes(one.outcome for one in self.windows)

    @property
    def source_records(self) -> int:
        return sum(one.source_count for one in self.windows)

    @property
    def target_records(self) -> int:
        return sum(one.target_count for one in self.windows)

    @property
    def differences(self) -> int:
        return sum(one.differing for one in self.windows)

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
        not_equal = [one for one in self.windows if one.outcome is not WindowOutcome.EQUAL]
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
            "notEqual": [_window(one) for one in not_equal[:NOT_EQUAL_MAX]],
            "notEqualShown": min(len(not_equal), NOT_EQUAL_MAX),
        }


def count_outcomes(outcomes: Iterable[WindowOutcome]) -> OutcomeCounts:
    """Returns how many of *outcomes* there are of each kind."""
    found = Counter(outcomes)
    return OutcomeCounts(
        total=found.total(),
        equal=found[WindowOutcome.EQUAL],
        reordered=found[WindowOutcome.REORDERED],
        different=found[WindowOutcome.DIFFERENT],
        undecided=found[WindowOutcome.UNDECIDED],
    )


def with_progress(first: VerifyReport, done: OutcomeCounts, **figures: Any) -> VerifyReport:
    """Returns *first*, the report of the plan, with the compared windows *done* and other *figures*."""
    undecided = first.windows.undecided + done.undecided
    windows = replace(done, total=first.windows.total, undecided=undecided)
    return replace(first, windows=windows, **figures)


def _window(one: WindowResult) -> dict[str, Any]:
    return {
        "topic": one.topic,
        "partition": one.partition,
        "targetTopic": one.target_topic,
        "fromOffset": one.from_offset,
        "toOffset": one.to_offset,
        "keyClass": None if one.key_class < 0 else one.key_class,
        "outcome": one.outcome.value,
        "sourceRecords": one.source_count,
        "targetRecords": one.target_count,
        "differing": one.differing,
        "reason": one.reason,
        "first": [
            {
                "kind": each.kind.value,
                "sourceOffset": each.source_offset,
                "targetOffset": each.target_offset,
                "sourceDigest": each.source_digest,
                "targetDigest": each.target_digest,
                "fields": list(each.fields),
            }
            for each in one.differences
        ],
    }
