"""One flow of a test, whose alias, and therefore claims, positions and copies, no other flow uses.

A Java consumer decides. Each record that it reads on the source must be on the target, and no other record.

Some tests inspect the producer state of a leader, or write bytes that no Java producer writes. They use MirrorFlow's
admin requests by `call_cluster`.
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
BATCH_RECORDS = 100  # in each batch of `large`
STAGE_RECORDS = 40 * BATCH_RECORDS
SHOWN_MAX = 5  # differing records in the message of a failure


@contextmanager
def heartbeats_on(cluster: KafkaCluster) -> Iterator[None]:
    """Creates the topic `heartbeats` temporarily.

    Every flow from *cluster* copies it, so it must not remain for other tests.
    """
    cluster.create_topic("heartbeats")
    try:
        yield
    finally:
        cluster.delete_topic("heartbeats")


@dataclass(kw_only=True, slots=True)
class Flow:
    """A flow from *source* to *target* with its own alias.

    *connector* and *worker* are settings of all its processes.
    """

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
        """Returns a flow that has never run before."""
        return cls(
            source=source,
            target=target,
            alias=f"s{uuid.uuid4().hex[:8]}",
            folder=folder,
            connector=dict(connector or {}),
            worker=dict(worker or {}),
        )

    def remote(self, topic: str) -> str:
        """Returns the name of *topic* on the target."""
        return f"{self.alias}.{topic}"

    def replicator(
        self,
        topics: str,
        connector: Mapping[str, str] | None = None,
        *,
        source: KafkaCluster | None = None,
        target: KafkaCluster | None = None,
    ) -> Replicator:
        """Returns a process of this flow that is not yet started.

        *source* or *target* may differ from those of the flow.
        """
        return Replicator.standalone(
            source or self.source,
            target or self.target,
            topics=topics,
            folder=self.folder / uuid.uuid4().hex[:8],
            connector={"source.cluster.alias": self.alias, **self.connector, **(connector or {})},
            worker=self.worker,
        )

    def copied(self, topic: str) -> int:
        """Returns how many records of the copy of *topic* readers of committed records see."""
        if not self.target.has_topic(self.remote(topic)):
            return 0
        partitions = digest(self.target, self.remote(topic), isolation="read_committed")
        return sum(count for count, _ in partitions.values())

    def wait_until_committed(self, *topics: str) -> None:
        """Waits until readers of committed records can read the copies of *topics* to the end."""

        def committed() -> bool:
            return all(
                self.target.end_offsets(self.remote(topic), isolation="read_committed")
                == self.target.end_offsets(self.remote(topic))
                for topic in topics
            )

        wait_until("all copies are committed", committed)

    def assert_exact(
        self, topic: str, *, isolation: str = "read_uncommitted", reader: str = "read_uncommitted"
    ) -> None:
        """Asserts that readers with isolation *reader* receive each record of *topic* once and in order, and no other
        record.

        *isolation* is the isolation level with which the source is read.
        """
        expected = digest(self.source, topic, isolation=isolation)
        actual = digest(self.target, self.remote(topic), isolation=reader)
        if expected != actual:
            raise AssertionError(self._difference(topic, isolation, reader))

    def assert_committed(self, topic: str, *, isolation: str = "read_uncommitted") -> None:
        """Waits until the copy has as many committed records as the source, and then asserts that they are exact.

        The copying process must still run, because killing it loses what it has not committed.
        """
        expected = sum(count for count, _ in digest(self.source, topic, isolation=isolation).values())
        wait_until(f"{expected} records of {topic} are committed", lambda: self.copied(topic) >= expected)
        self.assert_exact(topic, isolation=isolation, reader="read_committed")

    def _difference(self, topic: str, isolation: str, reader: str) -> str:
        lines = []
        sent = by_partition(records(self.source, topic, isolation=isolation, payload="sha256"))
        copied = by_partition(records(self.target, self.remote(topic), isolation=reader, payload="sha256"))
        for partition in sorted(sent.keys() | copied.keys()):
            expected, actual = sent.get(partition, []), copied.get(partition, [])
            missing, repeated = Counter(expected) - Counter(actual), Counter(actual) - Counter(expected)
            first = next(
                (i for i, pair in enumerate(zip(expected, actual, strict=False)) if pair[0] != pair[1]), -1
            )
            lines.append(
                f"{topic}-{partition}: {len(expected)} sent, {len(actual)} copied, {missing.total()} missing, "
                f"{repeated.total()} too many, first difference at {first}"
            )
        return "\n".join(lines)


def contents(topic_records: list[Record]) -> list[tuple[object, ...]]:
    """Returns what identifies each record on both clusters, which is everything but partition and offset."""
    return [(record.timestamp, record.key, record.value, record.headers) for record in topic_records]


def by_partition(topic_records: list[Record]) -> dict[int, list[tuple[object, ...]]]:
    """Returns the contents of each partition, in order."""
    parts: dict[int, list[tuple[object, ...]]] = {}
    for record in topic_records:
        parts.setdefault(record.partition, []).append(
            (record.timestamp, record.key, record.value, record.headers)
        )
    return parts


def call_cluster(cluster: KafkaCluster, use: Callable[[Cluster], Awaitable[T]], *, bootstrap: str = "") -> T:
    """Runs *use* with MirrorFlow's client of *cluster*.

    If other brokers are down, *bootstrap* restricts it to a single one.
    """
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
    """Returns the producer ids in the leader's state (KIP-664)."""

    async def describe(connected: Cluster) -> set[int]:
        await connected.refresh([topic])
        response = (await admin.describe_producers(connected, [TopicPartition(topic, partition)]))[
            TopicPartition(topic, partition)
        ]
        assert not response.error, response.error
        return {producer.producer_id for producer in response.producers}

    return call_cluster(cluster, describe, bootstrap=bootstrap)


def write_batches(
    cluster: KafkaCluster,
    topic: str,
    batches: list[list[WireRecord]],
    *,
    partition: int = 0,
    codec: int = 0,
) -> None:
    """Appends batches of exactly these records.

    Their timestamps may be 0 or -1, which Java's producer refuses to write.
    """

    async def write(connected: Cluster) -> None:
        await connected.refresh([topic])
        for batch in batches:
            data = encode(batch, codec=codec, producer_id=-1, producer_epoch=-1, base_sequence=-1)
            error_codes = await admin.produce(
                connected, {TopicPartition(topic, partition): data}, timeout_ms=30_000
            )
            assert not any(error_codes.values()), error_codes

    call_cluster(cluster, write)


def write_to_each(cluster: KafkaCluster, topic: str, batches: Sequence[list[WireRecord]]) -> None:
    """Appends the first batch to partition 0, the second to partition 1 and so on, with one request to each leader."""

    async def write(connected: Cluster) -> None:
        await connected.refresh([topic])
        data = {
            TopicPartition(topic, partition): encode(
                batch, codec=0, producer_id=-1, producer_epoch=-1, base_sequence=-1
            )
            for partition, batch in enumerate(batches)
        }
        error_codes = await admin.produce(connected, data, timeout_ms=30_000)
        assert not any(error_codes.values()), error_codes

    call_cluster(cluster, write)


def numbered(first: int, count: int, *, timestamp: int, key: bytes | None = None) -> list[WireRecord]:
    """Returns records whose value is their number."""
    return [WireRecord(0, timestamp, key, b"%012d" % number) for number in range(first, first + count)]


def large(stage: int, *, timestamp: int) -> list[list[WireRecord]]:
    """Returns the STAGE_RECORDS records of a stage.

    Their batches are too large to be merged, so that each is written separately.
    """
    first = stage * STAGE_RECORDS
    return [
        [WireRecord(0, timestamp, None, b"%01000d" % (start + index)) for index in range(BATCH_RECORDS)]
        for start in range(first, first + STAGE_RECORDS, BATCH_RECORDS)
    ]


def padded(count: int, *, padding_bytes: int) -> list[list[WireRecord]]:
    """Returns batches of one record each, whose value is almost only padding and takes a few bytes when compressed."""
    padding = bytes(padding_bytes)
    return [[WireRecord(0, now_ms(), b"k", b"%08d" % number + padding)] for number in range(count)]


def now_ms() -> int:
    """Returns the wall clock in milliseconds, as Kafka writes it into records."""
    return time.time_ns() // 1_000_000


def wait_until_ready(replicator: Replicator) -> None:
    """Waits until a process is ready. Then it copies, or waits because a different process owns the flow."""
    wait_until(f"{replicator.name} is ready", lambda: replicator.rest("/readyz")[0] == 200)


def wait_for_outcome(replicator: Replicator, topic: str, end: int) -> dict[str, Any]:
    """Waits until partition 0 has stopped or is copied up to source offset *end*, and returns its status."""

    def outcome() -> dict[str, Any] | None:
        status = replicator.partition(topic)
        has_outcome = status.get("phase") == "stopped" or (status.get("sourceOffset") or 0) >= end
        return status if has_outcome else None

    return wait_until(f"{topic} has stopped, or is copied to {end}", outcome) or {}


def replicas(cluster: KafkaCluster, topic: str, partition: int = 0) -> list[int]:
    """Returns the brokers that hold a partition."""
    metadata = cluster.admin.list_topics(topic, timeout=30).topics[topic].partitions[partition]
    return list(metadata.replicas)


def reassign(cluster: KafkaCluster, topic: str, brokers: list[int], partition: int = 0) -> None:
    """Moves a partition to *brokers*, whose first one is the preferred leader.

    Returns when only *brokers* hold the partition and one of them leads it.
    """
    target = AlterPartitionReassignmentsRequest.ReassignableTopic.ReassignablePartition(
        partition_index=partition, replicas=brokers
    )
    reassignment = AlterPartitionReassignmentsRequest.ReassignableTopic(name=topic, partitions=[target])

    async def move(connected: Cluster) -> None:
        response = await connected.call(
            AlterPartitionReassignmentsRequest(timeout_ms=30_000, topics=[reassignment]), controller=True
        )
        assert not response.error_code, response

    call_cluster(cluster, move)

    def moved() -> bool:
        metadata = cluster.admin.list_topics(topic, timeout=30).topics[topic].partitions.get(partition)
        if metadata is None:
            return False  # the broker's metadata does not yet contain the partition
        return (
            sorted(metadata.replicas) == sorted(metadata.isrs) == sorted(brokers)
            and metadata.leader in brokers
        )

    wait_until(f"{topic}-{partition} has moved to {brokers}", moved)
