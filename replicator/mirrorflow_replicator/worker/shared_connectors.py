"""Runs one node's part of a connector that several nodes share.

A node runs discovery, tasks, or both for a MirrorSourceConnector:

    discovery ── publish(assignment) ──> config topic ──> share(leads, tasks) of every node ──> task processes

A node without a part stays connected, ready to take over from other nodes.

Guarantees: adding or removing one part does not interrupt the others, nor the other partitions of a task. A
task that is removed has stored its offsets and stopped before `settled` returns. A part that cannot start is
reported and retried.

A checkpoint or heartbeat connector has one task and no process for it (`SharedTask`): the node that has the
connector stores that it has one task; the node that has the task does the work.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mirrorflow_core.connect import worker_state
from mirrorflow_core.connect.group_assignment import Unit, Units
from mirrorflow_core.errors import MirrorFlowError
from mirrorflow_core.partition_assignment import Assignment
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.reports import ConnectorReport
from mirrorflow_core.settings import ConnectorSettings, SourceSettings
from mirrorflow_kafka.client.cancellation import cancel_and_wait
from mirrorflow_replicator.connectors.child_process import Spawn
from mirrorflow_replicator.connectors.connector_host import IdleConnector, RunningConnector
from mirrorflow_replicator.connectors.connector_state import RetryState
from mirrorflow_replicator.connectors.source_connector import SourceParts
from mirrorflow_replicator.connectors.task_messages import Assign, TaskAssignment
from mirrorflow_replicator.http.partition_rates import Samples
from mirrorflow_replicator.worker.local_connectors import ConnectorSlot
from mirrorflow_replicator.worker.task_fencing import NotAssignedError, TaskFencing

RETRY_MAX_S = 15.0  # while a cluster cannot be used; short at first: it may be this node's first connection

Step = Callable[[], Awaitable[object]]
Publish = Callable[[Assignment, bool], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskShare:
    """The part of a connector that this node has.

    *tasks* maps task numbers to partitions; *count* is over all nodes.
    """

    leads: bool = False  # it discovers topics and assigns partitions to tasks
    tasks: Mapping[int, tuple[TopicPartition, ...]] = field(default_factory=dict)
    count: int = 0
    initial: bool = False  # the partitions existed when the flow began
    known: Assignment = ()  # all tasks' partitions, as in the config topic


def share_of(name: str, tasks: Sequence[Mapping[str, str]], held: Units) -> TaskShare:
    """Returns this node's share of connector *name*, whose stored task configs are *tasks*.

    *held* are the units that the node holds.
    """
    known = tuple(worker_state.task_partitions(task) for task in tasks)
    return TaskShare(
        leads=Unit(connector=name) in held,
        tasks={
            number: partitions
            for number, partitions in enumerate(known)
            if Unit(connector=name, task=number) in held
        },
        count=len(known),
        initial=any(worker_state.is_initial_task(task) for task in tasks),
        known=known,
    )


class ShareFollower:
    """Follows this node's share of a connector: releases what left it, then begins what joined it."""

    def __init__(self, name: str) -> None:
        self.share = TaskShare()
        self._retry = RetryState(name, pause_max_s=RETRY_MAX_S)
        self._changed = asyncio.Event()
        self._settled = asyncio.Event()
        self._settled.set()
        self._is_closed = False

    def take(self, share: TaskShare) -> None:
        """Follows *share* from now on; ignored once the connector ends."""
        if share == self.share or self._is_closed:
            return
        self.share = share
        self._settled.clear()
        self._changed.set()

    def wake(self) -> None:
        """Applies the unchanged share again."""
        self._changed.set()

    async def changed(self) -> None:
        """Waits until the share changes."""
        await self._changed.wait()

    async def settled(self) -> None:
        """Waits until nothing runs here that is not in this node's share."""
        await self._settled.wait()

    @property
    def problem(self) -> MirrorFlowError | None:
        """What prevents the share from beginning; None if nothing does."""
        return self._retry.problem

    async def run(self, release: Step, begin: Step, wait: Step) -> None:
        """Releases what left the share, then begins what joined it; retries until the share changes."""
        while True:
            self._changed.clear()
            await release()
            self._settled.set()
            try:
                await begin()
            except MirrorFlowError as error:
                self._retry.failed(error)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._retry.pause_s):
                        await wait()
            else:
                self._retry.succeeded()
                await wait()

    def close(self) -> None:
        """Ignores later shares: the connector ends."""
        self.share, self._is_closed = TaskShare(), True

    def end(self) -> None:
        """Ends for good: `settled` returns at once."""
        self.close()
        self._settled.set()


class SharedConnector:
    """One node's part of a source connector. *publish* writes the assignment, and whether the flow begins now."""

    def __init__(
        self,
        connector: ConnectorSettings,
        settings: SourceSettings,
        *,
        samples: Samples,
        publish: Publish,
        start: Spawn,
        grace_s: float,
        fencing: TaskFencing,
    ) -> None:
        self._name = connector.name
        self._parts = SourceParts(
            connector, settings, samples=samples, start=start, group=fencing.group_id, claim=self._claim
        )
        self._follower = ShareFollower(connector.name)
        self._publish = publish
        self._grace_s = grace_s
        self._fencing = fencing
        self._assigned: dict[int, TaskAssignment] = {}
        self._leading: asyncio.Task[None] | None = None
        self._initial = True
        self._is_connected = False

    def share(self, share: TaskShare) -> None:
        """Follows *share* from now on, and starts the processes of its tasks."""
        self._follower.take(share)
        for task in self._share.tasks:
            self._parts.task(task)  # its process starts while the other steps run

    async def settled(self) -> None:
        """Waits until nothing runs here that is not in this node's share."""
        await self._follower.settled()

    @property
    def _share(self) -> TaskShare:
        return self._follower.share

    @property
    def is_warm(self) -> bool:
        """Whether a task could start here at once, or the error that prevents it is reported."""
        return self._is_connected or self._follower.problem is not None

    async def run(self) -> None:
        logged = asyncio.create_task(self._parts.log_problems())
        try:
            await self._follower.run(self._release, self._begin_unless_changed, self._follower.changed)
        finally:
            logged.cancel()
            self._follower.end()
            if self._leading is not None:
                await cancel_and_wait(self._leading)
            await self._parts.discovery.close()

    async def stop(self, grace_s: float) -> None:
        self._follower.close()
        await self._parts.stop(grace_s)
        self._follower.end()

    def restart_task(self, task: int) -> None:
        self._parts.restart_task(task)

    async def _begin_unless_changed(self) -> None:
        """Begins, which may wait long for a cluster, unless the share changes meanwhile."""
        beginning, changed = asyncio.create_task(self._begin()), asyncio.create_task(self._follower.changed())
        try:
            await asyncio.wait({beginning, changed}, return_when=asyncio.FIRST_COMPLETED)
            if beginning.done():
                beginning.result()
        finally:
            changed.cancel()
            if not beginning.done():
                await cancel_and_wait(beginning)

    async def _release(self) -> None:
        if self._leading is not None and self._leading.done():
            self._leading.result()  # ends only by cancellation; raises after a bug
        gone = [task for task in self._parts.tasks if task not in self._share.tasks]
        await self._parts.end_tasks(gone, self._grace_s)
        for task in gone:
            self._assigned.pop(task, None)
        if self._leading is not None and not self._share.leads:
            await cancel_and_wait(self._leading)
            self._leading = None
            await self._parts.owner.leave()
            # Its connections were closed with it; tasks that stay have their own.
            self._parts.renew_discovery()

    async def _begin(self) -> None:
        parts = self._parts
        if self._share.leads and self._leading is None:
            parts.discovery.continue_from(self._share.known)
            self._leading = asyncio.create_task(
                parts.discover_topics(self._publish_assignment), name=f"leading-{self._name}"
            )
            self._leading.add_done_callback(lambda _: self._follower.wake())
        share = self._share
        await parts.discovery.connect()  # also where there is nothing to do yet
        self._is_connected = True
        bytes_per_s = parts.bytes_per_s(share.count)
        for task, partitions in share.tasks.items():
            wanted = TaskAssignment(partitions=partitions, initial=share.initial, bytes_per_s=bytes_per_s)
            if self._assigned.get(task) != wanted:
                self._assigned[task] = wanted
                parts.task(task).assign(wanted)

    async def _claim(self, task: int, wanted: TaskAssignment) -> Assign:
        """Returns *wanted* with its start, when no earlier task can write to its partitions any more."""
        if self._fencing.is_needed:
            await self._fencing.claim(task)
        self._fencing.check(task)
        parts = self._parts
        await parts.discovery.connect()
        claimed = await parts.owner.start_in_group(parts.discovery.clusters, task, wanted)
        self._fencing.check(task)
        if self._share.tasks.get(task) != wanted.partitions:
            raise NotAssignedError(self._name, task)
        return claimed

    async def _publish_assignment(self, assignment: Assignment) -> None:
        await self._parts.owner.own(self._parts.discovery.clusters, assignment)
        # A node that has waited since the flow began sees in the stored tasks that another has begun it.
        await self._publish(assignment, self._initial and not self._share.known)
        # Partitions that appear later are read from their beginning, wherever the first ones started.
        self._initial = False

    @property
    def has_reported_all(self) -> bool:
        given = {partition for partitions in self._share.tasks.values() for partition in partitions}
        is_found = not self._share.leads or self._parts.discovery.assignment is not None
        return self._parts.is_standby or (given <= self._parts.reported_partitions and is_found)

    @property
    def target_cluster_id(self) -> str | None:
        return self._parts.owner.target_cluster_id

    def report(self) -> ConnectorReport:
        if self._parts.is_standby and self._follower.problem is None:
            return self._parts.report(state="RUNNING", tasks=())
        tasks = self._parts.tasks
        mine = [tasks[task] for task in sorted(tasks) if task in self._share.tasks]
        return self._parts.report(state=self._state, tasks=mine)

    @property
    def _state(self) -> str:
        if self._follower.problem is not None:
            return "FAILED"
        if self._share.leads:
            return self._parts.discovery.state
        return "RUNNING" if self._is_connected or not self._share.tasks else "UNASSIGNED"


class SharedTask:
    """One node's part of a checkpoint or heartbeat connector.

    *make* returns the host that does the work; *publish* stores that there is one task.
    """

    has_reported_all = True

    def __init__(
        self,
        connector: ConnectorSettings,
        *,
        make: Callable[[], RunningConnector],
        publish: Callable[[], Awaitable[None]],
        grace_s: float,
    ) -> None:
        self._follower = ShareFollower(f"{connector.name}: its task config cannot be stored")
        state = "PAUSED" if connector.is_paused else "RUNNING"
        self._absent = IdleConnector(connector.name, connector.properties, state=state)
        self._make = make
        self._publish = publish
        self._unexpected_ends: asyncio.Queue[asyncio.Task[None]] = asyncio.Queue()
        self._slot = ConnectorSlot[bool](
            connector.name,
            make=self._work,
            on_unexpected_end=self._unexpected_ends.put_nowait,
            grace_s=grace_s,
        )

    def share(self, share: TaskShare) -> None:
        """Follows *share* from now on."""
        self._follower.take(share)

    async def settled(self) -> None:
        """Waits until nothing runs here that is not in this node's share."""
        await self._follower.settled()

    async def run(self) -> None:
        try:
            await self._follower.run(self._release, self._begin, self._wait)
        finally:
            self._slot.want(None)
            await self._slot.settled()
            self._follower.end()

    async def stop(self, grace_s: float) -> None:
        self._follower.close()
        self._slot.want(None)
        await self._slot.settled()
        self._follower.end()

    def _work(self, _name: str, _wanted: bool) -> RunningConnector:  # noqa: FBT001 the slot's
        return self._make()

    async def _release(self) -> None:
        """Starts or ends the work: the one task is the whole share."""
        self._slot.want(bool(self._follower.share.tasks) or None)
        await self._slot.settled()

    async def _begin(self) -> None:
        if self._follower.share.leads:
            await self._publish()

    async def _wait(self) -> None:
        """Waits until the share changes; raises if the work itself has ended, which is a bug."""
        changed, ended = (
            asyncio.create_task(self._follower.changed()),
            asyncio.create_task(self._unexpected_ends.get()),
        )
        try:
            await asyncio.wait({changed, ended}, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                ended.result().result()
        finally:
            changed.cancel()
            ended.cancel()

    def report(self) -> ConnectorReport:
        hosted = self._slot.hosted
        return (
            self._absent.report()
            if hosted is None
            else replace(hosted.report(), has_reported_all=hosted.has_reported_all)
        )

    @property
    def target_cluster_id(self) -> str | None:
        return None if self._slot.hosted is None else self._slot.hosted.target_cluster_id
