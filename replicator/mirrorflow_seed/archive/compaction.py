"""Merges small files of an archive: many small increments become files of the configured size.

    choose runs of small files (pure) ──> a Spark task writes one file for each run ──> one commit replaces them

A record is rewritten a few times at most: a run is merged when it fills a file, or when its largest file is at most half
of it. A task compares the files with their digests, so damage is not copied into a new file.
"""

import functools
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from mirrorflow_core.errors import CorruptRecordsError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_replicator import process
from mirrorflow_seed.archive.export_task import file_name
from mirrorflow_seed.archive.manifest import ArchivedFile, Manifest, TimeBounds, folder_of
from mirrorflow_seed.archive.parquet_files import FileWriter, read_batches
from mirrorflow_seed.archive.record_tally import TallyBuilder
from mirrorflow_seed.errors import ArchiveDamagedError
from mirrorflow_seed.storage_folder import TEMPORARY_FOLDER, StorageFolder

# So many small files are merged, though they do not fill one: a partition has few small files at any time.
FILES_MIN: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionRun:
    """Consecutive files of one partition that become one."""

    index: int
    partition: TopicPartition
    files: tuple[ArchivedFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionTarget:
    """The input that all tasks of a compaction share."""

    address: str  # of the folder
    archive_id: str
    plan_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactedFile:
    """The result of a run: `written` is where the task has written the file that has its place in `file`."""

    index: int
    file: ArchivedFile
    written: str
    seconds: float


def compaction_runs(archived: Manifest, *, file_bytes: int) -> list[CompactionRun]:
    """Returns the files of *archived* to merge; files of *file_bytes* or more are left alone."""
    runs: list[CompactionRun] = []
    for key, partition in archived.partitions.items():
        runs += [
            CompactionRun(index=len(runs) + number, partition=key, files=files)
            for number, files in enumerate(runs_of_files(partition.files, file_bytes))
        ]
    return runs


def runs_of_files(files: Sequence[ArchivedFile], file_bytes: int) -> list[tuple[ArchivedFile, ...]]:
    """Returns the runs of one partition's files to merge, in offset order."""
    runs: list[tuple[ArchivedFile, ...]] = []
    small: list[ArchivedFile] = []
    for file in files:
        if file.size_bytes >= file_bytes:
            runs += _tail_run(small)
            small = []
            continue
        small.append(file)
        if sum(member.size_bytes for member in small) >= file_bytes:
            runs.append(tuple(small))
            small = []
    return runs + _tail_run(small)


def _tail_run(small: Sequence[ArchivedFile]) -> list[tuple[ArchivedFile, ...]]:
    """Returns the longest end of *small*, which do not fill a file, that is worth a merge; none if there is no such."""
    for start in range(len(small) - FILES_MIN + 1):
        sizes = [file.size_bytes for file in small[start:]]
        if 2 * max(sizes) <= sum(sizes):
            return [tuple(small[start:])]
    return []


def compacted(archived: Manifest, merged: Mapping[CompactionRun, ArchivedFile]) -> Manifest:
    """Returns *archived* with each run replaced by one file."""
    replaced = {run.files[0].path: file for run, file in merged.items()}
    dropped = {file.path for run in merged for file in run.files[1:]}
    topics = tuple(
        replace(
            topic,
            partitions=tuple(
                replace(
                    partition,
                    files=tuple(
                        replaced.get(file.path, file) for file in partition.files if file.path not in dropped
                    ),
                )
                for partition in topic.partitions
            ),
        )
        for topic in archived.topics
    )
    return replace(archived, topics=topics)


def compact_run(run: CompactionRun, *, target: CompactionTarget) -> CompactedFile:
    """Writes the file of a run, in a Spark task. Raises ArchiveDamagedError, FileSystemError."""
    process.tune_memory()
    began_s = time.monotonic()
    folder = StorageFolder(target.address)
    first, last = run.files[0], run.files[-1]
    name = file_name(target.plan_id, run.index, first.start, secrets.token_hex(4))
    times = functools.reduce(TimeBounds.joined, (file.times for file in run.files))
    place = f"{folder_of(run.partition, times)}/{name}"
    written = f"{TEMPORARY_FOLDER}/{target.plan_id}/{name}" if folder.renames else place
    whole = TallyBuilder(target.archive_id, run.partition.partition)
    with folder.writing(written) as stream, FileWriter(stream) as writer:
        for file in run.files:
            for batch in _checked(folder, file, run.partition, target.archive_id, whole):
                writer.add(batch)
        writer.finish()
        size_bytes = stream.tell()
    return CompactedFile(
        index=run.index,
        file=ArchivedFile(
            path=place,
            size_bytes=size_bytes,
            start=first.start,
            end=last.end,
            codec=first.codec,
            tally=whole.tally,
            times=times,
        ),
        written=written,
        seconds=time.monotonic() - began_s,
    )


def _checked(
    folder: StorageFolder,
    file: ArchivedFile,
    partition: TopicPartition,
    archive_id: str,
    whole: TallyBuilder,
) -> Iterator[Any]:
    """Yields the Arrow record batches of *file*, and adds their records to *whole*.

    Raises ArchiveDamagedError, at the end at the latest, if they are not those that were archived.
    """
    own = TallyBuilder(archive_id, partition.partition)
    problem = ""
    try:
        with folder.reading(file.path) as source:
            for batch in read_batches(source):
                own.add_columns(batch)
                whole.add_columns(batch)
                yield batch
    except CorruptRecordsError:
        problem = f"{file.path} cannot be read"
    if not problem and own.tally != file.tally:
        problem = f"the records of {file.path} differ from its commit"
    if problem:
        raise ArchiveDamagedError(
            location=folder.address, problem=problem, action="restore an intact copy of it"
        )
