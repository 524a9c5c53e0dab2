"""Positions inside the transaction of the records that they are about: both are there, or neither is (KIP-618).

As Java's worker with `exactly.once.source.support=enabled` writes them: the bytes, the topic and its partitions are those of
`kafka.offsets`, and nothing of ours stands in the values.

Promises nothing after an error: whether a batch was appended is not known then, and the transaction is to be given up.
"""

from collections import Counter
from collections.abc import Iterable

from mirrorflow_replicator.connect.position_keys import PositionKey, encode_key
from mirrorflow_replicator.connect.positions import encode_value
from mirrorflow_replicator.flow.identity import Identity
from mirrorflow_replicator.flow.partitions import TopicPartition
from mirrorflow_replicator.flow.position import Position
from mirrorflow_replicator.kafka import admin
from mirrorflow_replicator.kafka.cluster import Cluster
from mirrorflow_replicator.kafka.codes import raise_for
from mirrorflow_replicator.kafka.storage_log import BATCH_BYTES_MAX, PRODUCE_TIMEOUT_MS
from mirrorflow_replicator.wire.batch import set_transactional
from mirrorflow_replicator.wire.murmur2 import partition_for
from mirrorflow_replicator.wire.records import Record, encode_split


class OffsetsInTransaction:
    """The offsets topic, as one incarnation of a task writes it; *own* is what it writes with."""

    def __init__(
        self, cluster: Cluster, topic: str, own: Identity, *, connector: str, source_alias: str
    ) -> None:
        self._cluster = cluster
        self._topic = topic
        self._own = own
        self._connector = connector
        self._source_alias = source_alias
        self._sequences: Counter[TopicPartition] = Counter()  # the next one of each

    async def write(self, positions: Iterable[Position], *, now_ms: int) -> None:
        """Take *positions* into the open transaction. Raises ClusterError."""
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
        """The first of *waiting*, which it takes, in one batch."""
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
