"""The fault proxy in front of a real API server: what it lets through is unchanged, and each fault is what it says."""

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path
from typing import Self

import pytest

from tests.harness.kafka.processes import start, wait_until
from tests.harness.kubernetes.api_server import ApiServer
from tests.harness.kubernetes.fault_proxy import FaultProxy
from tests.harness.kubernetes.faults import CutBody, Delay, Drop, LoseAnswer, Match, Refuse, Silence
from tests.harness.kubernetes.kubectl import Kubectl, KubectlError
from tests.harness.kubernetes.requests import Requests

CONFIG_MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one"}, "data": {"key": "value"}}
BROKEN = (OSError, HTTPException)  # a connection that was reset, a body that was cut


@pytest.fixture
def proxy(api_server: ApiServer, tmp_path: Path) -> Iterator[FaultProxy]:
    with FaultProxy(kubeconfig_behind=api_server.kubectl.kubeconfig, folder=tmp_path) as proxy:
        yield proxy


@pytest.fixture
def through(proxy: FaultProxy, namespace: Kubectl) -> Kubectl:
    """kubectl by way of the proxy."""
    return Kubectl(kubeconfig=proxy.kubeconfig, namespace=namespace.namespace)


@pytest.fixture
def requests(proxy: FaultProxy) -> Requests:
    return Requests(proxy.kubeconfig)


@pytest.fixture
def path(namespace: Kubectl) -> str:
    return f"/api/v1/namespaces/{namespace.namespace}/configmaps"


def test_nothing_changes_while_no_rule_strikes(proxy: FaultProxy, through: Kubectl, namespace: Kubectl):
    """kubectl writes, reads and deletes; what came by is known by RBAC's names."""
    through.apply(CONFIG_MAP)

    assert namespace.get("configmap", "one")["data"] == {"key": "value"}
    assert through.get("configmaps") == namespace.get("configmaps")
    through("delete", "configmap", "one")
    verbs = [one.verb for one in proxy.asks(Match(resource="configmaps"))]
    assert {"patch", "list", "delete"} <= set(verbs)


@pytest.mark.parametrize("status", [409, 410, 429, 500, 503])
def test_a_refusal_has_its_status_and_does_nothing(
    proxy: FaultProxy, requests: Requests, path: str, status: int
):
    """As the API server writes it, Retry-After included; the next request gets through."""
    rule = proxy.on(Match(verb="create"), Refuse(status, retry_after_s=1))

    refused = requests("POST", path, CONFIG_MAP)
    taken = requests("POST", path, CONFIG_MAP)

    assert (status, status) == (refused.status, refused.body["code"])
    assert taken.status == 201
    assert rule.struck == 1
    assert [status, 201] == [one.status for one in proxy.seen]


def test_retry_after_is_sent(proxy: FaultProxy):
    """A client that obeys it can."""
    proxy.on(Match(), Refuse(429, retry_after_s=7))

    with socket.create_connection(("127.0.0.1", proxy.port)) as connection:
        connection.sendall(b"GET /api/v1/pods HTTP/1.1\r\nHost: here\r\n\r\n")
        assert b"retry-after: 7\r\n" in connection.recv(4096).lower()


def test_an_answer_is_lost_after_the_write_is_done(proxy: FaultProxy, requests: Requests, path: str):
    """The n-th write: the client cannot know, and the object is there."""
    proxy.on(Match(write=True), LoseAnswer())

    with pytest.raises(BROKEN):
        requests("POST", path, CONFIG_MAP)

    assert requests("GET", f"{path}/one").status == 200


def test_a_dropped_write_is_not_done(proxy: FaultProxy, requests: Requests, path: str):
    """The connection ends, and nothing is there."""
    proxy.on(Match(write=True), Drop())

    with pytest.raises(BROKEN):
        requests("POST", path, CONFIG_MAP)

    assert requests("GET", f"{path}/one").status == 404


def test_a_body_is_cut(proxy: FaultProxy, requests: Requests, path: str):
    """The head promises more than comes."""
    proxy.on(Match(verb="list"), CutBody(20))

    with pytest.raises(BROKEN):
        requests("GET", path)

    assert requests("GET", path).status == 200


def test_a_delay_is_waited_for(proxy: FaultProxy, requests: Requests, path: str):
    """Then it is answered as ever."""
    proxy.on(Match(verb="list"), Delay(0.3))
    began = time.monotonic()

    assert requests("GET", path).status == 200
    assert time.monotonic() - began >= 0.3


def test_silence_is_an_open_connection_without_a_word(proxy: FaultProxy):
    """Until the client gives up."""
    rule = proxy.on(Match(), Silence())

    with socket.create_connection(("127.0.0.1", proxy.port)) as connection:
        connection.sendall(b"GET /api/v1/pods HTTP/1.1\r\nHost: here\r\n\r\n")
        connection.settimeout(0.2)
        with pytest.raises(TimeoutError):
            connection.recv(1)
    wait_until("the proxy lets go", lambda: [one.status for one in proxy.seen] == [0])
    assert rule.struck == 1


def test_a_process_can_be_ended_at_its_nth_write(proxy: FaultProxy, through: Kubectl, tmp_path: Path):
    """After the write is done and before the answer comes; nothing of it follows."""
    child = start("sleeper", ["sleep", "600"], log=tmp_path / "sleeper.log")
    proxy.on(Match(write=True), LoseAnswer(then=lambda: os.kill(child.pid, signal.SIGKILL)), skip=1)

    through.apply(CONFIG_MAP)
    assert child.running
    with pytest.raises(KubectlError):
        through.apply(CONFIG_MAP | {"data": {"key": "other"}})

    wait_until("the process has ended", lambda: not child.running)


class _Watching:
    """`kubectl get --watch` of ConfigMaps in a process of its own."""

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


def test_watches_pass_and_can_be_cut(proxy: FaultProxy, through: Kubectl, namespace: Kubectl, tmp_path: Path):
    """What happens is seen at once; then kubectl notices the end."""
    with _Watching(through, tmp_path) as watching:
        wait_until("the watch runs", lambda: "configmaps" in proxy.watched())
        namespace.apply(CONFIG_MAP)
        wait_until("the watch has seen it", lambda: watching.has_seen("one"))

        assert proxy.drop_watches(Match(resource="configmaps")) == 1
        wait_until("kubectl ends", lambda: watching.process.poll() is not None)
    wait_until("the proxy has forgotten it", lambda: not proxy.watched())


def test_a_watch_falls_silent_and_does_not_close(
    proxy: FaultProxy, through: Kubectl, namespace: Kubectl, tmp_path: Path
):
    """Half-open: later events are lost without an error."""
    with _Watching(through, tmp_path) as watching:
        wait_until("the watch runs", lambda: "configmaps" in proxy.watched())
        assert proxy.silence_watches() == 1
        namespace.apply(CONFIG_MAP)
        with pytest.raises(subprocess.TimeoutExpired):
            watching.process.wait(0.5)
        assert not watching.has_seen("one")


def test_a_watch_expires(proxy: FaultProxy, path: str):
    """An ERROR event of status 410 ends the stream in HTTP's own way."""
    with socket.create_connection(("127.0.0.1", proxy.port)) as connection:
        connection.settimeout(10)
        connection.sendall(f"GET {path}?watch=true HTTP/1.1\r\nHost: here\r\n\r\n".encode())
        wait_until("the watch runs", lambda: "configmaps" in proxy.watched())
        assert proxy.expire_watches() == 1
        said = b""
        while part := connection.recv(4096):
            said += part
    event = json.loads(
        next(line for line in said.splitlines() if line.startswith(b'{"type"') and b"ERROR" in line)
    )
    assert event["object"]["code"] == 410
    assert said.endswith(b"0\r\n\r\n")
