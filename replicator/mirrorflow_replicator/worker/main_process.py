"""The main process of a worker: runs its connectors and its HTTP server until it is stopped.

With an mm2.properties it runs all flows of the file (`DedicatedHerders`); each flow is a group on its target, which other
processes may join. The modules of groups are imported only where the settings ask for one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import ssl
import time
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from mirrorflow_core.connect.group_assignment import NO_URL
from mirrorflow_core.connect.session_keys import ConnectError
from mirrorflow_core.errors import MirrorFlowError, RefusedSettingError
from mirrorflow_core.reports import ConnectorReport
from mirrorflow_core.settings import DistributedSettings, GroupSettings, WorkerSettings
from mirrorflow_kafka.client.cancellation import cancel_and_wait, together
from mirrorflow_kafka.security.client_security import check_client, clients_of
from mirrorflow_replicator import process
from mirrorflow_replicator.config.providers import Resolver
from mirrorflow_replicator.config.worker_properties import DISTRIBUTED, STANDALONE
from mirrorflow_replicator.http.commands import Command, SetLevel
from mirrorflow_replicator.http.partition_rates import Samples
from mirrorflow_replicator.http.rest_plugins import problems
from mirrorflow_replicator.http.server import HttpServer
from mirrorflow_replicator.http.server_tls import ServerTls
from mirrorflow_replicator.http.worker_view import (
    Request,
    Response,
    WorkerView,
    error_response,
    json_response,
)
from mirrorflow_replicator.logs import LOGGERS
from mirrorflow_replicator.process import resource_usage, stdin_ended
from mirrorflow_replicator.version import connect_version, version
from mirrorflow_replicator.worker.herder import FixedHerder, Herder, StateFiles, States

if TYPE_CHECKING:
    from mirrorflow_replicator.worker.distributed_herder import DistributedHerder
    from mirrorflow_replicator.worker.internal_rest import Flow

log = logging.getLogger("mirrorflow.worker")

_SINGLE_WORKER_MODES = (STANDALONE, DISTRIBUTED)  # modes with one worker, whose connector names are unique
EXIT_INTERRUPTED = 130  # as in a shell
STARTED_AFTER_S = 5.0  # then memory left by reading settings and first discovery goes back to the kernel


class Worker:
    """Runs the connectors of one or several herders in one process.

    In mm2 mode *settings* has one item for each flow. *state_files* are the connectors' files, if their
    states are to be followed. Raises SettingError for settings that cannot run at all.
    """

    def __init__(self, settings: Sequence[WorkerSettings], *, state_files: StateFiles | None = None) -> None:
        self._settings = tuple(settings)
        self._state_files = state_files
        for client in clients_of(self._settings):
            check_client(client)
        self._samples = Samples()
        self._address = ""  # host:port of the first listener, as others reach it
        self._scheme = "http"
        self._id = uuid.uuid4()
        self._group = _group(self._settings[0])
        self._herder = self._make_herder()
        self._warnings = tuple(dict.fromkeys(warning for worker in settings for warning in worker.warnings))

    async def run(self, *, reports: Callable[[], Coroutine[Any, Any, None]] | None = None) -> bool:
        """Serves until SIGTERM, SIGINT or, where MIRRORFLOW_EXIT_WITH_STDIN is set, the end of stdin.

        *reports* runs beside the connectors. Returns whether SIGINT (Ctrl-C) has ended it; a second one kills.
        """
        for warning in self._warnings:
            log.warning("%s", warning)
        stop, interrupted = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, stop.set)
        loop.add_signal_handler(signal.SIGINT, _interrupt, stop, interrupted)
        loop.add_signal_handler(signal.SIGUSR1, LOGGERS.write_replays)
        # The server starts first: if its address is in use, the process ends before it has started anything else.
        tls = self._tls()
        auth = self._settings[0].http.others_client_auth
        others = None if auth is None else self._tls(auth)
        server = await HttpServer.start(
            self._listeners(),
            self.view,
            carry_out=self._carry_out,
            tls=_context(others or tls if self._settings[0].http.internal else tls),
            others_tls=_context(others),
        )
        self._publish_addresses(server.addresses)
        internal = await self._internal_server(tls)
        loop.call_later(STARTED_AFTER_S, process.trim_memory)
        running = asyncio.create_task(self._herder.run())
        waits: list[asyncio.Task[Any]] = [asyncio.create_task(stop.wait())]
        if os.environ.get("MIRRORFLOW_EXIT_WITH_STDIN"):
            waits.append(asyncio.create_task(stdin_ended()))
        waits.extend(asyncio.create_task(server.follow()) for server in (tls, others) if server is not None)
        beside = None if reports is None else asyncio.create_task(reports(), name="reports")
        if self._state_files is not None:
            waits.append(asyncio.create_task(self._state_files.follow(self._herder.set_states)))
        try:
            await asyncio.wait([*waits, running], return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
        finally:
            if beside is not None:
                beside.cancel()
                await asyncio.wait({beside})
            await self._herder.stop(self._grace_s)
            await asyncio.gather(*(cancel_and_wait(task) for task in [running, *waits] if not task.done()))
            await asyncio.gather(server.close(), internal.close())
        return interrupted.is_set()

    async def _internal_server(self, tls: ServerTls | None) -> HttpServer:
        """Starts the server for other nodes; without listeners where nodes call the first public one."""
        listeners, route = self._settings[0].http.internal, None
        # Where users may change connectors at any node, nodes forward those calls.
        if listeners and not self._serves_peers:
            from mirrorflow_replicator.worker import internal_rest  # noqa: PLC0415

            flows = [group.flow for group in map(_group, self._settings) if group is not None and group.flow]
            route = partial(internal_rest.route, flows=flows or None)
        server = await HttpServer.start(
            listeners,
            self.view,
            carry_out=self._carry_out,
            tls=_context(tls),
            route=route,
        )
        for address in server.addresses:
            log.info("Listening for group members on %s", address)
        if server.addresses:
            self._set_address(server.addresses[0])
        return server

    def _make_herder(self) -> Herder:
        first = self._settings[0]
        if first.distributed is not None and (self._group is None or first.name == DISTRIBUTED):
            return self._distributed_herder(first, first.distributed, "")
        self._check_any_enabled()
        if self._group is not None:
            return DedicatedHerders(
                {
                    distributed.group.flow: self._distributed_herder(worker, distributed, f"/{worker.name}")
                    for worker in self._settings
                    if (distributed := worker.distributed) is not None
                    and distributed.group is not None
                    and distributed.group.flow is not None
                }
            )
        return FixedHerder(first.connectors, samples=self._samples, grace_s=self._grace_s)

    def _check_any_enabled(self) -> None:
        connectors = [connector for worker in self._settings for connector in worker.connectors]
        if not any(connector.is_enabled for connector in connectors):
            raise RefusedSettingError(
                key="connector.class" if self._settings[0].name == STANDALONE else "enabled",
                why="there is nothing to run, as no connector is enabled",
            )

    @property
    def _grace_s(self) -> float:
        return max((worker.shutdown_s for worker in self._settings), default=5.0)

    def _distributed_herder(
        self, worker: WorkerSettings, distributed: DistributedSettings, suffix: str
    ) -> DistributedHerder:
        """Returns a herder whose worker id ends with *suffix*."""
        from mirrorflow_replicator.worker.distributed_herder import DistributedHerder  # noqa: PLC0415
        from mirrorflow_replicator.worker.group_node import GroupNode  # noqa: PLC0415
        from mirrorflow_replicator.worker.worker_node import NodeContext, SingleNode  # noqa: PLC0415

        context = NodeContext(
            settings=worker,
            distributed=distributed,
            samples=self._samples,
            worker_id=partial(self._worker_id, suffix),
            label="" if worker.name in _SINGLE_WORKER_MODES else f"{worker.name}.",
        )
        if distributed.group is None:
            return DistributedHerder(context, SingleNode.begin)
        # Others never call the listener for users and metrics of a process that serves no group.
        url = self._url if worker.name == DISTRIBUTED or worker.http.internal else lambda: NO_URL
        return DistributedHerder(context, partial(GroupNode.begin, group=distributed.group, url=url))

    async def _carry_out(self, command: Command, request: Request) -> Response:
        try:
            # A cluster of one worker has only that worker's loggers.
            if isinstance(command, SetLevel) and not (command.everywhere and self._herder.takes_changes):
                changed = LOGGERS.set(command.name, command.level)
                return Response(status=204) if command.everywhere else json_response(changed)
            return await self._herder.carry_out(command, request)
        except ConnectError as error:
            return error_response(error.status, str(error))
        except MirrorFlowError as error:
            # As Java answers where its topics cannot be written: the request may be retried.
            return error_response(500, str(error))

    def _listeners(self) -> tuple[str, ...]:
        return tuple(
            dict.fromkeys(listener for worker in self._settings for listener in worker.http.listeners)
        )

    def _tls(self, client_auth: str | None = None) -> ServerTls | None:
        """Builds TLS for the listeners from the settings; *client_auth* replaces `ssl.client.auth`; None: it stays."""
        listeners = (*self._listeners(), *self._settings[0].http.internal)
        if not any(listener.lower().startswith("https:") for listener in listeners):
            return None
        first = self._settings[0]
        properties = {**first.http.tls, **({} if client_auth is None else {"ssl.client.auth": client_auth})}
        tls = ServerTls(partial(Resolver(first.providers).resolve_client, properties))
        for warning in tls.warnings:
            log.warning("%s", warning)
        return tls

    def _publish_addresses(self, addresses: Sequence[str]) -> None:
        for address in addresses:
            log.info("listening on %s", address)
        if not addresses:
            return
        self._set_address(addresses[0])
        path = os.environ.get("MIRRORFLOW_HTTP_FILE")
        if path:
            written = Path(f"{path}.new")
            try:
                written.write_text(addresses[0] + "\n")
                written.replace(path)
            except OSError as error:  # a full disk must not stop copying
                log.warning("The address cannot be written to %s: %s", path, error.strerror)

    def _set_address(self, address: str) -> None:
        """Sets *address* as this process's address for others, unless the settings advertise another."""
        parts = urlsplit(address)
        everywhere = parts.hostname in {"0.0.0.0", "::"}  # noqa: S104 compared, not listened on
        host = socket.getfqdn() if everywhere else parts.hostname or ""
        host, port = f"[{host}]" if ":" in host else host, parts.port
        http = self._settings[0].http
        host, port = http.advertised_host or host, http.advertised_port or port
        self._address, self._scheme = f"{host}:{port}", parts.scheme

    def view(self) -> WorkerView:
        first = self._settings[0]
        connectors = tuple(self._with_worker_id(report) for report in self._herder.reports())
        return WorkerView(
            connectors=connectors,
            now_s=time.time(),
            monotonic_s=time.monotonic(),
            kafka_cluster_id=self._herder.target_cluster_id,
            version=version(),
            modify_enabled=first.http.modify_enabled,
            takes_changes=self._herder.takes_changes,
            in_group=self._group is not None,
            takes_calls=self._serves_peers,
            ready=self._herder.is_ready(connectors),
            has_connectors=self._herder.has_connectors,
            serving=self._herder.is_serving(connectors),
            metrics_level=first.metrics_level,
            metric_names=first.metric_names,
            warnings=(*self._warnings, *self._herder.warnings),
            samples=self._samples,
            # Settings that a connector may omit because the worker has them.
            validate=partial(problems, worker=first.shared),
            loggers=LOGGERS.levels,
            process=resource_usage,
            is_rebalancing=self._herder.is_rebalancing,
        )

    def _with_worker_id(self, report: ConnectorReport) -> ConnectorReport:
        """Returns *report* with the worker's id; MM2 in dedicated mode appends the flow to it (since 4.1)."""
        is_single = self._settings[0].name in _SINGLE_WORKER_MODES
        return replace(
            report,
            worker_id=report.worker_id
            or self._worker_id("" if is_single else f"/{report.source_alias}->{report.target_alias}"),
            version=connect_version(),
        )

    @property
    def _serves_peers(self) -> bool:
        first = self._settings[0]
        in_group = self._group is not None and first.name == DISTRIBUTED
        return in_group and (first.http.modify_enabled or not first.http.internal)

    def _url(self) -> str:
        """The URL where the other nodes of the group reach this one, in Java's form."""
        return f"{self._scheme}://{self._address}/"

    def _worker_id(self, herder: str) -> str:
        """The worker id: Connect names a worker by its address; MM2 one without an address by a random id."""
        if self._address or not herder:
            return f"{self._address or socket.getfqdn()}{herder}"
        return f"{socket.getfqdn()}{herder}/{self._id}"


def _interrupt(stop: asyncio.Event, interrupted: asyncio.Event) -> None:
    """Handles Ctrl-C: stops gracefully, and at once if it is the second. The kernel ends the tasks then."""
    if interrupted.is_set():
        logging.shutdown()
        os._exit(EXIT_INTERRUPTED)
    log.info("Stopping; Ctrl-C again kills")
    interrupted.set()
    stop.set()


def _group(worker: WorkerSettings) -> GroupSettings | None:
    return None if worker.distributed is None else worker.distributed.group


def _context(tls: ServerTls | None) -> ssl.SSLContext | None:
    return None if tls is None else tls.context


class DedicatedHerders:
    """One herder for each flow. *herders* maps (source alias, target alias) to its herder."""

    takes_changes = False

    def __init__(self, herders: Mapping[Flow, DistributedHerder]) -> None:
        self._herders = herders

    async def run(self) -> None:
        await together(
            [
                asyncio.create_task(herder.run(), name=_flow_name(flow))
                for flow, herder in self._herders.items()
            ]
        )

    async def stop(self, grace_s: float) -> None:
        await asyncio.gather(*(herder.stop(grace_s) for herder in self._herders.values()))

    def set_states(self, states: States) -> None:
        """Does nothing: an mm2.properties is not followed."""

    def reports(self) -> tuple[ConnectorReport, ...]:
        return tuple(
            replace(report, name=f"{_flow_name(flow)}.{report.name}")
            for flow, herder in self._herders.items()
            for report in herder.reports()
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings of each flow, with the flow before them."""
        return tuple(
            f"{_flow_name(flow)}: {warning}"
            for flow, herder in self._herders.items()
            for warning in herder.warnings
        )

    def is_ready(self, reports: Sequence[ConnectorReport]) -> bool:
        """Whether this node's part of each flow has started."""
        return all(herder.is_ready(herder.reports()) for herder in self._herders.values())

    @property
    def is_rebalancing(self) -> bool:
        return any(herder.is_rebalancing for herder in self._herders.values())

    @property
    def has_connectors(self) -> bool:
        return all(herder.has_connectors for herder in self._herders.values())

    def is_serving(self, reports: Sequence[ConnectorReport]) -> bool:
        """Whether each flow knows its connectors."""
        return all(herder.is_serving(()) for herder in self._herders.values())

    @property
    def target_cluster_id(self) -> str | None:
        return next(filter(None, (herder.target_cluster_id for herder in self._herders.values())), None)

    async def carry_out(self, command: Command, request: Request) -> Response:
        """Carries out another node's call for one of the flows. Raises ConnectError, MirrorFlowError."""
        from mirrorflow_replicator.worker.internal_rest import flow_of  # noqa: PLC0415

        herder = self._herders.get(flow_of(request) or ("", ""))
        if herder is None:
            raise ConnectError(501, f"{type(command).__name__} is for a distributed worker.")
        return await herder.carry_out(command, request)


def _flow_name(flow: Flow) -> str:
    return "->".join(flow)
