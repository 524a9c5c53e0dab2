"""Tests that restored records are assigned to the files of the archive by count and compared by digest."""

from typing import Any

import pytest

from mirrorflow_core.wire.records import Record
from mirrorflow_seed.archive.manifest import ArchivedFile, ArchivedPartition, Manifest
from mirrorflow_seed.archive.record_tally import TallyBuilder
from mirrorflow_seed.archive.restore_comparison import (
    FileDigestChecker,
    RestoreComparison,
    compare_with_target,
)
from mirrorflow_seed.settings import FlowFiles
from tests.unit.core.wire.strategies import batch_of

pytest.importorskip("pyarrow")

RECORDS = [Record(0, 1_700_000_000_000 + n, b"k%d" % n, b"v%d" % n) for n in range(7)]


def verdicts(restored: list[Record], *, skip: int = 0) -> list[tuple[str, bool]]:
    """Compares an archive of three files (3, 3 and 1 records) with a target that has *restored* from offset 20."""
    files = []
    for name, part in (("a", RECORDS[:3]), ("b", RECORDS[3:6]), ("c", RECORDS[6:])):
        tallying = TallyBuilder("id", 2)
        tallying.extend(part)
        files.append(ArchivedFile(path=name, size_bytes=1, start=0, end=1, codec=0, tally=tallying.tally))
    archived = ArchivedPartition(number=2, start=0, end=100, files=tuple(files))
    checker = FileDigestChecker(archived, "id", start=20, skip=skip)
    offset, rest = 20, restored
    for size in (2, 4, 1, 9):
        if rest:
            checker.add(batch_of(rest[:size], base_offset=offset))
        rest, offset = rest[size:], offset + size
    checker.finish()
    assert checker.records == len(restored)
    return checker.verdicts


def test_a_target_with_all_records_is_equal_for_any_batching() -> None:
    assert verdicts(RECORDS) == [("a", True), ("b", True), ("c", True)]


def test_changed_or_reordered_record_makes_only_its_file_different() -> None:
    other = RECORDS[4]._replace(value=b"other")
    swapped = [RECORDS[1], RECORDS[0], *RECORDS[2:]]

    assert verdicts([*RECORDS[:4], other, *RECORDS[5:]]) == [("a", True), ("b", False), ("c", True)]
    assert verdicts(swapped) == [("a", False), ("b", True), ("c", True)]


def test_files_with_missing_records_are_different() -> None:
    assert verdicts(RECORDS[:5]) == [("a", True), ("b", False), ("c", False)]
    assert verdicts([]) == [("a", False), ("b", False), ("c", False)]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_records_older_than_the_archive_are_skipped(count: int) -> None:
    earlier = [Record(0, 5, None, b"e%d" % n) for n in range(count)]

    assert verdicts(earlier + RECORDS, skip=count) == [("a", True), ("b", True), ("c", True)]


@pytest.mark.parametrize(("count", "equal"), [(1, 2), (3, 2), (4, 1), (6, 1)])
def test_a_copy_without_the_first_records_equals_only_the_last_files(count: int, equal: int) -> None:
    files = verdicts(RECORDS[count:], skip=-count)

    assert files == [(name, name in "abc"[3 - equal :]) for name in "abc"]


def test_the_summary_has_equal_different_and_undecided_files() -> None:
    summary = RestoreComparison(equal=2, different=("x",), undecided=1).summary

    assert "2 of them" in summary
    assert "not x" in summary
    assert "mirrorflow verify" in summary


def test_the_comparison_reads_the_files_of_the_flow_only_in_tasks():
    """With Spark Connect, the files of the session do not exist on the machine of the driver."""
    shared = FlowFiles(worker="worker", source="source", is_shared=True)
    manifest = Manifest(
        archive_id="id",
        flow="f",
        source_alias="a",
        source_cluster_id="c",
        isolation="read_committed",
        started="",
        finished="",
        topics=(),
    )
    no_tasks: Any = None

    comparison = compare_with_target(no_tasks, manifest, {}, {}, shared, is_edited=False)

    assert comparison == RestoreComparison(equal=0, different=(), undecided=0)
