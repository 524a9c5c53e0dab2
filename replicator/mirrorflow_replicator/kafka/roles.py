"""What the handshake uses of others: a connection, a client's security, a SASL conversation.

`connection.Connection`, `security.Security` and the clients of `sasl` fit; tests have smaller ones.
"""

import asyncio
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from mirrorflow_replicator.kafka.versions import Versions


class SaslClientLike(Protocol):
    """One SASL conversation."""

    mechanism: str

    async def first(self) -> bytes:
        """The first token."""

    def receive(self, challenge: bytes) -> bytes | None:
        """The answer to *challenge*; None when the conversation is over."""


class SecurityLike(Protocol):
    """How to encrypt and who to be; see `kafka.security`."""

    @property
    def ssl_context(self) -> ssl.SSLContext | None:
        """None: not encrypted."""

    def sasl_client(self) -> SaslClientLike | None:
        """A new conversation; None: no SASL."""


class Peer(Protocol):
    """What the handshake needs of a connection."""

    cluster: str
    address: str
    versions: Versions

    def send_unauthenticated(
        self, api_key: int, api_version: int, parts: Sequence[bytes], *, flexible: bool
    ) -> asyncio.Future[memoryview]:
        """Send past what waits for authentication."""

    async def exchange(
        self, request: Any, version: int, send: Callable[..., asyncio.Future[memoryview]], *, timeout_s: float
    ) -> Any:
        """Encode, send, decode."""
