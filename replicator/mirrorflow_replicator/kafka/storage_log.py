"""A compacted topic in which Connect keeps something, of any number of partitions: made, checked, read, written.

Promises: what `append` returned from is replicated (acks=all); `read_new` gives what a read_committed consumer sees, each
record once, in the order of its partition, and begins anew where the topic was made anew. Appending is plain, so that an
append that failed may have been done all the same: of a compacted topic the last record of a key counts.

What the bytes say is for those above: `kafka.offsets`, `kafka.worker_topics`. One call at a time; they hold the lock.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from mirrorflow_replicator.errors import InvalidSettingError, NotAuthorizedError
from mirrorflow_replicator.flow.partitions import TopicPartition
from mirrorflow_replicator.kafka import admin
from mirrorflow_replicator.kafka.cluster import Cluster
from mirrorflow_replicator.kafka.codes import is_retriable, raise_for
from mirrorflow_replicator.kafka.witnesses import EARLIEST, LATEST, batches_between
from mirrorflow_replicator.settings import StorageTopicSettings
from mirrorflow_replicator.wire.aborted import AbortedFilter
from mirrorflow_replicator.wire.murmur2 import partition_for
from mirrorflow_replicator.wire.records import Record, encode_split
from mirrorflow_replicator.wire.records import decode as decode_records

BATCH_BYTES_MAX = 512 << 10  # half of the smallest usual max.message.bytes
PRODUCE_TIMEOUT_MS = 30_000  # as Java's request.timeout.ms
# A new leader is known within a few seconds; after 0.2 + 0.4 + ... + 3.2 s the failure is told.
WRITE_ATTEMPTS_MAX = 6
WRITE_RETRY_S = 0.2
SETTLE_S = 0.05  # a transaction of positions is open for some milliseconds


class StorageLog:
    """One topic; the setting *key* names it. *single* refuses more than one partition: their order would be lost."""

    def __init__(
        self, cluster: Cluster, settings: StorageTopicSettings, *, key: str, single: bool = False
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._key = key
        self._single = single
        self._read_to: dict[int, int] = {}

    async def open(self) -> str:
        """Create the topic if it is missing; a sentence where it could not be seen whether it is compacted, or "".

        Raises InvalidSettingError if it is not, for it would forget; ClusterError.
        """
        topic = self._settings.topic
        await self._cluster.refresh([topic])
        if not self._partitions():
            new = admin.NewTopic(
                name=topic,
                partitions=1 if self._single else self._settings.partitions,
                replication_factor=self._settings.replication_factor,
                configs={**self._settings.topic_configs, "cleanup.policy": "compact"},
            )
            await admin.create_topic_and_wait(self._cluster, new)
        count = len(self._partitions())
        if self._single and count > 1:
            raise InvalidSettingError(
                key=self._key,
                problem=f"topic {topic} has {count} partitions, so what is written first could be read last",
                action="name a topic with one partition",
            )
        return await self._check_compacted()

    async def read_new(self, take: Callable[[Record], None]) -> None:
        """Give *take* what was appended since the last reading, which ends where the topic ends now."""
        wanted = [TopicPartition(self._settings.topic, number) for number in self._partitions()]
        ends = await self._offsets(wanted, LATEST)
        # Never read, or the topic was made anew since: from its beginning.
        unread = [p for p in wanted if self._read_to.get(p.partition, ends[p] + 1) > ends[p]]
        for partition, start in (await self._offsets(unread, EARLIEST) if unread else {}).items():
            self._read_to[partition.partition] = start
        behind = [partition for partition in wanted if self._read_to[partition.partition] < ends[partition]]
        await asyncio.gather(*(self._read(partition, ends[partition], take) for partition in behind))

    async def settled(self, timeout_s: float) -> bool:
        """Wait until no transaction is open below where the topic ends now; False where that takes too long.

        One that is open hides from `read_new` also what others have committed behind it.
        """
        wanted = [TopicPartition(self._settings.topic, number) for number in self._partitions()]
        ends = await admin.offsets_at(self._cluster, wanted, LATEST, read_committed=False)
        given_up_s = time.monotonic() + timeout_s
        while True:
            stable = await self._offsets(wanted, LATEST)
            if all(stable[partition] >= end for partition, end in ends.items()):
                return True
            if time.monotonic() > given_up_s:
                return False
            await asyncio.sleep(SETTLE_S)

    async def append(self, values: Iterable[tuple[bytes, bytes | None]], *, now_ms: int) -> None:
        """Write keys with values, None as a tombstone; each partition's in their order, one batch at a time.

        Raises ClusterError when the cluster cannot take them; some of them may have been written then.
        """
        count = len(self._partitions())
        records: dict[TopicPartition, list[Record]] = {}
        for key, value in values:
            home = TopicPartition(self._settings.topic, partition_for(key, count))
            records.setdefault(home, []).append(Record(0, now_ms, key, value))
        batches = {home: deque(_batches(group)) for home, group in records.items()}
        while batches:
            await self._produce({home: waiting[0] for home, waiting in batches.items()})
            for waiting in batches.values():
                waiting.popleft()
            batches = {home: waiting for home, waiting in batches.items() if waiting}

    def _partitions(self) -> Sequence[int]:
        known = self._cluster.metadata.topics.get(self._settings.topic)
        return sorted(known.partitions) if known is not None and not known.error else ()

    async def _check_compacted(self) -> str:
        topic = self._settings.topic
        try:
            entries = await admin.describe_topic_configs(self._cluster, [topic])
        except NotAuthorizedError as error:
            # Java goes on as well: who may not look can still be right.
            return f"Whether {topic} is compacted is unknown: {error}"
        policy = next(
            (entry.value for entry in entries.get(topic, ()) if entry.name == "cleanup.policy"), "compact"
        )
        if policy != "compact":
            raise InvalidSettingError(
                key=self._key,
                problem=f"topic {topic} has cleanup.policy={policy}, so what it holds would be lost with time",
                action="name a topic with cleanup.policy=compact",
            )
        return ""

    async def _offsets(self, partitions: Sequence[TopicPartition], when: int) -> dict[TopicPartition, int]:
        return await admin.offsets_at(self._cluster, partitions, when, read_committed=when == LATEST)

    async def _read(self, partition: TopicPartition, end: int, take: Callable[[Record], None]) -> None:
        start = self._read_to[partition.partition]
        answer, delivered = None, AbortedFilter()
        async for batch, fetched in batches_between(
            self._cluster, partition, start, end, read_committed=True
        ):
            if fetched is not answer:
                answer, delivered = fetched, AbortedFilter(fetched.aborted)
            if delivered.delivers(batch):
                for record in decode_records(batch):
                    if record.offset >= start:
                        take(record)
            self._read_to[partition.partition] = batch.next_offset

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


def _batches(records: Iterable[Record]) -> list[bytearray]:
    split = encode_split(
        list(records),
        max_bytes=BATCH_BYTES_MAX,
        codec=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
    )
    return [batch for batch, _ in split]
