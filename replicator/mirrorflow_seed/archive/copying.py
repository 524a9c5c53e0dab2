"""One task of a restore: one file of one partition, from Spark's rows to the target.

    rows ──> spool ──> do they add up to what the manifest says? ──> a chain of the seed, with the archive for its source

Promises: a file that is not what the manifest says is not restored at all; what the target has already is not written again
(`seed.chain`); files of a partition go one after the other, each in a task of its own.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from mirrorflow_replicator.flow.partitions import TopicPartition
from mirrorflow_replicator.kafka.cluster import Cluster
from mirrorflow_replicator.settings import LossPolicy, SourceSettings, StartPosition
from mirrorflow_seed.archive.manifest import ArchivedFile, Manifest
from mirrorflow_seed.archive.rows import record_of
from mirrorflow_seed.archive.served import ArchiveCluster
from mirrorflow_seed.archive.spool import Spool
from mirrorflow_seed.archive.tally import Tally, Tallying
from mirrorflow_seed.seed.chain import CONNECT_TIMEOUT_S, ChainCopy, Ended, Order, prepare
from mirrorflow_seed.seed.plan import Chain, Share


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOrder:
    """What a task is told."""

    order: Order
    index: int  # of the partition, in reports
    of: TopicPartition
    file: ArchivedFile
    start: int  # where the file before it ends: what lies between holds no record
    part: Manifest  # its topic alone, with its partition alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What became of a file."""

    tally: Tally  # of what was in it
    ended: Ended | None = None  # None: it is damaged
    wanted_earlier: int | None = (
        None  # an offset of an earlier file, from which the target has to be filled again
    )


def restore_file(rows: Iterator[Any], task: FileOrder) -> Iterator[Restored]:
    """For `mapPartitions`; *rows* are those of the whole file."""
    prepare()
    file = task.file
    tallying = Tallying(task.part.archive_id, task.of.partition)
    with Spool(start=task.start, end=file.end, codec=file.codec) as spool:
        before = file.start - 1
        for row in rows:
            record = record_of(row)
            if not before < record.offset < file.end:
                break  # not its records, or not in their order: the sums cannot be right
            before = record.offset
            tallying.add(record)
            spool.add(record)
        spool.finish()
        if tallying.tally != file.tally:
            yield Restored(tally=tallying.tally)
            return
        copying = FileCopy(task, spool)
        ended = asyncio.run(copying.run())
        yield Restored(tally=tallying.tally, ended=ended, wanted_earlier=copying.archive.wanted_earlier)


def without_source(settings: SourceSettings) -> SourceSettings:
    """The flow's settings as a restore goes by them: the source need not be there.

    An archive is read from where it begins; a flow that stands before that has lost what lies between. Offset syncs that
    belong on the source are not written.
    """
    syncs = settings.syncs
    return replace(
        settings,
        start=StartPosition.EARLIEST,
        on_source_loss=LossPolicy.FAIL,
        syncs=None if syncs is None or syncs.on_source else syncs,
    )


class FileCopy(ChainCopy):
    """A chain of one partition whose source is the archive."""

    def __init__(self, task: FileOrder, spool: Spool) -> None:
        topic, partition = task.of
        share = Share(
            index=task.index,
            topic=topic,
            partition=partition,
            start=task.start,
            end=spool.reach,
            bytes=task.file.tally.bytes,
        )
        super().__init__(Chain(shares=(share,)), task.order)
        self._settings = without_source(self._settings)
        self.archive = ArchiveCluster(self._settings.source_alias, task.part, of=task.of, spool=spool)

    async def _connect(self) -> tuple[Cluster, Cluster]:
        target = await Cluster.connect(
            self._settings.target_producer, resolve=self._resolve, timeout_s=CONNECT_TIMEOUT_S
        )
        return self.archive, target

    def _is_over(self) -> bool:
        return self.archive.wanted_earlier is not None or super()._is_over()
