"""Opens a connection to a broker: TCP, TLS, version negotiation and authentication, within one timeout.

It makes one attempt; `client.pool` retries. `client.connection` is the open connection, `client.handshake`
sends the first requests.
"""

import asyncio
import ssl
from collections.abc import Callable

from mirrorflow_core.errors import (
    AuthenticationFailedError,
    ConnectionLostError,
    UnreachableError,
)
from mirrorflow_kafka.client.connection import Connection
from mirrorflow_kafka.client.handshake import authenticate, negotiate
from mirrorflow_kafka.client.handshake_types import SecurityLike
from mirrorflow_kafka.security.tls import certificate_name
from mirrorflow_kafka.security.tls_problems import tls_problem

CONNECT_TIMEOUT_S = 10.0  # Java's socket.connection.setup.timeout.ms
# How long to wait for an address before the next address of the same name is tried in parallel (RFC 8305).
NEXT_ADDRESS_DELAY_S = 0.25


async def open_connection(
    host: str,
    port: int,
    *,
    client_id: str,
    security: SecurityLike | None,
    cluster: str,
    node_id: int = -1,
    timeout_s: float = CONNECT_TIMEOUT_S,
    renew: Callable[[], SecurityLike | None] | None = None,
) -> Connection:
    """Connect, set up TLS, negotiate versions and authenticate, all within *timeout_s*.

    *security* None means PLAINTEXT. *renew* returns the credentials for re-authentication; without it,
    *security* is used. Raises UnreachableError (refused, no response, unknown host),
    AuthenticationFailedError (TLS or SASL, with the cause), UnsupportedBrokerError.
    """
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    connection = Connection(cluster=cluster, address=address, node_id=node_id, client_id=client_id)
    connection.opened_by = security
    try:
        async with asyncio.timeout(timeout_s):
            await _connect(connection, host, port, security)
            connection.versions = await negotiate(connection)
            lifetime_s = 0.0 if security is None else await authenticate(connection, security)
    except TimeoutError:
        connection.close()
        raise UnreachableError(
            cluster=cluster, addresses=address, problem=f"no answer within {timeout_s:g} s"
        ) from None
    except BaseException as error:
        if isinstance(error, ConnectionLostError) and connection.lost.done():
            lost = connection.lost.result()
            if isinstance(lost, AuthenticationFailedError):
                raise lost from None
        connection.close()
        raise
    if lifetime_s:
        connection.reauthenticate_before(lifetime_s, renew or (lambda: security))
    return connection


async def _connect(connection: Connection, host: str, port: int, security: SecurityLike | None) -> None:
    loop = asyncio.get_running_loop()
    where = {"cluster": connection.cluster, "addresses": connection.address}
    try:
        transport, protocol = await loop.create_connection(
            lambda: connection.frames, host, port, happy_eyeballs_delay=NEXT_ADDRESS_DELAY_S
        )
    except OSError as error:
        raise UnreachableError(problem=error.strerror or str(error), **where) from error
    if security is None or security.ssl_context is None:
        return
    try:
        # The host name is sent as SNI, and the certificate is checked against it if the context checks host
        # names.
        encrypted = await loop.start_tls(
            transport, protocol, security.ssl_context, server_hostname=certificate_name(host)
        )
    except (ssl.SSLError, ssl.CertificateError, OSError) as error:
        connection.close()
        raise AuthenticationFailedError(
            cluster=connection.cluster,
            address=connection.address,
            mechanism="TLS",
            problem=tls_problem(error),
        ) from error
    assert isinstance(encrypted, asyncio.Transport)
    connection.frames.use(encrypted)
