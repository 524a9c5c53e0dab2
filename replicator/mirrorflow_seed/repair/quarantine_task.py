"""Copies the differing records of one partition from the source to its quarantine topic, in a Spark task.

Records are those that the flow would copy: with the flow's changes to headers, and two headers more (`repair_plan.marked`).
Records that the source has deleted since the comparison cannot be copied, and are counted.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from mirrorflow_core.backoff import Backoff
from mirrorflow_core.errors import BrokerError, ClusterError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import SourceSettings
from mirrorflow_core.wire.batch import checksum_holds
from mirrorflow_core.wire.error_codes import EPOCH_IS_OVER
from mirrorflow_core.wire.records import Record, decode
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_requests import EARLIEST
from mirrorflow_kafka.client.cluster import Cluster, connect_both
from mirrorflow_replicator import process
from mirrorflow_replicator.config.plugins import make_naming
from mirrorflow_replicator.config.providers import Resolver
from mirrorflow_seed.errors import JobFailedError
from mirrorflow_seed.repair.quarantine_writer import QuarantineWriter, repair_id
from mirrorflow_seed.repair.repair_plan import DifferenceCursor, PartitionRepair, marked, ranges_to_read
from mirrorflow_seed.settings import FlowFiles
from mirrorflow_seed.verify.compared_sides import CompareSettings
from mirrorflow_seed.verify.range_reader import DeletedMeanwhileError, OffsetRange, OffsetRangeReader

# Of keys, values and headers in one transaction; it bounds what a kill repeats.
TRANSACTION_BYTES: Final = 4 << 20
# With a lower rate than this transaction a second, transactions are smaller: consumers wait for the whole of one.
TRANSACTION_S: Final = 1.0
# Ranges closer than this are read as one: a fetch costs as much as some thousand small records.
READ_GAP_OFFSETS: Final = 2_000
ATTEMPTS_MAX: Final = 10  # with the waits between them, elections that take half a minute
RECORD_OVERHEAD_BYTES: Final = 64  # headers of the repair, lengths, timestamp


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineTask:
    """The records of one partition to copy to *topic*, the quarantine topic."""

    repair: PartitionRepair
    topic: str
    max_bytes: int  # of a batch
    run: str  # as in the names of topics
    bytes_per_second: int | None  # its part of the job's rate


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineResult:
    """What became of the records of one partition."""

    copied: int  # by this attempt
    found: int  # that were in the quarantine topic before
    deleted: int  # that the source does not have any more
    bytes_read: int
    bytes_written: int
    seconds: float


def quarantine_partition(task: QuarantineTask, files: FlowFiles) -> QuarantineResult:
    """Copies the records of *task*, in a Spark task. Raises ClusterError, SettingError, JobFailedError, OSError."""
    process.tune_memory()
    return asyncio.run(_quarantine(task, files.load()))


async def _quarantine(task: QuarantineTask, settings: SourceSettings) -> QuarantineResult:
    source, target = await connect_both(
        settings.source_consumer,
        settings.target_producer,
        resolve=Resolver(settings.providers).resolve_client,
    )
    try:
        async for attempt in Backoff(min_s=0.2, max_s=5.0, attempts_max=ATTEMPTS_MAX):
            # After an error it is unknown what was committed: a new writer reads it from the log.
            try:
                return await _copy(task, settings, source, target)
            except ClusterError as error:
                # Another process has taken the writing: it would be refused in turn.
                is_taken = isinstance(error, BrokerError) and error.code in EPOCH_IS_OVER
                if attempt == ATTEMPTS_MAX or is_taken or not error.retriable:
                    raise
    finally:
        await asyncio.gather(source.close(), target.close())
    raise AssertionError("the last attempt raises")


async def _copy(
    task: QuarantineTask, settings: SourceSettings, source: Cluster, target: Cluster
) -> QuarantineResult:
    partition = task.repair.source
    await target.refresh([task.topic])
    writer = QuarantineWriter(
        target,
        TopicPartition(task.topic, partition.partition),
        repair_id(settings.source_alias, task.run, partition),
        max_bytes=task.max_bytes,
    )
    await writer.open()
    return await _QuarantineCopy(task, settings, source, writer).run()


class _QuarantineCopy:
    """The copy of one partition's records by one attempt."""

    def __init__(
        self, task: QuarantineTask, settings: SourceSettings, source: Cluster, writer: QuarantineWriter
    ) -> None:
        self._task = task
        self._settings = settings
        self._source = source
        self._writer = writer
        self._edits = make_naming(settings).header_edits(task.repair.source.topic)
        rate = task.bytes_per_second
        self._pace = CompareSettings(run_id=task.run, bytes_per_second=rate)
        self._transaction_bytes = (
            TRANSACTION_BYTES if rate is None else min(TRANSACTION_BYTES, round(rate * TRANSACTION_S))
        )
        self._parts: list[tuple[int, list[Record]]] = []
        self._filled_bytes = self._bytes_read = self._bytes_written = 0
        self._copied = self._found = 0
        self._began_s = time.monotonic()

    async def run(self) -> QuarantineResult:
        """Copies what is not there. Raises ClusterError, RecordTooLargeError, JobFailedError."""
        cursor = DifferenceCursor(self._task.repair.runs)
        async for codec, record in self._records():
            kind = cursor.kind_at(record.offset)
            if kind is None:
                continue
            if self._writer.has(record.offset):
                self._found += 1
                continue
            if self._edits:
                record = record._replace(headers=self._edits.edited(record.headers))  # noqa: PLW2901 the record as it is copied
            await self._add(codec, marked(record, kind))
        await self._flush()
        return QuarantineResult(
            copied=self._copied,
            found=self._found,
            deleted=self._task.repair.records - self._copied - self._found,
            bytes_read=self._bytes_read,
            bytes_written=self._bytes_written,
            seconds=time.monotonic() - self._began_s,
        )

    async def _add(self, codec: int, record: Record) -> None:
        if not self._parts or self._parts[-1][0] != codec:
            self._parts.append((codec, []))
        self._parts[-1][1].append(record)
        size = RECORD_OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"")
        self._filled_bytes += size + sum(len(name) + len(value or b"") for name, value in record.headers)
        if self._filled_bytes >= self._transaction_bytes:
            await self._flush()

    async def _flush(self) -> None:
        if self._parts:
            await self._writer.write(self._parts)
            self._copied += sum(len(records) for _, records in self._parts)
            self._bytes_written += self._filled_bytes
            self._parts, self._filled_bytes = [], 0
            await self._pace.pace(self._began_s, self._bytes_read + self._bytes_written)

    async def _records(self) -> AsyncIterator[tuple[int, Record]]:
        """Yields the records of the ranges to read, with the codecs of their batches."""
        partition = self._task.repair.source
        for begin, end in ranges_to_read(self._task.repair.runs, READ_GAP_OFFSETS):
            start = begin
            while start < end:
                reader = OffsetRangeReader(
                    self._source,
                    partition,
                    OffsetRange(start, end),
                    read_committed=self._settings.read_committed,
                )
                read_before = self._bytes_read
                try:
                    while (batches := await reader.more()) is not None:
                        self._bytes_read = read_before + reader.bytes_read
                        for batch in batches:
                            if not checksum_holds(batch):
                                raise JobFailedError(
                                    f"{partition}: the batch at offset {batch.base_offset} of the source is damaged."
                                )
                            for record in decode(batch):
                                if start <= record.offset < end:
                                    yield batch.codec, record
                    start = end
                except DeletedMeanwhileError as error:
                    if error.offset is None:
                        return
                    first = (await admin.offsets_at(self._source, [partition], EARLIEST))[partition]
                    if first <= error.offset:
                        raise
                    start = first
                finally:
                    await reader.close()
