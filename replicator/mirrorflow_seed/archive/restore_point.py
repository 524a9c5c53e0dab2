"""Cuts an archive at a point in time, for `restore --until`.

Each partition ends before its first record that is later, in the order of offsets, as `kafka-consumer-groups
--to-datetime` finds it. So what is restored is what the partition held, and the flow can continue there. Only the
first file with a later record is read, in a Spark task; its remaining records get a digest of their own, after the
whole file was compared with its commit.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from mirrorflow_core.errors import CorruptRecordsError
from mirrorflow_core.record_digests import Tally, TallyBuilder
from mirrorflow_replicator import process
from mirrorflow_seed.archive.manifest import ArchivedFile, ArchivedPartition, Manifest
from mirrorflow_seed.archive.parquet_files import TIMESTAMP_MS_MAX, read_records
from mirrorflow_seed.errors import JobSettingError
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
    """A file to cut at the first record that is later than `until_ms`."""

    address: str  # of the archive
    archive_id: str
    partition: int
    file: ArchivedFile
    until_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FileCut:
    """The records of a file before the first later one, which has the offset `end`. *is_damaged*: it differs from its commit."""

    path: str
    end: int
    tally: Tally
    is_damaged: bool = False


def cut_tasks(manifest: Manifest, until_ms: int, address: str) -> list[CutTask]:
    """Returns the first file with a later record of each partition that has one."""
    return [
        CutTask(
            address=address,
            archive_id=manifest.archive_id,
            partition=key.partition,
            file=file,
            until_ms=until_ms,
        )
        for key, archived in manifest.partitions.items()
        if (file := _first_later(archived.files, until_ms)) is not None
    ]


def _first_later(files: Iterable[ArchivedFile], until_ms: int) -> ArchivedFile | None:
    later = (file for file in files if file.times.last_ms is not None and file.times.last_ms > until_ms)
    return next(later, None)


def cut_file(task: CutTask) -> FileCut:
    """Reads a file and cuts it, in a Spark task. Raises FileSystemError."""
    process.tune_memory()
    file, end = task.file, task.file.end
    whole, kept = (TallyBuilder(task.archive_id, task.partition) for _ in range(2))
    try:
        with StorageFolder(task.address).reading(file.path) as source:
            for records in read_records(source):
                whole.extend(records)
                for record in records:
                    if task.until_ms < record.timestamp <= TIMESTAMP_MS_MAX:
                        end = min(end, record.offset)
                    if record.offset < end:
                        kept.add(record)
    except CorruptRecordsError:
        return FileCut(path=file.path, end=end, tally=kept.tally, is_damaged=True)
    return FileCut(path=file.path, end=end, tally=kept.tally, is_damaged=whole.tally != file.tally)


def cut_manifest(manifest: Manifest, cuts: Sequence[FileCut]) -> Manifest:
    """Returns *manifest* with each partition ending where its file is cut; others stay whole."""
    by_path = {cut.path: cut for cut in cuts}
    topics = tuple(
        replace(topic, partitions=tuple(_cut_partition(partition, by_path) for partition in topic.partitions))
        for topic in manifest.topics
    )
    return replace(manifest, topics=topics)


def _cut_partition(partition: ArchivedPartition, by_path: Mapping[str, FileCut]) -> ArchivedPartition:
    for index, file in enumerate(partition.files):
        cut = by_path.get(file.path)
        if cut is None:
            continue
        kept = (replace(file, end=cut.end, tally=cut.tally),) if cut.tally.records else ()
        return replace(
            partition,
            end=cut.end,
            files=partition.files[:index] + kept,
            gaps=tuple(gap for gap in partition.gaps if gap.end <= cut.end),
        )
    return partition
