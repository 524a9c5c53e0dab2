"""OAuth tokens are refreshed in Java's window, shared between connections, and kept while token endpoints fail."""

import asyncio
import base64
import json
import re
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from mirrorflow_core.errors import AuthenticationFailedError
from mirrorflow_kafka.client.pool import open_connection
from mirrorflow_kafka.security.client_security import build_security
from mirrorflow_kafka.security.identity_requests import TOKEN_BYTES_MAX, RequestLimits, TokenError
from mirrorflow_kafka.security.oauth import (
    ClientCredentials,
    RefreshWindow,
    Token,
    TokenCache,
    TokenFile,
    UnsecuredToken,
    read_token,
)
from tests.unit.kafka.certificates import authority, signed

SECRET = "client-s3cret/+"
MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"


def jwt(**claims: object) -> str:
    parts = [
        base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")
        for part in ({"alg": "x"}, claims)
    ]
    return ".".join([*parts, "c2ln"])


@asynccontextmanager
async def token_endpoint(
    respond: Callable[..., Awaitable[object]], context: ssl.SSLContext | None = None
) -> AsyncIterator[int]:
    """Yields the port of a server. All connections are closed at the end."""
    connections: set[asyncio.Task[Any]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        with suppress(asyncio.CancelledError, OSError):
            await respond(reader, writer)
        writer.close()
        with suppress(asyncio.CancelledError, OSError):
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()
        if connections:
            await asyncio.wait(connections, timeout=1)
            for task in connections:
                task.cancel()
            await asyncio.wait(connections, timeout=5)


class TokenServer:
    """Responds to each POST with the next of `responses`, and finally with the last one repeatedly.

    It records the requests.
    """

    def __init__(self, *responses: tuple[int, object]) -> None:
        self.responses = list(responses)
        self.requests: list[str] = []
        self.port = 0

    @asynccontextmanager
    async def running(self, context: ssl.SSLContext | None = None) -> AsyncIterator["TokenServer"]:
        async with token_endpoint(self._respond, context) as self.port:
            yield self

    async def _respond(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        size = next(
            int(line[15:]) for line in head.splitlines() if line.lower().startswith("content-length:")
        )
        self.requests.append(head + (await reader.readexactly(size)).decode())
        status, body = self.responses.pop(0) if len(self.responses) > 1 else self.responses[0]
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        writer.write(
            b"HTTP/1.1 %d X\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % (status, len(data)) + data
        )
        await writer.drain()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/token"


def credentials(url: str, *, limits: RequestLimits | None = None, **changes: object) -> ClientCredentials:
    values = {
        "url": url,
        "client_id": "id:x",
        "client_secret": SECRET,
        "limits": limits or RequestLimits(retry_s=0.001, retry_total_s=0.5),
    }
    return ClientCredentials(**(values | changes))  # type: ignore[arg-type]


def with_server(server: TokenServer, use: Callable[[], Any], context: ssl.SSLContext | None = None):
    """Runs *use* with the running *server* and returns its result."""

    async def run():
        async with server.running(context):
            return await use()

    return asyncio.run(run())


def test_a_token_request_equals_that_of_java():
    """Method, headers and body equal those of HttpAccessTokenRetriever."""
    text = jwt(exp=time.time() + 600)
    server = TokenServer((200, {"access_token": text}))

    token = with_server(server, lambda: credentials(server.url, scope="a b").fetch())

    assert token.text == text
    (requests,) = server.requests
    pair = base64.b64encode(f"id:x:{SECRET}".encode()).decode()
    assert requests.startswith("POST /token HTTP/1.1\r\n")
    assert f"authorization: Basic {pair}\r\n".lower() in requests.lower()
    assert requests.endswith("\r\n\r\ngrant_type=client_credentials&scope=a+b")


def test_credentials_in_the_header_can_be_url_encoded():
    """With sasl.oauthbearer.header.urlencode (KIP-1025), id and secret are encoded separately."""
    server = TokenServer((200, {"access_token": "opaque", "expires_in": 60}))

    token = with_server(server, lambda: credentials(server.url, header_urlencode=True).fetch())

    assert base64.b64encode(b"id%3Ax:client-s3cret%2F%2B").decode() in server.requests[0]
    assert token.expires_at == pytest.approx(time.time() + 60, abs=30)


def test_transient_errors_are_retried():
    """503 and 500 are retried; the third response has the token."""
    server = TokenServer((503, b""), (500, b"<html>"), (200, {"access_token": "t"}))

    assert with_server(server, lambda: credentials(server.url).fetch()).text == "t"
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("response", "expected", "requests"),
    [
        (
            (401, {"error": "invalid_client", "error_description": SECRET}),
            "returned HTTP 401 invalid_client",
            1,
        ),
        ((400, {"error": f"no {SECRET}"}), "returned HTTP 400", 1),
        ((302, b""), "returned HTTP 302", 1),
        ((200, {"token": SECRET}), "without an access_token", 1),
        ((200, b"[]"), "without an access_token", 1),
        ((200, {"access_token": "a\x01auth=b"}), "returned an invalid bearer token", 1),
        ((200, b"x" * (TOKEN_BYTES_MAX + 1)), "more than", 1),
    ],
)
def test_permanent_errors_are_not_retried(response: tuple[int, object], expected: str, requests: int):
    """The error does not show the secret."""
    server = TokenServer(response)

    with pytest.raises(TokenError) as raised:
        with_server(server, lambda: credentials(server.url).fetch())

    assert expected in str(raised.value)
    assert requests == len(server.requests)
    assert SECRET not in str(raised.value) + repr(raised.value)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "tokens..svc"])
def test_the_error_names_an_unreachable_endpoint(address: str):
    """The query is not shown, because it may contain a secret. A host may have an empty label."""
    source = credentials(f"http://{address}/token?key=hidden", limits=RequestLimits(retry_total_s=0))

    with pytest.raises(TokenError, match=rf"http://{re.escape(address)}/token cannot be reached") as raised:
        asyncio.run(source.fetch())
    assert "hidden" not in str(raised.value)


def test_an_unresponsive_endpoint_is_an_error_after_the_read_timeout():
    """sasl.login.read.timeout.ms applies to an endpoint that accepts connections but does not respond."""

    async def run():
        async with token_endpoint(lambda reader, _: reader.read()) as port:
            limits = RequestLimits(read_timeout_s=0.05, retry_total_s=0)
            await credentials(f"http://127.0.0.1:{port}/", limits=limits).fetch()

    with pytest.raises(TokenError, match=r"did not respond within 0\.05 s"):
        asyncio.run(run())


@pytest.mark.parametrize(
    ("lifetime", "random_share", "due"),
    [
        (3600, 0, 2880),
        (3600, 1, 3060),
        (1000, 1, 700),
        (300, 0, 240),
        (361, 0, 61),
        (370, 1, 70),
        (7200, 0, 5760),
    ],
)
def test_the_refresh_window_equals_that_of_java(lifetime: float, random_share: float, due: float):
    """The rules are those of ExpiringCredentialRefreshingLogin. A short lifetime disables buffer and minimum."""
    token = Token(text="t", begins_at=1000, expires_at=1000 + lifetime)

    assert 1000 + due == pytest.approx(RefreshWindow().due_at(token, random_share))


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Source:
    """A source of numbered tokens with a lifetime of 1,000 s. It fails while `broken` is true."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.token_count = 0
        self.broken = False

    async def fetch(self) -> Token:
        await asyncio.sleep(0)
        if self.broken:
            raise TokenError("it is down")
        self.token_count += 1
        return Token(text=f"t{self.token_count}", begins_at=self.clock.now, expires_at=self.clock.now + 1000)


def test_a_token_is_shared_and_refreshed_before_it_expires():
    """Twenty connections use one token; after 80% of its lifetime they get the next one."""
    clock = Clock()
    source = Source(clock)

    async def run():
        cache = TokenCache(source.fetch, cluster="A", window=RefreshWindow(buffer_s=0), now=clock)
        first = await asyncio.gather(*(cache.token(address="b") for _ in range(20)))
        clock.now += 799
        before = await cache.token(address="b")
        clock.now += 51
        after = await cache.token(address="b")
        return {*first}, before, after

    assert asyncio.run(run()) == ({"t1"}, "t1", "t2")


def test_an_endpoint_may_fail_while_the_token_is_valid():
    """The old token is used until it expires. Then the error has the reason."""
    clock = Clock()
    source = Source(clock)

    async def run():
        cache = TokenCache(source.fetch, cluster="A", window=RefreshWindow(), now=clock)
        await cache.token(address="b")
        source.broken = True
        clock.now += 999
        old_token = await cache.token(address="b")
        clock.now += 12
        with pytest.raises(AuthenticationFailedError, match="no token was obtained: it is down"):
            await cache.token(address="b:9092")
        source.broken = False
        return old_token, await cache.token(address="b")

    assert asyncio.run(run()) == ("t1", "t2")


def test_a_stalled_endpoint_does_not_delay_a_valid_token(monkeypatch: pytest.MonkeyPatch):
    """A late token must not delay re-authentication."""
    monkeypatch.setattr("mirrorflow_kafka.security.oauth.REFRESH_WAIT_S", 0.01)
    clock = Clock()
    source = Source(clock)

    async def run():
        cache = TokenCache(source.fetch, cluster="A", window=RefreshWindow(), now=clock)
        await cache.token(address="b")
        clock.now += 900
        cache._fetch = asyncio.Event().wait  # type: ignore[assignment]
        return await cache.token(address="b")

    assert asyncio.run(run()) == "t1"


def test_a_token_that_the_broker_refused_is_not_used_again():
    """The client acknowledges the refusal with one byte (RFC 7628). The next authentication fetches a new token."""
    server = TokenServer((200, {"access_token": "t1", "expires_in": 3600}), (200, {"access_token": "t2"}))

    async def authenticate():
        security = oauth(
            f'clientId="me" clientSecret="{SECRET}" extension_logicalCluster="lkc-1"', server.url
        )
        first = security.sasl_client("b")
        sent = [await first.first()]
        assert first.receive(b'{"status":"invalid_token"}') == b"\x01"
        sent.append(await security.sasl_client("b").first())
        assert security.sasl_client("b").receive(b"") is None
        assert SECRET not in repr(security) + repr(security.sasl.tokens) + repr(first)
        return sent

    assert with_server(server, authenticate) == [
        b"n,,\x01auth=Bearer t1\x01logicalCluster=lkc-1\x01\x01",
        b"n,,\x01auth=Bearer t2\x01logicalCluster=lkc-1\x01\x01",
    ]


def oauth(options: str, url: str, **more: str):
    return build_security(
        {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.jaas.config": f"{MODULE} required {options};",
            "sasl.oauthbearer.token.endpoint.url": url,
            **more,
        },
        cluster="A",
    )


def server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own = signed()
    from mirrorflow_kafka.security.keystores import ClientKey
    from mirrorflow_kafka.security.tls import load_key

    load_key(
        context, ClientKey(key_pem=own.key_pem().encode(), chain_pem=own.pem.encode(), password="", source="")
    )
    return context


def test_the_error_names_an_unresponsive_token_endpoint_instead_of_the_broker():
    """The time limit of the connection, which is shorter here, starts once there is a token."""

    async def run():
        async with token_endpoint(lambda reader, _: reader.read()) as port:
            limits = {"sasl.login.read.timeout.ms": "50", "sasl.login.retry.backoff.max.ms": "0"}
            security = oauth("clientId=me clientSecret=abc", f"http://127.0.0.1:{port}/token", **limits)
            await open_connection(
                "127.0.0.1", 1, client_id="test", security=security, cluster="A", timeout_s=0.001
            )

    with pytest.raises(AuthenticationFailedError, match=r"/token did not respond within"):
        asyncio.run(run())


def test_an_https_endpoint_is_verified_with_the_truststore_of_the_brokers():
    """Host names are checked even if that check is disabled for brokers."""
    server = TokenServer((200, {"access_token": "t"}))
    trust = {"ssl.truststore.certificates": authority().pem, "ssl.endpoint.identification.algorithm": ""}

    async def authenticate():
        security = oauth(
            f"clientId=me clientSecret='{SECRET}'", f"https://localhost:{server.port}/t", **trust
        )
        return await security.sasl_client("b").first()

    assert with_server(server, authenticate, server_context()) == b"n,,\x01auth=Bearer t\x01\x01"


def test_an_endpoint_of_an_unknown_authority_gets_no_secret():
    """The certificate is checked before anything is sent."""
    server = TokenServer((200, {"access_token": "t"}))

    async def authenticate():
        security = oauth("clientId=me clientSecret=abc", f"https://localhost:{server.port}/t")
        await security.sasl_client("b:9092").first()

    with pytest.raises(
        AuthenticationFailedError, match=r"b:9092.*OAUTHBEARER.*certificate of https://localhost"
    ):
        with_server(server, authenticate, server_context())
    assert server.requests == []


def test_a_token_file_is_read_at_each_use(tmp_path: Path):
    """A token without an expiry is read each time, so a rotated file takes effect."""
    path = tmp_path / "to ken"
    path.write_text("one\n")
    security = oauth("", path.as_uri())

    async def authenticate():
        sent = [await security.sasl_client("b").first()]
        path.write_text("two")
        return [*sent, await security.sasl_client("b").first()]

    assert asyncio.run(authenticate()) == [
        b"n,,\x01auth=Bearer one\x01\x01",
        b"n,,\x01auth=Bearer two\x01\x01",
    ]


def test_the_error_names_a_missing_token_file(tmp_path: Path):
    with pytest.raises(TokenError, match="absent cannot be read"):
        asyncio.run(TokenFile(path=str(tmp_path / "absent")).fetch())


def test_an_expired_token_is_not_sent(tmp_path: Path):
    """A token file that has expired is an error before a broker can refuse the token."""
    path = tmp_path / "token"
    path.write_text(jwt(exp=1))

    with pytest.raises(AuthenticationFailedError, match="expired already"):
        asyncio.run(oauth("", path.as_uri()).sasl_client("b").first())


def test_an_unsecured_token_has_the_configured_claims():
    """The options are those of OAuthBearerUnsecuredLoginCallbackHandler. They cause a warning."""
    security = oauth(
        'unsecuredLoginStringClaim_sub="alice" unsecuredLoginNumberClaim_n="2" unsecuredLoginListClaim_l=",a,b"'
        ' unsecuredLoginLifetimeSeconds="60" unsecuredLoginExtension_trace="1"',
        "",
    )
    sent = asyncio.run(security.sasl_client("b").first()).decode()
    payload = sent.split("Bearer ")[1].split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))

    assert (claims["sub"], claims["n"], claims["l"]) == ("alice", 2.0, ["a", "b"])
    assert claims["exp"] - claims["iat"] == 60
    assert claims["iat"] == int(claims["iat"]), "a broker that responds within a millisecond would refuse it"
    assert sent.endswith(".\x01trace=1\x01\x01")
    assert "development only" in " ".join(security.warnings)


def test_the_lifetime_of_a_token_comes_from_the_token_itself():
    """The dates of a JWT override expires_in. A start in the future is replaced by the current time."""
    now = time.time()

    token = read_token(jwt(iat=now + 900, exp=now + 1000), origin="x", expires_in_s=5)

    assert token.expires_at == pytest.approx(now + 1000)
    assert token.begins_at == pytest.approx(now, abs=30)
    assert "Bearer" not in repr(token)
    assert asyncio.run(UnsecuredToken(claims={}).fetch()).expires_at is not None
