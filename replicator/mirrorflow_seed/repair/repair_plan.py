"""Plans a repair from the windows that are not equal: which records of the source are copied, and what no repair covers. Pure.

    rows of the result table ──> comparison of their ranges, which lists all differences ──> RepairPlan

Records that are missing, changed or moved on the target are copied from the source. An extra record is on the target only, so
there is nothing to copy. An undecided window is not repaired: it is unknown whether it differs.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire.records import Record
from mirrorflow_seed.errors import JobSettingError
from mirrorflow_seed.verify.offset_windows import (
    DifferenceKind,
    DifferenceRun,
    VerifyRange,
    WindowOutcome,
    WindowResult,
)
from mirrorflow_seed.verify.result_folder import name_of_run
from mirrorflow_seed.verify.window_table import UnequalRow

VERSION: Final = 1
OFFSET_HEADER: Final = b"mirrorflow.repair.offset"  # of the record on the source, in decimal digits
KIND_HEADER: Final = b"mirrorflow.repair.kind"
TOPIC_NAME_LENGTH_MAX: Final = 249
COPIED_KINDS: Final = (DifferenceKind.MISSING, DifferenceKind.CHANGED, DifferenceKind.MOVED)


class UnequalRows:
    """The rows of a result table that are not equal, by partition of the source."""

    def __init__(self, rows: Iterable[UnequalRow]) -> None:
        self._rows: dict[TopicPartition, list[UnequalRow]] = {}
        for row in sorted(rows, key=lambda row: row.begin):
            self._rows.setdefault(TopicPartition(row.topic, row.partition), []).append(row)
        # The largest end of each row and those before it, by partition.
        self._ends = {
            partition: list(accumulate((row.end for row in of_partition), max))
            for partition, of_partition in self._rows.items()
        }
        self._of_keys = {
            partition
            for partition, of_partition in self._rows.items()
            if any(row.is_of_keys for row in of_partition)
        }

    def __len__(self) -> int:
        return sum(map(len, self._rows.values()))

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """The partitions that have rows."""
        return frozenset(self._rows)

    def deleted(self, starts: Mapping[TopicPartition, int]) -> list["RepairedWindow"]:
        """Returns the rows with source offsets before *starts*, where the source begins now, or of a partition without one.

        What differed there can neither be compared nor copied any more.
        """
        return [
            _window_of(row, starts.get(partition))
            for partition, of_partition in self._rows.items()
            for row in of_partition
            if partition not in starts or (row.begin < starts[partition] and not row.is_of_keys)
        ]

    def covered(
        self,
        plan: "RepairPlan",
        starts: Mapping[TopicPartition, int],
        incomplete: Collection[TopicPartition] = (),
    ) -> list["RepairedWindow"]:
        """Returns the rows of which each record that still differs was copied, now that *plan* was carried out.

        *starts* are those of the plan; not each record of the partitions *incomplete* was copied.
        """
        uncovered = UnequalRows(
            UnequalRow(
                flow="",
                topic=window.topic,
                partition=window.partition,
                begin=window.begin,
                end=window.end,
                is_of_keys=window.key_class is not None,
            )
            for window in plan.windows
            if window.reason or window.counts.get(DifferenceKind.EXTRA, 0)
        )
        deleted = {window.key for window in self.deleted(starts)}
        windows = [
            _window_of(row, starts.get(partition))
            for partition, of_partition in self._rows.items()
            if partition not in incomplete
            for row in of_partition
            if not uncovered.cover(row)
        ]
        return [window for window in windows if window.key not in deleted]

    def cover(self, item: VerifyRange | WindowResult | UnequalRow) -> bool:
        """Returns whether some row has source offsets of *item*. Rows of keys have those of the whole partition."""
        partition = TopicPartition(item.topic, item.partition)
        if partition not in self._rows or partition in self._of_keys:
            return partition in self._rows
        match item:
            case VerifyRange():
                begin, end = item.source_from, item.source_to
            case WindowResult():
                begin, end = item.from_offset, item.to_offset
            case UnequalRow():
                begin, end = item.begin, item.end
        rows = self._rows[partition]
        before_end = bisect_left(rows, end, key=_begin)
        if before_end and self._ends[partition][before_end - 1] > begin:
            return True
        # A row without source offsets has records of the target only.
        same = bisect_left(rows, begin, key=_begin)
        return same < len(rows) and rows[same].begin == begin


def _begin(row: UnequalRow) -> int:
    return row.begin


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairedWindow:
    """A row of the result as a repair's file names it, with the offset where the source begins now; None: it has no such partition."""

    topic: str
    partition: int
    begin: int
    end: int
    source_begin: int | None

    @property
    def key(self) -> tuple[str, int, int, int]:
        """What names the row: topic, partition, and its offsets."""
        return self.topic, self.partition, self.begin, self.end

    def as_json(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "partition": self.partition,
            "fromOffset": self.begin,
            "toOffset": self.end,
            "sourceFromOffset": self.source_begin,
        }


def _window_of(row: UnequalRow, source_begin: int | None) -> RepairedWindow:
    return RepairedWindow(
        topic=row.topic, partition=row.partition, begin=row.begin, end=row.end, source_begin=source_begin
    )


def covered_windows(content: Mapping[str, Any]) -> list[RepairedWindow]:
    """Returns the windows that an earlier repair of the same result covers; *content* is its file, {} without one."""
    windows = content.get("coveredWindows")
    return [
        RepairedWindow(
            topic=str(window["topic"]),
            partition=int(window["partition"]),
            begin=int(window["fromOffset"]),
            end=int(window["toOffset"]),
            source_begin=window.get("sourceFromOffset"),
        )
        for window in (windows if isinstance(windows, list) else ())
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedWindow:
    """A window that still is not equal: how many records differ, by kind, and why it is undecided."""

    topic: str
    partition: int
    target_topic: str
    begin: int
    end: int
    key_class: int | None  # of a compacted topic
    counts: Mapping[DifferenceKind, int]
    reason: str | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "partition": self.partition,
            "targetTopic": self.target_topic,
            "fromOffset": self.begin,
            "toOffset": self.end,
            "keyClass": self.key_class,
            **{kind.value: self.counts.get(kind, 0) for kind in DifferenceKind},
            "reason": self.reason or "",
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRepair:
    """The records of one partition of the source to copy, as runs of offsets in their order."""

    source: TopicPartition
    target_topic: str  # of the copy
    runs: tuple[DifferenceRun, ...]

    @property
    def records(self) -> int:
        return sum(run.end - run.begin for run in self.runs)


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairPlan:
    """What is copied, partition by partition, and the windows that it is for."""

    run_id: str
    windows: tuple[PlannedWindow, ...]
    partitions: tuple[PartitionRepair, ...]
    # Windows that differed, that no repair covers, and of which the source has deleted offsets since.
    deleted: tuple[RepairedWindow, ...] = ()

    @property
    def records(self) -> int:
        """The number of records to copy."""
        return sum(partition.records for partition in self.partitions)

    @property
    def extra(self) -> int:
        """The number of records that only the target has."""
        return sum(window.counts.get(DifferenceKind.EXTRA, 0) for window in self.windows)

    @property
    def undecided(self) -> int:
        """The number of windows for which it is unknown whether, or where, they differ."""
        return sum(bool(window.reason) for window in self.windows)

    @property
    def topics(self) -> Mapping[str, str]:
        """The quarantine topic of each copy. Raises JobSettingError."""
        copies = sorted({partition.target_topic for partition in self.partitions})
        return {copy: quarantine_topic(copy, self.run_id) for copy in copies}

    @property
    def rest(self) -> str:
        """What no repair covers, as a sentence after a space; "" if that is nothing."""
        parts = []
        if self.extra:
            parts.append(f"{self.extra} records are only on the target, so there is nothing to copy for them")
        if self.undecided:
            parts.append(f"{self.undecided} windows are undecided and are not repaired")
        if self.deleted:
            parts.append(
                f"{len(self.deleted)} windows cannot be repaired any more: they differed, and the source has deleted offsets of them since"
            )
        return f" {'; '.join(parts)}." if parts else ""

    def as_json(self) -> dict[str, Any]:
        """Returns the plan as JSON. It names topics, so it is not for a public status."""
        return {
            "version": VERSION,
            "runId": self.run_id,
            "records": self.records,
            "extra": self.extra,
            "undecided": self.undecided,
            "deletedWindows": [window.as_json() for window in self.deleted],
            "quarantineTopics": dict(self.topics),
            "windows": [window.as_json() for window in self.windows],
        }


def plan_repair(
    run_id: str, windows: Iterable[WindowResult], *, deleted: Iterable[RepairedWindow] = ()
) -> RepairPlan:
    """Returns the plan for *windows*, which list all their differences; *deleted* is that of the plan."""
    ordered = sorted(
        windows,
        key=lambda window: (window.topic, window.partition, window.from_offset, window.key_class or 0),
    )
    runs: dict[tuple[TopicPartition, str], list[DifferenceRun]] = {}
    for window in ordered:
        source = TopicPartition(window.topic, window.partition)
        of_partition = runs.setdefault((source, window.target_topic), [])
        of_partition += (run for run in window.difference_runs if run.kind in COPIED_KINDS)
    return RepairPlan(
        run_id=run_id,
        windows=tuple(map(_planned, ordered)),
        deleted=tuple(sorted(deleted, key=lambda window: window.key)),
        partitions=tuple(
            PartitionRepair(
                source=source, target_topic=copy, runs=tuple(sorted(spans, key=lambda run: run.begin))
            )
            for (source, copy), spans in runs.items()
            if spans
        ),
    )


def _planned(window: WindowResult) -> PlannedWindow:
    counts: Counter[DifferenceKind] = Counter()
    for run in window.difference_runs:
        counts[run.kind] += run.end - run.begin
    is_undecided = window.outcome is WindowOutcome.UNDECIDED
    return PlannedWindow(
        topic=window.topic,
        partition=window.partition,
        target_topic=window.target_topic,
        begin=window.from_offset,
        end=window.to_offset,
        key_class=window.key_class,
        counts=counts,
        reason=window.reason or ("undecided" if is_undecided else None),
    )


def quarantine_topic(copy: str, run_id: str) -> str:
    """Returns the name of the topic that has the records of *copy* that differ. Raises JobSettingError if it is too long."""
    name = f"{copy}.repair.{name_of_run(run_id)}"
    if len(name) > TOPIC_NAME_LENGTH_MAX:
        raise JobSettingError(
            key="run.id",
            problem=f"{name} has {len(name)} characters, and Kafka allows {TOPIC_NAME_LENGTH_MAX}",
            action="verify with a shorter run id",
        )
    return name


def marked(record: Record, kind: DifferenceKind) -> Record:
    """Returns *record* of the source with the headers of a record in a quarantine topic."""
    added = ((OFFSET_HEADER, b"%d" % record.offset), (KIND_HEADER, kind.value.encode()))
    return record._replace(headers=(*record.headers, *added))


def source_offset_of(record: Record) -> int | None:
    """Returns the source offset of a *record* in a quarantine topic; None if no repair has written it."""
    names = [name for name, _ in record.headers[-2:]]
    if names != [OFFSET_HEADER, KIND_HEADER]:
        return None
    text = record.headers[-2][1] or b""
    return int(text) if text.isdigit() else None


class DifferenceCursor:
    """Finds the kind of difference of records whose source offsets ascend. *runs* are in their order."""

    def __init__(self, runs: Sequence[DifferenceRun]) -> None:
        self._runs = runs
        self._index = 0

    def kind_at(self, offset: int) -> DifferenceKind | None:
        """Returns how the record at *offset* differs; None if it does not."""
        while self._index < len(self._runs) and self._runs[self._index].end <= offset:
            self._index += 1
        if self._index == len(self._runs) or offset < self._runs[self._index].begin:
            return None
        return self._runs[self._index].kind


def ranges_to_read(runs: Sequence[DifferenceRun], gap_offsets: int) -> list[tuple[int, int]]:
    """Returns the ranges of source offsets that have *runs*; those with at most *gap_offsets* between them are one."""
    ranges: list[tuple[int, int]] = []
    for run in runs:
        if ranges and run.begin - ranges[-1][1] <= gap_offsets:
            ranges[-1] = ranges[-1][0], max(ranges[-1][1], run.end)
        else:
            ranges.append((run.begin, run.end))
    return ranges
