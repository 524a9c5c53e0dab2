"""Creates, checks, reads and writes the compacted topics of Connect and MM2.

When `append` returns, its records are replicated (acks=all). `read_new` returns what a read_committed
consumer sees: each record once, in partition order, and from the beginning if the topic was re-created.
Appends are not idempotent, so a failed append may still have been written; in a compacted topic only the last
record of a key counts.

`CompactedTopic` is a topic of Connect with any number of partitions, `MirrorLog` one of MM2's with a single one. Their users
interpret the bytes; those of a `CompactedTopic` hold a lock: one call at a time.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from mirrorflow_core.backoff import Backoff
from mirrorflow_core.connect.position_records import newest, recency
from mirrorflow_core.errors import InternalTopicUnavailableError, InvalidSettingError, NotAuthorizedError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import StorageTopicSettings
from mirrorflow_core.topics.topic_configs import ConfigChange
from mirrorflow_core.wire.error_codes import (
    INVALID_CONFIG,
    INVALID_REPLICATION_FACTOR,
    POLICY_VIOLATION,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_OR_PARTITION,
    BrokerRefusal,
    is_retriable,
    raise_for,
)
from mirrorflow_core.wire.fetch import AbortedFilter
from mirrorflow_core.wire.records import Record, encode_split, partition_for
from mirrorflow_core.wire.records import decode as decode_records
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_reader import batches_between
from mirrorflow_kafka.admin.log_requests import EARLIEST, LATEST
from mirrorflow_kafka.admin.topics import NewTopic
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.stores.own_topics import (
    new_mirror_topic,
    new_storage_topic,
    without_optional_settings,
)

BATCH_BYTES_MAX = 512 << 10  # half of the smallest usual max.message.bytes
# How long the leader waits for its replicas: as Java's request.timeout.ms, and as long as
# replica.lag.time.max.ms, after which a silent replica leaves the ISR.
PRODUCE_TIMEOUT_MS = 30_000
# A new leader is known within a few seconds; after 0.2 + 0.4 + ... + 3.2 s the failure is raised.
WRITE_ATTEMPTS_MAX = 6
WRITE_RETRY_S, WRITE_RETRY_MAX_S = 0.2, 3.2
OWN_PREFIXES = ("mm2-offsets.", "mm2-claims.")  # a topic with any other name may hold foreign data
_OF_A_SETTING = frozenset({INVALID_CONFIG, POLICY_VIOLATION})
SETTLE_S = 0.05  # a transaction with source offsets is open for a few milliseconds


class CompactedTopic:
    """One compacted topic, named by the setting *key*.

    With *single* it must have one partition, because records would otherwise lose their order.
    """

    def __init__(
        self, cluster: Cluster, settings: StorageTopicSettings, *, key: str, single: bool = False
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._key = key
        self._single = single
        self._read_to: dict[int, int] = {}
        # By key: the last record of each partition that has some.
        self._last: defaultdict[bytes, dict[int, Record]] = defaultdict(dict)

    async def open(self) -> str:
        """Creates the topic if it is missing; returns a warning if its policy cannot be read, otherwise "".

        A topic with MM2's own name prefix is set to compact. Raises InvalidSettingError if the topic is not
        compacted and cannot be, because it would lose its records; ClusterError.
        """
        topic = self._settings.topic
        await self.refresh()
        if not self._partitions():
            new = new_storage_topic(self._settings)
            await admin.create_topic_and_wait(
                self._cluster, replace(new, partitions=1) if self._single else new
            )
        count = len(self._partitions())
        if self._single and count > 1:
            raise InvalidSettingError(
                key=self._key,
                problem=f"topic {topic} has {count} partitions, so what is written first could be read last",
                action="name a topic with one partition",
            )
        return await self._check_compacted()

    async def refresh(self) -> None:
        """Asks for its partitions, to which an administrator may have added some. Raises ClusterError."""
        await self._cluster.refresh([self._settings.topic])

    async def read_new(self, take: Callable[[Record], None]) -> None:
        """Passes to *take* the records appended since the last call, up to the topic's current end.

        Where another partition has a newer record of the same key, that one is passed: more partitions move keys.
        """
        wanted = [TopicPartition(self._settings.topic, number) for number in self._partitions()]
        ends = await self._offsets(wanted, LATEST)
        # A partition that was never read, or whose topic was re-created since, is read from its beginning.
        unread = [p for p in wanted if self._read_to.get(p.partition, ends[p] + 1) > ends[p]]
        for partition, start in (await self._offsets(unread, EARLIEST) if unread else {}).items():
            self._read_to[partition.partition] = start
            for last in self._last.values():
                last.pop(partition.partition, None)
        behind = [partition for partition in wanted if self._read_to[partition.partition] < ends[partition]]
        await asyncio.gather(*(self._read(partition, ends[partition], take) for partition in behind))

    async def append(self, values: Iterable[tuple[bytes, bytes | None]], *, now_ms: int) -> None:
        """Writes keys with values (None is a tombstone), in order within each partition, one batch at a time.

        They are also written to the other partitions that were found to have records of the key.
        Raises ClusterError if the cluster does not accept them; some may have been written then.
        """
        if not self._partitions():
            await self.refresh()
        if not (count := len(self._partitions())):
            raise InternalTopicUnavailableError(cluster=self._cluster.alias, topic=self._settings.topic)
        records: dict[TopicPartition, list[Record]] = {}
        for key, value in values:
            for number in {partition_for(key, count), *self._last.get(key, ())}:
                partition = TopicPartition(self._settings.topic, number)
                records.setdefault(partition, []).append(Record(0, now_ms, key, value))
        batches = {partition: deque(batches_of(group)) for partition, group in records.items()}
        while batches:
            await append_batches(
                self._cluster, {partition: waiting[0] for partition, waiting in batches.items()}
            )
            for waiting in batches.values():
                waiting.popleft()
            batches = {partition: waiting for partition, waiting in batches.items() if waiting}

    def _partitions(self) -> Sequence[int]:
        known = self._cluster.metadata.topics.get(self._settings.topic)
        return sorted(known.partitions) if known is not None and not known.error else ()

    async def _check_compacted(self) -> str:
        topic = self._settings.topic
        try:
            entries = await admin.describe_topic_configs(self._cluster, [topic])
        except NotAuthorizedError as error:
            # Java continues as well: the topic may be compacted although this client may not read its
            # configs.
            return f"Whether {topic} is compacted is unknown: {error}"
        policy = next(
            (entry.value for entry in entries.get(topic, ()) if entry.name == "cleanup.policy"), "compact"
        )
        if policy != "compact" and topic.startswith(OWN_PREFIXES):
            change = ConfigChange(name="cleanup.policy", value="compact")
            refusal = (await admin.alter_topic_configs(self._cluster, {topic: [change]}))[topic]
            policy = "compact" if refusal is None else policy
        if policy != "compact":
            raise InvalidSettingError(
                key=self._key,
                problem=f"topic {topic} has cleanup.policy={policy}, so what it holds would be lost with time",
                action="set it to compact, or name another topic",
            )
        return ""

    async def _offsets(self, partitions: Sequence[TopicPartition], when: int) -> dict[TopicPartition, int]:
        with admin.naming_leaderless(self._cluster, self._settings.topic):
            return await admin.offsets_at(self._cluster, partitions, when, read_committed=when == LATEST)

    async def _read(self, partition: TopicPartition, end: int, take: Callable[[Record], None]) -> None:
        start = self._read_to[partition.partition]
        async for records, next_offset in records_between(self._cluster, partition, start, end):
            for record in records:
                take(self._newest(partition.partition, record))
            self._read_to[partition.partition] = next_offset

    def _newest(self, partition: int, record: Record) -> Record:
        """Returns the newest record of the key of *record*, which is the last one of its partition."""
        if self._single or record.key is None:
            return record
        last = self._last[bytes(record.key)]
        last[partition] = record
        if len(last) == 1:
            return record
        return last[
            newest({number: recency(record.value, record.timestamp) for number, record in last.items()})
        ]


async def records_between(
    cluster: Cluster, partition: TopicPartition, start: int, end: int, *, read_committed: bool = True
) -> AsyncIterator[tuple[list[Record], int]]:
    """Yields the records of each batch between two offsets, and the offset after the batch. Raises ClusterError.

    Control batches have no records, nor have those of aborted transactions with *read_committed*.
    """
    response, delivered = None, AbortedFilter()
    async for batch, fetched in batches_between(
        cluster, partition, start, end, read_committed=read_committed
    ):
        if read_committed and fetched is not response:
            response, delivered = fetched, AbortedFilter(fetched.aborted)
        is_kept = delivered.delivers(batch) if read_committed else not batch.is_control
        records = [record for record in decode_records(batch) if record.offset >= start] if is_kept else []
        yield records, batch.next_offset


async def append_batches(cluster: Cluster, batches: Mapping[TopicPartition, bytearray]) -> None:
    """Appends one batch to each partition; retriable errors are retried, so a batch may be there twice.

    Raises ClusterError if the cluster does not accept them; some may have been written then.
    """
    left = dict(batches)
    async for attempt in Backoff(min_s=WRITE_RETRY_S, max_s=WRITE_RETRY_MAX_S):
        if attempt > 1:
            await cluster.refresh({partition.topic for partition in left})
        codes = await admin.produce(cluster, left, timeout_ms=PRODUCE_TIMEOUT_MS)
        refused = {partition: code for partition, code in codes.items() if code}
        if not refused:
            return
        partition, code = next(iter(refused.items()))
        if code == TOPIC_AUTHORIZATION_FAILED:
            raise NotAuthorizedError(
                cluster=cluster.alias, operation="Write", resource=f"topic {partition.topic}"
            )
        if attempt == WRITE_ATTEMPTS_MAX or not all(is_retriable(code) for code in refused.values()):
            with admin.naming_leaderless(cluster, partition.topic):
                raise_for(code, cluster=cluster.alias, request="Produce", subject=str(partition))
        left = {partition: batches[partition] for partition in refused}


def batches_of(records: Iterable[Record]) -> list[bytearray]:
    """Returns *records* in batches that every topic accepts; they carry no producer id."""
    return [batch for batch, _ in encode_split(list(records), max_bytes=BATCH_BYTES_MAX, codec=0)]


async def create_mirror_topic(cluster: Cluster, topic: str, *, replication_factor: int, key: str) -> None:
    """Creates *topic* with MM2's settings if it is missing; see `create_own_topic`."""
    await create_own_topic(cluster, new_mirror_topic(topic, replication_factor), key=key)


async def create_own_topic(cluster: Cluster, topic: NewTopic, *, key: str) -> None:
    """Creates *topic* if it is missing; the setting *key* holds its replication factor.

    Raises ClusterError, and InvalidSettingError if the cluster has too few brokers.
    """
    await cluster.refresh([topic.name])
    if cluster.leader(topic.name, 0) is not None:
        return
    refusal = await try_to_create(cluster, topic)
    if refusal is not None and refusal.code == INVALID_REPLICATION_FACTOR:
        raise InvalidSettingError(
            key=key,
            problem=f"{topic.name} cannot be created on {cluster.alias} with {topic.replication_factor} replicas ({refusal.message})",
            action="write at most the number of its brokers, or -1 for its own default",
        )
    if refusal is not None:
        cluster.raise_for(refusal.code, "CreateTopics", topic.name, message=refusal.message)
    await admin.wait_for_leaders(cluster, topic.name)


async def try_to_create(cluster: Cluster, topic: NewTopic) -> BrokerRefusal | None:
    """Creates *topic*, one of the flow's own, without its optional settings if the cluster refuses them; returns its refusal. Raises ClusterError."""
    refusal = (await admin.create_topics(cluster, [topic]))[topic.name]
    required = without_optional_settings(topic)
    if refusal is not None and refusal.code in _OF_A_SETTING and required != topic:
        refusal = (await admin.create_topics(cluster, [required]))[topic.name]
    return refusal


class MirrorLog:
    """Reads one partition of *topic*: the only one, or *partition* of a topic that has several."""

    def __init__(
        self, cluster: Cluster, topic: str, partition: int = 0, *, read_committed: bool = True
    ) -> None:
        self.topic = topic
        self._cluster = cluster
        self._read_committed = read_committed
        self._partition = TopicPartition(topic, partition)
        self._read_to = -1

    async def read_new(self) -> AsyncIterator[Record]:
        """Yields the records appended since the last call, up to the topic's current end. Raises ClusterError.

        If iteration stops early, the next call continues there.
        """
        if self._cluster.leader(*self._partition) is None:
            await self._cluster.refresh([self.topic])
        start, end = await self._offset(EARLIEST), await self._offset(LATEST)
        if not start <= self._read_to <= end:
            self._read_to = start
        async for records, next_offset in records_between(
            self._cluster, self._partition, self._read_to, end, read_committed=self._read_committed
        ):
            for record in records:
                self._read_to = record.offset + 1
                yield record
            self._read_to = max(self._read_to, next_offset)

    async def _offset(self, when: int) -> int:
        committed = self._read_committed and when == LATEST
        with admin.naming_leaderless(self._cluster, self.topic):
            offsets = await admin.offsets_at(self._cluster, [self._partition], when, read_committed=committed)
        return offsets[self._partition]


async def append(cluster: Cluster, topic: str, records: Sequence[Record]) -> None:
    """Writes *records* to the only partition of *topic*; returns when all are replicated.

    Raises ClusterError if the cluster does not accept them; some may have been written then.
    """
    for batch in batches_of(records):
        await append_batches(cluster, {TopicPartition(topic, 0): batch})


class TopicState(NamedTuple):
    """What changes when a compacted topic loses records: its id, and where its partitions begin.

    The cleaner of a compacted topic does not move the beginning of its partitions. DeleteRecords does, and so does retention
    while the topic has cleanup.policy=delete.
    """

    topic_id: str
    starts: Mapping[int, int]


class RecordLosses:
    """Notices that a compacted topic has lost records: it was deleted, perhaps created again, or records were deleted.

    *known* is the state in which it had all of them; None: that of the first call.
    """

    def __init__(self, cluster: Cluster, topic: str, known: TopicState | None = None) -> None:
        self.known = known
        self._cluster = cluster
        self._topic = topic

    async def has_lost_records(self) -> bool:
        """Returns whether it has lost some since the last call; also while it is missing. Raises ClusterError."""
        await self._cluster.refresh([self._topic])
        topic = self._cluster.metadata.topics.get(self._topic)
        if topic is None or topic.error == UNKNOWN_TOPIC_OR_PARTITION:
            return True
        before, topic_id = self.known, str(topic.topic_id)
        is_same = before is not None and before.topic_id == topic_id
        earlier = before.starts if before is not None and is_same else {}
        partitions = [TopicPartition(self._topic, number) for number in topic.partitions]
        listed = await admin.list_offsets(self._cluster, partitions, EARLIEST)
        starts = {
            partition.partition: response.offset
            for partition, response in listed.items()
            if not response.error
        }
        self.known = TopicState(topic_id, {**earlier, **starts})
        has_moved = any(earlier.get(number, start) != start for number, start in starts.items())
        return before is not None and (not is_same or has_moved)
