"""Tests that several archived files of a partition are read as one log, in any order that Spark yields."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.wire.batch import split
from mirrorflow_core.wire.records import Record, decode
from mirrorflow_seed.archive.archive_source import ArchiveLog
from mirrorflow_seed.archive.manifest import ArchivedFile
from mirrorflow_seed.archive.record_tally import Tally
from mirrorflow_seed.errors import JobFailedError
from mirrorflow_seed.record_columns import CREATE_TIME, columns_of

pytest.importorskip("pyarrow")

NOTHING = Tally(records=0, bytes=0, digest="")


def file(start: int, end: int) -> ArchivedFile:
    return ArchivedFile(path=f"{start}", size_bytes=1, start=start, end=end, codec=0, tally=NOTHING)


def read_all(log: ArchiveLog, start: int, end: int) -> list[int]:
    """Reads like a fetcher: each read begins at the end of the last batch."""
    offsets: list[int] = []
    offset = start
    while data := log.read(offset, 1 << 20):
        for batch in split(data):
            offsets += [record.offset for record in decode(batch)]
            offset = batch.next_offset
    assert offset <= end
    return offsets


@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=5),
    st.sets(st.integers(0, 150)),
    st.permutations(range(5)),
)
def test_records_of_files_in_any_order_are_read_by_offset(
    lengths: list[int], wanted: set[int], order: list[int]
) -> None:
    """Offsets without records are skipped."""
    starts = [sum(lengths[:index]) for index in range(len(lengths))]
    files = [file(start, start + length) for start, length in zip(starts, lengths, strict=True)]
    end = sum(lengths)
    offsets = sorted(offset for offset in wanted if offset < end)
    with ArchiveLog(files, start=0, end=end) as log:
        for index in order:
            for offset in offsets:
                if index < len(files) and files[index].start <= offset < files[index].end:
                    log.add(columns_of([Record(offset, 1, None, b"v")], CREATE_TIME))
        log.finish()

        assert read_all(log, 0, end) == offsets


@pytest.mark.parametrize("offsets", [(5, 4), (4, 4), (30,), (9,)])
def test_record_outside_its_file_fails_the_task(offsets: tuple[int, ...]) -> None:
    """The last record is out of order, repeated, or outside the range of every file."""
    *before, last = (columns_of([Record(offset, 1, None, None)], CREATE_TIME) for offset in offsets)
    with ArchiveLog([file(0, 9), file(10, 20)], start=0, end=20) as log:
        for columns in before:
            log.add(columns)
        with pytest.raises(JobFailedError):
            log.add(last)


def test_records_out_of_order_fail_the_task() -> None:
    columns = columns_of([Record(offset, 1, None, None) for offset in (3, 5, 4, 6)], CREATE_TIME)
    with ArchiveLog([file(0, 9)], start=0, end=9) as log, pytest.raises(JobFailedError):
        log.add(columns)
