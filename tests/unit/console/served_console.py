"""Serves a console on a loopback port, for tests that send HTTP requests to it."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn
from starlette.routing import BaseRoute

from mirrorflow_console.gate import Gate
from mirrorflow_console.history import History
from mirrorflow_console.internal_topics import InternalTopics
from mirrorflow_console.local_jobs import LocalJobs
from mirrorflow_console.local_server import HOSTS, listening_socket, server_config
from mirrorflow_console.namespace_results import NamespaceResults
from mirrorflow_console.poller import SharedPoller
from mirrorflow_console.result_files import ResultFiles
from mirrorflow_console.server import Console
from mirrorflow_console.switchovers import SwitchoverSource
from tests.harness.kafka.processes import wait_until


@dataclass(frozen=True)
class ServedConsole:
    """A console that runs in a thread."""

    port: int
    console: Console
    poller: SharedPoller
    history: History

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def served(
    source: Any,
    *,
    gate: Gate | None = None,
    internal: InternalTopics | None = None,
    results: ResultFiles | NamespaceResults | None = None,
    jobs: LocalJobs | None = None,
    switchovers: SwitchoverSource | None = None,
    routes: Sequence[BaseRoute] = (),
) -> Iterator[ServedConsole]:
    """Serves the flows of *source* until the block ends. *routes*: further ones, such as those of a gate."""
    history = History(None)
    poller = SharedPoller(source, history)
    console = Console(
        poller,
        history,
        gate=gate,
        internal=internal,
        results=results,
        jobs=jobs,
        switchovers=switchovers,
    )
    server = uvicorn.Server(server_config(console, hosts=HOSTS, routes=routes))
    listener = listening_socket(0)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    wait_until("the console serves", lambda: server.started)
    try:
        yield ServedConsole(listener.getsockname()[1], console, poller, history)
    finally:
        server.should_exit = True
        thread.join(20)
        listener.close()
        history.close()
