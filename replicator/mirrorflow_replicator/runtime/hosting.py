"""One MirrorSourceConnector in this process: its discovery, its identity, its task processes, and what it says of itself."""

import asyncio
import contextlib
import logging
import os
import random
import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from mirrorflow_replicator.connect.offset_syncs import offset_syncs_topic
from mirrorflow_replicator.connect.plugins import make_replication_policy
from mirrorflow_replicator.connect.providers import Resolver
from mirrorflow_replicator.connect.samples import Samples
from mirrorflow_replicator.errors import FencedError, IdentityError, MirrorFlowError
from mirrorflow_replicator.flow.assignment import Assignment
from mirrorflow_replicator.flow.identity import Identity
from mirrorflow_replicator.flow.report import ConnectorReport, Phase, TaskReport, worst_side
from mirrorflow_replicator.runtime.children import Child, Spawn, spawn
from mirrorflow_replicator.runtime.connector import SourceConnector
from mirrorflow_replicator.runtime.establishing import Established, identify
from mirrorflow_replicator.runtime.messages import Assign
from mirrorflow_replicator.runtime.pulse import Pulse
from mirrorflow_replicator.runtime.setbacks import report_of
from mirrorflow_replicator.runtime.syncing import SyncsTopic
from mirrorflow_replicator.settings import ConnectorSettings, SourceSettings

STEP_SPREAD_S = 1.0  # over which several copiers that were fenced together go on
STEP_RETRY_MAX_S = 15.0  # while the target cannot be used
TOLD_MAX = 3  # sentences about stopped partitions in a task's trace; /progress/partitions has them all

log = logging.getLogger("mirrorflow.worker")


class HostedConnector:
    """See the module. `run` until cancelled, then `stop`."""

    def __init__(
        self,
        connector: ConnectorSettings,
        settings: SourceSettings,
        *,
        samples: Samples,
        start: Spawn = spawn,
    ) -> None:
        self._start = start
        self._connector = connector
        self._settings = settings
        self._samples = samples
        self._copier = secrets.token_hex(8)
        self._started_at_s = time.time()
        self._identity: Identity | None = None
        self._initial = True
        self._children: dict[int, Child] = {}
        self._refused: MirrorFlowError | None = None  # why a fenced copier does not go on
        self._stepping: asyncio.Task[None] | None = None
        # Said by whoever started us again after our own death (the local runner).
        self._predecessor_gone = bool(os.environ.get("MIRRORFLOW_PREDECESSOR_GONE"))
        self._told = ""  # the reason of the problem that was logged last
        resolve = Resolver(settings.providers).resolve_client
        self._discovery = SourceConnector(settings, resolve=resolve)
        self._pulse = Pulse(connector.name, make_replication_policy(settings).is_heartbeats_topic)
        self._syncs_topic = (
            None
            if settings.syncs is None
            else SyncsTopic(settings.syncs, offset_syncs_topic(settings), resolve=resolve)
        )

    async def run(self) -> None:
        """Discover and hand out until cancelled."""
        # Started before anything is known, so that its imports and connections run beside ours.
        self._child(0)
        beside = [asyncio.create_task(self._watch()), asyncio.create_task(self._pulse.run(self._discovery))]
        if self._syncs_topic is not None:
            beside.append(asyncio.create_task(self._syncs_topic.run()))
        try:
            await self._discovery.run(self._hand)
        finally:
            for job in beside:
                job.cancel()

    async def stop(self, grace_s: float) -> None:
        """End the tasks in order."""
        await asyncio.gather(*(child.stop(grace_s) for child in self._children.values()))

    def restart_task(self, task: int) -> None:
        """End the process of one task in order; a new one goes on where it was."""
        if task in self._children:
            self._children[task].restart()

    async def _hand(self, assignment: Assignment) -> None:
        identity = self._identity or await self._establish(may_change=True)
        limit = self._settings.bytes_per_second
        share = None if limit is None else max(1, limit // max(1, len(assignment)))
        for task, partitions in enumerate(assignment):
            self._child(task).assign(
                Assign(
                    identity=identity,
                    partitions=partitions,
                    initial=self._initial,
                    gone=self._predecessor_gone,
                    bytes_per_s=share,
                )
            )
        for child in [*self._children.values()][len(assignment) :]:
            child.assign(Assign(identity=identity, partitions=(), initial=self._initial, gone=False))
        # What appears later is read from its beginning, wherever the first ones were to start.
        self._initial = False
        self._predecessor_gone = False

    def _child(self, task: int) -> Child:
        if task not in self._children:
            self._children[task] = Child(
                self._settings,
                task,
                copier=f"{self._copier}-{task}",
                on_report=self._observe,
                start=self._start,
            )
        return self._children[task]

    def _observe(self, report: TaskReport) -> None:
        self._samples.observe(self._connector.name, report, time.time())
        fenced = any(one.reason == FencedError.reason for one in report.partitions)
        if fenced and (self._stepping is None or self._stepping.done()):
            self._stepping = asyncio.create_task(self._step_back())

    async def _step_back(self) -> None:
        """Somebody has raised the epoch: go on in the generation of that, if our settings are the same.

        Another copier has decided a generation; or the target's coordinator has aborted a transaction that nobody
        committed in time, and then all copiers decide a next one, at the same moment unless they spread.
        """
        assert self._identity is not None
        fenced = self._identity.generation
        pause_s = random.uniform(0, STEP_SPREAD_S)  # noqa: S311
        while True:
            await asyncio.sleep(pause_s)
            try:
                identity = await self._establish(may_change=False, fenced=fenced)
            except IdentityError as error:
                self._refused = error
                log.warning("%s: %s", self._connector.name, error)
                return
            except MirrorFlowError as error:
                log.warning("%s: %s", self._connector.name, error)
                pause_s = min(2 * pause_s + STEP_SPREAD_S, STEP_RETRY_MAX_S)
            else:
                break
        for child in self._children.values():
            child.adopt(identity)

    async def _establish(self, *, may_change: bool, fenced: int = 0) -> Identity:
        """The identity to write with; a new generation where Java has copied since we did, or *fenced* is over."""
        established = await identify(
            self._settings, *self._discovery.clusters, may_change=may_change, fenced=fenced
        )
        self._identity = established.identity
        self._initial = self._begins_with(established)
        return self._identity

    def _begins_with(self, established: Established) -> bool:
        """Whether what is handed out first are the partitions that the flow begins with."""
        return established.is_first

    async def _watch(self) -> None:
        """Tell a problem of the discovery once, until it is over; so with what it warns of."""
        warned: frozenset[str] = frozenset()
        while True:
            problem = self._discovery.problem
            if problem is None:
                self._told = ""
            elif problem.reason != self._told:
                # By its reason: what a lost connection says changes from one attempt to the next.
                self._told = problem.reason
                log.warning("%s: %s", self._connector.name, problem)
            warnings = self._warnings
            for warning in warnings:
                if warning not in warned:
                    log.warning("%s: %s", self._connector.name, warning)
            # Until all is well: two causes that take turns are not news each time.
            warned = warned.union(warnings) if warnings else frozenset()
            await asyncio.sleep(1)

    @property
    def heard_of_all(self) -> bool:
        """Whether the tasks have said something of every partition that they were given."""
        assigned = self._discovery.assignment
        given = {partition for task in assigned or () for partition in task}
        heard = {partition for child in self._children.values() for partition in child.partitions}
        return assigned is not None and given <= heard

    @property
    def target_cluster_id(self) -> str:
        """The target's own id; "" before it was reached."""
        return "" if self._identity is None else self._identity.target_cluster_id

    def report(self) -> ConnectorReport:
        """The connector now."""
        tasks = tuple(
            TaskReport(
                task=child.task,
                state=child.state,
                trace=child.trace or _stopped_in(child),
                reason=child.newest.reason,
                partitions=tuple(child.partitions[key] for key in sorted(child.partitions)),
                errors=child.newest.errors,
                throttle_ms=child.newest.throttle_ms,
                refused_settings=child.newest.refused_settings,
                offset_syncs=child.newest.offset_syncs,
                warnings=child.newest.warnings,
            )
            for child in self._told_children()
        )
        problem = self._refused or self._discovery.problem
        source, target = self._discovery.sides
        report = report_of(
            self._connector,
            self._settings,
            state=self._state if self._refused is None else "FAILED",
            problem=problem,
            started_at_s=self._started_at_s,
        )
        return replace(
            report,
            tasks=tasks,
            task_properties=tuple(self._task_properties(child) for child in self._children.values()),
            topics=tuple(
                sorted({one.target_topic for task in tasks for one in task.partitions if one.records})
            ),
            warnings=(*self._warnings, *self._pulse.warnings),
            heartbeats=self._pulse.report(self._settings.target_alias),
            uncopied=self._discovery.uncopied,
            source=worst_side((source, *(child.newest.source for child in self._children.values()))),
            target=worst_side((target, *(child.newest.target for child in self._children.values()))),
        )

    @property
    def _state(self) -> str:
        return self._discovery.state

    def _told_children(self) -> Iterable[Child]:
        return self._children.values() if self._discovery.assignment is not None else ()

    @property
    def _warnings(self) -> tuple[str, ...]:
        """What the discovery, the topic of offset syncs and the tasks could not do; tasks tend to say the same."""
        topic = () if self._syncs_topic is None else self._syncs_topic.warnings
        tasks = dict.fromkeys(
            warning for child in self._children.values() for warning in child.newest.warnings
        )
        return (*self._discovery.warnings, *topic, *tasks)

    def _task_properties(self, child: Child) -> dict[str, str]:
        assigned = ",".join(str(partition) for partition in sorted(child.partitions))
        return {
            **self._connector.properties,
            "task.index": str(child.task),
            "task.assigned.partitions": assigned,
        }


def _stopped_in(child: Child) -> str:
    """The sentences of partitions that do not go on, the first few: a Connect client sees them nowhere else."""
    stopped = [one.message for one in child.partitions.values() if one.phase is Phase.STOPPED]
    more = [f"{len(stopped) - TOLD_MAX} further partitions have stopped."] if len(stopped) > TOLD_MAX else []
    return " ".join(stopped[:TOLD_MAX] + more)


async def ended(task: asyncio.Task[Any]) -> None:
    """Cancel *task* and wait for its end."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def together(running: Sequence[asyncio.Task[None]]) -> None:
    """Wait until one of *running* has ended, which is the end of all. Raises what it raised."""
    try:
        await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for task in running:
            if task.done():
                task.result()
    finally:
        await asyncio.gather(*(ended(task) for task in running if not task.done()))
