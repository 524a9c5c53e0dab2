"""A small world for the ownership protocol: brokers, a source, and a scheduler that interleaves everything.

An actor takes one step at a time: a process makes one broker request, a connection delivers one batch, or the
coordinator writes one marker. Between two steps, processes die, sleep and wake, leaders change, and time passes.
Every choice comes from a chooser (`tests.model.chooser`), so a seed or a list of choices repeats a run.
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
    Busy,
    Done,
    LogEnd,
    Producer,
    Refused,
    Unavailable,
)
from mirrorflow_core.writer.partition_start import MARKER_WAIT_MS
from mirrorflow_core.writer.position import WriterPosition
from mirrorflow_core.writer.transaction_log import LogBatch, decided_records
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
UNAVAILABLE_MS: Final = 50  # the product's five seconds; then a partition without a leader is unavailable
IDLE_LIMIT_MS: Final = 600_000  # connections.max.idle.ms
TIMESTAMP_TYPE: Final = "message.timestamp.type"
FIRST_EPOCH = 16  # of the ids of a new cluster, which saves the first InitProducerId requests
NO_RESPONSE: Final = -1  # in place of an error code: the response is lost
RETRIABLE: Final = {NOT_LEADER_OR_FOLLOWER, NOT_ENOUGH_REPLICAS}


@dataclass
class Call:
    """One broker request, which is sent and executed and returns in one step, unless its response is lost."""

    execute: Callable[[], Any]
    lost: Any = None  # the result if the response is lost; None: the request is repeated
    api: str = ""  # the request type, if a late copy of the request would have effects


@dataclass
class Until:
    """Waits for a condition, or for a time."""

    condition: Callable[[], bool] | None = None
    deadline_ms: int | None = None


Coroutine = Generator[Call | Until, Any, Any]


@dataclass(eq=False)
class Actor:
    """A coroutine of *process*, or of the world if that is None."""

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

    def _advance(self, result: Any) -> None:
        try:
            self.operation = self.coroutine.send(result)
        except StopIteration:
            self.operation, self.is_over = None, True


@dataclass(eq=False)
class Connection:
    """Produce requests in flight to one leader; the broker handles one after the other."""

    partition: TopicPartition
    leader_epoch: int
    queue: deque[tuple[ProducedBatch, Callable[[Any], None]]] = field(default_factory=deque)
    sent_ms: int = 0
    is_cut: bool = False  # whether responses are lost
    actor: Actor | None = None
    process: Any = None


@dataclass(frozen=True, kw_only=True)
class Options:
    """The properties of a world."""

    partitions: int = 2
    records: int = 40
    is_kafka_3: bool = False
    stamps_time: bool = False
    old_share: float = 0.0  # of source records that are too old for plain batches
    gap_share: float = 0.0

    first_epoch: int | None = None  # of each id; None: FIRST_EPOCH
    id_expiration_ms: int = 7 * 86_400_000
    producer_expiration_ms: int = 86_400_000
    steps_max: int = 30_000
    loses_responses: bool = True
    # Requests whose connection breaks can arrive later, after their repetition and all later requests.
    delays_requests: bool = False
    loses_only: frozenset[str] = frozenset()  # the requests that can be lost; empty: all
    loss_rate: float = 0.004
    # The time that the target needs for each produced record, and the coordinator for each request.
    record_ms: int = 0
    coordinator_ms: int = 0
    transaction_timeout_ms: int = 60_000
    on_request: Callable[["World", requests.Request], None] | None = None  # called before each request
    # Selects the requests of a task recovery before which a process sleeps.
    sleeps_before: Callable[[requests.Request], bool] | None = None


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
        self.leaders = {
            partition: ModelLeader(rules, configs, lambda value: value) for partition in self.data
        }
        self.leaders[CLAIMS] = ModelLeader(rules, {}, lambda claim: claim.flow)
        self.sources = {partition: SourceLog() for partition in self.data}
        self.source_offsets: dict[tuple[TopicPartition, int], int] = {}  # by partition and record number
        # Partitions and producer ids whose transactions a session has committed.
        self.completed: set[tuple[TopicPartition, int]] = set()
        # The target and source offsets at which counts of copied records have started.
        self.counts: defaultdict[TopicPartition, list[tuple[int, int]]] = defaultdict(list)
        self.coordinator = Coordinator(self)
        self.coordinator.expiration_ms = self.options.id_expiration_ms
        # The leader epochs in client metadata, which lag behind elections.
        self.metadata = dict.fromkeys(self.leaders, 0)
        self.reached = dict.fromkeys(self.leaders, 0)  # the leader epochs of the brokers that they connect to
        self.position_losses = 0  # how often the offsets topic has lost its records
        self.positions: list[TopicPartition] = []  # the partitions of the offsets topic
        self.add_positions_partition()
        self.processes: list[Any] = []
        self.connections: list[Connection] = []
        self.sequences: dict[tuple[int, int, TopicPartition], int] = {}
        self.busy: set[Any] = set()
        self.lost_next: set[str] = set()  # request types whose next request is lost
        self.unanswered: set[tuple[Any, Producer]] = set()  # processes and producers with a lost response
        # The producer epochs of each partition's newest owner, which alone may write to it.
        self.owners: dict[TopicPartition, tuple[tuple[int, int], frozenset[tuple[int, int]]]] = {}
        self.foreign: set[tuple[int, int]] = set()
        self.denied: set[TopicPartition] = set()  # data partitions without Write permission
        self.unavailable: set[TopicPartition] = set()  # partitions that return when the others are copied
        self.is_settling = False
        self.is_ended = False  # a switchover has ended the flow
        self.before_marker: Callable[[TopicPartition, Marker], None] | None = None
        self.epochs_given = 0
        self.names: set[str] = set()
        self.slow_markers_until = 0
        self.record_ms, self.busy_until_ms = self.options.record_ms, 0
        self.ranks: dict[tuple[int, int], int] = {}  # the order in which producer epochs were assigned
        self.last: Actor | None = None
        self._cumulative_weights: list[float] = []
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

    def by_offsets_partition(
        self, positions: Iterable[WriterPosition]
    ) -> dict[TopicPartition, tuple[WriterPosition, ...]]:
        """The positions by offsets-topic partition, as a client with outdated metadata may assign them."""
        if len(self.positions) == 1:
            return {POSITIONS: tuple(positions)}
        by_partition: dict[TopicPartition, tuple[WriterPosition, ...]] = {}
        for position in positions:
            partition = self.positions[
                hash(position.partition + 7) % self.random.randint(1, len(self.positions))
            ]
            by_partition[partition] = (*by_partition.get(partition, ()), position)
        return by_partition

    def elect(
        self, partition: TopicPartition, end: int, *, is_restarted: bool = False, is_same_broker: bool = False
    ) -> None:
        """Elects a leader whose log ends at *end*; client metadata changes later.

        The same broker can lead again with a new epoch; its connections stay unless it is restarted.
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
            self._cumulative_weights = []
        return actor

    def abandon(self, actor: Actor) -> None:
        """Stops *actor*; the request that it has sent may be executed later, or never."""
        operation = actor.operation
        if not actor.is_over and isinstance(operation, Call) and self.random.random() < 0.5:
            self.spawn(f"late {actor.name}", _late(operation))
        actor.is_over = True

    def enabled(self) -> list[Actor]:
        self.actors = [actor for actor in self.actors if not actor.is_over]
        self._cumulative_weights = []
        return [actor for actor in self.actors if self._is_enabled(actor)]

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
        """Lets one actor take a step; returns False when nothing can happen any more."""
        self.steps += 1
        self.now_ms += STEP_MS
        actor = self._random_actor() if isinstance(self.chooser, Seeded) else self._chosen_actor()
        if actor is None:
            return self._pass_time()
        self.last = actor
        if actor.process is not None:
            actor.process.count_step(self.steps)
        call = actor.operation
        if isinstance(call, Call) and call.api in self.lost_next:
            self.lost_next.discard(call.api)
            actor.step(is_lost=True)
            return True
        if not isinstance(call, Call) or not self._may_be_lost(actor, call):
            actor.step()
            return True
        ways = 4 if self.options.delays_requests else 3
        match self.chooser.choose(ways, self.options.loss_rate):
            case 0:
                actor.step()
                return True
            case 2:  # executed, but the response is lost
                if call.lost is not None or call.api:
                    call.execute()
            case 3 if call.api:  # arrives later
                self._delay(actor.name, call)
        self.faults_left -= 1
        actor.step(is_lost=True)
        return True

    def _may_be_lost(self, actor: Actor, call: Call) -> bool:
        options = self.options
        return (
            self.faults_left > 0
            and options.loses_responses
            and actor.process is not None
            and (not options.loses_only or call.api in options.loses_only)
        )

    def _delay(self, name: str, call: Call) -> None:
        self.events.append(f"{self.steps} {call.api} of {name} is delayed")
        late = self.spawn(f"late {name}", _late(call))
        if self.random.random() < 0.3:
            self.slow_down(late)

    def _random_actor(self) -> Actor | None:
        """A random enabled actor, drawn by weight; None without one."""
        if not self.actors:
            return None
        if self.random.random() < 0.01:
            self.random.choice(self.actors).weight = self.random.choice((0.03, 0.3, 1.0, 3.0))
            self._cumulative_weights = []
        if len(self._cumulative_weights) != len(self.actors):
            self._cumulative_weights = list(accumulate(actor.weight for actor in self.actors))
        for _ in range(6):
            index = bisect_right(
                self._cumulative_weights, self.random.random() * self._cumulative_weights[-1]
            )
            actor = self.actors[min(index, len(self.actors) - 1)]
            if self._is_enabled(actor):
                return actor
        enabled = self.enabled()
        return self.random.choices(enabled, [actor.weight for actor in enabled])[0] if enabled else None

    def _chosen_actor(self) -> Actor | None:
        """An enabled actor by choice; the quiet way is the one that acted last."""
        order = self.enabled()
        if not order:
            return None
        if self.last in order:
            order = [self.last, *(actor for actor in order if actor is not self.last)]
        return order[self.chooser.choose(len(order), 0.0)]

    def _pass_time(self) -> bool:
        deadlines = [
            actor.operation.deadline_ms
            for actor in self.actors
            if isinstance(actor.operation, Until)
            and actor.operation.deadline_ms is not None
            # Deadlines of dead processes do not count.
            and (actor.process is None or not actor.process.is_dead)
        ]
        frozen = [
            process.frozen_until
            for process in self.processes
            if not process.is_dead and process.frozen_until > self.steps
        ]
        if frozen:
            # Remaining faults can happen during the sleep.
            self.steps = self.steps if self.faults_left > 0 else min(frozen)
            return True
        if not deadlines:
            return False
        self.now_ms = max(self.now_ms, min(deadlines))
        return True

    # -- coordinator

    def _abort_timed_out(self) -> Coroutine:
        """Aborts timed-out transactions every transaction.abort.timed.out.transaction.cleanup.interval.ms."""
        while True:
            yield Until(deadline_ms=self.now_ms + self.options.transaction_timeout_ms // 6)
            self.coordinator.abort_timed_out(self.now_ms)

    def write_marker(self, partition: TopicPartition, marker: Marker, done: Callable[[int], None]) -> None:
        """Implements `tests.model.coordinator.Markers`."""
        actor = self.spawn(f"marker {partition}", self._marker(partition, marker, done))
        if self.steps < self.slow_markers_until:
            self.slow_down(actor)

    def _marker(self, partition: TopicPartition, marker: Marker, done: Callable[[int], None]) -> Coroutine:
        leader = self.leaders[partition]
        if self.before_marker is not None:
            self.before_marker(partition, marker)
        if self.options.is_kafka_3:
            yield Until(lambda: leader.is_online)
        # 4.x drops the marker of a partition that has no leader at that time (KAFKA-20734).
        code = yield Call(partial(self._append_marker, leader, marker))
        if code == NONE:
            offset, epoch = leader.log.end - 1, leader.epoch
            yield Until(lambda: leader.log.high_watermark > offset or leader.epoch != epoch)
            if leader.epoch != epoch and leader.log.end <= offset:
                # The new leader does not have the marker, so the coordinator writes it again.
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
        previous = self.coordinator.metadata_of(transactional_id)
        code, producer_id, epoch = self.coordinator.init_producer_id(
            transactional_id, self.options.transaction_timeout_ms, self.now_ms
        )
        if code == CONCURRENT_TRANSACTIONS:
            return Busy()
        if code != NONE:
            return refused(code)
        self.epochs_given += 1
        self.names.add(transactional_id)
        if previous is None:
            metadata = self.coordinator.metadata_of(transactional_id)
            assert metadata is not None
            metadata.epoch = epoch = max(epoch, self.options.first_epoch or FIRST_EPOCH)
        self.ranks[producer_id, epoch] = self.epochs_given
        return Producer(transactional_id, producer_id, epoch)

    # -- produce

    def append(self, partition: TopicPartition, batch: ProducedBatch) -> Any:
        """Appends *batch*; returns `Appended` or an error code."""
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
            self._check_fence(partition, batch)
        return appended

    def _check_fence(self, partition: TopicPartition, batch: ProducedBatch) -> None:
        """Records a violation if a fenced writer has written *batch*."""
        writer = batch.producer_id, batch.producer_epoch
        if partition in self.owners and writer not in self.foreign | self.owners[partition][1]:
            self.violations.append(f"a fenced writer {writer} wrote {batch.values} to {partition}")
        if self.is_ended and partition in self.data and writer not in self.foreign:
            self.violations.append(f"{batch.values} was written to {partition} after the flow had ended")

    def own(self, partition: TopicPartition, rank: tuple[int, int], producers: Iterable[Producer]) -> None:
        """Makes *producers* the only ones that may write to *partition*, unless there is a newer owner."""
        if partition not in self.owners or self.owners[partition][0] <= rank:
            self.owners[partition] = (
                rank,
                frozenset((producer.producer_id, producer.epoch) for producer in producers),
            )

    def slow_down(self, actor: Actor) -> None:
        """Makes the scheduler select *actor* very rarely."""
        actor.weight = 0.002
        self._cumulative_weights = []

    def connect(self, process: Any, partition: TopicPartition) -> Connection:
        """Opens a connection to the leader of *partition*."""
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
                start_ms = max(self.now_ms, self.busy_until_ms)
                self.busy_until_ms = start_ms + self.record_ms * len(connection.queue[0][0].values)
                yield Until(deadline_ms=self.busy_until_ms)
            response = yield from self._replicated(
                self.leaders[partition], (yield Call(partial(self._append_next, partition, connection)))
            )
            _, receive = connection.queue.popleft()
            if not connection.is_cut:
                receive(response if isinstance(response, int) else (response, self.leaders[partition].epoch))

    def _append_next(self, partition: TopicPartition, connection: Connection) -> Any:
        if partition in self.denied:
            return TOPIC_AUTHORIZATION_FAILED
        is_closed = self.now_ms - connection.sent_ms > IDLE_LIMIT_MS
        if is_closed or connection.leader_epoch != self.leaders[partition].epoch:
            return NOT_LEADER_OR_FOLLOWER
        return self.append(partition, connection.queue[0][0])

    # -- requests of the protocol

    def perform(self, process: Any, steps: requests.Steps[Any]) -> Coroutine:
        """Runs a generator of the protocol; makes independent requests one after the other, in any order."""
        responses: tuple[Any, ...] | None = None
        while True:
            try:
                pending = next(steps) if responses is None else steps.send(responses)
            except StopIteration as stop:
                return stop.value
            results: list[Any] = [None] * len(pending)
            order = list(range(len(pending)))
            if isinstance(self.chooser, Seeded):
                self.random.shuffle(order)
            for index in order:
                results[index] = yield from self._respond(process, pending[index])
            responses = tuple(results)

    def _respond(self, process: Any, request: requests.Request) -> Coroutine:
        if self.options.on_request is not None:
            self.options.on_request(self, request)
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
                        partition, lambda leader: self._batches(partition, leader, start, end)
                    )
                )
            case requests.ReadAborted(partition, offset):
                return (
                    yield from self._read(partition, lambda leader: self._aborted(partition, leader, offset))
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
            case requests.ReportLoss(partition, _, reason):
                process.lost(partition, reason)
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
        """The monotonic clock of *process*, which starts at 0."""
        start_ms: int = process.start_ms
        return self.now_ms - start_ms

    def wall_ms(self, process: Any) -> int:
        """The wall clock of *process*."""
        ahead_ms: int = process.clock_ms
        return self.now_ms + ahead_ms

    def _read(self, partition: TopicPartition, read: Callable[[ModelLeader], Any]) -> Coroutine:
        leader = self.leaders[partition]
        yield Until(
            lambda: leader.is_online, self.now_ms + UNAVAILABLE_MS if partition in self.data else None
        )
        if not leader.is_online:
            return Unavailable(MirrorFlowError(f"{partition} has no leader"))
        return (yield Call(lambda: read(leader)))

    def _read_source(self, partition: TopicPartition, read: Callable[[SourceLog], Any]) -> Coroutine:
        source = self.sources[partition]
        if not source.is_online:
            yield Until(lambda: source.is_online, self.now_ms + UNAVAILABLE_MS)
        if not source.is_online:
            return Unavailable(MirrorFlowError(f"the source of {partition} has no leader"))
        return (yield Call(lambda: read(source)))

    def is_copied_except(self, partitions: Iterable[TopicPartition]) -> bool:
        """Returns whether all partitions except *partitions* are copied to the end of the source."""
        left_out = frozenset(partitions)
        return all(
            not source.records or source.records[-1].number in self.leaders[partition].delivered()[-1:]
            for partition, source in self.sources.items()
            if partition not in left_out
        )

    def is_available(self, partition: TopicPartition) -> bool:
        """Returns whether a partition can be read on the source and written on the target."""
        is_led = self.leaders[partition].is_writable and self.sources[partition].is_online
        return is_led and partition not in self.denied

    @staticmethod
    def _log_end(leader: ModelLeader) -> LogEnd:
        return LogEnd(leader.log.start, leader.last_stable_offset, leader.log.high_watermark, leader.epoch)

    @staticmethod
    def _batches(
        partition: TopicPartition, leader: ModelLeader, start: int, end: int
    ) -> tuple[LogBatch, ...] | Unavailable:
        """A log that was cut off since its end was read does not serve the range."""
        if end > leader.log.high_watermark:
            return Unavailable(MirrorFlowError(f"{partition} does not serve {end - 1}"))
        return tuple(
            batch for batch in leader.batches if batch.last_offset >= start and batch.base_offset < end
        )

    @staticmethod
    def _aborted(partition: TopicPartition, leader: ModelLeader, offset: int) -> dict[int, int] | Unavailable:
        if offset >= leader.last_stable_offset:
            return Unavailable(MirrorFlowError(f"{partition} does not serve {offset}"))
        return {
            aborted.producer_id: aborted.first_offset
            for aborted in leader.log.aborted
            if aborted.first_offset < offset <= aborted.last_offset < leader.log.high_watermark
        }

    @staticmethod
    def _epoch_end(leader: ModelLeader, epoch: int) -> requests.LeaderEpochEnd:
        return requests.LeaderEpochEnd(epoch, leader.log.end_of_epoch(epoch).end_offset)

    def _mapped(self, partition: TopicPartition, leader: ModelLeader, target_offset: int) -> int:
        """The offset map: the source offset after the last record that was copied before *target_offset*."""
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
        next_offset = self.source_offsets[partition, last] + 1 if rows else 0
        later = [source_offset for begin, source_offset in self.counts[partition] if begin >= end]
        return min([next_offset, *later])

    def _start_counts(self, positions: Iterable[WriterPosition]) -> None:
        for position in positions:
            if position.records == 0:
                earlier = [
                    known for known in self.counts[position.topic_partition] if known[0] < position.target_end
                ]
                self.counts[position.topic_partition] = [
                    *earlier,
                    (position.target_end, position.next_source_offset),
                ]

    def transaction(self, process: Any, request: requests.Transaction) -> Coroutine:
        """Runs one whole transaction."""
        producer = request.producer
        left_out = {
            partition: MirrorFlowError(f"{partition} is denied")
            for partition in request.partitions
            if partition in self.denied
        }
        partitions = set(request.partitions) - left_out.keys()
        by_offsets_partition = self.by_offsets_partition(request.positions) if request.positions else {}
        partitions |= {*by_offsets_partition, *(self.positions if request.is_barrier else ())}
        partitions |= {CLAIMS} if request.is_barrier else set()
        partitions |= {CLAIMS} if request.claim is not None or not partitions else set()
        key = process, producer.transactional_id
        yield Until(lambda: key not in self.busy)
        self.busy.add(key)
        try:
            code = yield from self.add_partitions(process, producer, partitions)
            if code != NONE:
                return refused(code)
            appends: list[tuple[TopicPartition, tuple[object, ...]]]
            appends = [(CLAIMS, (request.claim,))] if request.claim is not None else []
            appends += [*by_offsets_partition.items()]
            for partition, values in appends:
                response = yield from self.append_in_transaction(process, producer, partition, values)
                if isinstance(response, int):
                    return refused(response)
            self._start_counts(request.positions)
            if request.commit:
                revived = {
                    (partition, id_)
                    for partition in request.partitions
                    for id_, _ in self.leaders[partition].revived()
                }
                self.completed |= {
                    (partition, id_) for partition, id_ in revived if id_ == producer.producer_id
                }
            code = yield from self.end_transaction(process, producer, commit=request.commit)
            if code == NONE and request.positions and not (yield from self.await_marker(producer)):
                return refused(NO_RESPONSE)
            return Done(left_out) if code == NONE else refused(code)
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
        """Waits until all positions of the producer are decided; False if that takes longer than a marker needs."""
        leaders, until_ms = (
            [self.leaders[partition] for partition in self.positions],
            self.now_ms + MARKER_WAIT_MS,
        )

        def is_decided() -> bool:
            logs = [decided_records(leader.batches, WriterPosition) for leader in leaders]
            is_online = all(leader.is_online for leader in leaders)
            return is_online and all(producer.producer_id not in log.open_records for log in logs)

        yield Until(is_decided, until_ms)
        return is_decided()

    def is_unanswered(self, process: Any, producer: Producer) -> bool:
        """Returns whether a request of *producer* may still arrive in a later transaction of this epoch."""
        return (process, producer) in self.unanswered

    def _until_free(self, api: str, request: Callable[[], int]) -> Coroutine:
        """Repeats a request while markers of the last transaction are missing; after 30 s it counts as refused.

        `Cluster.call` repeats a repeatable request whose response is lost, and sometimes gives up.
        """
        until_ms = self.now_ms + 30_000
        while True:
            if self.options.coordinator_ms:
                yield Until(deadline_ms=self.now_ms + self.options.coordinator_ms)
            code = yield Call(request, lost=NO_RESPONSE, api=api)
            if code == NO_RESPONSE and may_repeat(api) and self.random.random() < 0.8:
                continue
            if code != CONCURRENT_TRANSACTIONS or self.now_ms >= until_ms:
                return code
            yield Until(deadline_ms=self.now_ms + 20)

    def append_in_transaction(
        self, process: Any, producer: Producer, partition: TopicPartition, values: tuple[object, ...]
    ) -> Coroutine:
        """Appends one batch; returns `Appended` when it is replicated, or an error code."""
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
        response = yield Call(partial(self.append, partition, batch), lost=NO_RESPONSE, api="Produce")
        if response == NO_RESPONSE:
            self.unanswered.add((process, producer))
        if isinstance(response, int):
            return response
        self.sequences[key] = self.sequences.get(key, -1) + len(values)
        return (yield from self._replicated(leader, response))

    @staticmethod
    def _replicated(leader: ModelLeader, response: Any) -> Coroutine:
        """Waits until the batch is replicated; after an election the response is NOT_LEADER_OR_FOLLOWER."""
        if isinstance(response, int):
            return response
        epoch = leader.epoch
        yield Until(
            lambda: (
                leader.log.high_watermark > response.last_offset
                or leader.epoch != epoch
                or leader.loses_replicas
            )
        )
        if leader.loses_replicas:
            return NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return NOT_LEADER_OR_FOLLOWER if leader.epoch != epoch else response


def refused(code: int) -> Refused:
    """The response of the protocol to a request that failed with *code*."""
    return Refused(None if code == NO_RESPONSE else code)


def _late(operation: Call) -> Coroutine:
    yield operation
