"""One OAUTHBEARER token for all connections of a client, and when a new one is due (KIP-255).

A token is kept until Java's refresh window opens, then fetched by whoever needs it next: no background task. While it is
still valid, a failing source does no harm. Where tokens come from is `token_endpoint`'s and `token_sources`'.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from mirrorflow_replicator.errors import AuthenticationFailedError
from mirrorflow_replicator.kafka.tokens import Token, TokenError

# ExpiringCredentialRefreshingLogin waits this long after a failed refresh while the old token is still valid.
REFRESH_RETRY_S = 10.0
# A stalled endpoint must not hold up re-authentication, which closes connections when late, while the old token serves.
REFRESH_WAIT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshWindow:
    """`sasl.login.refresh.*`: when in a token's life the next one is fetched."""

    factor: float = 0.8
    jitter: float = 0.05
    min_period_s: float = 60.0
    buffer_s: float = 300.0

    def due_at(self, token: Token, chance: float) -> float:
        """When to refresh *token*; *chance* is from 0 to 1. As ExpiringCredentialRefreshingLogin.refreshMs."""
        if token.expires_at is None:
            return token.begins_at
        life = token.expires_at - token.begins_at
        due = token.begins_at + life * (self.factor + self.jitter * chance)
        # In a life too short for both, neither limit holds.
        if life <= self.min_period_s + self.buffer_s:
            return due
        return max(token.begins_at + self.min_period_s, min(due, token.expires_at - self.buffer_s))


class TokenCache:
    """One token for all connections of a client."""

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
        """The text of a valid token. Raises AuthenticationFailedError, which names *address*, when there is none."""
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
        """Fetch a new token next time."""
        self._token = None
