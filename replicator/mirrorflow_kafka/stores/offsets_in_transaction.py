"""Writes source offsets in the transaction of the copied records: both are committed, or neither (KIP-618).

It writes what Java's worker with `exactly.once.source.support=enabled` writes: keys, topic and partitions are
those of `stores.offsets_topic`, and the values add only the source's leader epoch, which Java ignores.

After an error it is unknown whether a batch was appended; the caller must abort the transaction.
"""

from collections import Counter
from collections.abc import Iterable

from mirrorflow_core.connect.position_keys import PositionKey, encode_key
from mirrorflow_core.connect.position_records import encode_value
from mirrorflow_core.exactly_once.identity import Identity
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.position import Position
from mirrorflow_core.wire.batch import set_transactional
from mirrorflow_core.wire.murmur2 import partition_for
from mirrorflow_core.wire.records import Record, encode_split
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.client.error_codes import raise_for
from mirrorflow_kafka.stores.compacted_topic import BATCH_BYTES_MAX, PRODUCE_TIMEOUT_MS


class OffsetsInTransaction:
    """Writes the offsets topic for one incarnation of a task, with the task's own identity *own*."""

    def __init__(
        self, cluster: Cluster, topic: str, own: Identity, *, connector: str, source_alias: str
    ) -> None:
        self._cluster = cluster
        self._topic = topic
        self._own = own
        self._connector = connector
        self._source_alias = source_alias
        self._sequences: Counter[TopicPartition] = Counter()  # the next sequence number per partition

    async def write(self, positions: Iterable[Position], *, now_ms: int) -> None:
        """Write *positions* in the open transaction. Raises ClusterError."""
        known = self._cluster.metadata.topics.get(self._topic)
        if known is None or not known.partitions:
            await self._cluster.refresh([self._topic])
            known = self._cluster.metadata.topics[self._topic]
        records: dict[TopicPartition, list[Record]] = {}
        for one in positions:
            key = encode_key(PositionKey(self._connector, self._source_alias, one.topic, one.partition))
            home = TopicPartition(self._topic, partition_for(key, len(known.partitions)))
            records.setdefault(home, []).append(Record(0, now_ms, key, encode_value(one)))
        own = self._own
        await admin.add_partitions_to_txn(
            self._cluster, own.transactional_id, own.producer_id, own.producer_epoch, records
        )
        while records:
            batches = {home: self._batch(home, waiting) for home, waiting in records.items()}
            answers = await admin.produce(
                self._cluster, batches, timeout_ms=PRODUCE_TIMEOUT_MS, transactional_id=own.transactional_id
            )
            for home, code in answers.items():
                raise_for(code, cluster=self._cluster.alias, request="Produce", subject=str(home))
            records = {home: waiting for home, waiting in records.items() if waiting}

    def _batch(self, home: TopicPartition, waiting: list[Record]) -> bytearray:
        """Encode the first records of *waiting* as one batch, and remove them from *waiting*."""
        data, count = encode_split(
            waiting,
            max_bytes=BATCH_BYTES_MAX,
            codec=0,
            producer_id=self._own.producer_id,
            producer_epoch=self._own.producer_epoch,
            base_sequence=self._sequences[home],
        )[0]
        self._sequences[home] += count
        del waiting[:count]
        set_transactional(data, transactional=True)
        return data
