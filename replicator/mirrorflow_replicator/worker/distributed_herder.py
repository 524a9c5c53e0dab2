"""Runs the connectors of a distributed worker: kept in Connect's config topic, changed over REST.

    read config topic ──> run what it defines ──> write changes to the status topic, each second ────────┐
                              ^  command: write, read back, run             ^────────────────────────────┘

Its `WorkerNode` decides what runs here and which node carries out a command. It is the only node of the worker, or one of a group.

Guarantees: when a command succeeds, its result is in the topics, replicated, so that the next process that
starts with them (ours after kill -9, or Java's worker) continues with the same connectors, states and
offsets. Commands run one at a time. A topic that cannot be written is reported and retried, and delays no
copying.
"""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from mirrorflow_core.backoff import Backoff
from mirrorflow_core.connect.session_keys import ConnectError
from mirrorflow_core.errors import MirrorFlowError, SettingError
from mirrorflow_core.reports import ConnectorReport
from mirrorflow_kafka.client.cancellation import together
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.stores.position_store import ensure_topic
from mirrorflow_kafka.stores.worker_topics import ConfigTopic, StatusTopic
from mirrorflow_replicator.config.providers import Resolver
from mirrorflow_replicator.http.commands import Command, ListOffsets, Restart, RestartTask
from mirrorflow_replicator.http.rest import STARTING
from mirrorflow_replicator.http.worker_view import Request, Response
from mirrorflow_replicator.worker.command_executor import CommandExecutor
from mirrorflow_replicator.worker.herder import States
from mirrorflow_replicator.worker.worker_node import Begin, NodeContext, WorkerNode, WorkerTopics

# A restart that takes longer is answered before it is done; stopping takes `shutdown_s`, 5 s by default.
RESTART_MAX_S = 30.0
CONNECT_TIMEOUT_S = 20.0  # then the failure is reported; attempts continue
BACKOFF_MIN_S, BACKOFF_MAX_S = 0.5, 15.0  # while the topics cannot be used
PUBLISH_S = 1.0  # interval of reading the config topic and writing changed statuses

log = logging.getLogger("mirrorflow.worker")


@dataclass(frozen=True, slots=True, kw_only=True)
class _OpenedWorker:
    """A worker whose topics were read."""

    configs: ConfigTopic
    node: WorkerNode
    commands: CommandExecutor


class DistributedHerder:
    """The herder of a distributed worker. *begin* makes its node when the topics were read."""

    takes_changes = True

    def __init__(self, context: NodeContext, begin: Begin) -> None:
        self._context = context
        self._begin = begin
        self._resolver = Resolver(context.settings.providers)
        self._cluster: Cluster | None = None
        self._opened: _OpenedWorker | None = None
        self._states: States = {}  # as in the connectors' files, if these have changed
        self._problem: MirrorFlowError | None = None  # of the topics; None if there is none
        self._commanding = asyncio.Lock()
        self._stopping = False

    async def run(self) -> None:
        try:
            self._opened = await self._open()
            self._problem, node = None, self._opened.node
            node.set_states(self._states)
            if self._stopping:
                await asyncio.Event().wait()  # nothing may start any more; it is cancelled after `stop`
            node.arrange()
            await together(
                [asyncio.create_task(node.run()), asyncio.create_task(self._publish_periodically(node))]
            )
        finally:
            if self._cluster is not None:
                await self._cluster.close()

    async def stop(self, grace_s: float) -> None:
        """Stops the connectors gracefully and writes their last statuses."""
        self._stopping = True
        if self._opened is not None:
            await self._opened.node.stop()

    def set_states(self, states: States) -> None:
        self._states = states
        if self._opened is not None:
            self._opened.node.set_states(states)

    def reports(self) -> tuple[ConnectorReport, ...]:
        opened = self._opened
        if opened is None:
            return ()
        return tuple(opened.node.report(name) for name in sorted(opened.configs.configs.connectors))

    @property
    def warnings(self) -> tuple[str, ...]:
        """Unreadable records of the topics, problems of the node, and the error if the topics cannot be used."""
        opened = self._opened
        warnings = () if opened is None else (*opened.configs.warnings, *opened.node.warnings)
        return warnings if self._problem is None else (*warnings, str(self._problem))

    def is_ready(self, reports: Sequence[ConnectorReport]) -> bool:
        return self._opened is not None and self._opened.node.is_ready(reports)

    @property
    def is_rebalancing(self) -> bool:
        return self._opened is not None and self._opened.node.is_rebalancing

    @property
    def has_connectors(self) -> bool:
        return self._opened is not None

    def is_serving(self, reports: Sequence[ConnectorReport]) -> bool:
        """Whether commands are accepted, as by Java's worker: from the time the topics have been read."""
        return self.has_connectors

    @property
    def target_cluster_id(self) -> str | None:
        return None if self._cluster is None else self._cluster.cluster_id

    async def carry_out(self, command: Command, request: Request) -> Response:
        """Carries out a REST call; a restart returns when the connector runs again, as Java's does.

        Raises ConnectError, MirrorFlowError.
        """
        node = self._accepting().node
        if not isinstance(command, ListOffsets):
            relayed = await node.relay(command, request)
            if relayed is not None:
                return relayed
        async with self._commanding:
            response = await self._accepting().commands.execute(command)
        if isinstance(command, Restart | RestartTask):
            # Until then the status shows the connector that is about to stop.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RESTART_MAX_S):
                    await node.connectors.settled(command.name)
        return response

    def _accepting(self) -> _OpenedWorker:
        """Returns the worker while it accepts commands. Raises ConnectError."""
        if self._stopping:
            raise ConnectError(503, "Worker is shutting down")
        if self._opened is None:
            raise ConnectError(503, STARTING)
        return self._opened

    async def _open(self) -> _OpenedWorker:
        """Connects to the cluster and reads both topics, with retries.

        Raises SettingError where the topics are unfit.
        """
        attempts = Backoff(min_s=BACKOFF_MIN_S, max_s=BACKOFF_MAX_S)
        while True:
            await anext(attempts)
            try:
                return await self._read()
            except SettingError:
                raise
            except MirrorFlowError as error:
                self._note_problem(error)

    async def _read(self) -> _OpenedWorker:
        distributed = self._context.distributed
        if self._cluster is None:
            self._cluster = await Cluster.connect(
                distributed.topics.configs.client,
                resolve=self._resolver.resolve_client,
                timeout_s=CONNECT_TIMEOUT_S,
            )
        configs = ConfigTopic(self._cluster, distributed.topics.configs)
        statuses = StatusTopic(self._cluster, distributed.topics.statuses)
        await asyncio.gather(configs.open(), statuses.open())
        if distributed.offsets is not None:
            await ensure_topic(distributed.offsets, resolve=self._resolver.resolve_client)
        topics = WorkerTopics(cluster=self._cluster, configs=configs, statuses=statuses)
        node = await self._begin(self._context, topics)
        return _OpenedWorker(
            configs=configs, node=node, commands=CommandExecutor(self._context, node, configs)
        )

    async def _publish_periodically(self, node: WorkerNode) -> None:
        while True:
            try:
                await node.read_on()  # what another client of the topic has written
                await node.publish()
                self._problem = None
            except MirrorFlowError as error:
                self._note_problem(error)
            await asyncio.sleep(PUBLISH_S)

    def _note_problem(self, error: MirrorFlowError) -> None:
        if self._problem is None or self._problem.reason != error.reason:
            log.warning("The worker's config and status topics cannot be used: %s", error)
        self._problem = error
