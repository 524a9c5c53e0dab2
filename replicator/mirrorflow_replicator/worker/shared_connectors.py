"""Runs one node's part of a connector that several nodes share.

A node runs discovery, tasks, or both for a MirrorSourceConnector:

    discovery ── publish(assignment) ──> config topic ──> share(leads, tasks) of every node ──> task processes

A node with no part keeps ready to take over what other nodes may lose.

Guarantees: a part that stays is not disturbed by one that comes or goes, and neither are the other partitions
of a task. A task that goes has written its offsets and stopped before `settled` returns. What cannot start is
reported and retried.

A checkpoint or heartbeat connector has one task and no process for it (`SharedTask`): the node that has the
connector stores that it has one task; the node that has the task does the work.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mirrorflow_core.connect import worker_state
from mirrorflow_core.connect.group_assignment import Unit, Units
from mirrorflow_core.errors import MirrorFlowError
from mirrorflow_core.partition_assignment import Assignment
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.reports import ConnectorReport
from mirrorflow_core.settings import ConnectorSettings, SourceSettings
from mirrorflow_kafka.client.cancellation import cancel_and_wait
from mirrorflow_replicator.config.providers import Resolver
from mirrorflow_replicator.connectors.connector_host import ConnectorHost, IdleConnector
from mirrorflow_replicator.connectors.connector_state import RetryState
from mirrorflow_replicator.connectors.rebalancing import Rebalancing
from mirrorflow_replicator.connectors.source_connector import SourceConnector
from mirrorflow_replicator.connectors.source_host import SourceHost
from mirrorflow_replicator.connectors.task_messages import Assign
from mirrorflow_replicator.connectors.task_supervisor import Spawn, TaskSupervisor
from mirrorflow_replicator.http.samples import Samples
from mirrorflow_replicator.worker.group_tasks import NotAssignedError, TaskFencing
from mirrorflow_replicator.worker.local_connectors import ConnectorSlot

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
    known = tuple(worker_state.task_partitions(one) for one in tasks)
    return TaskShare(
        leads=Unit(connector=name) in held,
        tasks={
            number: partitions
            for number, partitions in enumerate(known)
            if Unit(connector=name, task=number) in held
        },
        count=len(known),
        initial=any(worker_state.is_initial_task(one) for one in tasks),
        known=known,
    )


class SharedSource:
    """What runs here of a shared connector: it follows this node's share."""

    def __init__(self, name: str) -> None:
        self._setbacks = RetryState(name, pause_max_s=RETRY_MAX_S)
        self._share = TaskShare()
        self._changed = asyncio.Event()
        self._settled = asyncio.Event()
        self._settled.set()
        self._is_over = False

    def share(self, share: TaskShare) -> None:
        """Follows *share* from now on; ignored once this connector has ended."""
        if share == self._share or self._is_over:
            return
        self._share = share
        self._settled.clear()
        self._changed.set()

    async def settled(self) -> None:
        """Waits until nothing runs here that is not in this node's share."""
        await self._settled.wait()

    async def _follow_share(self, let_go: Step, begin: Step, wait: Step) -> None:
        """Ends what left the share, then begins what joined it; retries until the share changes."""
        while True:
            self._changed.clear()
            await let_go()
            self._settled.set()
            try:
                await begin()
            except MirrorFlowError as error:
                self._setbacks.note(error)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._setbacks.pause_s):
                        await wait()
            else:
                self._setbacks.over()
                await wait()

    def _end_share(self) -> None:
        """Ends for good: later shares are ignored, and `settled` returns at once."""
        self._share, self._is_over = TaskShare(), True
        self._settled.set()


class SharedConnector(SourceHost, SharedSource):
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
        claiming: TaskFencing,
    ) -> None:
        SourceHost.__init__(self, connector, settings, samples=samples, start=start, group=claiming.group_id)
        SharedSource.__init__(self, connector.name)
        self._publish = publish
        self._grace_s = grace_s
        self._claiming = claiming
        self._given: dict[int, Assign] = {}
        self._leading: asyncio.Task[None] | None = None
        self._discovery = self._discover()
        self._is_connected = False

    def share(self, share: TaskShare) -> None:
        """Follows *share* from now on, and starts the processes of its tasks."""
        super().share(share)
        for task in self._share.tasks:
            self._child(task)  # its process starts while the other steps run

    @property
    def is_warm(self) -> bool:
        """Whether a task could start here at once, or the error that prevents it is reported."""
        return self._is_connected or self._setbacks.newest is not None

    async def run(self) -> None:
        watching = asyncio.create_task(self._watch())
        try:
            await self._follow_share(self._let_go, self._begin_unless_changed, self._changed.wait)
        finally:
            watching.cancel()
            self._end_share()
            if self._leading is not None:
                await cancel_and_wait(self._leading)
            await self._discovery.close()

    async def stop(self, grace_s: float) -> None:
        self._share, self._is_over = TaskShare(), True
        await asyncio.gather(*(child.stop(grace_s) for child in self._children.values()))
        await self._owner.leave()
        self._end_share()

    async def _begin_unless_changed(self) -> None:
        """Begins, which may wait long for a cluster, unless the share changes meanwhile."""
        doing, changed = asyncio.create_task(self._begin()), asyncio.create_task(self._changed.wait())
        try:
            await asyncio.wait({doing, changed}, return_when=asyncio.FIRST_COMPLETED)
            if doing.done():
                doing.result()
        finally:
            changed.cancel()
            if not doing.done():
                await cancel_and_wait(doing)

    async def _let_go(self) -> None:
        if self._leading is not None and self._leading.done():
            self._leading.result()  # ends only by cancellation; raises after a bug
        gone = [task for task in self._children if task not in self._share.tasks]
        await asyncio.gather(*(self._children[task].stop(self._grace_s) for task in gone))
        for task in gone:
            del self._children[task]
            self._given.pop(task, None)
        if self._leading is not None and not self._share.leads:
            await cancel_and_wait(self._leading)
            self._leading = None
            await self._owner.leave()
            # Its connections were closed with it; tasks that stay have their own.
            self._discovery = self._discover()

    def _discover(self) -> SourceConnector:
        settings = self._settings
        return SourceConnector(
            settings,
            resolve=Resolver(settings.providers).resolve_client,
            balancing=None if settings.balance_tasks_s is None else Rebalancing(settings),
        )

    async def _begin(self) -> None:
        if self._share.leads and self._leading is None:
            self._discovery.take_over(self._share.known)
            self._leading = asyncio.create_task(
                self._discover_topics(), name=f"leading-{self._connector.name}"
            )
            self._leading.add_done_callback(lambda _: self._changed.set())
        share = self._share
        await self._discovery.connect()  # also where there is nothing to do yet
        self._is_connected = True
        bytes_per_s = self._bytes_per_s(share.count)
        for task, partitions in share.tasks.items():
            message = Assign(partitions=partitions, initial=share.initial, bytes_per_s=bytes_per_s)
            if self._given.get(task) != message:
                self._given[task] = message
                self._child(task).assign(message)

    async def _claim(self, task: int, message: Assign) -> Assign:
        """Returns the claimed *message* when no earlier task can write to its partitions any more."""
        if self._claiming.is_needed:
            await self._claiming.claim(task)
        self._claiming.check(task)
        await self._discovery.connect()
        claimed = await self._owner.start_in_group(self._discovery.clusters, task, message)
        self._claiming.check(task)
        if self._share.tasks.get(task) != message.partitions:
            raise NotAssignedError(self._connector.name, task)
        return claimed

    async def _hand(self, assignment: Assignment) -> None:
        await self._owner.own(self._discovery.clusters, assignment)
        # A node that has waited since the flow began sees in the stored tasks that another has begun it.
        await self._publish(assignment, self._initial and not self._share.known)
        # Partitions that appear later are read from their beginning, wherever the first ones started.
        self._initial = False

    @property
    def heard_of_all(self) -> bool:
        given = {partition for partitions in self._share.tasks.values() for partition in partitions}
        heard = {partition for child in self._children.values() for partition in child.partitions}
        return given <= heard and (not self._share.leads or self._discovery.assignment is not None)

    @property
    def _state(self) -> str:
        if self._setbacks.newest is not None:
            return "FAILED"
        if self._share.leads:
            return self._discovery.state
        return "RUNNING" if self._is_connected or not self._share.tasks else "UNASSIGNED"

    def _told_children(self) -> Iterable[TaskSupervisor]:
        return [self._children[task] for task in sorted(self._children) if task in self._share.tasks]


class SharedTask(SharedSource):
    """One node's part of a checkpoint or heartbeat connector.

    *make* returns the host that does the work; *publish* stores that there is one task.
    """

    heard_of_all = True

    def __init__(
        self,
        connector: ConnectorSettings,
        *,
        make: Callable[[], ConnectorHost | None],
        publish: Callable[[], Awaitable[None]],
        grace_s: float,
    ) -> None:
        super().__init__(f"{connector.name}: its task cannot be written down")
        state = "PAUSED" if connector.is_paused else "RUNNING"
        self._absent = IdleConnector(connector.name, connector.properties, state=state)
        self._make = make
        self._publish = publish
        self._broken: asyncio.Queue[asyncio.Task[None]] = asyncio.Queue()  # work that ended by itself
        self._slot = ConnectorSlot[bool](
            connector.name, make=self._work, broken=self._broken.put_nowait, grace_s=grace_s
        )

    async def run(self) -> None:
        try:
            await self._follow_share(self._let_go, self._begin, self._wait)
        finally:
            self._slot.want(None)
            await self._slot.settled()
            self._end_share()

    async def stop(self, grace_s: float) -> None:
        self._share, self._is_over = TaskShare(), True
        self._slot.want(None)
        await self._slot.settled()
        self._end_share()

    def _work(self, _name: str, _wanted: bool) -> ConnectorHost:  # noqa: FBT001 the slot's
        hosted = self._make()
        assert hosted is not None, "a connector that asks for nothing is not shared"
        return hosted

    async def _let_go(self) -> None:
        """Starts or ends the work: the one task is the whole share."""
        self._slot.want(bool(self._share.tasks) or None)
        await self._slot.settled()

    async def _begin(self) -> None:
        if self._share.leads:
            await self._publish()

    async def _wait(self) -> None:
        """Waits until the share changes; raises if the work itself has ended, which is a bug."""
        changed, broken = asyncio.create_task(self._changed.wait()), asyncio.create_task(self._broken.get())
        try:
            await asyncio.wait({changed, broken}, return_when=asyncio.FIRST_COMPLETED)
            if broken.done():
                broken.result().result()
        finally:
            changed.cancel()
            broken.cancel()

    def report(self) -> ConnectorReport:
        hosted = self._slot.hosted
        return (
            self._absent.report()
            if hosted is None
            else replace(hosted.report(), heard_of_all=hosted.heard_of_all)
        )

    @property
    def target_cluster_id(self) -> str:
        return "" if self._slot.hosted is None else self._slot.hosted.target_cluster_id
