"""Compares what a restore has written with the archive's digests, file by file.

The flow has copied nothing after the archive, so each copy ends with the archive's records, in the same order. They are assigned to
the files by the files' record counts, and compared with each file's digests; one task reads one partition. If the copy has
another number of records, it is read twice: the archive's records may be the first or the last ones of it.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import SourceSettings
from mirrorflow_core.wire.batch import Batch
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_requests import EARLIEST, LATEST
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.config.providers import Resolver
from mirrorflow_seed.archive.commit_log import FILES_NAMED_MAX
from mirrorflow_seed.archive.manifest import ArchivedPartition, Manifest
from mirrorflow_seed.archive.record_tally import TallyBuilder
from mirrorflow_seed.record_columns import ColumnBuilder
from mirrorflow_seed.settings import FlowFiles
from mirrorflow_seed.spark_errors import job_error
from mirrorflow_seed.spark_tasks import SparkTasks, run_watched
from mirrorflow_seed.topic_range_reader import CHUNK_BYTES
from mirrorflow_seed.verify.range_reader import OffsetRange, OffsetRangeReader


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedCopy:
    """A target partition to compare with the archive."""

    archived: ArchivedPartition
    target: TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreComparison:
    """The result of the comparison: the number of equal files, and the paths of the others."""

    equal: int
    different: tuple[str, ...]
    undecided: int  # partitions that the flow has copied beyond the archive, or whose headers it edits

    @property
    def summary(self) -> str:
        """The result as one sentence."""
        parts = [f"The target holds {self.equal} of them record by record"]
        if self.different:
            more = " and others" if len(self.different) > FILES_NAMED_MAX else ""
            parts.append(f"but not {', '.join(self.different[:FILES_NAMED_MAX])}{more}")
        if self.undecided:
            parts.append(
                f"{self.undecided} partitions cannot be compared by record counts; use mirrorflow verify --archive for them"
            )
        return "; ".join(parts) + "."


def compare_with_target(
    tasks: SparkTasks,
    manifest: Manifest,
    names: Mapping[str, str],
    next_offsets: Mapping[TopicPartition, int],
    files: FlowFiles,
    *,
    is_edited: bool,
    watch: Callable[[str], None] = lambda _: None,
) -> RestoreComparison:
    """Compares the partitions of *names*, which maps source to target topics, with the archive.

    *next_offsets* are the next source offsets that the flow will copy. *is_edited*: the flow edits headers. *files* are as
    tasks find them; with Spark Connect, the driver does not. *watch* is called as by `run_watched`. Raises JobFailedError.
    """
    copies, undecided = [], 0
    for key, archived in manifest.partitions.items():
        if key.topic not in names or not archived.files:
            continue
        if is_edited or next_offsets.get(key, 0) > archived.end:
            undecided += 1
            continue
        copies.append(ArchivedCopy(archived=archived, target=TopicPartition(names[key.topic], key.partition)))
    verdicts: list[tuple[str, bool]] = []
    if copies:
        work = partial(_compare_partition, files=files, archive_id=manifest.archive_id)
        try:
            verdicts = [
                verdict for compared in run_watched(tasks, work, copies, watch) for verdict in compared
            ]
        except Exception as error:
            raise job_error(error, "The target cannot be compared") from error
    return RestoreComparison(
        equal=sum(is_equal for _, is_equal in verdicts),
        different=tuple(path for path, is_equal in verdicts if not is_equal),
        undecided=undecided,
    )


def _compare_partition(copy: ArchivedCopy, files: FlowFiles, archive_id: str) -> list[tuple[str, bool]]:
    """Returns the path of each file and whether the target has its records; in a Spark task."""
    return asyncio.run(_compare_copy(copy, files.load(), archive_id))


async def _compare_copy(
    copy: ArchivedCopy, settings: SourceSettings, archive_id: str
) -> list[tuple[str, bool]]:
    resolve = Resolver(settings.providers).resolve_client
    cluster = await Cluster.connect(settings.target_admin, resolve=resolve)
    try:
        checker = await _check_digests(cluster, copy, archive_id)
        alternatives = [checker.verdicts]
        if surplus := checker.records - copy.archived.records:
            alternatives.append((await _check_digests(cluster, copy, archive_id, skip=surplus)).verdicts)
        return max(alternatives, key=lambda verdicts: sum(is_equal for _, is_equal in verdicts))
    finally:
        await cluster.close()


async def _check_digests(
    cluster: Cluster, copy: ArchivedCopy, archive_id: str, *, skip: int = 0
) -> "FileDigestChecker":
    """Returns the checker after all committed records of *copy* were added to it."""
    start = (await admin.offsets_at(cluster, [copy.target], EARLIEST))[copy.target]
    end = (await admin.offsets_at(cluster, [copy.target], LATEST, read_committed=True))[copy.target]
    checker = FileDigestChecker(copy.archived, archive_id, start=start, skip=skip)
    reader = OffsetRangeReader(cluster, copy.target, OffsetRange(start, end), read_committed=True)
    try:
        while (batches := await reader.more()) is not None:
            for batch in batches:
                checker.add(batch)
    finally:
        await reader.close()
    checker.finish()
    return checker


class FileDigestChecker:
    """Assigns the records of a copy, from offset *start* on, to the archive's files, and compares their digests.

    The first *skip* records are not the archive's; a negative *skip* is the number of first records that are missing.
    """

    def __init__(self, archived: ArchivedPartition, archive_id: str, *, start: int, skip: int = 0) -> None:
        self.records = 0  # of the copy, once it is finished
        self._archive_id = archive_id
        self._partition = archived.number
        self._start = start
        self._builder = ColumnBuilder(start=start)
        self._pending = list(reversed(archived.files))
        self._compared: list[tuple[str, bool]] = []
        missing = -skip
        while missing > 0 and self._pending:
            file = self._pending.pop()
            self._compared.append((file.path, False))
            missing -= file.tally.records
        self._skip = -missing
        self._begin_file()

    def _begin_file(self) -> None:
        self._tally_builder = TallyBuilder(self._archive_id, self._partition)
        self._left = self._pending[-1].tally.records if self._pending else 0

    def add(self, batch: Batch) -> None:
        """Adds the records of *batch*."""
        is_whole = batch.magic == 2 and batch.base_offset >= self._start and not self._builder.size_bytes
        if is_whole and (not self._pending or self.records + batch.count <= self._skip):
            self.records += batch.count
            return
        self._builder.add(batch)
        if self._builder.size_bytes >= CHUNK_BYTES:
            self.finish()

    def finish(self) -> None:
        """Compares the records that wait until they are worth it; call it after the last `add`."""
        columns, self._builder = self._builder.finish(), ColumnBuilder(start=self._start)
        skipped = min(max(0, self._skip - self.records), columns.num_rows)
        self.records += columns.num_rows
        columns = columns.slice(skipped)
        while columns.num_rows and self._pending:
            part = columns.slice(0, self._left)
            columns = columns.slice(part.num_rows)
            self._tally_builder.add_columns(part)
            self._left -= part.num_rows
            if not self._left:
                file = self._pending.pop()
                self._compared.append((file.path, self._tally_builder.tally == file.tally))
                self._begin_file()

    @property
    def verdicts(self) -> list[tuple[str, bool]]:
        """The path of each file and whether it is equal; a file with missing records is not."""
        return [*self._compared, *((file.path, False) for file in reversed(self._pending))]
