"""Java's MirrorMaker 2 and MirrorFlow run one flow in turns, each from the positions of the other.

After a graceful stop, the next process copies nothing twice and loses nothing, regardless of the number of turns. After
a kill -9, the next process continues from the last stored position and copies later records again (at least once).
"""

import copy
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from mirrorflow_core.partitions import Position, TopicPartition
from mirrorflow_core.settings import ClientSettings, OffsetStorageSettings, OffsetStore
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.stores.position_store import OffsetsLog
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.mm2 import MirrorMaker
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import records
from tests.harness.replicator import Replicator
from tests.integration.kafka.comparing import assert_copied, contents, produce
from tests.integration.kafka.flows import call_cluster


@dataclass(kw_only=True, slots=True)
class Relay:
    """A flow that Java and MirrorFlow run in turns. *topics* has names and numbers of partitions."""

    source: KafkaCluster  # the name is the flow's source alias
    target: KafkaCluster
    folder: Path
    topics: dict[str, int]
    policy: str = "DefaultReplicationPolicy"
    loaded: dict[str, int] = field(default_factory=dict)
    _marks: dict[str, tuple[int, int]] = field(default_factory=dict)

    def remote(self, topic: str) -> str:
        return topic if self.policy.startswith("Identity") else f"{self.source.name}.{topic}"

    def java(self, properties: Mapping[str, str] | None = None) -> MirrorMaker:
        properties = {
            f"{self.source.name}->{self.target.name}.replication.policy.class": self._policy_class,
            **(properties or {}),
        }
        return MirrorMaker(
            source=self.source, target=self.target, topics=self._pattern(), properties=properties
        )

    def mirrorflow(
        self, topics: str = "", worker: Mapping[str, str] | None = None, **connector: str
    ) -> Replicator:
        return Replicator.standalone(
            self.source,
            self.target,
            topics=topics or self._pattern(),
            folder=self.folder / uuid.uuid4().hex[:8],
            connector={"replication.policy.class": self._policy_class}
            | {key.replace("_", "."): value for key, value in connector.items()},
            worker=worker,
        )

    def load(self, count: int) -> None:
        """Produces *count* new records to every topic."""
        for topic in self.topics:
            self.load_one(topic, count)

    def load_one(self, topic: str, count: int) -> None:
        """Produces *count* records with keys and headers, some of them without a value.

        The key contains their number.
        """
        first = self.loaded.get(topic, 0)
        now_ms = time.time_ns() // 1_000_000
        numbers = range(first, first + count)
        produce(
            self.source,
            topic,
            [
                (
                    number % self.topics[topic],
                    now_ms,
                    b"%d" % number,
                    None if number % 13 == 0 else b"%08d" % number * (number % 20),
                    [("n", b"%d" % number), ("none", None)],
                )
                for number in numbers
            ],
        )
        self.loaded[topic] = first + count

    def wait_until_java_copied(self, java: MirrorMaker, *topics: str) -> None:
        """Waits until the target has grown by the records loaded since `mark`. Java writes only records."""
        for topic in topics or tuple(self.topics):
            end, loaded = self._marks[topic]
            expected = end + self.loaded[topic] - loaded
            java.wait_until_replicated(topic, expected, remote=self.remote)

    def wait_until_mirrorflow_copied(self, mirrorflow: Replicator) -> None:
        """Waits until MirrorFlow has delivered all records of the source. Its report of the lag may be outdated."""
        ends = {
            (topic, number): end
            for topic in self.topics
            for number, end in self.source.end_offsets(topic).items()
        }

        def delivered() -> bool:
            delivered_offsets = {
                (partition["topic"], partition["partition"]): partition["sourceOffset"]
                for partition in mirrorflow.partitions()
            }
            return all((delivered_offsets.get(key) or 0) >= end for key, end in ends.items())

        mirrorflow.wait_until_caught_up(partitions=len(ends))
        wait_until("MirrorFlow has copied everything", delivered, poll_s=0.1)

    def target_end(self, topic: str) -> int:
        """Returns the sum of the copies' end offsets, including markers of MirrorFlow's transactions."""
        remote = self.remote(topic)
        return self.target.total_end_offset(remote)

    def mark(self) -> None:
        """Stores the end offsets of the copies when they have all loaded records."""
        self._marks = {topic: (self.target_end(topic), self.loaded.get(topic, 0)) for topic in self.topics}

    def assert_equal(self, *topics: str) -> None:
        for topic in topics or tuple(self.topics):
            assert_copied(self.source, topic, self.target, self.remote(topic), count=self.loaded[topic])

    def positions(self) -> Mapping[TopicPartition, Position]:
        """Returns the positions in the offsets topic."""

        async def read(cluster: Cluster) -> Mapping[TopicPartition, Position]:
            client = ClientSettings(alias="t", client_id="t", properties={})
            topic = f"mm2-offsets.{self.source.name}.internal"
            settings = OffsetStorageSettings(store=OffsetStore.KAFKA, topic=topic, client=client)
            log = OffsetsLog(
                cluster, settings, connector="MirrorSourceConnector", source_alias=self.source.name
            )
            await log.open()
            return log.positions

        return call_cluster(self.target, read)

    @property
    def _policy_class(self) -> str:
        return f"org.apache.kafka.connect.mirror.{self.policy}"

    def _pattern(self) -> str:
        return ",".join(self.topics)


@pytest.fixture
def relay(east: KafkaCluster, west: KafkaCluster, tmp_path: Path) -> Relay:
    """A flow of three topics with six partitions. Its source alias belongs to this test only."""
    source = copy.copy(east)
    source.name = f"east{uuid.uuid4().hex[:6]}"
    topics = {f"{name}-{source.name}": count for name, count in (("orders", 3), ("bills", 2), ("notes", 1))}
    for topic, count in topics.items():
        east.create_topic(topic, partitions=count)
    return Relay(source=source, target=west, folder=tmp_path, topics=topics)


def by_java(relay: Relay, before: int, during: int) -> None:
    """Runs Java until it has copied records from before and after its start, and then stops it gracefully."""
    relay.mark()
    relay.load(before)
    with relay.java() as java:
        relay.wait_until_java_copied(java)
        relay.load(during)
        relay.wait_until_java_copied(java)
        java.stop()


def by_mirrorflow(relay: Relay, before: int, during: int) -> None:
    """Runs MirrorFlow until it has copied records from before and after its start, and then stops it gracefully."""
    relay.load(before)
    with relay.mirrorflow() as mirrorflow:
        relay.wait_until_mirrorflow_copied(mirrorflow)
        relay.load(during)
        relay.wait_until_mirrorflow_copied(mirrorflow)
        assert 0 == mirrorflow.stop()


def test_java_and_mirrorflow_alternate_and_copy_each_record_once(relay: Relay):
    """There are six turns, each from the positions of the other. Each record is copied once, in order."""
    for count in (700, 500, 300):
        by_java(relay, count, 97)
        by_mirrorflow(relay, count, 61)
    relay.assert_equal()


def test_records_that_retention_deleted_after_javas_position_are_reported_as_lost(relay: Relay):
    """MirrorFlow continues at Java's position. Missing records after it are a loss, not a new beginning."""
    *_, topic = relay.topics  # a topic of one partition
    relay.mark()
    relay.load(100)
    with relay.java() as java:
        relay.wait_until_java_copied(java)
        java.stop()
    relay.load_one(topic, 60)
    relay.source.delete_records(topic, {0: 140})
    with relay.mirrorflow(mirrorflow_source_loss_policy="alert") as mirrorflow:
        relay.wait_until_mirrorflow_copied(mirrorflow)
        progress = mirrorflow.progress()

    assert (40, 1) == (progress["lostRecords"], progress["losses"])
    assert 120 == len(records(relay.target, relay.remote(topic)))


def test_a_topic_that_java_did_not_copy_continues_at_mirrorflows_position(relay: Relay):
    """Java copies one topic in its turns. The others continue at the end of MirrorFlow's copies."""
    busy, *quiet = relay.topics
    by_mirrorflow(relay, 200, 50)
    for _ in range(2):
        relay.mark()
        relay.load_one(busy, 80)
        with relay.java() as java:
            relay.wait_until_java_copied(java, busy)
            java.stop()
        for topic in quiet:
            relay.load_one(topic, 30)
        by_mirrorflow(relay, 10, 10)
    relay.assert_equal()


def test_a_topic_excluded_for_one_run_is_not_copied_again(relay: Relay):
    """MirrorFlow selects the topic in its first and third run, but not in the second."""
    busy, other, *_ = relay.topics
    by_mirrorflow(relay, 100, 20)
    for topics in (busy, ""):
        relay.mark()
        relay.load_one(busy, 40)
        with relay.java() as java:
            relay.wait_until_java_copied(java, busy)
            java.stop()
        with relay.mirrorflow(topics) as mirrorflow:
            mirrorflow.wait_until_caught_up(partitions=relay.topics[busy])
            mirrorflow.stop()
    relay.load_one(other, 40)
    by_mirrorflow(relay, 10, 10)

    relay.assert_equal()


def test_a_flow_with_unchanged_topic_names_is_taken_over(west: KafkaCluster, tmp_path: Path):
    """With IdentityReplicationPolicy, the copy has the name of its source topic, and positions have the same keys."""
    with KafkaCluster(name="north") as north:
        topic = f"plain-{uuid.uuid4().hex[:6]}"
        north.create_topic(topic, partitions=2)
        source = copy.copy(north)
        source.name = f"north{uuid.uuid4().hex[:6]}"
        relay = Relay(
            source=source,
            target=west,
            folder=tmp_path,
            topics={topic: 2},
            policy="IdentityReplicationPolicy",
        )
        by_mirrorflow(relay, 300, 40)
        by_java(relay, 200, 40)
        by_mirrorflow(relay, 100, 40)
        relay.assert_equal()


def test_java_continues_at_mirrorflows_last_position_after_a_kill(relay: Relay):
    """Java copies the records after MirrorFlow's last stored position again, in order."""
    topic = next(iter(relay.topics))
    relay.load(400)
    partitions = sum(relay.topics.values())
    with relay.mirrorflow(worker={"offset.flush.interval.ms": "1000"}) as mirrorflow:
        mirrorflow.wait_until_caught_up(partitions=partitions)
        wait_until(
            "all positions are stored",
            lambda: len(relay.positions()) == partitions,
            poll_s=0.2,
        )
        relay.load_one(topic, 3_000)
        mirrorflow.wait_until_caught_up(partitions=partitions)
        mirrorflow.kill()
    stored = {partition: position.source_offset for partition, position in relay.positions().items()}
    relay.mark()
    relay.load(50)
    ends = relay.source.end_offsets(topic)
    following = sum(end - 1 - stored[TopicPartition(topic, number)] for number, end in ends.items())
    expected = relay.target_end(topic) + following
    with relay.java() as java:
        wait_until(
            "Java has copied everything",
            lambda: relay.target_end(topic) >= expected,
            poll_s=0.2,
        )
        relay.wait_until_java_copied(java, *list(relay.topics)[1:])
        java.stop()
    assert_copied_again_from(relay, topic, stored)
    relay.assert_equal(*list(relay.topics)[1:])


def test_mirrorflow_continues_at_javas_last_position_after_a_kill(relay: Relay):
    """MirrorFlow begins at Java's stored position, keeps the order, and loses nothing."""
    topic = next(iter(relay.topics))
    relay.mark()
    relay.load(400)
    partitions = sum(relay.topics.values())
    with relay.java({f"{relay.target.name}.offset.flush.interval.ms": "5000"}) as java:
        relay.wait_until_java_copied(java)
        wait_until(
            "Java has stored all positions",
            lambda: sum(position.source_offset + 1 for position in relay.positions().values()) == 3 * 400,
            poll_s=0.2,
        )
        relay.load_one(topic, 3_000)
        relay.wait_until_java_copied(java, topic)
        java.kill()
    stored = {partition: position.source_offset for partition, position in relay.positions().items()}
    assert len(stored) == partitions
    relay.load(50)
    with relay.mirrorflow() as mirrorflow:
        relay.wait_until_mirrorflow_copied(mirrorflow)
        assert mirrorflow.stop() == 0

    assert_copied_again_from(relay, topic, stored)
    relay.assert_equal(*list(relay.topics)[1:])


def assert_copied_again_from(relay: Relay, topic: str, stored: Mapping[TopicPartition, int]) -> None:
    """Asserts that each partition is copied up to some record, and again after its stored position, in order."""
    for number in range(relay.topics[topic]):
        sent = [record for record in contents(records(relay.source, topic)) if record[0] == number]
        copied = [
            record for record in contents(records(relay.target, relay.remote(topic))) if record[0] == number
        ]
        repeated = len(copied) - len(sent)
        resumed = stored[TopicPartition(topic, number)] + 1
        assert sent[: resumed + repeated] + sent[resumed:] == copied
