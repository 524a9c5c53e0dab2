"""Writes a distributed worker's statuses to the status topic, and its tasks to the config topic.

Guarantees: what has changed, or was overwritten by another node, is written at the next `publish`; what has
not is not written again. After a failure the next `publish` retries. For a connector that is gone, only a
tombstone is written.

A node of a group (`SharedStatuses`) writes only about what it holds; only the leader writes tombstones, for
what no node has any more.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from mirrorflow_core.connect.group_assignment import CONNECTOR, Unit, Units
from mirrorflow_core.connect.worker_records import WorkerState, WorkerStatus
from mirrorflow_core.errors import MirrorFlowError
from mirrorflow_core.reports import ConnectorReport, TaskReport
from mirrorflow_kafka.stores.worker_topics import ConfigTopic, StatusTopic
from mirrorflow_replicator.process import now_ms
from mirrorflow_replicator.worker import config_decisions

FINAL_WRITE_TIMEOUT_S = 3.0  # for the last statuses; a later worker writes its own

log = logging.getLogger("mirrorflow.worker")
NO_WORKER = "-"  # the worker id of a task without any status yet


class StatusWriter:
    """Writes one worker's statuses to a status topic, which other workers may write too.

    The topic was read to its end; *worker_id* returns this worker's current name.
    """

    def __init__(self, topic: StatusTopic, *, worker_id: Callable[[], str]) -> None:
        self._topic = topic
        self._worker_id = worker_id
        self._publishing = asyncio.Lock()
        self._ended = False
        self._written: dict[bytes, WorkerStatus] = {}  # our last statuses, by key

    async def write_final(self) -> None:
        """Writes UNASSIGNED for all that ran here; nothing is written after this."""
        self._ended = True
        last = [
            replace(status, state=WorkerState.UNASSIGNED, trace=None)
            for status in self._written.values()
            if status.state is not WorkerState.UNASSIGNED
        ]
        try:
            async with asyncio.timeout(FINAL_WRITE_TIMEOUT_S), self._publishing:
                await self._topic.put(*last, now_ms=now_ms())
        except (MirrorFlowError, TimeoutError) as error:
            log.warning("The final statuses could not be written: %s", error or "no response")

    @property
    def warnings(self) -> tuple[str, ...]:
        """Unreadable records of the status topic."""
        return self._topic.warnings

    async def _put(self, gone: Iterable[WorkerStatus], changed: Iterable[WorkerStatus]) -> None:
        """Writes *changed*, and tombstones for what is *gone*. Raises ClusterError."""
        tombstones = (replace(status, state=WorkerState.DESTROYED, trace=None) for status in gone)
        if records := (*tombstones, *changed):
            await self._topic.put(*records, now_ms=now_ms())

    def _all_statuses(self) -> list[WorkerStatus]:
        """Returns the last status of everything, from any worker."""
        statuses = self._topic.statuses
        return [
            status
            for name in statuses.connectors()
            for status in (statuses.connector(name), *statuses.tasks(name).values())
            if status is not None
        ]


class WorkerStatuses(StatusWriter):
    """Writes the statuses of the only worker of its topics; both were read to their ends."""

    def __init__(self, configs: ConfigTopic, topic: StatusTopic, *, worker_id: Callable[[], str]) -> None:
        super().__init__(topic, worker_id=worker_id)
        self._configs = configs
        known = self._all_statuses()
        # Earlier writers have a lower generation: a late record of theirs is ignored.
        self._generation = 1 + max((status.generation for status in known), default=0)
        self._written = {status.key: status for status in known}

    async def publish(
        self, reports: Sequence[ConnectorReport], *, settled: Callable[[ConnectorReport], bool]
    ) -> None:
        """Writes what has changed; task configs only of connectors that are *settled*. Raises ClusterError."""
        async with self._publishing:
            if self._ended:
                return
            configs = self._configs
            records = [
                new_task
                for report in reports
                if settled(report)
                for new_task in config_decisions.new_tasks(
                    report.name, report.task_properties, configs.configs
                )
            ]
            if records:
                await configs.put(*records, now_ms=now_ms())
            now = config_decisions.statuses(reports, worker_id=self._worker_id(), generation=self._generation)
            gone = [status for key, status in self._written.items() if key not in now]
            await self._put(gone, [status for key, status in now.items() if self._written.get(key) != status])
            self._written = now


def is_settled(report: ConnectorReport) -> bool:
    """Whether the tasks of *report* are complete and steady; incomplete ones would be rewritten at once."""
    steady = ("RUNNING", "STOPPED")
    return (
        report.has_reported_all
        and report.state in steady
        and all(task.state in steady for task in report.tasks)
        and len(report.tasks) == len(report.task_properties)
    )


class SharedStatuses(StatusWriter):
    """Writes the statuses of one node of a group."""

    async def publish(
        self, reports: Sequence[ConnectorReport], *, held: Units, wanted: Units | None, generation: int
    ) -> None:
        """Writes changed statuses of what is *held*; *wanted* is every existing unit, for the leader only.

        Raises ClusterError.
        """
        async with self._publishing:
            if self._ended:
                return
            await self._topic.read_new()
            statuses = config_decisions.statuses(reports, worker_id=self._worker_id(), generation=generation)
            now = {key: status for key, status in statuses.items() if _unit(status) in held}
            changed = [
                status
                for key, status in now.items()
                if _differs(self._written.get(key), status) or self._is_overwritten(status)
            ]
            known = () if wanted is None else self._all_statuses()
            await self._put((status for status in known if _unit(status) not in (wanted or ())), changed)
            self._written = now

    def whole(
        self, part: ConnectorReport, tasks: Sequence[Mapping[str, str]], *, held: Units
    ) -> ConnectorReport:
        """Returns the whole connector: *part* as far as it is *held* here, and last statuses of all else."""
        name = part.name
        here = {
            task.task: replace(task, worker_id=self._worker_id())
            for task in part.tasks
            if Unit(connector=name, task=task.task) in held
        }
        report = replace(
            part,
            task_properties=tuple(tasks),
            tasks=tuple(
                here[number] if number in here else self._remote_task(name, number)
                for number in range(len(tasks))
            ),
        )
        if Unit(connector=name) in held:
            return report
        status = self._topic.statuses.connector(name)
        if status is None:
            return replace(report, state=WorkerState.UNASSIGNED.value, is_here=False)
        return replace(
            report,
            state=status.state.value,
            trace=status.trace,
            worker_id=status.worker_id,
            is_here=False,
        )

    def _remote_task(self, name: str, number: int) -> TaskReport:
        status = self._topic.statuses.tasks(name).get(number)
        if status is None:
            return TaskReport(
                task=number, state=WorkerState.UNASSIGNED.value, is_here=False, worker_id=NO_WORKER
            )
        return TaskReport(
            task=number,
            state=status.state.value,
            trace=status.trace,
            is_here=False,
            worker_id=status.worker_id or NO_WORKER,
        )

    def _is_overwritten(self, status: WorkerStatus) -> bool:
        """Whether another node has overwritten the status of a unit that is here.

        A leader that does not know a new task yet writes its tombstone, after which that task would have no status. A
        node of an older generation than the last record does not write, so no two nodes overwrite each other for ever.
        """
        known = self._topic.statuses.latest_status(status)
        if status.state is WorkerState.UNASSIGNED or not self._topic.statuses.may_write(status):
            return False
        return known is None or known.worker_id != status.worker_id


def _unit(status: WorkerStatus) -> Unit:
    return Unit(connector=status.connector, task=CONNECTOR if status.task is None else status.task)


def _differs(written: WorkerStatus | None, status: WorkerStatus) -> bool:
    """Whether *status* needs writing; a new generation alone does not, to save writes at a rebalance."""
    return written is None or replace(written, generation=status.generation) != status
