"""The fault proxy in front of a real API server passes requests without a fault unchanged, and applies each fault."""

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest
from urllib3.exceptions import HTTPError

from tests.harness.kafka.processes import start, wait_until
from tests.harness.kubernetes.api_server import ApiServer
from tests.harness.kubernetes.fault_proxy import FaultProxy
from tests.harness.kubernetes.faults import CutBody, Delay, Drop, LoseResponse, Match, Refuse, Silence
from tests.harness.kubernetes.kubectl import Kubectl, KubectlError
from tests.harness.kubernetes.requests import Requests

CONFIG_MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one"}, "data": {"key": "value"}}
BROKEN = HTTPError  # a connection that was reset, a body that was cut


@pytest.fixture
def proxy(api_server: ApiServer, tmp_path: Path) -> Iterator[FaultProxy]:
    with FaultProxy(server_kubeconfig=api_server.kubectl.kubeconfig, folder=tmp_path) as proxy:
        yield proxy


@pytest.fixture
def through(proxy: FaultProxy, namespace: Kubectl) -> Kubectl:
    """kubectl that connects through the proxy."""
    return Kubectl(kubeconfig=proxy.kubeconfig, namespace=namespace.namespace)


@pytest.fixture
def requests(proxy: FaultProxy) -> Requests:
    return Requests(proxy.kubeconfig)


@pytest.fixture
def path(namespace: Kubectl) -> str:
    return f"/api/v1/namespaces/{namespace.namespace}/configmaps"


def test_requests_pass_unchanged_while_no_rule_applies(
    proxy: FaultProxy, through: Kubectl, namespace: Kubectl
):
    """kubectl writes, reads and deletes. The proxy lists the requests with RBAC's names."""
    through.apply(CONFIG_MAP)

    assert namespace.get("configmap", "one")["data"] == {"key": "value"}
    assert through.get("configmaps") == namespace.get("configmaps")
    through("delete", "configmap", "one")
    verbs = [request.verb for request in proxy.requests(Match(resource="configmaps"))]
    assert {"patch", "list", "delete"} <= set(verbs)


@pytest.mark.parametrize("status", [409, 410, 429, 500, 503])
def test_a_refused_request_gets_its_status_and_is_not_executed(
    proxy: FaultProxy, requests: Requests, path: str, status: int
):
    """The body is that of an API server. The next request passes."""
    rule = proxy.on(Match(verb="create"), Refuse(status, retry_after_s=1))

    refused = requests("POST", path, CONFIG_MAP)
    accepted = requests("POST", path, CONFIG_MAP)

    assert (status, status) == (refused.status, refused.body["code"])
    assert accepted.status == 201
    assert rule.hits == 1
    assert [status, 201] == [request.status for request in proxy.proxied]


def test_a_refusal_may_have_a_retry_after_header(proxy: FaultProxy):
    proxy.on(Match(), Refuse(429, retry_after_s=7))

    with socket.create_connection(("127.0.0.1", proxy.port)) as connection:
        connection.sendall(b"GET /api/v1/pods HTTP/1.1\r\nHost: here\r\n\r\n")
        assert b"retry-after: 7\r\n" in connection.recv(4096).lower()


def test_a_response_can_be_lost_after_the_write_is_executed(proxy: FaultProxy, requests: Requests, path: str):
    """The client gets an error, although the object exists."""
    proxy.on(Match(write=True), LoseResponse())

    with pytest.raises(BROKEN):
        requests("POST", path, CONFIG_MAP)

    assert requests("GET", f"{path}/one").status == 200


def test_a_dropped_write_is_not_executed(proxy: FaultProxy, requests: Requests, path: str):
    """The connection ends, and the object does not exist."""
    proxy.on(Match(write=True), Drop())

    with pytest.raises(BROKEN):
        requests("POST", path, CONFIG_MAP)

    assert requests("GET", f"{path}/one").status == 404


def test_a_response_body_can_be_truncated(proxy: FaultProxy, requests: Requests, path: str):
    """The header announces more bytes than arrive."""
    proxy.on(Match(verb="list"), CutBody(20))

    with pytest.raises(BROKEN):
        requests("GET", path)

    assert requests("GET", path).status == 200


def test_a_request_can_be_delayed(proxy: FaultProxy, requests: Requests, path: str):
    """After the delay the response is unchanged."""
    proxy.on(Match(verb="list"), Delay(0.3))
    began = time.monotonic()

    assert requests("GET", path).status == 200
    assert time.monotonic() - began >= 0.3


def test_a_request_can_stay_without_a_response_on_an_open_connection(proxy: FaultProxy):
    """The proxy waits until the client closes the connection."""
    rule = proxy.on(Match(), Silence())

    with socket.create_connection(("127.0.0.1", proxy.port)) as connection:
        connection.sendall(b"GET /api/v1/pods HTTP/1.1\r\nHost: here\r\n\r\n")
        connection.settimeout(0.2)
        with pytest.raises(TimeoutError):
            connection.recv(1)
    wait_until(
        "the proxy has closed the connection", lambda: [request.status for request in proxy.proxied] == [0]
    )
    assert rule.hits == 1


def test_a_process_can_be_killed_at_its_nth_write(proxy: FaultProxy, through: Kubectl, tmp_path: Path):
    """It is killed after the write is executed and before the response arrives. No later write follows."""
    child = start("sleeper", ["sleep", "600"], log=tmp_path / "sleeper.log")
    proxy.on(Match(write=True), LoseResponse(then=lambda: os.kill(child.pid, signal.SIGKILL)), skip=1)

    through.apply(CONFIG_MAP)
    assert child.running
    with pytest.raises(KubectlError):
        through.apply(CONFIG_MAP | {"data": {"key": "other"}})

    wait_until("the process has ended", lambda: not child.running)


class _Watching:
    """`kubectl get --watch` of ConfigMaps in a separate process."""

    def __init__(self, through: Kubectl, folder: Path) -> None:
        self.log = folder / "watch.log"
        from tests.harness.kubernetes.installation import CONTROL

        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [
                    str(CONTROL / "kubectl"),
                    f"--kubeconfig={through.kubeconfig}",
                    f"--namespace={through.namespace}",
                    "get",
                    "configmaps",
                    "--watch",
                    "--output=name",
                ],
                stdout=output,
                stderr=output,
            )

    def has_seen(self, name: str) -> bool:
        return f"configmap/{name}" in self.log.read_text()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


def test_watches_pass_events_and_can_be_closed(
    proxy: FaultProxy, through: Kubectl, namespace: Kubectl, tmp_path: Path
):
    """An event arrives at once. After the watch is closed, kubectl exits."""
    with _Watching(through, tmp_path) as watching:
        wait_until("the watch is open", lambda: "configmaps" in proxy.watched())
        namespace.apply(CONFIG_MAP)
        wait_until("the watch has the event", lambda: watching.has_seen("one"))

        assert proxy.drop_watches(Match(resource="configmaps")) == 1
        wait_until("kubectl ends", lambda: watching.process.poll() is not None)
    wait_until("the proxy has removed the watch", lambda: not proxy.watched())


def test_a_watch_can_stop_sending_events_without_closing(
    proxy: FaultProxy, through: Kubectl, namespace: Kubectl, tmp_path: Path
):
    """The connection is half-open. Later events are lost without an error."""
    with _Watching(through, tmp_path) as watching:
        wait_until("the watch is open", lambda: "configmaps" in proxy.watched())
        assert proxy.silence_watches() == 1
        namespace.apply(CONFIG_MAP)
        with pytest.raises(subprocess.TimeoutExpired):
            watching.process.wait(0.5)
        assert not watching.has_seen("one")


def test_a_watch_can_expire(proxy: FaultProxy, path: str):
    """An ERROR event with status 410 ends the stream as HTTP requires."""
    with socket.create_connection(("127.0.0.1", proxy.port)) as connection:
        connection.settimeout(10)
        connection.sendall(f"GET {path}?watch=true HTTP/1.1\r\nHost: here\r\n\r\n".encode())
        wait_until("the watch is open", lambda: "configmaps" in proxy.watched())
        assert proxy.expire_watches() == 1
        received = b""
        while part := connection.recv(4096):
            received += part
    event = json.loads(
        next(line for line in received.splitlines() if line.startswith(b'{"type"') and b"ERROR" in line)
    )
    assert event["object"]["code"] == 410
    assert received.endswith(b"0\r\n\r\n")
