"""Positions in the offsets topic of Kafka Connect, on the target: MM2's place for them, so either can follow the other.

Promises: what `write` returned from is replicated (acks=all); `read` and `read_new` see what a read_committed consumer
sees, for Java with exactly-once support writes positions in transactions; records of other connectors are neither kept
nor touched. A position is a hint of where to look: writing an old one again costs time, never a record, so writes are
plain and may be repeated.

Bytes are `connect.positions`'; the ladder of rungs is `flow.position`'s; which positions to write and when is the task's.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from mirrorflow_replicator.connect.positions import encode_value
from mirrorflow_replicator.errors import InvalidSettingError, NotAuthorizedError
from mirrorflow_replicator.flow.partitions import TopicPartition
from mirrorflow_replicator.flow.position import Position
from mirrorflow_replicator.kafka import admin
from mirrorflow_replicator.kafka.cluster import Cluster
from mirrorflow_replicator.kafka.codes import is_retriable, raise_for
from mirrorflow_replicator.kafka.known_positions import KnownPositions
from mirrorflow_replicator.kafka.witnesses import EARLIEST, LATEST, batches_between
from mirrorflow_replicator.settings import OffsetStorageSettings
from mirrorflow_replicator.wire.aborted import AbortedFilter
from mirrorflow_replicator.wire.murmur2 import partition_for
from mirrorflow_replicator.wire.records import Record, encode_split
from mirrorflow_replicator.wire.records import decode as decode_records

BATCH_BYTES_MAX = 512 << 10  # half of the smallest usual max.message.bytes
PRODUCE_TIMEOUT_MS = 30_000  # as Java's request.timeout.ms
# A new leader is known within a few seconds; after 0.2 + 0.4 + ... + 3.2 s the task reports the failure and goes on.
WRITE_ATTEMPTS_MAX = 6
WRITE_RETRY_S = 0.2


class OffsetsLog:
    """The offsets topic of one connector."""

    def __init__(
        self, cluster: Cluster, settings: OffsetStorageSettings, *, connector: str, source_alias: str
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._known = KnownPositions(connector=connector, source_alias=source_alias)
        self._read_to: dict[int, int] = {}
        self._writing = asyncio.Lock()

    @property
    def positions(self) -> Mapping[TopicPartition, Position]:
        """The newest known of each source partition, as last read or written."""
        return self._known.positions

    @property
    def warnings(self) -> tuple[str, ...]:
        """What could not be read, newest last."""
        return tuple(self._known.warnings)

    async def open(self) -> None:
        """Create the topic if it is missing, and read it to its end.

        Raises InvalidSettingError if the topic is not compacted: it would forget positions.
        """
        topic = self._settings.topic
        await self._cluster.refresh([topic])
        if self._partitions():
            await self._check_compacted()
        else:
            configs = {**self._settings.topic_configs, "cleanup.policy": "compact"}
            await admin.create_topic_and_wait(
                self._cluster,
                admin.NewTopic(
                    name=topic,
                    partitions=self._settings.partitions,
                    replication_factor=self._settings.replication_factor,
                    configs=configs,
                ),
            )
        await self.read_new()

    async def read_new(self) -> frozenset[TopicPartition]:
        """Read what was appended since the last reading; the partitions whose position was written or reset."""
        # Not beside a write: a record read late must not take the place of the newer position just written.
        async with self._writing:
            wanted = [TopicPartition(self._settings.topic, number) for number in self._partitions()]
            ends = await self._offsets(wanted, LATEST)
            # Never read, or the topic was made anew since: from its beginning.
            unread = [p for p in wanted if self._read_to.get(p.partition, ends[p] + 1) > ends[p]]
            for partition, start in (await self._offsets(unread, EARLIEST) if unread else {}).items():
                self._read_to[partition.partition] = start
            behind = [
                partition for partition in wanted if self._read_to[partition.partition] < ends[partition]
            ]
            changed = await asyncio.gather(*(self._read(partition, ends[partition]) for partition in behind))
            return frozenset().union(*changed)

    async def write(self, positions: Iterable[Position], *, now_ms: int) -> None:
        """Append *positions*, each with the ladder of the one before; returns when all are replicated.

        Raises ClusterError when the target cannot take them; some of them may have been written then.
        """
        async with self._writing:
            new = self._known.advanced(positions, now_ms)
            await self._append({p: encode_value(position) for p, position in new.items()}, now_ms)
            self._known.positions.update(new)

    async def reset(self, partitions: Iterable[TopicPartition], *, now_ms: int) -> None:
        """Append tombstones, which Java too takes for "begin anew"."""
        async with self._writing:
            gone = dict.fromkeys(partitions)
            await self._append(gone, now_ms)
            for partition in gone:
                self._known.positions.pop(partition, None)

    def _partitions(self) -> Sequence[int]:
        known = self._cluster.metadata.topics.get(self._settings.topic)
        return sorted(known.partitions) if known is not None and not known.error else ()

    async def _check_compacted(self) -> None:
        topic = self._settings.topic
        try:
            entries = await admin.describe_topic_configs(self._cluster, [topic])
        except NotAuthorizedError as error:
            # Java goes on as well: who may not look can still be right.
            self._known.warnings.append(f"Whether {topic} is compacted is unknown: {error}")
            return
        policy = next(
            (entry.value for entry in entries.get(topic, ()) if entry.name == "cleanup.policy"), "compact"
        )
        if policy != "compact":
            raise InvalidSettingError(
                key="offset.storage.topic",
                problem=f"topic {topic} has cleanup.policy={policy}, so positions would be lost with time",
                action="name a topic with cleanup.policy=compact",
            )

    async def _offsets(self, partitions: Sequence[TopicPartition], when: int) -> dict[TopicPartition, int]:
        answers = await admin.list_offsets(self._cluster, partitions, when, read_committed=when == LATEST)
        for partition, answer in answers.items():
            raise_for(
                answer.error, cluster=self._cluster.alias, request="ListOffsets", subject=str(partition)
            )
        return {partition: answer.offset for partition, answer in answers.items()}

    async def _read(self, partition: TopicPartition, end: int) -> set[TopicPartition]:
        changed = set()
        start = self._read_to[partition.partition]
        answer, delivered = None, AbortedFilter()
        async for batch, fetched in batches_between(
            self._cluster, partition, start, end, read_committed=True
        ):
            if fetched is not answer:
                answer, delivered = fetched, AbortedFilter(fetched.aborted)
            if delivered.delivers(batch):
                for record in decode_records(batch):
                    if record.offset >= start and (about := self._known.take(record.key, record.value)):
                        changed.add(about)
            self._read_to[partition.partition] = batch.next_offset
        return changed

    async def _append(self, values: Mapping[TopicPartition, bytes | None], now_ms: int) -> None:
        """Produce *values* by source partition, one batch for each partition of the topic at a time."""
        count = len(self._partitions())
        records: dict[TopicPartition, list[Record]] = {}
        for partition, value in values.items():
            key = self._known.key(partition)
            home = TopicPartition(self._settings.topic, partition_for(key, count))
            records.setdefault(home, []).append(Record(0, now_ms, key, value))
        batches = {
            home: deque(
                batch
                for batch, _ in encode_split(
                    group,
                    max_bytes=BATCH_BYTES_MAX,
                    codec=0,
                    producer_id=-1,
                    producer_epoch=-1,
                    base_sequence=-1,
                )
            )
            for home, group in records.items()
        }
        while batches:
            await self._produce({home: waiting[0] for home, waiting in batches.items()})
            for waiting in batches.values():
                waiting.popleft()
            batches = {home: waiting for home, waiting in batches.items() if waiting}

    async def _produce(self, batches: Mapping[TopicPartition, bytearray]) -> None:
        left = dict(batches)
        for attempt in range(WRITE_ATTEMPTS_MAX):
            answers = await admin.produce(self._cluster, left, timeout_ms=PRODUCE_TIMEOUT_MS)
            refused = {home: code for home, code in answers.items() if code}
            if not refused:
                return
            home, code = next(iter(refused.items()))
            last = attempt == WRITE_ATTEMPTS_MAX - 1
            if last or not all(is_retriable(code) for code in refused.values()):
                raise_for(code, cluster=self._cluster.alias, request="Produce", subject=str(home))
            left = {home: batches[home] for home in refused}
            await asyncio.sleep(WRITE_RETRY_S * 2**attempt)
            await self._cluster.refresh([self._settings.topic])
