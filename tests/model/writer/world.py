"""A small world for the ownership protocol: brokers, a source, and a scheduler that interleaves everything.

An actor does one thing at a time: a coroutine of a process makes one broker request, a connection delivers one batch, a
coordinator writes one marker. Between any two of them, processes die, sleep and thaw, leaders change, time passes.
Every choice comes from a chooser (`tests.model.chooser`), so a run is repeated by its seed or by its list of choices.
"""

import random
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Any, Final

from mirrorflow_core.errors import MirrorFlowError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.writer import broker_requests as requests
from mirrorflow_core.writer.broker_requests import (
    NO_RESPONSE,
    Busy,
    Done,
    LogEnd,
    Producer,
    Refused,
    Unavailable,
)
from mirrorflow_core.writer.partition_start import MARKER_WAIT_MS
from mirrorflow_core.writer.position import WriterPosition
from mirrorflow_core.writer.transaction_log import decided_records
from mirrorflow_kafka.client.repeatable_requests import may_repeat
from tests.model.chooser import Chooser, Seeded
from tests.model.coordinator import Coordinator, Marker
from tests.model.errors import (
    CONCURRENT_TRANSACTIONS,
    NONE,
    NOT_ENOUGH_REPLICAS,
    NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    NOT_LEADER_OR_FOLLOWER,
    TOPIC_AUTHORIZATION_FAILED,
    RefusedError,
)
from tests.model.producer_state import KAFKA_3_9, KAFKA_4
from tests.model.writer.partition_logs import ModelLeader, ProducedBatch, SourceLog, rows_of

CLAIMS: Final = TopicPartition("claims", 0)
POSITIONS: Final = TopicPartition("positions", 0)
STEP_MS: Final = 1
ANSWER_MS: Final = (
    50  # the product's five seconds, after which a partition without a leader is not waited for
)
IDLE_LIMIT_MS: Final = 600_000  # connections.max.idle.ms
TIMESTAMP_TYPE: Final = "message.timestamp.type"
FIRST_EPOCH = 16  # of the ids of a new cluster, to save the first calls of InitProducerId
RETRIABLE: Final = {NOT_LEADER_OR_FOLLOWER, NOT_ENOUGH_REPLICAS}


@dataclass
class Call:
    """One broker request of a coroutine: sent, executed and answered in one step, unless its answer is lost."""

    execute: Callable[[], Any]
    lost: Any = None  # the answer if none arrives; None: the request is sent until one arrives
    api: str = ""  # of a request that changes something, so that its late copy matters


@dataclass
class Until:
    """Wait for a condition, or for a time."""

    condition: Callable[[], bool] | None = None
    deadline_ms: int | None = None


Coroutine = Generator[Call | Until, Any, Any]


@dataclass(eq=False)
class Actor:
    """A coroutine of *process*; None: of the world."""

    name: str
    coroutine: Coroutine
    process: Any = None
    operation: Call | Until | None = None
    weight: float = 1.0
    is_over: bool = False

    def start(self) -> None:
        self._advance(None)

    def step(self, *, is_lost: bool = False) -> None:
        operation = self.operation
        if isinstance(operation, Until):
            self._advance(None)
            return
        assert operation is not None
        if is_lost and operation.lost is None:
            return  # repeated
        self._advance(operation.lost if is_lost else operation.execute())

    def _advance(self, answer: Any) -> None:
        try:
            self.operation = self.coroutine.send(answer)
        except StopIteration:
            self.operation, self.is_over = None, True


@dataclass(eq=False)
class Connection:
    """Produce requests on their way to one leader, in order; the broker takes the next when one is answered."""

    partition: TopicPartition
    leader_epoch: int
    queue: deque[tuple[ProducedBatch, Callable[[Any], None]]] = field(default_factory=deque)
    sent_ms: int = 0
    is_cut: bool = False  # no answers arrive any more
    actor: Actor | None = None
    process: Any = None


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a world is like."""

    partitions: int = 2
    records: int = 40
    is_kafka_3: bool = False
    stamps_time: bool = False
    old_share: float = 0.0  # of the source's records, too old to be plain
    gap_share: float = 0.0

    first_epoch: int | None = None  # of each id; None: FIRST_EPOCH
    id_expiration_ms: int = 7 * 86_400_000
    producer_expiration_ms: int = 86_400_000
    steps_max: int = 30_000
    loses_answers: bool = True
    # Requests whose connection breaks can arrive later, behind their repetition and everything that followed.
    delays_requests: bool = False
    loses_only: frozenset[str] = frozenset()  # the requests that can be lost; empty: all
    loss_rate: float = 0.004
    # How long the target needs for each record that is produced, over all connections, and the coordinator for each request.
    record_ms: int = 0
    coordinator_ms: int = 0
    transaction_timeout_ms: int = 60_000
    disturb: Callable[["World", requests.Request], None] | None = None  # called before each request
    sleeps_before: Callable[[requests.Request], bool] | None = None  # of those that recover a task


@dataclass
class World:
    """The brokers, the source and the processes of one run."""

    chooser: Chooser
    options: Options
    now_ms: int = 10 * 86_400_000
    steps: int = 0
    actors: list[Actor] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    faults_left: int = 0
    events: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        rules = self.rules = KAFKA_3_9 if self.options.is_kafka_3 else KAFKA_4
        configs = {TIMESTAMP_TYPE: "LogAppendTime"} if self.options.stamps_time else {}
        self.random: random.Random = self.chooser.random
        self.data = [TopicPartition("data", number) for number in range(self.options.partitions)]
        self.leaders = {one: ModelLeader(rules, configs, lambda value: value) for one in self.data}
        self.leaders[CLAIMS] = ModelLeader(rules, {}, lambda claim: claim.flow)
        self.sources = {one: SourceLog() for one in self.data}
        self.source_offsets: dict[tuple[TopicPartition, int], int] = {}  # of record numbers
        self.completed: set[tuple[TopicPartition, int]] = (
            set()
        )  # transactions of these ids, which a start has committed
        # Where counts of copied records have begun: offsets of the target, and of the source.
        self.counts: defaultdict[TopicPartition, list[tuple[int, int]]] = defaultdict(list)
        self.coordinator = Coordinator(self)
        self.coordinator.expiration_ms = self.options.id_expiration_ms
        # Leader epochs as clients find them: later than the elections.
        self.metadata = dict.fromkeys(self.leaders, 0)
        self.reached = dict.fromkeys(self.leaders, 0)  # the leader epochs of the brokers that they connect to
        self.position_losses = 0  # how often the offsets topic has lost its records
        self.positions: list[TopicPartition] = []  # the partitions of the offsets topic
        self.add_positions_partition()
        self.processes: list[Any] = []
        self.connections: list[Connection] = []
        self.sequences: dict[tuple[int, int, TopicPartition], int] = {}
        self.busy: set[Any] = set()
        self.lost_next: set[str] = set()  # requests of which the next one is lost on its way
        self.unanswered: set[tuple[Any, Producer]] = set()  # by process; a request's answer was lost
        # Which plain and transactional epochs may write to a partition: those of its newest owner.
        self.owners: dict[TopicPartition, tuple[tuple[int, int], frozenset[tuple[int, int]]]] = {}
        self.foreign: set[tuple[int, int]] = set()
        self.denied: set[TopicPartition] = set()  # data partitions whose topic must not be written
        self.away: set[TopicPartition] = set()  # those that come back when the others are copied
        self.is_settling = False
        self.before_marker: Callable[[TopicPartition, Marker], None] | None = None
        self.given = 0
        self.names: set[str] = set()
        self.slow_markers_until = 0
        self.record_ms, self.busy_until_ms = self.options.record_ms, 0
        self.ranks: dict[
            tuple[int, int], int
        ] = {}  # of producer epochs, by the order in which they were given
        self.last: Actor | None = None
        self._cumulated: list[float] = []
        for partition in self.data:
            self._fill(partition, self.options.records)
        if self.record_ms:
            self.spawn("time limit", self._abort_timed_out())

    def _fill(self, partition: TopicPartition, count: int) -> None:
        source, left = self.sources[partition], count
        while left > 0:
            run = min(left, self.random.randint(1, 12))
            is_old = self.random.random() < self.options.old_share
            source.append(run, self.now_ms - (3 * 86_400_000 if is_old else 1000))
            left -= run
            if self.random.random() < self.options.gap_share:
                source.skip(self.random.randint(1, 4))
        for record in source.records:
            self.source_offsets[partition, record.number] = record.offset

    def add_positions_partition(self) -> None:
        """Add a partition to the offsets topic."""
        new = TopicPartition(POSITIONS.topic, len(self.positions))
        self.leaders[new] = ModelLeader(self.rules, {}, lambda position: position.topic_partition)
        self.metadata[new] = self.reached[new] = 0
        self.positions.append(new)

    def by_home(
        self, positions: Iterable[WriterPosition]
    ) -> dict[TopicPartition, tuple[WriterPosition, ...]]:
        """The positions by their partition of the offsets topic, as a client with older metadata may see it."""
        if len(self.positions) == 1:
            return {POSITIONS: tuple(positions)}
        found: dict[TopicPartition, tuple[WriterPosition, ...]] = {}
        for one in positions:
            home = self.positions[hash(one.partition + 7) % self.random.randint(1, len(self.positions))]
            found[home] = (*found.get(home, ()), one)
        return found

    def elect(
        self, partition: TopicPartition, end: int, *, is_restarted: bool = False, is_same_broker: bool = False
    ) -> None:
        """Elect a leader whose log ends at *end*; clients find out later.

        The same broker can lead again, with another epoch: its connections stay, unless it is restarted.
        """
        leader = self.leaders[partition]
        leader.elect(end, is_restarted=is_restarted)
        if is_same_broker:
            self.reached[partition] = leader.epoch
        if is_same_broker and not is_restarted:
            for connection in self.connections:
                if connection.partition == partition:
                    connection.leader_epoch = leader.epoch
        self.spawn(f"metadata of {partition}", self._propagate(partition, leader.epoch))

    def _propagate(self, partition: TopicPartition, epoch: int) -> Coroutine:
        yield Until(deadline_ms=self.now_ms + self.random.choice((0, 3, 30, 200)))
        self.metadata[partition] = max(self.metadata[partition], epoch)
        self.reached[partition] = max(self.reached[partition], epoch)

    # -- scheduling

    def spawn(self, name: str, coroutine: Coroutine, process: Any = None) -> Actor:
        actor = Actor(name, coroutine, process)
        if isinstance(self.chooser, Seeded):
            actor.weight = self.random.choice((0.03, 0.3, 1.0, 1.0, 3.0))
        actor.start()
        if not actor.is_over:
            self.actors.append(actor)
            self._cumulated = []
        return actor

    def abandon(self, actor: Actor) -> None:
        """Stop *actor*; the request that it has sent may be executed later, or never."""
        operation = actor.operation
        if not actor.is_over and isinstance(operation, Call) and self.random.random() < 0.5:
            self.spawn(f"late {actor.name}", _late(operation))
        actor.is_over = True

    def enabled(self) -> list[Actor]:
        self.actors = [one for one in self.actors if not one.is_over]
        self._cumulated = []
        return [one for one in self.actors if self._is_enabled(one)]

    def _is_enabled(self, actor: Actor) -> bool:
        if actor.is_over or (actor.process is not None and not actor.process.is_running(self.steps)):
            return False
        operation = actor.operation
        if operation.__class__ is Call:
            return True
        assert isinstance(operation, Until)
        return (operation.condition is not None and operation.condition()) or (
            operation.deadline_ms is not None and self.now_ms >= operation.deadline_ms
        )

    def step(self) -> bool:
        """Let one actor do one thing. False: nothing can happen any more."""
        self.steps += 1
        self.now_ms += STEP_MS
        actor = self._drawn() if isinstance(self.chooser, Seeded) else self._chosen()
        if actor is None:
            return self._pass_time()
        self.last = actor
        if actor.process is not None:
            actor.process.made_step(self.steps)
        call = actor.operation
        if isinstance(call, Call) and call.api in self.lost_next:
            self.lost_next.discard(call.api)
            actor.step(is_lost=True)
            return True
        if not isinstance(call, Call) or not self._may_be_lost(actor, call):
            actor.step()
            return True
        ways = 4 if self.options.delays_requests else 3
        match self.chooser.point(ways, self.options.loss_rate):
            case 0:
                actor.step()
                return True
            case 2:  # executed, but the answer is lost
                if call.lost is not None or call.api:
                    call.execute()
            case 3 if call.api:  # it arrives later
                self._delay(actor.name, call)
        self.faults_left -= 1
        actor.step(is_lost=True)
        return True

    def _may_be_lost(self, actor: Actor, call: Call) -> bool:
        options = self.options
        return (
            self.faults_left > 0
            and options.loses_answers
            and actor.process is not None
            and (not options.loses_only or call.api in options.loses_only)
        )

    def _delay(self, name: str, call: Call) -> None:
        self.events.append(f"{self.steps} {call.api} of {name} is delayed")
        late = self.spawn(f"late {name}", _late(call))
        if self.random.random() < 0.3:
            self.slow_down(late)

    def _drawn(self) -> Actor | None:
        """An actor that can act, by the weights of all."""
        if not self.actors:
            return None
        if self.random.random() < 0.01:
            self.random.choice(self.actors).weight = self.random.choice((0.03, 0.3, 1.0, 3.0))
            self._cumulated = []
        if len(self._cumulated) != len(self.actors):
            self._cumulated = list(accumulate(one.weight for one in self.actors))
        for _ in range(6):
            at = bisect_right(self._cumulated, self.random.random() * self._cumulated[-1])
            actor = self.actors[min(at, len(self.actors) - 1)]
            if self._is_enabled(actor):
                return actor
        enabled = self.enabled()
        return self.random.choices(enabled, [one.weight for one in enabled])[0] if enabled else None

    def _chosen(self) -> Actor | None:
        """An actor that can act; the quiet way is the one that acted last."""
        order = self.enabled()
        if not order:
            return None
        if self.last in order:
            order = [self.last, *(one for one in order if one is not self.last)]
        return order[self.chooser.point(len(order), 0.0)]

    def _pass_time(self) -> bool:
        deadlines = [
            one.operation.deadline_ms
            for one in self.actors
            if isinstance(one.operation, Until)
            and one.operation.deadline_ms is not None
            # What a dead process waited for does not hold up the time.
            and (one.process is None or not one.process.is_dead)
        ]
        frozen = [
            one.frozen_until for one in self.processes if not one.is_dead and one.frozen_until > self.steps
        ]
        if frozen:
            # While faults are to come, they can come during the sleep.
            self.steps = self.steps if self.faults_left > 0 else min(frozen)
            return True
        if not deadlines:
            return False
        self.now_ms = max(self.now_ms, min(deadlines))
        return True

    # -- coordinator

    def _abort_timed_out(self) -> Coroutine:
        """The coordinator aborts transactions that take too long (transaction.abort.timed.out.transaction.cleanup.interval.ms)."""
        while True:
            yield Until(deadline_ms=self.now_ms + self.options.transaction_timeout_ms // 6)
            self.coordinator.abort_timed_out(self.now_ms)

    def write_marker(self, partition: TopicPartition, marker: Marker, done: Callable[[int], None]) -> None:
        """See `tests.model.coordinator.Markers`."""
        actor = self.spawn(f"marker {partition}", self._marker(partition, marker, done))
        if self.steps < self.slow_markers_until:
            self.slow_down(actor)

    def _marker(self, partition: TopicPartition, marker: Marker, done: Callable[[int], None]) -> Coroutine:
        leader = self.leaders[partition]
        if self.before_marker is not None:
            self.before_marker(partition, marker)
        if self.options.is_kafka_3:
            yield Until(lambda: leader.is_online)
        # 4.x drops the markers of a partition that has no leader at that moment (KAFKA-20734).
        code = yield Call(partial(self._append_marker, leader, marker))
        if code == NONE:
            at, epoch = leader.log.end - 1, leader.epoch
            yield Until(lambda: leader.log.high_watermark > at or leader.epoch != epoch)
            if leader.epoch != epoch and leader.log.end <= at:
                # The new leader does not have it: the coordinator writes it again.
                yield from self._marker(partition, marker, done)
                return
        done(NONE if code == NOT_LEADER_OR_FOLLOWER else code)

    def _append_marker(self, leader: ModelLeader, marker: Marker) -> int:
        if not leader.is_online:
            return NOT_LEADER_OR_FOLLOWER
        try:
            leader.append_marker(
                producer_id=marker.producer_id,
                producer_epoch=marker.epoch,
                kind=marker.kind,
                coordinator_epoch=marker.coordinator_epoch,
                now_ms=self.now_ms,
            )
        except RefusedError as error:
            return error.code
        return NONE

    def init_producer_id(self, transactional_id: str) -> Producer | Busy | Refused:
        found = self.coordinator.known(transactional_id)
        code, producer_id, epoch = self.coordinator.init_producer_id(
            transactional_id, self.options.transaction_timeout_ms, self.now_ms
        )
        if code == CONCURRENT_TRANSACTIONS:
            return Busy()
        if code != NONE:
            return Refused(code)
        self.given += 1
        self.names.add(transactional_id)
        if found is None:
            known = self.coordinator.known(transactional_id)
            assert known is not None
            known.epoch = epoch = max(epoch, self.options.first_epoch or FIRST_EPOCH)
        self.ranks[producer_id, epoch] = self.given
        return Producer(transactional_id, producer_id, epoch)

    # -- produce

    def append(self, partition: TopicPartition, batch: ProducedBatch) -> Any:
        """Append *batch*; `Appended`, or an error code."""
        leader = self.leaders[partition]
        try:
            guard = None
            if batch.is_transactional:
                guard = leader.start_verification(batch, self.now_ms)  # type: ignore[arg-type]
                if guard is not None:
                    code = self.coordinator.verify(
                        batch.transactional_id, batch.producer_id, batch.producer_epoch, partition
                    )
                    if code != NONE:
                        return code
            before = leader.log.end
            appended = leader.append(batch, self.now_ms, guard)  # type: ignore[arg-type]
        except RefusedError as error:
            return error.code
        if leader.log.end > before:
            self._watch(partition, batch)
        return appended

    def _watch(self, partition: TopicPartition, batch: ProducedBatch) -> None:
        """A fenced writer has no effect after its fence."""
        writer = batch.producer_id, batch.producer_epoch
        if partition in self.owners and writer not in self.foreign | self.owners[partition][1]:
            self.violations.append(f"a fenced writer {writer} wrote {batch.values} to {partition}")

    def own(self, partition: TopicPartition, rank: tuple[int, int], producers: Iterable[Producer]) -> None:
        """From now on only these may write to *partition*, unless a newer owner is known."""
        if partition not in self.owners or self.owners[partition][0] <= rank:
            self.owners[partition] = rank, frozenset((one.producer_id, one.epoch) for one in producers)

    def slow_down(self, actor: Actor) -> None:
        """It hardly gets its turn any more."""
        actor.weight = 0.002
        self._cumulated = []

    def connect(self, process: Any, partition: TopicPartition) -> Connection:
        """A new connection to the leader of *partition*."""
        connection = Connection(partition, self.reached[partition], sent_ms=self.now_ms, process=process)
        self.connections.append(connection)
        connection.actor = self.spawn(f"connection {partition}", self._deliver(partition, connection))
        return connection

    def _deliver(self, partition: TopicPartition, connection: Connection) -> Coroutine:
        while True:
            yield Until(lambda: bool(connection.queue) or connection.is_cut)
            if not connection.queue:
                return
            if connection.is_cut and self.now_ms - connection.sent_ms > IDLE_LIMIT_MS:
                return
            if self.record_ms:
                begun_ms = max(self.now_ms, self.busy_until_ms)
                self.busy_until_ms = begun_ms + self.record_ms * len(connection.queue[0][0].values)
                yield Until(deadline_ms=self.busy_until_ms)
            answer = yield from self._replicated(
                self.leaders[partition], (yield Call(partial(self._deliver_one, partition, connection)))
            )
            _, receive = connection.queue.popleft()
            if not connection.is_cut:
                receive(answer if isinstance(answer, int) else (answer, self.leaders[partition].epoch))

    def _deliver_one(self, partition: TopicPartition, connection: Connection) -> Any:
        if partition in self.denied:
            return TOPIC_AUTHORIZATION_FAILED
        is_closed = self.now_ms - connection.sent_ms > IDLE_LIMIT_MS
        if is_closed or connection.leader_epoch != self.leaders[partition].epoch:
            return NOT_LEADER_OR_FOLLOWER
        return self.append(partition, connection.queue[0][0])

    # -- requests of the protocol

    def perform(self, process: Any, steps: requests.Steps[Any]) -> Coroutine:
        """Run a generator of the protocol; independent requests are made in any order, one after the other."""
        answers: tuple[Any, ...] | None = None
        while True:
            try:
                asked = next(steps) if answers is None else steps.send(answers)
            except StopIteration as stop:
                return stop.value
            found: list[Any] = [None] * len(asked)
            order = list(range(len(asked)))
            if isinstance(self.chooser, Seeded):
                self.random.shuffle(order)
            for at in order:
                found[at] = yield from self._answer(process, asked[at])
            answers = tuple(found)

    def _answer(self, process: Any, request: requests.Request) -> Coroutine:
        if self.options.disturb is not None:
            self.options.disturb(self, request)
        match request:
            case requests.InitProducerId(name):
                return (yield Call(partial(self.init_producer_id, name), api="InitProducerId"))
            case requests.Transaction():
                return (yield from self.transaction(process, request))
            case requests.ReadClaims(_):
                return (yield from self._read(CLAIMS, lambda leader: tuple(leader.batches)))
            case requests.ReadPositions(_):
                logs = {}
                for partition in tuple(self.positions):
                    logs[partition] = yield from self._read(partition, lambda leader: tuple(leader.batches))
                return tuple(logs.values())
            case requests.ReadEnd(partition):
                return (yield from self._read(partition, self._log_end))
            case requests.ReadBatches(partition, start, end):
                return (
                    yield from self._read(
                        partition,
                        lambda leader: tuple(
                            one
                            for one in leader.batches
                            if one.last_offset >= start and one.base_offset < end
                        ),
                    )
                )
            case requests.ReadAborted(partition, offset):
                return (
                    yield from self._read(
                        partition,
                        lambda leader: {
                            one.producer_id: one.first_offset
                            for one in leader.log.aborted
                            if one.first_offset < offset <= one.last_offset < leader.log.high_watermark
                        },
                    )
                )
            case requests.ReadLastSequence(partition, producer_id, producer_epoch):
                return (
                    yield from self._read(
                        partition, lambda leader: leader.last_sequence(producer_id, producer_epoch)
                    )
                )
            case requests.ReadSourceStart(partition):
                return (yield from self._read_source(partition, lambda source: source.start))
            case requests.ReadEpochEnd(partition, epoch, on_target):
                if on_target:
                    return (yield from self._read(partition, lambda leader: self._epoch_end(leader, epoch)))
                return (yield from self._read_source(partition, lambda source: source.epoch_end(epoch)))
            case requests.ReadOffsetMap(partition, target_offset, _):
                return (
                    yield from self._read(
                        partition, lambda leader: self._mapped(partition, leader, target_offset)
                    )
                )
            case requests.ReportLoss(partition, _, why):
                process.lost(partition, why)
                return None
            case requests.ReadIdleLimit():
                process.has_waited_for_connections = True
                return IDLE_LIMIT_MS
            case requests.Pause(ms):
                if ms:
                    yield Until(deadline_ms=self.now_ms + ms + self.random.randint(0, 5))
                return self.monotonic_ms(process)
            case requests.ReadWallClock():
                return self.wall_ms(process)
        raise AssertionError(request)

    def monotonic_ms(self, process: Any) -> int:
        """What the monotonic clock of *process* shows: it began at its start."""
        began_ms: int = process.began_ms
        return self.now_ms - began_ms

    def wall_ms(self, process: Any) -> int:
        """What the wall clock of *process* shows."""
        ahead_ms: int = process.clock_ms
        return self.now_ms + ahead_ms

    def _read(self, partition: TopicPartition, read: Callable[[ModelLeader], Any]) -> Coroutine:
        leader = self.leaders[partition]
        yield Until(lambda: leader.is_online, self.now_ms + ANSWER_MS if partition in self.data else None)
        if not leader.is_online:
            return Unavailable(MirrorFlowError(f"{partition} has no leader"))
        return (yield Call(lambda: read(leader)))

    def _read_source(self, partition: TopicPartition, read: Callable[[SourceLog], Any]) -> Coroutine:
        source = self.sources[partition]
        if not source.is_online:
            yield Until(lambda: source.is_online, self.now_ms + ANSWER_MS)
        if not source.is_online:
            return Unavailable(MirrorFlowError(f"the source of {partition} has no leader"))
        return (yield Call(lambda: read(source)))

    def is_copied_but(self, partitions: Iterable[TopicPartition]) -> bool:
        """Whether all but *partitions* are copied to the end of the source."""
        left_out = frozenset(partitions)
        return all(
            not source.records or source.records[-1].number in self.leaders[one].delivered()[-1:]
            for one, source in self.sources.items()
            if one not in left_out
        )

    def is_available(self, partition: TopicPartition) -> bool:
        """Whether a partition can be read on the source and written on the target."""
        is_led = self.leaders[partition].is_writable and self.sources[partition].is_online
        return is_led and partition not in self.denied

    @staticmethod
    def _log_end(leader: ModelLeader) -> LogEnd:
        return LogEnd(leader.log.start, leader.last_stable_offset, leader.log.high_watermark, leader.epoch)

    @staticmethod
    def _epoch_end(leader: ModelLeader, epoch: int) -> requests.LeaderEpochEnd:
        return requests.LeaderEpochEnd(epoch, leader.log.end_of_epoch(epoch).end_offset)

    def _mapped(self, partition: TopicPartition, leader: ModelLeader, target_offset: int) -> int:
        """The offset map: the source offset behind the last record that was copied before *target_offset*."""
        rows = [
            row
            for batch in (*leader.cleaned, *leader.log.batches)
            if not batch.is_control and not leader.log.is_aborted(batch)
            if (batch.base_offset, batch.leader_epoch) not in leader.was_aborted
            for row in rows_of(batch)
            if row[0] < target_offset and row[1] >= 0
        ]
        end = max((offset + 1 for offset, _ in rows), default=0)
        last = max((number for _, number in rows), default=-1)
        behind = self.source_offsets[partition, last] + 1 if rows else 0
        later = [source_offset for begin, source_offset in self.counts[partition] if begin >= end]
        return min([behind, *later])

    def _begin_counts(self, positions: Iterable[WriterPosition]) -> None:
        for one in positions:
            if one.records == 0:
                earlier = [known for known in self.counts[one.topic_partition] if known[0] < one.target_end]
                self.counts[one.topic_partition] = [*earlier, (one.target_end, one.next_source_offset)]

    def transaction(self, process: Any, request: requests.Transaction) -> Coroutine:
        """Run one whole transaction."""
        producer = request.producer
        left_out = {
            one: MirrorFlowError(f"{one} is denied") for one in request.partitions if one in self.denied
        }
        partitions = set(request.partitions) - left_out.keys()
        by_home = self.by_home(request.positions) if request.positions else {}
        partitions |= {*by_home, *(self.positions if request.is_barrier else ())}
        partitions |= {CLAIMS} if request.is_barrier else set()
        partitions |= {CLAIMS} if request.claim is not None or not partitions else set()
        key = process, producer.transactional_id
        yield Until(lambda: key not in self.busy)
        self.busy.add(key)
        try:
            code = yield from self.add_partitions(process, producer, partitions)
            if code != NONE:
                return Refused(code)
            appends: list[tuple[TopicPartition, tuple[object, ...]]]
            appends = [(CLAIMS, (request.claim,))] if request.claim is not None else []
            appends += [*by_home.items()]
            for partition, values in appends:
                answer = yield from self.append_in_transaction(process, producer, partition, values)
                if isinstance(answer, int):
                    return Refused(answer)
            self._begin_counts(request.positions)
            if request.commit:
                revived = {(one, id_) for one in request.partitions for id_, _ in self.leaders[one].revived()}
                self.completed |= {one for one in revived if one[1] == producer.producer_id}
            code = yield from self.end_transaction(process, producer, commit=request.commit)
            if code == NONE and request.positions and not (yield from self.await_marker(producer)):
                return Refused(NO_RESPONSE)
            return Done(left_out) if code == NONE else Refused(code)
        finally:
            self.busy.discard(key)

    # Transactions, as `mirrorflow_kafka.writer.producer_transactions` runs them.

    def add_partitions(self, process: Any, producer: Producer, partitions: set[TopicPartition]) -> Coroutine:
        if self.is_unanswered(process, producer):
            return NO_RESPONSE
        code = yield from self._until_free(
            "AddPartitionsToTxn",
            lambda: self.coordinator.add_partitions(*producer, partitions, self.now_ms),
        )
        self._note_lost_response(process, producer, code)
        return code

    def end_transaction(self, process: Any, producer: Producer, *, commit: bool) -> Coroutine:
        if self.is_unanswered(process, producer):
            return NO_RESPONSE
        code = yield from self._until_free(
            "EndTxn", lambda: self.coordinator.end(*producer, commit=commit, now_ms=self.now_ms)
        )
        self._note_lost_response(process, producer, code)
        return code

    def _note_lost_response(self, process: Any, producer: Producer, code: int) -> None:
        if code == NO_RESPONSE and not producer.transactional_id.endswith("lock"):
            self.unanswered.add((process, producer))

    def await_marker(self, producer: Producer) -> Coroutine:
        """Wait until none of the producer's positions is undecided; False if that takes longer than a marker needs."""
        leaders, until_ms = [self.leaders[one] for one in self.positions], self.now_ms + MARKER_WAIT_MS

        def is_decided() -> bool:
            logs = [decided_records(leader.batches, WriterPosition) for leader in leaders]
            is_online = all(leader.is_online for leader in leaders)
            return is_online and all(producer.producer_id not in log.open_records for log in logs)

        yield Until(is_decided, until_ms)
        return is_decided()

    def is_unanswered(self, process: Any, producer: Producer) -> bool:
        """Whether a request of *producer* may still arrive in a later transaction of this epoch."""
        return (process, producer) in self.unanswered

    def _until_free(self, api: str, ask: Callable[[], int]) -> Coroutine:
        """Repeat while the markers of the last transaction are on their way; for 30 s, then it counts as refused.

        `Cluster.call` repeats what may be repeated when its answer is lost, and sometimes gives up.
        """
        until_ms = self.now_ms + 30_000
        while True:
            if self.options.coordinator_ms:
                yield Until(deadline_ms=self.now_ms + self.options.coordinator_ms)
            code = yield Call(ask, lost=NO_RESPONSE, api=api)
            if code == NO_RESPONSE and may_repeat(api) and self.random.random() < 0.8:
                continue
            if code != CONCURRENT_TRANSACTIONS or self.now_ms >= until_ms:
                return code
            yield Until(deadline_ms=self.now_ms + 20)

    def append_in_transaction(
        self, process: Any, producer: Producer, partition: TopicPartition, values: tuple[object, ...]
    ) -> Coroutine:
        """Append one batch; its `Appended` once it is replicated, or an error code."""
        key = producer.producer_id, producer.epoch, partition
        leader = self.leaders[partition]
        batch = ProducedBatch(
            producer.producer_id,
            producer.epoch,
            self.sequences.get(key, -1) + 1,
            self.now_ms,
            True,
            values,
            producer.transactional_id,
        )
        answer = yield Call(partial(self.append, partition, batch), lost=NO_RESPONSE, api="Produce")
        if answer == NO_RESPONSE:
            self.unanswered.add((process, producer))
        if isinstance(answer, int):
            return answer
        self.sequences[key] = self.sequences.get(key, -1) + len(values)
        return (yield from self._replicated(leader, answer))

    @staticmethod
    def _replicated(leader: ModelLeader, answer: Any) -> Coroutine:
        """Wait until what was appended is replicated; an election answers that the leader is none any more."""
        if isinstance(answer, int):
            return answer
        epoch = leader.epoch
        yield Until(
            lambda: (
                leader.log.high_watermark > answer.last_offset
                or leader.epoch != epoch
                or leader.loses_replicas
            )
        )
        if leader.loses_replicas:
            return NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return NOT_LEADER_OR_FOLLOWER if leader.epoch != epoch else answer


def _late(operation: Call) -> Coroutine:
    yield operation
