"""A topic of MM2's own with one partition: made as Java makes it, read and followed, written to.

Promises: `read_new` gives each record once, in order, as a read_committed consumer sees it (Java with exactly-once support
writes checkpoints in transactions), and begins anew where the topic was made anew; what `append` returned from is
replicated (acks=all). Appending is plain, so that an append that failed may have been done all the same: of a compacted
topic the last record of a key counts, and the same record twice says nothing new.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence

from mirrorflow_replicator.errors import InvalidSettingError, NotAuthorizedError
from mirrorflow_replicator.flow.partitions import TopicPartition
from mirrorflow_replicator.kafka import admin
from mirrorflow_replicator.kafka.cluster import Cluster
from mirrorflow_replicator.kafka.codes import TOPIC_AUTHORIZATION_FAILED, is_retriable, raise_for
from mirrorflow_replicator.kafka.witnesses import EARLIEST, LATEST, batches_between
from mirrorflow_replicator.wire.aborted import AbortedFilter
from mirrorflow_replicator.wire.records import Record, encode_split
from mirrorflow_replicator.wire.records import decode as decode_records

TOPIC_CONFIGS = {"cleanup.policy": "compact"}  # Java's MirrorUtils.createSinglePartitionCompactedTopic
INVALID_REPLICATION_FACTOR = 38
BATCH_BYTES_MAX = 512 << 10  # half of the smallest usual max.message.bytes
PRODUCE_TIMEOUT_MS = 30_000  # as Java's request.timeout.ms
# A new leader is known within a few seconds; after 0.2 + 0.4 + ... + 3.2 s the failure is told and the next pass tries.
WRITE_ATTEMPTS_MAX = 6
WRITE_RETRY_S = 0.2


async def create_mirror_topic(cluster: Cluster, topic: str, *, replication_factor: int, key: str) -> None:
    """Make *topic* unless it is there; the setting *key* has its replication factor.

    Raises ClusterError, and InvalidSettingError where the cluster has too few brokers.
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
    """The only partition of *topic* (or another *partition* of one that has several), by the client that reads it."""

    def __init__(self, cluster: Cluster, topic: str, partition: int = 0) -> None:
        self.topic = topic
        self._cluster = cluster
        self._partition = TopicPartition(topic, partition)
        self._read_to = -1

    async def read_new(self) -> AsyncIterator[Record]:
        """What was appended since the last reading, which ends where the topic ends now. Raises ClusterError.

        Who stops in the middle goes on there.
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
    """Write *records* to the only partition of *topic*; returns when all are replicated.

    Raises ClusterError when the cluster cannot take them; some of them may have been written then.
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
