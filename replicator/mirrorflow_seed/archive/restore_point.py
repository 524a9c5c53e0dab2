"""Cuts an archive at a point in time (`--until`), and at the ends of selected ranges of offsets (`restore --partition`).

Each partition ends before its first record that is later, in the order of offsets, as `kafka-consumer-groups
--to-datetime` finds it. So what is restored is what the partition held, and the flow can continue there. Only the
first file with a later record is read, and files that reach over the ends of a range, in Spark tasks; the remaining records
get a digest of their own, after the whole file was compared with its commit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from mirrorflow_core.errors import CorruptRecordsError
from mirrorflow_replicator import process
from mirrorflow_seed.archive.commit_log import read_archive
from mirrorflow_seed.archive.manifest import ArchivedFile, ArchivedPartition, Manifest
from mirrorflow_seed.archive.parquet_files import read_batches
from mirrorflow_seed.archive.record_tally import Tally, TallyBuilder
from mirrorflow_seed.errors import ArchiveDamagedError, JobSettingError
from mirrorflow_seed.record_columns import within
from mirrorflow_seed.spark_errors import job_error
from mirrorflow_seed.spark_tasks import SparkTasks
from mirrorflow_seed.storage_folder import StorageFolder

UNTIL_KEY: Final = "archive.until"


def until_of(job_properties: Mapping[str, str]) -> int | None:
    """Returns the point in time, ms since 1970, which records may have at most; None: no limit. Raises JobSettingError."""
    text = job_properties.get(UNTIL_KEY)
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        time = datetime.min  # noqa: DTZ901 refused below
    if time.tzinfo is None:
        raise JobSettingError(
            key=UNTIL_KEY,
            problem=f"{text!r} is not a timestamp with a time zone",
            action="write one as in RFC 3339, such as 2026-11-22T13:00:00Z",
        )
    since = time.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000 + since.microseconds // 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CutTask:
    """A file to cut to the offsets from `start` up to `end`, and at the first record of these that is later than `until_ms`."""

    address: str  # of the archive
    archive_id: str
    partition: int
    file: ArchivedFile
    start: int
    end: int
    until_ms: int | None  # None: at any time


@dataclass(frozen=True, slots=True, kw_only=True)
class FileCut:
    """The records that are left of a file, from `start` up to `end`. *is_damaged*: it differs from its commit."""

    path: str
    start: int
    end: int
    tally: Tally
    is_last: bool = False  # a later record follows, so the partition ends here
    is_damaged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivePoint:
    """An archive at a point in time, as tasks read it: its folder's address, and how files of its commits are cut."""

    address: str
    cuts: tuple[FileCut, ...] = ()

    def read(self) -> tuple[StorageFolder, Manifest]:
        """Returns the folder and its content at that time. Raises FileSystemError, ArchiveError."""
        folder = StorageFolder(self.address)
        return folder, cut_manifest(read_archive(folder), self.cuts)


def find_cuts(
    tasks: SparkTasks, folder: StorageFolder, manifest: Manifest, until_ms: int | None
) -> tuple[FileCut, ...]:
    """Returns how the files of *manifest* are cut; they are read in Spark tasks. Raises ArchiveDamagedError, JobFailedError."""
    try:
        cuts = tasks.run(cut_file, cut_tasks(manifest, until_ms, folder.address))
    except Exception as error:
        raise job_error(error, "The archive cannot be read") from error
    if damaged := [cut.path for cut in cuts if cut.is_damaged]:
        raise damaged_file(folder, damaged[0])
    return tuple(cuts)


def damaged_file(folder: StorageFolder, path: str) -> ArchiveDamagedError:
    """Returns the error for a file that differs from its commit."""
    return ArchiveDamagedError(
        location=folder.address,
        problem=f"the records of {path} differ from its commit",
        action="restore an intact copy of it; nothing of that file was used",
    )


def cut_tasks(manifest: Manifest, until_ms: int | None, address: str) -> list[CutTask]:
    """Returns the files to read: those that reach over an end of their partition, and the first with a later record of each."""
    return [
        CutTask(
            address=address,
            archive_id=manifest.archive_id,
            partition=key.partition,
            file=file,
            start=archived.start,
            end=archived.end,
            until_ms=until_ms,
        )
        for key, archived in manifest.partitions.items()
        for file in _files_to_cut(archived, until_ms)
    ]


def _files_to_cut(archived: ArchivedPartition, until_ms: int | None) -> list[ArchivedFile]:
    over = [file for file in archived.files if file.start < archived.start or file.end > archived.end]
    later = [file for file in archived.files if until_ms is not None and _is_later(file, until_ms)]
    # The later records of the first file may be before the start of the range.
    searched = 2 if later and later[0].start < archived.start else 1
    wanted = {file.path for file in (*over, *later[:searched])}
    return [file for file in archived.files if file.path in wanted]


def _is_later(file: ArchivedFile, until_ms: int) -> bool:
    return file.times.has_later or (file.times.last_ms is not None and file.times.last_ms > until_ms)


def cut_file(task: CutTask) -> FileCut:
    """Reads a file and cuts it, in a Spark task. Raises FileSystemError."""
    import pyarrow.compute as pc  # noqa: PLC0415 the extra `seed`

    process.tune_memory()
    file, until_ms, is_last = task.file, task.until_ms, False
    start, end = max(file.start, task.start), min(file.end, task.end)
    whole, kept = (TallyBuilder(task.archive_id, task.partition) for _ in range(2))
    is_damaged = False
    try:
        with StorageFolder(task.address).reading(file.path) as source:
            for batch in read_batches(source):
                whole.add_columns(batch)
                wanted = within(batch, start=start, end=end)
                if until_ms is not None:
                    is_later = pc.greater(wanted.column("timestamp_ms"), until_ms)
                    first = pc.index(is_later, value=True).as_py()
                    if first >= 0:
                        end, is_last = wanted.column("offset")[first].as_py(), True
                        wanted = wanted.slice(0, first)
                kept.add_columns(wanted)
        is_damaged = whole.tally != file.tally
    except CorruptRecordsError:
        is_damaged = True
    return FileCut(
        path=file.path, start=start, end=end, tally=kept.tally, is_last=is_last, is_damaged=is_damaged
    )


def cut_manifest(manifest: Manifest, cuts: Sequence[FileCut]) -> Manifest:
    """Returns *manifest* with its files cut, and each partition ending at its first later record; others stay whole."""
    by_path = {cut.path: cut for cut in cuts}
    topics = tuple(
        replace(topic, partitions=tuple(_cut_partition(partition, by_path) for partition in topic.partitions))
        for topic in manifest.topics
    )
    return replace(manifest, topics=topics)


def _cut_partition(partition: ArchivedPartition, by_path: Mapping[str, FileCut]) -> ArchivedPartition:
    kept: list[ArchivedFile] = []
    end = partition.end
    for file in partition.files:
        cut = by_path.get(file.path)
        if cut is None:
            kept.append(file)
            continue
        if cut.tally.records:
            kept.append(replace(file, start=cut.start, end=cut.end, tally=cut.tally))
        if cut.is_last:
            end = cut.end
            break
    return replace(
        partition, end=end, files=tuple(kept), gaps=tuple(gap for gap in partition.gaps if gap.end <= end)
    )
