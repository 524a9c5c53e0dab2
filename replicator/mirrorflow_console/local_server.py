"""Runs the console on a laptop: on the loopback address, for the flows of this machine."""

import contextlib
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import uvicorn
from starlette.routing import BaseRoute

from mirrorflow_console.chart_history import ChartHistory
from mirrorflow_console.current_context import CurrentContextFlows, current_context
from mirrorflow_console.flow_source import FlowSource
from mirrorflow_console.history import History
from mirrorflow_console.internal_topics import InternalTopics
from mirrorflow_console.joined_flows import JoinedFlows
from mirrorflow_console.joined_switchovers import JoinedSwitchovers
from mirrorflow_console.local_flows import LocalFlows
from mirrorflow_console.local_jobs import LocalJobs
from mirrorflow_console.local_switchovers import LocalSwitchovers
from mirrorflow_console.poller import SharedPoller
from mirrorflow_console.prometheus_history import PrometheusHistory
from mirrorflow_console.result_files import ResultFiles
from mirrorflow_console.server import Console
from mirrorflow_console.switched_flows import SwitchedFlows
from mirrorflow_console.switchovers import SwitchoverSource
from mirrorflow_console.verified_flows import VerifiedFlows
from mirrorflow_core.errors import InvalidSettingError
from mirrorflow_kubernetes.credentials import KubernetesLoginError
from mirrorflow_replicator.process import allow_open_files
from mirrorflow_replicator.worker.running_processes import state_folder

# A page of another site that resolves to 127.0.0.1 has another name in its requests: it gets nothing.
HOSTS: Final = ("127.0.0.1", "localhost")
BACKLOG: Final = 512
STOP_WAIT_S: Final = 1  # open streams have no end of their own


def serve(
    *,
    port: int,
    keeps_history: bool,
    announce: Callable[[str], None],
    internal: InternalTopics | None = None,
    contexts: Sequence[str] = (),
    results: Path | None = None,
    prometheus: str | None = None,
) -> None:
    """Serves until SIGINT or SIGTERM; *announce* receives the address. *prometheus*: the address of one.

    Raises OSError if the port is taken, and SettingError.
    """
    allow_open_files()
    files = None if results is None else ResultFiles(results)
    flows, switchovers = sources(contexts)
    source: FlowSource = SwitchedFlows(flows, switchovers)
    if files is not None:
        source = VerifiedFlows(source, files)
    with contextlib.closing(_history(keeps=keeps_history)) as history, listening_socket(port) as listener:
        console = Console(
            SharedPoller(source, history, charts=None if prometheus is None else _charts(prometheus)),
            history,
            internal=internal,
            results=files,
            jobs=LocalJobs(),
            switchovers=switchovers,
        )
        server = uvicorn.Server(server_config(console, hosts=HOSTS))
        announce(f"The console is at http://127.0.0.1:{listener.getsockname()[1]}/ (Ctrl-C ends it).")
        server.run(sockets=[listener])


def _charts(address: str) -> ChartHistory:
    """Returns the charts in the Prometheus at *address*. Raises SettingError."""
    try:
        return ChartHistory(PrometheusHistory(address))
    except ValueError as error:
        raise InvalidSettingError(
            key="--prometheus", problem=str(error), action="write the address without a path of its API"
        ) from None


def sources(contexts: Sequence[str]) -> tuple[FlowSource, SwitchoverSource]:
    """Returns the flows and switchovers of this machine, and of *contexts* of the kubeconfig. Raises SettingError.

    Without *contexts*, flows of the current one are shown, too.
    """
    if not contexts:
        return _with_current_context(LocalFlows()), LocalSwitchovers()
    # Only this needs the package, which takes 17 MiB.
    from mirrorflow_console.cluster_flows import flows_of_context  # noqa: PLC0415
    from mirrorflow_console.cluster_switchovers import switchovers_of_context  # noqa: PLC0415

    try:
        flows = {name: flows_of_context(name) for name in contexts}
        switchovers = {name: switchovers_of_context(name) for name in contexts}
        return (
            JoinedFlows({"": LocalFlows(), **flows}),
            JoinedSwitchovers({"": LocalSwitchovers(), **switchovers}),
        )
    except KubernetesLoginError as error:
        raise InvalidSettingError(
            key="--context",
            problem=error.problem,
            action="name one that `kubectl config get-contexts` lists",
        ) from None


def _with_current_context(flows: FlowSource) -> FlowSource:
    """Returns *flows* with those of the kubeconfig's current context, if it has one."""
    context = current_context()
    if context is None:
        return flows

    def connected(name: str) -> FlowSource:
        from mirrorflow_console.cluster_flows import flows_of_context  # noqa: PLC0415  as in `sources`

        return flows_of_context(name, retries=False)

    return JoinedFlows({"": flows, context.name: CurrentContextFlows(context, connected)})


def server_config(
    console: Console, *, hosts: tuple[str, ...], routes: Sequence[BaseRoute] = ()
) -> uvicorn.Config:
    """Returns how uvicorn serves *console*: no access log, no header that names it, few bytes for a request's head."""
    return uvicorn.Config(
        console.application(hosts=hosts, routes=routes),
        http="h11",
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=STOP_WAIT_S,
        h11_max_incomplete_event_size=16_384,
    )


def _history(*, keeps: bool) -> History:
    if keeps:
        with contextlib.suppress(RuntimeError):  # a user without a home
            return History(state_folder() / "console.sqlite")
    return History(None)


def listening_socket(port: int) -> socket.socket:
    """Returns a socket that listens on the loopback address. Raises OSError if the port is taken."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener
