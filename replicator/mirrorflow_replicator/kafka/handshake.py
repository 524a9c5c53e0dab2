"""What is said before the first request of ours: which versions the broker knows, and who we are.

ApiVersions falls back to version 0 as KIP-511 says; SASL goes in SaslHandshake 1 and SaslAuthenticate frames (KIP-152).
Mechanisms and TLS contexts are `kafka.security`'s.
"""

from importlib import metadata

from kafka.protocol.metadata import ApiVersionsRequest
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from mirrorflow_replicator.errors import AuthenticationFailedError, UnsupportedBrokerError
from mirrorflow_replicator.kafka.roles import Peer, SecurityLike
from mirrorflow_replicator.kafka.versions import Versions, choose_version, versions_of

HANDSHAKE_TIMEOUT_S = 30.0  # of one request; `open_connection` bounds the whole
# SCRAM takes two, GSSAPI three; a broker that goes on asking is not authenticating.
SASL_ROUNDS_MAX = 10
UNSUPPORTED_VERSION = 35
UNSUPPORTED_SASL_MECHANISM = 33
_API_VERSIONS_KEY = 18
_HANDSHAKE_VERSION = 1
_VERSION = metadata.version("mirrorflow")


async def negotiate(peer: Peer) -> Versions:
    """The versions that the broker takes, by api key."""
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
        # The refusal is in version 0 and may name what the broker takes; older brokers name nothing.
        _, highest = versions_of(response).get(_API_VERSIONS_KEY, (0, 0))
        version = highest if highest < version else 0


async def authenticate(peer: Peer, security: SecurityLike) -> float:
    """Say who we are. Returns the session's lifetime in seconds, 0 for unlimited.

    Raises AuthenticationFailedError with the broker's own words.
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
