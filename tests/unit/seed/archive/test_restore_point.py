"""Tests that an archive is cut before the first record of each partition that is later than a point in time."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.wire.records import Record
from mirrorflow_seed.archive.commit_log import CommitLog
from mirrorflow_seed.archive.manifest import (
    ArchivedFile,
    ArchivedGroup,
    ArchivedOffset,
    ArchivedPartition,
    ArchivedTopic,
    Manifest,
    TimeBounds,
)
from mirrorflow_seed.archive.parquet_files import FileWriter
from mirrorflow_seed.archive.record_tally import Tally, TallyBuilder
from mirrorflow_seed.archive.restore_point import cut_file, cut_manifest, cut_tasks, until_of
from mirrorflow_seed.errors import JobSettingError
from mirrorflow_seed.record_columns import CREATE_TIME, columns_of
from mirrorflow_seed.storage_folder import StorageFolder
from tests.unit.seed.archive.test_archive_manifest import increment, manifest

pytest.importorskip("pyarrow")


def archived(folder: StorageFolder, *file_times: list[int]) -> Manifest:
    """Writes an archive of one partition, with a file for each list of timestamps; offsets are even numbers."""
    files, offset = [], 0
    for number, times in enumerate(file_times):
        log = [Record(offset + 2 * index, time_ms, None, b"v") for index, time_ms in enumerate(times)]
        with folder.writing(f"topic=orders/{number}") as stream, FileWriter(stream) as writer:
            writer.add(columns_of(log, CREATE_TIME))
            writer.finish()
            size_bytes = stream.tell()
        files.append(
            ArchivedFile(
                path=f"topic=orders/{number}",
                size_bytes=size_bytes,
                start=offset,
                end=offset + 2 * len(log),
                codec=0,
                tally=tally_of(log),
                times=writer.times,
            )
        )
        offset += 2 * len(log)
    partition = ArchivedPartition(number=0, start=0, end=offset, files=tuple(files))
    topic = ArchivedTopic(name="orders", topic_id="", configs=(), partitions=(partition,))
    return replace(manifest(), topics=(topic,))


def tally_of(log: list[Record]) -> Tally:
    builder = TallyBuilder("abc", 0)
    builder.extend(log)
    return builder.tally


def cut(folder: StorageFolder, content: Manifest, until_ms: int) -> ArchivedPartition:
    cuts = [cut_file(task) for task in cut_tasks(content, until_ms, folder.address)]
    assert not any(part.is_damaged for part in cuts)
    [partition] = cut_manifest(content, cuts).partitions.values()
    return partition


# As of a producer that writes microseconds.
MICROSECONDS = 1_764_000_000_000_000


@given(
    file_times=st.lists(
        st.lists(st.integers(-1, 20) | st.just(MICROSECONDS), min_size=1, max_size=5), min_size=1, max_size=4
    ),
    until_ms=st.integers(0, 20),
)
def test_a_partition_ends_before_its_first_later_record_in_any_order_of_times(
    tmp_path_factory: pytest.TempPathFactory, file_times: list[list[int]], until_ms: int
) -> None:
    folder = StorageFolder(str(tmp_path_factory.mktemp("archive")))
    partition = cut(folder, archived(folder, *file_times), until_ms)

    times = [time_ms for times in file_times for time_ms in times]
    later = [index for index, time_ms in enumerate(times) if time_ms > until_ms]
    expected = later[0] if later else len(times)
    assert partition.end == 2 * expected
    assert partition.records == expected
    log = [Record(2 * index, time_ms, None, b"v") for index, time_ms in enumerate(times[:expected])]
    position = 0
    for file in partition.files:
        part = log[position : position + file.tally.records]
        assert file.tally == tally_of(part)
        position += len(part)
    assert position == expected


def test_a_damaged_file_is_not_cut(tmp_path: Path) -> None:
    folder = StorageFolder(str(tmp_path))
    content = archived(folder, [1, 2, 9])
    [task] = cut_tasks(content, 5, folder.address)
    different = replace(task, file=replace(task.file, tally=replace(task.file.tally, digest="00")))

    assert cut_file(different).is_damaged
    folder.write(task.file.path, b"x")
    assert cut_file(task).is_damaged


def test_files_without_later_records_are_not_read(tmp_path: Path) -> None:
    content = archived(StorageFolder(str(tmp_path)), [1], [3, 9], [5], [12])

    assert [task.file.path for task in cut_tasks(content, 8, "")] == ["topic=orders/1"]
    assert cut_tasks(content, 12, "") == []
    [partition] = content.partitions.values()
    without = replace(partition.files[0], times=TimeBounds())
    topic = replace(content.topics[0], partitions=(replace(partition, files=(without,)),))
    assert cut_tasks(replace(content, topics=(topic,)), 0, "") == []


def test_groups_are_those_of_the_last_increment_before_the_point_in_time(tmp_path: Path) -> None:
    log, state = CommitLog(StorageFolder(str(tmp_path))), None
    for number, read_ms in enumerate((100, None, 300)):
        group = ArchivedGroup(
            name="billing", offsets=(ArchivedOffset(topic="orders", partition=0, offset=number),)
        )
        content = replace(
            increment(number, number + 1), groups=(group,) if read_ms else (), groups_read_ms=read_ms
        )
        state = log.append(state, content)

    assert [
        None if (then := log.groups_at(time_ms)) is None else then.groups[0].offsets[0].offset
        for time_ms in (99, 100, 299, 300, 999)
    ] == [None, 0, 0, 2, 2]


@pytest.mark.parametrize(
    ("text", "until_ms"),
    [
        ("1970-01-01T00:00:01Z", 1_000),
        ("1970-01-01T01:00:00.250+01:00", 250),
        ("2026-11-22T13:00:00+00:00", 1_795_352_400_000),
    ],
)
def test_a_point_in_time_has_a_time_zone(text: str, until_ms: int) -> None:
    assert until_of({"archive.until": text}) == until_ms
    assert until_of({}) is None


@pytest.mark.parametrize("text", ["", "soon", "2026-11-22", "2026-11-22T13:00:00", "1795352400000"])
def test_an_invalid_point_in_time_is_refused(text: str) -> None:
    with pytest.raises(JobSettingError, match="RFC 3339"):
        until_of({"archive.until": text})
