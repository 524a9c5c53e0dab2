"""The interfaces that the handshake needs: a connection, a client's security, a SASL exchange.

`connection.Connection`, `client_security.ClientSecurity` and the clients of `security.sasl` implement them;
tests have smaller ones.
"""

import asyncio
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from mirrorflow_kafka.client.versions import Versions


class SaslClientLike(Protocol):
    """The client side of one SASL exchange."""

    mechanism: str

    async def first(self) -> bytes:
        """Return the first token."""

    def receive(self, challenge: bytes) -> bytes | None:
        """Return the response to *challenge*; None when the exchange is complete."""


class SecurityLike(Protocol):
    """The TLS context and SASL credentials of a client; see `security.client_security`."""

    @property
    def ssl_context(self) -> ssl.SSLContext | None:
        """The TLS context; None means no encryption."""

    def sasl_client(self) -> SaslClientLike | None:
        """Return a new SASL exchange; None means no SASL."""


class Peer(Protocol):
    """The part of a connection that the handshake uses."""

    cluster: str
    address: str
    versions: Versions

    def send_unauthenticated(
        self, api_key: int, api_version: int, parts: Sequence[bytes], *, flexible: bool
    ) -> asyncio.Future[memoryview]:
        """Send ahead of requests that wait for authentication."""

    async def exchange(
        self, request: Any, version: int, send: Callable[..., asyncio.Future[memoryview]], *, timeout_s: float
    ) -> Any:
        """Encode and send *request*; return the decoded response."""
