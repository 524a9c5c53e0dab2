"""Logins on a real API server work like those of kubectl, with an exec plugin in the second context, through a proxy."""

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirrorflow_cli.kubectl_plugin import main
from mirrorflow_operator.cluster.client import CONFIG_MAP, Client
from mirrorflow_operator.cluster.login import log_in
from mirrorflow_operator.metrics import Metrics
from tests.harness.kubernetes.api_server import ApiServer
from tests.harness.kubernetes.kubectl import Kubectl
from tests.integration.kubernetes.controlled import manifest


class ConnectProxy:
    """An HTTP proxy that only tunnels, and counts its tunnels."""

    def __init__(self) -> None:
        self.tunnels = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            head = b""
            while b"\r\n\r\n" not in head:
                head += client.recv(4096)
            host, _, port = head.split()[1].decode().rpartition(":")
            server = socket.create_connection((host, int(port)))
            client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            self.tunnels += 1
            for pair in ((client, server), (server, client)):
                threading.Thread(target=_forward, args=pair, daemon=True).start()


def _forward(source: socket.socket, target: socket.socket) -> None:
    """Closes *source* when it ends. The thread of the other direction closes *target*."""
    with source, contextlib.suppress(OSError):
        while chunk := source.recv(65536):
            target.sendall(chunk)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def proxy() -> Iterator[ConnectProxy]:
    server = ConnectProxy()
    yield server
    server.close()


def test_plugin_of_kubectl_reads_flows_by_a_context_with_an_exec_plugin_and_a_proxy(
    mirrorflows: ApiServer,
    namespace: Kubectl,
    proxy: ConnectProxy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    namespace.apply(manifest("east-to-west"))
    namespace("create", "serviceaccount", "reader")
    namespace("create", "role", "reader", "--verb=list", "--resource=mirrorflows.mirrorflow.io")
    namespace(
        "create", "rolebinding", "reader", "--role=reader", f"--serviceaccount={namespace.namespace}:reader"
    )
    token = namespace("create", "token", "reader").strip()
    file = _kubeconfig(mirrorflows, proxy, token, tmp_path)
    content = json.loads(file.read_text())
    content["contexts"][1]["context"]["namespace"] = namespace.namespace
    content["current-context"] = "test"
    file.write_text(json.dumps(content))
    monkeypatch.setenv("KUBECONFIG", str(file))

    assert main(["status", "--context", "second"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:2] == ["east-to-west", "Unknown"]
    assert main(["status", "east-to-west", "--context", "second"]) == 1
    assert (
        f'"system:serviceaccount:{namespace.namespace}:reader" cannot get resource' in capsys.readouterr().err
    )
    assert proxy.tunnels == 2


def test_exec_plugin_of_the_second_context_reads_and_applies_through_a_proxy(
    api_server: ApiServer,
    namespace: Kubectl,
    proxy: ConnectProxy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    space = namespace.namespace
    namespace("create", "serviceaccount", "writer")
    namespace("create", "role", "writer", "--verb=get,create,patch", "--resource=configmaps")
    namespace("create", "rolebinding", "writer", "--role=writer", f"--serviceaccount={space}:writer")
    token = namespace("create", "token", "writer").strip()
    monkeypatch.setenv("KUBECONFIG", str(_kubeconfig(api_server, proxy, token, tmp_path)))
    body = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "written", "namespace": space},
        "data": {"key": "ü"},
    }

    async def apply() -> dict[str, str]:
        client = Client(log_in, Metrics())
        try:
            await client.apply(CONFIG_MAP, body)
            data: dict[str, str] = (await client.read(CONFIG_MAP, space, "written"))["data"]
            return data
        finally:
            await client.close()

    assert asyncio.run(apply()) == {"key": "ü"}
    assert proxy.tunnels == 1


def _kubeconfig(api_server: ApiServer, proxy: ConnectProxy, token: str, folder: Path) -> Path:
    """Writes a kubeconfig whose first context is the administrator's. The current context is the plugin's."""
    content = json.loads(Path(api_server.kubectl.kubeconfig).read_text())
    first = content["clusters"][0]["cluster"]
    credential = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": token},
    }
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "echo",
        "args": [json.dumps(credential)],
        "interactiveMode": "Never",
    }
    content["clusters"].append({"name": "proxied", "cluster": {**first, "proxy-url": proxy.url}})
    content["users"].append({"name": "plugin", "user": {"exec": plugin}})
    content["contexts"].append({"name": "second", "context": {"cluster": "proxied", "user": "plugin"}})
    content["current-context"] = "second"
    file = folder / "config"
    file.write_text(json.dumps(content))
    return file
