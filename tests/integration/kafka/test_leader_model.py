"""The model of a partition leader (`tests.model`) answers as real brokers do: what makes its verdicts worth something.

Random requests of producers with and without transactions, with next, repeated, older, later and wrapped sequences, epochs
before and after, batches that are too large, damaged, old or stamped by the broker. Error codes, offsets, times, what is
remembered of producers and where the log ends are compared after each one.
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
from tests.integration.kafka.leader_differential import Answered, Pair
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
    """A producer, which writes in transactions if it has a *transactional_id*."""

    producer_id: int
    epoch: int
    transactional_id: str | None = None
    sent: dict[str, list[tuple[bytes, str | None]]] = field(default_factory=dict)  # for repeats
    members: set[str] = field(default_factory=set)  # topics in the open transaction


class Fuzz:
    """One run of random requests to *pair*."""

    def __init__(self, pair: Pair, seed: int) -> None:
        self.pair = pair
        self.chance = random.Random(seed)
        self.names = {topic: f"{topic}-{seed}" for topic in TOPICS}
        self.producers = [Producer(9_000_000 + seed, 3), Producer(9_100_000 + seed, 16)]
        self.told: list[str] = []

    async def run(self) -> None:
        for number in range(2):
            name = f"model-{self.names['plain']}-{number}"
            real, model = await self.pair.init_producer_id(name)
            self.same("InitProducerId", real, model)
            self.producers.append(Producer(real[1], real[2], name))
        await self.go_on(STEPS)

    async def go_on(self, steps: int) -> None:
        for _ in range(steps):
            await self.step()

    async def step(self) -> None:
        one = self.chance.choice(self.producers)
        what = self.chance.random()
        if one.transactional_id is not None and what < 0.45:
            await self.transact(one, one.transactional_id)
        else:
            await self.produce(one)

    async def transact(self, one: Producer, transactional_id: str) -> None:
        what = self.chance.random()
        epoch = one.epoch + self.chance.choice((0, 0, 0, 0, 0, -1, 1))
        producer = (one.producer_id, epoch)
        if what < 0.5:
            topic = self.topic()
            pair = await self.pair.add_partition(transactional_id, producer, self.at(topic))
            self.same(f"AddPartitionsToTxn {producer} {topic}", *pair)
            if not pair[0]:
                one.members.add(topic)
        elif what < 0.95:
            pair = await self.pair.end(transactional_id, producer, commit=self.chance.random() < 0.6)
            self.same(f"EndTxn {producer}", *pair)
            one.members.clear()
            if self.pair.is_stuck(transactional_id):
                self.producers.remove(one)  # its transactional id is stuck for good
                return
        else:
            real, model = await self.pair.init_producer_id(transactional_id)
            self.same("InitProducerId", real, model)
            one.epoch = real[2]
            one.members.clear()
        for topic in TOPICS:
            await self.compare(topic)

    async def produce(self, one: Producer) -> None:
        topic = self.topic()
        sent = one.sent.setdefault(topic, [])
        if sent and self.chance.random() < 0.25:
            data, transactional_id = self.chance.choice(sent[-8:])
            text = "repeat"
        else:
            data, transactional_id, text = self.batch(one, topic)
        real, model = await self.pair.produce(self.at(topic), data, transactional_id)
        self.same(f"Produce {text} to {topic} in {transactional_id}", real, model)
        if isinstance(real, Answered) and not real.error:
            sent.append((data, transactional_id))
        await self.compare(topic)

    def batch(self, one: Producer, topic: str) -> tuple[bytes, str | None, str]:
        """A batch that may be right or wrong in several ways."""
        chance, at = self.chance, self.at(topic)
        entry = self.pair.model.leaders[at].producers.producers.get(one.producer_id)
        last = entry.last_sequence if entry is not None else chance.choice((-1, 41, SEQUENCES - 3))
        sequence = (last + 1 + chance.choice((0, 0, 0, 0, 0, 0, 1, -1, 7, -9))) % SEQUENCES
        if chance.random() < 0.08:
            sequence = 0
        epoch = one.epoch + chance.choice((0,) * 10 + (-1, 1))
        is_transactional = chance.random() < (0.6 if topic in one.members else 0.25)
        transactional_id = one.transactional_id if is_transactional or chance.random() < 0.3 else None
        if is_transactional and transactional_id is None and one.transactional_id is None:
            is_transactional = False  # a broker refuses that as unauthorized; a flow always has one
        count, codec = chance.randint(1, 4), chance.choice((0, 0, 4))
        when = self.pair.model.wall_ms - chance.choice((0, 5_000, DAY_MS // 3))
        keys = (None, b"k") if chance.random() < 0.1 else (b"a", b"b")
        size = chance.choice((1, 1, 1, 500))
        records = [Record(0, when + i, chance.choice(keys), b"v" * size, ()) for i in range(count)]
        data = encode(
            records,
            codec=codec,
            producer_id=one.producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=is_transactional,
        )
        if chance.random() < 0.02:
            data[-1] ^= 1
        text = f"{one.producer_id}/{epoch} {sequence}+{count} {'txn' if is_transactional else ''}"
        return bytes(data), transactional_id, text

    def topic(self) -> str:
        return self.chance.choice(("plain", "plain", "plain", "stamped", "compacted", "small"))

    def at(self, topic: str) -> TopicPartition:
        return TopicPartition(self.names[topic], 0)

    async def compare(self, topic: str) -> None:
        self.same(f"remembered of {topic}", *await self.pair.producers(self.at(topic)))
        self.same(f"ends of {topic}", *await self.pair.ends(self.at(topic)))

    def same(self, what: str, real: object, model: object) -> None:
        self.told.append(f"{what}: {real}")
        assert real == model, "\n".join([*self.told[-12:], f"the model has {model}"])


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
    """No more."""


def run(broker: KafkaCluster, seed: int, then: Callable[[Fuzz], Awaitable[None]] = nothing) -> None:
    for topic, configs in TOPICS.items():
        broker.create_topic(f"{topic}-{seed}", config=configs)
    asyncio.run(asyncio.wait_for(fuzzing(broker, seed, then), BOUND_S))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_model_answers_as_a_real_broker_does(broker: KafkaCluster, seed: int) -> None:
    """Whatever two idempotent and two transactional producers send to four topics."""
    run(broker, seed)


def test_a_killed_broker_remembers_what_the_model_finds_in_the_log(broker: KafkaCluster) -> None:
    """kill -9 in the middle: what a leader knew besides its log, as who is being verified, is gone."""

    async def killed(fuzz: Fuzz) -> None:
        broker.broker(1).kill()
        broker.broker(1).start()
        await fuzz.pair.restarted()
        for topic in TOPICS:
            await fuzz.compare(topic)
        await fuzz.go_on(STEPS // 2)

    run(broker, SEEDS, killed)
