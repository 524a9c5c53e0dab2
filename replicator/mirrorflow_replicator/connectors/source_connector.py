"""Runs one MirrorSourceConnector: its topic discovery, the ownership of its flow, its task processes and its report."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from dataclasses import replace
from typing import Any

from mirrorflow_core.errors import ALIAS_SETTINGS, FlowEndedError
from mirrorflow_core.partition_assignment import Assignment
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.reports import ConnectorReport, PartitionPhase, PartitionReport, TaskReport, worst_side
from mirrorflow_core.settings import ConnectorSettings, SourceSettings
from mirrorflow_core.writer.claim import Claim as ClaimRecord
from mirrorflow_replicator.config.connector_properties import offset_syncs_topic
from mirrorflow_replicator.config.plugins import make_naming, make_replication_policy
from mirrorflow_replicator.config.providers import Resolver
from mirrorflow_replicator.connectors.child_process import Spawn, spawn
from mirrorflow_replicator.connectors.connector_state import report_of
from mirrorflow_replicator.connectors.flow_owner import FlowOwner
from mirrorflow_replicator.connectors.heartbeat_connector import HeartbeatMonitor
from mirrorflow_replicator.connectors.load_balancing import LoadBalancer
from mirrorflow_replicator.connectors.session_starter import Claim
from mirrorflow_replicator.connectors.task_messages import TaskAssignment
from mirrorflow_replicator.connectors.task_supervisor import TaskSupervisor
from mirrorflow_replicator.connectors.topic_discovery import TopicDiscovery
from mirrorflow_replicator.copy.offset_sync_writer import SyncsTopic
from mirrorflow_replicator.http.partition_rates import Samples

STANDBY_WARNING = "Another process owns this flow and copies; this one takes over when it stops."
TRACE_MESSAGES_MAX = 3  # about partitions, in a task's trace; /progress/partitions has all of them
log = logging.getLogger("mirrorflow.worker")


def standby_warning(owner: ClaimRecord | None, settings: SourceSettings) -> str:
    """Returns why a process that waits for *owner* copies nothing; None: the owner is not known yet."""
    if owner is not None and owner.ended is not None:
        target = settings.target_alias
        return str(FlowEndedError(source=owner.source_alias, target=target, switchover=owner.ended))
    if owner is None or owner.left:
        return STANDBY_WARNING
    return (
        f"{STANDBY_WARNING} The owner is {owner.running_process}, which runs flow {owner.flow}. "
        f"To run both, give this source another alias ({ALIAS_SETTINGS})."
    )


class SourceParts:
    """What a source connector runs in this process: its discovery, the ownership of its flow, and its tasks.

    *claim* returns a task's assignment with its start, and raises MirrorFlowError while the task must not begin; without it
    the owner of the flow answers. *group*: the Connect group whose processes share the connector; None: this process alone.
    """

    def __init__(
        self,
        connector: ConnectorSettings,
        settings: SourceSettings,
        *,
        samples: Samples,
        start: Spawn,
        group: str | None = None,
        claim: Claim | None = None,
    ) -> None:
        self.owner = FlowOwner(settings, on_lost=self._finish_tasks, group=group)
        self.tasks: dict[int, TaskSupervisor] = {}
        self._start = start
        self._connector = connector
        self._settings = settings
        self._samples = samples
        self._started_at_s = time.monotonic()
        self._claim = claim or self.owner.start_of
        self._logged_reason: str | None = None  # the reason of the problem that was logged last
        self._balances = group is not None and settings.balance_tasks_s is not None
        self._resolve = Resolver(settings.providers).resolve_client
        self.discovery = self._new_discovery()
        route = make_naming(settings).route
        self._target_topic: Callable[[str], str] = lambda topic: route(topic).name
        self._heartbeats = HeartbeatMonitor(
            connector.name, make_replication_policy(settings).is_heartbeats_topic
        )
        self._syncs_topic = (
            None
            if settings.syncs is None
            else SyncsTopic(
                settings.syncs,
                offset_syncs_topic(settings, on_source=settings.syncs.on_source),
                resolve=self._resolve,
            )
        )

    def _new_discovery(self) -> TopicDiscovery:
        balancer = LoadBalancer(self._settings) if self._balances else None
        return TopicDiscovery(self._settings, resolve=self._resolve, balancer=balancer)

    def renew_discovery(self) -> None:
        """Replaces the discovery, which has ended and closed its connections."""
        self.discovery = self._new_discovery()

    async def discover_topics(
        self, on_assignment: Callable[[Assignment], Awaitable[None]], *others: Coroutine[Any, Any, None]
    ) -> None:
        """Discovers topics until cancelled, and calls *on_assignment* with each new assignment; runs *others* meanwhile."""
        jobs = [self._heartbeats.run(self.discovery), *others]
        if self._syncs_topic is not None:
            jobs.append(self._create_syncs_topic(self._syncs_topic))
        background = [asyncio.create_task(job) for job in jobs]
        try:
            await self.discovery.run(on_assignment)
        finally:
            for job in background:
                job.cancel()

    async def _create_syncs_topic(self, topic: SyncsTopic) -> None:
        await self.discovery.connected.wait()
        await topic.run()

    async def stop(self, grace_s: float) -> None:
        await asyncio.gather(*(task.stop(grace_s) for task in self.tasks.values()))
        await self.owner.leave()

    async def end_tasks(self, numbers: Collection[int], grace_s: float) -> None:
        """Stops these tasks gracefully and removes them."""
        await asyncio.gather(*(self.tasks[number].stop(grace_s) for number in numbers))
        for number in numbers:
            del self.tasks[number]

    def bytes_per_s(self, tasks: int) -> int | None:
        """Returns the share of the flow's rate limit for each of *tasks* tasks; None if there is no limit."""
        limit = self._settings.bytes_per_second
        return None if limit is None else max(1, limit // max(1, tasks))

    def task(self, number: int) -> TaskSupervisor:
        """Returns task *number*; a new one starts its process."""
        if number not in self.tasks:
            self.tasks[number] = TaskSupervisor(
                self._settings,
                number,
                on_report=self._observe,
                start=self._start,
                claim=self._claim,
            )
        return self.tasks[number]

    def restart_task(self, task: int) -> None:
        if task in self.tasks:
            self.tasks[task].restart()

    def _finish_tasks(self) -> None:
        """Finishes all tasks, because another process owns the flow."""
        for task in self.tasks.values():
            task.finish()

    def _observe(self, report: TaskReport) -> None:
        self._samples.observe(self._connector.name, report, time.monotonic())

    async def log_problems(self) -> None:
        """Logs a problem of the discovery when it begins, and each warning."""
        warned: frozenset[str] = frozenset()
        while True:
            problem = self.discovery.problem
            if problem is None:
                self._logged_reason = None
            elif problem.reason != self._logged_reason:
                # Compared by reason: the message of a lost connection changes with each attempt.
                self._logged_reason = problem.reason
                log.warning("%s: %s", self._connector.name, problem)
            warnings = self._warnings
            for warning in warnings:
                if warning not in warned:
                    log.warning("%s: %s", self._connector.name, warning)
            # Kept until there is no warning at all: two that alternate are not logged each time.
            warned = warned.union(warnings) if warnings else frozenset()
            await asyncio.sleep(1)

    @property
    def reported_partitions(self) -> set[TopicPartition]:
        """The partitions that tasks have reported."""
        return {partition for task in self.tasks.values() for partition in task.reports.partitions}

    @property
    def is_standby(self) -> bool:
        """Whether another process owns the flow. This one is ready to take it over."""
        return self.owner.is_waiting

    def report(self, *, state: str, tasks: Sequence[TaskSupervisor]) -> ConnectorReport:
        """Reports the connector in *state*, with these *tasks* of it."""
        reports = tuple(
            replace(report, trace=_trace_of(report.partitions) if report.trace is None else report.trace)
            for report in (task.report(self._target_topic) for task in tasks)
        )
        source, target = self.discovery.sides
        report = report_of(
            self._connector,
            self._settings,
            state=state,
            problem=self.discovery.problem,
            started_at_s=self._started_at_s,
        )
        return replace(
            report,
            tasks=reports,
            task_properties=tuple(self._task_properties(task) for task in tasks),
            topics=tuple(
                sorted(
                    {
                        partition.target_topic
                        for task in reports
                        for partition in task.partitions
                        if partition.records
                    }
                )
            ),
            warnings=(*self._warnings, *self._heartbeats.warnings),
            heartbeats=self._heartbeats.report(self._settings.target_alias),
            is_standby=self.is_standby,
            uncopied=self.discovery.uncopied,
            nothing_selected=self.discovery.nothing_selected,
            source=worst_side((source, *(task.reports.newest.source for task in self.tasks.values()))),
            target=worst_side((target, *(task.reports.newest.target for task in self.tasks.values()))),
        )

    @property
    def _warnings(self) -> tuple[str, ...]:
        """Warnings of the discovery, the offset-syncs topic and the tasks; equal ones of tasks once."""
        topic = () if self._syncs_topic is None else self._syncs_topic.warnings
        tasks = dict.fromkeys(
            warning for task in self.tasks.values() for warning in task.reports.newest.warnings
        )
        waits = (standby_warning(self.owner.owner, self._settings),) if self.is_standby else ()
        return (*self.discovery.warnings, *topic, *tasks, *waits, *self.owner.warnings)

    def _task_properties(self, task: TaskSupervisor) -> dict[str, str]:
        assigned = ",".join(str(partition) for partition in sorted(task.reports.partitions))
        return {
            **self._connector.properties,
            "task.index": str(task.task),
            "task.assigned.partitions": assigned,
        }


class SourceConnector:
    """A source connector whose tasks all run here: call `run` until cancelled, then `stop`."""

    def __init__(
        self,
        connector: ConnectorSettings,
        settings: SourceSettings,
        *,
        samples: Samples,
        start: Spawn = spawn,
    ) -> None:
        self._parts = SourceParts(connector, settings, samples=samples, start=start)
        self._initial = True

    async def run(self) -> None:
        # Started before anything is known, so that its imports and connections run in parallel.
        self._parts.task(0)
        await self._parts.discover_topics(self._apply_assignment, self._parts.log_problems(), self._prepare())

    async def _prepare(self) -> None:
        """Creates the flow's own topics while the topics to copy are found and created."""
        discovery = self._parts.discovery
        await discovery.connected.wait()
        await self._parts.owner.prepare(discovery.clusters)

    async def stop(self, grace_s: float) -> None:
        await self._parts.stop(grace_s)

    def restart_task(self, task: int) -> None:
        self._parts.restart_task(task)

    async def _apply_assignment(self, assignment: Assignment) -> None:
        parts = self._parts
        await parts.owner.own(parts.discovery.clusters, assignment)
        share = parts.bytes_per_s(len(assignment))
        for number, partitions in enumerate(assignment):
            wanted = TaskAssignment(partitions=partitions, initial=self._initial, bytes_per_s=share)
            parts.task(number).assign(wanted)
        for task in [*parts.tasks.values()][len(assignment) :]:
            task.assign(TaskAssignment(partitions=(), initial=self._initial))
        # Topics that appear later are read from their beginning, wherever the first ones started.
        self._initial = False

    @property
    def has_reported_all(self) -> bool:
        assigned = self._parts.discovery.assignment
        given = {partition for task in assigned or () for partition in task}
        return self._parts.is_standby or (assigned is not None and given <= self._parts.reported_partitions)

    @property
    def target_cluster_id(self) -> str | None:
        return self._parts.owner.target_cluster_id

    def report(self) -> ConnectorReport:
        parts = self._parts
        if parts.is_standby:
            return parts.report(state="RUNNING", tasks=())
        tasks = [*parts.tasks.values()] if parts.discovery.assignment is not None else []
        return parts.report(state=parts.discovery.state, tasks=tasks)


def _trace_of(parts: Sequence[PartitionReport]) -> str | None:
    """Returns the first messages of stopped and stalled partitions; None without any. A Connect client sees them nowhere else."""
    messages = [
        part.message
        for part in parts
        if part.message is not None and (part.phase is PartitionPhase.STOPPED or part.is_stalled)
    ]
    if (more := len(messages) - TRACE_MESSAGES_MAX) > 0:
        messages[TRACE_MESSAGES_MAX:] = [f"{more} further partitions are stopped or stalled."]
    return " ".join(messages) or None
