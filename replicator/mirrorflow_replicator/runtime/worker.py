"""The main process: its connectors, its HTTP server, its end."""

import asyncio
import logging
import os
import signal
import socket
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mirrorflow_replicator.connect.progress import has_started
from mirrorflow_replicator.connect.providers import Resolver
from mirrorflow_replicator.connect.samples import Samples
from mirrorflow_replicator.connect.validation import plugin_keys, problems
from mirrorflow_replicator.connect.view import PluginKey, WorkerView
from mirrorflow_replicator.connect.worker import STANDALONE
from mirrorflow_replicator.errors import RefusedSettingError
from mirrorflow_replicator.flow.report import ConnectorReport
from mirrorflow_replicator.runtime import memory
from mirrorflow_replicator.runtime.hosted import Hosted, host
from mirrorflow_replicator.runtime.hosting import ended
from mirrorflow_replicator.runtime.http import HttpServer
from mirrorflow_replicator.runtime.mortality import stdin_ended
from mirrorflow_replicator.settings import WorkerSettings
from mirrorflow_replicator.version import version

log = logging.getLogger("mirrorflow.worker")

STARTED_AFTER_S = 5.0  # what reading settings and first discovery left behind is given back once


class Worker:
    """One or several herders' connectors (mm2 mode has one worker's settings for each flow) in one process.

    Raises SettingError for what cannot be run at all.
    """

    def __init__(self, settings: Sequence[WorkerSettings]) -> None:
        self._settings = tuple(settings)
        self._samples = Samples()
        self._address = ""  # host:port of the first listener
        # Every herder's connectors have the same names in mm2 mode; with the flow each has one of its own.
        named = [
            replace(connector, name=_shown_name(worker, connector.name))
            for worker in self._settings
            for connector in worker.connectors
        ]
        hosted = (host(connector, samples=self._samples) for connector in named)
        self._hosted = [one for one in hosted if one is not None]
        self._warnings = tuple(dict.fromkeys(self._setting_warnings()))
        if not self._hosted:
            raise RefusedSettingError(
                key="connector.class" if self._settings[0].name == STANDALONE else "enabled",
                why="there is nothing to run, as no connector is enabled",
            )

    async def run(self) -> None:
        """Serve until SIGTERM, SIGINT or, where asked for, the end of stdin."""
        for warning in self._warnings:
            log.warning("%s", warning)
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        # First: an address that is taken ends the process before it has begun anything.
        server = await HttpServer.start(self._listeners(), self.view, tls=self._tls())
        self._tell_addresses(server.addresses)
        loop.call_later(STARTED_AFTER_S, memory.give_back)
        running = [asyncio.create_task(hosted.run()) for hosted in self._hosted]
        waits: list[asyncio.Task[Any]] = [asyncio.create_task(stop.wait())]
        if os.environ.get("MIRRORFLOW_EXIT_WITH_STDIN"):
            waits.append(asyncio.create_task(stdin_ended()))
        try:
            await asyncio.wait([*waits, *running], return_when=asyncio.FIRST_COMPLETED)
            for task in running:
                if task.done():
                    task.result()
        finally:
            grace_s = max((worker.shutdown_s for worker in self._settings), default=5.0)
            await asyncio.gather(*(hosted.stop(grace_s) for hosted in self._hosted))
            await asyncio.gather(*(ended(task) for task in [*running, *waits] if not task.done()))
            await server.close()

    def _setting_warnings(self) -> list[str]:
        return [warning for worker in self._settings for warning in worker.warnings]

    def _listeners(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(one for worker in self._settings for one in worker.http.listeners))

    def _tls(self) -> ssl.SSLContext | None:
        if not any(listener.lower().startswith("https:") for listener in self._listeners()):
            return None
        from mirrorflow_replicator.runtime.server_tls import (  # noqa: PLC0415 few listen to https
            server_context,
        )

        first = self._settings[0]
        context, warnings = server_context(Resolver(first.providers).resolve_client(first.http.tls))
        for warning in warnings:
            log.warning("%s", warning)
        return context

    def _tell_addresses(self, addresses: Sequence[str]) -> None:
        for address in addresses:
            log.info("listening on %s", address)
        if not addresses:
            return
        parts = urlsplit(addresses[0])
        everywhere = parts.hostname in {"0.0.0.0", "::"}  # noqa: S104 compared, not listened on
        host = socket.getfqdn() if everywhere else parts.hostname
        self._address = f"{host}:{parts.port}"
        path = os.environ.get("MIRRORFLOW_HTTP_FILE")
        if path:
            written = Path(f"{path}.new")
            written.write_text(addresses[0] + "\n")
            written.replace(path)

    def view(self) -> WorkerView:
        """The worker now."""
        connectors = tuple(self._report(hosted) for hosted in self._hosted)
        first = self._settings[0]
        ready = has_started(connectors) and all(report.heard_of_all for report in connectors)
        ids = (hosted.target_cluster_id for hosted in self._hosted)
        return WorkerView(
            connectors=connectors,
            now_s=time.time(),
            kafka_cluster_id=next(filter(None, ids), ""),
            version=version(),
            modify_enabled=first.http.modify_enabled,
            ready=ready,
            metrics_level=first.metrics_level,
            warnings=self._warnings,
            samples=self._samples,
            # What a connector may leave out because the worker says it.
            validate=partial(problems, worker=first.shared),
            plugin_keys=_plugin_keys(),
        )

    def _report(self, hosted: Hosted) -> ConnectorReport:
        """Connect names a worker by its address; MM2 in dedicated mode appends the flow (since 4.1)."""
        report = hosted.report()
        herder = (
            "" if self._settings[0].name == STANDALONE else f"/{report.source_alias}->{report.target_alias}"
        )
        worker_id = f"{self._address or socket.getfqdn()}{herder}"
        return replace(report, worker_id=worker_id, heard_of_all=hosted.heard_of_all)


def _shown_name(worker: WorkerSettings, name: str) -> str:
    return name if worker.name == STANDALONE else f"{worker.name}.{name}"


@cache
def _plugin_keys() -> Mapping[str, tuple[PluginKey, ...]]:
    return plugin_keys()
