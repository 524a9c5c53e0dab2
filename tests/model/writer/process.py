"""A process of the model: it takes a flow and copies, by the product's own decisions (`mirrorflow_core.writer`)."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from mirrorflow_core.copying.partition import PartitionCopier
from mirrorflow_core.errors import MirrorFlowError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import LossPolicy
from mirrorflow_core.writer import ownership
from mirrorflow_core.writer.broker_requests import Request, Steps
from mirrorflow_core.writer.claim import RENEW_MS, Claim
from mirrorflow_core.writer.flow_lock import Fenced
from mirrorflow_core.writer.flow_plan import FlowPlan, PartitionProblem, SessionStart
from mirrorflow_core.writer.ownership import Ownership
from tests.model.writer.task import Task
from tests.model.writer.world import Coroutine, Until, World


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
        self.log_append_time_topics: set[str] = set()
        if world.options.stamps_time and rng.random() < 0.7:
            self.log_append_time_topics.add(self.world.data[0].topic)
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
        self, is_moment: Callable[[Request], bool], steps: Steps[SessionStart | Fenced]
    ) -> Steps[SessionStart | Fenced]:
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
                return cast("SessionStart | Fenced", stop.value)

    def _started(self, taken: Ownership, start: SessionStart) -> None:
        for partition in start.points:
            rank = self.world.ranks[taken.lock[1:]], self.world.ranks[start.producers.plain[1:]]
            self.world.own(partition, rank, (start.producers.transactional, start.producers.plain))
        self.problems |= start.problems

    def lost(self, partition: TopicPartition, why: str) -> None:
        """Note a loss that the protocol reports."""
        self.losses.add(partition)
        if why == PartitionProblem.TARGET_TRIMMED.value:
            self.trimmed.add(partition)

    def _task(self, taken: Ownership, start: SessionStart) -> Coroutine:
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
                owned = replace(taken, plan=self._examined(taken.plan))
                losses_seen = self.world.position_losses
                steps = ownership.recover_task(owned, ids, assigned, recover)
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
