"""Owns a flow: takes it over, renews the claim, and starts tasks as its only writer.

    wait ──> take the lock, the ids, the claim ──> tasks start ──> renew every 5 s ──> left
      ^                                                              │
      └───────────────── another process has taken the lock ─────────┘

Modules, from the top:

    flow_owner              decides when to take the flow, to renew its claim and to give it up (this module)
    flow_takeover           decides what to take, and whether to wait for the present owner
    core.writer.ownership   the requests of a takeover, of a renewal and of a task's recovery, in their order
    flow_ownership_states   the result: a flow that this process owns, does not own, or cannot fence, and what each allows

The processes of a Connect group own a flow together: the one with the connector claims it, and each starts its own tasks
under the lock that the claim names.
Guarantee: a task gets its producers only while the lock is the newest one. Where the target does not allow that, tasks
start without an owner, and copy at least once, until it does.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final

from mirrorflow_core.errors import (
    ClusterError,
    FlowEndedError,
    FlowTakenError,
    FlowUnfencedError,
    InternalTopicUnavailableError,
    MirrorFlowError,
    StartPendingError,
)
from mirrorflow_core.partition_assignment import Assignment
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.reports import Guarantee
from mirrorflow_core.settings import SourceSettings
from mirrorflow_core.stall_detection import STALLED_AFTER_S
from mirrorflow_core.writer.claim import RENEW_MS, Claim
from mirrorflow_core.writer.flow_lock import Fenced
from mirrorflow_core.writer.position import WriterPosition
from mirrorflow_core.writer.transactional_ids import WriterIds
from mirrorflow_kafka.client.background_tasks import report_failure
from mirrorflow_kafka.client.cancellation import cancel_and_wait
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.writer.fencing import why_unfenced
from mirrorflow_kafka.writer.producer_transactions import short_timeout_warning
from mirrorflow_replicator.connectors.flow_clusters import FlowClusters
from mirrorflow_replicator.connectors.flow_ownership_states import OwnedFlow, UnfencedFlow, UnownedFlow
from mirrorflow_replicator.connectors.flow_takeover import FlowTakeover
from mirrorflow_replicator.connectors.task_messages import Assign, TaskAssignment

RENEW_S: Final = RENEW_MS / 1000
# A renewal that was not answered may have been refused by a coordinator that is moving. So often the lock is checked
# before the flow counts as lost.
CHECKS_MAX: Final = 3
CHECK_S: Final = 0.5
FINISH_S: Final = 30.0  # for a task to finish, which drains for 3 s and commits
LEAVE_S: Final = 5.0  # at stop, for the last claim; without it a successor waits 15 s
Flow = UnownedFlow | UnfencedFlow | OwnedFlow
_WAITS_ON: Final = "The flow waits on for its switchover until it can read whether that has started it"
_NOT_RENEWED: Final = "Renewing the claim of the flow failed"

log = logging.getLogger("mirrorflow.worker")


class HeldPartitions:
    """The partitions that running tasks hold, so that no two tasks write one at the same time."""

    def __init__(self) -> None:
        self._of_task: dict[int, frozenset[TopicPartition]] = {}
        self._released = asyncio.Event()

    def hold(self, task: int, partitions: Iterable[TopicPartition]) -> None:
        """Notes that *task* writes *partitions* from now on."""
        self._of_task[task] = frozenset(partitions)

    def release(self, task: int) -> None:
        """Notes that *task* has ended and stored that it has left."""
        self._of_task.pop(task, None)
        self._released.set()

    async def wait_for(self, wanted: Iterable[TopicPartition]) -> None:
        """Waits until no task holds any partition of *wanted*, at most FINISH_S.

        A task that takes longer is fenced instead, and what it has not committed is copied again.
        """
        partitions = frozenset(wanted)
        await self._wait_while(lambda: any(held & partitions for held in self._of_task.values()))

    async def wait_for_all(self) -> None:
        """Waits until all tasks have ended, at most FINISH_S; then those that remain hold nothing any more."""
        await self._wait_while(lambda: bool(self._of_task))
        self._of_task.clear()

    async def _wait_while(self, is_held: Callable[[], bool]) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FINISH_S):
                while is_held():
                    self._released.clear()
                    await self._released.wait()


class FlowOwner:
    """The ownership of one connector's flow. *on_lost* stops its tasks when another process has taken the flow.

    *group*: the Connect group whose processes share the flow; None: this process alone.
    """

    def __init__(
        self, settings: SourceSettings, *, on_lost: Callable[[], None], group: str | None = None
    ) -> None:
        self.target_cluster_id: str | None = None  # until the target was reached
        self._settings = settings
        self._on_lost = on_lost
        self._group = group
        self._takeover = FlowTakeover(settings, group)
        self._flow: Flow | None = None  # None: its topics are not open
        self._held = HeldPartitions()
        self._initial: set[TopicPartition] = set()  # partitions that the flow begins with
        self._assignment: Assignment = ()
        self._assignment_is_known = False
        self._working = asyncio.Lock()
        self._renewing: asyncio.Task[None] | None = None
        self._problem: MirrorFlowError | None = None  # why the claim is not renewed

    @property
    def is_waiting(self) -> bool:
        """Whether another process owns the flow, or a switchover has ended it."""
        return self._takeover.is_waiting

    @property
    def owner(self) -> Claim | None:
        """The newest claim of the process that this one waits for, if it was read."""
        return self._takeover.owner if self.is_waiting else None

    @property
    def is_first(self) -> bool:
        """Whether the flow had no owner before."""
        return self._takeover.is_first

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a user should know."""
        unread = self._takeover.unread
        waits_on = (f"{_WAITS_ON}: {unread}",) if unread else ()
        return waits_on + self._ownership_warnings

    @property
    def _ownership_warnings(self) -> tuple[str, ...]:
        if self._takeover.is_stalled:
            return (str(StartPendingError(target=self._settings.target_alias, waits_s=STALLED_AFTER_S)),)
        if self._problem is not None:
            return (f"{_NOT_RENEWED}: {self._problem}",)
        if isinstance(self._flow, OwnedFlow):
            timeout_ms = self._flow.clusters.runner.transactions.timeout_ms
            short = short_timeout_warning(self._settings.target_alias, timeout_ms)
            return (short,) if short else ()
        if not isinstance(self._flow, UnfencedFlow):
            return ()
        what = f"Records are copied {Guarantee.AT_LEAST_ONCE.value}, because {self._flow.why}"
        return (f"{what}: after a failure some are copied again.",)

    async def prepare(self, clusters: tuple[Cluster, Cluster]) -> None:
        """Creates the flow's own topics before it is known what the flow copies. `own` raises what fails here."""
        with contextlib.suppress(MirrorFlowError):
            async with self._working:
                await self._connect(clusters)

    async def own(
        self, clusters: tuple[Cluster, Cluster], assignment: Assignment, *, preempts: bool = False
    ) -> None:
        """Owns the flow with at least as many tasks as *assignment* has. Raises MirrorFlowError.

        Waits while another process owns it, or a switchover has ended it. *preempts*: takes it from its owner, which waits then;
        raises FlowEndedError if it was ended.
        """
        async with self._working:
            self._assignment = assignment
            owned = self._flow
            if isinstance(owned, OwnedFlow) and len(assignment) <= owned.ownership.plan.claim.tasks:
                return
            flow = await self._connect(clusters)
            if not isinstance(flow, UnfencedFlow):
                await self._take(flow, preempts=preempts)
            elif preempts:
                raise FlowUnfencedError(source=self._settings.source_alias, why=flow.why)
            else:
                await self._begin_unfenced(flow, assignment)
        self._keep_renewing()

    async def start_in_group(
        self,
        clusters: tuple[Cluster, Cluster],
        task: int,
        wanted: TaskAssignment,
        *,
        ids: WriterIds | None = None,
    ) -> Assign:
        """As `start_of`, in any process of the group that owns the flow."""
        async with self._working:
            flow = await self._connect(clusters)
            if wanted.initial:
                flow.clusters.begin_with(wanted.partitions)
        if isinstance(flow, UnfencedFlow):
            self._keep_renewing()
        return await self.start_of(task, wanted, ids=ids)

    async def start_of(self, task: int, wanted: TaskAssignment, *, ids: WriterIds | None = None) -> Assign:
        """Returns *wanted* with the start of the task, which has no other start any more. Raises MirrorFlowError.

        *ids*: what it writes with; the task's own by default.
        """
        self._held.release(task)
        await self._held.wait_for(wanted.partitions)
        async with self._working:
            flow = self._flow
            if isinstance(flow, UnownedFlow) and self._group is not None:
                flow = await self._takeover.owned_by_group(flow.clusters)
            match flow:
                case OwnedFlow():
                    started = await self._start_fenced(flow, task, wanted, ids)
                case UnfencedFlow():
                    await self._takeover.refuse_ended(flow.clusters)
                    started = await flow.start_task(wanted, self._takeover.plan(flow.clusters))
                case _:
                    raise FlowTakenError(source=self._settings.source_alias)
            self._held.hold(task, wanted.partitions)
            return started

    async def _start_fenced(
        self, owned: OwnedFlow, task: int, wanted: TaskAssignment, ids: WriterIds | None
    ) -> Assign:
        started = await owned.start_task(task, wanted, ids)
        if isinstance(started, Fenced):
            self._note_loss(owned)
        # An owner fences the ids of tasks and those in positions. These are in positions only now, so an owner that
        # took the flow meanwhile does not know them.
        elif ids is None or await owned.holds_lock():
            return started
        raise FlowTakenError(source=self._settings.source_alias)

    async def require_lock(self) -> None:
        """Raises FlowTakenError unless this process, or its group, still owns the flow; MirrorFlowError if that is unknown.

        It commits an empty transaction of the lock, a few times if the coordinator refuses it while it moves.
        """
        async with self._working:
            owned = self._flow
            if isinstance(owned, UnownedFlow) and self._group is not None:
                owned = await self._takeover.owned_by_group(owned.clusters)
            if isinstance(owned, OwnedFlow) and await self._still_holds(owned):
                return
        raise FlowTakenError(source=self._settings.source_alias)

    async def positions(self) -> dict[TopicPartition, WriterPosition]:
        """Returns the stored position of each partition of the flow. Raises MirrorFlowError."""
        return await self._owned().positions()

    async def store_starts(self, starts: Mapping[TopicPartition, int]) -> None:
        """Stores where partitions start that have no position yet. Raises MirrorFlowError."""
        await self._owned().store_starts(starts)

    def _owned(self) -> OwnedFlow:
        if not isinstance(self._flow, OwnedFlow):
            raise FlowTakenError(source=self._settings.source_alias)
        return self._flow

    async def leave(self, *, with_group: bool = False) -> None:
        """Gives the flow up, after all tasks have ended, so that a successor need not wait.

        In a group the claim stays, unless the whole group leaves: other processes continue under it, and the next of
        them does not wait.
        """
        if self._renewing is not None:
            await cancel_and_wait(self._renewing)
            self._renewing = None
        owned = self._flow
        if not isinstance(owned, OwnedFlow):
            return
        if with_group or self._group is None:
            with contextlib.suppress(MirrorFlowError, TimeoutError):
                async with asyncio.timeout(LEAVE_S):
                    await owned.renew(left=True)
        self._flow = UnownedFlow(owned.clusters)

    # -- taking

    async def _connect(self, clusters: tuple[Cluster, Cluster]) -> Flow:
        target = clusters[1]
        if self._flow is None or self._flow.clusters.target is not target:
            self.target_cluster_id = target.cluster_id
            why = await self._why_unfenced(target)
            opened = FlowClusters(self._settings, *clusters, initial=self._initial)
            await opened.open(has_claims=why is None)
            self._flow = UnownedFlow(opened) if why is None else UnfencedFlow(opened, why)
        return self._flow

    async def _why_unfenced(self, target: Cluster) -> str | None:
        return await why_unfenced(target, self._settings.source_alias, self._settings.offsets.store)

    async def _take(
        self, flow: UnownedFlow | OwnedFlow, *, waits_for_group: bool = False, preempts: bool = False
    ) -> None:
        taken = await self._takeover.take(
            flow.clusters,
            self._assignment,
            is_owner=isinstance(flow, OwnedFlow),
            waits_for_group=waits_for_group,
            preempts=preempts,
            waits_for_end=not preempts,
            is_to_copy=True,
        )
        if isinstance(taken, Fenced):
            self._note_loss(self._flow)
            raise FlowTakenError(source=self._settings.source_alias)
        self._flow = taken
        log.info("%s owns the flow, epoch %d of its lock", self._settings.name, taken.ownership.lock.epoch)

    async def _begin_unfenced(self, flow: UnfencedFlow, assignment: Assignment) -> None:
        """Notes what the flow begins with, if it was never copied."""
        if not self._assignment_is_known and not await flow.clusters.stored_positions():
            flow.clusters.begin_with(partition for task in assignment for partition in task)
        self._assignment_is_known = True

    async def _try_to_fence(self, flow: UnfencedFlow) -> None:
        """Takes the flow if the target allows it by now, once all tasks have finished. They finish if it was ended, too."""
        if (why := await self._why_unfenced(flow.clusters.target)) is not None:
            self._flow = replace(flow, why=why)
            try:
                await self._takeover.refuse_ended(flow.clusters)
            except FlowEndedError:
                self._on_lost()
            except ClusterError as error:
                if error.cluster != self._settings.source_alias:
                    raise
                log.debug(
                    "%s: whether a switchover has ended the flow is asked again: %s",
                    self._settings.name,
                    error,
                )
            return
        async with self._working:
            await flow.clusters.open(has_claims=True)  # may fail; the tasks continue then
            self._on_lost()  # its tasks finish and store their positions
            await self._held.wait_for_all()
            unowned = self._flow = UnownedFlow(flow.clusters)
            if self._assignment:
                await self._take(unowned)

    # -- keeping

    def _keep_renewing(self) -> None:
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.create_task(self._renew_for_ever(), name=f"own-{self._settings.name}")
            self._renewing.add_done_callback(report_failure)

    async def _renew_for_ever(self) -> None:
        """Renews the claim, also while tasks are started; takes the flow again when its next owner has left."""
        while True:
            await asyncio.sleep(RENEW_S)
            try:
                if isinstance(self._problem, InternalTopicUnavailableError) and self._flow is not None:
                    await self._flow.clusters.ensure_topics(has_claims=True)
                match self._flow:
                    case UnfencedFlow() as flow:
                        await self._try_to_fence(flow)
                    case OwnedFlow() as flow:
                        if not await flow.renew() and not await self._still_holds(flow):
                            self._note_loss(flow)
                    case UnownedFlow() as flow if self._assignment:
                        async with self._working:
                            await flow.clusters.ensure_topics(has_claims=True)
                            await self._take(flow, waits_for_group=True)
                    case _:
                        return  # of a group whose other process owns the flow
                self._problem = None
            except MirrorFlowError as error:
                # The brokers refuse everything of an owner that is not the newest, so nothing is at risk.
                if self._problem is None or self._problem.reason != error.reason:
                    log.warning("%s: %s: %s", self._settings.name, _NOT_RENEWED, error)
                self._problem = error

    async def _still_holds(self, owned: OwnedFlow) -> bool:
        for _ in range(CHECKS_MAX):
            if await owned.holds_lock():
                return True
            await asyncio.sleep(CHECK_S)
        return False

    def _note_loss(self, flow: Flow | None) -> None:
        if flow is not self._flow or not isinstance(flow, OwnedFlow):
            return
        log.warning(
            "%s: lost the ownership of the flow: another process has taken it, or its transactional ids have expired on the target.",
            self._settings.name,
        )
        self._flow = UnownedFlow(flow.clusters)
        if self._group is None:  # its tasks continue under the lock of the next claim
            self._takeover.stand_by()
            self._on_lost()
