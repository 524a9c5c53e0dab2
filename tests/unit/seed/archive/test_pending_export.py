"""Tests that an export continues with what a killed one has written, and that no offset is exported twice."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_seed.archive.commit_log import CommitLog
from mirrorflow_seed.archive.export_plan import ExportRange
from mirrorflow_seed.archive.export_task import ExportedFile, place_of
from mirrorflow_seed.archive.manifest import (
    ArchivedPartition,
    ArchivedTopic,
    Gap,
    TimeBounds,
    folder_of,
)
from mirrorflow_seed.archive.pending_export import (
    ExportPlan,
    PendingExport,
    chosen,
    discard_committed,
    fence_plan,
    increment_of,
    remaining,
)
from mirrorflow_seed.archive.record_tally import Tally
from mirrorflow_seed.errors import ArchiveConflictError
from mirrorflow_seed.storage_folder import StorageFolder
from tests.unit.seed.archive.test_archive_manifest import increment, manifest

pytest.importorskip("pyarrow")

ORDERS = TopicPartition("orders", 0)


def plan_of(*ends: int, number: int = 1) -> ExportPlan:
    """Returns the plan of one partition with a range up to each of *ends*."""
    starts = (0, *ends)
    partition = ArchivedPartition(number=0, start=0, end=ends[-1])
    topic = ArchivedTopic(name="orders", topic_id="", configs=(), partitions=(partition,))
    return ExportPlan(
        plan_id="abc",
        number=number,
        content=replace(manifest(), topics=(topic,)),
        ranges=tuple(
            ExportRange(index=index, topic="orders", partition=0, start=start, end=end, size_bytes=100)
            for index, (start, end) in enumerate(zip(starts, ends, strict=False))
        ),
    )


def exported(index: int, start: int, end: int, *, records: int = 1, name: str = "") -> ExportedFile:
    path = f"_temporary/abc/part-abc-{index}-{start}-{name or end}" if records else ""
    return ExportedFile(
        index=index,
        start=start,
        end=end,
        tally=Tally(records=records, bytes=records, digest=""),
        codec=0,
        gaps=(),
        bytes_read=1,
        seconds=0.1,
        path=path,
        size_bytes=records,
    )


def test_the_remaining_plan_excludes_written_ranges() -> None:
    plan = plan_of(100, 200, 300)
    done = [exported(0, 0, 100), exported(1, 100, 120), exported(1, 120, 150)]

    assert [(part.index, part.start, part.end) for part in remaining(plan, done)] == [
        (1, 150, 200),
        (2, 200, 300),
    ]
    assert [part.size_bytes for part in remaining(plan, done)] == [50, 100]
    with pytest.raises(ValueError, match="range 1 is not complete"):
        chosen(plan, done)


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 19), st.integers(0, 19)), max_size=30))
def test_files_of_any_attempts_cover_each_offset_once(attempts: list[tuple[int, int, int]]) -> None:
    """Attempts end their files at different offsets; the rest is written after them."""
    plan = plan_of(10, 20)
    done = [
        exported(index, start, end, name=str(number))
        for number, (index, start, end) in enumerate(attempts)
        if 10 * index <= start < end <= 10 * index + 10
    ]

    rest = [exported(part.index, part.start, part.end, name="rest") for part in remaining(plan, done)]
    files = chosen(plan, [*done, *rest])

    bounds = [(done.start, done.end) for _, done in files]
    assert [start for start, _ in bounds] == [0, *(end for _, end in bounds[:-1])]
    assert bounds[-1][1] == 20


def test_the_increment_has_the_files_and_gaps_of_each_partition_in_order() -> None:
    plan = plan_of(100, 200, 300)
    later = replace(exported(2, 200, 300, records=0), gaps=(Gap(start=210, end=220),))
    files = chosen(plan, [later, exported(1, 100, 200), exported(0, 0, 60), exported(0, 60, 100)])

    content = increment_of(plan, files, finished="now")

    partition = content.partitions[ORDERS]
    assert [(file.start, file.end) for file in partition.files] == [(0, 60), (60, 100), (100, 200)]
    assert partition.files[0].path == f"{folder_of(ORDERS, TimeBounds())}/part-abc-0-0-60"
    assert partition.gaps == (Gap(start=210, end=220),)
    assert (partition.end, content.finished, content.records) == (300, "now", 3)


def test_results_with_missing_or_different_files_are_ignored(tmp_path: Path) -> None:
    folder, plan = StorageFolder(str(tmp_path)), plan_of(100, 200, 300)
    pending = PendingExport(folder, 1)
    assert pending.read() is None
    assert pending.store(plan) == plan
    assert pending.read() == plan
    results = [
        exported(0, 0, 100),
        exported(1, 100, 200),
        exported(2, 200, 300),
        exported(2, 200, 250, records=0),
    ]
    for number, result in enumerate(results):
        folder.write(f"{plan.results}/{number}.json", result.encode())
    folder.write(f"{plan.results}/cut.json", results[0].encode()[:-9])
    present = {
        str(results[0].path): 1,
        place_of(plan.ranges[1], results[1]): 1,
        str(results[2].path): 2,
    }

    exported_ranges = pending.exported(plan, present)

    assert sorted((done.index, done.end) for done in exported_ranges) == [(0, 100), (1, 200), (2, 250)]


def test_the_second_of_two_exports_continues_the_plan_of_the_first(tmp_path: Path) -> None:
    folder, first = StorageFolder(str(tmp_path)), plan_of(100)
    PendingExport(folder, 1).store(first)

    assert PendingExport(folder, 1).store(replace(plan_of(200), plan_id="other")) == first


def test_files_of_discarded_plans_are_deleted_and_archived_files_are_kept(
    tmp_path: Path,
) -> None:
    folder = StorageFolder(str(tmp_path))
    state = CommitLog(folder).append(None, increment(0, 10))
    [kept] = state.manifest.files
    plan = replace(plan_of(10), replaced=("topic=orders/partition=0/small",))
    PendingExport(folder, 1).store(plan)
    PendingExport(folder, 2).store(plan_of(20, number=2))
    lost = "topic=orders/partition=0/part-abc-0-0-x"
    for path in (kept.path, lost, "topic=orders/partition=0/small", "topic=orders/partition=0/part-other-0"):
        folder.write(path, b"1")
    folder.write("_temporary/abc/part-abc-0", b"1")

    discard_committed(folder, state)

    assert set(folder.data()) == {kept.path, "topic=orders/partition=0/part-other-0"}
    assert folder.entries("_pending") == {"00000002"}
    assert not folder.entries("_temporary")


def test_a_file_that_a_task_writes_after_the_plan_is_discarded_is_deleted_later(tmp_path: Path) -> None:
    """A frozen executor of an object store ends its upload after the commit, and then writes its result."""
    folder = StorageFolder(str(tmp_path))
    state = CommitLog(folder).append(None, increment(0, 10))
    plan = plan_of(10)
    PendingExport(folder, 1).store(plan)
    folder.write(state.manifest.files[0].path, b"123")
    discard_committed(folder, state)
    folder.write("topic=orders/partition=0/part-abc-0-0-late", b"1")
    folder.write(f"{plan.results}/00000-0-late.json", exported(0, 0, 10).encode())

    discard_committed(folder, state)

    assert set(folder.data()) == {state.manifest.files[0].path}
    assert not folder.entries("_pending")


def test_a_plan_whose_files_are_deleted_cannot_be_committed(tmp_path: Path) -> None:
    """A second export finds a plan that it cannot continue, while the first export is about to commit it."""
    folder = StorageFolder(str(tmp_path))
    log, plan = (
        CommitLog(folder),
        replace(plan_of(10, number=2), replaced=("topic=orders/partition=0/part-0",)),
    )
    before = log.append(None, increment(0, 10))
    PendingExport(folder, 2).store(plan)
    merged = "topic=orders/partition=0/part-abc-0-0-x"
    for path in (before.manifest.files[0].path, merged):
        folder.write(path, b"123")

    state = fence_plan(log, folder, before, plan)

    assert (state.number, state.manifest.files) == (2, before.manifest.files)
    assert set(folder.data()) == {before.manifest.files[0].path}
    with pytest.raises(ArchiveConflictError):
        log.replace(before, before.manifest)
    assert log.append(state, increment(10, 20)).manifest.partitions[TopicPartition("orders", 0)].end == 20


def test_the_first_plan_of_an_archive_can_be_fenced(tmp_path: Path) -> None:
    folder, plan = StorageFolder(str(tmp_path)), plan_of(10)
    PendingExport(folder, 1).store(plan)

    state = fence_plan(CommitLog(folder), folder, None, plan)

    assert (state.number, state.manifest.topics) == (1, ())
    assert CommitLog(folder).append(state, increment(0, 10)).manifest.records == 2


def test_an_export_does_not_continue_the_plan_of_a_merge(tmp_path: Path) -> None:
    folder = StorageFolder(str(tmp_path))
    PendingExport(folder, 1).store(replace(plan_of(10), ranges=(), replaced=("x",)))

    with pytest.raises(ArchiveConflictError, match="merging"):
        PendingExport(folder, 1).store(plan_of(10))
