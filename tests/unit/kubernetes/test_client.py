"""The login for blocking requests uses contexts, exec plugins, proxies and TLS as in kubectl."""

import json
import ssl
from pathlib import Path
from typing import Any

import pytest
from kubernetes.stream import ws_client

from mirrorflow_kubernetes.client import connect
from mirrorflow_kubernetes.credentials import KubernetesLoginError

EXEC = "client.authentication.k8s.io/v1"


@pytest.fixture(autouse=True)
def _environment_without_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def _write_kubeconfig(
    path: Path,
    *,
    server: str = "https://kubernetes:6443",
    user: dict[str, object] | None = None,
    **cluster: Any,
) -> None:
    content = {
        "current-context": "first",
        "clusters": [{"name": "cluster", "cluster": {"server": server, **cluster}}],
        "users": [{"name": "user", "user": user or {"token": "secret"}}],
        "contexts": [
            {"name": "first", "context": {"cluster": "cluster", "user": "user"}},
            {"name": "second", "context": {"cluster": "cluster", "user": "user", "namespace": "payments"}},
        ],
    }
    path.write_text(json.dumps(content))


@pytest.fixture
def kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    return tmp_path / "config"


@pytest.mark.parametrize(("context", "namespace"), [(None, "default"), ("second", "payments")])
def test_the_namespace_is_that_of_the_context(kubeconfig: Path, context: str | None, namespace: str) -> None:
    _write_kubeconfig(kubeconfig)

    with connect(context).api:
        assert connect(context).namespace == namespace


def test_the_token_of_an_exec_plugin_is_sent(kubeconfig: Path) -> None:
    credential = {"apiVersion": EXEC, "kind": "ExecCredential", "status": {"token": "of-plugin"}}
    plugin = {"apiVersion": EXEC, "command": "echo", "args": [json.dumps(credential)]}
    _write_kubeconfig(kubeconfig, user={"exec": plugin})

    _, url, headers = connect().request("/version", {"a": "b"})

    assert url == "https://kubernetes:6443/version?a=b"
    assert headers["authorization"] == "Bearer of-plugin"


def test_a_failing_exec_plugin_is_an_error_instead_of_an_anonymous_login(kubeconfig: Path) -> None:
    _write_kubeconfig(kubeconfig, user={"exec": {"apiVersion": EXEC, "command": "false"}})

    with pytest.raises(KubernetesLoginError, match="exec plugin failed"):
        connect()


@pytest.mark.parametrize("content", ["", "[]", "clusters: [", "current-context: here", "contexts: 3"])
def test_an_invalid_kubeconfig_is_an_error(kubeconfig: Path, content: str) -> None:
    kubeconfig.write_text(content)

    with pytest.raises(KubernetesLoginError, match="Cannot log in to Kubernetes with the kubeconfig"):
        connect()


@pytest.mark.parametrize(
    ("server", "cluster", "proxy"),
    [
        ("https://kubernetes:6443", {}, "http://environment:3128"),
        ("https://127.0.0.1:6443", {}, None),
        ("https://127.0.0.1:6443", {"proxy-url": "http://own:3128"}, "http://own:3128"),
    ],
)
def test_the_proxy_of_the_environment_is_not_used_for_loopback_addresses(
    kubeconfig: Path, server: str, cluster: dict[str, Any], proxy: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://environment:3128")
    _write_kubeconfig(kubeconfig, server=server, **cluster)

    assert connect().api.configuration.proxy == proxy


def test_certificates_without_an_authority_key_identifier_are_accepted(kubeconfig: Path) -> None:
    """The chain, the host name and the dates are still verified."""
    _write_kubeconfig(kubeconfig)

    tls = connect().api.rest_client.pool_manager.connection_pool_kw["ssl_context"]

    assert not tls.verify_flags & ssl.VERIFY_X509_STRICT
    assert (tls.check_hostname, tls.verify_mode) == (True, ssl.CERT_REQUIRED)


def test_a_port_of_a_pod_is_reached_through_a_port_forward(
    kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This works in any namespace, with the token of the user."""
    _write_kubeconfig(kubeconfig)
    asked: list[tuple[str, list[tuple[str, str]], str]] = []

    class PortForwardStub:
        def socket(self, port: int) -> str:
            return f"socket to {port}"

    def forward(_: object, _method: str, url: str, **given: Any) -> PortForwardStub:
        asked.append((url, given["query_params"], given["headers"]["authorization"]))
        return PortForwardStub()

    monkeypatch.setattr(ws_client, "portforward_call", forward)

    assert connect().dial("payments", "orders-source-0", 8080) == "socket to 8080"
    url = "https://kubernetes:6443/api/v1/namespaces/payments/pods/orders-source-0/portforward"
    assert asked == [(url, [("ports", "8080")], "Bearer secret")]
