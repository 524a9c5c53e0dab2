"""Hosts one MirrorSourceConnector: its topic discovery, identity, task processes and report."""

import asyncio
import logging
import os
import random
import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

from mirrorflow_core.assignment.round_robin import Assignment
from mirrorflow_core.errors import FencedError, IdentityError, MirrorFlowError
from mirrorflow_core.exactly_once.identity import Identity
from mirrorflow_core.reports import ConnectorReport, PartitionPhase, TaskReport, worst_side
from mirrorflow_core.settings import ConnectorSettings, SourceSettings
from mirrorflow_kafka.client.cancellation import cancel_and_wait
from mirrorflow_replicator.config.offset_sync_settings import offset_syncs_topic
from mirrorflow_replicator.config.plugins import make_replication_policy
from mirrorflow_replicator.config.providers import Resolver
from mirrorflow_replicator.connectors.flow_owner import FlowOwner
from mirrorflow_replicator.connectors.heartbeat_monitor import HeartbeatMonitor
from mirrorflow_replicator.connectors.retry_state import report_of
from mirrorflow_replicator.connectors.source_connector import SourceConnector
from mirrorflow_replicator.connectors.task_messages import Assign
from mirrorflow_replicator.connectors.task_supervisor import Spawn, TaskSupervisor, spawn
from mirrorflow_replicator.copy.offset_sync_writer import SyncsTopic
from mirrorflow_replicator.copy.resume.identity_resolution import ResolvedIdentity, identify
from mirrorflow_replicator.http.samples import Samples

STEP_SPREAD_S = 1.0  # random delay, so that copiers fenced together do not continue at the same moment
STEP_RETRY_MAX_S = 15.0  # while the target cannot be used
WAITS = "Another process owns this flow and copies; this one takes over when it stops."
TOLD_MAX = 3  # messages about partitions in a task's trace; /progress/partitions has all of them

log = logging.getLogger("mirrorflow.worker")


class SourceHost:
    """One source connector in this process: call `run` until cancelled, then `stop`."""

    def __init__(
        self,
        connector: ConnectorSettings,
        settings: SourceSettings,
        *,
        samples: Samples,
        start: Spawn = spawn,
        group: str = "",
    ) -> None:
        """*group*: the Connect group whose processes share the connector; "": this process alone."""
        self._start = start
        self._connector = connector
        self._settings = settings
        self._samples = samples
        self._copier = secrets.token_hex(8)
        self._started_at_s = time.time()
        self._identity: Identity | None = None
        self._initial = True
        self._children: dict[int, TaskSupervisor] = {}
        self._refused: MirrorFlowError | None = None  # why a fenced copier does not continue
        self._stepping: asyncio.Task[None] | None = None
        # Set by the process that restarted this one after its death (the local runner).
        self._predecessor_gone = bool(os.environ.get("MIRRORFLOW_PREDECESSOR_GONE"))
        self._told = ""  # the reason of the problem that was logged last
        # None: the first engine, whose processes share the flow.
        self._owner = (
            FlowOwner(settings, on_lost=self._finish_tasks, group=group) if settings.has_owner else None
        )
        resolve = Resolver(settings.providers).resolve_client
        self._discovery = SourceConnector(settings, resolve=resolve)
        self._pulse = HeartbeatMonitor(connector.name, make_replication_policy(settings).is_heartbeats_topic)
        self._syncs_topic = (
            None
            if settings.syncs is None
            else SyncsTopic(settings.syncs, offset_syncs_topic(settings), resolve=resolve)
        )

    async def run(self) -> None:
        """Discovers topics and assigns partitions until cancelled."""
        # Started before anything is known, so that its imports and connections run in parallel.
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
        """Stops all tasks gracefully, and kills those still running after *grace_s*."""
        await asyncio.gather(*(child.stop(grace_s) for child in self._children.values()))
        if self._owner is not None:
            await self._owner.leave()

    def restart_task(self, task: int) -> None:
        """Stops the process of one task gracefully; a new one continues where it was."""
        if task in self._children:
            self._children[task].restart()

    async def _hand(self, assignment: Assignment) -> None:
        identity = None
        if self._owner is not None:
            await self._owner.own(self._discovery.clusters, assignment)
        else:
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
        # Topics that appear later are read from their beginning, wherever the first ones started.
        self._initial = False
        self._predecessor_gone = False

    def _child(self, task: int) -> TaskSupervisor:
        if task not in self._children:
            self._children[task] = TaskSupervisor(
                self._settings,
                task,
                copier=f"{self._copier}-{task}",
                on_report=self._observe,
                start=self._start,
                claim=None if self._owner is None else self._owner.start_of,
            )
        return self._children[task]

    def _finish_tasks(self) -> None:
        """Ends what all tasks do: another process owns the flow."""
        for child in self._children.values():
            child.finish()

    def _observe(self, report: TaskReport) -> None:
        self._samples.observe(self._connector.name, report, time.time())
        fenced = any(one.reason == FencedError.reason for one in report.partitions)
        if fenced and (self._stepping is None or self._stepping.done()):
            self._stepping = asyncio.create_task(self._step_back())

    async def _step_back(self) -> None:
        """Continues in the new generation after the epoch was raised, if its settings are the same.

        Another copier has decided a generation, or the target's coordinator has aborted a transaction that no
        copier committed in time. In the latter case all copiers decide a next one, at the same moment unless
        they spread.
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
        """Returns the identity to write with.

        It has a new generation if Java has copied since, or *fenced* is over.
        """
        established = await identify(
            self._settings, *self._discovery.clusters, may_change=may_change, fenced=fenced
        )
        self._identity = established.identity
        self._initial = self._begins_with(established)
        return self._identity

    def _begins_with(self, established: ResolvedIdentity) -> bool:
        """Returns whether the partitions assigned first are those the flow begins with."""
        return established.is_first

    async def _watch(self) -> None:
        """Logs a problem of the discovery once until it is over, and each warning likewise."""
        warned: frozenset[str] = frozenset()
        while True:
            problem = self._discovery.problem
            if problem is None:
                self._told = ""
            elif problem.reason != self._told:
                # Compared by reason: the message of a lost connection changes with each attempt.
                self._told = problem.reason
                log.warning("%s: %s", self._connector.name, problem)
            warnings = self._warnings
            for warning in warnings:
                if warning not in warned:
                    log.warning("%s: %s", self._connector.name, warning)
            # Until all is well: two causes that alternate are not logged each time.
            warned = warned.union(warnings) if warnings else frozenset()
            await asyncio.sleep(1)

    @property
    def heard_of_all(self) -> bool:
        """Whether the tasks have reported every partition that was assigned to them."""
        assigned = self._discovery.assignment
        given = {partition for task in assigned or () for partition in task}
        heard = {partition for child in self._children.values() for partition in child.partitions}
        return self._waits or (assigned is not None and given <= heard)

    @property
    def _waits(self) -> bool:
        """Whether another process owns the flow. This one is ready to take it over."""
        return self._owner is not None and self._owner.is_waiting

    @property
    def target_cluster_id(self) -> str:
        """The target's cluster id; "" before it was reached."""
        if self._owner is not None:
            return self._owner.target_cluster_id
        return "" if self._identity is None else self._identity.target_cluster_id

    def report(self) -> ConnectorReport:
        """Returns the current report of the connector."""
        tasks = tuple(
            TaskReport(
                task=child.task,
                state=child.state,
                trace=child.trace or _standing_still_in(child),
                reason=child.newest.reason,
                partitions=tuple(child.partitions[key] for key in sorted(child.partitions)),
                errors=child.newest.errors,
                throttle_ms=child.newest.throttle_ms,
                refused_settings=child.newest.refused_settings,
                offset_syncs=child.newest.offset_syncs,
                active_records=child.newest.active_records,
                buffer_free_bytes=child.newest.buffer_free_bytes,
                commit_ms=child.newest.commit_ms,
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
            task_properties=tuple(self._task_properties(child) for child in self._told_children()),
            topics=tuple(
                sorted({one.target_topic for task in tasks for one in task.partitions if one.records})
            ),
            warnings=(*self._warnings, *self._pulse.warnings),
            heartbeats=self._pulse.report(self._settings.target_alias),
            uncopied=self._discovery.uncopied,
            nothing_selected=self._discovery.nothing_selected,
            source=worst_side((source, *(child.newest.source for child in self._children.values()))),
            target=worst_side((target, *(child.newest.target for child in self._children.values()))),
        )

    @property
    def _state(self) -> str:
        return "RUNNING" if self._waits else self._discovery.state

    def _told_children(self) -> Iterable[TaskSupervisor]:
        is_assigned = self._discovery.assignment is not None and not self._waits
        return self._children.values() if is_assigned else ()

    @property
    def _warnings(self) -> tuple[str, ...]:
        """Warnings of the discovery, the offset-syncs topic and the tasks; equal ones of tasks once."""
        topic = () if self._syncs_topic is None else self._syncs_topic.warnings
        tasks = dict.fromkeys(
            warning for child in self._children.values() for warning in child.newest.warnings
        )
        waits = (WAITS,) if self._waits else ()
        return (*self._discovery.warnings, *topic, *tasks, *waits)

    def _task_properties(self, child: TaskSupervisor) -> dict[str, str]:
        assigned = ",".join(str(partition) for partition in sorted(child.partitions))
        return {
            **self._connector.properties,
            "task.index": str(child.task),
            "task.assigned.partitions": assigned,
        }


def _standing_still_in(child: TaskSupervisor) -> str:
    """Returns the first messages of stopped and stalled partitions.

    A Connect client sees them nowhere else.
    """
    parts = child.partitions.values()
    found = [one.message for one in parts if one.phase is PartitionPhase.STOPPED or one.is_stalled]
    more = [f"{len(found) - TOLD_MAX} further partitions stand still."] if len(found) > TOLD_MAX else []
    return " ".join(found[:TOLD_MAX] + more)


async def together(running: Sequence[asyncio.Task[None]]) -> None:
    """Waits until one of *running* has ended, then cancels the others. Raises what it raised."""
    try:
        await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for task in running:
            if task.done():
                task.result()
    finally:
        await asyncio.gather(*(cancel_and_wait(task) for task in running if not task.done()))
