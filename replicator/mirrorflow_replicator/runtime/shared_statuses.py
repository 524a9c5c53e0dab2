"""How one node's part of the connectors fares, told to the status topic that all nodes write.

Promises: a node speaks of what it has, and only the leader says of what nobody has any more that it is gone (a tombstone);
what has changed, or was spoken over, is written at the next `publish`, all else is not written again; a failure leaves it for
the next.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mirrorflow_replicator.connect.group_assignment import Units
from mirrorflow_replicator.connect.group_protocol import CONNECTOR, Unit
from mirrorflow_replicator.connect.worker_records import State, WorkerStatus
from mirrorflow_replicator.flow.report import ConnectorReport, TaskReport
from mirrorflow_replicator.runtime.clock import now_ms
from mirrorflow_replicator.runtime.statuses import StatusWriter

NOBODY = "-"  # the worker id of a task that nobody has spoken of yet


class SharedStatuses(StatusWriter):
    """See the module."""

    async def publish(
        self, reports: Sequence[ConnectorReport], *, held: Units, wanted: Units | None, generation: int
    ) -> None:
        """Write what the topic does not say yet of what is *held*; *wanted* is all that there is, for the leader alone.

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
                    replace(status, state=State.DESTROYED, trace=None)
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
        """The connector of which *part*, as far as it is *held*, is here, with the last word on all else."""
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
            return replace(report, state=State.UNASSIGNED.value, is_here=False)
        return replace(
            report, state=said.state.value, trace=said.trace or "", worker_id=said.worker_id, is_here=False
        )

    def _elsewhere(self, name: str, number: int) -> TaskReport:
        said = self._topic.statuses.tasks(name).get(number)
        if said is None:
            return TaskReport(task=number, state=State.UNASSIGNED.value, is_here=False, worker_id=NOBODY)
        return TaskReport(
            task=number,
            state=said.state.value,
            trace=said.trace or "",
            is_here=False,
            worker_id=said.worker_id or NOBODY,
        )

    def _is_lost(self, status: WorkerStatus) -> bool:
        """Whether somebody has spoken over what was written of a unit that is here.

        A leader that does not know of a new task yet buries it; nobody would hear of that task again. Whoever is of an older
        generation than the last word keeps quiet, so no two nodes speak over each other for ever.
        """
        known = self._topic.statuses.last_word(status)
        if status.state is State.UNASSIGNED or not self._topic.statuses.may_write(status):
            return False
        return known is None or known.worker_id != status.worker_id


def _unit(status: WorkerStatus) -> Unit:
    return Unit(connector=status.connector, task=CONNECTOR if status.task is None else status.task)


def _differs(written: WorkerStatus | None, status: WorkerStatus) -> bool:
    """A generation alone is no news: work that stays says nothing at each meeting."""
    return written is None or replace(written, generation=status.generation) != status
