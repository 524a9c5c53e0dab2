"""Hosts one MirrorSourceConnector: its topic discovery, the ownership of its flow, task processes and report."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from typing import Any

from mirrorflow_core.partition_assignment import Assignment
from mirrorflow_core.reports import ConnectorReport, PartitionPhase, PartitionReport, TaskReport, worst_side
from mirrorflow_core.settings import ConnectorSettings, SourceSettings
from mirrorflow_kafka.client.cancellation import cancel_and_wait
from mirrorflow_replicator.config.connector import offset_syncs_topic
from mirrorflow_replicator.config.plugins import make_naming, make_replication_policy
from mirrorflow_replicator.config.providers import Resolver
from mirrorflow_replicator.connectors.connector_state import report_of
from mirrorflow_replicator.connectors.flow_owner import FlowOwner
from mirrorflow_replicator.connectors.heartbeat_connector import HeartbeatMonitor
from mirrorflow_replicator.connectors.source_connector import SourceConnector
from mirrorflow_replicator.connectors.task_messages import Assign
from mirrorflow_replicator.connectors.task_supervisor import Spawn, TaskSupervisor, spawn
from mirrorflow_replicator.copy.offset_sync_writer import SyncsTopic
from mirrorflow_replicator.http.samples import Samples

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
        self._started_at_s = time.time()
        self._initial = True
        self._children: dict[int, TaskSupervisor] = {}
        self._told = ""  # the reason of the problem that was logged last
        self._owner = FlowOwner(settings, on_lost=self._finish_tasks, group=group)
        resolve = Resolver(settings.providers).resolve_client
        self._discovery = SourceConnector(settings, resolve=resolve)
        route = make_naming(settings).route
        self._target_topic: Callable[[str], str] = lambda topic: route(topic).name
        self._pulse = HeartbeatMonitor(connector.name, make_replication_policy(settings).is_heartbeats_topic)
        self._syncs_topic = (
            None
            if settings.syncs is None
            else SyncsTopic(settings.syncs, offset_syncs_topic(settings), resolve=resolve)
        )

    async def run(self) -> None:
        # Started before anything is known, so that its imports and connections run in parallel.
        self._child(0)
        await self._discover_topics(self._watch(), self._prepare())

    async def _discover_topics(self, *others: Coroutine[Any, Any, None]) -> None:
        """Discovers topics and assigns partitions until cancelled; runs *others* beside."""
        jobs = [self._pulse.run(self._discovery), *others]
        if self._syncs_topic is not None:
            jobs.append(self._syncs_topic.run())
        beside = [asyncio.create_task(job) for job in jobs]
        try:
            await self._discovery.run(self._hand)
        finally:
            for job in beside:
                job.cancel()

    async def _prepare(self) -> None:
        """Creates the flow's own topics while the topics to copy are found and created."""
        await self._discovery.connected.wait()
        await self._owner.prepare(self._discovery.clusters)

    async def stop(self, grace_s: float) -> None:
        await asyncio.gather(*(child.stop(grace_s) for child in self._children.values()))
        await self._owner.leave()

    def restart_task(self, task: int) -> None:
        """Stops the process of one task gracefully; a new one continues where it was."""
        if task in self._children:
            self._children[task].restart()

    async def _hand(self, assignment: Assignment) -> None:
        await self._owner.own(self._discovery.clusters, assignment)
        share = self._bytes_per_s(len(assignment))
        for task, partitions in enumerate(assignment):
            self._child(task).assign(Assign(partitions=partitions, initial=self._initial, bytes_per_s=share))
        for child in [*self._children.values()][len(assignment) :]:
            child.assign(Assign(partitions=(), initial=self._initial))
        # Topics that appear later are read from their beginning, wherever the first ones started.
        self._initial = False

    def _bytes_per_s(self, tasks: int) -> int | None:
        """Returns the share of one of so many tasks in the flow's limit."""
        limit = self._settings.bytes_per_second
        return None if limit is None else max(1, limit // max(1, tasks))

    def _child(self, task: int) -> TaskSupervisor:
        if task not in self._children:
            self._children[task] = TaskSupervisor(
                self._settings,
                task,
                on_report=self._observe,
                start=self._start,
                claim=self._claim,
            )
        return self._children[task]

    async def _claim(self, task: int, message: Assign) -> Assign:
        """Returns *message* with the start of *task*. Raises MirrorFlowError while it must not begin."""
        return await self._owner.start_of(task, message)

    def _finish_tasks(self) -> None:
        """Ends what all tasks do: another process owns the flow."""
        for child in self._children.values():
            child.finish()

    def _observe(self, report: TaskReport) -> None:
        self._samples.observe(self._connector.name, report, time.time())

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
        assigned = self._discovery.assignment
        given = {partition for task in assigned or () for partition in task}
        heard = {partition for child in self._children.values() for partition in child.partitions}
        return self._waits or (assigned is not None and given <= heard)

    @property
    def _waits(self) -> bool:
        """Whether another process owns the flow. This one is ready to take it over."""
        return self._owner.is_waiting

    @property
    def target_cluster_id(self) -> str:
        return self._owner.target_cluster_id

    def report(self) -> ConnectorReport:
        tasks = tuple(
            replace(
                child.newest,
                state=child.state,
                trace=child.trace or _standing_still_in(parts),
                partitions=parts,
            )
            for child in self._told_children()
            for parts in [child.partition_reports(self._target_topic)]
        )
        source, target = self._discovery.sides
        report = report_of(
            self._connector,
            self._settings,
            state=self._state,
            problem=self._discovery.problem,
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
            is_standby=self._waits,
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
        return (*self._discovery.warnings, *topic, *tasks, *waits, *self._owner.warnings)

    def _task_properties(self, child: TaskSupervisor) -> dict[str, str]:
        assigned = ",".join(str(partition) for partition in sorted(child.partitions))
        return {
            **self._connector.properties,
            "task.index": str(child.task),
            "task.assigned.partitions": assigned,
        }


def _standing_still_in(parts: Sequence[PartitionReport]) -> str:
    """Returns the first messages of stopped and stalled partitions. A Connect client sees them nowhere else."""
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
