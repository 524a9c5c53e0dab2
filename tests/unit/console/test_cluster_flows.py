"""MirrorFlows of a cluster, with a stub of its API server: which pods are polled for what."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from kubernetes import client

from mirrorflow_console.cluster_flows import CONNECTOR_LABEL, FLOW_LABEL, NOT_INSTALLED, ClusterFlows
from mirrorflow_core.reports import SchemasReport
from tests.unit.console.flow_readings import healthy, table
from tests.unit.http.reports import NOW_S, connector, partition, task

KEY = "team~east-to-west"
FORBIDDEN = "gone"  # a namespace that was deleted has no Role for the console
ABSENT = "elsewhere"  # the API server returns for it what one without the CRDs does
# Pods of the flow: an address of loopback for each, and what it reports.
REPORTS = {
    "source": ("127.0.0.2", healthy(partition(0))),
    "schemas": (
        "127.0.0.3",
        connector(
            task(),
            name="MirrorSchemaConnector",
            schemas=SchemasReport(subjects=3, versions=7, passed_s=NOW_S),
        ),
    ),
}


def pod(name: str, address: str) -> dict[str, Any]:
    labels = {FLOW_LABEL: "east-to-west", CONNECTOR_LABEL: name}
    return {
        "metadata": {"name": f"east-to-west-{name}", "namespace": "team", "labels": labels},
        "status": {"phase": "Running", "podIP": address},
    }


class ClusterHandler(BaseHTTPRequestHandler):
    """The API server on 127.0.0.1, and a pod on each address of REPORTS."""

    protocol_version = "HTTP/1.1"
    polled: list[str]

    def do_GET(self) -> None:
        path, query = urlsplit(self.path).path, parse_qs(urlsplit(self.path).query)
        address = self.connection.getsockname()[0]
        body: dict[str, Any]
        if path.startswith(f"/apis/mirrorflow.io/v1alpha1/namespaces/{FORBIDDEN}/"):
            self.send_error(403)
            return
        if path.startswith(f"/apis/mirrorflow.io/v1alpha1/namespaces/{ABSENT}/"):
            self.send_error(404)
            return
        if path.endswith("/mirrorflows"):
            meta = {"name": "east-to-west", "namespace": "team"}
            body = {"items": [{"metadata": meta, "spec": {}, "status": {}}]}
        elif path.endswith("/pods"):
            [selector] = query["labelSelector"]
            body = {"items": [pod(name, own) for name, (own, _) in REPORTS.items() if name in selector]}
        else:
            name, report = next((name, report) for name, (own, report) in REPORTS.items() if own == address)
            self.polled.append(name)
            body = table(report, limit=int(query["limit"][0]))
        content = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Logs nothing."""


@pytest.fixture
def cluster() -> Iterator[ThreadingHTTPServer]:
    ClusterHandler.polled = []
    server = ThreadingHTTPServer(("", 0), ClusterHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def api_of(cluster: ThreadingHTTPServer) -> client.ApiClient:
    return client.ApiClient(client.Configuration(host=f"http://127.0.0.1:{cluster.server_port}"))


def test_a_namespace_that_may_not_be_read_does_not_hide_the_others(cluster: ThreadingHTTPServer):
    flows = ClusterFlows(api_of(cluster), namespaces=(FORBIDDEN, "team"), port=cluster.server_port)

    (flow,) = flows.read(frozenset(), frozenset(), is_watched=True)

    assert flow.document is not None
    assert "HTTP status 403" in flows.problem
    assert FORBIDDEN not in flows.problem  # each visitor reads it, also those who may not see that namespace


def test_a_context_whose_cluster_has_no_such_resource_is_one_sentence(cluster: ThreadingHTTPServer):
    api = api_of(cluster)
    flows = ClusterFlows(api, namespaces=(ABSENT,), port=cluster.server_port, forward=lambda *_: None)

    assert flows.read(frozenset(), frozenset(), is_watched=True) == []
    assert flows.problem == NOT_INSTALLED


def test_models_of_pods_are_loaded_only_where_pods_are_polled(cluster: ThreadingHTTPServer):
    """They take 20 MiB, which a console with a kubeconfig pays before any of its flows is opened."""
    script = f"""
import sys
from kubernetes import client
from mirrorflow_console.cluster_flows import ClusterFlows
api = client.ApiClient(client.Configuration(host="http://127.0.0.1:{cluster.server_port}"))
flows = ClusterFlows(api, namespaces=("team",), forward=lambda *_: None)
assert flows.read(frozenset(), frozenset(), is_watched=True)
assert not [name for name in sys.modules if name.endswith("v1_pod")]
"""
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )

    assert ran.returncode == 0, ran.stderr


def test_a_ca_file_that_cannot_be_read_hides_no_flow(cluster: ThreadingHTTPServer, tmp_path: Path):
    file = tmp_path / "ca.crt"
    file.write_text("no certificate")
    flows = ClusterFlows(api_of(cluster), namespaces=("team",), ca_file=file, port=cluster.server_port)

    (flow,) = flows.read(frozenset(), frozenset(), is_watched=True)

    assert flow.document is not None  # a pod without TLS
    assert "CA" in flows.problem
    file.unlink()
    assert flows.read(frozenset(), frozenset(), is_watched=True) != []


def test_the_pod_of_a_schema_connector_is_polled_for_an_open_page(cluster: ThreadingHTTPServer):
    port = cluster.server_port
    flows = ClusterFlows(api_of(cluster), namespaces=("team",), port=port)

    (closed,) = flows.read(frozenset(), frozenset(), is_watched=True)
    assert closed.schemas is None
    assert set(ClusterHandler.polled) == {"source"}

    (opened,) = flows.read(frozenset({KEY}), frozenset(), is_watched=True)
    assert opened.document is not None
    assert opened.schemas is not None
    assert opened.schemas["schemas"]["versions"] == 7
    assert ClusterHandler.polled[-2:] == ["source", "schemas"]


def test_no_pod_is_polled_without_an_open_page(cluster: ThreadingHTTPServer):
    """The history of a cluster's console then has what the resources' status has."""
    flows = ClusterFlows(api_of(cluster), namespaces=("team",), port=cluster.server_port)

    (flow,) = flows.read(frozenset(), frozenset(), is_watched=False)

    assert flow.status is not None
    assert ClusterHandler.polled == []
