"""Carries out REST commands on a distributed worker: written to the config topic, read back, applied.

Messages and status codes are Java's.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from functools import partial
from urllib.parse import quote

from mirrorflow_core import setting_table
from mirrorflow_core.connect.session_keys import ConnectError
from mirrorflow_core.connect.worker_records import ConfigRecord, TargetState
from mirrorflow_core.errors import FlowEndedError, FlowInUseError
from mirrorflow_kafka.stores.worker_topics import ConfigTopic
from mirrorflow_replicator.config.connector_settings import parse_connector
from mirrorflow_replicator.connectors.flow_fencing import fenced_flow
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
from mirrorflow_replicator.http.rest import connector_info, connector_status
from mirrorflow_replicator.http.rest_plugins import problems
from mirrorflow_replicator.http.worker_view import Response, json_response
from mirrorflow_replicator.process import now_ms
from mirrorflow_replicator.version import connect_version
from mirrorflow_replicator.worker import config_decisions
from mirrorflow_replicator.worker.connector_offsets import OffsetChanges
from mirrorflow_replicator.worker.worker_node import NodeContext, WorkerNode

PATH_SAFE = "!$&'()*+,;=:@~"  # characters that stay unescaped in a path segment, besides those of `quote`


class CommandExecutor:
    """Carries out commands on *node*, one at a time; *configs* is its config topic."""

    def __init__(self, context: NodeContext, node: WorkerNode, configs: ConfigTopic) -> None:
        self._context = context
        self._node = node
        self._configs = configs
        self._problems = partial(problems, worker=context.settings.shared)

    async def execute(self, command: Command) -> Response:
        """Returns the response once the result is in the topics and applied here. Raises ConnectError, MirrorFlowError."""
        topic, node = self._configs, self._node
        await node.read_on()
        existed = command.name in topic.configs.connectors
        records = config_decisions.decide(command, topic.configs, self._problems)
        if records:
            await topic.put(*self._tasks_to_store(command), *records, now_ms=now_ms())
        await node.read_on()
        node.arrange()
        match command:
            case Configure() | Patch():
                return self._configured(command.name, created=not existed)
            case Delete() | SetLevel():
                return Response(status=204)
            case SetTarget(target=target):
                return Response(status=204 if target is TargetState.STOPPED else 202)
            case Restart():
                return await self._restart(command)
            case RestartTask(name=name, task=task):
                return self._restart_task(name, task)
            case ListOffsets() | AlterOffsets() | ResetOffsets():
                return await self._offsets(command)
            case PutTasks() | Fence():
                raise ConnectError(404, NOT_FOUND)  # other nodes send these, and there are none

    def _tasks(self, name: str) -> Sequence[Mapping[str, str]]:
        return self._configs.configs.tasks.get(name, ())

    def _configured(self, name: str, *, created: bool) -> Response:
        tasks = () if created else self._tasks(name)
        report = replace(self._node.report(name), task_properties=tuple(tasks))
        headers = (("Location", f"/connectors/{quote(name, safe=PATH_SAFE)}"),) if created else ()
        return json_response(connector_info(report), status=201 if created else 200, headers=headers)

    async def _restart(self, command: Restart) -> Response:
        report = replace(
            self._node.report(command.name), worker_id=self._context.worker_id(), version=connect_version()
        )
        whole = not command.only_failed or report.state == "FAILED"
        chosen = [
            task.task
            for task in report.tasks
            if command.include_tasks and (not command.only_failed or task.state == "FAILED")
        ]
        await self._node.restart(command, whole=whole, tasks=chosen)
        if command.is_plain:
            return Response(status=204)
        shown = replace(
            report,
            state="RESTARTING" if whole else report.state,
            tasks=tuple(
                replace(task, state="RESTARTING", trace=None) if task.task in chosen else task
                for task in report.tasks
            ),
        )
        return json_response(connector_status(shown), status=202)

    def _restart_task(self, name: str, task: int) -> Response:
        if task >= len(self._node.report(name).tasks):
            raise ConnectError(404, f"Unknown task: {name}-{task}")
        self._node.connectors.restart_tasks(name, [task])
        return Response(status=204)

    def _tasks_to_store(self, command: Command) -> tuple[ConfigRecord, ...]:
        """Task configs to write before a pause: a paused connector shows the tasks of the topic."""
        configs = self._configs.configs
        is_stored = command.name in configs.tasks
        if is_stored or not isinstance(command, SetTarget) or command.target is TargetState.STOPPED:
            return ()
        report = self._node.report(command.name)
        return (
            config_decisions.new_tasks(report.name, report.task_properties, configs) if report.tasks else ()
        )

    async def _offsets(self, command: ListOffsets | AlterOffsets | ResetOffsets) -> Response:
        name = command.name
        if not isinstance(command, ListOffsets):
            await self._node.wait_until_idle(name)
        properties = setting_table.canonical({**self._configs.configs.connectors[name], "name": name}, [])
        changes = OffsetChanges(properties, self._context.distributed.worker)
        try:
            if isinstance(command, ListOffsets):
                await changes.open()
                return json_response({"offsets": changes.listed()})
            async with self._fenced(properties):
                await changes.change(command)
        except (FlowEndedError, FlowInUseError) as error:
            raise ConnectError(409, str(error)) from error
        finally:
            await changes.close()
        done = f"have been {'altered' if isinstance(command, AlterOffsets) else 'reset'} successfully"
        return json_response({"message": f"The offsets for this connector {done}"})

    def _fenced(self, properties: Mapping[str, str]) -> AbstractAsyncContextManager[None]:
        """Keeps other processes of a source connector's flow from storing offsets; the other connectors have no owner."""
        distributed = self._context.distributed
        settings = parse_connector(properties, distributed.worker)
        if settings.source is None:
            return nullcontext()
        return fenced_flow(
            settings.source, group=None if distributed.group is None else distributed.group.group_id
        )
