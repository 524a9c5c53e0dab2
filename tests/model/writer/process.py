"""A process of the model: it takes a flow and copies, by the decisions of `mirrorflow_core.writer`.

What is here is the shell that `mirrorflow_replicator` has for real: it fetches, sends, and runs transactions. It decides
nothing that the core can decide.
"""

import random
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.writer import form as forms
from mirrorflow_core.writer import ownership
from mirrorflow_core.writer import resync as resyncing
from mirrorflow_core.writer.broker_requests import NO_ANSWER
from mirrorflow_core.writer.claim import RENEW_MS, Claim
from mirrorflow_core.writer.flow_lock import Fenced
from mirrorflow_core.writer.flow_plan import FlowPlan, LossPolicy, PartitionProblem, TaskStart, position_at
from mirrorflow_core.writer.form import ChangeForm, PartitionForm, SourceBatch
from mirrorflow_core.writer.ownership import Ownership
from mirrorflow_core.writer.position import Form, WriterPosition
from mirrorflow_core.writer.write_window import (
    Acknowledgement,
    ForeignProducer,
    WritePoint,
    WriteWindow,
    after_transaction_batch,
)
from tests.model.errors import MESSAGE_TOO_LARGE, NONE
from tests.model.writer.partition_logs import ProducedBatch
from tests.model.writer.world import POSITIONS, Connection, Coroutine, Until, World

POSITION_MS = (
    25  # the product's five seconds, on the scale of a world where each request takes one millisecond
)
DEPTH = 4
BATCH_RECORDS = 5


@dataclass
class Recover:
    """The task must be taken over from ourselves."""

    known: dict[TopicPartition, WritePoint] = field(default_factory=dict)


@dataclass
class Lane:
    """One partition while it is copied."""

    partition: TopicPartition
    window: WriteWindow
    form: PartitionForm
    stored: WriterPosition | None = None
    change: ChangeForm | None = None
    connection: Connection | None = None
    answers: deque[Any] = field(default_factory=deque)
    leader_epoch: int = 0  # for which the target was found to have all records
    unverified: int | None = None  # the leader epoch in which the last transaction wrote here


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
        rng = world.random
        partitions = list(world.data)
        rng.shuffle(partitions)
        self.plan = FlowPlan(
            claim=Claim(flow="flow", process=name, source_alias="a", tasks=tasks, lock_epoch=-1, time_ms=0),
            assignment=tuple(tuple(partitions[number::tasks]) for number in range(tasks)),
            loss_policy=loss_policy,
        )
        self.is_dead = False
        self.is_out = False
        self.is_stopping = False
        self.is_over = False
        self.is_owner = False
        self.frozen_until = 0
        self.steps_left = -1  # until it sleeps, for so many steps of the world
        self.sleep_steps = 0
        self.losses: set[TopicPartition] = set()
        self.problems: dict[TopicPartition, PartitionProblem] = {}
        self.batch_records: dict[TopicPartition, int] = {}  # what the target was found to take
        self.copied = 0
        self.recoveries = 0
        self.was_fenced = False
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
            taken = yield from self.perform(ownership.take_flow(self.plan))
            if isinstance(taken, Fenced):
                continue
            yield from self._own(taken)
            if not self.is_out:
                break
            self.is_out, self.was_fenced = False, True
        self.is_over = True

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

    def _started(self, taken: Ownership, start: TaskStart) -> None:
        for partition in start.points:
            rank = self.world.ranks[taken.lock[1:]], self.world.ranks[start.producers.plain[1:]]
            self.world.own(partition, rank, (start.producers.transactional, start.producers.plain))
        self.losses.update(start.losses)
        self.problems |= start.problems

    def _task(self, taken: Ownership, start: TaskStart) -> Coroutine:
        try:
            while not self.is_out:
                outcome = yield from Task(self, taken, start).copy()
                if not isinstance(outcome, Recover):
                    self.is_out |= isinstance(outcome, Fenced)
                    return
                self.recoveries += 1
                is_disturbed = self.world.options.sleeps_in_recovery and self.world.faults_left > 0
                if is_disturbed and len(self.world.processes) < 4:
                    # Another process comes just then.
                    self.sleep_after(self.world.random.randint(2, 3))
                    self.sleep_steps = self.world.random.randint(55, 130)
                    Process(self.world, "XYZ"[len(self.world.processes) - 1], tasks=3)
                again = yield from self.perform(
                    ownership.recover_task(taken, start.producers.ids, start.points, outcome.known)
                )
                if isinstance(again, Fenced):
                    self.is_out = True
                    return
                start = again
                self._started(taken, start)
        finally:
            self.tasks_left -= 1


class Task:
    """One incarnation of a task: from the producers of *start* until the first refusal that a resync cannot resolve."""

    def __init__(self, process: Process, taken: Ownership, start: TaskStart) -> None:
        self.process, self.taken, self.producers = process, taken, start.producers
        self.world = process.world
        self.random: random.Random = process.world.random
        self.age_limit_ms = forms.plain_age_limit_ms(self.world.options.producer_expiration_ms)
        self.lanes = [self._lane(partition, point) for partition, point in start.points.items()]
        self.due_ms = self.world.now_ms + POSITION_MS

    def _lane(self, partition: TopicPartition, point: WritePoint) -> Lane:
        window = WriteWindow(
            acknowledged=point,
            depth=DEPTH,
            age_limit_ms=self.age_limit_ms,
            stamps_time=self.world.options.stamps_time,
        )
        form = PartitionForm(
            form=Form.PLAIN, next_source_offset=point.next_source_offset, source_epoch=point.source_epoch
        )
        return Lane(partition, window, form, leader_epoch=-1)

    def copy(self) -> Coroutine:
        """Copy until the process stops: returns Recover, Fenced, or None after an orderly end."""
        while True:
            if self.process.is_out:
                return Fenced()
            moved = False
            for lane in self.lanes:
                outcome = yield from self._advance(lane)
                if isinstance(outcome, Recover | Fenced):
                    return outcome
                moved |= outcome
            if not moved and self.process.is_stopping:
                return (yield from self._leave())
            if any(lane.change and lane.window.is_idle and not lane.window.is_certain for lane in self.lanes):
                return Recover()
            if self.world.now_ms >= self.due_ms or any(lane.change for lane in self.lanes):
                outcome = yield from self._commit()
                if outcome is not None:
                    return outcome
                self.due_ms = self.world.now_ms + POSITION_MS
            elif not moved:
                yield Until(self._has_work, self.due_ms if self._must_commit() else None)

    def _must_commit(self) -> bool:
        return any(
            lane.stored is None
            or lane.form.form is Form.TRANSACTION
            or lane.stored.next_source_offset != lane.window.acknowledged.next_source_offset
            for lane in self.lanes
        )

    def _has_work(self) -> bool:
        return (
            self.process.is_out
            or self.process.is_stopping
            or any(
                lane.answers or (self._can_send(lane) and (self._fetch(lane) or self._is_truncated(lane)))
                for lane in self.lanes
            )
            or any(self._has_new_leader(lane) and not lane.window.in_flight for lane in self.lanes)
            or any(lane.window.needs_resync and not lane.window.in_flight for lane in self.lanes)
        )

    def _has_new_leader(self, lane: Lane) -> bool:
        leader = self.world.leaders[lane.partition]
        return leader.is_online and lane.leader_epoch != leader.epoch

    def _leave(self) -> Coroutine:
        """An orderly end: everything is acknowledged, nothing can arrive late, the positions say so."""
        if not all(lane.window.is_idle for lane in self.lanes):
            yield Until(lambda: any(lane.answers for lane in self.lanes))
            return (yield from self.copy())
        if not all(lane.window.is_certain for lane in self.lanes):
            return Recover()
        return (yield from self._commit(left=True))

    # -- plain batches

    def _advance(self, lane: Lane) -> Coroutine:
        """Take answers and send batches of one partition; returns whether anything happened."""
        window = lane.window
        moved = bool(lane.answers)
        while lane.answers:
            answer = lane.answers.popleft()
            if isinstance(answer, int):
                window.lose(is_refused=answer != NO_ANSWER)
                if answer == MESSAGE_TOO_LARGE:
                    self.process.batch_records[lane.partition] = max(1, self._batch_records(lane) // 2)
                continue
            appended, leader_epoch = answer
            outcome = window.acknowledge(
                Acknowledgement(appended.base_offset, appended.log_append_time, leader_epoch)
            )
            self.process.copied += 1
            if isinstance(outcome, ForeignProducer):
                return Recover({lane.partition: window.acknowledged})
        if self._has_new_leader(lane) and not window.in_flight:
            # Nothing is sent to a new leader before all that was sent to the old one is answered.
            lane.leader_epoch = self.world.leaders[lane.partition].epoch
            if (
                yield from self.process.perform(
                    resyncing.has_lost_records(lane.partition, window.acknowledged)
                )
            ):
                return Recover()
        if window.needs_resync and not window.in_flight:
            lane.connection = None
            resumed = yield from self.process.perform(
                resyncing.resync(self.taken.lock, self.producers.plain, lane.partition, window)
            )
            if resumed is not True:
                return resumed or Recover()
            point = window.acknowledged
            lane.form = PartitionForm(
                form=Form.PLAIN,
                next_source_offset=point.next_source_offset,
                source_epoch=point.source_epoch,
                last_gap_ms=lane.form.last_gap_ms,
                stays_in_transactions=lane.form.stays_in_transactions,
            )
            lane.change = None
            moved = True
        while self._can_send(lane):
            if self._is_truncated(lane):
                if window.in_flight:
                    break
                return Recover()
            fetched = self._fetch(lane)
            if fetched is None:
                break
            batch, values = fetched
            decision = self._decide(lane, batch)
            if isinstance(decision, ChangeForm):
                if window.is_idle and not window.is_certain:
                    return Recover()
                lane.change = decision
                break
            self._send(lane, batch, values)
            moved = True
        return moved

    def _can_send(self, lane: Lane) -> bool:
        return (
            lane.form.form is Form.PLAIN
            and lane.change is None
            and not self.process.is_stopping
            and lane.window.has_room(self.world.now_ms)
            and not self._has_new_leader(lane)
            and not (lane.window.in_flight and lane.connection and self._is_outdated(lane.connection, lane))
        )

    def _is_outdated(self, connection: Connection, lane: Lane) -> bool:
        return connection.is_cut or connection.leader_epoch != self.world.leaders[lane.partition].epoch

    def _batch_records(self, lane: Lane) -> int:
        return self.process.batch_records.get(lane.partition, BATCH_RECORDS)

    def _fetch(self, lane: Lane) -> tuple[SourceBatch, tuple[int, ...]] | None:
        return self.world.sources[lane.partition].fetch(
            lane.form.next_source_offset, self._batch_records(lane)
        )

    def _is_truncated(self, lane: Lane) -> bool:
        """A fetch names the leader epoch of the record before: the source answers with a diverging epoch (KIP-595)."""
        epoch = lane.form.source_epoch
        return (
            epoch >= 0
            and self.world.sources[lane.partition].end_of_epoch(epoch) < lane.form.next_source_offset
        )

    def _decide(self, lane: Lane, batch: SourceBatch) -> forms.Write | ChangeForm:
        return lane.form.decide(
            batch, now_ms=self.world.now_ms, wall_ms=self.world.now_ms, age_limit_ms=self.age_limit_ms
        )

    def _send(self, lane: Lane, batch: SourceBatch, values: tuple[int, ...]) -> None:
        if lane.connection is None or self._is_outdated(lane.connection, lane):
            lane.connection = self.world.connect(self.process, lane.partition)
        sent = lane.window.send(batch)
        lane.form = lane.form.taken(batch, self.world.now_ms)
        plain = self.producers.plain
        produced = ProducedBatch(
            plain.producer_id,
            plain.epoch,
            sent.base_sequence,
            batch.max_timestamp,
            False,
            values,
        )
        lane.connection.queue.append((produced, lane.answers.append))
        lane.connection.sent_ms = self.world.now_ms

    # -- transactions

    def _commit(self, *, left: bool = False) -> Coroutine:
        """One transaction of the task: the records of partitions that are in transactions, and all positions."""
        key = self.process, self.producers.transactional.transactional_id
        yield Until(lambda: key not in self.world.busy)
        self.world.busy.add(key)
        try:
            return (yield from self._commit_alone(left=left))
        finally:
            self.world.busy.discard(key)

    def _commit_alone(self, *, left: bool) -> Coroutine:
        transactional = self.producers.transactional
        online = [lane for lane in self.lanes if self.world.leaders[lane.partition].is_online]
        for lane in online:
            if (outcome := (yield from self._verify_marker(lane))) is not None:
                return outcome
        work = [lane for lane in online if not left and self._has_records(lane)]
        stored: list[tuple[Lane, WriterPosition, WritePoint, PartitionForm]] = []
        partitions = {POSITIONS} | {lane.partition for lane in work}
        code = yield from self.world.add_partitions(transactional, partitions)
        if code != NONE:
            return Recover()
        for lane in self.lanes:
            if lane in work:
                written = yield from self._write(lane)
                if isinstance(written, Recover):
                    return written
            elif lane.form.form is Form.PLAIN or left:
                written = self._idle_state(lane)
            else:
                continue
            point, partition_form = written
            position = self._position(lane, point, partition_form.form, left=left)
            if lane.stored is None or replace(position, time_ms=lane.stored.time_ms) != lane.stored:
                stored.append((lane, position, point, partition_form))
        positions = tuple(position for _, position, _, _ in stored)
        if positions:
            answer = yield from self.world.append_in_transaction(transactional, POSITIONS, positions)
            if isinstance(answer, int):
                return Recover()
        if any(self._has_new_leader(lane) for lane in work):
            return Recover()
        code = yield from self.world.end_transaction(transactional, commit=True)
        if code != NONE:
            return Recover()
        for lane, position, point, partition_form in stored:
            lane.stored = position
            if lane.change is not None and not lane.window.is_idle:
                continue
            if lane in work or lane.change is not None:
                lane.form, lane.change = partition_form, None
                lane.window.move(
                    next_source_offset=point.next_source_offset,
                    source_epoch=point.source_epoch,
                    target_end=point.target_end,
                    target_epoch=point.target_epoch,
                )
            if lane in work:
                lane.unverified = lane.leader_epoch
        return None

    def _verify_marker(self, lane: Lane) -> Coroutine:
        """Before a partition is used again, and its leader has changed: the marker of the last transaction is there."""
        if lane.unverified is None or lane.unverified == self.world.leaders[lane.partition].epoch:
            return None
        transactional = self.producers.transactional
        is_missing = yield from self.process.perform(resyncing.missing_marker(lane.partition, transactional))
        if is_missing:
            code = yield from self.world.add_partitions(transactional, {lane.partition})
            if code == NONE:
                code = yield from self.world.end_transaction(transactional, commit=True)
            if code != NONE:
                return Recover()
        lane.unverified = None
        return None

    def _has_records(self, lane: Lane) -> bool:
        return (
            lane.form.form is Form.TRANSACTION
            and not self._has_new_leader(lane)
            and (self._fetch(lane) is not None or self._is_truncated(lane))
        )

    def _idle_state(self, lane: Lane) -> tuple[WritePoint, PartitionForm]:
        """The state behind the acknowledged plain batches; behind the change of form if all is acknowledged."""
        point = lane.window.acknowledged
        if lane.change is None or not lane.window.is_idle:
            return point, lane.form
        return self._changed(lane.change, point, lane)

    def _changed(
        self, change: ChangeForm, point: WritePoint, lane: Lane, form: PartitionForm | None = None
    ) -> tuple[WritePoint, PartitionForm]:
        after = (form or lane.form).changed(change, self.world.now_ms)
        point = replace(point, next_source_offset=change.next_source_offset, source_epoch=change.source_epoch)
        return point, after

    def _write(self, lane: Lane) -> Coroutine:
        """Write records of one partition into the open transaction."""
        point, form = lane.window.acknowledged, lane.form
        for _ in range(self.random.randint(1, 3)):
            source = self.world.sources[lane.partition]
            if form.source_epoch >= 0 and source.end_of_epoch(form.source_epoch) < form.next_source_offset:
                return Recover()
            fetched = source.fetch(form.next_source_offset, self._batch_records(lane))
            if fetched is None:
                break
            batch, values = fetched
            decision = form.decide(
                batch, now_ms=self.world.now_ms, wall_ms=self.world.now_ms, age_limit_ms=self.age_limit_ms
            )
            if isinstance(decision, ChangeForm):
                return self._changed(decision, point, lane, form)
            leader = self.world.leaders[lane.partition]
            answer = yield from self.world.append_in_transaction(
                self.producers.transactional, lane.partition, values, batch.max_timestamp
            )
            if isinstance(answer, int):
                if answer == MESSAGE_TOO_LARGE:
                    self.process.batch_records[lane.partition] = max(1, self._batch_records(lane) // 2)
                return Recover()
            self.process.copied += 1
            form = form.taken(batch, self.world.now_ms)
            after = after_transaction_batch(point, batch, answer.base_offset, leader.epoch)
            if after is None or self._has_new_leader(lane):
                return Recover()
            point = after
        return point, form

    def _position(self, lane: Lane, point: WritePoint, form: Form, *, left: bool) -> WriterPosition:
        return position_at(
            lane.partition, point, self.producers, form=form, time_ms=self.world.now_ms, left=left
        )
