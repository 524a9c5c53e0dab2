"""One flow under attack: its own alias, so that its claims, positions and copies are its own.

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

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import ClientSettings
from mirrorflow_core.wire.records import Record as WireRecord
from mirrorflow_core.wire.records import encode
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.client.cluster import Cluster
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

    def copied(self, topic: str) -> int:
        """How many records of the copy of *topic* readers of committed records see."""
        if not self.target.has_topic(self.remote(topic)):
            return 0
        found = digest(self.target, self.remote(topic), isolation="read_committed")
        return sum(count for count, _ in found.values())

    def wait_until_committed(self, *topics: str) -> None:
        """Until readers of committed records may read the copies of *topics* to the end."""

        def committed() -> bool:
            return all(
                self.target.end_offsets(self.remote(topic), isolation="read_committed")
                == self.target.end_offsets(self.remote(topic))
                for topic in topics
            )

        wait_until("all is committed", committed)

    def assert_exact(
        self, topic: str, *, isolation: str = "read_uncommitted", reader: str = "read_uncommitted"
    ) -> None:
        """Each record of *topic* once, in order, and nothing else, for readers of isolation *reader*.

        *isolation* is that of the reader of the source.
        """
        expected = digest(self.source, topic, isolation=isolation)
        found = digest(self.target, self.remote(topic), isolation=reader)
        if expected != found:
            raise AssertionError(self._difference(topic, isolation, reader))

    def assert_committed(self, topic: str, *, isolation: str = "read_uncommitted") -> None:
        """As `assert_exact`, for readers of committed records, once as many are committed as the source has.

        The process that copies must still run: what it has not committed is lost when it is killed.
        """
        expected = sum(count for count, _ in digest(self.source, topic, isolation=isolation).values())
        wait_until(f"{expected} records of {topic} are committed", lambda: self.copied(topic) >= expected)
        self.assert_exact(topic, isolation=isolation, reader="read_committed")

    def _difference(self, topic: str, isolation: str, reader: str) -> str:
        lines = []
        sent = by_partition(records(self.source, topic, isolation=isolation, payload="sha256"))
        copied = by_partition(records(self.target, self.remote(topic), isolation=reader, payload="sha256"))
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


def producers(cluster: KafkaCluster, topic: str, partition: int = 0, *, bootstrap: str = "") -> set[int]:
    """The ids of the producers that the leader remembers (KIP-664)."""

    async def ask(connected: Cluster) -> set[int]:
        await connected.refresh([topic])
        answer = (await admin.describe_producers(connected, [TopicPartition(topic, partition)]))[
            TopicPartition(topic, partition)
        ]
        assert not answer.error, answer.error
        return {one.producer_id for one in answer.producers}

    return asking(cluster, ask, bootstrap=bootstrap)


def write_batches(
    cluster: KafkaCluster,
    topic: str,
    batches: list[list[WireRecord]],
    *,
    partition: int = 0,
    codec: int = 0,
) -> None:
    """Append batches of exactly these records: timestamps may be 0 or -1, which Java's producer refuses to write."""

    async def write(connected: Cluster) -> None:
        await connected.refresh([topic])
        for batch in batches:
            data = encode(batch, codec=codec, producer_id=-1, producer_epoch=-1, base_sequence=-1)
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


def padded(count: int, *, padding_bytes: int) -> list[list[WireRecord]]:
    """Batches of one record each whose value is nearly all padding: a few bytes when compressed."""
    padding = bytes(padding_bytes)
    return [[WireRecord(0, now_ms(), b"k", b"%08d" % number + padding)] for number in range(count)]


def now_ms() -> int:
    """The wall clock, as Kafka writes it into records."""
    return time.time_ns() // 1_000_000


def wait_until_ready(replicator: Replicator) -> None:
    """Until a process is ready: it copies, or waits because another one owns the flow."""
    wait_until(f"{replicator.name} is ready", lambda: replicator.rest("/readyz")[0] == 200)


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
