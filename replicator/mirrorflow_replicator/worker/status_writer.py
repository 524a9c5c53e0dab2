"""Writes a distributed worker's statuses to the status topic, and its tasks to the config topic.

Guarantees: what has changed is written at the next `publish`; what has not is not written again. After a
failure the next `publish` retries. For a connector that is gone, only a tombstone is written.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from mirrorflow_core.connect.worker_records import WorkerState, WorkerStatus
from mirrorflow_core.errors import MirrorFlowError
from mirrorflow_core.reports import ConnectorReport
from mirrorflow_kafka.stores.worker_topics import ConfigTopic, StatusTopic
from mirrorflow_replicator.http import command_decisions
from mirrorflow_replicator.process.clock import now_ms
from mirrorflow_replicator.version import connect_version

GOODBYE_S = 3.0  # for the last statuses; a later worker writes its own

log = logging.getLogger("mirrorflow.worker")


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

    async def say_goodbye(self) -> None:
        """Writes UNASSIGNED for all that ran here; nothing is written after this."""
        self._ended = True
        last = [
            replace(status, state=WorkerState.UNASSIGNED, trace=None)
            for status in self._written.values()
            if status.state is not WorkerState.UNASSIGNED
        ]
        try:
            async with asyncio.timeout(GOODBYE_S), self._publishing:
                await self._topic.put(*last, now_ms=now_ms())
        except (MirrorFlowError, TimeoutError) as error:
            log.warning("the last statuses could not be written: %s", error or "no answer")

    @property
    def warnings(self) -> tuple[str, ...]:
        """Unreadable records of the status topic."""
        return self._topic.warnings

    def _of(self, reports: Sequence[ConnectorReport], generation: int) -> dict[bytes, WorkerStatus]:
        """Returns the statuses in *reports*, by record key, with this worker's id."""
        worker_id = self._worker_id()
        return command_decisions.statuses(
            [replace(report, worker_id=worker_id) for report in reports],
            generation=generation,
            version=connect_version(),
        )

    def _known(self) -> list[WorkerStatus]:
        """Returns the last status of everything, from any worker."""
        statuses = self._topic.statuses
        return [
            one
            for name in statuses.connectors()
            for one in (statuses.connector(name), *statuses.tasks(name).values())
            if one is not None
        ]


class WorkerStatuses(StatusWriter):
    """Writes the statuses of the only worker of its topics; both were read to their ends."""

    def __init__(self, configs: ConfigTopic, topic: StatusTopic, *, worker_id: Callable[[], str]) -> None:
        super().__init__(topic, worker_id=worker_id)
        self._configs = configs
        known = self._known()
        # Earlier writers have a lower generation: a late record of theirs is ignored.
        self._generation = 1 + max((status.generation for status in known), default=0)
        self._written = {status.key: status for status in known}

    async def publish(
        self, reports: Sequence[ConnectorReport], *, settled: Callable[[ConnectorReport], bool]
    ) -> None:
        """Writes what has changed; task configs only of connectors that are *settled*.

        Raises ClusterError.
        """
        async with self._publishing:
            if self._ended:
                return
            configs = self._configs
            records = [
                one
                for report in reports
                if settled(report)
                for one in command_decisions.task_records(report, configs.configs)
            ]
            if records:
                await configs.put(*records, now_ms=now_ms())
            now = self._of(reports, self._generation)
            gone = [
                replace(status, state=WorkerState.DESTROYED, trace=None)
                for key, status in self._written.items()
                if key not in now
            ]
            changed = [status for key, status in now.items() if self._written.get(key) != status]
            if gone or changed:
                await self._topic.put(*gone, *changed, now_ms=now_ms())
                self._written = now


def is_settled(report: ConnectorReport) -> bool:
    """Whether the tasks of *report* are complete and steady; incomplete ones would be rewritten at once."""
    steady = ("RUNNING", "STOPPED")
    return (
        report.heard_of_all
        and report.state in steady
        and all(task.state in steady for task in report.tasks)
        and len(report.tasks) == len(report.task_properties)
    )
