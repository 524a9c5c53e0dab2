"""Owns a flow: waits for its turn, takes the flow over, renews the claim, and starts tasks as its only writer.

    wait ──> take the lock, the ids, the claim ──> tasks start ──> renew every 5 s ──> left
      ^                                                              │
      └───────────────── another process has taken the lock ─────────┘

`mirrorflow_core.writer` has the protocol; this module runs it for one connector. The processes of a Connect group own a
flow together: the one with the connector claims it, and each starts its own tasks under the lock that the claim names.
Guarantee: a task gets its producers only while the lock is the newest one. Where the target does not allow that, tasks
start without an owner, and copy at least once, until it does.
"""

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from mirrorflow_core.errors import (
    ClusterChangedError,
    FlowExistsError,
    FlowTakenError,
    FlowUnfencedError,
    MirrorFlowError,
    StartPendingError,
)
from mirrorflow_core.partition_assignment import Assignment
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.reports import Guarantee
from mirrorflow_core.settings import SourceSettings
from mirrorflow_core.stall_detection import STALLED_AFTER_S
from mirrorflow_core.writer.broker_requests import Producer
from mirrorflow_core.writer.claim import RENEW_MS, Claim
from mirrorflow_core.writer.flow_lock import Fenced, holds_lock, read_claims
from mirrorflow_core.writer.flow_plan import FlowPlan, TaskStart
from mirrorflow_core.writer.ownership import (
    FlowExists,
    Ownership,
    recover_task,
    renew_claim,
    take_flow,
    wait_for_turn,
)
from mirrorflow_core.writer.position import WriterPosition, decode_value
from mirrorflow_core.writer.takeover import read_positions, start_unfenced
from mirrorflow_core.writer.transactional_ids import WriterIds
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.client.cancellation import cancel_and_wait
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.writer.fencing import why_unfenced
from mirrorflow_kafka.writer.protocol_runner import ProtocolRunner
from mirrorflow_replicator.connectors.flow_clusters import FlowClusters
from mirrorflow_replicator.connectors.flow_move import FlowMove
from mirrorflow_replicator.connectors.task_messages import Assign

RENEW_S: Final = RENEW_MS / 1000
# A renewal that was not answered may have been refused by a coordinator that is moving. So often the lock is checked
# before the flow counts as lost.
CHECKS_MAX: Final = 3
CHECK_S: Final = 0.5
FINISH_S: Final = 30.0  # for a task to finish, which drains for 3 s and commits
LEAVE_S: Final = 5.0  # at stop, for the last claim; without it a successor waits 15 s

log = logging.getLogger("mirrorflow.worker")


def _is_owned(claims: Sequence[Claim]) -> bool:
    return bool(claims) and not claims[-1].left and not _is_dead(claims[-1].process)


def refuse_changed_clusters(before: Claim, now: Claim, settings: SourceSettings) -> None:
    """Raise ClusterChangedError if the flow was last owned between other clusters."""
    for alias, expected, found in (
        (settings.source_alias, before.source_cluster_id, now.source_cluster_id),
        (settings.target_alias, before.target_cluster_id, now.target_cluster_id),
    ):
        if expected and found and expected != found:
            raise ClusterChangedError(alias=alias, expected=expected, found=found)


def _is_dead(process: str) -> bool:
    """Return whether an owner ran on this host and has ended: its claim will not be renewed.

    If that is wrong (containers that share a host name), the other process is fenced, and nothing is harmed.
    """
    host, _, rest = process.partition("/")
    pid = rest.partition("/")[0]
    if host != socket.gethostname() or not pid.isdecimal():
        return False
    if int(pid) == os.getpid():
        return True
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


class FlowOwner:
    """The ownership of one connector's flow. *on_lost* stops its tasks when another process has taken the flow.

    *group*: the Connect group whose processes share the flow; "": this process alone.
    """

    def __init__(self, settings: SourceSettings, *, on_lost: Callable[[], None], group: str = "") -> None:
        self.is_waiting = False  # another process owns the flow
        self.is_first = False  # the flow had no owner before
        self._taking_since_s: float | None = None  # monotonic
        self._unfenced_why = ""  # why the flow has no owner: its tasks copy at least once
        self._group = group
        self._settings = settings
        self._on_lost = on_lost
        self._process = f"{socket.gethostname()}/{os.getpid()}/{secrets.token_hex(4)}"
        self._runner: ProtocolRunner | None = None
        self._sides: FlowClusters | None = None
        self._owned: Ownership | None = None
        self._starts: dict[int, TaskStart] = {}  # not given to a task yet
        self._held: dict[int, frozenset[TopicPartition]] = {}  # by the tasks that run
        self._released = asyncio.Event()
        self._assignment: Assignment = ()
        self._assignment_is_known = False
        self._initial: frozenset[TopicPartition] = frozenset()  # partitions that the flow begins with
        self._working = asyncio.Lock()
        self._renewing: asyncio.Task[None] | None = None

    @property
    def target_cluster_id(self) -> str:
        """The target's cluster id; "" before it was reached."""
        return "" if self._sides is None else self._sides.target.cluster_id

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a user should know."""
        if self._taking_since_s is not None and time.monotonic() - self._taking_since_s >= STALLED_AFTER_S:
            return (str(StartPendingError(target=self._settings.target_alias, waits_s=STALLED_AFTER_S)),)
        if not self._unfenced_why:
            return ()
        what = f"Records are copied {Guarantee.AT_LEAST_ONCE.value}, because {self._unfenced_why}"
        return (f"{what}: after a failure some are copied again.",)

    async def prepare(self, clusters: tuple[Cluster, Cluster]) -> None:
        """Create the flow's own topics before it is known what the flow copies. `own` raises what fails here."""
        with contextlib.suppress(MirrorFlowError):
            async with self._working:
                await self._connect(clusters)

    async def own(
        self, clusters: tuple[Cluster, Cluster], assignment: Assignment, *, preempts: bool = False
    ) -> None:
        """Own the flow with at least as many tasks as *assignment* has. Raises MirrorFlowError.

        Waits while another process owns it. *preempts*: takes it from its owner, which waits then.
        """
        async with self._working:
            self._assignment = assignment
            if self._owned is not None and len(assignment) <= self._owned.plan.claim.tasks:
                return
            await self._connect(clusters)
            if self._unfenced_why and preempts:
                raise FlowUnfencedError(source=self._settings.source_alias, why=self._unfenced_why)
            if self._unfenced_why:
                await self._begin_unfenced(assignment)
            else:
                await self._take(assignment, waits_for_group=False, preempts=preempts)
        self._keep_renewing()

    def _keep_renewing(self) -> None:
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.create_task(self._renew_for_ever(), name=f"own-{self._settings.name}")

    async def start_in_group(
        self, clusters: tuple[Cluster, Cluster], task: int, message: Assign, *, ids: WriterIds | None = None
    ) -> Assign:
        """As `start_of`, in any process of the group that owns the flow."""
        async with self._working:
            await self._connect(clusters)
            if message.initial:
                self._initial |= frozenset(message.partitions)  # of any task that starts at the same time
        if self._unfenced_why:
            self._keep_renewing()
        return await self.start_of(task, message, ids=ids)

    async def start_of(self, task: int, message: Assign, *, ids: WriterIds | None = None) -> Assign:
        """Return *message* with the start of the task, which has no other start any more. Raises MirrorFlowError.

        *ids*: what it writes with; the task's own by default.
        """
        self._held.pop(task, None)
        self._released.set()
        await self._wait_for_others(frozenset(message.partitions))
        async with self._working:
            runner = self._runner
            if runner is not None and self._unfenced_why:
                unfenced = await self._start_unfenced(runner, message)
                self._held[task] = frozenset(message.partitions)
                return replace(message, start=unfenced)
            owned = self._owned or (await self._owned_by_group() if self._group else None)
            if owned is None or runner is None:
                raise FlowTakenError(source=self._settings.source_alias)
            start = self._starts.pop(task, None)
            if start is None or {*start.points, *start.problems} != {*message.partitions}:
                start = await self._recover(runner, owned, ids or owned.plan.ids.task(task), message)
            if ids is not None and not await runner.run(holds_lock(owned.lock)):
                # The next owner knows no ids but those of tasks, and of positions, which these are in only now.
                raise FlowTakenError(source=self._settings.source_alias)
            self._held[task] = frozenset(message.partitions)
            sequences = runner.transactions.sequences(start.producers.transactional)
            return replace(message, start=start, sequences=sequences)

    async def _wait_for_others(self, wanted: frozenset[TopicPartition]) -> None:
        """Wait until no other task has a partition of *wanted*: it stores that it has left.

        After FINISH_S it is fenced instead, and what it has not committed is copied again.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FINISH_S):
                while any(held & wanted for held in self._held.values()):
                    self._released.clear()
                    await self._released.wait()

    async def _owned_by_group(self) -> Ownership | None:
        """Return the flow as another process of the group has claimed it; None if none has."""
        assert self._runner is not None
        claims = (await self._runner.run(read_claims())).committed
        newest = claims[-1] if claims else None
        ours = self._group, self._settings.flow
        if newest is None or newest.left or (newest.group, newest.flow) != ours:
            return None
        plan = await self._plan(())
        lock = Producer(plan.ids.lock, newest.lock_id, newest.lock_epoch)
        return Ownership(plan=plan, lock=lock, tasks=())

    async def _recover(
        self, runner: ProtocolRunner, owned: Ownership, ids: WriterIds, message: Assign
    ) -> TaskStart:
        assert self._sides is not None
        topic_ids = await self._sides.topic_ids(message.partitions)
        flow = replace(owned, plan=replace(owned.plan, topic_ids=topic_ids))
        self._sides.begin_lookup(message.partitions)
        partitions = await self._sides.writable(message.partitions)
        acknowledged = [
            decode_value(TopicPartition(one.topic, one.partition), one.value.encode())
            for one in message.acknowledged
        ]
        found = await runner.run(recover_task(flow, ids, partitions, acknowledged))
        if isinstance(found, Fenced):
            self._lose(owned)
            raise FlowTakenError(source=self._settings.source_alias)
        if found.producers.ids != ids:
            log.warning(
                "%s: the last transaction of %s cannot end, because a partition of it has no leader; %s is used instead.",
                self._settings.name,
                ids.transactional,
                found.producers.transactional.transactional_id,
            )
        return found

    async def _begin_unfenced(self, assignment: Assignment) -> None:
        """Note what the flow begins with, if it was never copied."""
        assert self._sides is not None
        if not self._assignment_is_known and not await self._sides.stored_positions():
            self._initial = frozenset(one for task in assignment for one in task)
        self._assignment_is_known = True

    async def _start_unfenced(self, runner: ProtocolRunner, message: Assign) -> TaskStart:
        sides = self._sides
        assert sides is not None
        target = sides.target
        producer_id, epoch = await admin.init_producer_id(
            target, None, timeout_ms=self._settings.transaction_timeout_ms
        )
        plan = replace(await self._plan(()), topic_ids=await sides.topic_ids(message.partitions))
        positions, wanted = await sides.stored_positions(), await sides.writable(message.partitions)
        producer = Producer("", producer_id, epoch)
        return await runner.run(start_unfenced(plan, producer, wanted, positions, self._unfenced_why))

    async def _try_to_fence(self) -> None:
        """Take the flow if the target allows it by now, once all tasks have finished."""
        sides, settings = self._sides, self._settings
        assert sides is not None
        target = sides.target
        why = await why_unfenced(target, settings.source_alias, settings.offsets.store)
        if why:
            self._unfenced_why = why
            return
        async with self._working:
            self._on_lost()  # its tasks finish and store their positions
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FINISH_S):
                    while self._held:
                        self._released.clear()
                        await self._released.wait()
            self._held.clear()
            self._runner, self._unfenced_why = None, ""
            await self._connect((sides.source, target))
            if self._assignment:
                await self._take(self._assignment, waits_for_group=False)

    async def positions(self) -> dict[TopicPartition, WriterPosition]:
        """Return the stored position of each partition of the flow. Raises MirrorFlowError."""
        owned, runner = self._owned, self._runner
        if owned is None or runner is None:
            raise FlowTakenError(source=self._settings.source_alias)
        positions = (await runner.run(read_positions(owned.lock))).committed
        newest = {one.topic_partition: one for one in positions}
        return {partition: one for partition, one in newest.items() if one.next_source_offset >= 0}

    async def store_starts(self, starts: Mapping[TopicPartition, int]) -> None:
        """Store where partitions start that have no position yet: what the source deletes from there on is a loss.

        Raises MirrorFlowError.
        """
        known = await self.positions()
        owned, runner = self._owned, self._runner
        new = {one: offset for one, offset in starts.items() if one not in known}
        if owned is None or runner is None or not new:
            return
        assert self._sides is not None
        topic_ids = await self._sides.topic_ids(new)
        positions = [
            WriterPosition(
                topic=one.topic,
                partition=one.partition,
                next_source_offset=offset,
                java_offset=offset - 1,
                target_topic=topic_ids[one.topic].copy,
                source_topic_id=topic_ids[one.topic].source,
                target_topic_id=topic_ids[one.topic].target,
                writer=owned.plan.ids.task(0),
                left=True,
            )
            for one, offset in new.items()
        ]
        if not await runner.store_positions(owned.lock, positions):
            raise FlowTakenError(source=self._settings.source_alias)

    async def leave(self, *, with_group: bool = False) -> None:
        """Give the flow up, after all tasks have ended, so that a successor need not wait.

        In a group the claim stays, unless the whole group leaves: other processes continue under it, and the next of
        them does not wait.
        """
        if self._renewing is not None:
            await cancel_and_wait(self._renewing)
            self._renewing = None
        if self._owned is not None and self._runner is not None and (with_group or not self._group):
            with contextlib.suppress(MirrorFlowError, TimeoutError):
                async with asyncio.timeout(LEAVE_S):
                    await self._runner.run(renew_claim(self._owned, left=True))
        self._owned = None

    # -- taking

    async def _connect(self, clusters: tuple[Cluster, Cluster]) -> None:
        sides = self._sides
        if self._runner is None or sides is None or sides.target is not clusters[1]:
            settings = self._settings
            sides = FlowClusters(settings, *clusters, is_initial=lambda one: one in self._initial)
            self._sides, self._runner = sides, None  # what follows fails while a broker is away
            if self._owned is None:
                self._unfenced_why = await why_unfenced(
                    sides.target, settings.source_alias, settings.offsets.store
                )
            self._runner = await sides.open(has_claims=not self._unfenced_why)

    async def _take(self, assignment: Assignment, *, waits_for_group: bool, preempts: bool = False) -> None:
        runner, sides = self._runner, self._sides
        assert runner is not None
        assert sides is not None
        move = FlowMove(self._settings, sides.source, sides.target)
        is_moved, claims = await asyncio.gather(move.is_due(), runner.run(read_claims()))
        self.is_first = not claims.committed and not is_moved
        if self.is_first:
            self._initial = frozenset(one for task in assignment for one in task)
        # In a group each process finds where its tasks start, and a flow that is moved has no positions yet.
        is_later = is_moved or bool(self._group)
        plan = await self._plan(() if is_later else assignment, tasks=len(assignment))
        if claims.committed:
            newest = claims.committed[-1]
            if newest.flow not in {self._settings.flow, *self._settings.takes_over}:
                raise self._flow_exists(newest)
            refuse_changed_clusters(newest, plan.claim, self._settings)
        is_of_group = bool(claims.committed and self._group) and claims.committed[-1].group == self._group
        is_of_flow = bool(claims.committed) and claims.committed[-1].flow == self._settings.flow
        must_wait = not (preempts and is_of_flow) and (waits_for_group or not is_of_group)
        if self._owned is None and _is_owned(claims.committed) and must_wait:
            await self._wait_for_turn(runner, plan)
        sides.begin_lookup(one for task in assignment for one in task)
        self._taking_since_s, self.is_waiting = time.monotonic(), False
        try:
            taken = await runner.run(take_flow(plan))
        finally:
            self._taking_since_s = None
        if isinstance(taken, Fenced):
            self._lose(self._owned)
            raise FlowTakenError(source=self._settings.source_alias)
        if is_moved:
            await move.move(runner, taken.lock)
        self._owned = taken
        self._starts = dict(enumerate(taken.tasks))
        log.info("%s owns the flow, epoch %d of its lock", self._settings.name, taken.lock.epoch)

    async def _wait_for_turn(self, runner: ProtocolRunner, plan: FlowPlan) -> None:
        self.is_waiting = not self._group
        found = await runner.run(wait_for_turn(plan))
        if isinstance(found, FlowExists):
            self.is_waiting = False
            raise self._flow_exists(found.claim)

    def _flow_exists(self, claim: Claim) -> FlowExistsError:
        settings = self._settings
        return FlowExistsError(
            source=settings.source_alias,
            target=settings.target_alias,
            owner=claim.flow,
            claimant=settings.flow,
        )

    async def _plan(self, assignment: Assignment, *, tasks: int = 0) -> FlowPlan:
        settings = self._settings
        sides = self._sides
        assert sides is not None
        claim = Claim(
            flow=settings.flow,
            process=self._process,
            source_alias=settings.source_alias,
            group=self._group,
            tasks=max(1, tasks),
            lock_epoch=-1,
            source_cluster_id=sides.source.cluster_id,
            target_cluster_id=sides.target.cluster_id,
            time_ms=0,
        )
        topic_ids = await sides.topic_ids(one for task in assignment for one in task)  # with fresh metadata
        return FlowPlan(
            claim=claim,
            assignment=tuple([await sides.writable(task) for task in assignment]),
            takes_over=settings.takes_over,
            topic_ids=topic_ids,
            loss_policy=settings.on_source_loss,
        )

    # -- keeping

    async def _renew_for_ever(self) -> None:
        """Renew the claim, also while tasks are started; take the flow again when its next owner has left."""
        while True:
            await asyncio.sleep(RENEW_S)
            owned, runner = self._owned, self._runner
            assert runner is not None
            try:
                if self._unfenced_why:
                    await self._try_to_fence()
                elif owned is None and not self._assignment:
                    return  # of a group whose other process owns the flow
                elif owned is None:
                    async with self._working:
                        await self._take(self._assignment, waits_for_group=True)
                elif not await runner.run(renew_claim(owned)) and not await self._still_holds(runner, owned):
                    self._lose(owned)
            except MirrorFlowError as error:
                # The brokers refuse everything of an owner that is not the newest, so nothing is at risk.
                log.warning("%s: the flow's claim is not renewed: %s", self._settings.name, error)

    async def _still_holds(self, runner: ProtocolRunner, owned: Ownership) -> bool:
        for _ in range(CHECKS_MAX):
            if await runner.run(holds_lock(owned.lock)):
                return True
            await asyncio.sleep(CHECK_S)
        return False

    def _lose(self, owned: Ownership | None) -> None:
        if owned is None or owned is not self._owned:
            return
        log.warning(
            "%s: its hold on the flow is over: another process has taken it, or the target has forgotten its transactional ids.",
            self._settings.name,
        )
        self._owned, self._starts = None, {}
        if not self._group:  # its tasks continue under the lock of the next claim
            self.is_waiting = True
            self._on_lost()
