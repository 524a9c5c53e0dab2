"""Checks after a restore that the target holds the archive's records, by digests from the manifest.

The flow has copied nothing behind the archive, so each copy ends with the archive's records, in the same
order. They are cut by the record counts of the files, and each part is compared with the digests of its file. One
task reads one partition. If the copy has another number of records, it is read twice: the archive's records may be
the first or the last ones of it.
"""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire.batch import Batch
from mirrorflow_core.wire.records import decode
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_requests import EARLIEST, LATEST
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.config.providers import Resolver
from mirrorflow_seed.archive.manifest import ArchivedPartition, Manifest
from mirrorflow_seed.settings import FlowFiles
from mirrorflow_seed.verify.digests import TallyBuilder
from mirrorflow_seed.verify.stretch_reader import StretchReader

if TYPE_CHECKING:
    from pyspark import SparkContext

NAMED_MAX = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedCopy:
    """A target partition to compare with the archive."""

    archived: ArchivedPartition
    target: TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreComparison:
    """Number of files that are equal on the target, and the paths of the others."""

    equal: int
    different: tuple[str, ...]
    undecided: int  # partitions that the flow has copied beyond the archive, or whose headers it edits

    @property
    def summary(self) -> str:
        """The result as one sentence for people."""
        parts = [f"The target holds {self.equal} of them record by record"]
        if self.different:
            more = " and others" if len(self.different) > NAMED_MAX else ""
            parts.append(f"but not {', '.join(self.different[:NAMED_MAX])}{more}")
        if self.undecided:
            parts.append(
                f"{self.undecided} partitions cannot be compared by record counts; use mirrorflow verify --archive for them"
            )
        return "; ".join(parts) + "."


def compare(
    context: "SparkContext",
    manifest: Manifest,
    names: Mapping[str, str],
    next_offsets: Mapping[TopicPartition, int],
    files: FlowFiles,
) -> RestoreComparison:
    """Compares the partitions of *names*, which maps source to target topics.

    *next_offsets*: how far the flow has copied each partition.
    """
    edited = bool(files.load().header_words)
    copies, undecided = [], 0
    for key, archived in manifest.partitions.items():
        if key.topic not in names or not archived.files:
            continue
        if edited or next_offsets.get(key, 0) > archived.end:
            undecided += 1
            continue
        copies.append(ArchivedCopy(archived=archived, target=TopicPartition(names[key.topic], key.partition)))
    found: list[tuple[str, bool]] = []
    if copies:
        task = partial(_compared, files=files, archive_id=manifest.archive_id)
        found = context.parallelize(copies, len(copies)).mapPartitions(task).collect()
    return RestoreComparison(
        equal=sum(is_equal for _, is_equal in found),
        different=tuple(path for path, is_equal in found if not is_equal),
        undecided=undecided,
    )


def _compared(
    copies: Iterator[ArchivedCopy], files: FlowFiles, archive_id: str
) -> Iterator[tuple[str, bool]]:
    """Yields the path of each file and whether the target holds its records; for `mapPartitions`."""
    for copy in copies:
        yield from asyncio.run(_compare(copy, files, archive_id))


async def _compare(copy: ArchivedCopy, files: FlowFiles, archive_id: str) -> list[tuple[str, bool]]:
    settings = files.load()
    resolve = Resolver(settings.providers).resolve_client
    cluster = await Cluster.connect(settings.target_admin, resolve=resolve)
    try:
        checker = await _checked(cluster, copy, archive_id)
        found = [checker.verdicts]
        if surplus := checker.records - copy.archived.records:
            found.append((await _checked(cluster, copy, archive_id, skip=surplus)).verdicts)
        return max(found, key=lambda verdicts: sum(is_equal for _, is_equal in verdicts))
    finally:
        await cluster.close()


async def _checked(
    cluster: Cluster, copy: ArchivedCopy, archive_id: str, *, skip: int = 0
) -> "FileDigestChecker":
    """Returns the checker after it has taken all committed records of *copy*."""
    start = (await admin.offsets_at(cluster, [copy.target], EARLIEST))[copy.target]
    end = (await admin.offsets_at(cluster, [copy.target], LATEST, read_committed=True))[copy.target]
    checker = FileDigestChecker(copy.archived, archive_id, start=start, skip=skip)
    reader = StretchReader(cluster, copy.target, start, end, read_committed=True)
    try:
        while (batches := await reader.more()) is not None:
            for batch in batches:
                checker.take(batch)
    finally:
        await reader.close()
    return checker


class FileDigestChecker:
    """Assigns a copy's records from offset *start* on to the archive's files by their record counts, and compares digests.

    The first *skip* records are not the archive's. If it is negative, the copy lacks as many of the first ones.
    """

    def __init__(self, archived: ArchivedPartition, archive_id: str, *, start: int, skip: int = 0) -> None:
        self.records = 0  # of the copy
        self._archive_id = archive_id
        self._partition = archived.number
        self._start = start
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

    def take(self, batch: Batch) -> None:
        """Adds the records of *batch*."""
        is_counted = batch.magic == 2 and batch.base_offset >= self._start
        if is_counted and (not self._pending or self.records + batch.count <= self._skip):
            self.records += batch.count
            return
        for record in decode(batch):
            if record.offset < self._start:
                continue
            self.records += 1
            if self.records > self._skip and self._pending:
                self._tally_builder.add(record)
                self._left -= 1
                if not self._left:
                    file = self._pending.pop()
                    self._compared.append((file.path, self._tally_builder.tally == file.tally))
                    self._begin_file()

    @property
    def verdicts(self) -> list[tuple[str, bool]]:
        """Path of each file and whether it is equal; a file with missing records is not."""
        return [*self._compared, *((one.path, False) for one in reversed(self._pending))]
