"""OAUTHBEARER tokens: where they come from, and one cached token for all connections of a client (KIP-255).

Sources are an endpoint, a file (KIP-768), or unsigned tokens made here. The endpoint serves the OAuth client credentials grant
(RFC 6749, 4.4; KIP-768, KIP-1139), retried as in Java. The token itself is not validated; brokers do that.

A token is used until Java's refresh window opens; the next caller then fetches a new one, without a background task. While the
token is valid, a failing source does no harm. `security.oauth_settings` chooses source and window.
"""

import asyncio
import base64
import json
import random
import re
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from urllib.parse import quote_plus

from mirrorflow_core.errors import AuthenticationFailedError
from mirrorflow_kafka.security.identity_requests import (
    DEFAULT_LIMITS,
    FORM,
    TOKEN_BYTES_MAX,
    IdentityRequest,
    RequestLimits,
    TokenError,
    is_final,
    send,
    shown_url,
)
from mirrorflow_kafka.security.jwt_claims import json_object, jwt_claims, to_base64url

_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")  # RFC 6750, b64token: nothing that could end the SASL message
_ENTRA_CODE = re.compile(r"AADSTS\d{1,9}")  # Entra says why in a text that begins with it
_ERROR_CODE = re.compile(r"[a-z_]{1,40}")  # RFC 6749, 5.2
# ExpiringCredentialRefreshingLogin waits this long after a failed refresh while the old token is still valid.
REFRESH_RETRY_S = 10.0
# A stalled endpoint must not delay re-authentication, which closes connections when late, while the old token
# is valid.
REFRESH_WAIT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A bearer token and its lifetime, in seconds since 1970; `expires_at` None means unknown."""

    text: str = field(repr=False)
    begins_at: float
    expires_at: float | None


class TokenSource(Protocol):
    """A source of tokens."""

    async def fetch(self) -> Token:
        """Returns a new token. Raises TokenError."""


def read_token(text: str, *, origin: str, expires_in_s: float | None = None) -> Token:
    """Returns the token in *text*; its lifetime is from its JWT claims, or else from *expires_in_s*. Raises TokenError."""
    if not _TOKEN.fullmatch(text):
        raise TokenError(f"{origin} returned an invalid bearer token")
    claims = jwt_claims(text)
    now = time.time()
    begins, expires = claims.get("iat"), claims.get("exp")
    begins_at = float(begins) if isinstance(begins, int | float) and begins <= now else now
    if isinstance(expires, int | float):
        return Token(text=text, begins_at=begins_at, expires_at=float(expires))
    return Token(text=text, begins_at=now, expires_at=None if expires_in_s is None else now + expires_in_s)


def read_token_response(status: int, body: bytes, *, endpoint: str) -> Token:
    """Returns the token in the response of an OAuth token endpoint (RFC 6749, 5). Raises TokenError with its error code."""
    fields = json_object(body)
    if status != 200:
        code = str(fields.get("error", ""))
        shown = f" {code}" if _ERROR_CODE.fullmatch(code) else ""
        if entra_code := _ENTRA_CODE.search(str(fields.get("error_description", ""))):
            shown += f" {entra_code[0]}"
        raise TokenError(f"{endpoint} returned HTTP {status}{shown}", final=is_final(status))
    text = fields.get("access_token") or fields.get("id_token")
    if not isinstance(text, str):
        raise TokenError(f"{endpoint} returned a response without an access_token")
    seconds = fields.get("expires_in")
    return read_token(
        text, origin=endpoint, expires_in_s=seconds if isinstance(seconds, int | float) else None
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCredentials:
    """The client credentials grant at `url`."""

    url: str
    client_id: str = field(repr=False)
    client_secret: str = field(repr=False)
    scope: str | None = None
    header_urlencode: bool = False
    context: ssl.SSLContext | None = field(default=None, repr=False)
    limits: RequestLimits = DEFAULT_LIMITS

    async def fetch(self) -> Token:
        """Returns a new token; retries unless the error is final. Raises TokenError."""
        return await self.limits.retried(self._request_token)

    async def _request_token(self) -> Token:
        response = await send(self._request(), self.limits)
        return read_token_response(response.status, response.body, endpoint=shown_url(self.url))

    def _request(self) -> IdentityRequest:
        pair = [self.client_id, self.client_secret]
        if self.header_urlencode:
            pair = [quote_plus(word) for word in pair]
        body = "grant_type=client_credentials" + (
            "" if self.scope is None else f"&scope={quote_plus(self.scope)}"
        )
        headers = {
            "Accept": "application/json",
            "Authorization": "Basic " + base64.b64encode(":".join(pair).encode()).decode(),
            "Cache-Control": "no-cache",
            "Content-Type": FORM,
        }
        return IdentityRequest(
            url=self.url, method="POST", headers=headers, body=body.encode(), context=self.context
        )


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
        parts = [to_base64url(json.dumps(part).encode()) for part in ({"alg": "none"}, claims)]
        return Token(text=".".join(parts) + ".", begins_at=now, expires_at=now + self.lifetime_s)


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
