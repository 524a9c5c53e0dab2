"""Tests where a task of an export writes a file: its place has the times of its records, which are known at its end."""

import json
from pathlib import Path

import pytest

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire.records import Record
from mirrorflow_seed.archive.export_plan import ExportRange
from mirrorflow_seed.archive.export_task import ExportedFile, ExportTarget, write_file
from mirrorflow_seed.archive.manifest import TimeBounds, folder_of
from mirrorflow_seed.archive.parquet_files import read_records
from mirrorflow_seed.archive.record_tally import Tally
from mirrorflow_seed.record_columns import CREATE_TIME, columns_of
from mirrorflow_seed.storage_folder import StorageFolder

pytest.importorskip("pyarrow")

HOUR_MS = 3_600_000
LOG = [Record(offset, (500_000 + offset) * HOUR_MS, b"k", b"v") for offset in range(4)]
PLACE = folder_of(
    TopicPartition("orders", 0), TimeBounds(first_ms=LOG[0].timestamp, last_ms=LOG[-1].timestamp)
)


class Reader:
    """A reader whose range has been read to its end."""

    start = 0

    def cut(self) -> ExportedFile:
        return ExportedFile(
            index=0,
            start=0,
            end=4,
            tally=Tally(records=4, bytes=8, digest=""),
            codec=0,
            gaps=(),
            bytes_read=1,
            seconds=0.1,
        )


@pytest.mark.parametrize("renames", [True, False], ids=["disk", "object store"])
def test_a_file_is_written_once_directly_to_its_path_if_the_store_cannot_rename(
    tmp_path: Path, *, renames: bool
) -> None:
    folder = StorageFolder(str(tmp_path))
    folder.renames = renames
    if not renames:
        (tmp_path / PLACE).mkdir(parents=True)  # object stores have no folders
    part = ExportRange(index=0, topic="orders", partition=0, start=0, end=4, size_bytes=1)
    target = ExportTarget(
        address=str(tmp_path), archive_id="a", plan_id="abc", results="r", file_bytes_max=1 << 20
    )
    batches = iter([columns_of(LOG[:2], CREATE_TIME), columns_of(LOG[2:], CREATE_TIME)])

    exported = write_file(Reader(), batches, part, folder, target, "t")

    name = "part-abc-00000-0-t.zstd.parquet"
    assert exported.path == (f"_temporary/abc/{name}" if renames else f"{PLACE}/{name}")
    assert exported.times == TimeBounds(first_ms=LOG[0].timestamp, last_ms=LOG[-1].timestamp)
    assert folder.files("") == {exported.path: exported.size_bytes}
    with folder.reading(exported.path) as source:
        assert [record for records in read_records(source) for record in records] == LOG


def test_a_range_without_records_has_no_file(tmp_path: Path) -> None:
    folder = StorageFolder(str(tmp_path))
    part = ExportRange(index=0, topic="orders", partition=0, start=0, end=4, size_bytes=1)
    target = ExportTarget(address="", archive_id="a", plan_id="abc", results="r", file_bytes_max=1)

    assert write_file(Reader(), iter(()), part, folder, target, "t").path is None
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("path", ["", None], ids=["of an earlier release", "of this one"])
def test_a_stored_result_without_records_has_no_path(path: str | None) -> None:
    stored = json.dumps({**json.loads(Reader().cut().encode()), "path": path})

    assert ExportedFile.decode(stored.encode()) == Reader().cut()
