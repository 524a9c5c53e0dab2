"""A simulated Kafka cluster: brokers, topics, leaders, and what they answer.

Fetch and produce come and go as bytes (`tests.model.wire`). Other requests come as kafka-python's objects and are answered
by namespaces with the fields of its responses. What a leader decides is `tests.model.leader`'s, what the coordinator does
`tests.model.coordinator`'s; here is who is asked, when, and what the answer is made of (`KafkaApis`, `ReplicaManager`).
"""

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, Protocol

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire.batch import Batch, split
from tests.model import errors
from tests.model.admin_answers import AdminAnswers
from tests.model.coordinator import Coordinator, Marker
from tests.model.errors import RefusedError
from tests.model.fetching import Fetching
from tests.model.leader import PartitionLeader
from tests.model.producer_state import KAFKA_4, Rules, VerificationStateEntry
from tests.model.wire import FETCH, PRODUCE, Produced, ProduceRequest, read_produce, write_produced

Reply = Callable[[Any], None]
VERIFICATION_S = 0.0002  # a leader asks the coordinator, and is answered
MARKER_S = 0.0005
# The error that the producer receives for the coordinator's error (ReplicaManager.handleProduceAppend).
_TRANSLATED = {
    errors.PRODUCER_FENCED: errors.INVALID_PRODUCER_EPOCH,
    errors.CONCURRENT_TRANSACTIONS: errors.NOT_ENOUGH_REPLICAS,
    errors.COORDINATOR_NOT_AVAILABLE: errors.NOT_ENOUGH_REPLICAS,
    errors.NOT_COORDINATOR: errors.NOT_ENOUGH_REPLICAS,
}


class Scheduler(Protocol):
    """The part of the world that a cluster needs."""

    @property
    def wall_ms(self) -> int: ...

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Do *action* so much later."""


@dataclass(slots=True)
class Partition:
    """A partition and the broker that leads it; -1: it has no leader."""

    node_id: int
    leader: PartitionLeader
    watchers: dict[Callable[[], None], None] = field(default_factory=dict)  # of long polls
    # Brokers that are cut off from all others, and believe that they lead it.
    deposed: dict[int, PartitionLeader] = field(default_factory=dict)

    def changed(self) -> None:
        """Something can be fetched that could not before."""
        for watcher in list(self.watchers):
            watcher()


@dataclass(slots=True)
class Topic:
    """A topic with its settings, which its partitions share."""

    name: str
    topic_id: uuid.UUID
    configs: dict[str, str]
    partitions: list[Partition]


class SimulatedCluster(AdminAnswers):
    """A simulated cluster; its brokers are numbered from 1."""

    def __init__(
        self,
        alias: str,
        world: Scheduler,
        *,
        brokers: int = 1,
        rules: Rules = KAFKA_4,
        transactional_ids: bool = True,
    ) -> None:
        self.alias = alias
        self.cluster_id = f"cluster-{alias}"
        self.rules = rules
        self.world = world
        self.up = set(range(1, brokers + 1))
        self.brokers = frozenset(self.up)
        self.topics: dict[str, Topic] = {}
        self.configs = {
            "producer.id.expiration.ms": "86400000",
            "transactional.id.expiration.ms": "604800000",
            "transaction.state.log.replication.factor": "1",
            "fetch.max.bytes": "57671680",
        }
        self.may_use_transactional_ids = transactional_ids
        self.marker_s = MARKER_S  # how long a marker takes to its partition
        self.coordinator = Coordinator(self)
        self.coordinator_node = 1
        self._topics_made = 0
        self._fetching = Fetching(self)

    # -- topics

    def create_topic(self, name: str, partitions: int, configs: dict[str, str] | None = None) -> Topic:
        """A new topic; leaders are spread over the brokers."""
        self._topics_made += 1
        topic_id = uuid.uuid5(uuid.NAMESPACE_DNS, f"{self.alias} {name} {self._topics_made}")
        topic = Topic(name, topic_id, dict(configs or {}), [])
        nodes = sorted(self.brokers)
        for number in range(partitions):
            one = Partition(nodes[number % len(nodes)], PartitionLeader(self.rules, topic.configs))
            one.leader.changed = one.changed
            topic.partitions.append(one)
        self.topics[name] = topic
        return topic

    def delete_topic(self, name: str) -> None:
        """It is gone at once; long polls of it are answered."""
        for one in self.topics.pop(name).partitions:
            one.node_id = -1
            one.changed()

    def partition(self, at: TopicPartition) -> Partition | None:
        topic = self.topics.get(at.topic)
        return topic.partitions[at.partition] if topic and at.partition < len(topic.partitions) else None

    def led(self, node_id: int, at: TopicPartition, *, epoch: int = -1) -> PartitionLeader:
        """The leader of a partition as *node_id* has it, for a client that believes in *epoch*. Raises RefusedError.

        ReplicaManager.getPartitionOrError, Partition.checkCurrentLeaderEpoch.
        """
        found = self.partition(at)
        if found is None:
            raise RefusedError(errors.UNKNOWN_TOPIC_OR_PARTITION)
        leader = found.deposed.get(node_id, found.leader)
        if epoch >= 0 and epoch != leader.epoch:
            is_old = epoch < leader.epoch
            raise RefusedError(errors.FENCED_LEADER_EPOCH if is_old else errors.UNKNOWN_LEADER_EPOCH)
        if found.node_id != node_id and leader is found.leader:
            raise RefusedError(errors.NOT_LEADER_OR_FOLLOWER)
        return leader

    def depose(self, at: TopicPartition, seconds: float) -> None:
        """The leader is cut off for so long from all brokers, not from clients; another one is elected cleanly."""
        found = self.partition(at)
        assert found is not None
        node_id = found.node_id
        if len(self.up) < 2 or node_id in found.deposed:
            return
        deposed = found.deposed[node_id] = found.leader.left_behind()
        deposed.changed = found.changed
        found.leader.elect(found.leader.log.high_watermark)
        self.move(at)

        def over() -> None:
            if found.deposed.pop(node_id, None) is not None:
                deposed.step_down()

        self.world.after(seconds, over)

    def move(self, at: TopicPartition) -> None:
        """Let the next broker that is up lead the partition."""
        found = self.partition(at)
        assert found is not None
        others = sorted(self.up - {found.node_id}) or sorted(self.up)
        found.node_id = others[0] if others else -1

    # -- requests

    def handle(self, node_id: int, api: str, version: int, request: Any, reply: Reply) -> None:
        """Answer *request*, now or later; a fetch or produce comes as the bytes of its body."""
        if api == "Produce":
            self._produce(node_id, read_produce(request), lambda answers: reply(write_produced(answers)))
        elif api == "Fetch":
            self._fetching.handle(node_id, version, request, reply)
        else:
            reply(self.answer(node_id, api, version, request))

    @staticmethod
    def api_of(api_key: int) -> str:
        return {PRODUCE: "Produce", FETCH: "Fetch"}[api_key]

    # -- produce

    def _produce(
        self, node_id: int, request: ProduceRequest, reply: Callable[[dict[tuple[str, int], Produced]], None]
    ) -> None:
        batches = {TopicPartition(*key): split(bytearray(data))[0] for key, data in request.batches}
        transactional = {at: batch for at, batch in batches.items() if batch.is_transactional}
        answers: dict[tuple[str, int], Produced] = {}

        def answered(at: TopicPartition, one: Produced) -> None:
            if at not in answers:
                answers[at] = one
                if len(answers) == len(batches):
                    reply({key: answers[key] for key in batches})

        if transactional and not (request.transactional_id and self.may_use_transactional_ids):
            # KafkaApis.handleProduceRequest refuses the request as a whole.
            for at in batches:
                answered(at, Produced(errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
            return
        guards: dict[TopicPartition, VerificationStateEntry] = {}
        for at, batch in transactional.items() if self.rules.verifies else ():
            try:
                guard = self.led(node_id, at).start_verification(batch, self.world.wall_ms)
            except RefusedError as error:
                answered(at, Produced(error.code))
            else:
                guards |= {} if guard is None else {at: guard}
        append = partial(self._append_all, node_id, request, batches, guards, answered)
        if guards:
            # The coordinator is another broker: between its answer and the append the transaction may end.
            self.world.after(VERIFICATION_S, append)
        else:
            append()

    def _append_all(
        self,
        node_id: int,
        request: ProduceRequest,
        batches: dict[TopicPartition, Batch],
        guards: dict[TopicPartition, VerificationStateEntry],
        answered: Callable[[TopicPartition, Produced], None],
    ) -> None:
        for at, batch in batches.items():
            code = errors.NONE
            if at in guards:
                assert request.transactional_id is not None
                code = self.coordinator.verify(
                    request.transactional_id, batch.producer_id, batch.producer_epoch, at
                )
            if code:
                answered(at, Produced(_TRANSLATED.get(code, code)))
            else:
                self._append(node_id, at, batch, guards.get(at), request.timeout_ms, partial(answered, at))

    def _append(
        self,
        node_id: int,
        at: TopicPartition,
        batch: Batch,
        guard: VerificationStateEntry | None,
        timeout_ms: int,
        answered: Callable[[Produced], None],
    ) -> None:
        try:
            leader = self.led(node_id, at)
            found = leader.append(batch, self.world.wall_ms, guard)
        except RefusedError as error:
            answered(Produced(error.code, message=str(error)))
            return

        def told(code: int) -> None:
            start = leader.log.start
            answered(Produced(code) if code else Produced(0, found.base_offset, found.log_append_time, start))

        leader.when_replicated(found.last_offset, told)
        if found.last_offset >= leader.log.high_watermark:
            self.world.after(timeout_ms / 1000, lambda: answered(Produced(errors.REQUEST_TIMED_OUT)))

    # -- markers: coordinator.Markers

    def write_marker(self, partition: TopicPartition, marker: Marker, done: Callable[[int], None]) -> None:
        """Bring a marker to the leader of *partition*, again and again while there is none."""
        self.world.after(self.marker_s, lambda: self._write_marker(partition, marker, done))

    def _write_marker(self, at: TopicPartition, marker: Marker, done: Callable[[int], None]) -> None:
        found = self.partition(at)
        if found is None:
            done(errors.NONE)  # deleted: nothing is to be ended there
            return
        retry = partial(self.write_marker, at, marker, done)
        if found.node_id not in self.up:
            self.world.after(1.0, retry)
            return
        try:
            offset = found.leader.append_marker(
                producer_id=marker.producer_id,
                producer_epoch=marker.epoch,
                kind=marker.kind,
                coordinator_epoch=marker.coordinator_epoch,
                now_ms=self.world.wall_ms,
            )
        except RefusedError as error:
            done(error.code)
            return
        found.leader.when_replicated(offset, lambda code: retry() if code else done(errors.NONE))

    # -- time

    def tick_minutes(self) -> None:
        """What brokers do from time to time: forget producers and transactional ids, abort timed-out transactions."""
        now_ms = self.world.wall_ms
        expiration_ms = int(self.configs["producer.id.expiration.ms"])
        for topic in self.topics.values():
            for one in topic.partitions:
                one.leader.expire(now_ms, expiration_ms)
        self.coordinator.expiration_ms = int(self.configs["transactional.id.expiration.ms"])
        self.coordinator.expire(now_ms)

    def abort_timed_out(self) -> None:
        """transaction.abort.timed.out.transaction.cleanup.interval.ms: every ten seconds."""
        self.coordinator.abort_timed_out(self.world.wall_ms)


def namespace(**fields: Any) -> SimpleNamespace:
    """A response object."""
    return SimpleNamespace(**fields)
