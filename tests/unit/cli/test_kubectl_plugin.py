"""`kubectl mirrorflow` with a stub server as the API server and as the pods of port-forwards."""

import json
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from kubernetes.stream import ws_client

from mirrorflow_cli.command_examples import examples_of
from mirrorflow_cli.kubectl_plugin import main

FLOW = {
    "metadata": {"name": "orders"},
    "spec": {"source": {"alias": "east"}, "target": {"alias": "west"}},
    "status": {
        "lag": "<1m",
        "version": "0.1.0",
        "conditions": [
            {"type": "Ready", "status": "False", "reason": "Stuck", "message": "1 of 3 partitions is stuck."},
            {
                "type": "Replicating",
                "status": "False",
                "reason": "Stuck",
                "message": "1 of 3 partitions is stuck.",
            },
            {"type": "Accepted", "status": "True", "reason": "Accepted", "message": "The spec is valid."},
            {"type": "Degraded", "status": "True", "reason": "Warnings", "message": "An ACL is missing."},
            {"type": "Stalled", "status": "False", "reason": "NotStalled", "message": "No action is needed."},
        ],
    },
}
PARTITION = {
    "topic": "orders",
    "partition": 2,
    "targetTopic": "east.orders",
    "lagRecords": 1200,
    "recordsPerSecond": 10.0,
    "phase": "stopped",
    "reason": "RecordTooLarge",
    "message": "A record is too large.",
}
OFFSET = {
    "group": "billing",
    "topic": "orders",
    "partition": 2,
    "sourceOffset": 7,
    "targetOffset": None,
    "translation": "none",
    "written": False,
    "why": "no offset sync",
}
RESPONSES: dict[str, Any] = {
    "/progress/partitions": {"partitions": [PARTITION]},
    "/offsets": {"offsets": [OFFSET]},
}


def pod(connector: str, *, is_ready: bool = True) -> dict[str, Any]:
    ready = {"type": "Ready", "status": str(is_ready)}
    return {"metadata": {"name": f"orders-{connector}-0"}, "status": {"conditions": [ready]}}


class ClusterRequestHandler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        cluster: ClusterStub = self.server.cluster  # type: ignore[attr-defined]
        cluster.requests.append(self.path)
        status, content = cluster.response(self.path)
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the name of the base class
        """Prints nothing, because stdout belongs to the plugin."""


class ClusterStub:
    """The responses of the API server and the pods, and the requests that they received."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.forwarded: list[str] = []
        self.objects: dict[str, list[dict[str, Any]]] = {"source": [pod("source")], "checkpoint": []}

    def response(self, path: str) -> tuple[int, dict[str, Any]]:
        parts = urlsplit(path)
        if parts.path in RESPONSES:
            return 200, RESPONSES[parts.path]
        if parts.path.endswith("/pods"):
            (selector,) = parse_qs(parts.query)["labelSelector"]
            return 200, {"items": self.objects[selector.rpartition("=")[2]]}
        if "flows" in self.objects:
            return 200, {"items": self.objects["flows"]}
        return 403, {"message": "mirrorflows.mirrorflow.io is forbidden."}


@dataclass
class PortForwardStub:
    """A stub of the package's PortForward that connects to the stub server."""

    port: int

    def socket(self, _: int) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port))

    def error(self, _: int) -> None:
        return None

    def close(self) -> None:
        """Does nothing: the plugin has closed the connection."""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ClusterStub]:
    """Serves the cluster of both contexts in a kubeconfig. The namespace of the context `prod` is `payments`."""
    with HTTPServer(("127.0.0.1", 0), ClusterRequestHandler) as server:
        stub = ClusterStub()
        server.cluster = stub  # type: ignore[attr-defined]
        url = f"http://127.0.0.1:{server.server_port}"
        contexts = {"test": {}, "prod": {"namespace": "payments"}}
        kubeconfig = {
            "current-context": "test",
            "clusters": [{"name": "stub", "cluster": {"server": url}}],
            "contexts": [
                {"name": name, "context": {"cluster": "stub", **fields}} for name, fields in contexts.items()
            ],
        }
        (tmp_path / "config").write_text(json.dumps(kubeconfig))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))

        def forward(_configuration: object, _method: str, path: str, **_: object) -> PortForwardStub:
            stub.forwarded.append(path.removeprefix(url))
            return PortForwardStub(server.server_port)

        monkeypatch.setattr(ws_client, "portforward_call", forward)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield stub
        server.shutdown()
        thread.join()


def test_status_shows_each_flow_and_each_problem_once(
    cluster: ClusterStub, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.objects["flows"] = [FLOW]

    assert main(["status", "-n", "payments"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[:2]] == [
        ["flow", "ready", "reason", "lag", "source", "target", "version"],
        ["orders", "False", "Stuck", "<1m", "east", "west", "0.1.0"],
    ]
    assert lines[2:] == [
        "orders: Ready is False (Stuck): 1 of 3 partitions is stuck.",
        "orders: Degraded is True (Warnings): An ACL is missing.",
    ]
    assert cluster.requests == ["/apis/mirrorflow.io/v1alpha1/namespaces/payments/mirrorflows"]


def test_status_prints_one_json_object(cluster: ClusterStub, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.objects["flows"] = [FLOW]

    assert main(["status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"flows": [{"name": "orders", "status": FLOW["status"]}]}


@pytest.mark.usefixtures("cluster")
def test_the_error_contains_the_message_of_the_api_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status"]) == 1
    assert capsys.readouterr().err == (
        "The API server does not answer /apis/mirrorflow.io/v1alpha1/namespaces/default/mirrorflows: "
        "mirrorflows.mirrorflow.io is forbidden.\n"
    )


@pytest.mark.usefixtures("cluster")
def test_the_error_names_an_unknown_context_and_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--context", "moon"]) == 2
    assert "there is no context moon; it has test, prod; name a kubeconfig" in capsys.readouterr().err


def test_the_error_for_an_unreachable_api_server_is_one_line(
    cluster: ClusterStub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kubeconfig = tmp_path / "config"
    content = json.loads(kubeconfig.read_text())
    content["clusters"][0]["cluster"]["server"] = "http://127.0.0.1:1"
    kubeconfig.write_text(json.dumps(content))

    assert main(["status"]) == 1
    assert (cluster.requests, capsys.readouterr().err.count("\n")) == ([], 1)


def test_partitions_are_read_from_the_source_pods(
    cluster: ClusterStub, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["partitions", "orders", "--context", "prod"]) == 0

    lines = capsys.readouterr().out.splitlines()
    row = ["orders-source-0", "orders-2", "east.orders", "1,200", "10", "stopped", "RecordTooLarge"]
    assert lines[1].split() == row
    assert lines[2:] == ["orders-2: A record is too large."]
    assert cluster.forwarded == ["/api/v1/namespaces/payments/pods/orders-source-0/portforward"]


def test_offsets_are_read_from_the_pod_that_runs_the_checkpoint_connector(
    cluster: ClusterStub, capsys: pytest.CaptureFixture[str]
) -> None:
    """The checkpoint connector may run in the pod of the source connector."""
    assert main(["offsets", "orders", "--group", "a b"]) == 0
    cluster.objects["checkpoint"] = [pod("checkpoint")]
    assert main(["offsets", "orders"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["billing", "orders-2", "7", "-", "none", "no", "no", "offset", "sync"]
    assert "/offsets?limit=100000&group=a%20b" in cluster.requests
    pods = [path.split("/")[-2] for path in cluster.forwarded]
    assert pods == ["orders-source-0", "orders-checkpoint-0"]


def test_partitions_fail_without_a_ready_pod(
    cluster: ClusterStub, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.objects["source"] = [pod("source", is_ready=False)]

    assert main(["partitions", "orders"]) == 1
    assert "Flow orders has no ready pod of its source connector" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "selector"),
    [
        (["logs", "orders"], "mirrorflow.io/flow=orders,mirrorflow.io/connector=source"),
        (["logs", "orders", "checkpoint"], "mirrorflow.io/flow=orders,mirrorflow.io/connector=checkpoint"),
        (["logs", "orders", "seed", "-f"], "mirrorflow.io/run-of=orders,mirrorflow.io/run=seed"),
    ],
)
def test_logs_call_kubectl_with_the_selector_of_the_pods(
    arguments: list[str], selector: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "kubectl"
    script.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/arguments\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    assert main([*arguments, "--context", "prod"]) == 0

    follow = " --follow" if "-f" in arguments else ""
    expected = f"logs --selector={selector} --prefix --tail=-1{follow} --context=prod\n"
    assert (tmp_path / "arguments").read_text() == expected


@pytest.mark.parametrize("command", ["", " status", " partitions", " offsets", " logs"])
def test_help_ends_with_two_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])

    assert capsys.readouterr().out.endswith(f"\n{examples_of(f'kubectl mirrorflow{command}')}\n")


CLOSED = """
import os, sys
from mirrorflow_cli import kubectl_plugin
reading, writing = os.pipe()
os.dup2(writing, 1)
os.close(writing)
os.close(reading)
kubectl_plugin._status = lambda _: print("orders") or 0
sys.exit(kubectl_plugin.main(["status"]))
"""


def test_a_reader_that_has_closed_the_output_is_no_error() -> None:
    """`kubectl mirrorflow partitions FLOW | head` prints no traceback."""
    ended = subprocess.run(
        [sys.executable, "-c", CLOSED], capture_output=True, text=True, check=False, timeout=300
    )

    assert (0, "") == (ended.returncode, ended.stderr)
