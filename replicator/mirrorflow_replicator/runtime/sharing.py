"""One node's part of a MirrorSourceConnector that several nodes share: its discovery, some of its tasks, both, or, in
readiness for what other nodes may lose, neither.

    discovery ── publish(assignment) ──> config topic ──> share(leads, tasks) of every node ──> task processes

Promises: a part that stays is not disturbed by one that comes or goes, other partitions of a task included; a task that
goes has written its positions and said good-bye before `settled` returns; what cannot be begun is told and tried again.
The identity is decided in Kafka (DESIGN 4.2), so any node may be the first to need it.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mirrorflow_replicator.connect import task_configs
from mirrorflow_replicator.connect.group_assignment import Units
from mirrorflow_replicator.connect.group_protocol import Unit
from mirrorflow_replicator.connect.providers import Resolver
from mirrorflow_replicator.connect.samples import Samples
from mirrorflow_replicator.errors import MirrorFlowError
from mirrorflow_replicator.flow.assignment import Assignment
from mirrorflow_replicator.flow.identity import Identity
from mirrorflow_replicator.flow.partitions import TopicPartition
from mirrorflow_replicator.runtime.balancing import Balancing
from mirrorflow_replicator.runtime.children import Child, Spawn
from mirrorflow_replicator.runtime.claiming import Claiming, NotOursError
from mirrorflow_replicator.runtime.connector import SourceConnector
from mirrorflow_replicator.runtime.establishing import Established
from mirrorflow_replicator.runtime.hosting import HostedConnector, ended
from mirrorflow_replicator.runtime.messages import Assign
from mirrorflow_replicator.runtime.setbacks import Setbacks
from mirrorflow_replicator.settings import ConnectorSettings, SourceSettings

RETRY_MAX_S = (
    15.0  # while a cluster cannot be used; soon at first, for it may be this node's first connection
)

Publish = Callable[[Assignment, bool], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What of the connector is this node's. *tasks* have their partitions; *count* is of all tasks, on all nodes."""

    leads: bool = False  # it finds the topics, and says which task copies what
    tasks: Mapping[int, tuple[TopicPartition, ...]] = field(default_factory=dict)
    count: int = 0
    initial: bool = False  # the partitions were there when the flow began
    known: Assignment = ()  # all tasks' partitions as they are written down


def share_of(name: str, tasks: Sequence[Mapping[str, str]], held: Units) -> Share:
    """What of connector *name*, whose *tasks* are as they are written down, is this node's, who holds *held*."""
    known = tuple(task_configs.partitions(one) for one in tasks)
    return Share(
        leads=Unit(connector=name) in held,
        tasks={
            number: partitions
            for number, partitions in enumerate(known)
            if Unit(connector=name, task=number) in held
        },
        count=len(known),
        initial=any(task_configs.is_initial(one) for one in tasks),
        known=known,
    )


class Shared:
    """What runs of a connector that nodes share: it follows what is this node's."""

    def __init__(self) -> None:
        self._share = Share()
        self._changed = asyncio.Event()
        self._settled = asyncio.Event()
        self._settled.set()

    def share(self, share: Share) -> None:
        """From now on *share* is ours."""
        if share == self._share:
            return
        self._share = share
        self._settled.clear()
        self._changed.set()

    async def settled(self) -> None:
        """Wait until nothing runs here any more that is not ours."""
        await self._settled.wait()


class SharedConnector(HostedConnector, Shared):
    """See the module. *publish* writes down who copies what, and whether the flow begins just now."""

    def __init__(
        self,
        connector: ConnectorSettings,
        settings: SourceSettings,
        *,
        samples: Samples,
        publish: Publish,
        start: Spawn,
        grace_s: float,
        claiming: Claiming,
    ) -> None:
        HostedConnector.__init__(self, connector, settings, samples=samples, start=start)
        Shared.__init__(self)
        self._publish = publish
        self._grace_s = grace_s
        self._claiming = claiming
        self._given: dict[int, Assign] = {}
        self._leading: asyncio.Task[None] | None = None
        self._setbacks = Setbacks(connector.name, pause_max_s=RETRY_MAX_S)  # of beginning tasks
        self._discovery = self._discover()

    def share(self, share: Share) -> None:
        """From now on *share* is ours."""
        super().share(share)
        for task in share.tasks:
            self._child(task)  # its process starts beside whatever else is to be done

    @property
    def is_warm(self) -> bool:
        """Whether a task could begin here at once, or why it could not is told."""
        return self._identity is not None or self._setbacks.newest is not None

    async def run(self) -> None:
        """Follow what is ours until cancelled."""
        watching = asyncio.create_task(self._watch())
        try:
            while True:
                self._changed.clear()
                if self._leading is not None and self._leading.done():
                    self._leading.result()  # it ends by cancellation alone: a mistake of ours is not to go unnoticed
                await self._let_go()
                self._settled.set()
                try:
                    await self._unless_changed(self._begin())
                except MirrorFlowError as error:
                    self._setbacks.note(error)
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(self._setbacks.pause_s):
                            await self._changed.wait()
                else:
                    self._setbacks.over()
                    await self._changed.wait()
        finally:
            watching.cancel()
            if self._leading is not None:
                await ended(self._leading)
            await self._discovery.close()

    async def stop(self, grace_s: float) -> None:
        """End what runs here in order."""
        self._share = Share()
        await asyncio.gather(*(child.stop(grace_s) for child in self._children.values()))
        self._settled.set()

    async def _unless_changed(self, job: Coroutine[Any, Any, None]) -> None:
        """Run *job*, which may wait for a cluster long; what is to be let go meanwhile does not wait for it."""
        doing, changed = asyncio.create_task(job), asyncio.create_task(self._changed.wait())
        try:
            await asyncio.wait({doing, changed}, return_when=asyncio.FIRST_COMPLETED)
            if doing.done():
                doing.result()
        finally:
            changed.cancel()
            if not doing.done():
                await ended(doing)

    async def _let_go(self) -> None:
        gone = [task for task in self._children if task not in self._share.tasks]
        await asyncio.gather(*(self._children[task].stop(self._grace_s) for task in gone))
        for task in gone:
            del self._children[task]
            self._given.pop(task, None)
        if self._leading is not None and not self._share.leads:
            await ended(self._leading)
            self._leading = None
            # Its connections went with it; tasks that stay have their own.
            self._discovery = self._discover()

    def _discover(self) -> SourceConnector:
        settings = self._settings
        return SourceConnector(
            settings,
            resolve=Resolver(settings.providers).resolve_client,
            balancing=None if settings.balance_tasks_s is None else Balancing(settings),
        )

    async def _begin(self) -> None:
        if self._share.leads and self._leading is None:
            self._discovery.held = self._share.known
            self._leading = asyncio.create_task(self._lead(), name=f"leading-{self._connector.name}")
            self._leading.add_done_callback(lambda _: self._changed.set())
        share = self._share
        # Also where there is nothing to do yet: what comes then finds all decided.
        identity = self._identity or await self._establish(may_change=True)
        limit = self._settings.bytes_per_second
        bytes_per_s = None if limit is None else max(1, limit // max(1, share.count))
        for task, partitions in share.tasks.items():
            message = Assign(
                identity=identity,
                partitions=partitions,
                initial=share.initial,
                gone=False,
                bytes_per_s=bytes_per_s,
            )
            if self._given.get(task) != message:
                self._given[task] = message
                child = self._child(task)
                if self._claiming.is_needed(self._settings):
                    child.claim = self._claim
                child.assign(message)

    async def _claim(self, task: int, message: Assign) -> Assign:
        """*message* when nobody of before can write to its partitions any more."""
        claimed = await self._claiming.claim(self._settings, task, message)
        if self._share.tasks.get(task) != message.partitions:
            raise NotOursError(self._connector.name, task)
        return claimed

    async def _lead(self) -> None:
        beside = [asyncio.create_task(self._pulse.run(self._discovery))]
        if self._syncs_topic is not None:
            beside.append(asyncio.create_task(self._syncs_topic.run()))
        try:
            await self._discovery.run(self._hand)
        finally:
            for job in beside:
                job.cancel()

    async def _hand(self, assignment: Assignment) -> None:
        if self._identity is None:
            await self._establish(may_change=True)
        # A node that has waited since the flow began finds in the tasks that are written down that others have begun it.
        await self._publish(assignment, self._initial and not self._share.known)
        # What appears later is read from its beginning, wherever the first ones were to start.
        self._initial = False

    async def _establish(self, *, may_change: bool, fenced: int = 0) -> Identity:
        await self._discovery.connect()
        return await super()._establish(may_change=may_change, fenced=fenced)

    def _begins_with(self, established: Established) -> bool:
        # Whoever came first has decided the identity: any node, while none has been given a partition.
        return established.is_unused

    @property
    def heard_of_all(self) -> bool:
        """Whether the tasks that are here have said something of every partition that they were given."""
        given = {partition for partitions in self._share.tasks.values() for partition in partitions}
        heard = {partition for child in self._children.values() for partition in child.partitions}
        return given <= heard and (not self._share.leads or self._discovery.assignment is not None)

    @property
    def _state(self) -> str:
        if self._setbacks.newest is not None:
            return "FAILED"
        if self._share.leads:
            return self._discovery.state
        return "RUNNING" if self._identity is not None or not self._share.tasks else "UNASSIGNED"

    def _told_children(self) -> Iterable[Child]:
        return [self._children[task] for task in sorted(self._children) if task in self._share.tasks]
