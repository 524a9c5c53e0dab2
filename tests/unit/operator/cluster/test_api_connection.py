"""The operator's connection to the API server, and the end of its watches."""

import asyncio
import threading

import kopf
import pytest

from mirrorflow_operator.cluster.cache import Watches
from mirrorflow_operator.cluster.client import connection
from mirrorflow_operator.errors import NoAnswerError
from tests.harness.kafka.processes import wait_until


@pytest.mark.parametrize(
    ("host", "port", "expected"),
    [
        ("127.0.0.1", "443", "https://127.0.0.1:443"),
        ("fd00::1", "6443", "https://[fd00::1]:6443"),
        ("", "443", "https://kubernetes.default.svc"),
    ],
)
def test_a_pod_connects_to_the_api_server_without_dns(
    host: str, port: str, expected: str, monkeypatch: pytest.MonkeyPatch
):
    in_pod = kopf.ConnectionInfo(server="https://kubernetes.default.svc", token="secret")
    monkeypatch.setattr(kopf, "login_with_service_account", lambda **_: in_pod)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)

    api_server = connection()

    assert (api_server.server, api_server.token) == (expected, "secret")


def test_watches_are_not_alive_if_kopf_ends(monkeypatch: pytest.MonkeyPatch):
    """kopf ends if the API server does not respond to its first requests. Its thread still waits for the stop flag."""

    async def failing_kopf(*, stop_flag: threading.Event, **_: object) -> None:
        asyncio.get_running_loop().run_in_executor(None, stop_flag.wait)
        raise NoAnswerError("GET /apis", "no answer")

    async def watch() -> None:
        watches = Watches(namespaces=(), loop=asyncio.get_running_loop(), on_event=lambda *_: None)
        watches.start()
        try:
            await asyncio.to_thread(wait_until, "the watches have ended", lambda: not watches.alive)
        finally:
            await watches.stop()

    monkeypatch.setattr(kopf, "operator", failing_kopf)
    asyncio.run(watch())
