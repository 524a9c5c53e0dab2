"""Creates, reads and writes one of MM2's single-partition internal topics, with the configs that Java uses.

`read_new` returns each record once, in order, as a read_committed consumer sees it (Java with exactly-once
support writes checkpoints in transactions), and restarts from the beginning if the topic was re-created. When
`append` returns, its records are replicated (acks=all). Appends are not idempotent, so a failed append may
still have been written; that is harmless, because in a compacted topic only the last record of a key counts.
"""

from collections.abc import AsyncIterator, Sequence

from mirrorflow_core.errors import InvalidSettingError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire.records import Record
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_offsets import EARLIEST, LATEST
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.client.error_codes import INVALID_REPLICATION_FACTOR
from mirrorflow_kafka.stores.compacted_topic import append_batches, batches_of, records_between

TOPIC_CONFIGS = {"cleanup.policy": "compact"}  # Java's MirrorUtils.createSinglePartitionCompactedTopic


async def create_mirror_topic(cluster: Cluster, topic: str, *, replication_factor: int, key: str) -> None:
    """Create *topic* if it is missing; the setting *key* holds its replication factor.

    Raises ClusterError, and InvalidSettingError if the cluster has too few brokers.
    """
    await cluster.refresh([topic])
    if cluster.leader(topic, 0) is not None:
        return
    new = admin.NewTopic(
        name=topic, partitions=1, replication_factor=replication_factor, configs=TOPIC_CONFIGS
    )
    refusal = (await admin.create_topics(cluster, [new]))[topic]
    if refusal is not None and refusal.code == INVALID_REPLICATION_FACTOR:
        raise InvalidSettingError(
            key=key,
            problem=f"{topic} cannot be created on {cluster.alias} with {replication_factor} replicas ({refusal.message})",
            action="write at most the number of its brokers, or -1 for its own default",
        )
    await admin.create_topic_and_wait(cluster, new)


class MirrorLog:
    """Reads one partition of *topic*: the only one, or *partition* of a topic that has several."""

    def __init__(self, cluster: Cluster, topic: str, partition: int = 0) -> None:
        self.topic = topic
        self._cluster = cluster
        self._partition = TopicPartition(topic, partition)
        self._read_to = -1

    async def read_new(self) -> AsyncIterator[Record]:
        """Yield the records appended since the last call, up to the topic's current end. Raises ClusterError.

        If iteration stops early, the next call continues there.
        """
        if self._cluster.leader(*self._partition) is None:
            await self._cluster.refresh([self.topic])
        start, end = await self._offset(EARLIEST), await self._offset(LATEST)
        if not start <= self._read_to <= end:
            self._read_to = start
        async for records, next_offset in records_between(self._cluster, self._partition, self._read_to, end):
            for record in records:
                self._read_to = record.offset + 1
                yield record
            self._read_to = max(self._read_to, next_offset)

    async def _offset(self, when: int) -> int:
        at = await admin.offsets_at(self._cluster, [self._partition], when, read_committed=when == LATEST)
        return at[self._partition]


async def append(cluster: Cluster, topic: str, records: Sequence[Record]) -> None:
    """Write *records* to the only partition of *topic*; return when all are replicated.

    Raises ClusterError if the cluster does not accept them; some may have been written then.
    """
    for batch in batches_of(records):
        await append_batches(cluster, {TopicPartition(topic, 0): batch})
