"""Queries of an archive as a table.

For one hour of 30 days, engines open few files. The documented examples run.
"""

import ctypes
import datetime as dt
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire.records import Record
from mirrorflow_seed.archive.manifest import folder_of
from mirrorflow_seed.archive.parquet_files import FileWriter
from mirrorflow_seed.record_columns import CREATE_TIME, columns_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark")

ROOT = Path(__file__).parents[3]
DOCUMENTED_FOLDER = "/backup/orders"
HOURS = 30 * 24
PARTITIONS = 1
START = dt.datetime(2026, 11, 1, tzinfo=dt.UTC)
MINUTES = (2, 35, 55)  # the minutes of each hour that have a record
VALUES = (b"text", b"\xff\xfe", "é".encode())
# The files are an hour of 30 days, the hours before and after it, and the file from which an engine reads the columns.
OPENED_MAX = 0.02


@pytest.fixture(scope="module")
def archived(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive of 30 days with a file for each hour and partition, as a small `archive.file.bytes` creates it.

    Each file also has the first record of the next hour, because files do not end exactly at an hour.
    """
    folder = tmp_path_factory.mktemp("archive")
    times = [
        START + dt.timedelta(hours=hour, minutes=minute) for hour in range(HOURS + 1) for minute in MINUTES
    ]
    for number in range(PARTITIONS):
        for first in range(1, 3 * HOURS, 3):
            records = [
                Record(offset, int(times[offset].timestamp() * 1_000), None, VALUES[offset % 3])
                for offset in range(first, first + 3)
            ]
            write_archived(folder, TopicPartition("007", number), records)
    (folder / "_commits").mkdir()
    (folder / "_commits" / "00000001.json").write_text("{}")
    return folder


def write_archived(folder: Path, partition: TopicPartition, records: list[Record]) -> None:
    written = folder / f"{records[0].offset}.new"
    with written.open("wb") as stream, FileWriter(stream) as writer:
        writer.add(columns_of(records, CREATE_TIME))
        writer.finish()
    place = folder / folder_of(partition, writer.times)
    place.mkdir(parents=True, exist_ok=True)
    written.rename(place / f"part-{records[0].offset}.zstd.parquet")


class OpenedFiles:
    """Counts the Parquet files below a folder that any process on this machine opens, with inotify(7)."""

    OPEN = 0x20

    def __init__(self, folder: Path) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self._folders: dict[int, Path] = {}
        for path in {file.parent for file in folder.rglob("*.parquet")}:
            watch = self._libc.inotify_add_watch(self._descriptor, str(path).encode(), self.OPEN)
            assert watch >= 0, os.strerror(ctypes.get_errno())
            self._folders[watch] = path

    def take(self) -> set[Path]:
        """Returns the files that were opened since the last call."""
        opened: set[Path] = set()
        while True:
            try:
                events = os.read(self._descriptor, 1 << 20)
            except BlockingIOError:
                return opened
            position = 0
            while position < len(events):
                watch = int.from_bytes(events[position : position + 4], "little", signed=True)
                length = int.from_bytes(events[position + 12 : position + 16], "little")
                name = events[position + 16 : position + 16 + length].rstrip(b"\0").decode()
                if name.endswith(".parquet"):
                    opened.add(self._folders[watch] / name)
                position += 16 + length

    def close(self) -> None:
        os.close(self._descriptor)


@contextmanager
def opened_files(folder: Path) -> Iterator[OpenedFiles]:
    counter = OpenedFiles(folder)
    try:
        yield counter
    finally:
        counter.close()


def documented(language: str, folder: Path) -> str:
    """Returns the example of docs/archive.md after `With <language>`, for *folder*."""
    page = (ROOT / "docs" / "archive.md").read_text()
    match = re.search(rf"(?m)^With {language}.*\n\n((?:(?:    .*)?\n)+)", page)
    assert match
    lines = [line.removeprefix("    ") for line in match.group(1).splitlines()]
    return "\n".join(lines).replace(DOCUMENTED_FOLDER, str(folder))


def hour_by_spark(spark: "SparkSession", folder: Path) -> list[tuple[Any, ...]]:
    names: dict[str, Any] = {"spark": spark}
    exec(documented("Spark", folder), names)
    return [tuple(row) for row in names["hour"].collect()]


def hour_by_pyarrow(_: "SparkSession", folder: Path) -> list[tuple[Any, ...]]:
    names: dict[str, Any] = {}
    exec(documented("pyarrow", folder), names)
    return [
        (row["topic"], row["timestamp"].replace(tzinfo=None), row["text"])
        for row in names["hour"].to_pylist()
    ]


def hour_by_duckdb(_: "SparkSession", folder: Path) -> list[tuple[Any, ...]]:
    import duckdb

    rows = duckdb.sql(documented("DuckDB", folder)).to_arrow_table().to_pylist()
    return [
        (row["topic"], row["timestamp"].astimezone(dt.UTC).replace(tzinfo=None), row["text"]) for row in rows
    ]


@pytest.mark.parametrize("query", [hour_by_spark, hour_by_pyarrow, hour_by_duckdb])
def test_a_query_for_one_hour_of_30_days_opens_few_files_and_finds_each_record(
    archived: Path, spark: "SparkSession", query: Callable[..., list[tuple[Any, ...]]]
) -> None:
    """The query is the documented one. Values that are not text are null, and do not fail the query."""
    files = list(archived.rglob("*.parquet"))
    with opened_files(archived) as counter:
        rows = query(spark, archived)
        opened = counter.take()
    print(f"{query.__name__} has opened {len(opened)} of {len(files)} files")

    hour = dt.datetime(2026, 11, 22, 13)  # noqa: DTZ001 as Spark shows it in UTC
    expected = [
        ("007", hour + dt.timedelta(minutes=minute), text)
        for minute, text in zip(MINUTES, ("text", None, "é"), strict=True)
    ]
    assert sorted(rows, key=lambda row: row[1]) == sorted(expected * PARTITIONS, key=lambda row: row[1])
    assert 0 < len(opened) <= OPENED_MAX * len(files)
    assert len(files) == HOURS * PARTITIONS


def test_a_query_without_hours_finds_all_records(archived: Path, spark: "SparkSession") -> None:
    table = spark.read.parquet(archived.as_uri())

    assert table.count() == HOURS * PARTITIONS * len(MINUTES)
