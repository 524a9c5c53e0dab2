"""OAUTHBEARER tokens: where they come from, and one cached token for all connections of a client (KIP-255).

Sources are an endpoint, a file (KIP-768), or unsigned tokens made here. The endpoint serves the OAuth client credentials grant
(RFC 6749, 4.4; KIP-768, KIP-1139), retried as in Java. Redirects are not followed, because they would send the secret elsewhere.
No error shows the secret or the endpoint's query. The token itself is not validated; brokers do that.

A token is used until Java's refresh window opens; the next caller then fetches a new one, without a background task. While the
token is valid, a failing source does no harm. `security.oauth_settings` chooses source and window.
"""

import asyncio
import base64
import binascii
import json
import random
import re
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote_plus, urlsplit

from mirrorflow_core.backoff import Backoff
from mirrorflow_core.errors import AuthenticationFailedError
from mirrorflow_kafka.security.tls import certificate_name

# A token with a hundred roles is 8 KiB; anything above this limit is not a token.
TOKEN_BYTES_MAX = 1 << 20
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")  # RFC 6750, b64token: nothing that could end the SASL message
Request = tuple[str, list[tuple[str, str]], bytes]  # target, headers, body
# HttpAccessTokenRetriever does not retry these, because they are caused by settings and are not transient.
_FINAL_STATUSES = frozenset({400, 401, 402, 403, 404, 405, 406, 407, 409, 410, 411, 412, 413, 414, 415, 505})
_ERROR_CODE = re.compile(r"[a-z_]{1,40}")  # RFC 6749, 5.2
# ExpiringCredentialRefreshingLogin waits this long after a failed refresh while the old token is still valid.
REFRESH_RETRY_S = 10.0
# A stalled endpoint must not delay re-authentication, which closes connections when late, while the old token
# is valid.
REFRESH_WAIT_S = 5.0


class TokenError(Exception):
    """Raised if no token was obtained; the message holds no secret. `final` means that a retry would not help."""

    def __init__(self, problem: str, *, final: bool = True) -> None:
        self.final = final
        super().__init__(problem)


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A bearer token and its lifetime, in seconds since 1970; `expires_at` None means unknown."""

    text: str = field(repr=False)
    begins_at: float
    expires_at: float | None


def read_token(text: str, *, origin: str, expires_in_s: float | None = None) -> Token:
    """Returns the token in *text*; its lifetime is from its JWT claims, or else from *expires_in_s*. Raises TokenError."""
    if not _TOKEN.fullmatch(text):
        raise TokenError(f"{origin} returned an invalid bearer token")
    claims = _claims(text)
    now = time.time()
    begins, expires = claims.get("iat"), claims.get("exp")
    begins_at = float(begins) if isinstance(begins, int | float) and begins <= now else now
    if isinstance(expires, int | float):
        return Token(text=text, begins_at=begins_at, expires_at=float(expires))
    return Token(text=text, begins_at=now, expires_at=None if expires_in_s is None else now + expires_in_s)


def _claims(text: str) -> dict[str, object]:
    parts = text.split(".")
    if len(parts) != 3:
        return {}
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, binascii.Error):
        return {}
    return claims if isinstance(claims, dict) else {}


async def _exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: Request, endpoint: str
) -> tuple[int, bytes]:
    """Sends one POST and reads the whole response."""
    # Only for this kind of token.
    import h11  # noqa: PLC0415

    from mirrorflow_kafka.client.http_exchange import LongResponseError, exchange  # noqa: PLC0415

    target, headers, body = request
    try:
        head = h11.Request(method="POST", target=target, headers=headers)
        found = await exchange(reader, writer, head, body, bytes_max=TOKEN_BYTES_MAX)
    except LongResponseError:
        raise TokenError(f"{endpoint} returned more than {TOKEN_BYTES_MAX} bytes") from None
    except h11.ProtocolError:
        raise TokenError(
            f"{endpoint} returned an invalid HTTP response, or a credential has characters that HTTP does not allow",
            final=False,
        ) from None
    return found.status, found.body


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCredentials:
    """The client credentials grant at `url`. `retry_total_s` limits all attempts (`sasl.login.retry.backoff.max.ms`)."""

    url: str
    client_id: str = field(repr=False)
    client_secret: str = field(repr=False)
    scope: str = ""
    header_urlencode: bool = False
    context: ssl.SSLContext | None = field(default=None, repr=False)
    connect_timeout_s: float = 10.0
    read_timeout_s: float = 30.0
    retry_s: float = 0.1
    retry_total_s: float = 10.0

    @property
    def endpoint(self) -> str:
        """The endpoint for error messages, without query and user part, which could hold a secret."""
        url = urlsplit(self.url)
        port = f":{url.port}" if url.port else ""
        return f"{url.scheme}://{url.hostname}{port}{url.path}"

    async def fetch(self) -> Token:
        """Returns a new token; retries for at most `retry_total_s` unless the error is final. Raises TokenError."""
        ends_at = time.monotonic() + self.retry_total_s
        attempts = Backoff(min_s=self.retry_s, max_s=self.retry_total_s)
        async for _ in attempts:
            try:
                return await self._request_token()
            except TokenError as error:
                if error.final or time.monotonic() + attempts.next_s > ends_at:
                    raise
        raise AssertionError("the last attempt raises")

    async def _request_token(self) -> Token:
        status, body = await self._post()
        try:
            response = json.loads(body)
        except ValueError:
            response = None
        fields = response if isinstance(response, dict) else {}
        if status != 200:
            code = str(fields.get("error", ""))
            shown = f" {code}" if _ERROR_CODE.fullmatch(code) else ""
            raise TokenError(
                f"{self.endpoint} returned HTTP {status}{shown}",
                final=status in _FINAL_STATUSES or status < 400,
            )
        text = fields.get("access_token") or fields.get("id_token")
        if not isinstance(text, str):
            raise TokenError(f"{self.endpoint} returned a response without an access_token")
        seconds = fields.get("expires_in")
        return read_token(
            text, origin=self.endpoint, expires_in_s=seconds if isinstance(seconds, int | float) else None
        )

    async def _post(self) -> tuple[int, bytes]:
        """Sends one request; returns status and body. Errors show `endpoint` instead of the URL."""
        url, endpoint = urlsplit(self.url), self.endpoint
        is_https = url.scheme == "https"
        try:
            async with asyncio.timeout(self.connect_timeout_s):
                reader, writer = await asyncio.open_connection(
                    url.hostname,
                    url.port or (443 if is_https else 80),
                    ssl=self.context if is_https else None,
                    server_hostname=certificate_name(url.hostname) if is_https and self.context else None,
                )
        except TimeoutError:
            raise TokenError(
                f"{endpoint} did not accept a connection within {self.connect_timeout_s:g} s", final=False
            ) from None
        except ssl.SSLCertVerificationError as error:
            raise TokenError(
                f"the TLS certificate of {endpoint} cannot be verified ({error.verify_message})"
            ) from None
        except OSError as error:
            problem = error.strerror or type(error).__name__
            raise TokenError(f"{endpoint} cannot be reached ({problem})", final=False) from None
        try:
            async with asyncio.timeout(self.read_timeout_s):
                return await _exchange(reader, writer, self._request(), endpoint)
        except TimeoutError:
            raise TokenError(
                f"{endpoint} did not respond within {self.read_timeout_s:g} s", final=False
            ) from None
        except OSError:
            raise TokenError(f"{endpoint} closed the connection", final=False) from None
        finally:
            writer.transport.abort()

    def _request(self) -> Request:
        url = urlsplit(self.url)
        pair = [self.client_id, self.client_secret]
        if self.header_urlencode:
            pair = [quote_plus(word) for word in pair]
        body = "grant_type=client_credentials" + (f"&scope={quote_plus(self.scope)}" if self.scope else "")
        headers = [
            ("Host", url.netloc.rpartition("@")[2]),
            ("Accept", "application/json"),
            ("Authorization", "Basic " + base64.b64encode(":".join(pair).encode()).decode()),
            ("Cache-Control", "no-cache"),
            ("Content-Type", "application/x-www-form-urlencoded"),
            ("Content-Length", str(len(body))),
            ("Connection", "close"),
        ]
        target = (url.path or "/") + (f"?{url.query}" if url.query else "")
        return target, headers, body.encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenFile:
    """Reads a token from a file that another program keeps up to date (`file:` URL)."""

    path: str

    async def fetch(self) -> Token:
        """Returns the current token in the file. Raises TokenError."""
        return self._read()

    def _read(self) -> Token:
        try:
            with Path(self.path).open("rb") as file:
                content = file.read(TOKEN_BYTES_MAX)
        except OSError as error:
            raise TokenError(f"the token file {self.path} cannot be read ({error.strerror})") from None
        return read_token(content.decode("ascii", "replace").strip(), origin=f"the token file {self.path}")


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsecuredToken:
    """Makes unsigned tokens for development (RFC 7515, algorithm none)."""

    claims: Mapping[str, object] = field(repr=False)
    lifetime_s: float = 3600.0

    async def fetch(self) -> Token:
        """Returns a token that is valid from now."""
        # Brokers compare `iat` with whole milliseconds, so that the exact time would be in their future for up to one.
        now = int(time.time())
        claims = {"iat": now, "exp": now + self.lifetime_s, **self.claims}
        parts = [_to_base64url(json.dumps(part).encode()) for part in ({"alg": "none"}, claims)]
        return Token(text=".".join(parts) + ".", begins_at=now, expires_at=now + self.lifetime_s)


def _to_base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshWindow:
    """When in a token's lifetime the next one is fetched (`sasl.login.refresh.*`)."""

    factor: float = 0.8
    jitter: float = 0.05
    min_period_s: float = 60.0
    buffer_s: float = 300.0

    def due_at(self, token: Token, chance: float) -> float:
        """Returns when to refresh *token*, in seconds since 1970 (Java's ExpiringCredentialRefreshingLogin.refreshMs).

        *chance* is a random number from 0 to 1 for the jitter.
        """
        if token.expires_at is None:
            return token.begins_at
        life = token.expires_at - token.begins_at
        due = token.begins_at + life * (self.factor + self.jitter * chance)
        # A lifetime too short for both limits uses neither, as in Java.
        if life <= self.min_period_s + self.buffer_s:
            return due
        return max(token.begins_at + self.min_period_s, min(due, token.expires_at - self.buffer_s))


class TokenCache:
    """Holds one token for all connections of a client."""

    def __init__(
        self,
        fetch: Callable[[], Awaitable[Token]],
        *,
        cluster: str,
        window: RefreshWindow,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._fetch = fetch
        self._cluster = cluster
        self._window = window
        self._now = now
        self._lock = asyncio.Lock()
        self._token: Token | None = None
        self._due_at = 0.0

    def __repr__(self) -> str:
        return f"TokenCache(cluster={self._cluster!r})"

    async def token(self, *, address: str) -> str:
        """Returns the text of a valid token. Raises AuthenticationFailedError, which names *address*, if there is none."""
        async with self._lock:  # a hundred connections that open at once need one token
            held = self._token
            if held is not None and self._now() < self._due_at:
                return held.text
            serves = held is not None and held.expires_at is not None and self._now() < held.expires_at
            try:
                async with asyncio.timeout(REFRESH_WAIT_S if serves else None):
                    fresh = await self._fetch()
            except (TokenError, TimeoutError) as error:
                if serves and held is not None:
                    self._due_at = self._now() + REFRESH_RETRY_S
                    return held.text
                raise self._failed(address, f"no token was obtained: {error}") from None
            if fresh.expires_at is not None and fresh.expires_at <= self._now():
                raise self._failed(address, "the token has expired already; check its source and the clock")
            self._token = fresh
            self._due_at = self._window.due_at(fresh, random.random())  # noqa: S311 - spreads load, is no secret
            return fresh.text

    def _failed(self, address: str, problem: str) -> AuthenticationFailedError:
        return AuthenticationFailedError(
            cluster=self._cluster, address=address, mechanism="OAUTHBEARER", problem=problem
        )

    def forget(self) -> None:
        """Drops the token, so that the next call fetches a new one."""
        self._token = None
