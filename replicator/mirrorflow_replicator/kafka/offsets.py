"""Positions in the offsets topic of Kafka Connect, on the target: MM2's place for them, so either can follow the other.

Promises: what `write` returned from is replicated (acks=all); `read` and `read_new` see what a read_committed consumer
sees, for Java with exactly-once support writes positions in transactions; records of other connectors are neither kept
nor touched. A position is a hint of where to look: writing an old one again costs time, never a record, so writes are
plain and may be repeated.

Bytes are `connect.positions`'; the ladder of rungs is `flow.position`'s; which positions to write and when is the task's.
"""

import asyncio
from collections.abc import Iterable, Mapping

from mirrorflow_replicator.connect.positions import encode_value
from mirrorflow_replicator.flow.altered import Foreign
from mirrorflow_replicator.flow.partitions import TopicPartition
from mirrorflow_replicator.flow.position import Position
from mirrorflow_replicator.kafka.cluster import Cluster
from mirrorflow_replicator.kafka.credentials import Resolve
from mirrorflow_replicator.kafka.known_positions import KnownPositions
from mirrorflow_replicator.kafka.storage_log import StorageLog
from mirrorflow_replicator.settings import OffsetStorageSettings
from mirrorflow_replicator.wire.records import Record

TOPIC_KEY = "offset.storage.topic"
CONNECT_TIMEOUT_S = 20.0  # then the failure is told, and tried again by who told it


async def ensure_topic(settings: OffsetStorageSettings, *, resolve: Resolve) -> None:
    """Create the topic before the first connector needs it, as Java's worker does. Raises as `OffsetsLog.open`."""
    cluster = await Cluster.connect(settings.client, resolve=resolve, timeout_s=CONNECT_TIMEOUT_S)
    try:
        await StorageLog(cluster, settings, key=TOPIC_KEY).open()
    finally:
        await cluster.close()


class OffsetsLog:
    """The offsets topic of one connector."""

    def __init__(
        self, cluster: Cluster, settings: OffsetStorageSettings, *, connector: str, source_alias: str
    ) -> None:
        self._log = StorageLog(cluster, settings, key=TOPIC_KEY)
        self._known = KnownPositions(connector=connector, source_alias=source_alias)
        self._writing = asyncio.Lock()

    @property
    def positions(self) -> Mapping[TopicPartition, Position]:
        """The newest known of each source partition, as last read or written."""
        return self._known.positions

    @property
    def foreign(self) -> Mapping[TopicPartition, Foreign]:
        """Where the newest word on a position is not ours, and where that lies in the topic."""
        return self._known.foreign

    @property
    def warnings(self) -> tuple[str, ...]:
        """What could not be read, newest last."""
        return tuple(self._known.warnings)

    async def open(self) -> None:
        """Create the topic if it is missing, and read it to its end.

        Raises InvalidSettingError if the topic is not compacted: it would forget positions.
        """
        if warning := await self._log.open():
            self._known.warnings.append(warning)
        await self.read_new()

    async def read_new(self) -> frozenset[TopicPartition]:
        """Read what was appended since the last reading; the partitions whose position was written or reset."""
        changed = set()

        def take(record: Record) -> None:
            if about := self._known.take(record.key, record.value, record.offset):
                changed.add(about)

        # Not beside a write: a record read late must not take the place of the newer position just written.
        async with self._writing:
            await self._log.read_new(take)
        return frozenset(changed)

    async def settled(self, timeout_s: float) -> bool:
        """Wait until nobody's transaction hides positions of others; False where that takes too long."""
        return await self._log.settled(timeout_s)

    async def write(self, positions: Iterable[Position], *, now_ms: int) -> None:
        """Append *positions*, each with the ladder of the one before; returns when all are replicated.

        Raises ClusterError when the target cannot take them; some of them may have been written then.
        """
        async with self._writing:
            new = self._known.advanced(positions, now_ms)
            await self._append({p: encode_value(position) for p, position in new.items()}, now_ms)
            self._known.written(new)

    async def reset(self, partitions: Iterable[TopicPartition], *, now_ms: int) -> None:
        """Append tombstones, which Java too takes for "begin anew"."""
        async with self._writing:
            gone = dict.fromkeys(partitions)
            await self._append(gone, now_ms)
            for partition in gone:
                self._known.positions.pop(partition, None)

    async def _append(self, values: Mapping[TopicPartition, bytes | None], now_ms: int) -> None:
        by_key = [(self._known.key(partition), value) for partition, value in values.items()]
        await self._log.append(by_key, now_ms=now_ms)
