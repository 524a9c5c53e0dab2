"""The first requests on a connection: ApiVersions negotiation and SASL authentication.

ApiVersions falls back to version 0 (KIP-511); SASL uses SaslHandshake 1 and SaslAuthenticate requests
(KIP-152). `security.client_security` provides mechanisms and TLS contexts.
"""

from importlib import metadata

from kafka.protocol.metadata import ApiVersionsRequest
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from mirrorflow_core.errors import AuthenticationFailedError, UnsupportedBrokerError
from mirrorflow_kafka.client.handshake_types import Peer, SecurityLike
from mirrorflow_kafka.client.versions import Versions, choose_version, versions_of

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
