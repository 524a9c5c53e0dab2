"""A process of the model: it takes a flow and copies, by the product's own decisions.

`mirrorflow_core.writer` decides how the flow is taken and when a start of a task ends, `WriteModeTracker` and `Stream` how each
partition is written. What is here is the shell: it fetches, sends and runs transactions, as `mirrorflow_replicator.copy` does
(`partition_copier`, `partition_writer`, `partition_resumer`, `task_transaction`).
"""

import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, cast

from mirrorflow_core.errors import MirrorFlowError
from mirrorflow_core.partitions import UNKNOWN, OffsetPair, TopicPartition
from mirrorflow_core.send_window import LEAST_BYTES, SendWindow
from mirrorflow_core.settings import LossPolicy
from mirrorflow_core.source_epochs import followed_by
from mirrorflow_core.writer import flow_plan, ownership, task_restart_reason
from mirrorflow_core.writer import write_mode as modes
from mirrorflow_core.writer.broker_requests import NO_RESPONSE, Request, Steps
from mirrorflow_core.writer.claim import RENEW_MS, Claim
from mirrorflow_core.writer.flow_lock import Fenced
from mirrorflow_core.writer.flow_plan import (
    FlowPlan,
    PartitionProblem,
    TaskStart,
    TopicIds,
    WritePoint,
    position_at,
)
from mirrorflow_core.writer.ownership import Ownership
from mirrorflow_core.writer.position import WriteMode, WriterPosition
from mirrorflow_core.writer.stream import Span, Stream, sequence_of
from mirrorflow_core.writer.task_restart_reason import NO_ORDINAL
from mirrorflow_core.writer.write_mode import ChangeMode
from mirrorflow_replicator.copy import position_writer
from mirrorflow_replicator.copy.write_mode_tracker import WriteModeTracker
from tests.model.batches import LOG_APPEND_TIME
from tests.model.errors import (
    INVALID_TXN_STATE,
    MESSAGE_TOO_LARGE,
    NONE,
    OUT_OF_ORDER_SEQUENCE_NUMBER,
)
from tests.model.writer.partition_logs import ProducedBatch, SkippedOffsets, SourceRecords
from tests.model.writer.world import POSITIONS, Call, Connection, Coroutine, Until, World

# The product's five seconds, 250 ms and so on, on the scale of a world where each request takes one millisecond.
POSITION_MS = 25
COMMIT_MS = 15
DRAIN_MS = 10_000
DEPTH = 4
BATCH_RECORDS = 5
# Where the target is slow: a first transaction has some batches, and a connection takes more than a transaction may.
SLOW_RECORD_BYTES = LEAST_BYTES // 12
SLOW_DEPTH = 100


@dataclass
class Recover:
    """The start has ended."""

    acknowledged: list[WriterPosition]  # and not stored


@dataclass(eq=False)
class Copier:
    """One partition in one start of its task."""

    partition: TopicPartition
    start: WritePoint
    mode: WriteModeTracker
    stream: Stream
    read_epoch: int  # leader epoch of the source's record before the next one; -1: unknown
    leader_epoch: int  # of the target, by the task's metadata
    target_epoch: int
    retry_ms: int = 0
    connection: Connection | None = None
    responses: deque[Any] = field(default_factory=deque)
    stored: WriterPosition | None = None
    is_begun: bool = False
    is_resuming: bool = False  # nothing is sent before it is known where to continue
    waits_for_responses: bool = False
    is_held: bool = False
    is_in_transaction: bool = False
    single_in_flight: bool = True  # one batch in flight: the leader may not remember the producer
    resyncs: int = 0
    heard_ms: int = 0
    sent_ms: int = 0
    repeat_at: int | None = None
    is_foreign: bool = False  # the batch there
    refused_next: int = NO_ORDINAL
    has_lost_responses: bool = False
    has_diverged: bool = False
    cut_to: int | None = None  # where the source's log ends, below what was read

    @property
    def is_drained(self) -> bool:
        return not self.stream.in_flight


class Process:
    """One replicator process. *tasks* of them share the partitions."""

    def __init__(
        self,
        world: World,
        name: str,
        *,
        tasks: int,
        waits: bool = False,
        comebacks: int = 2,
        loss_policy: LossPolicy = LossPolicy.ALERT,
    ) -> None:
        self.world, self.name, self.waits, self.comebacks = world, name, waits, comebacks
        self.began_ms: int = world.now_ms
        self.clock_ms: int = 0  # of its wall clock, before that of the world
        rng = world.random
        partitions = list(world.data)
        rng.shuffle(partitions)
        self.plan = FlowPlan(
            claim=Claim(flow="flow", process=name, source_alias="a", tasks=tasks, lock_epoch=-1, time_ms=0),
            assignment=tuple(tuple(partitions[number::tasks]) for number in range(tasks)),
            loss_policy=loss_policy,
        )
        self.losses_seen = 0  # how often the offsets topic had lost its records before the flow was taken
        self.is_dead = False
        self.is_out = False
        self.is_stopping = False
        self.is_over = False
        self.is_owner = False
        self.frozen_until = 0
        self.steps_left = -1  # until it sleeps, for so many steps of the world
        self.sleep_steps = 0
        self.losses: set[TopicPartition] = set()
        self.trimmed: set[TopicPartition] = set()  # of the losses; what was copied is unknown then
        self.problems: dict[TopicPartition, PartitionProblem] = {}
        self.batch_records: dict[TopicPartition, int] = {}  # what the target was found to take
        # Whether it has found that the target sets timestamps; sometimes only the first response shows it.
        self.knows_log_append_time = world.options.stamps_time and rng.random() < 0.7
        self.copied = 0
        self.recoveries = 0
        self.was_fenced = False
        self.has_waited_for_connections = False  # of a writer that cannot be fenced
        self.tasks_left = 0
        world.processes.append(self)
        world.spawn(name, self._live(), self)

    def made_step(self, step: int) -> None:
        """Count down to the next sleep."""
        self.steps_left -= 1
        if self.steps_left == 0:
            self.is_dead = self.sleep_steps == 10**9
            self.frozen_until = step + self.sleep_steps

    def die_after(self, steps: int) -> None:
        """Die after so many requests."""
        self.steps_left, self.sleep_steps = steps + 1, 10**9

    def sleep_after(self, steps: int) -> None:
        """Sleep once, for long, after so many requests."""
        self.steps_left = steps + 1
        self.sleep_steps = self.world.random.choice((150, 400, 800))

    def is_running(self, step: int) -> bool:
        return not self.is_dead and step >= self.frozen_until

    def perform(self, steps: Any) -> Coroutine:
        return self.world.perform(self, steps)

    # -- life

    def _live(self) -> Coroutine:
        for comeback in range(self.comebacks + 1):
            if self.waits or comeback:
                yield from self.perform(ownership.wait_for_turn(self.plan))
            if self.is_stopping:
                break
            self.losses_seen = self.world.position_losses
            taken = yield from self.perform(ownership.take_flow(self._examined(self.plan)))
            if isinstance(taken, Fenced):
                continue
            yield from self._own(taken)
            if not self.is_out:
                break
            self.is_out, self.was_fenced = False, True
        self.is_over = True

    def _examined(self, plan: FlowPlan) -> FlowPlan:
        """*plan* with the partitions that are found to be unavailable; they can become so right after that, too."""
        unavailable = [one for one in self.world.data if not self.world.is_available(one)]
        if not unavailable or self.world.random.random() < 0.3:
            return replace(plan, unavailable={})
        return replace(plan, unavailable=dict.fromkeys(unavailable, MirrorFlowError("unavailable")))

    def _own(self, taken: Ownership) -> Coroutine:
        self.is_owner = True
        self.tasks_left = len(taken.tasks)
        for number, start in enumerate(taken.tasks):
            self._started(taken, start)
            self.world.spawn(f"{self.name}/{number}", self._task(taken, start), self)
        while True:
            next_ms = self.world.now_ms + RENEW_MS
            yield Until(lambda: self.is_out or not self.tasks_left, next_ms)
            if self.is_out or not self.tasks_left:
                break
            if not (yield from self.perform(ownership.renew_claim(taken))):
                self.is_out = True
        yield Until(lambda: not self.tasks_left)
        self.is_owner = False
        if not self.is_out:
            yield from self.perform(ownership.renew_claim(taken, left=True))

    def _sleep_before(
        self, is_moment: Callable[[Request], bool], steps: Steps[TaskStart | Fenced]
    ) -> Steps[TaskStart | Fenced]:
        """Sleep before a request; another process with one task takes the flow then."""
        asked = next(steps)
        while True:
            is_disturbed = self.world.faults_left > 0 and len(self.world.processes) < 4
            if is_disturbed and is_moment(asked[0]):
                self.frozen_until = self.world.steps + self.world.random.randint(20, 150)
                Process(self.world, "XYZ"[len(self.world.processes) - 1], tasks=1)
            responses = yield asked
            try:
                asked = steps.send(responses)
            except StopIteration as stop:
                return cast("TaskStart | Fenced", stop.value)

    def _started(self, taken: Ownership, start: TaskStart) -> None:
        for partition in start.points:
            rank = self.world.ranks[taken.lock[1:]], self.world.ranks[start.producers.plain[1:]]
            self.world.own(partition, rank, (start.producers.transactional, start.producers.plain))
        self.problems |= start.problems

    def lost(self, partition: TopicPartition, why: str) -> None:
        """Note a loss that the protocol reports."""
        self.losses.add(partition)
        if why == PartitionProblem.TARGET_TRIMMED.value:
            self.trimmed.add(partition)

    def _task(self, taken: Ownership, start: TaskStart) -> Coroutine:
        earlier: dict[TopicPartition, WriteModeTracker] = {}
        ids, assigned = start.producers.ids, [*start.points, *start.waiting]
        losses_seen = self.losses_seen
        try:
            while not self.is_out:
                task = Task(self, start, earlier, losses_seen)
                recover = yield from task.copy()
                if recover is None:
                    return
                self.recoveries += 1
                earlier = {copier.partition: copier.mode for copier in task.copiers}
                owned = replace(taken, plan=self._examined(taken.plan))
                losses_seen = self.world.position_losses
                steps = ownership.recover_task(owned, ids, assigned, recover.acknowledged)
                if self.world.options.sleeps_before is not None:
                    steps = self._sleep_before(self.world.options.sleeps_before, steps)
                again = yield from self.perform(steps)
                if isinstance(again, Fenced):
                    self.is_out = True
                    return
                start = again
                self._started(taken, start)
        finally:
            self.tasks_left -= 1


class Task:
    """One start of a task: it copies until it stops or ends."""

    def __init__(
        self,
        process: Process,
        start: TaskStart,
        earlier: dict[TopicPartition, WriteModeTracker],
        losses_seen: int,  # how often the offsets topic had lost its records when the start was begun
    ) -> None:
        self.process, self.start, self.producers = process, start, start.producers
        self.left_out = list(start.waiting)
        self.world = process.world
        self.random: random.Random = process.world.random
        self.age_limit_ms = modes.plain_age_limit_ms(self.world.options.producer_expiration_ms)
        self.copiers = [self._copier(partition, earlier.get(partition)) for partition in start.points]
        self.why = ""  # it has ended
        self.losses_seen = losses_seen
        self.is_leaving = False  # nothing more is sent
        self.has_left = False
        self.depth = SLOW_DEPTH if self.world.options.record_ms else DEPTH
        self.record_bytes = SLOW_RECORD_BYTES if self.world.options.record_ms else 0
        limit_ms = modes.longest_interval_ms(self.world.options.transaction_timeout_ms)
        self.window = SendWindow(limit_ms / 1000, growth=2)
        self.sent_bytes = 0  # in the open transaction
        self.members: dict[Copier, None] = {}  # of the open transaction
        self.wanted: dict[Copier, None] = {}
        self.changing: dict[Copier, int] = {}  # with their resyncs
        self.began_ms = 0
        self.due_ms = self.world.now_ms + POSITION_MS

    def _copier(self, partition: TopicPartition, earlier: WriteModeTracker | None) -> Copier:
        point = self.start.points[partition]
        producers = {
            WriteMode.PLAIN: self.producers.plain,
            WriteMode.TRANSACTION: self.producers.transactional,
        }
        pair = OffsetPair(
            point.next_source_offset - 1, point.records - 1, point.records_end - 1, point.source_epoch
        )
        return Copier(
            partition,
            point,
            WriteModeTracker(point, producers, earlier=earlier),
            Stream(pair, point.epochs),
            read_epoch=point.source_epoch,
            leader_epoch=self.world.metadata[partition],
            target_epoch=point.target_epoch,
            heard_ms=self.world.now_ms,
        )

    def copy(self) -> Coroutine:
        """Copy until the process stops or is out: None; or until the start ends: Recover."""
        name = f"{self.process.name} start"
        actors = [
            self.world.spawn(f"{name} copies", self._copy(), self.process),
            self.world.spawn(f"{name} commits", self._commit_all(), self.process),
        ]
        yield Until(lambda: bool(self.why) or self.has_left or self.process.is_out)
        for actor in actors:
            self.world.abandon(actor)
        self._close()
        if not self.why or self.process.is_out or self.is_leaving:
            return None
        acknowledged = [
            self._position(copier, is_left=copier.is_foreign)
            for copier in self.copiers
            if copier.is_begun and copier.mode.is_plain and not copier.stream.has_fallen_back
        ]
        return Recover([*map(self._stored, self.copiers), *acknowledged])

    def _stored(self, copier: Copier) -> WriterPosition:
        if copier.stored is not None:
            return copier.stored
        return flow_plan.start_position(
            copier.partition, copier.start, self.producers, time_ms=self.world.now_ms, topic_ids=TopicIds()
        )

    def _close(self) -> None:
        """Close the connections; what is on its way may still arrive."""
        self.world.busy.discard((self.process, self.producers.transactional.transactional_id))
        for copier in self.copiers:
            if copier.connection is not None:
                copier.connection.is_cut = True
                if copier.connection.actor is not None and self.random.random() < 0.3:
                    self.world.slow_down(copier.connection.actor)

    def _end(self, why: str) -> None:
        if why and not self.why:
            self.why = why
            self.world.events.append(f"{self.world.steps} {self.process.name}: {why}")

    # -- copying: `copy.partition_copier`, `copy.partition_writer`, `copy.partition_resumer`

    def _copy(self) -> Coroutine:
        while not self.why:
            for copier in self.copiers:
                self._advance(copier)
            if self._is_led_again():
                self._end("a partition that was left out is available")
            if self._has_lost_positions():
                self._end("the offsets topic has lost its records")
            asking = [] if self.is_leaving else self.copiers
            waiting = [copier.retry_ms for copier in asking if copier.is_resuming and copier.is_drained]
            yield Until(
                lambda: (
                    self._is_led_again()
                    or self._has_lost_positions()
                    or any(self._can_act(copier) for copier in self.copiers)
                ),
                max(min(waiting), self.world.now_ms + 1) if waiting else None,
            )

    def _is_led_again(self) -> bool:
        return not self.is_leaving and any(self.world.is_available(one) for one in self.left_out)

    def _has_lost_positions(self) -> bool:
        return not self.is_leaving and self.losses_seen != self.world.position_losses

    def _can_act(self, copier: Copier) -> bool:
        if self.why:
            return False
        if copier.responses or self.world.metadata[copier.partition] != copier.leader_epoch:
            return True
        if self.is_leaving:
            return False
        if copier.is_drained and (copier.connection is None or copier.connection.is_cut):
            return self.world.leaders[copier.partition].is_online
        if copier.is_resuming:
            return copier.is_drained and self.world.now_ms >= copier.retry_ms
        return self._can_send(copier)

    def _can_send(self, copier: Copier) -> bool:
        if copier.is_resuming or copier.is_held or copier.waits_for_responses or copier in self.wanted:
            return False
        if copier.connection is None or copier.connection.is_cut:
            return False
        if not self.world.sources[copier.partition].is_online:
            return False
        if copier.stream.in_flight and (
            copier.single_in_flight or len(copier.stream.in_flight) >= self.depth
        ):
            return False
        return self._has_records(copier) or self._is_truncated(copier)

    def _has_records(self, copier: Copier) -> bool:
        return copier.stream.next_offset != self.world.sources[copier.partition].end

    def _advance(self, copier: Copier) -> None:
        while copier.responses:
            copier.waits_for_responses = False
            self._take(copier, copier.responses.popleft())
        if self.world.metadata[copier.partition] != copier.leader_epoch:
            copier.leader_epoch = self.world.metadata[copier.partition]
            self._resync(copier)
        if self.is_leaving:
            return
        leader = self.world.leaders[copier.partition]
        if copier.is_drained and leader.is_online and (copier.connection is None or copier.connection.is_cut):
            copier.connection = self.world.connect(self.process, copier.partition)
            self._resync(copier)
        if (
            copier.is_resuming
            and copier.is_drained
            and copier.connection
            and self.world.now_ms >= copier.retry_ms
        ):
            self._serve(copier)
        while not self.why and self._can_send(copier) and self._send_next(copier):
            pass

    def _take(self, copier: Copier, response: Any) -> None:
        """Handle the response to the oldest batch in flight."""
        if not isinstance(response, int):
            appended, _ = response
            self._acknowledged(copier, appended.base_offset, appended.log_append_time)
        elif response == NO_RESPONSE:
            copier.has_lost_responses = True
            copier.stream.refuse()
            self._resync(copier)
        else:
            self._refused(copier, response)

    def _acknowledged(self, copier: Copier, base_offset: int, append_time_ms: int) -> None:
        stream = copier.stream
        if append_time_ms == UNKNOWN:
            self.process.knows_log_append_time = False
        elif copier.mode.is_plain and not self.process.knows_log_append_time:
            copier.repeat_at = base_offset
            stream.suspect()
            self._resync(copier)
            return
        span, continues = stream.acknowledge(base_offset)
        if stream.delivered.ordinal != span.last:
            copier.has_lost_responses = True
            self._resync(copier)
            return
        self.process.copied += 1
        is_old = self.world.now_ms - span.max_timestamp >= self.age_limit_ms
        copier.single_in_flight = copier.mode.is_plain and is_old
        copier.heard_ms = copier.sent_ms
        if not continues:
            self._resync(copier)

    def _refused(self, copier: Copier, code: int) -> None:
        is_first = not copier.stream.has_refusals
        span = copier.stream.refuse(is_absent=code == INVALID_TXN_STATE)
        if is_first and code == OUT_OF_ORDER_SEQUENCE_NUMBER:
            copier.refused_next = span.first
        if code in position_writer.FINAL_CODES:
            self._end(f"the target answered {code}")
        if code == MESSAGE_TOO_LARGE and not copier.is_resuming:
            self.process.batch_records[copier.partition] = max(1, span.count // 2)
        if not copier.is_resuming:
            copier.retry_ms = self.world.now_ms + self.random.choice((0, 0, 1, 5))
        self._resync(copier)

    def _resync(self, copier: Copier) -> None:
        copier.resyncs += 1
        copier.is_in_transaction = False
        copier.is_resuming = True

    def _serve(self, copier: Copier) -> None:
        copier.target_epoch = max(copier.target_epoch, copier.start.target_epoch)
        if copier.repeat_at is not None:
            self._examine_repeat(copier)
        why = self._why_it_ends(copier)
        if why:
            self._end(why)
            return
        pair = copier.stream.delivered
        if copier.cut_to is not None:
            pair, copier.cut_to = pair._replace(source_offset=copier.cut_to - 1, source_epoch=UNKNOWN), None
        if copier.is_begun:
            copier.mode.rewind(pair.source_offset + 1)
        copier.stream.align(pair)
        if not copier.is_begun:
            copier.stream.pass_markers(copier.start.target_end - copier.start.records_end)
        copier.is_begun = True
        copier.read_epoch = pair.source_epoch
        copier.refused_next = NO_ORDINAL
        copier.single_in_flight = True
        copier.is_resuming = False
        copier.heard_ms = self.world.now_ms
        copier.is_held = copier in self.members
        if copier.is_held:
            self.wanted[copier] = None

    def _why_it_ends(self, copier: Copier, *, of_transaction: bool = False) -> str:
        has_new_leader = copier.leader_epoch > copier.target_epoch
        if of_transaction:
            return task_restart_reason.restart_reason(
                copier.partition,
                copier.stream,
                has_lost_responses=not copier.is_drained or copier.has_lost_responses,
                has_new_leader=has_new_leader,
            )
        return task_restart_reason.restart_reason(
            copier.partition,
            copier.stream,
            has_lost_responses=copier.has_lost_responses,
            has_new_leader=has_new_leader,
            has_repeat=copier.repeat_at is not None,
            refused_next=copier.refused_next,
            has_diverged=copier.has_diverged,
        )

    def _examine_repeat(self, copier: Copier) -> None:
        """The response names a time: the target sets timestamps, or another producer has written our numbers."""
        is_stamped = any(
            one.attributes & LOG_APPEND_TIME
            for one in self.world.leaders[copier.partition].log.batches
            if one.base_offset == copier.repeat_at
        )
        self.process.knows_log_append_time |= is_stamped
        copier.is_foreign = not is_stamped

    def _is_truncated(self, copier: Copier) -> bool:
        """A fetch names the leader epoch of the record before: the source responds with a diverging epoch (KIP-595)."""
        found = self.world.sources[copier.partition].epoch_end(copier.read_epoch)
        is_other = found.epoch < copier.read_epoch or found.end < copier.stream.next_offset
        return copier.read_epoch >= 0 and is_other

    def _send_next(self, copier: Copier) -> bool:
        """Fetch and send one batch, if it may be sent now."""
        stream, mode, now_ms = copier.stream, copier.mode, self.world.now_ms
        if mode.is_plain and now_ms - copier.heard_ms > self.age_limit_ms:
            copier.single_in_flight = True
        if self._is_truncated(copier):
            copier.has_diverged = True
            self._resync(copier)
            return False
        source = self.world.sources[copier.partition]
        if stream.next_offset > source.end:
            copier.cut_to = source.end
            self.process.losses.add(copier.partition)
            self._resync(copier)
            return False
        fetched = source.fetch(stream.next_offset)
        if isinstance(fetched, SkippedOffsets):
            stream.pass_over(fetched.next_offset, fetched.leader_epoch)
            copier.read_epoch = fetched.leader_epoch
            return True
        change = mode.check(
            fetched.batch,
            stream.next_offset,
            now_ms=now_ms,
            age_limit_ms=self.age_limit_ms,
        )
        if change is not None:
            if copier.is_drained:
                mode.change, copier.is_held = change, True
                self.changing[copier] = copier.resyncs
            else:
                copier.waits_for_responses = True
            return False
        if not mode.is_plain and not copier.is_in_transaction:
            self.wanted[copier] = None
            return False
        self._send(copier, fetched)
        return True

    def _send(self, copier: Copier, fetched: SourceRecords) -> None:
        stream, mode, connection = copier.stream, copier.mode, copier.connection
        assert connection is not None
        most = self.process.batch_records.get(copier.partition, BATCH_RECORDS)
        offsets, numbers = fetched.from_offset(stream.next_offset, most)
        is_whole = numbers[-1] == fetched.numbers[-1]
        span = Span(
            first=stream.next_ordinal,
            count=len(offsets),
            base_offset=offsets[0],
            next_offset=fetched.batch.next_offset if is_whole else offsets[-1] + 1,
            max_timestamp=fetched.batch.max_timestamp,
            size_bytes=len(offsets) * self.record_bytes,
            offsets=offsets,
            source_epoch=fetched.batch.leader_epoch,
        )
        if copier.is_drained:
            copier.sent_ms = self.world.now_ms
        produced = ProducedBatch(
            mode.producer.producer_id,
            mode.producer.epoch,
            sequence_of(span.first - mode.first_ordinal),
            span.max_timestamp,
            not mode.is_plain,
            numbers,
            mode.producer.transactional_id,
        )
        stream.take(span)
        mode.taken(span.base_offset + span.count, span.source_epoch)
        copier.read_epoch = span.source_epoch
        connection.queue.append((produced, copier.responses.append))
        connection.sent_ms = self.world.now_ms
        if produced.is_transactional:
            self.sent_bytes += span.size_bytes
            if self._is_full():
                for member in self.members:
                    member.is_held = True

    # -- transactions: `copy.task_transaction`

    def _commit_all(self) -> Coroutine:
        while True:
            if self.why:
                return
            if self.process.is_stopping:
                yield from self._leave()
                return
            if self._is_due():
                yield from self._in_turn(self._commit())
            if self.wanted and not self.why:
                yield from self._in_turn(self._join())
            yield Until(
                lambda: self.process.is_stopping or bool(self.wanted) or self._is_due(),
                self._next_ms(),
            )

    def _in_turn(self, steps: Coroutine) -> Coroutine:
        """The runner lets one transaction of a producer run at a time."""
        key = self.process, self.producers.transactional.transactional_id
        yield Until(lambda: key not in self.world.busy)
        self.world.busy.add(key)
        yield from steps
        self.world.busy.discard(key)

    def _is_due(self) -> bool:
        if self.changing or (self.members and self._is_full()):
            return True
        if self.members:
            return self.world.now_ms >= self.began_ms + COMMIT_MS or all(map(self._is_idle, self.members))
        return self.world.now_ms >= self.due_ms and any(map(self._has_progress, self.copiers))

    def _is_full(self) -> bool:
        return self.sent_bytes >= self.window.size_bytes

    def _next_ms(self) -> int | None:
        if self.members:
            return self.began_ms + COMMIT_MS
        return max(self.due_ms, self.world.now_ms + 1) if any(map(self._has_progress, self.copiers)) else None

    def _is_idle(self, copier: Copier) -> bool:
        return copier.is_drained and not self._has_records(copier)

    def _has_progress(self, copier: Copier) -> bool:
        stored = copier.start if copier.stored is None else copier.stored
        return copier.mode.is_plain and stored.next_source_offset != copier.stream.delivered.source_offset + 1

    def _has_uncertain_writes(self, copier: Copier) -> bool:
        return copier.has_lost_responses or copier.repeat_at is not None or copier.stream.has_fallen_back

    def _join(self) -> Coroutine:
        copiers = {copier: copier.resyncs for copier in self.wanted if not copier.is_resuming}
        self.wanted.clear()
        for copier in [copier for copier in copiers if copier.partition in self.world.denied]:
            copier.retry_ms = self.world.now_ms + 5
            self._resync(copier)
            del copiers[copier]
        if not copiers:
            return
        if not self.members:
            # The markers of the transaction before are written, or never will be, when this is answered.
            code = yield from self.world.add_partitions(
                self.process, self.producers.transactional, {POSITIONS}
            )
            if code != NONE:
                self._end(f"AddPartitionsToTxn was answered with {code}")
                return
        yield from self._ask_leaders(copiers)
        if self.why:
            return
        code = yield from self.world.add_partitions(
            self.process, self.producers.transactional, {copier.partition for copier in copiers}
        )
        if code != NONE:
            self._end(f"AddPartitionsToTxn was answered with {code}")
            return
        for copier, resyncs in copiers.items():
            if not self.members:
                self.began_ms = self.world.now_ms
            self.members[copier] = None
            if not copier.is_resuming and copier.resyncs == resyncs:
                copier.is_held, copier.is_in_transaction = self._is_full(), True

    def _commit(self) -> Coroutine:
        copiers = list(self.members)
        for copier in copiers:
            copier.is_held = True
        was_busy = not all(copier.is_drained for copier in copiers)
        yield Until(
            lambda: bool(self.why) or all(copier.is_drained for copier in copiers),
            self.world.now_ms + DRAIN_MS,
        )
        took_ms = self.world.now_ms - self.began_ms if was_busy else 0
        self.window = self.window.after(self.sent_bytes, took_ms / 1000)
        if self._has_problem(copiers):
            return
        changes = self._ready_changes()
        resyncs = {copier: copier.resyncs for copier in copiers}
        due: list[Copier] = []
        if self.world.now_ms >= self.due_ms:
            due = [
                copier
                for copier in self.copiers
                if self._has_progress(copier) and not self._has_uncertain_writes(copier)
            ]
            self.due_ms = self.world.now_ms + POSITION_MS
        positions = {
            copier: self._position(copier, changes.get(copier))
            for copier in dict.fromkeys([*copiers, *changes, *due])
        }
        yield from self._ask_leaders(positions)
        if not self._has_problem([*copiers, *changes]) and positions:
            yield from self._store_positions(positions.values())
        if self._has_problem([*copiers, *changes]):
            return
        if positions and not (yield from self._end_transaction(positions)):
            return
        self.members.clear()
        self.sent_bytes = 0
        for copier in copiers:
            copier.is_held = copier.is_in_transaction = False
            if resyncs[copier] == copier.resyncs and copier not in changes:
                copier.stream.pass_markers(1)
        if any(not copier.mode.is_plain for copier in changes) and not (yield from self._await_markers()):
            return
        for copier, change in changes.items():
            if copier.mode.change is change:
                self._change_mode(copier, change)

    def _await_markers(self) -> Coroutine:
        """End an empty transaction: it begins when the markers of the last one are written, or never will be."""
        code = yield from self.world.add_partitions(self.process, self.producers.transactional, {POSITIONS})
        if code != NONE:
            self._end(f"AddPartitionsToTxn was answered with {code}")
            return False
        return (yield from self._end_transaction())

    def _ask_leaders(self, copiers: Iterable[Copier]) -> Coroutine:
        """Ask the leaders for their epochs: the metadata may be older than an election."""
        asked = list(copiers)
        leaders = [self.world.leaders[copier.partition] for copier in asked]
        epochs = yield Call(lambda: [one.epoch if one.is_online else None for one in leaders])
        for copier, epoch in zip(asked, epochs, strict=True):
            if epoch is None:
                self._end(f"{copier.partition} has no leader")
            elif epoch > copier.target_epoch:
                self._end(f"{copier.partition} has another leader")

    def _ready_changes(self) -> dict[Copier, ChangeMode]:
        found = {
            copier: copier.mode.change
            for copier, resyncs in self.changing.items()
            if copier.mode.change is not None
            if not copier.is_resuming
            and copier.resyncs == resyncs
            and copier.is_drained
            and not self._has_uncertain_writes(copier)
        }
        self.changing.clear()
        return found

    def _change_mode(self, copier: Copier, change: ChangeMode) -> None:
        copier.stream.pass_over(change.next_source_offset, change.source_epoch)
        copier.mode.apply(change, copier.stream.next_ordinal, self.world.now_ms)
        copier.single_in_flight = True
        copier.is_held = False

    def _has_problem(self, copiers: list[Copier]) -> bool:
        for copier in copiers:
            self._end(self._why_it_ends(copier, of_transaction=True))
        return bool(self.why)

    def _store_positions(self, positions: Any) -> Coroutine:
        producer = self.producers.transactional
        by_home = self.world.by_home(positions)
        code = yield from self.world.add_partitions(self.process, producer, {*by_home})
        for home, group in by_home.items() if code == NONE else ():
            response = yield from self.world.append_in_transaction(self.process, producer, home, group)
            if isinstance(response, int):
                code = response
                break
        if code != NONE:
            self._end(f"the positions were answered with {code}")

    def _end_transaction(
        self, positions: Mapping[Copier, WriterPosition] = MappingProxyType({})
    ) -> Coroutine:
        code = yield from self.world.end_transaction(self.process, self.producers.transactional, commit=True)
        if code != NONE:
            self._end(f"EndTxn was answered with {code}")
            return False
        for copier, position in positions.items():
            copier.stored = position
        is_marked = yield from self.world.await_marker(self.producers.transactional)
        if not is_marked:
            self._end("the offsets topic lacks a marker")
        return is_marked

    def _leave(self) -> Coroutine:
        """An orderly stop: what is in flight is answered, the positions say that nothing follows them."""
        self.is_leaving = True
        yield Until(lambda: all(copier.is_drained for copier in self.copiers), self.world.now_ms + DRAIN_MS)
        if self.members and not self.why:
            yield from self._in_turn(self._commit())
        if not self.why and not self.members:
            yield from self._in_turn(self._store_left())
        self.has_left = True

    def _store_left(self) -> Coroutine:
        positions = {
            copier: self._position(copier, is_left=True)
            for copier in self.copiers
            if copier.is_drained and not self._has_uncertain_writes(copier)
        }
        yield from self._ask_leaders(positions)
        if positions and not self.why:
            yield from self._store_positions(positions.values())
            if not self.why:
                yield from self._end_transaction()

    def _position(
        self, copier: Copier, change: ChangeMode | None = None, *, is_left: bool = False
    ) -> WriterPosition:
        at = copier.stream.delivered
        point = flow_plan.point_behind(
            copier.start,
            copier.stream,
            sequence=copier.mode.plain_sequence(at.ordinal),
            target_epoch=copier.target_epoch,
        )
        before = copier.start if copier.stored is None else copier.stored
        plain_start = point.target_end + 1 if copier in self.members else before.plain_start
        point = replace(point, plain_start=plain_start, revision=(before.revision or 0) + 1)
        mode = copier.mode.current
        if change is not None:
            mode = change.mode
            point = replace(
                point,
                next_source_offset=change.next_source_offset,
                source_epoch=change.source_epoch,
                epochs=followed_by(point.epochs, change.source_epoch, point.next_source_offset),
            )
        return position_at(
            copier.partition, point, self.producers, mode=mode, time_ms=self.world.now_ms, left=is_left
        )
