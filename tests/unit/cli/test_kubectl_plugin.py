"""`kubectl mirrorflow` with a stub of kubectl that prints files and forwards ports to a server of the test."""

import json
import stat
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

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


class PodHandler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.server.paths.append(self.path)  # type: ignore[attr-defined]
        body = json.dumps(RESPONSES[self.path.partition("?")[0]]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the name of the base class
        """Prints nothing: the output is the plugin's."""


class KubectlStub:
    """A stub of `kubectl` on PATH that records its arguments."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        script = folder / "kubectl"
        script.write_text(
            "#!/bin/sh\n"
            f'echo "$@" >> {folder}/arguments\n'
            'case "$*" in\n'
            f'  port-forward*) echo "Forwarding from 127.0.0.1:{port} -> 8080"; exec sleep 60;;\n'
            f"  logs*) exit 0;;\n"
            f"  *connector=checkpoint*) cat {folder}/checkpoint;;\n"
            f"  *pods*) cat {folder}/source;;\n"
            f'  *) cat {folder}/flows 2>/dev/null || {{ echo "Error: forbidden" >&2; exit 1; }};;\n'
            "esac\n"
        )
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        self.put("source", pod("source"))
        self.put("checkpoint")

    def put(self, name: str, *items: dict[str, Any]) -> None:
        """Makes *items* the response to a query for the flows or the pods of a connector."""
        (self.folder / name).write_text(json.dumps({"items": items}))

    @property
    def calls(self) -> list[str]:
        return (self.folder / "arguments").read_text().splitlines()


@pytest.fixture
def server() -> Iterator[HTTPServer]:
    """The HTTP port of a pod."""
    with HTTPServer(("127.0.0.1", 0), PodHandler) as http_server:
        http_server.paths = []  # type: ignore[attr-defined]
        thread = threading.Thread(target=http_server.serve_forever, daemon=True)
        thread.start()
        yield http_server
        http_server.shutdown()
        thread.join()


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: HTTPServer) -> KubectlStub:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return KubectlStub(tmp_path, server.server_port)


def test_status_shows_each_flow_and_each_problem_once(
    kubectl: KubectlStub, capsys: pytest.CaptureFixture[str]
) -> None:
    kubectl.put("flows", FLOW)

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
    assert kubectl.calls == ["get mirrorflows.mirrorflow.io --output=json --namespace=payments"]


def test_status_prints_one_json_object(kubectl: KubectlStub, capsys: pytest.CaptureFixture[str]) -> None:
    kubectl.put("flows", FLOW)

    assert main(["status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"flows": [{"name": "orders", "status": FLOW["status"]}]}


def test_an_error_of_kubectl_is_passed_on(kubectl: KubectlStub, capsys: pytest.CaptureFixture[str]) -> None:
    assert kubectl.folder.is_dir()
    assert main(["status"]) == 1
    assert capsys.readouterr().err == "Error: forbidden\n"


def test_partitions_are_read_from_the_source_pods(
    kubectl: KubectlStub, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["partitions", "orders", "--context", "prod"]) == 0

    lines = capsys.readouterr().out.splitlines()
    row = ["orders-source-0", "orders-2", "east.orders", "1,200", "10", "stopped", "RecordTooLarge"]
    assert lines[1].split() == row
    assert lines[2:] == ["orders-2: A record is too large."]
    assert kubectl.calls[-1] == "port-forward pod/orders-source-0 :8080 --address=127.0.0.1 --context=prod"


def test_offsets_are_read_from_the_pod_that_runs_the_checkpoint_connector(
    kubectl: KubectlStub, server: HTTPServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """This may be the pod of the source connector."""
    assert main(["offsets", "orders", "--group", "a b"]) == 0
    kubectl.put("checkpoint", pod("checkpoint"))
    assert main(["offsets", "orders"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["billing", "orders-2", "7", "-", "none", "no", "no", "offset", "sync"]
    assert server.paths[0] == "/offsets?limit=100000&group=a%20b"  # type: ignore[attr-defined]
    forwarded = [line.split()[1] for line in kubectl.calls if line.startswith("port-forward")]
    assert forwarded == ["pod/orders-source-0", "pod/orders-checkpoint-0"]


def test_partitions_fail_without_a_ready_pod(
    kubectl: KubectlStub, capsys: pytest.CaptureFixture[str]
) -> None:
    kubectl.put("source", pod("source", is_ready=False))

    assert main(["partitions", "orders"]) == 1
    assert "Flow orders has no ready pod of its source connector" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "selector"),
    [
        (["logs", "orders"], "mirrorflow.io/flow=orders,mirrorflow.io/connector=source"),
        (["logs", "orders", "checkpoint"], "mirrorflow.io/flow=orders,mirrorflow.io/connector=checkpoint"),
        (["logs", "orders", "seed", "-f"], "mirrorflow.io/run-of=orders,mirrorflow.io/run=seed"),
    ],
)
def test_logs_call_kubectl_with_the_selector_of_the_pods(
    kubectl: KubectlStub, words: list[str], selector: str
) -> None:
    assert main(words) == 0

    follow = " --follow" if "-f" in words else ""
    assert kubectl.calls == [f"logs --selector={selector} --prefix --tail=-1{follow}"]


@pytest.mark.parametrize("command", ["", " status", " partitions", " offsets", " logs"])
def test_help_ends_with_two_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])

    assert capsys.readouterr().out.endswith(f"\n{examples_of(f'kubectl mirrorflow{command}')}\n")
