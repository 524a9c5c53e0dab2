"""Creates, reads and writes one of MM2's single-partition internal topics, with the configs that Java uses.

`read_new` returns each record once, in order, as a read_committed consumer sees it (Java with exactly-once
support writes checkpoints in transactions), and restarts from the beginning if the topic was re-created. When
`append` returns, its records are replicated (acks=all). Appends are not idempotent, so a failed append may
still have been written; that is harmless, because in a compacted topic only the last record of a key counts.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence

from mirrorflow_core.errors import InvalidSettingError, NotAuthorizedError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire.aborted_transactions import AbortedFilter
from mirrorflow_core.wire.records import Record, encode_split
from mirrorflow_core.wire.records import decode as decode_records
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_reader import batches_between
from mirrorflow_kafka.admin.target_probe import EARLIEST, LATEST
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.client.error_codes import (
    INVALID_REPLICATION_FACTOR,
    TOPIC_AUTHORIZATION_FAILED,
    is_retriable,
    raise_for,
)

TOPIC_CONFIGS = {"cleanup.policy": "compact"}  # Java's MirrorUtils.createSinglePartitionCompactedTopic
BATCH_BYTES_MAX = 512 << 10  # half of the smallest usual max.message.bytes
PRODUCE_TIMEOUT_MS = 30_000  # as Java's request.timeout.ms
# A new leader is known within a few seconds; after 0.2 + 0.4 + ... + 3.2 s the failure is raised; the next
# pass retries.
WRITE_ATTEMPTS_MAX = 6
WRITE_RETRY_S = 0.2


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
        answer, delivered = None, AbortedFilter()
        async for batch, fetched in batches_between(
            self._cluster, self._partition, self._read_to, end, read_committed=True
        ):
            if fetched is not answer:
                answer, delivered = fetched, AbortedFilter(fetched.aborted)
            if delivered.delivers(batch):
                for record in decode_records(batch):
                    if record.offset >= self._read_to:
                        self._read_to = record.offset + 1
                        yield record
            self._read_to = max(self._read_to, batch.next_offset)

    async def _offset(self, when: int) -> int:
        at = await admin.offsets_at(self._cluster, [self._partition], when, read_committed=when == LATEST)
        return at[self._partition]


async def append(cluster: Cluster, topic: str, records: Sequence[Record]) -> None:
    """Write *records* to the only partition of *topic*; return when all are replicated.

    Raises ClusterError if the cluster does not accept them; some may have been written then.
    """
    partition = TopicPartition(topic, 0)
    batches = encode_split(
        records,
        max_bytes=BATCH_BYTES_MAX,
        codec=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
    )
    for batch, _ in batches:
        for attempt in range(WRITE_ATTEMPTS_MAX):
            code = (await admin.produce(cluster, {partition: batch}, timeout_ms=PRODUCE_TIMEOUT_MS))[
                partition
            ]
            if code == TOPIC_AUTHORIZATION_FAILED:
                raise NotAuthorizedError(cluster=cluster.alias, operation="Write", resource=f"topic {topic}")
            if code and (attempt == WRITE_ATTEMPTS_MAX - 1 or not is_retriable(code)):
                raise_for(code, cluster=cluster.alias, request="Produce", subject=topic)
            if not code:
                break
            await asyncio.sleep(WRITE_RETRY_S * 2**attempt)
            await cluster.refresh([topic])
