"""The login to the API server uses a kubeconfig as in kubectl, or the ServiceAccount of the pod."""

import asyncio
import json
from pathlib import Path

import pytest
from kubernetes.aio.config import incluster_config

from mirrorflow_kubernetes.async_login import log_in
from mirrorflow_kubernetes.credentials import KubernetesLoginError
from mirrorflow_operator.cluster.login import for_kopf

CONNECTIONS = 1
PAST, FUTURE = "2001-01-01T00:00:00Z", "2099-01-01T00:00:00Z"


def _kubeconfig(folder: Path, user: dict[str, object]) -> Path:
    file = folder / "config"
    cluster = {"server": "https://kubernetes:6443", "proxy-url": "http://proxy:3128"}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "second",
        "clusters": [
            {"name": "first", "cluster": {"server": "https://first:6443"}},
            {"name": "second", "cluster": cluster},
        ],
        "users": [{"name": "user", "user": user}],
        "contexts": [
            {"name": name, "context": {"cluster": name, "user": "user"}} for name in ("first", "second")
        ],
    }
    file.write_text(json.dumps(content))
    return file


def _exec_plugin(folder: Path, expires: str) -> dict[str, object]:
    """Writes an exec plugin whose token contains the number of its runs."""
    plugin, runs = folder / "plugin", folder / "runs"
    status = f'{{"token":"run-$(wc -l < {runs})","expirationTimestamp":"{expires}"}}'
    plugin.write_text(
        f"#!/bin/sh\necho >> {runs}\n"
        f"cat <<END\n"
        f'{{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{status}}}\n'
        f"END\n"
    )
    plugin.chmod(0o700)
    return {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin)}}


@pytest.mark.parametrize(("expires", "refreshed"), [(FUTURE, "run-1"), (PAST, "run-2")])
def test_an_exec_plugin_runs_again_after_its_token_has_expired(
    expires: str, refreshed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(_kubeconfig(tmp_path, _exec_plugin(tmp_path, expires))))

    async def headers() -> list[dict[str, str]]:
        login = await log_in(connections_max=CONNECTIONS)
        first = await login.headers()
        await login.refresh()
        return [first, await login.headers()]

    assert asyncio.run(headers()) == [
        {"Authorization": "Bearer run-1"},
        {"Authorization": f"Bearer {refreshed}"},
    ]


def test_the_current_context_and_its_proxy_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(_kubeconfig(tmp_path, {"token": "secret"})))

    login = asyncio.run(log_in(connections_max=CONNECTIONS))
    watches = asyncio.run(for_kopf(login))

    assert (login.configuration.host, login.configuration.proxy) == (
        "https://kubernetes:6443",
        "http://proxy:3128",
    )
    assert (watches.server, watches.proxy_url) == ("https://kubernetes:6443", "http://proxy:3128")
    assert watches.as_http_headers() == {"Authorization": "Bearer secret"}


@pytest.mark.parametrize(
    ("server", "is_trusted"), [("https://kubernetes:6443", True), ("https://127.0.0.1:6443", False)]
)
def test_proxy_of_the_environment_is_not_used_for_this_machine(
    server: str, *, is_trusted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = _kubeconfig(tmp_path, {"token": "secret"})
    content = file.read_text().replace("https://kubernetes:6443", server).replace("proxy-url", "comment")
    file.write_text(content)
    monkeypatch.setenv("KUBECONFIG", str(file))

    login = asyncio.run(log_in(connections_max=CONNECTIONS))

    assert asyncio.run(for_kopf(login)).trust_env is is_trusted


@pytest.mark.parametrize(
    ("host", "port", "expected"),
    [("127.0.0.1", "443", "https://127.0.0.1:443"), ("fd00::1", "6443", "https://[fd00::1]:6443")],
)
def test_a_pod_connects_to_the_api_server_without_dns(
    host: str, port: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SERVICE_TOKEN_FILENAME", "SERVICE_CERT_FILENAME"):
        (tmp_path / name).write_text("secret\n")
        monkeypatch.setattr(incluster_config, name, str(tmp_path / name))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)

    async def host_and_headers() -> tuple[str, dict[str, str]]:
        login = await log_in(connections_max=CONNECTIONS)
        return login.configuration.host, (await for_kopf(login)).as_http_headers()

    assert asyncio.run(host_and_headers()) == (expected, {"Authorization": "bearer secret"})


@pytest.mark.parametrize("file", ["", "/nowhere/config"])
def test_the_error_for_missing_credentials_names_the_kubeconfig(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", file)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)

    with pytest.raises(KubernetesLoginError, match=f"{file or 'without a kubeconfig'}.*KUBECONFIG"):
        asyncio.run(log_in(connections_max=CONNECTIONS))


def test_the_default_kubeconfig_is_used_without_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".kube").mkdir()
    _kubeconfig(tmp_path / ".kube", {"token": "secret"})
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)

    assert asyncio.run(log_in(connections_max=CONNECTIONS)).configuration.host == "https://kubernetes:6443"


def test_a_failing_exec_plugin_is_an_error_instead_of_an_anonymous_login(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plugin: dict[str, object] = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "sh",
        "args": ["-c", "echo no >&2; exit 3"],
    }
    monkeypatch.setenv("KUBECONFIG", str(_kubeconfig(tmp_path, {"exec": plugin})))

    with pytest.raises(KubernetesLoginError, match="exec plugin failed"):
        asyncio.run(log_in(connections_max=CONNECTIONS))

    assert "exec: process returned 3" in caplog.text


@pytest.mark.parametrize("content", ["", "[]", "clusters: [", "current-context: here", "contexts: 3"])
def test_an_invalid_kubeconfig_is_an_error(
    content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config").write_text(content)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))

    with pytest.raises(KubernetesLoginError, match="Cannot log in to Kubernetes with the kubeconfig"):
        asyncio.run(log_in(connections_max=CONNECTIONS))


def test_a_socks_proxy_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = _kubeconfig(tmp_path, {"token": "secret"})
    file.write_text(file.read_text().replace("http://proxy:3128", "socks5://proxy:1080"))
    monkeypatch.setenv("KUBECONFIG", str(file))

    with pytest.raises(KubernetesLoginError, match="socks5://proxy:1080 is not a proxy of http or https"):
        asyncio.run(log_in(connections_max=CONNECTIONS))


def test_a_new_certificate_of_a_plugin_changes_the_endpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plugin may return a certificate instead of a token. Connections with different certificates are separate."""
    counter = tmp_path / "runs"
    status = f'{{"clientCertificateData":"certificate-$(wc -l < {counter})","clientKeyData":"key"}}'
    plugin = tmp_path / "plugin"
    plugin.write_text(
        f"#!/bin/sh\necho >> {counter}\ncat <<END\n"
        f'{{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{status}}}\nEND\n'
    )
    plugin.chmod(0o700)
    user: dict[str, object] = {
        "exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin)}
    }
    monkeypatch.setenv("KUBECONFIG", str(_kubeconfig(tmp_path, user)))

    async def certificates() -> list[str | None]:
        login = await log_in(connections_max=CONNECTIONS)
        first, file = login.endpoint, login.configuration.cert_file
        await login.refresh()
        assert login.endpoint != first
        return [file, login.configuration.cert_file]

    contents = [Path(str(file)).read_text() for file in asyncio.run(certificates())]
    assert contents == ["certificate-1", "certificate-2"]
