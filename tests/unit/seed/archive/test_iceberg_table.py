"""Tests the Iceberg table of an archive with PyIceberg: each record is there once after kills and merges, and nothing is copied."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire.records import Record
from mirrorflow_seed.archive.commit_log import ArchiveState, CommitLog
from mirrorflow_seed.archive.compaction import CompactionTarget, compact_run, compacted, compaction_runs
from mirrorflow_seed.archive.iceberg_table import COMMIT_PROPERTY, IcebergTable
from mirrorflow_seed.archive.manifest import (
    ArchivedFile,
    ArchivedPartition,
    ArchivedTopic,
    Manifest,
    TimeBounds,
    folder_of,
)
from mirrorflow_seed.archive.parquet_files import FileWriter
from mirrorflow_seed.archive.record_tally import TallyBuilder
from mirrorflow_seed.errors import IcebergTableError, JobSettingError
from mirrorflow_seed.record_columns import CREATE_TIME, columns_of
from mirrorflow_seed.storage_folder import StorageFolder
from tests.unit.seed.archive.test_archive_manifest import manifest

pytest.importorskip("pyarrow")
pytest.importorskip("pyiceberg")

NAME = "lake.archives.orders"
START = datetime(2026, 11, 1, tzinfo=UTC)
FILE_RECORDS = 10
HEADERS = ((b"trace", b"\xff"), (b"trace", None))


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Any]:
    """A catalog in a file, as several processes share it."""
    from pyiceberg.catalog.sql import SqlCatalog

    (tmp_path / "lake").mkdir()
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/lake.db", warehouse=f"file://{tmp_path}/lake")
    catalog.create_namespace("archives")
    yield catalog
    catalog.engine.dispose()


@pytest.fixture
def folder(tmp_path: Path) -> StorageFolder:
    return StorageFolder(str(tmp_path / "my archive"))


@pytest.fixture
def follower(catalog: Any, folder: StorageFolder) -> Callable[[], IcebergTable]:
    """Returns the table as another export would open it."""
    return lambda: IcebergTable(NAME, folder, load_catalog=lambda _: catalog)


class Archive:
    """An archive of two partitions of `orders`, and what it has."""

    def __init__(self, folder: StorageFolder) -> None:
        self.folder = folder
        self.log = CommitLog(folder)
        self.state: ArchiveState | None = None

    def add(self, *partitions: int) -> ArchiveState:
        """Commits one more file to each of *partitions*, an hour later than the one before it."""
        contents = [self._partition(number) for number in partitions]
        increment = self._content(contents)
        self.state = self.log.append(self.state, increment)
        return self.state

    def merge(self) -> ArchiveState:
        """Merges all files of each partition, and deletes them, as an export does after `IcebergTable.follow`."""
        assert self.state is not None
        runs = compaction_runs(self.state.manifest, file_bytes=1 << 30)
        target = CompactionTarget(address=self.folder.address, archive_id="abc", plan_id="p")
        merged = {}
        for run in runs:
            done = compact_run(run, target=target)
            self.folder.move(done.written, done.file.path)
            merged[run] = done.file
        self.state = self.log.replace(self.state, compacted(self.state.manifest, merged))
        return self.state

    def delete_merged(self) -> None:
        assert self.state is not None
        for path in self.folder.data().keys() - {file.path for file in self.state.manifest.files}:
            self.folder.delete(path)

    @property
    def rows(self) -> list[tuple[str, int, int]]:
        """Topic, partition and offset of each record, sorted."""
        assert self.state is not None
        return sorted(
            (key.topic, key.partition, offset)
            for key, partition in self.state.manifest.partitions.items()
            for offset in range(partition.start, partition.end)
        )

    def _partition(self, number: int) -> ArchivedPartition:
        known = self.state.manifest.partitions if self.state else {}
        key = TopicPartition("orders", number)
        start = known[key].end if key in known else 0
        time_ms = round((START + timedelta(hours=start / FILE_RECORDS)).timestamp() * 1000)
        written = [
            Record(start + step, time_ms + step, b"k", None if step else b"\xff", HEADERS if step else ())
            for step in range(FILE_RECORDS)
        ]
        times = TimeBounds(first_ms=time_ms, last_ms=time_ms + FILE_RECORDS - 1)
        path = f"{folder_of(key, times)}/part-{number}-{start}.zstd.parquet"
        tally = TallyBuilder("abc", number)
        tally.extend(written)
        with self.folder.writing(path) as stream, FileWriter(stream) as writer:
            writer.add(columns_of(written, CREATE_TIME))
            writer.finish()
            size_bytes = stream.tell()
        file = ArchivedFile(
            path=path, size_bytes=size_bytes, start=start, end=start + FILE_RECORDS, codec=0, tally=tally.tally, times=times
        )  # fmt: skip
        return ArchivedPartition(number=number, start=start, end=file.end, files=(file,))

    def _content(self, partitions: Sequence[ArchivedPartition]) -> Manifest:
        topic = ArchivedTopic(name="orders", topic_id="", configs=(), partitions=tuple(partitions))
        return replace(manifest(), topics=(topic,))


def rows_of(catalog: Any, **scan: Any) -> list[tuple[str, int, int]]:
    """Returns topic, partition and offset of each record that a query of the table finds, sorted."""
    rows = catalog.load_table("archives.orders").scan(**scan).to_arrow()
    return sorted((row["topic"], row["partition"], row["offset"]) for row in rows.to_pylist())


def test_each_commit_of_the_archive_is_one_snapshot_and_each_record_is_in_the_table_once(
    catalog: Any, folder: StorageFolder, follower: Callable[[], IcebergTable], tmp_path: Path
) -> None:
    archive = Archive(folder)
    for partitions in ((0, 1), (1,), (0, 1)):
        follower().follow(archive.add(*partitions))
        assert rows_of(catalog) == archive.rows

    table = catalog.load_table("archives.orders")
    assert [snapshot.summary[COMMIT_PROPERTY] for snapshot in table.snapshots()] == ["1", "2", "3"]
    assert not list((tmp_path / "lake").rglob("*.parquet"))
    row = table.scan(row_filter="partition = 1 AND offset = 11").to_arrow().to_pylist()[0]
    assert (row["key"], row["value"], row["timestamp_ms"]) == (
        b"k",
        None,
        row["timestamp"].timestamp() * 1000,
    )
    assert row["headers"] == [{"key": "trace", "value": b"\xff"}, {"key": "trace", "value": None}]


def test_a_commit_that_the_table_has_is_not_added_again(
    catalog: Any, folder: StorageFolder, follower: Callable[[], IcebergTable]
) -> None:
    archive = Archive(folder)
    first, second = archive.add(0), archive.add(0)
    follower().follow(second)

    for state in (second, first):  # an export that is late has an earlier state
        follower().follow(state)

    assert len(catalog.load_table("archives.orders").snapshots()) == 1
    assert rows_of(catalog) == archive.rows


def test_the_next_export_adds_the_files_that_a_killed_one_has_not_added(
    catalog: Any, folder: StorageFolder, follower: Callable[[], IcebergTable]
) -> None:
    archive = Archive(folder)
    follower().follow(archive.add(0))
    archive.add(0, 1)  # killed before the table
    archive.add(1)
    state = archive.merge()  # killed again, before the small files were deleted

    follower().follow(state)

    assert rows_of(catalog) == archive.rows


def test_merged_files_replace_those_that_were_merged(
    catalog: Any, folder: StorageFolder, follower: Callable[[], IcebergTable]
) -> None:
    archive = Archive(folder)
    for _ in range(8):
        follower().follow(archive.add(0, 1))

    follower().follow(archive.merge())
    archive.delete_merged()

    assert len(list(catalog.load_table("archives.orders").scan().plan_files())) == 2
    assert rows_of(catalog) == archive.rows
    follower().follow(archive.add(1))
    assert rows_of(catalog) == archive.rows


def test_a_query_for_a_time_an_offset_or_a_partition_opens_only_files_that_have_it(
    catalog: Any, folder: StorageFolder, follower: Callable[[], IcebergTable]
) -> None:
    """No file was opened for these bounds: they are those of the archive's commits."""
    archive = Archive(folder)
    for _ in range(24):
        archive.add(0, 1)
    assert archive.state is not None
    follower().follow(archive.state)

    hour = f"timestamp >= '{(START + timedelta(hours=7)).isoformat()}' AND timestamp < '{(START + timedelta(hours=8)).isoformat()}'"
    for condition, files, rows in (
        (hour, 2, 20),
        ("offset = 71", 2, 2),
        (f"partition = 0 AND {hour}", 1, 10),
    ):
        scan = catalog.load_table("archives.orders").scan(row_filter=condition)
        assert len(list(scan.plan_files())) == files, condition
        assert len(rows_of(catalog, row_filter=condition)) == rows, condition


def test_a_table_that_a_different_program_has_changed_is_refused(
    catalog: Any, folder: StorageFolder, follower: Callable[[], IcebergTable]
) -> None:
    """Otherwise records of files that it has rewritten would be there twice."""
    archive = Archive(folder)
    follower().follow(archive.add(0))
    catalog.load_table("archives.orders").delete("offset >= 0")

    with pytest.raises(IcebergTableError, match=r"orders: a different program has changed its files; drop"):
        follower().follow(archive.add(0))


def test_a_table_of_a_different_archive_is_refused(
    folder: StorageFolder, follower: Callable[[], IcebergTable]
) -> None:
    archive = Archive(folder)
    state = archive.add(0)
    follower().follow(state)
    other = replace(state, manifest=replace(state.manifest, archive_id="other"), commit_id="other")

    follower().check("abc")
    with pytest.raises(IcebergTableError, match="is not of this archive; name a table that does not exist"):
        follower().follow(other)
    for archive_id in ("other", None):
        with pytest.raises(IcebergTableError, match="is not of this archive"):
            follower().check(archive_id)


def test_a_namespace_that_does_not_exist_is_refused_before_the_export(
    catalog: Any, folder: StorageFolder, follower: Callable[[], IcebergTable]
) -> None:
    follower().check(None)

    with pytest.raises(
        IcebergTableError, match=r"lake\.gone\.orders: the catalog has no namespace gone; create"
    ):
        IcebergTable("lake.gone.orders", folder, load_catalog=lambda _: catalog).check(None)


def test_an_error_of_the_catalog_is_one_sentence_without_its_text(folder: StorageFolder) -> None:
    """The text may have a secret of PyIceberg's configuration."""

    def refuse(_: str) -> Any:
        raise ValueError("Invalid header value b'Bearer TOKENSECRET\\n'")

    table = IcebergTable(NAME, folder, load_catalog=refuse)

    with pytest.raises(
        IcebergTableError,
        match=r"^lake\.archives\.orders: PyIceberg cannot look for the table \(ValueError\); .*\.$",
    ) as raised:
        table.check(None)
    assert "TOKENSECRET" not in str(raised.value)
    for name in ("orders", "lake.orders"):
        with pytest.raises(JobSettingError, match=r"write catalog\.namespace\.table"):
            IcebergTable(name, folder)
