"""Writes the files of an export, in Spark tasks.

    read a range in offset order ──> a Parquet file until it is large enough ──> its result in a file ──> the next file

A task (`export_range`) reads its range once, with verified checksums, column by column. Its memory is bounded by one
fetch response, some decoded records and one row group. After each file it writes what it has exported to the archive's
folder, so an export that was killed continues after the last file of each range.

Where a rename is no copy, a file is moved to its place by the driver alone, so a task that Spark has given up adds none.
Elsewhere it is written to the local disk, and from there to its place. Records that the source deleted meanwhile are reported as a gap.
"""

import contextlib
import json
import secrets
import shutil
import time
from collections.abc import Generator, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import SourceSettings
from mirrorflow_replicator import process
from mirrorflow_seed.archive.archive_source import local_file
from mirrorflow_seed.archive.export_plan import ExportRange
from mirrorflow_seed.archive.manifest import NO_TIMES, Gap, TimeBounds, folder_of
from mirrorflow_seed.archive.parquet_files import CODEC, FileWriter
from mirrorflow_seed.archive.record_tally import Tally, TallyBuilder
from mirrorflow_seed.job_status_server import post_message
from mirrorflow_seed.settings import FlowFiles
from mirrorflow_seed.storage_folder import TEMPORARY_FOLDER, StorageFolder
from mirrorflow_seed.topic_range_reader import SourceClient, TopicRangeReader
from mirrorflow_seed.verify.range_reader import OffsetRange


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedFile:
    """What a task has exported of a range: offsets from `start` up to `end`, in one file; no file without records."""

    index: int  # of the range
    start: int
    end: int
    tally: Tally
    codec: int
    gaps: tuple[Gap, ...]
    bytes_read: int
    seconds: float  # of the task
    times: TimeBounds = NO_TIMES
    path: str | None = None  # where the task has written it; None without records
    size_bytes: int = 0

    def encode(self) -> bytes:
        """Returns it as JSON."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, text: bytes) -> "ExportedFile":
        """Returns what `encode` has written. Raises ValueError, TypeError or KeyError if *text* is not that."""
        raw = json.loads(text.decode())
        return cls(
            **{
                **raw,
                "tally": Tally(**raw["tally"]),
                "times": TimeBounds(**raw["times"]),
                "gaps": tuple(Gap(**gap) for gap in raw["gaps"]),
                "path": raw["path"] or None,  # results of an earlier release have "" without records
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportTarget:
    """The input that all tasks of an export share."""

    address: str  # of the folder
    archive_id: str
    plan_id: str
    results: str  # the folder where tasks write their results
    file_bytes_max: int  # a file ends when it has reached this size
    url: str | None = None  # for progress messages


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportGroup:
    """The ranges of one task, and its part of the job's rate."""

    ranges: tuple[ExportRange, ...]
    bytes_per_second: int | None


def file_name(plan_id: str, index: int, start: int, token: str) -> str:
    """Returns the name of a file of range *index*; *token* makes it the name of one attempt."""
    return f"part-{plan_id}-{index:05d}-{start}-{token}.{CODEC}.parquet"


def place_of(part: ExportRange, exported: ExportedFile) -> str:
    """Returns the path in the archive of a file of *part*, which a task has written."""
    assert exported.path is not None
    folder = folder_of(TopicPartition(part.topic, part.partition), exported.times)
    return f"{folder}/{exported.path.rpartition('/')[2]}"


def export_group(group: ExportGroup, *, files: FlowFiles, target: ExportTarget) -> list[ExportedFile]:
    """Writes the files of ranges one after the other, in a Spark task. Raises MirrorFlowError, SeedError."""
    process.tune_memory()
    settings, folder = files.load(), StorageFolder(target.address)
    return [
        exported
        for part in group.ranges
        for exported in export_range(settings, part, folder, target, group.bytes_per_second)
    ]


def export_range(
    settings: SourceSettings,
    part: ExportRange,
    folder: StorageFolder,
    target: ExportTarget,
    bytes_per_second: int | None,
) -> list[ExportedFile]:
    """Writes the files of one range, and the result of each. Raises MirrorFlowError, SeedError."""
    reader = ExportRangeReader(settings, part, target.archive_id, bytes_per_second)
    batches = reader.batches()
    exported: list[ExportedFile] = []
    try:
        while not exported or exported[-1].end < part.end:
            token = secrets.token_hex(4)
            exported.append(write_file(reader, batches, part, folder, target, token))
            done = exported[-1]
            folder.write(f"{target.results}/{part.index:05d}-{done.start}-{token}.json", done.encode())
            post_message(
                target.url,
                {
                    "range": part.index,
                    "start": done.start,
                    "records": done.tally.records,
                    "bytes": done.tally.bytes,
                    "is_last": done.end >= part.end,
                },
            )
    finally:
        batches.close()
    return exported


class CutReader(Protocol):
    """The reader of a range, as `write_file` uses it."""

    start: int  # of the offsets since the last cut

    def cut(self) -> ExportedFile:
        """Returns what was read since the last cut, without its file, and begins again."""


def write_file(
    reader: CutReader,
    batches: Iterator[Any],
    part: ExportRange,
    folder: StorageFolder,
    target: ExportTarget,
    token: str,
) -> ExportedFile:
    """Writes the next file of a range, of the records of *batches*.

    Its place has the times of its records. A store that cannot rename gets it once it is complete on the local disk.
    """
    first = next(batches, None)
    if first is None:
        return reader.cut()
    name = file_name(target.plan_id, part.index, reader.start, token)
    path = f"{TEMPORARY_FOLDER}/{target.plan_id}/{name}"
    with (
        folder.writing(path) if folder.renames else local_file() as stream,
        FileWriter(stream) as writer,
    ):
        writer.add(first)
        while stream.tell() < target.file_bytes_max and (batch := next(batches, None)) is not None:
            writer.add(batch)
        writer.finish()
        exported = replace(reader.cut(), path=path, size_bytes=stream.tell(), times=writer.times)
        if not folder.renames:
            path = place_of(part, exported)
            exported = replace(exported, path=path)
            stream.seek(0)
            with folder.writing(path) as stored:
                shutil.copyfileobj(stream, stored)
    return exported


class ExportRangeReader:
    """Reads one range: `batches` yields its records as Arrow record batches, `cut` returns what was read since the last cut."""

    def __init__(
        self, settings: SourceSettings, part: ExportRange, archive_id: str, bytes_per_second: int | None
    ) -> None:
        self.start = part.start  # of the offsets since the last cut
        self._range = part
        self._archive_id = archive_id
        self._reader = TopicRangeReader(
            SourceClient.of_flow(settings),
            TopicPartition(part.topic, part.partition),
            OffsetRange(part.start, part.end),
            bytes_per_second=bytes_per_second,
        )
        self._begin()

    def _begin(self) -> None:
        self.start = self._reader.next_offset
        self._tally_builder = TallyBuilder(self._archive_id, self._range.partition)
        self._gaps_before, self._bytes_before = len(self._reader.gaps), self._reader.bytes_read
        self._began_s = time.monotonic()

    def cut(self) -> ExportedFile:
        """Returns what was read since the last cut, without its file, and begins again."""
        exported = ExportedFile(
            index=self._range.index,
            start=self.start,
            end=self._reader.next_offset,
            tally=self._tally_builder.tally,
            codec=self._reader.codec or 0,
            gaps=tuple(Gap(start=gap.start, end=gap.end) for gap in self._reader.gaps[self._gaps_before :]),
            bytes_read=self._reader.bytes_read - self._bytes_before,
            seconds=time.monotonic() - self._began_s,
        )
        self._begin()
        return exported

    def batches(self) -> Generator[Any, None, None]:
        """Yields all records as Arrow record batches. Raises MirrorFlowError, JobFailedError."""
        with contextlib.closing(self._reader.columns()) as chunks:
            for columns in chunks:
                self._tally_builder.add_columns(columns)
                yield columns
