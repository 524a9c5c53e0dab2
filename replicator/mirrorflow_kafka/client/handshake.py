"""The first requests on a connection: ApiVersions negotiation and SASL authentication.

ApiVersions falls back to version 0 (KIP-511); SASL uses SaslHandshake 1 and SaslAuthenticate requests (KIP-152).
`security.client_security` provides mechanisms and TLS contexts. The protocols name what the handshake needs of a
connection and of a client's security; tests have smaller ones.
"""

import asyncio
import ssl
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import Any, Protocol

from kafka.protocol.metadata import ApiVersionsRequest
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from mirrorflow_core.errors import AuthenticationFailedError, UnsupportedBrokerError

Versions = Mapping[int, tuple[int, int]]  # API key -> (lowest, highest) version that the broker supports


def versions_of(response: Any) -> dict[int, tuple[int, int]]:
    """Return the broker's versions from a decoded ApiVersionsResponse."""
    return {int(api.api_key): (int(api.min_version), int(api.max_version)) for api in response.api_keys}


def choose_version(request: Any, versions: Versions, *, cluster: str) -> int:
    """Return the highest version that the request, kafka-python's schema and the broker allow.

    Raises UnsupportedBrokerError if there is none.
    """
    lowest: int = request._min_version or 0  # noqa: SLF001 kafka-python keeps a request's own bounds only there
    highest: int = request.max_version
    if request._max_version is not None:  # noqa: SLF001
        highest = min(highest, request._max_version)  # noqa: SLF001
    feature = request.name.removesuffix("Request")
    known = versions.get(request.API_KEY)
    if known is None:
        raise UnsupportedBrokerError(
            cluster=cluster, feature=feature, needs="a version of Kafka that knows this request"
        )
    lowest, highest = max(lowest, known[0]), min(highest, known[1])
    if lowest > highest:
        raise UnsupportedBrokerError(
            cluster=cluster,
            feature=f"{feature} in a version we know",
            needs=f"a version of Kafka whose {feature} we share (it takes {known[0]} to {known[1]})",
        )
    return highest


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


HANDSHAKE_TIMEOUT_S = 30.0  # per request; `open_connection` limits the whole handshake
# SCRAM takes two rounds, GSSAPI three; a broker that sends more challenges is not authenticating.
SASL_ROUNDS_MAX = 10
UNSUPPORTED_VERSION = 35
UNSUPPORTED_SASL_MECHANISM = 33
_API_VERSIONS_KEY = 18
_HANDSHAKE_VERSION = 1
_VERSION = metadata.version("mirrorflow")


async def negotiate(peer: Peer) -> Versions:
    """Return the request versions that the broker supports, by API key. Raises UnsupportedBrokerError."""
    version = ApiVersionsRequest.max_version
    while True:
        request = ApiVersionsRequest(client_software_name="mirrorflow", client_software_version=_VERSION)
        response = await peer.exchange(
            request, version, peer.send_unauthenticated, timeout_s=HANDSHAKE_TIMEOUT_S
        )
        if not response.error_code:
            return versions_of(response)
        if response.error_code != UNSUPPORTED_VERSION or version == 0:
            raise UnsupportedBrokerError(
                cluster=peer.cluster,
                feature=f"ApiVersions (error {response.error_code})",
                needs="Kafka 0.10 or later",
            )
        # The refusal is in version 0 and may list the supported versions; older brokers list none.
        _, highest = versions_of(response).get(_API_VERSIONS_KEY, (0, 0))
        version = highest if highest < version else 0


async def authenticate(peer: Peer, security: SecurityLike) -> float:
    """Authenticate with SASL, if *security* uses it; return the session lifetime in seconds, 0 for unlimited.

    Raises AuthenticationFailedError with the broker's own message.
    """
    client = security.sasl_client()
    if client is None:
        return 0.0
    request = SaslHandshakeRequest(mechanism=client.mechanism, min_version=_HANDSHAKE_VERSION)
    version = choose_version(request, peer.versions, cluster=peer.cluster)
    response = await peer.exchange(request, version, peer.send_unauthenticated, timeout_s=HANDSHAKE_TIMEOUT_S)
    if response.error_code:
        offered = ", ".join(response.mechanisms or ()) or "none"
        problem = f"error {response.error_code} to the handshake"
        if response.error_code == UNSUPPORTED_SASL_MECHANISM:
            problem = f"the listener offers {offered}; set sasl.mechanism"
        raise _refused(peer, client.mechanism, problem)
    token: bytes | None = await client.first()
    lifetime_ms = 0
    for _ in range(SASL_ROUNDS_MAX):
        if token is None:
            return lifetime_ms / 1000
        request = SaslAuthenticateRequest(auth_bytes=token)
        version = choose_version(request, peer.versions, cluster=peer.cluster)
        response = await peer.exchange(
            request, version, peer.send_unauthenticated, timeout_s=HANDSHAKE_TIMEOUT_S
        )
        if response.error_code:
            problem = response.error_message or f"error {response.error_code}"
            raise _refused(peer, client.mechanism, problem.rstrip("."))
        lifetime_ms = getattr(response, "session_lifetime_ms", 0) or 0
        token = client.receive(bytes(response.auth_bytes or b""))
    raise _refused(peer, client.mechanism, f"the conversation has not ended after {SASL_ROUNDS_MAX} rounds")


def _refused(peer: Peer, mechanism: str, problem: str) -> AuthenticationFailedError:
    return AuthenticationFailedError(
        cluster=peer.cluster, address=peer.address, mechanism=mechanism, problem=problem
    )
