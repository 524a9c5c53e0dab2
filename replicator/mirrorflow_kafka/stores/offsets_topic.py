"""Stores source offsets in Kafka Connect's offsets topic on the target, as MM2 does, so either can take over.

When `write` returns, its records are replicated (acks=all). `open` and `read_new` see what a read_committed
consumer sees, because Java with exactly-once support writes offsets in transactions. Records of other
connectors are neither kept nor changed. Tasks that fence others write their positions in transactions instead
(`writer.producer_transactions`).

`connect.position_records` encodes the bytes, and the task decides which positions to write and when.
"""

import asyncio
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet

from mirrorflow_core.connect.position_records import encode_value
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.position import Position
from mirrorflow_core.settings import OffsetStorageSettings
from mirrorflow_core.wire.records import Record
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.security.credentials import Resolve
from mirrorflow_kafka.stores.compacted_topic import CompactedTopic
from mirrorflow_kafka.stores.position_store import KnownPositions

TOPIC_KEY = "offset.storage.topic"


async def ensure_topic(settings: OffsetStorageSettings, *, resolve: Resolve) -> None:
    """Create the topic before the first connector needs it, as Java's worker does.

    Raises as `OffsetsLog.open`.
    """
    cluster = await Cluster.connect(settings.client, resolve=resolve)
    try:
        await CompactedTopic(cluster, settings, key=TOPIC_KEY).open()
    finally:
        await cluster.close()


class OffsetsLog:
    """The offsets topic of one connector."""

    def __init__(
        self, cluster: Cluster, settings: OffsetStorageSettings, *, connector: str, source_alias: str
    ) -> None:
        self._log = CompactedTopic(cluster, settings, key=TOPIC_KEY)
        self._known = KnownPositions(connector=connector, source_alias=source_alias)
        self._writing = asyncio.Lock()

    @property
    def positions(self) -> Mapping[TopicPartition, Position]:
        """The newest known position of each source partition, as last read or written."""
        return self._known.positions

    @property
    def foreign(self) -> AbstractSet[TopicPartition]:
        """Partitions whose newest record, or removal, is not an earlier release's."""
        return self._known.foreign

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about records that could not be read, newest last."""
        return tuple(self._known.warnings)

    async def open(self) -> None:
        """Create the topic if it is missing, and read it to its end.

        Raises InvalidSettingError if the topic is not compacted, because retention would remove positions.
        """
        if warning := await self._log.open():
            self._known.warnings.append(warning)
        await self.read_new()

    async def read_new(self) -> frozenset[TopicPartition]:
        """Read new records; return the partitions whose position was written or reset."""
        changed = set()

        def take(record: Record) -> None:
            if about := self._known.take(record.key, record.value):
                changed.add(about)

        # Not concurrently with a write: an older record must not replace the newer position just written.
        async with self._writing:
            await self._log.read_new(take)
        return frozenset(changed)

    async def write(self, positions: Iterable[Position], *, now_ms: int) -> None:
        """Append *positions*; return when all are replicated.

        Raises ClusterError if the target does not accept them; some may have been written then.
        """
        async with self._writing:
            new = self._known.written(positions, now_ms)
            await self._append({p: encode_value(position) for p, position in new.items()}, now_ms)
            self._known.positions.update(new)

    async def _append(self, values: Mapping[TopicPartition, bytes | None], now_ms: int) -> None:
        by_key = [(self._known.key(partition), value) for partition, value in values.items()]
        await self._log.append(by_key, now_ms=now_ms)
