"""Checks after a restore that the target holds the archive's records, by digests from the manifest.

The flow's records on the target, from where it began there, are the archive's records in the same order. So
they are cut by the record counts of the files, and each part is compared with the digests of its file. One
task reads one partition and stops where the archive ends.
"""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from mirrorflow_core.exactly_once.identity import Decisions
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire.batch import Batch
from mirrorflow_core.wire.records import decode
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.target_probe import LATEST
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.config.providers import Resolver
from mirrorflow_replicator.copy.resume.source_scan import stream_batches
from mirrorflow_seed.archive.manifest import ArchivedPartition, Manifest
from mirrorflow_seed.archive.tally import TallyBuilder
from mirrorflow_seed.settings import FlowFiles

if TYPE_CHECKING:
    from pyspark import SparkContext

NAMED_MAX = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedCopy:
    """A target partition to compare with the archive."""

    archived: ArchivedPartition
    target: TopicPartition
    start: int  # the target offset at which the flow began
    producer_ids: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreComparison:
    """Number of files that are equal on the target, and the paths of the others."""

    equal: int
    different: tuple[str, ...]
    undecided: (
        int  # partitions where the flow and the archive begin at different offsets, or headers are edited
    )

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
    decisions: Decisions,
    files: FlowFiles,
) -> RestoreComparison:
    """Compares the partitions of *names*, which maps source to target topics."""
    edited = bool(files.load().header_words)
    copies, undecided = [], 0
    for key, archived in manifest.partitions.items():
        if key.topic not in names or not archived.files:
            continue
        anchor = decisions.first_anchor(key)
        if edited or anchor is None or anchor.source_offset != archived.start:
            undecided += 1
            continue
        target = TopicPartition(names[key.topic], key.partition)
        copies.append(
            ArchivedCopy(
                archived=archived,
                target=target,
                start=anchor.target_offset,
                producer_ids=decisions.producer_ids,
            )
        )
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
        ends = await admin.offsets_at(cluster, [copy.target], LATEST, read_committed=True)
        checker = FileDigestChecker(copy, archive_id)
        batches = stream_batches(cluster, copy.target, copy.start, ends[copy.target], read_committed=True)
        async for batch in batches:
            if batch.producer_id in copy.producer_ids and checker.take(batch):
                break
        return checker.verdicts
    finally:
        await cluster.close()


class FileDigestChecker:
    """Assigns the target's records to the archive's files by their record counts, and compares digests."""

    def __init__(self, copy: ArchivedCopy, archive_id: str) -> None:
        self._archive_id = archive_id
        self._partition = copy.archived.number
        self._start = copy.start
        self._pending = list(reversed(copy.archived.files))
        self._tally_builder = TallyBuilder(archive_id, self._partition)
        self._left = self._pending[-1].tally.records
        self._compared: list[tuple[str, bool]] = []

    def take(self, batch: Batch) -> bool:
        """Adds the records of *batch*; returns whether all files are compared."""
        for record in decode(batch):
            if record.offset < self._start:
                continue
            self._tally_builder.add(record)
            self._left -= 1
            if not self._left and not self._next():
                return True
        return False

    def _next(self) -> bool:
        file = self._pending.pop()
        self._compared.append((file.path, self._tally_builder.tally == file.tally))
        self._tally_builder = TallyBuilder(self._archive_id, self._partition)
        self._left = self._pending[-1].tally.records if self._pending else 0
        return bool(self._pending)

    @property
    def verdicts(self) -> list[tuple[str, bool]]:
        """Path of each file and whether it is equal; a file with missing records is not."""
        return [*self._compared, *((one.path, False) for one in reversed(self._pending))]
