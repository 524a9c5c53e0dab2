"""Several archived files of one partition, read as one log whatever the order in which they came."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.wire.batch import split
from mirrorflow_core.wire.records import Record, decode
from mirrorflow_seed.archive.archive_log import ArchiveLog
from mirrorflow_seed.archive.manifest import ArchivedFile
from mirrorflow_seed.archive.tally import Tally
from mirrorflow_seed.errors import JobFailedError

NOTHING = Tally(records=0, bytes=0, sum="", chain="")


def file(start: int, end: int) -> ArchivedFile:
    return ArchivedFile(path=f"{start}", size_bytes=1, start=start, end=end, codec=0, tally=NOTHING)


def read_all(shelf: ArchiveLog, start: int, end: int) -> list[int]:
    """As a reader does: from where the last batch ended."""
    found: list[int] = []
    at = start
    while data := shelf.read(at, 1 << 20):
        for batch in split(data):
            found += [one.offset for one in decode(batch)]
            at = batch.next_offset
    assert at <= end
    return found


@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=5),
    st.sets(st.integers(0, 150)),
    st.permutations(range(5)),
)
def test_what_comes_file_by_file_is_read_by_offset(
    lengths: list[int], wanted: set[int], order: list[int]
) -> None:
    """Whatever order Spark has files in; offsets without records are passed over."""
    starts = [sum(lengths[:at]) for at in range(len(lengths))]
    files = [file(start, start + length) for start, length in zip(starts, lengths, strict=True)]
    end = sum(lengths)
    offsets = sorted(one for one in wanted if one < end)
    with ArchiveLog(files, start=0, end=end) as shelf:
        for at in order:
            for offset in offsets:
                if at < len(files) and files[at].start <= offset < files[at].end:
                    shelf.add(Record(offset, 1, None, b"v"))
        shelf.finish()

        assert read_all(shelf, 0, end) == offsets


@pytest.mark.parametrize("offsets", [(5, 4), (4, 4), (30,), (9,)])
def test_a_record_that_its_file_cannot_have_ends_it(offsets: tuple[int, ...]) -> None:
    """Out of order, twice, or not in the file's range: nothing of that is compared."""
    *before, last = (Record(offset, 1, None, None) for offset in offsets)
    with ArchiveLog([file(0, 9), file(10, 20)], start=0, end=20) as shelf:
        for one in before:
            shelf.add(one)
        with pytest.raises(JobFailedError):
            shelf.add(last)
