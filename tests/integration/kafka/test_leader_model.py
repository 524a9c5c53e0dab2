"""The model of a partition leader (`tests.model`) responds as real brokers do. The verdicts of the model tests rely on
that.

Producers with and without transactions send random requests. These are next, repeated, older, later and wrapped
sequence numbers, earlier and later epochs, and batches that are too large, damaged, old or stamped by the broker. After
each request the error codes, offsets, timestamps, known producers and log ends of broker and model are compared.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field

import pytest

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import ClientSettings
from mirrorflow_core.wire.records import Record, encode
from mirrorflow_kafka.client.cluster import Cluster
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.installation import OLD_VERSION, VERSION
from tests.integration.kafka.leader_differential import Pair, ProduceResult
from tests.model.batches import SEQUENCES
from tests.model.producer_state import KAFKA_3_9, KAFKA_4

pytestmark = pytest.mark.more

STEPS = 220
SEEDS = 6
BOUND_S = 120.0
DAY_MS = 86_400_000
TOPICS = {
    "plain": {},
    "stamped": {"message.timestamp.type": "LogAppendTime"},
    "compacted": {"cleanup.policy": "compact"},
    "small": {"compression.type": "uncompressed", "max.message.bytes": "1200"},
}
RULES = {OLD_VERSION: KAFKA_3_9, VERSION: KAFKA_4}


@pytest.fixture(scope="module", params=[OLD_VERSION, VERSION])
def broker(request: pytest.FixtureRequest) -> Iterator[KafkaCluster]:
    with KafkaCluster(name="modelled", version=request.param) as cluster:
        yield cluster


@dataclass(slots=True)
class Producer:
    """A producer. It writes in transactions if it has a *transactional_id*."""

    producer_id: int
    epoch: int
    transactional_id: str | None = None
    sent: dict[str, list[tuple[bytes, str | None]]] = field(default_factory=dict)  # for repeats
    members: set[str] = field(default_factory=set)  # topics in the open transaction


class Fuzz:
    """One run of random requests to broker and model (*pair*)."""

    def __init__(self, pair: Pair, seed: int) -> None:
        self.pair = pair
        self.chance = random.Random(seed)
        self.names = {topic: f"{topic}-{seed}" for topic in TOPICS}
        self.producers = [Producer(9_000_000 + seed, 3), Producer(9_100_000 + seed, 16)]
        self.history: list[str] = []

    async def run(self) -> None:
        for number in range(2):
            name = f"model-{self.names['plain']}-{number}"
            real, model = await self.pair.init_producer_id(name)
            self.same("InitProducerId", real, model)
            self.producers.append(Producer(real[1], real[2], name))
        await self.run_steps(STEPS)

    async def run_steps(self, steps: int) -> None:
        for _ in range(steps):
            await self.step()

    async def step(self) -> None:
        producer = self.chance.choice(self.producers)
        draw = self.chance.random()
        if producer.transactional_id is not None and draw < 0.45:
            await self.transact(producer, producer.transactional_id)
        else:
            await self.produce(producer)

    async def transact(self, producer: Producer, transactional_id: str) -> None:
        draw = self.chance.random()
        epoch = producer.epoch + self.chance.choice((0, 0, 0, 0, 0, -1, 1))
        identity = (producer.producer_id, epoch)
        if draw < 0.5:
            topic = self.topic()
            pair = await self.pair.add_partition(transactional_id, identity, self.at(topic))
            self.same(f"AddPartitionsToTxn {identity} {topic}", *pair)
            if not pair[0]:
                producer.members.add(topic)
        elif draw < 0.95:
            pair = await self.pair.end(transactional_id, identity, commit=self.chance.random() < 0.6)
            self.same(f"EndTxn {identity}", *pair)
            producer.members.clear()
            if self.pair.is_stuck(transactional_id):
                self.producers.remove(producer)  # the producer's transactional id stays stuck
                return
        else:
            real, model = await self.pair.init_producer_id(transactional_id)
            self.same("InitProducerId", real, model)
            producer.epoch = real[2]
            producer.members.clear()
        for topic in TOPICS:
            await self.compare(topic)

    async def produce(self, producer: Producer) -> None:
        topic = self.topic()
        sent = producer.sent.setdefault(topic, [])
        if sent and self.chance.random() < 0.25:
            data, transactional_id = self.chance.choice(sent[-8:])
            text = "repeat"
        else:
            data, transactional_id, text = self.batch(producer, topic)
        real, model = await self.pair.produce(self.at(topic), data, transactional_id)
        self.same(f"Produce {text} to {topic} in {transactional_id}", real, model)
        if isinstance(real, ProduceResult) and not real.error:
            sent.append((data, transactional_id))
        await self.compare(topic)

    def batch(self, producer: Producer, topic: str) -> tuple[bytes, str | None, str]:
        """Returns a batch that is valid, or wrong in one of several ways."""
        chance, partition = self.chance, self.at(topic)
        entry = self.pair.model.leaders[partition].producers.producers.get(producer.producer_id)
        last = entry.last_sequence if entry is not None else chance.choice((-1, 41, SEQUENCES - 3))
        sequence = (last + 1 + chance.choice((0, 0, 0, 0, 0, 0, 1, -1, 7, -9))) % SEQUENCES
        if chance.random() < 0.08:
            sequence = 0
        epoch = producer.epoch + chance.choice((0,) * 10 + (-1, 1))
        is_transactional = chance.random() < (0.6 if topic in producer.members else 0.25)
        transactional_id = producer.transactional_id if is_transactional or chance.random() < 0.3 else None
        if is_transactional and transactional_id is None and producer.transactional_id is None:
            is_transactional = False  # a broker refuses such a batch as unauthorized
        count, codec = chance.randint(1, 4), chance.choice((0, 0, 4))
        timestamp_ms = self.pair.model.wall_ms - chance.choice((0, 5_000, DAY_MS // 3))
        keys = (None, b"k") if chance.random() < 0.1 else (b"a", b"b")
        size = chance.choice((1, 1, 1, 500))
        records = [Record(0, timestamp_ms + i, chance.choice(keys), b"v" * size, ()) for i in range(count)]
        data = encode(
            records,
            codec=codec,
            producer_id=producer.producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=is_transactional,
        )
        if chance.random() < 0.02:
            data[-1] ^= 1
        text = f"{producer.producer_id}/{epoch} {sequence}+{count} {'txn' if is_transactional else ''}"
        return bytes(data), transactional_id, text

    def topic(self) -> str:
        return self.chance.choice(("plain", "plain", "plain", "stamped", "compacted", "small"))

    def at(self, topic: str) -> TopicPartition:
        return TopicPartition(self.names[topic], 0)

    async def compare(self, topic: str) -> None:
        self.same(f"remembered of {topic}", *await self.pair.producers(self.at(topic)))
        self.same(f"ends of {topic}", *await self.pair.ends(self.at(topic)))

    def same(self, what: str, real: object, model: object) -> None:
        self.history.append(f"{what}: {real}")
        assert real == model, "\n".join([*self.history[-12:], f"the model has {model}"])


async def connected(broker: KafkaCluster) -> Cluster:
    settings = ClientSettings(
        alias="modelled", client_id="model", properties={"bootstrap.servers": broker.bootstrap}
    )
    return await Cluster.connect(settings, resolve=lambda unresolved: unresolved, timeout_s=30)


async def fuzzing(broker: KafkaCluster, seed: int, then: Callable[[Fuzz], Awaitable[None]]) -> None:
    cluster = await connected(broker)
    try:
        await cluster.refresh([f"{topic}-{seed}" for topic in TOPICS])
        pair = Pair(cluster, RULES[broker.version])
        for topic, configs in TOPICS.items():
            pair.model.create_topic(f"{topic}-{seed}", dict(configs))
        fuzz = Fuzz(pair, seed)
        await fuzz.run()
        await then(fuzz)
    finally:
        await cluster.close()


async def nothing(fuzz: Fuzz) -> None:
    """Adds no step after the random requests."""


def run(broker: KafkaCluster, seed: int, then: Callable[[Fuzz], Awaitable[None]] = nothing) -> None:
    for topic, configs in TOPICS.items():
        broker.create_topic(f"{topic}-{seed}", config=configs)
    asyncio.run(asyncio.wait_for(fuzzing(broker, seed, then), BOUND_S))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_model_responds_as_a_real_broker_does(broker: KafkaCluster, seed: int) -> None:
    """Two idempotent and two transactional producers send to four topics."""
    run(broker, seed)


def test_a_killed_broker_recovers_the_state_that_the_model_recovers(broker: KafkaCluster) -> None:
    """After kill -9, the leader has only the state of its log. Verifications in progress are lost."""

    async def kill_and_continue(fuzz: Fuzz) -> None:
        broker.broker(1).kill()
        broker.broker(1).start()
        await fuzz.pair.restarted()
        for topic in TOPICS:
            await fuzz.compare(topic)
        await fuzz.run_steps(STEPS // 2)

    run(broker, SEEDS, kill_and_continue)
