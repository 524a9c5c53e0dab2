"""How a distributed worker's connectors fare, told to the status topic; their tasks, told to the config topic.

Promises: what has changed is written at the next `publish`, what has not is not written again; a failure leaves it for
the next. Nothing is said of a connector that is gone but that it is (a tombstone).
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from mirrorflow_replicator.connect import herd
from mirrorflow_replicator.connect.worker_records import State, WorkerStatus
from mirrorflow_replicator.errors import MirrorFlowError
from mirrorflow_replicator.flow.report import ConnectorReport
from mirrorflow_replicator.kafka.worker_topics import ConfigTopic, StatusTopic
from mirrorflow_replicator.runtime.clock import now_ms
from mirrorflow_replicator.version import version

GOODBYE_S = 3.0  # for the last statuses; who comes next writes its own

log = logging.getLogger("mirrorflow.worker")


class StatusWriter:
    """What a worker writes to the status topic, whoever else does. The topic was read to its end; *worker_id* gives this
    worker's name of now.
    """

    def __init__(self, topic: StatusTopic, *, worker_id: Callable[[], str]) -> None:
        self._topic = topic
        self._worker_id = worker_id
        self._publishing = asyncio.Lock()
        self._ended = False
        self._written: dict[bytes, WorkerStatus] = {}  # the last of ours, by key

    async def say_goodbye(self) -> None:
        """Nothing runs here any more, and nothing is written after this."""
        self._ended = True
        last = [
            replace(status, state=State.UNASSIGNED, trace=None)
            for status in self._written.values()
            if status.state is not State.UNASSIGNED
        ]
        try:
            async with asyncio.timeout(GOODBYE_S), self._publishing:
                await self._topic.put(*last, now_ms=now_ms())
        except (MirrorFlowError, TimeoutError) as error:
            log.warning("the last statuses could not be written: %s", error or "no answer")

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the status topic held that cannot be read."""
        return self._topic.warnings

    def _of(self, reports: Sequence[ConnectorReport], generation: int) -> dict[bytes, WorkerStatus]:
        """What *reports* amount to, said by this worker."""
        worker_id = self._worker_id()
        return herd.statuses(
            [replace(report, worker_id=worker_id) for report in reports],
            generation=generation,
            version=version(),
        )

    def _known(self) -> list[WorkerStatus]:
        """The last word on everything, whoever said it."""
        statuses = self._topic.statuses
        return [
            one
            for name in statuses.connectors()
            for one in (statuses.connector(name), *statuses.tasks(name).values())
            if one is not None
        ]


class Statuses(StatusWriter):
    """The only worker of its topics; both were read to their ends."""

    def __init__(self, configs: ConfigTopic, topic: StatusTopic, *, worker_id: Callable[[], str]) -> None:
        super().__init__(topic, worker_id=worker_id)
        self._configs = configs
        known = self._known()
        # Whoever wrote before is older: a late word of his does not count.
        self._generation = 1 + max((status.generation for status in known), default=0)
        self._written = {status.key: status for status in known}

    async def publish(
        self, reports: Sequence[ConnectorReport], *, settled: Callable[[ConnectorReport], bool]
    ) -> None:
        """Write what the topics do not say yet; tasks only of those that are *settled*. Raises ClusterError."""
        async with self._publishing:
            if self._ended:
                return
            configs = self._configs
            records = [
                one
                for report in reports
                if settled(report)
                for one in herd.task_records(report, configs.configs)
            ]
            if records:
                await configs.put(*records, now_ms=now_ms())
            now = self._of(reports, self._generation)
            gone = [
                replace(status, state=State.DESTROYED, trace=None)
                for key, status in self._written.items()
                if key not in now
            ]
            changed = [status for key, status in now.items() if self._written.get(key) != status]
            if gone or changed:
                await self._topic.put(*gone, *changed, now_ms=now_ms())
                self._written = now


def is_settled(report: ConnectorReport) -> bool:
    """Whether its tasks are what they will be for now; half-known ones would be written again at once."""
    steady = ("RUNNING", "STOPPED")
    return (
        report.heard_of_all
        and report.state in steady
        and all(task.state in steady for task in report.tasks)
        and len(report.tasks) == len(report.task_properties)
    )
