"""A node of a distributed worker: what its herder asks of it, and the node that is the only one of its topics.

`worker.group_node` is one node of a group.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from mirrorflow_core.reports import ConnectorReport
from mirrorflow_core.settings import DistributedSettings, WorkerSettings
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.stores.worker_topics import ConfigTopic, StatusTopic
from mirrorflow_replicator.connectors.connector_host import create_connector
from mirrorflow_replicator.http.commands import Command, Restart
from mirrorflow_replicator.http.partition_rates import Samples
from mirrorflow_replicator.http.replicating_state import has_started
from mirrorflow_replicator.http.worker_view import Request, Response
from mirrorflow_replicator.process import now_ms
from mirrorflow_replicator.worker import config_decisions
from mirrorflow_replicator.worker.herder import States
from mirrorflow_replicator.worker.local_connectors import LocalConnectors, read_config_topic
from mirrorflow_replicator.worker.status_writer import WorkerStatuses, is_settled


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeContext:
    """What a node gets from its process.

    *worker_id* returns the worker's current id; *label* precedes connector names where
    they are shown with those of another worker.
    """

    settings: WorkerSettings
    distributed: DistributedSettings
    samples: Samples
    worker_id: Callable[[], str]
    label: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTopics:
    """The topics of a distributed worker, read to their ends."""

    cluster: Cluster
    configs: ConfigTopic
    statuses: StatusTopic


class WorkerNode(Protocol):
    """One node of a distributed worker, from the time the worker's topics were read."""

    @property
    def connectors(self) -> LocalConnectors:
        """What runs on this node."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings of this node, besides those of the config topic."""

    @property
    def is_rebalancing(self) -> bool:
        """Whether the group is rebalancing."""

    def is_ready(self, reports: Sequence[ConnectorReport]) -> bool:
        """Whether this node has started what it should run."""

    async def run(self) -> None:
        """Runs the connectors and the membership of the group until cancelled."""

    async def stop(self) -> None:
        """Stops this node's connectors gracefully and writes their last statuses."""

    def set_states(self, states: States) -> None:
        """Pauses and resumes connectors whose files changed."""

    async def read_on(self) -> None:
        """Reads the config topic to its end and applies what is new. Raises ClusterError."""

    def arrange(self) -> None:
        """Starts and stops connectors so that those run here that the config topic wants here now."""

    async def publish(self) -> None:
        """Writes what has changed here. Raises ClusterError."""

    def report(self, name: str) -> ConnectorReport:
        """Reports connector *name* as a whole, wherever its parts run."""

    async def relay(self, command: Command, request: Request) -> Response | None:
        """Forwards *command* to the node that carries it out, or carries out a call between nodes; None if the herder here does.

        Raises ConnectError, MirrorFlowError.
        """

    async def restart(self, command: Restart, *, whole: bool, tasks: Sequence[int]) -> None:
        """Restarts the *whole* connector, or these *tasks* of it. Raises ClusterError."""

    async def wait_until_idle(self, name: str) -> None:
        """Waits until all tasks of *name* have ended, because they would overwrite altered offsets. Raises ConnectError."""


Begin = Callable[[NodeContext, WorkerTopics], Awaitable[WorkerNode]]


class SingleNode:
    """The only node of its topics."""

    is_rebalancing = False

    def __init__(self, context: NodeContext, topics: WorkerTopics) -> None:
        self._configs = topics.configs
        self._statuses = WorkerStatuses(topics.configs, topics.statuses, worker_id=context.worker_id)
        self.connectors = LocalConnectors(
            topics.configs.configs,
            context.distributed.worker,
            host=lambda _, settings: create_connector(settings, samples=context.samples),
            grace_s=context.settings.shutdown_s,
            label=context.label,
        )

    @classmethod
    async def begin(cls, context: NodeContext, topics: WorkerTopics) -> WorkerNode:
        """Returns the node after it has written the connectors of files that the topic lacks. Raises ClusterError."""
        configs = topics.configs
        if records := config_decisions.seeds(context.distributed.seeds, configs.configs):
            await configs.put(*records, now_ms=now_ms())
        return cls(context, topics)

    @property
    def warnings(self) -> tuple[str, ...]:
        return self._statuses.warnings

    def is_ready(self, reports: Sequence[ConnectorReport]) -> bool:
        """Whether all connectors that should run have started; a worker without connectors is ready."""
        to_run = tuple(report for report in reports if report.state not in {"PAUSED", "STOPPED"})
        begun = not to_run or has_started(to_run)
        return begun and all(report.has_reported_all for report in reports)

    async def run(self) -> None:
        await self.connectors.run()

    async def stop(self) -> None:
        await self.connectors.stop()
        await self._statuses.write_final()

    def set_states(self, states: States) -> None:
        """Does nothing: REST changes the states of its connectors, which are in the config topic."""

    async def read_on(self) -> None:
        if await read_config_topic(self._configs):
            self.arrange()

    def arrange(self) -> None:
        self.connectors.arrange()

    async def publish(self) -> None:
        reports = [self.report(name) for name in sorted(self._configs.configs.connectors)]
        await self._statuses.publish(reports, settled=self._is_settled)

    def _is_settled(self, report: ConnectorReport) -> bool:
        return self.connectors.is_settled(report.name) and is_settled(report)

    def report(self, name: str) -> ConnectorReport:
        return self.connectors.report(name)

    async def relay(self, command: Command, request: Request) -> Response | None:
        return None

    async def restart(self, command: Restart, *, whole: bool, tasks: Sequence[int]) -> None:
        if whole:
            self.connectors.restart(command.name)
        elif tasks:
            self.connectors.restart_tasks(command.name, tasks)

    async def wait_until_idle(self, name: str) -> None:
        await self.connectors.settled(name)
