"""Java MirrorMaker 2 and we take turns on one flow: by each other's positions, seen through a Java consumer's eyes.

After a clean stop of the one before, nothing is copied twice and nothing is lost, however often they change. After a
kill -9 the next one continues from the last stored position, so what came after it is copied again: at least once.
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
from tests.integration.kafka.flows import asking


@dataclass(kw_only=True, slots=True)
class Relay:
    """One flow that Java and we run in turns; *topics* are its names and numbers of partitions."""

    source: KafkaCluster  # named as the flow's source alias
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

    def ours(self, topics: str = "", worker: Mapping[str, str] | None = None, **connector: str) -> Replicator:
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
        """*count* new records in every topic."""
        for topic in self.topics:
            self.load_one(topic, count)

    def load_one(self, topic: str, count: int) -> None:
        """*count* records with keys, headers and, now and then, no value; their number is in the key."""
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
        """Until the target has grown by what was loaded since `mark`: Java writes nothing but records."""
        for topic in topics or tuple(self.topics):
            end, loaded = self._marks[topic]
            wanted = end + self.loaded[topic] - loaded
            java.wait_until_replicated(topic, wanted, remote=self.remote)

    def wait_until_we_copied(self, ours: Replicator) -> None:
        """Until we have delivered all that the source holds now; lag alone may be of a moment ago."""
        ends = {
            (topic, number): end
            for topic in self.topics
            for number, end in self.source.end_offsets(topic).items()
        }

        def delivered() -> bool:
            said = {(one["topic"], one["partition"]): one["sourceOffset"] for one in ours.partitions()}
            return all((said.get(place) or 0) >= end for place, end in ends.items())

        ours.wait_until_caught_up(partitions=len(ends))
        wait_until("we have copied everything", delivered, poll_s=0.1)

    def target_end(self, topic: str) -> int:
        """Where the copies end, all partitions together, empty transactions of ours included."""
        remote = self.remote(topic)
        return self.target.total_end_offset(remote)

    def mark(self) -> None:
        """Remember where the copies end now, when they hold all that was loaded."""
        self._marks = {topic: (self.target_end(topic), self.loaded.get(topic, 0)) for topic in self.topics}

    def assert_equal(self, *topics: str) -> None:
        for topic in topics or tuple(self.topics):
            assert_copied(self.source, topic, self.target, self.remote(topic), count=self.loaded[topic])

    def positions(self) -> Mapping[TopicPartition, Position]:
        """What is stored in the offsets topic now."""

        async def read(cluster: Cluster) -> Mapping[TopicPartition, Position]:
            client = ClientSettings(alias="t", client_id="t", properties={})
            topic = f"mm2-offsets.{self.source.name}.internal"
            settings = OffsetStorageSettings(store=OffsetStore.KAFKA, topic=topic, client=client)
            log = OffsetsLog(
                cluster, settings, connector="MirrorSourceConnector", source_alias=self.source.name
            )
            await log.open()
            return log.positions

        return asking(self.target, read)

    @property
    def _policy_class(self) -> str:
        return f"org.apache.kafka.connect.mirror.{self.policy}"

    def _pattern(self) -> str:
        return ",".join(self.topics)


@pytest.fixture
def relay(east: KafkaCluster, west: KafkaCluster, tmp_path: Path) -> Relay:
    """A flow of three topics with six partitions, from a cluster that has an alias of this test's own."""
    source = copy.copy(east)
    source.name = f"east{uuid.uuid4().hex[:6]}"
    topics = {f"{name}-{source.name}": count for name, count in (("orders", 3), ("bills", 2), ("notes", 1))}
    for topic, count in topics.items():
        east.create_topic(topic, partitions=count)
    return Relay(source=source, target=west, folder=tmp_path, topics=topics)


def by_java(relay: Relay, before: int, during: int) -> None:
    """A turn of Java, with records from before its start and from while it runs, ended in order."""
    relay.mark()
    relay.load(before)
    with relay.java() as java:
        relay.wait_until_java_copied(java)
        relay.load(during)
        relay.wait_until_java_copied(java)
        java.stop()


def by_us(relay: Relay, before: int, during: int) -> None:
    """A turn of ours, likewise."""
    relay.load(before)
    with relay.ours() as ours:
        relay.wait_until_we_copied(ours)
        relay.load(during)
        relay.wait_until_we_copied(ours)
        assert 0 == ours.stop()


def test_java_and_we_take_turns_three_times(relay: Relay):
    """Java, we, Java, we, Java, we: six turns, each begun from the other's positions; every record once, in order."""
    for count in (700, 500, 300):
        by_java(relay, count, 97)
        by_us(relay, count, 61)
    relay.assert_equal()


def test_what_retention_took_behind_javas_position_is_reported_before_our_first_record(relay: Relay):
    """We go on where Java stopped, and promise what follows: that it is gone is a loss, not a beginning."""
    *_, topic = relay.topics  # of one partition
    relay.mark()
    relay.load(100)
    with relay.java() as java:
        relay.wait_until_java_copied(java)
        java.stop()
    relay.load_one(topic, 60)
    relay.source.delete_records(topic, {0: 140})
    with relay.ours(mirrorflow_source_loss_policy="alert") as ours:
        relay.wait_until_we_copied(ours)
        progress = ours.progress()

    assert (40, 1) == (progress["lostRecords"], progress["losses"])
    assert 120 == len(records(relay.target, relay.remote(topic)))


def test_a_topic_without_records_of_javas_turn_continues_where_we_were(relay: Relay):
    """Java's turns touch one topic; the others continue at the end of what we had copied ourselves."""
    busy, *quiet = relay.topics
    by_us(relay, 200, 50)
    for _ in range(2):
        relay.mark()
        relay.load_one(busy, 80)
        with relay.java() as java:
            relay.wait_until_java_copied(java, busy)
            java.stop()
        for topic in quiet:
            relay.load_one(topic, 30)
        by_us(relay, 10, 10)
    relay.assert_equal()


def test_a_topic_left_out_for_a_turn_is_not_copied_again(relay: Relay):
    """Selected in our first and third turn, not in the second."""
    busy, other, *_ = relay.topics
    by_us(relay, 100, 20)
    for topics in (busy, ""):
        relay.mark()
        relay.load_one(busy, 40)
        with relay.java() as java:
            relay.wait_until_java_copied(java, busy)
            java.stop()
        with relay.ours(topics) as ours:
            ours.wait_until_caught_up(partitions=relay.topics[busy])
            ours.stop()
    relay.load_one(other, 40)
    by_us(relay, 10, 10)

    relay.assert_equal()


def test_names_unchanged_are_taken_over_as_well(west: KafkaCluster, tmp_path: Path):
    """IdentityReplicationPolicy: the copy has the name of the original, positions the same keys."""
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
        by_us(relay, 300, 40)
        by_java(relay, 200, 40)
        by_us(relay, 100, 40)
        relay.assert_equal()


def test_java_after_our_kill_copies_again_what_came_after_our_position(relay: Relay):
    """At least once, and no more than that: the copy goes back to our last position and on from there, in order."""
    topic = next(iter(relay.topics))
    relay.load(400)
    partitions = sum(relay.topics.values())
    with relay.ours(worker={"offset.flush.interval.ms": "1000"}) as ours:
        ours.wait_until_caught_up(partitions=partitions)
        wait_until(
            "all positions are stored",
            lambda: len(relay.positions()) == partitions,
            poll_s=0.2,
        )
        relay.load_one(topic, 3_000)
        ours.wait_until_caught_up(partitions=partitions)
        ours.kill()
    stored = {partition: found.source_offset for partition, found in relay.positions().items()}
    relay.mark()
    relay.load(50)
    ends = relay.source.end_offsets(topic)
    following = sum(end - 1 - stored[TopicPartition(topic, number)] for number, end in ends.items())
    wanted = relay.target_end(topic) + following
    with relay.java() as java:
        wait_until(
            "Java has copied everything",
            lambda: relay.target_end(topic) >= wanted,
            poll_s=0.2,
        )
        relay.wait_until_java_copied(java, *list(relay.topics)[1:])
        java.stop()
    assert_copied_again_from(relay, topic, stored)
    relay.assert_equal(*list(relay.topics)[1:])


def test_we_after_javas_kill_copy_again_what_came_after_its_position(relay: Relay):
    """The other way round it is the same: nothing is lost, and Java's stored position is where we begin, in order."""
    topic = next(iter(relay.topics))
    relay.mark()
    relay.load(400)
    partitions = sum(relay.topics.values())
    with relay.java({f"{relay.target.name}.offset.flush.interval.ms": "5000"}) as java:
        relay.wait_until_java_copied(java)
        wait_until(
            "Java has stored all positions",
            lambda: sum(one.source_offset + 1 for one in relay.positions().values()) == 3 * 400,
            poll_s=0.2,
        )
        relay.load_one(topic, 3_000)
        relay.wait_until_java_copied(java, topic)
        java.kill()
    stored = {partition: found.source_offset for partition, found in relay.positions().items()}
    assert len(stored) == partitions
    relay.load(50)
    with relay.ours() as ours:
        relay.wait_until_we_copied(ours)
        assert ours.stop() == 0

    assert_copied_again_from(relay, topic, stored)
    relay.assert_equal(*list(relay.topics)[1:])


def assert_copied_again_from(relay: Relay, topic: str, stored: Mapping[TopicPartition, int]) -> None:
    """Each partition is copied up to some record, and again from behind its stored position, all in order."""
    for number in range(relay.topics[topic]):
        sent = [one for one in contents(records(relay.source, topic)) if one[0] == number]
        found = [one for one in contents(records(relay.target, relay.remote(topic))) if one[0] == number]
        repeated = len(found) - len(sent)
        at = stored[TopicPartition(topic, number)] + 1
        assert sent[: at + repeated] + sent[at:] == found
