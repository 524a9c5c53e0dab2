"""Writes records to one partition of a quarantine topic, each source offset once, in transactions.

    take the id ──> a marker of the new epoch in the log ──> read which source offsets are there ──> transactions of records

The log is the progress: each record has its source offset in a header. A writer that is killed leaves a transaction that its
successor aborts. A writer that was frozen is refused, because the log has the marker of a newer epoch. So each record is there
once for consumers of committed records, however often the writing was interrupted or repeated.
"""

import asyncio
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from mirrorflow_core.errors import MissingMarkerError, RecordTooLargeError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire.records import Record, RecordOverLimitError, decode
from mirrorflow_core.writer.transactional_ids import TransactionalIds
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_requests import EARLIEST, LATEST
from mirrorflow_kafka.admin.transaction_log_reader import MARKER_POLL_S, ExpectedMarker, read_batches
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.stores.compacted_topic import PRODUCE_TIMEOUT_MS
from mirrorflow_seed.errors import QuarantineError
from mirrorflow_seed.repair.repair_plan import source_offset_of
from mirrorflow_seed.verify.range_reader import OffsetRange, OffsetRangeReader

# A process that dies in a transaction delays consumers of committed records for so long.
TRANSACTION_TIMEOUT_MS: Final = 60_000
MARKER_WAIT_S: Final = 60.0  # an election takes seconds, the detection of a dead broker 9 s


def repair_id(source_alias: str, run: str, partition: TopicPartition) -> str:
    """Returns the transactional id that writes the quarantined records of one partition of the source in one run."""
    return f"{TransactionalIds(source_alias).prefix}repair-{run}-{partition}"


class QuarantineWriter:
    """Writes to *partition* of a quarantine topic, in batches of at most *max_bytes*. After an error, only a new writer can continue."""

    def __init__(
        self, cluster: Cluster, partition: TopicPartition, transactional_id: str, *, max_bytes: int
    ) -> None:
        self._cluster = cluster
        self._partition = partition
        self._transactional_id = transactional_id
        self._max_bytes = max_bytes
        self._producer = (-1, -1)
        self._sequence = 0
        # Source offsets, ascending: 8 bytes for each record that is there.
        self._written: array[int] = array("q")

    async def open(self) -> None:
        """Takes the writing from any other process, and reads which records are there.

        Raises ClusterError, MissingMarkerError, QuarantineError.
        """
        cluster, partition = self._cluster, self._partition
        self._producer = await admin.init_producer_id(
            cluster, self._transactional_id, timeout_ms=TRANSACTION_TIMEOUT_MS
        )
        await self._begin()
        # The last transaction of a former writer is complete now, so the marker of this one follows.
        offset = (await admin.offsets_at(cluster, [partition], LATEST))[partition]
        await self._commit()
        await self._wait_for_marker(offset)
        self._written = await self._read_offsets()

    def has(self, source_offset: int) -> bool:
        """Returns whether the record of *source_offset* was there when the writer was opened."""
        index = bisect_left(self._written, source_offset)
        return index < len(self._written) and self._written[index] == source_offset

    async def write(self, parts: Sequence[tuple[int, Sequence[Record]]]) -> None:
        """Writes records in one transaction, each part with the codec of its batch on the source.

        Raises RecordTooLargeError, ClusterError.
        """
        await self._begin()
        try:
            for codec, records in parts:
                await self._append(codec, records)
        except RecordTooLargeError:
            await admin.end_txn(self._cluster, self._transactional_id, *self._producer, committed=False)
            raise
        await self._commit()

    async def _append(self, codec: int, records: Sequence[Record]) -> None:
        partition = self._partition
        try:
            self._sequence = await admin.produce_in_transaction(
                self._cluster,
                partition,
                records,
                transactional_id=self._transactional_id,
                producer=self._producer,
                base_sequence=self._sequence,
                max_bytes=self._max_bytes,
                timeout_ms=PRODUCE_TIMEOUT_MS,
                codec=codec,
            )
        except RecordOverLimitError as error:
            raise RecordTooLargeError(
                topic=partition.topic,
                partition=partition.partition,
                offset=records[error.index].offset,
                size_bytes=error.size_bytes,
                target_topic=partition.topic,
            ) from error

    async def _begin(self) -> None:
        await admin.add_partitions_to_txn(
            self._cluster, self._transactional_id, *self._producer, [self._partition]
        )

    async def _commit(self) -> None:
        await admin.end_txn(self._cluster, self._transactional_id, *self._producer, committed=True)

    async def _wait_for_marker(self, offset: int) -> None:
        """Waits until consumers of committed records read the marker of this epoch: the log refuses older ones."""
        cluster, partition = self._cluster, self._partition
        marker, now = ExpectedMarker(*self._producer, offset), asyncio.get_running_loop().time
        until_s = now() + MARKER_WAIT_S
        while True:
            end = (await admin.offsets_at(cluster, [partition], LATEST, read_committed=True))[partition]
            if end > offset and marker.is_in(await read_batches(cluster, partition, offset, end)):
                return
            if now() >= until_s:
                raise MissingMarkerError(cluster=cluster.alias, partitions=str(partition))
            await asyncio.sleep(MARKER_POLL_S)

    async def _read_offsets(self) -> "array[int]":
        """Returns the source offsets of the records in the log, ascending."""
        cluster, partition = self._cluster, self._partition
        start = (await admin.offsets_at(cluster, [partition], EARLIEST))[partition]
        end = (await admin.offsets_at(cluster, [partition], LATEST, read_committed=True))[partition]
        reader = OffsetRangeReader(cluster, partition, OffsetRange(start, end), read_committed=True)
        offsets: list[int] = []
        try:
            while (batches := await reader.more()) is not None:
                for record in (record for batch in batches for record in decode(batch)):
                    source_offset = source_offset_of(record)
                    if source_offset is None:
                        raise QuarantineError(
                            topic=partition.topic,
                            problem=f"partition {partition.partition} has a record at offset {record.offset} that no repair has written",
                            action="verify and repair under a different run id, whose quarantine topic has a different name",
                        )
                    offsets.append(source_offset)
        finally:
            await reader.close()
        return array("q", sorted(offsets))
