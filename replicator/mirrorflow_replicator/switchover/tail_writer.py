"""Writes records of a diverged tail to the new side exactly once, in transactions that also store how far it is written.

    take the id ──> a marker of the new epoch in every log ──> read the progress ──> transactions of records and progress

A process that is killed leaves a transaction that its successor aborts, and the progress in the log is that of the last one
that was committed. A process that was frozen is refused: the logs have the marker of a newer epoch. So each record is there once
for consumers of committed records, however often the writing was interrupted.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from mirrorflow_core.errors import BrokerError, MissingMarkerError, RecordTooLargeError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.switchover.diverged_tail import (
    TAILS_TOPIC,
    TailChoice,
    TailProgress,
    decode_progress,
    encode_progress,
    encode_start,
)
from mirrorflow_core.wire.error_codes import EPOCH_IS_OVER
from mirrorflow_core.wire.records import Record, RecordOverLimitError
from mirrorflow_core.writer.transactional_ids import TAIL_WRITERS
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_requests import BATCH_UNCOMPRESSED_BYTES_MAX, LATEST
from mirrorflow_kafka.admin.transaction_log_reader import MARKER_POLL_S, ExpectedMarker, read_batches
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.stores.compacted_topic import PRODUCE_TIMEOUT_MS, MirrorLog, create_mirror_topic
from mirrorflow_replicator.switchover.errors import SwitchoverError, TailTakenError

PROGRESS: Final = TopicPartition(TAILS_TOPIC, 0)
# Of keys, values and headers in one transaction: a transaction of this size takes some tens of milliseconds, which is how long
# consumers of committed records wait for it.
TRANSACTION_BYTES: Final = 4 << 20
# A process that dies in a transaction delays consumers of committed records for so long.
TRANSACTION_TIMEOUT_MS: Final = 30_000
MARKER_WAIT_S: Final = 60.0  # an election takes seconds, the detection of a dead broker 9 s
MARKERS_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class TailTarget:
    """Where the tail of a partition of the old side is written, and the largest batch that is accepted there."""

    partition: TopicPartition  # on the new side
    topic_id: str
    max_bytes: int


@dataclass(slots=True)
class TailTransaction:
    """Records to write in one transaction, by partition of the old side, each with the codec of its batch; and the progress."""

    records: dict[TopicPartition, list[tuple[int, Sequence[Record]]]] = field(default_factory=dict)
    progress: dict[TopicPartition, TailProgress] = field(default_factory=dict)
    bytes: int = 0

    def add(
        self, partition: TopicPartition, codec: int, records: Sequence[Record], *, size_bytes: int
    ) -> None:
        """Adds the records of a batch, which follow those of the same partition that were added before."""
        self.records.setdefault(partition, []).append((codec, records))
        self.bytes += size_bytes


class TailWriter:
    """Writes the tails of one switchover by one choice. After an error, only a new writer can continue."""

    def __init__(
        self,
        cluster: Cluster,
        switchover: str,
        choice: TailChoice,
        targets: Mapping[TopicPartition, TailTarget],
    ) -> None:
        """*targets*: by the partition of the old side."""
        self.progress: dict[TopicPartition, TailProgress] = {}  # by the partition of the old side
        self._cluster = cluster
        self._switchover = switchover
        self._choice = choice
        self._targets = targets
        self._transactional_id = f"{TAIL_WRITERS}{switchover}:{choice.value}"
        self._producer = (-1, -1)
        self._sequences: dict[TopicPartition, int] = {}

    async def open(self, *, replication_factor: int) -> None:
        """Takes the writing from any other process, and reads `progress`. Raises ClusterError, SwitchoverError."""
        cluster = self._cluster
        await create_mirror_topic(
            cluster, TAILS_TOPIC, replication_factor=replication_factor, key="spec.topics.replicationFactor"
        )
        self._producer = await admin.init_producer_id(
            cluster, self._transactional_id, timeout_ms=TRANSACTION_TIMEOUT_MS
        )
        token = secrets.token_hex(8)
        partitions = [PROGRESS, *(target.partition for target in self._targets.values())]
        with self._refusals():
            await self._add(partitions)
            # The last transaction of a former process is complete now, so the markers of this one follow.
            ends = await admin.offsets_at(cluster, partitions, LATEST)
            await self._append(PROGRESS, _records_of([encode_start(self._switchover, self._choice, token)]))
            await self._commit()
        await self._wait_for_markers(ends)
        self.progress = await self._read_progress(token)

    async def write(self, transaction: TailTransaction) -> None:
        """Writes the records with their progress. Raises TailTakenError, RecordTooLargeError, ClusterError."""
        batches = {source: _joined(parts) for source, parts in transaction.records.items()}
        with self._refusals():
            await self._add([PROGRESS, *(self._targets[source].partition for source in batches)])
            try:
                for source, own in batches.items():
                    await self._append_all(source, own)
            except RecordTooLargeError:
                await admin.end_txn(self._cluster, self._transactional_id, *self._producer, committed=False)
                raise
            progress = map(encode_progress, transaction.progress.values())
            await self._append(PROGRESS, _records_of(progress))
            await self._commit()
        self.progress |= transaction.progress

    async def _append_all(
        self, source: TopicPartition, parts: Iterable[tuple[int, Sequence[Record]]]
    ) -> None:
        target = self._targets[source]
        for codec, records in parts:
            try:
                await self._append(target.partition, records, codec=codec, max_bytes=target.max_bytes)
            except RecordOverLimitError as error:
                raise RecordTooLargeError(
                    topic=source.topic,
                    partition=source.partition,
                    offset=records[error.index].offset,
                    size_bytes=error.size_bytes,
                    target_topic=target.partition.topic,
                ) from error

    async def _append(
        self,
        partition: TopicPartition,
        records: Sequence[Record],
        *,
        codec: int = 0,
        max_bytes: int = BATCH_UNCOMPRESSED_BYTES_MAX,
    ) -> None:
        """Appends *records* in the open transaction. Raises RecordOverLimitError, ClusterError."""
        self._sequences[partition] = await admin.produce_in_transaction(
            self._cluster,
            partition,
            records,
            transactional_id=self._transactional_id,
            producer=self._producer,
            base_sequence=self._sequences.get(partition, 0),
            max_bytes=max_bytes,
            timeout_ms=PRODUCE_TIMEOUT_MS,
            codec=codec,
        )

    async def _add(self, partitions: Collection[TopicPartition]) -> None:
        await admin.add_partitions_to_txn(self._cluster, self._transactional_id, *self._producer, partitions)

    async def _commit(self) -> None:
        await admin.end_txn(self._cluster, self._transactional_id, *self._producer, committed=True)

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        """Raises TailTakenError if another process has taken the writing."""
        try:
            yield
        except BrokerError as error:
            if error.code in EPOCH_IS_OVER:
                raise TailTakenError(switchover=self._switchover) from error
            raise

    async def _wait_for_markers(self, ends: Mapping[TopicPartition, int]) -> None:
        """Waits until each log has a marker of this epoch, so that it refuses older ones. Raises ClusterError."""
        limit, now = asyncio.Semaphore(MARKERS_AT_ONCE), asyncio.get_running_loop().time
        until_s = now() + MARKER_WAIT_S

        async def wait(partition: TopicPartition, offset: int) -> None:
            marker = ExpectedMarker(*self._producer, offset)
            async with limit:
                while True:
                    end = (await admin.offsets_at(self._cluster, [partition], LATEST))[partition]
                    if marker.is_in(await read_batches(self._cluster, partition, offset, end)):
                        return
                    if now() >= until_s:
                        raise MissingMarkerError(cluster=self._cluster.alias, partitions=str(partition))
                    await asyncio.sleep(MARKER_POLL_S)

        await asyncio.gather(*(wait(*known) for known in ends.items()))

    async def _read_progress(self, token: str) -> dict[TopicPartition, TailProgress]:
        """Returns what is committed before the start with *token*. Raises ClusterError, SwitchoverError."""
        start = encode_start(self._switchover, self._choice, token)
        progress: dict[TopicPartition, TailProgress] = {}
        log = MirrorLog(self._cluster, TAILS_TOPIC)
        # Another switchover's transaction may be open in the topic, so the start may not be readable yet.
        try:
            async with asyncio.timeout(MARKER_WAIT_S):
                while True:
                    async for record in _keyed(log.read_new()):
                        if record == start:
                            return progress
                        _note(progress, record, self._switchover, self._choice)
                    await asyncio.sleep(MARKER_POLL_S)
        except TimeoutError:
            raise MissingMarkerError(cluster=self._cluster.alias, partitions=str(PROGRESS)) from None


async def read_progress(
    cluster: Cluster, switchover: str, choice: TailChoice
) -> dict[TopicPartition, TailProgress]:
    """Returns how far the tails are written, by the partition of the old side; changes nothing. Raises ClusterError, SwitchoverError."""
    progress: dict[TopicPartition, TailProgress] = {}
    await cluster.refresh([TAILS_TOPIC])
    if cluster.leader(*PROGRESS) is None:
        return progress
    async for record in _keyed(MirrorLog(cluster, TAILS_TOPIC).read_new()):
        _note(progress, record, switchover, choice)
    return progress


def _joined(parts: Iterable[tuple[int, Sequence[Record]]]) -> list[tuple[int, list[Record]]]:
    """Returns the records of consecutive batches with one codec together."""
    joined: list[tuple[int, list[Record]]] = []
    for codec, records in parts:
        if joined and joined[-1][0] == codec:
            joined[-1][1].extend(records)
        else:
            joined.append((codec, list(records)))
    return joined


async def _keyed(records: AsyncIterator[Record]) -> AsyncIterator[tuple[bytes, bytes]]:
    async for record in records:
        if record.key is not None and record.value is not None:
            yield bytes(record.key), bytes(record.value)


def _note(
    progress: dict[TopicPartition, TailProgress],
    record: tuple[bytes, bytes],
    switchover: str,
    choice: TailChoice,
) -> None:
    try:
        decoded = decode_progress(*record)
    except ValueError as error:
        raise SwitchoverError(f"{PROGRESS}: {error}.") from error
    if decoded is not None and (decoded.switchover, decoded.choice) == (switchover, choice):
        progress[decoded.partition] = decoded


def _records_of(pairs: Iterable[tuple[bytes, bytes]]) -> list[Record]:
    now_ms = time.time_ns() // 1_000_000
    return [Record(0, now_ms, key, value) for key, value in pairs]
