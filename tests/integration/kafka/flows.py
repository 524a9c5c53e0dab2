"""One flow under attack: its own alias, so that its decisions, positions and copies are its own.

The verdict is always a Java consumer's: what it reads on the target must be, record by record, what it reads on the
source. Attacks need to look at what a leader remembers, or to write bytes that no Java producer writes: `asking` does it
with our own admin requests.
"""

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from kafka.protocol.admin.topics import AlterPartitionReassignmentsRequest

from mirrorflow_core.exactly_once.identity import Decisions, Identity
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import ClientSettings
from mirrorflow_core.wire.records import Record as WireRecord
from mirrorflow_core.wire.records import encode
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_producers import ActiveProducer
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.stores.decision_log import DecisionLog
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import Record, digest, records
from tests.harness.replicator import Replicator

T = TypeVar("T")
DAY_MS = 86_400_000
BATCH_RECORDS = 100  # of `large`'s batches
STAGE_RECORDS = 40 * BATCH_RECORDS
SHOWN_MAX = 5  # differing records in a failure's message


@contextmanager
def heartbeats_on(cluster: KafkaCluster) -> Iterator[None]:
    """The topic `heartbeats` meanwhile: every flow from *cluster* copies it, so it must not stay for other tests."""
    cluster.create_topic("heartbeats")
    try:
        yield
    finally:
        cluster.delete_topic("heartbeats")


@dataclass(kw_only=True, slots=True)
class Flow:
    """From *source* to *target* under an alias of its own; *connector* and *worker* are lines of all its processes."""

    source: KafkaCluster
    target: KafkaCluster
    alias: str
    folder: Path
    connector: Mapping[str, str]
    worker: Mapping[str, str]

    @classmethod
    def new(
        cls,
        source: KafkaCluster,
        target: KafkaCluster,
        folder: Path,
        *,
        connector: Mapping[str, str] | None = None,
        worker: Mapping[str, str] | None = None,
    ) -> "Flow":
        """A flow that has never run before."""
        return cls(
            source=source,
            target=target,
            alias=f"s{uuid.uuid4().hex[:8]}",
            folder=folder,
            connector=dict(connector or {}),
            worker=dict(worker or {}),
        )

    def remote(self, topic: str) -> str:
        """What *topic* is called on the target."""
        return f"{self.alias}.{topic}"

    def replicator(
        self,
        topics: str,
        connector: Mapping[str, str] | None = None,
        *,
        source: KafkaCluster | None = None,
        target: KafkaCluster | None = None,
    ) -> Replicator:
        """A process of this flow, not yet started; *source* or *target* may be another cluster than the flow's."""
        return Replicator.standalone(
            source or self.source,
            target or self.target,
            topics=topics,
            folder=self.folder / uuid.uuid4().hex[:8],
            connector={"source.cluster.alias": self.alias, **self.connector, **(connector or {})},
            worker=self.worker,
        )

    def assert_exact(self, topic: str, *, isolation: str = "read_uncommitted") -> None:
        """Each record of *topic* once, in order, and nothing else."""
        expected = digest(self.source, topic, isolation=isolation)
        found = digest(self.target, self.remote(topic))
        if expected != found:
            raise AssertionError(self._difference(topic, isolation))

    def _difference(self, topic: str, isolation: str) -> str:
        lines = []
        sent = by_partition(records(self.source, topic, isolation=isolation, payload="sha256"))
        copied = by_partition(records(self.target, self.remote(topic), payload="sha256"))
        for partition in sorted(sent.keys() | copied.keys()):
            wanted, got = sent.get(partition, []), copied.get(partition, [])
            missing, repeated = Counter(wanted) - Counter(got), Counter(got) - Counter(wanted)
            first = next(
                (i for i, pair in enumerate(zip(wanted, got, strict=False)) if pair[0] != pair[1]), -1
            )
            lines.append(
                f"{topic}-{partition}: {len(wanted)} sent, {len(got)} found, {missing.total()} missing, "
                f"{repeated.total()} too many, first difference at {first}"
            )
        return "\n".join(lines)

    def decisions(self) -> Decisions:
        """What has been decided so far."""

        async def read(cluster: Cluster) -> Decisions:
            log = DecisionLog(cluster, self.alias, replication_factor=1)
            await log.ensure()
            return await log.read()

        return asking(self.target, read)

    def identity(self) -> Identity:
        """The newest generation; there has to be one."""
        identity = self.decisions().identity
        assert identity is not None
        return identity

    def memory(self, topic: str, partition: int = 0) -> tuple[int, int] | None:
        """Epoch and last sequence that the target's leader remembers of this flow; None if it does not."""
        identity = self.identity()
        return remembered(self.target, self.remote(topic), partition, identity.producer_id)

    def remembered_since_ms(self, topic: str, partition: int = 0) -> int | None:
        """The timestamp from which on the target's leader counts until it forgets this flow; None if it has."""
        producer = producer_state(self.target, self.remote(topic), partition, self.identity().producer_id)
        return None if producer is None else producer.last_timestamp

    def memory_at(self, bootstrap: str, topic: str, producer_id: int) -> tuple[int, int] | None:
        """The same by one broker, where others would not answer."""
        return remembered(self.target, self.remote(topic), 0, producer_id, bootstrap=bootstrap)


@contextmanager
def rolled(
    flow: Flow,
    topic: str,
    old: Replicator,
    lines: Mapping[str, str],
    *,
    copy_more: Callable[[], None],
    steps: int = 20,
) -> Iterator[Replicator]:
    """A newcomer with *lines*, started while *old* copies, as a rollout with `maxSurge: 1` does; *old* is stopped then.

    *copy_more* returns when some more is copied: it is called until the newcomer reports the partition, and *steps* times
    after that. One that reports nothing as long as another is at work is not waited for longer.
    """
    with flow.replicator(topic, lines) as new:
        assert new.url  # it runs
        for _ in range(3 * steps):
            copy_more()
            if new.partition(topic):
                break
        for _ in range(steps):
            copy_more()
        assert old.stop() == 0
        yield new


def contents(found: list[Record]) -> list[tuple[object, ...]]:
    """What identifies each record on both sides: all but its place."""
    return [(one.timestamp, one.key, one.value, one.headers) for one in found]


def by_partition(found: list[Record]) -> dict[int, list[tuple[object, ...]]]:
    """The contents of each partition, in order."""
    parts: dict[int, list[tuple[object, ...]]] = {}
    for one in found:
        parts.setdefault(one.partition, []).append((one.timestamp, one.key, one.value, one.headers))
    return parts


def asking(cluster: KafkaCluster, use: Callable[[Cluster], Awaitable[T]], *, bootstrap: str = "") -> T:
    """Run *use* with our own client of *cluster*; *bootstrap* names a single broker where others would not answer."""
    client = ClientSettings(
        alias=cluster.name,
        client_id="attack",
        properties={"bootstrap.servers": bootstrap or cluster.internal_bootstrap},
    )

    async def main() -> T:
        connected = await Cluster.connect(client, resolve=dict)
        try:
            return await use(connected)
        finally:
            await connected.close()

    return asyncio.run(main())


def remembered(
    cluster: KafkaCluster, topic: str, partition: int, producer_id: int, *, bootstrap: str = ""
) -> tuple[int, int] | None:
    """What the leader says of a producer: epoch and last sequence, or None."""
    producer = producer_state(cluster, topic, partition, producer_id, bootstrap=bootstrap)
    return None if producer is None else (producer.epoch, producer.last_sequence)


def producer_state(
    cluster: KafkaCluster, topic: str, partition: int, producer_id: int, *, bootstrap: str = ""
) -> ActiveProducer | None:
    """What the leader says of a producer (KIP-664); None if it remembers none."""

    async def ask(connected: Cluster) -> ActiveProducer | None:
        await connected.refresh([topic])
        answer = (await admin.describe_producers(connected, [TopicPartition(topic, partition)]))[
            TopicPartition(topic, partition)
        ]
        assert not answer.error, answer.error
        return next((one for one in answer.producers if one.producer_id == producer_id), None)

    return asking(cluster, ask, bootstrap=bootstrap)


def write_batches(
    cluster: KafkaCluster, topic: str, batches: list[list[WireRecord]], *, partition: int = 0
) -> None:
    """Append batches of exactly these records: timestamps may be 0 or -1, which Java's producer refuses to write."""

    async def write(connected: Cluster) -> None:
        await connected.refresh([topic])
        for batch in batches:
            data = encode(batch, codec=0, producer_id=-1, producer_epoch=-1, base_sequence=-1)
            answers = await admin.produce(
                connected, {TopicPartition(topic, partition): data}, timeout_ms=30_000
            )
            assert not any(answers.values()), answers

    asking(cluster, write)


def write_to_each(cluster: KafkaCluster, topic: str, batches: Sequence[list[WireRecord]]) -> None:
    """Append the first batch to partition 0, the second to partition 1, and so on, in one request to each leader."""

    async def write(connected: Cluster) -> None:
        await connected.refresh([topic])
        data = {
            TopicPartition(topic, partition): encode(
                batch, codec=0, producer_id=-1, producer_epoch=-1, base_sequence=-1
            )
            for partition, batch in enumerate(batches)
        }
        answers = await admin.produce(connected, data, timeout_ms=30_000)
        assert not any(answers.values()), answers

    asking(cluster, write)


def write_as(
    flow: Flow,
    topic: str,
    batch: list[WireRecord],
    *,
    sequence: int,
    transactional: bool = False,
    partition: int = 0,
    epoch: int | None = None,
) -> int:
    """Append a batch to the copy of *topic* with the flow's identity; the error code of the answer, 0 if it was appended.

    *epoch* replaces the identity's epoch. *transactional* marks the batch and the request, and begins no transaction.
    """
    identity = flow.identity()
    data = encode(
        batch,
        codec=0,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch if epoch is None else epoch,
        base_sequence=sequence,
        transactional=transactional,
    )
    target = TopicPartition(flow.remote(topic), partition)

    async def write(connected: Cluster) -> int:
        await connected.refresh([target.topic])
        name = identity.transactional_id if transactional else None
        answers = await admin.produce(connected, {target: data}, timeout_ms=30_000, transactional_id=name)
        return answers[target]

    return asking(flow.target, write)


def numbered(first: int, count: int, *, timestamp: int, key: bytes | None = None) -> list[WireRecord]:
    """Records that carry their number."""
    return [WireRecord(0, timestamp, key, b"%012d" % number) for number in range(first, first + count)]


def large(stage: int, *, timestamp: int) -> list[list[WireRecord]]:
    """The STAGE_RECORDS of a stage, in batches too large to be put together, so that each is written by itself."""
    first = stage * STAGE_RECORDS
    return [
        [WireRecord(0, timestamp, None, b"%01000d" % (start + at)) for at in range(BATCH_RECORDS)]
        for start in range(first, first + STAGE_RECORDS, BATCH_RECORDS)
    ]


def now_ms() -> int:
    """The wall clock, as Kafka writes it into records."""
    return time.time_ns() // 1_000_000


def wait_for_outcome(replicator: Replicator, topic: str, end: int) -> dict[str, Any]:
    """What is said of partition 0 when it has stopped, or is copied up to source offset *end*."""

    def found() -> dict[str, Any] | None:
        said = replicator.partition(topic)
        is_over = said.get("phase") == "stopped" or (said.get("sourceOffset") or 0) >= end
        return said if is_over else None

    return wait_until(f"{topic} has stopped, or is copied to {end}", found) or {}


def replicas(cluster: KafkaCluster, topic: str, partition: int = 0) -> list[int]:
    """The brokers that hold a partition."""
    found = cluster.admin.list_topics(topic, timeout=30).topics[topic].partitions[partition]
    return list(found.replicas)


def reassign(cluster: KafkaCluster, topic: str, brokers: list[int], partition: int = 0) -> None:
    """Move a partition, its preferred leader first; returns when only *brokers* hold it and one of them leads it."""
    target = AlterPartitionReassignmentsRequest.ReassignableTopic.ReassignablePartition(
        partition_index=partition, replicas=brokers
    )
    wanted = AlterPartitionReassignmentsRequest.ReassignableTopic(name=topic, partitions=[target])

    async def move(connected: Cluster) -> None:
        answer = await connected.call(
            AlterPartitionReassignmentsRequest(timeout_ms=30_000, topics=[wanted]), controller=True
        )
        assert not answer.error_code, answer

    asking(cluster, move)

    def moved() -> bool:
        found = cluster.admin.list_topics(topic, timeout=30).topics[topic].partitions.get(partition)
        if found is None:
            return False  # the broker that was asked has not heard of it yet
        return sorted(found.replicas) == sorted(found.isrs) == sorted(brokers) and found.leader in brokers

    wait_until(f"{topic}-{partition} has moved to {brokers}", moved)
