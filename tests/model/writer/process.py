"""A process of the model: it takes a flow and copies it with the product's code (`mirrorflow_core.writer`)."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from mirrorflow_core.copying.partition import PartitionCopier
from mirrorflow_core.errors import MirrorFlowError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import LossPolicy
from mirrorflow_core.writer import flow_end, ownership
from mirrorflow_core.writer.broker_requests import Producer, Request, Steps
from mirrorflow_core.writer.claim import RENEW_MS, Claim
from mirrorflow_core.writer.flow_lock import Fenced
from mirrorflow_core.writer.flow_plan import FlowPlan, PartitionProblem, SessionStart, WritePoint
from mirrorflow_core.writer.ownership import FlowEnded, Ownership
from mirrorflow_core.writer.stored_positions import read_positions
from tests.model.writer.task import Task
from tests.model.writer.world import Coroutine, Until, World


class Process:
    """A replicator process whose *tasks* tasks share the partitions."""

    def __init__(
        self,
        world: World,
        name: str,
        *,
        tasks: int,
        waits: bool = False,
        retries: int = 2,
        loss_policy: LossPolicy = LossPolicy.ALERT,
    ) -> None:
        self.world, self.name, self.waits, self.retries = world, name, waits, retries
        self.start_ms: int = world.now_ms
        self.clock_ms: int = 0  # by which its wall clock is ahead of the world
        rng = world.random
        partitions = list(world.data)
        rng.shuffle(partitions)
        self.plan = FlowPlan(
            claim=Claim(flow="flow", process=name, source_alias="a", tasks=tasks, lock_epoch=-1, time_ms=0),
            assignment=tuple(tuple(partitions[number::tasks]) for number in range(tasks)),
            loss_policy=loss_policy,
        )
        # How often the offsets topic had lost its records before the process took the flow.
        self.losses_seen = 0
        self.is_dead = False
        self.is_out = False
        self.is_stopping = False
        self.is_over = False
        self.is_owner = False
        self.frozen_until = 0
        self.steps_left = -1  # until it sleeps for `sleep_steps` steps of the world
        self.sleep_steps = 0
        self.losses: set[TopicPartition] = set()
        self.trimmed: set[TopicPartition] = set()  # losses after which the copied offset is unknown
        self.problems: dict[TopicPartition, PartitionProblem] = {}
        self.batch_records: dict[TopicPartition, int] = {}  # batch sizes that the target accepts
        # Topics known to set timestamps; in some runs only the first response shows it.
        self.log_append_time_topics: set[str] = set()
        if world.options.stamps_time and rng.random() < 0.7:
            self.log_append_time_topics.add(self.world.data[0].topic)
        self.copied = 0
        self.recoveries = 0
        self.was_fenced = False
        self.has_waited_for_connections = False  # because the last writer cannot be fenced
        self.tasks_left = 0
        world.processes.append(self)
        world.spawn(name, self._run(), self)

    def count_step(self, step: int) -> None:
        """Counts down to the next sleep."""
        self.steps_left -= 1
        if self.steps_left == 0:
            self.is_dead = self.sleep_steps == 10**9
            self.frozen_until = step + self.sleep_steps

    def die_after(self, steps: int) -> None:
        """Makes the process die after *steps* requests."""
        self.steps_left, self.sleep_steps = steps + 1, 10**9

    def sleep_after(self, steps: int) -> None:
        """Makes the process sleep once for a long time after *steps* requests."""
        self.steps_left = steps + 1
        self.sleep_steps = self.world.random.choice((150, 400, 800))

    def is_running(self, step: int) -> bool:
        return not self.is_dead and step >= self.frozen_until

    def perform(self, steps: Any) -> Coroutine:
        return self.world.perform(self, steps)

    # -- life

    def _run(self) -> Coroutine:
        for retry in range(self.retries + 1):
            if self.waits or retry:
                yield from self.perform(ownership.wait_for_turn(self.plan))
            if self.is_stopping:
                break
            self.losses_seen = self.world.position_losses
            flow = yield from self.perform(ownership.take_flow(self._with_unavailable(self.plan)))
            if isinstance(flow, Fenced | FlowEnded):
                continue
            yield from self._own(flow)
            if not self.is_out:
                break
            self.is_out, self.was_fenced = False, True
        self.is_over = True

    def _with_unavailable(self, plan: FlowPlan) -> FlowPlan:
        """Sets the unavailable partitions of *plan*, or none: a partition can become unavailable after a check."""
        unavailable = [partition for partition in self.world.data if not self.world.is_available(partition)]
        if not unavailable or self.world.random.random() < 0.3:
            return replace(plan, unavailable={})
        return replace(plan, unavailable=dict.fromkeys(unavailable, MirrorFlowError("unavailable")))

    def _own(self, flow: Ownership) -> Coroutine:
        self.is_owner = True
        self.tasks_left = len(flow.tasks)
        for number, start in enumerate(flow.tasks):
            self._started(flow, start)
            self.world.spawn(f"{self.name}/{number}", self._task(flow, start), self)
        while True:
            next_ms = self.world.now_ms + RENEW_MS
            yield Until(lambda: self.is_out or not self.tasks_left, next_ms)
            if self.is_out or not self.tasks_left:
                break
            if not (yield from self.perform(ownership.renew_claim(flow))):
                self.is_out = True
        yield Until(lambda: not self.tasks_left)
        self.is_owner = False
        if not self.is_out:
            yield from self.perform(ownership.renew_claim(flow, left=True))

    def _sleep_before(
        self, is_due: Callable[[Request], bool], steps: Steps[SessionStart | Fenced]
    ) -> Steps[SessionStart | Fenced]:
        """Sleeps before a request for which *is_due* holds, while a new process with one task takes the flow."""
        pending = next(steps)
        while True:
            is_disturbed = self.world.faults_left > 0 and len(self.world.processes) < 4
            if is_disturbed and is_due(pending[0]):
                self.frozen_until = self.world.steps + self.world.random.randint(20, 150)
                Process(self.world, "XYZ"[len(self.world.processes) - 1], tasks=1)
            responses = yield pending
            try:
                pending = steps.send(responses)
            except StopIteration as stop:
                return cast("SessionStart | Fenced", stop.value)

    def _started(self, flow: Ownership, start: SessionStart) -> None:
        for partition in start.points:
            rank = self.world.ranks[flow.lock[1:]], self.world.ranks[start.producers.plain[1:]]
            self.world.own(partition, rank, (start.producers.transactional, start.producers.plain))
        self.problems |= start.problems

    def lost(self, partition: TopicPartition, reason: str) -> None:
        """Records a loss that the protocol reports."""
        self.losses.add(partition)
        if reason == PartitionProblem.TARGET_TRIMMED.value:
            self.trimmed.add(partition)

    def _task(self, flow: Ownership, start: SessionStart) -> Coroutine:
        earlier: dict[TopicPartition, PartitionCopier] = {}
        ids, assigned = start.producers.ids, [*start.points, *start.waiting]
        losses_seen = self.losses_seen
        try:
            while not self.is_out:
                task = Task(self, start, earlier, losses_seen)
                recover = yield from task.copy()
                if recover is None:
                    return
                self.recoveries += 1
                earlier = {copier.source: copier for copier in task.copiers}
                updated = replace(flow, plan=self._with_unavailable(flow.plan))
                losses_seen = self.world.position_losses
                steps = ownership.recover_task(updated, ids, assigned, recover)
                if self.world.options.sleeps_before is not None:
                    steps = self._sleep_before(self.world.options.sleeps_before, steps)
                restarted = yield from self.perform(steps)
                if isinstance(restarted, Fenced):
                    self.is_out = True
                    return
                start = restarted
                self._started(flow, start)
        finally:
            self.tasks_left -= 1


SWITCHOVER = "switchover"
_END_PAUSES_MS = 20, 200, 20_000


class Ender(Process):
    """A switchover, which ends the flow and clears the end after a while; with *only_clears*, it only does the latter."""

    def __init__(self, world: World, name: str, *, only_clears: bool = False) -> None:
        self._only_clears = only_clears
        super().__init__(world, name, tasks=1, loss_policy=LossPolicy.FAIL)

    def _run(self) -> Coroutine:
        self.plan = replace(self.plan, assignment=(), reads_source=False)
        has_ended = False
        while not (self._only_clears or self.is_stopping):
            if (yield from self._end()):
                has_ended = self.world.is_ended = True
                pause_ms = self.world.random.choice(_END_PAUSES_MS)
                yield Until(lambda: self.is_stopping, self.world.now_ms + pause_ms)
                break
            yield Until(lambda: self.is_stopping, self.world.now_ms + RENEW_MS)
        self.world.is_ended = False
        outcomes: list[object] = []
        while not (outcomes and isinstance(outcomes[-1], bool)):
            outcomes.append((yield from self.perform(flow_end.clear_end(self.plan, SWITCHOVER))))
        # After an unknown outcome it can be cleared already, and while the world settles another one clears it, too.
        if has_ended and outcomes == [False] and not self.world.is_settling:
            self.world.violations.append(f"{self.name} does not clear the end of the flow")
        self.is_over = True

    def _end(self) -> Coroutine:
        """Ends the flow; returns whether it is known to have ended."""
        known = yield from self._copied(Producer("", -1, -1))
        plan = self._with_unavailable(replace(self.plan, assignment=(known,)))
        flow = yield from self.perform(ownership.take_flow(plan))
        if isinstance(flow, Fenced | FlowEnded):
            return isinstance(flow, FlowEnded)
        (session,) = flow.tasks
        self._started(flow, session)
        points: dict[TopicPartition, WritePoint] = dict(session.points)
        late = [key for key in (yield from self._copied(flow.lock)) if key not in known]
        remaining = (*session.waiting, *late)
        while remaining:
            plan = self._with_unavailable(self.plan)
            steps = ownership.recover_task(replace(flow, plan=plan), plan.ids.task(0), remaining)
            session = yield from self.perform(steps)
            if isinstance(session, Fenced) or self.is_stopping:
                return False
            self._started(flow, session)
            points |= session.points
            remaining = tuple(session.waiting)
            if remaining:
                yield Until(lambda: self.is_stopping, self.world.now_ms + RENEW_MS)
        return (yield from self.perform(flow_end.store_end(flow, session.producers, points, {}, SWITCHOVER)))

    def _copied(self, barrier: Producer) -> Coroutine:
        """Returns the partitions that have a position; all that had one before the last barrier of *barrier*."""
        stored = (yield from self.perform(read_positions(barrier))).committed
        newest = {position.topic_partition: position for position in stored}
        return tuple(key for key, position in newest.items() if position.next_source_offset >= 0)
