"""Caches one OAUTHBEARER token for all connections of a client and refreshes it when due (KIP-255).

A token is used until Java's refresh window opens; the next caller then fetches a new one, without a
background task. While the token is valid, a failing source does no harm. `oauth_tokens`
provides tokens.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from mirrorflow_core.errors import AuthenticationFailedError
from mirrorflow_kafka.security.oauth_tokens import Token, TokenError

# ExpiringCredentialRefreshingLogin waits this long after a failed refresh while the old token is still valid.
REFRESH_RETRY_S = 10.0
# A stalled endpoint must not delay re-authentication, which closes connections when late, while the old token
# is valid.
REFRESH_WAIT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshWindow:
    """When in a token's lifetime the next one is fetched (`sasl.login.refresh.*`)."""

    factor: float = 0.8
    jitter: float = 0.05
    min_period_s: float = 60.0
    buffer_s: float = 300.0

    def due_at(self, token: Token, chance: float) -> float:
        """Return when to refresh *token* (seconds since 1970), as ExpiringCredentialRefreshingLogin.

        As its refreshMs method; *chance* is a random number from 0 to 1 for the jitter.
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
        """Return the text of a valid token.

        Raises AuthenticationFailedError, which names *address*, if there is none.
        """
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
                raise AuthenticationFailedError(
                    cluster=self._cluster,
                    address=address,
                    mechanism="OAUTHBEARER",
                    problem=f"there is no token: {error}",
                ) from None
            if fresh.expires_at is not None and fresh.expires_at <= self._now():
                raise AuthenticationFailedError(
                    cluster=self._cluster,
                    address=address,
                    mechanism="OAUTHBEARER",
                    problem="the token has expired already; check its source and the clock",
                )
            self._token = fresh
            self._due_at = self._window.due_at(fresh, random.random())  # noqa: S311 - spreads load, hides nothing
            return fresh.text

    def forget(self) -> None:
        """Drop the token, so that the next call fetches a new one."""
        self._token = None
