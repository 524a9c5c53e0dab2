"""Tests which small files of an archive are merged, and that the merged file has their records."""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire.records import Record
from mirrorflow_seed.archive.compaction import (
    FILES_MIN,
    CompactionRun,
    CompactionTarget,
    compact_run,
    compacted,
    compaction_runs,
    runs_of_files,
)
from mirrorflow_seed.archive.manifest import ArchivedFile, ArchivedPartition, ArchivedTopic, differences
from mirrorflow_seed.archive.parquet_files import FileWriter, read_records
from mirrorflow_seed.archive.record_tally import Tally, TallyBuilder
from mirrorflow_seed.errors import ArchiveDamagedError
from mirrorflow_seed.record_columns import columns_of
from mirrorflow_seed.storage_folder import StorageFolder
from tests.unit.seed.archive.test_archive_manifest import manifest

pytest.importorskip("pyarrow")

FILE_BYTES = 128
ORDERS = TopicPartition("orders", 0)


def files_of(*sizes: int) -> list[ArchivedFile]:
    return [
        ArchivedFile(
            path=f"topic=orders/partition=0/{number}",
            size_bytes=size,
            start=number,
            end=number + 1,
            codec=0,
            tally=Tally(records=1, bytes=size, digest=""),
        )
        for number, size in enumerate(sizes)
    ]


def merged_sizes(*sizes: int) -> list[list[int]]:
    return [[file.size_bytes for file in run] for run in runs_of_files(files_of(*sizes), FILE_BYTES)]


@pytest.mark.parametrize(
    ("sizes", "runs"),
    [
        ([], []),
        ([5], []),
        ([500, 128, 130], []),
        ([100, 100], [[100, 100]]),
        ([1] * (FILES_MIN - 1), []),
        ([1] * FILES_MIN, [[1] * FILES_MIN]),
        ([500, 60, 70, 500], [[60, 70]]),
        ([500, 60, 500, 70], []),
        # The larger file is left until the others are as large together.
        ([72, *[1] * FILES_MIN], [[1] * FILES_MIN]),
        ([72, 8, *[1] * FILES_MIN], [[8, *[1] * FILES_MIN]]),
    ],
)
def test_files_are_merged_if_they_fill_a_file_or_double_the_largest_one(
    sizes: list[int], runs: list[list[int]]
) -> None:
    assert merged_sizes(*sizes) == runs


@given(st.integers(1, 40), st.integers(1, 300))
def test_few_small_files_remain_and_records_are_rewritten_a_few_times(size: int, increments: int) -> None:
    sizes: list[int] = []
    written = 0
    for _ in range(increments):
        sizes.append(size)
        content = replace(
            manifest(),
            topics=(
                ArchivedTopic(
                    name="orders",
                    topic_id="",
                    configs=(),
                    partitions=(
                        ArchivedPartition(number=0, start=0, end=len(sizes), files=tuple(files_of(*sizes))),
                    ),
                ),
            ),
        )
        runs = compaction_runs(content, file_bytes=FILE_BYTES)
        merged = {
            run: replace(run.files[0], size_bytes=sum(file.size_bytes for file in run.files)) for run in runs
        }
        written += sum(file.size_bytes for file in merged.values())
        sizes = [file.size_bytes for file in compacted(content, merged).files]

    assert sum(sizes) == size * increments
    assert max(sizes) < 2 * FILE_BYTES
    assert sum(number < FILE_BYTES for number in sizes) <= 3 * FILES_MIN
    assert written <= 6 * size * increments


def test_a_merged_file_has_the_records_of_its_files(tmp_path: Path) -> None:
    folder = StorageFolder(str(tmp_path))
    run = written_run(folder, 3)

    done = compact_run(run, target=CompactionTarget(address=str(tmp_path), archive_id="id", plan_id="p"))

    assert done.written.startswith("_temporary/p/part-p-00000-0-")
    folder.move(done.written, done.file.path)
    with folder.reading(done.file.path) as source:
        records = list(itertools.chain.from_iterable(read_records(source)))
    assert [record.offset for record in records] == list(range(30))
    assert (done.file.start, done.file.end) == (0, 30)
    whole = TallyBuilder("id", 0)
    whole.extend(records)
    assert done.file.tally == whole.tally
    content = content_of(run)
    after = compacted(content, {run: done.file})
    assert after.records == content.records == 30
    assert list(differences(after, folder.data())) == []


def test_a_damaged_file_is_not_merged(tmp_path: Path) -> None:
    folder = StorageFolder(str(tmp_path))
    run = written_run(folder, 3)
    target = CompactionTarget(address=str(tmp_path), archive_id="id", plan_id="p")
    other = replace(run.files[1], tally=run.files[2].tally)
    with pytest.raises(ArchiveDamagedError, match=r"records of .*/1 differ"):
        compact_run(replace(run, files=(run.files[0], other, run.files[2])), target=target)
    (tmp_path / run.files[2].path).write_bytes(b"no Parquet")
    with pytest.raises(ArchiveDamagedError, match="/2 cannot be read; restore an intact copy"):
        compact_run(run, target=target)
    assert not list((tmp_path / "_temporary").rglob("*.parquet*"))


def written_run(folder: StorageFolder, count: int) -> CompactionRun:
    """Writes files of ten records each, and returns them."""
    files = []
    for number in range(count):
        records = [
            Record(
                10 * number + index, 1_700_000_000_000, b"k", b"%d" % (10 * number + index), ((b"h", None),)
            )
            for index in range(10)
        ]
        tally = TallyBuilder("id", 0)
        tally.extend(records)
        path = f"topic=orders/partition=0/{number}"
        with folder.writing(path) as stream, FileWriter(stream) as writer:
            writer.add(columns_of(records, 0))
            writer.finish()
            size_bytes = stream.tell()
        files.append(
            ArchivedFile(
                path=path,
                size_bytes=size_bytes,
                start=10 * number,
                end=10 * number + 10,
                codec=4,
                tally=tally.tally,
            )
        )
    return CompactionRun(index=0, partition=ORDERS, files=tuple(files))


def content_of(run: CompactionRun):
    partition = ArchivedPartition(number=0, start=0, end=run.files[-1].end, files=run.files)
    return replace(
        manifest(),
        topics=(ArchivedTopic(name="orders", topic_id="", configs=(), partitions=(partition,)),),
    )
