"""Runs the connectors of a one-node distributed worker: kept in Connect's config topic, changed over REST.

    read config topic ──> run what it defines ──> write changes to the status topic, each second ────────┐
                              ^  command: write, read back, run             ^────────────────────────────┘

Guarantees: when a command succeeds, its result is in the topics, replicated, so that the next process that
starts with them (ours after kill -9, or Java's worker) continues with the same connectors, states and
offsets. Commands run one at a time. A topic that cannot be written is reported and retried, and delays no
copying.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import quote

from mirrorflow_core.backoff import Backoff
from mirrorflow_core.connect.session_keys import ConnectError
from mirrorflow_core.connect.worker_records import ConfigRecord, LogLevelRecord, TargetState
from mirrorflow_core.errors import MirrorFlowError, SettingError
from mirrorflow_core.reports import ConnectorReport
from mirrorflow_core.settings import ConnectorSettings, WorkerSettings
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.stores.position_store import ensure_topic
from mirrorflow_kafka.stores.worker_topics import ConfigTopic, StatusTopic
from mirrorflow_replicator.config import keys
from mirrorflow_replicator.config.providers import Resolver
from mirrorflow_replicator.connectors.connector_host import ConnectorHost, host
from mirrorflow_replicator.http import command_decisions
from mirrorflow_replicator.http.commands import (
    NOT_FOUND,
    AlterOffsets,
    Command,
    Configure,
    Delete,
    Fence,
    ListOffsets,
    Patch,
    PutTasks,
    ResetOffsets,
    Restart,
    RestartTask,
    SetLevel,
    SetTarget,
)
from mirrorflow_replicator.http.progress import has_started
from mirrorflow_replicator.http.rest import STARTING, connector_info, connector_status
from mirrorflow_replicator.http.rest_plugins import problems
from mirrorflow_replicator.http.samples import Samples
from mirrorflow_replicator.http.worker_view import Request, Response, json_response
from mirrorflow_replicator.logs import LOGGERS, NUMBERS
from mirrorflow_replicator.process import now_ms
from mirrorflow_replicator.version import connect_version
from mirrorflow_replicator.worker.connector_offsets import OffsetChanges
from mirrorflow_replicator.worker.herder import States
from mirrorflow_replicator.worker.local_connectors import LocalConnectors
from mirrorflow_replicator.worker.status_writer import WorkerStatuses, is_settled

# A restart that takes longer is answered before it is done; stopping takes `shutdown_s`, 5 s by default.
RESTART_MAX_S = 30.0
CONNECT_TIMEOUT_S = 20.0  # then the failure is reported; attempts continue
BACKOFF_MIN_S, BACKOFF_MAX_S = 0.5, 15.0  # while the topics cannot be used
PATH_SAFE = "!$&'()*+,;=:@~"  # characters that stay unescaped in a path segment, besides those of `quote`
PUBLISH_S = 1.0  # interval of reading the config topic and writing changed statuses

log = logging.getLogger("mirrorflow.worker")


class SingleNodeHerder:
    """The herder of a distributed worker that is the only node of its topics."""

    takes_changes = True

    def __init__(
        self,
        settings: WorkerSettings,
        *,
        samples: Samples,
        worker_id: Callable[[], str],
        label: str = "",
    ) -> None:
        assert settings.distributed is not None, "other workers have a herder of another class"
        self._settings = settings
        self._distributed = settings.distributed
        self._samples = samples
        self._worker_id = worker_id
        self._resolver = Resolver(settings.providers)
        self._problems = partial(problems, worker=settings.shared)
        self._cluster: Cluster | None = None
        self._configs: ConfigTopic | None = None  # set when both topics have been read
        self._statuses: WorkerStatuses | None = None
        self._running = LocalConnectors(
            self._distributed.worker,
            host=self._host,
            tasks=self._tasks,
            grace_s=settings.shutdown_s,
            label=label,
        )
        self._problem: MirrorFlowError | None = None  # of the topics; None if there is none
        self._commanding = asyncio.Lock()
        self._stopping = False

    async def run(self) -> None:
        try:
            await self._open()
            self._arrange()
            jobs: list[asyncio.Task[Any]] = [asyncio.create_task(job) for job in self._jobs()]
            broken = asyncio.create_task(self._running.broken.get())
            try:
                await asyncio.wait({*jobs, broken}, return_when=asyncio.FIRST_COMPLETED)
                # A connector ends only when stopped; any other end is a bug and must not go unnoticed.
                (broken.result() if broken.done() else next(job for job in jobs if job.done())).result()
            finally:
                for job in (*jobs, broken):
                    job.cancel()
        finally:
            if self._cluster is not None:
                await self._cluster.close()

    async def stop(self, grace_s: float) -> None:
        """Stops the connectors gracefully and writes their last statuses."""
        self._stopping = True
        await self._running.stop()
        if self._statuses is not None:
            await self._statuses.write_final()

    def set_states(self, states: States) -> None:
        """Does nothing: REST changes the states of its connectors, which are in the config topic."""

    def reports(self) -> tuple[ConnectorReport, ...]:
        if self._configs is None:
            return ()
        return tuple(self._report(name) for name in sorted(self._configs.configs.connectors))

    @property
    def warnings(self) -> tuple[str, ...]:
        """Unreadable records of the topics, and the error if the topics cannot be used."""
        topics = [topic.warnings for topic in (self._configs, self._statuses) if topic is not None]
        return (
            *(text for warnings in topics for text in warnings),
            *([str(self._problem)] if self._problem else []),
        )

    def is_ready(self, reports: Sequence[ConnectorReport]) -> bool:
        """Whether all connectors that should run have started; a worker without connectors is ready."""
        to_run = tuple(report for report in reports if report.state not in {"PAUSED", "STOPPED"})
        begun = not to_run or has_started(to_run)
        return self._configs is not None and begun and all(report.heard_of_all for report in reports)

    @property
    def is_rebalancing(self) -> bool:
        return False

    @property
    def has_connectors(self) -> bool:
        return self._configs is not None

    def is_serving(self, reports: Sequence[ConnectorReport]) -> bool:
        """Whether commands are accepted, as by Java's worker: from the time the topics have been read."""
        return self.has_connectors

    @property
    def target_cluster_id(self) -> str:
        return "" if self._cluster is None else self._cluster.cluster_id

    async def carry_out(self, command: Command, request: Request) -> Response:
        """Carries out a REST call; a restart returns when the connector runs again, as Java's does.

        Raises ConnectError, MirrorFlowError.
        """
        response = await self._execute(command)
        if isinstance(command, Restart | RestartTask):
            # Until then the status shows the connector that is about to stop.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RESTART_MAX_S):
                    await self._running.settled(command.name)
        return response

    async def _execute(self, command: Command) -> Response:
        async with self._commanding:
            if self._configs is None or self._stopping:
                raise ConnectError(503, STARTING if not self._stopping else "Worker is shutting down")
            topic = self._configs
            await self._read_new()
            existed = command.name in topic.configs.connectors
            records = command_decisions.decide(command, topic.configs, self._problems)
            if records:
                await topic.put(*self._tasks_to_store(command), *records, now_ms=now_ms())
            await self._read_new()
            self._arrange()
            match command:
                case Configure() | Patch():
                    return self._configured(command.name, created=not existed)
                case Delete() | SetLevel():
                    return Response(status=204)
                case SetTarget(target=target):
                    return Response(status=204 if target is TargetState.STOPPED else 202)
                case Restart():
                    return self._restart(command)
                case RestartTask(name=name, task=task):
                    return self._restart_task(name, task)
                case ListOffsets() | AlterOffsets() | ResetOffsets():
                    return await self._offsets(command)
                case PutTasks() | Fence():
                    raise ConnectError(404, NOT_FOUND)  # there are no other nodes

    # -- the topics

    async def _open(self) -> None:
        """Connects to the cluster and reads both topics, with retries.

        Raises SettingError where the topics are unfit.
        """
        async for _ in Backoff(min_s=BACKOFF_MIN_S, max_s=BACKOFF_MAX_S):
            try:
                await self._read()
            except SettingError:
                raise
            except MirrorFlowError as error:
                self._note(error)
            else:
                self._problem = None
                return

    async def _read(self) -> None:
        topics = self._distributed.topics
        if self._cluster is None:
            self._cluster = await Cluster.connect(
                topics.configs.client, resolve=self._resolver.resolve_client, timeout_s=CONNECT_TIMEOUT_S
            )
        configs = ConfigTopic(self._cluster, topics.configs)
        statuses = StatusTopic(self._cluster, topics.statuses)
        await asyncio.gather(configs.open(), statuses.open())
        if self._distributed.offsets is not None:
            await ensure_topic(self._distributed.offsets, resolve=self._resolver.resolve_client)
        await self._begin(self._cluster, configs, statuses)
        self._configs = configs

    async def _begin(self, cluster: Cluster, configs: ConfigTopic, statuses: StatusTopic) -> None:
        """Called when both topics have been read for the first time."""
        if records := command_decisions.seeds(self._distributed.seeds, configs.configs):
            await configs.put(*records, now_ms=now_ms())
        self._statuses = WorkerStatuses(configs, statuses, worker_id=self._worker_id)

    def _jobs(self) -> Sequence[Coroutine[Any, Any, None]]:
        """The coroutines that run as long as the worker does."""
        return (self._publish_for_ever(),)

    async def _read_new(self) -> Sequence[ConfigRecord]:
        """Returns the new records of the config topic; sets logger levels as they arrive."""
        assert self._configs is not None
        records = await self._configs.read_new()
        for record in records:
            if isinstance(record, LogLevelRecord) and record.level in NUMBERS:
                LOGGERS.set(record.namespace, record.level)
        return records

    async def _publish(self) -> None:
        assert self._statuses is not None
        await self._statuses.publish(self.reports(), settled=self._is_settled)

    async def _publish_for_ever(self) -> None:
        while True:
            try:
                if await self._read_new():  # written by another client of the topic
                    self._arrange()
                await self._publish()
                self._problem = None
            except MirrorFlowError as error:
                self._note(error)
            await asyncio.sleep(PUBLISH_S)

    def _is_settled(self, report: ConnectorReport) -> bool:
        return self._running.is_settled(report.name) and is_settled(report)

    def _note(self, error: MirrorFlowError) -> None:
        if self._problem is None or self._problem.reason != error.reason:
            log.warning("the worker's topics cannot be used: %s", error)
        self._problem = error

    # -- what runs

    def _arrange(self) -> None:
        """Starts and stops connectors so that those run that the config topic wants now."""
        self._running.arrange(self._wanted())

    def _wanted(self) -> dict[str, command_decisions.Wanted]:
        assert self._configs is not None
        return command_decisions.wanted(self._configs.configs, self._running.restarts)

    def _host(self, name: str, settings: ConnectorSettings) -> ConnectorHost | None:
        """Returns a host that runs connector *name* with *settings*; None if they ask for nothing."""
        return host(settings, samples=self._samples)

    def _tasks(self, name: str) -> Sequence[Mapping[str, str]]:
        """The task configs of connector *name* in the config topic."""
        return () if self._configs is None else self._configs.configs.tasks.get(name, ())

    async def _wait_until_idle(self, name: str) -> None:
        """Waits until nothing of *name* copies any more: it would overwrite altered offsets."""
        await self._running.settled(name)

    def _report(self, name: str) -> ConnectorReport:
        assert self._configs is not None
        return self._running.report(name, self._configs.configs.connectors[name])

    # -- commands

    def _configured(self, name: str, *, created: bool) -> Response:
        tasks = () if created else self._tasks(name)
        report = replace(self._report(name), task_properties=tuple(tasks))
        headers = (("Location", f"/connectors/{quote(name, safe=PATH_SAFE)}"),) if created else ()
        return json_response(connector_info(report), status=201 if created else 200, headers=headers)

    def _restart(self, command: Restart) -> Response:
        report = replace(self._report(command.name), worker_id=self._worker_id(), version=connect_version())
        whole = not command.only_failed or report.state == "FAILED"
        chosen = [
            task.task
            for task in report.tasks
            if command.include_tasks and (not command.only_failed or task.state == "FAILED")
        ]
        self._restart_now(command.name, whole=whole, tasks=chosen)
        if command.is_plain:
            return Response(status=204)
        shown = replace(
            report,
            state="RESTARTING" if whole else report.state,
            tasks=tuple(
                replace(task, state="RESTARTING", trace="") if task.task in chosen else task
                for task in report.tasks
            ),
        )
        return json_response(connector_status(shown), status=202)

    def _restart_now(self, name: str, *, whole: bool, tasks: Sequence[int]) -> None:
        if whole:
            self._restart_connector(name)
        elif tasks:
            self._restart_tasks(name, tasks)

    def _restart_task(self, name: str, task: int) -> Response:
        if task >= len(self._report(name).tasks):
            raise ConnectError(404, f"Unknown task: {name}-{task}")
        self._restart_tasks(name, [task])
        return Response(status=204)

    def _restart_tasks(self, name: str, tasks: Iterable[int]) -> None:
        if not self._running.restart_tasks(name, tasks):
            self._restart_connector(name)  # its tasks cannot restart separately

    def _restart_connector(self, name: str) -> None:
        self._running.restarts[name] += 1
        self._arrange()

    def _tasks_to_store(self, command: Command) -> tuple[ConfigRecord, ...]:
        """Task configs to write before a pause: a paused connector shows the tasks of the topic."""
        assert self._configs is not None
        configs = self._configs.configs
        is_stored = command.name in configs.tasks
        if is_stored or not isinstance(command, SetTarget) or command.target is TargetState.STOPPED:
            return ()
        report = self._report(command.name)
        return (
            command_decisions.new_tasks(report.name, report.task_properties, configs) if report.tasks else ()
        )

    async def _offsets(self, command: ListOffsets | AlterOffsets | ResetOffsets) -> Response:
        assert self._configs is not None
        name = command.name
        if not isinstance(command, ListOffsets):
            await self._wait_until_idle(name)
        properties = {**self._configs.configs.connectors[name], "name": name}
        changes = OffsetChanges(keys.canonical(properties, []), self._distributed.worker)
        try:
            await changes.open()
            if isinstance(command, ListOffsets):
                return json_response({"offsets": changes.listed()})
            await changes.change(command)
        finally:
            await changes.close()
        done = f"have been {'altered' if isinstance(command, AlterOffsets) else 'reset'} successfully"
        return json_response({"message": f"The offsets for this connector {done}"})
