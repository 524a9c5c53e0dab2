"""Writes the status of one node's part of the connectors to the status topic that all nodes write.

Guarantees: a node writes only about what it holds; only the leader writes tombstones, for what no node has
any more. What has changed, or was overwritten by another node, is written at the next `publish`; nothing else
is written again. After a failure the next `publish` retries.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mirrorflow_core.connect.group_assignment import Units
from mirrorflow_core.connect.group_protocol import CONNECTOR, Unit
from mirrorflow_core.connect.worker_records import WorkerState, WorkerStatus
from mirrorflow_core.reports import ConnectorReport, TaskReport
from mirrorflow_replicator.process.clock import now_ms
from mirrorflow_replicator.worker.status_writer import StatusWriter

NO_WORKER = "-"  # the worker id of a task without any status yet


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
            said = self._of(reports, generation)
            now = {key: status for key, status in said.items() if _unit(status) in held}
            changed = [
                status
                for key, status in now.items()
                if _differs(self._written.get(key), status) or self._is_lost(status)
            ]
            gone = (
                []
                if wanted is None
                else [
                    replace(status, state=WorkerState.DESTROYED, trace=None)
                    for status in self._known()
                    if _unit(status) not in wanted
                ]
            )
            if gone or changed:
                await self._topic.put(*gone, *changed, now_ms=now_ms())
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
                here[number] if number in here else self._elsewhere(name, number)
                for number in range(len(tasks))
            ),
        )
        if Unit(connector=name) in held:
            return report
        said = self._topic.statuses.connector(name)
        if said is None:
            return replace(report, state=WorkerState.UNASSIGNED.value, is_here=False)
        return replace(
            report, state=said.state.value, trace=said.trace or "", worker_id=said.worker_id, is_here=False
        )

    def _elsewhere(self, name: str, number: int) -> TaskReport:
        said = self._topic.statuses.tasks(name).get(number)
        if said is None:
            return TaskReport(
                task=number, state=WorkerState.UNASSIGNED.value, is_here=False, worker_id=NO_WORKER
            )
        return TaskReport(
            task=number,
            state=said.state.value,
            trace=said.trace or "",
            is_here=False,
            worker_id=said.worker_id or NO_WORKER,
        )

    def _is_lost(self, status: WorkerStatus) -> bool:
        """Whether another node has overwritten the status of a unit that is here.

        A leader that does not know a new task yet writes its tombstone, after which that task would have no
        status. A node of an older generation than the last record does not write, so no two nodes overwrite
        each other for ever.
        """
        known = self._topic.statuses.last_word(status)
        if status.state is WorkerState.UNASSIGNED or not self._topic.statuses.may_write(status):
            return False
        return known is None or known.worker_id != status.worker_id


def _unit(status: WorkerStatus) -> Unit:
    return Unit(connector=status.connector, task=CONNECTOR if status.task is None else status.task)


def _differs(written: WorkerStatus | None, status: WorkerStatus) -> bool:
    """Whether *status* needs writing; a new generation alone does not, to save writes at a rebalance."""
    return written is None or replace(written, generation=status.generation) != status
