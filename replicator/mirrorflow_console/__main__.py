"""Runs the console in a cluster: `mirrorflow-console`. Its settings are environment variables, which the chart sets.

MIRRORFLOW_NAMESPACES   namespaces whose flows it shows, with commas; empty: all
MIRRORFLOW_LISTENER     address and port; default 0.0.0.0:8080
MIRRORFLOW_PROGRESS_CA  PEM file of the CAs of connectors' certificates; empty: none
MIRRORFLOW_HISTORY      path of the history's file; empty: in memory
MIRRORFLOW_RESULTS      folders of verifications' results: namespace=path, with commas; empty: none
MIRRORFLOW_PROMETHEUS   address of a Prometheus that scrapes the connectors; empty: none
MIRRORFLOW_CONSOLE_HOSTS  names under which it may be called, with commas; empty: all
"""

import asyncio
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import uvicorn
from kubernetes.client.api_client import ApiClient

from mirrorflow_console.chart_history import ChartHistory
from mirrorflow_console.cluster_flows import ClusterFlows
from mirrorflow_console.cluster_switchovers import ClusterSwitchovers
from mirrorflow_console.history import History
from mirrorflow_console.local_server import server_config
from mirrorflow_console.namespace_results import NamespaceResults
from mirrorflow_console.poller import SharedPoller
from mirrorflow_console.prometheus_history import PrometheusHistory
from mirrorflow_console.rendering import environment
from mirrorflow_console.server import Console
from mirrorflow_console.sign_in import ClusterGate
from mirrorflow_console.switched_flows import SwitchedFlows
from mirrorflow_kubernetes.client import connect
from mirrorflow_kubernetes.credentials import KubernetesLoginError
from mirrorflow_replicator.process import allow_open_files


def main() -> int:
    """Serves until SIGTERM, and returns the exit status: 2 if a setting is invalid or there is no cluster."""
    try:
        api = connect().api
        host, port = _listener(os.environ.get("MIRRORFLOW_LISTENER") or "0.0.0.0:8080")
        address = os.environ.get("MIRRORFLOW_PROMETHEUS")
        charts = ChartHistory(PrometheusHistory(address)) if address else None
        folders = _folders(_listed("MIRRORFLOW_RESULTS"))
    except (KubernetesLoginError, ValueError) as error:
        sys.stderr.write(f"The console cannot start: {error}\n")
        return 2
    allow_open_files()
    asyncio.run(_serve(api, host, port, charts, NamespaceResults(folders)))
    return 0


async def _serve(
    api: ApiClient, host: str, port: int, charts: ChartHistory | None, results: NamespaceResults
) -> None:
    ca = os.environ.get("MIRRORFLOW_PROGRESS_CA")
    path = os.environ.get("MIRRORFLOW_HISTORY")
    history = History(Path(path) if path else None)
    namespaces = _listed("MIRRORFLOW_NAMESPACES")
    switchovers = ClusterSwitchovers(api, namespaces=namespaces)
    flows = ClusterFlows(api, namespaces=namespaces, ca_file=Path(ca) if ca else None)
    gate = ClusterGate(api, environment(), switchovers=switchovers, results=results.namespaces)
    poller = SharedPoller(SwitchedFlows(flows, switchovers), history, charts=charts)
    console = Console(
        poller, history, gate=gate, place="this cluster", results=results, switchovers=switchovers
    )
    hosts = _listed("MIRRORFLOW_CONSOLE_HOSTS") or ("*",)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family, backlog=512) as listener:
        server = uvicorn.Server(server_config(console, hosts=hosts, routes=gate.routes))
        await server.serve(sockets=[listener])


def _listed(name: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in os.environ.get(name, "").split(",") if part.strip())


def _folders(listed: Sequence[str]) -> dict[str, Path]:
    """Returns the folders of *listed* by their namespaces. Raises ValueError."""
    parts = [entry.partition("=") for entry in listed]
    if not all(namespace and path for namespace, _, path in parts):
        raise ValueError(f"MIRRORFLOW_RESULTS is {','.join(listed)}; write it as kafka=/mnt/kafka.")
    return {namespace: Path(path) for namespace, _, path in parts}


def _listener(text: str) -> tuple[str, int]:
    """Returns host and port of *text*. Raises ValueError."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"MIRRORFLOW_LISTENER is {text}; write it as 0.0.0.0:8080 or [::]:8080.")
    return host.strip("[]"), int(port)


if __name__ == "__main__":
    sys.exit(main())
