"""The operator handles missing, refused, replaced and slow credentials."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web
from kubernetes.aio.client.configuration import Configuration

from mirrorflow_kubernetes.async_login import ApiServerLogin
from mirrorflow_kubernetes.credentials import KubernetesLoginError
from mirrorflow_operator.cluster import client as client_module
from mirrorflow_operator.cluster.client import Client
from mirrorflow_operator.errors import ForbiddenError, NoResponseError
from mirrorflow_operator.metrics import Metrics
from tests.harness.kubernetes.authority import Authority


class ApiServerStub:
    """An API server that accepts only the token *accepted*."""

    def __init__(self, accepted: str = "") -> None:
        self.accepted = accepted
        self.suffix = ""  # more members of each response
        self.port = 0

    async def start(self, tls: ssl.SSLContext | None = None) -> web.AppRunner:
        application = web.Application()
        application.router.add_get("/version", self._version)
        runner = web.AppRunner(application)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", self.port, ssl_context=tls)
        await site.start()
        self.port = runner.addresses[0][1]
        return runner

    async def _version(self, request: web.Request) -> web.Response:
        is_known = self.accepted in request.headers.get("Authorization", "")
        text = '{"message": "Unauthorized"' + self.suffix + "}"
        return web.Response(text=text, content_type="application/json", status=200 if is_known else 401)


class LoginStub:
    """A login function that returns a new token for each call and counts the calls."""

    def __init__(self, server: ApiServerStub) -> None:
        self._server = server
        self.count = 0

    async def __call__(self) -> ApiServerLogin:
        self.count += 1
        count = self.count
        await asyncio.sleep(0)
        url = f"http://127.0.0.1:{self._server.port}"
        return ApiServerLogin(Configuration(host=url, api_key={"BearerToken": f"Bearer token-{count}"}))


def _run_with(server: ApiServerStub, use: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        runner = await server.start()
        try:
            await use()
        finally:
            await runner.cleanup()

    asyncio.run(run())


def test_a_response_that_is_nested_too_deeply_is_no_response() -> None:
    """It is an ordinary error of one request, not one that ends the operator."""
    server = ApiServerStub(accepted="token")
    server.suffix = ', "a": ' + 50_000 * "[" + 50_000 * "]"

    async def use() -> None:
        client = Client(LoginStub(server), Metrics())
        with pytest.raises(NoResponseError):
            await client.get("/version")
        await client.close()

    _run_with(server, use)


def test_concurrent_requests_share_one_login() -> None:
    server = ApiServerStub()
    login = LoginStub(server)

    async def use() -> None:
        client = Client(login, Metrics())
        await asyncio.gather(*(client.get("/version") for _ in range(5)))
        await client.close()

    _run_with(server, use)

    assert login.count == 1


def test_a_refused_token_causes_one_new_login() -> None:
    server = ApiServerStub(accepted="token-2")
    login = LoginStub(server)

    async def use() -> None:
        client = Client(login, Metrics())
        errors = await asyncio.gather(*(client.get("/version") for _ in range(3)), return_exceptions=True)
        assert all(isinstance(error, ForbiddenError) for error in errors)
        await client.get("/version")
        await client.close()

    _run_with(server, use)

    assert login.count == 2


def test_a_token_stays_in_use_while_it_cannot_be_renewed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = ApiServerStub(accepted="token-1")
    login = LoginStub(server)
    monkeypatch.setattr(client_module, "CREDENTIALS_AGE_MAX_S", -1.0)

    async def fail(_: ApiServerLogin) -> None:
        raise KubernetesLoginError("the plugin failed")

    monkeypatch.setattr(ApiServerLogin, "refresh", fail)

    async def use() -> None:
        client = Client(login, Metrics())
        await client.get("/version")
        await client.get("/version")
        await client.close()

    _run_with(server, use)

    assert (login.count, "the plugin failed" in caplog.text) == (1, True)


def test_a_login_that_hangs_or_fails_ends_the_request_with_an_error() -> None:
    async def hang() -> ApiServerLogin:
        await asyncio.Event().wait()
        raise AssertionError

    async def fail() -> ApiServerLogin:
        raise KubernetesLoginError("the plugin failed")

    async def use() -> None:
        with pytest.raises(NoResponseError):
            await Client(hang, Metrics()).get("/version", timeout_s=0.01)
        with pytest.raises(NoResponseError, match="the plugin failed"):
            await Client(fail, Metrics()).get("/version")

    asyncio.run(use())


def test_a_replaced_ca_is_read_after_one_failed_request(tmp_path: Path) -> None:
    """The kubelet replaces the content of a pod's ca.crt."""
    ca = tmp_path / "ca.crt"
    authorities = [Authority(tmp_path / name) for name in ("old", "new")]
    server = ApiServerStub()

    async def log_in() -> ApiServerLogin:
        return ApiServerLogin(Configuration(host=f"https://127.0.0.1:{server.port}", ssl_ca_cert=str(ca)))

    async def serve(authority: Authority) -> web.AppRunner:
        identity = authority.server("api", "127.0.0.1")
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(identity.certificate, identity.key)
        return await server.start(tls)

    async def use() -> None:
        client = Client(log_in, Metrics())
        for authority in authorities:
            ca.write_bytes(authority.own.certificate.read_bytes())
            runner = await serve(authority)
            if authority is authorities[1]:
                with pytest.raises(NoResponseError, match="CERTIFICATE_VERIFY_FAILED"):
                    await client.get("/version")
            await client.get("/version")
            await runner.cleanup()
        await client.close()

    asyncio.run(use())
