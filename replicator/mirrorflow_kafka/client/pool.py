"""Opens the connections to one cluster's brokers and keeps them: one per broker, purpose and index.

Opening is one attempt within one timeout: TCP, TLS, version negotiation and authentication. A lost connection is
opened again when it is next requested. Concurrent callers share one attempt. Each failure lengthens the backoff, so
a broker that is down costs one connection attempt per second, however many callers there are.

A cluster is unreachable from the first attempt that fails while no connection is open, until a connection is
opened. A bootstrap address that responds counts only if nothing else is known, because brokers may advertise
unreachable addresses.
"""

import asyncio
import os
import re
import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from mirrorflow_core.backoff import backoff_s
from mirrorflow_core.errors import (
    AuthenticationFailedError,
    ClusterError,
    ConnectionLostError,
    MirrorFlowError,
    UnreachableError,
)
from mirrorflow_core.reports import SideReport
from mirrorflow_kafka.client.connection import Connection
from mirrorflow_kafka.security.client_security import ClientSecurity
from mirrorflow_kafka.security.tls import certificate_name, tls_problem

CONNECT_TIMEOUT_S = 10.0  # Java's socket.connection.setup.timeout.ms
# How long to wait for an address before the next address of the same name is tried in parallel (RFC 8305).
NEXT_ADDRESS_DELAY_S = 0.25
# Java's reconnect.backoff.ms and reconnect.backoff.max.ms.
RECONNECT_BACKOFF_MIN_S = 0.05
RECONNECT_BACKOFF_MAX_S = 1.0
# After this time a connection counts as stable: its loss restarts the backoff instead of extending it.
STEADY_AFTER_S = 5.0
# What `create_connection` raises for an address that the system refuses to look up: a host with an empty or too long label
# (UnicodeError) or a null character (ValueError), a port beyond 65535 (OverflowError, which asyncio turns into IndexError).
INVALID_ADDRESS = (ValueError, OverflowError, IndexError)


class Reachability:
    """The reachability of one cluster. *is_open* returns whether a connection to one of its brokers is open."""

    def __init__(self, *, is_open: Callable[[], bool], clock: Callable[[], float] = time.monotonic) -> None:
        self._is_open = is_open
        self._clock = clock
        self._reason: str | None = None  # why it is unreachable; "" if reachable; None if unknown
        self._since_s = clock()
        self._message = ""

    def opened(self, *, is_bootstrap: bool) -> None:
        """Notes that a connection was opened, to a broker or to a bootstrap address."""
        if self._reason is None or (self._reason and not is_bootstrap):
            self._reason, self._since_s, self._message = "", self._clock(), ""

    def failed(self, error: ClusterError) -> None:
        """Notes that a connection attempt failed."""
        if self._is_open():
            return
        if not self._reason:
            self._since_s = self._clock()
        # A broker that refuses us says more than one that does not answer.
        if self._reason != AuthenticationFailedError.reason or error.reason == self._reason:
            self._reason, self._message = error.reason, str(error)

    def report(self, cluster_id: str | None) -> SideReport:
        """Returns the current state, and since when it holds."""
        return SideReport(
            reason=self._reason, since_s=self._since_s, cluster_id=cluster_id, message=self._message
        )


async def open_connection(
    host: str,
    port: int,
    *,
    client_id: str,
    security: ClientSecurity | None,
    cluster: str,
    node_id: int = -1,
    timeout_s: float = CONNECT_TIMEOUT_S,
    renew: Callable[[], ClientSecurity | None] | None = None,
) -> Connection:
    """Connects, set up TLS, negotiate versions and authenticate, all within *timeout_s*.

    *security* None means PLAINTEXT. *renew* returns the credentials for re-authentication; without it,
    *security* is used. Raises UnreachableError (refused, no response, unknown host),
    AuthenticationFailedError (TLS or SASL, with the cause), UnsupportedBrokerError.
    """
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if security is not None:
        # Before the broker's time runs: a cloud that does not answer must not be taken for a broker that does not.
        await security.prepare(address)
    connection = Connection(
        cluster=cluster, address=address, node_id=node_id, client_id=client_id, opened_by=security
    )
    try:
        async with asyncio.timeout(timeout_s):
            await _connect(connection, host, port, security)
            await connection.negotiate()
            lifetime_s = 0.0 if security is None else await connection.authenticate(security)
    except TimeoutError:
        connection.close()
        raise UnreachableError(
            cluster=cluster, addresses=address, problem=f"no response within {timeout_s:g} s"
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


def connect_problem(error: OSError | ValueError | OverflowError | IndexError) -> str:
    """Returns the system's words for a failed connection, each once, without asyncio's: `Connection refused`."""
    if not isinstance(error, OSError):
        return "its host name or port is not valid"
    if isinstance(error, socket.gaierror):
        return error.strerror or str(error)
    # asyncio joins the errors of several addresses of one name in a text of this form.
    numbers = (
        [error.errno]
        if error.errno
        else [int(number) for number in re.findall(r"\[Errno (\d+)\]", str(error))]
    )
    return " or ".join(dict.fromkeys(map(os.strerror, numbers))) or str(error)


async def _connect(connection: Connection, host: str, port: int, security: ClientSecurity | None) -> None:
    loop = asyncio.get_running_loop()
    where = {"cluster": connection.cluster, "addresses": connection.address}
    try:
        transport, protocol = await loop.create_connection(
            lambda: connection.frames, host, port, happy_eyeballs_delay=NEXT_ADDRESS_DELAY_S
        )
    except (OSError, *INVALID_ADDRESS) as error:
        raise UnreachableError(problem=connect_problem(error), **where) from error
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
        raise connection.authentication_error("TLS", tls_problem(error)) from error
    assert isinstance(encrypted, asyncio.Transport)
    connection.frames.use(encrypted)


@dataclass(frozen=True, slots=True)
class PoolKey:
    """The key of a connection in the pool."""

    node_id: int
    purpose: str
    index: int


@dataclass(slots=True)
class _Slot:
    connection: Connection | None = None
    opening: asyncio.Task[Connection] | None = None
    failures: int = 0
    opened_at: float = 0.0


class ConnectionPool:
    """Opens connections with *opener*, keeps them, and re-opens them after a loss."""

    def __init__(self, opener: Callable[[PoolKey], Awaitable[Connection]], *, cluster: str) -> None:
        self._opener = opener
        self._cluster = cluster
        self._slots: dict[PoolKey, _Slot] = {}
        self._is_closed = False

    def open_nodes(self, purpose: str) -> set[int]:
        """Returns the node ids with an open connection for *purpose*."""
        return {
            key.node_id
            for key, slot in self._slots.items()
            if key.purpose == purpose and slot.connection is not None and slot.connection.is_open
        }

    def silent_nodes(self, purpose: str, seconds: float) -> set[int]:
        """Returns the node ids whose connection for *purpose* has not answered a request for *seconds*."""
        return {
            key.node_id
            for key, slot in self._slots.items()
            if key.purpose == purpose and slot.connection is not None and slot.connection.waits_for(seconds)
        }

    @property
    def has_open(self) -> bool:
        """Whether any connection is open, for any purpose."""
        return any(slot.connection is not None and slot.connection.is_open for slot in self._slots.values())

    async def get(self, key: PoolKey) -> Connection:
        """Returns the open connection, or opens one. Raises what the opener raises; ConnectionLostError after `close`."""
        slot = self._slots.setdefault(key, _Slot())
        if slot.connection is not None and slot.connection.is_open:
            return slot.connection
        if self._is_closed:
            raise ConnectionLostError(
                cluster=self._cluster, address=f"broker {key.node_id}", problem="we closed it"
            )
        if slot.opening is None or slot.opening.done():
            slot.opening = asyncio.create_task(
                self._open(key, slot), name=f"connect-{self._cluster}-{key.node_id}"
            )
            slot.opening.add_done_callback(retrieve_error)
        return await asyncio.shield(slot.opening)

    async def _open(self, key: PoolKey, slot: _Slot) -> Connection:
        now = asyncio.get_running_loop().time
        if slot.connection is not None:
            slot.failures = 1 if now() - slot.opened_at > STEADY_AFTER_S else slot.failures + 1
            slot.connection = None
        await asyncio.sleep(
            backoff_s(slot.failures, lowest_s=RECONNECT_BACKOFF_MIN_S, highest_s=RECONNECT_BACKOFF_MAX_S)
        )
        try:
            connection = await self._opener(key)
        except MirrorFlowError:
            slot.failures += 1
            raise
        if self._is_closed:
            connection.close()
        slot.connection = connection
        slot.opened_at = now()
        return connection

    async def replace_all_but(self, security: object) -> int:
        """Replaces, one by one, each connection not opened with *security*; returns how many.

        Raises what the opener raises, except UnreachableError; connections not yet replaced stay open.
        """
        count = 0
        for key, slot in tuple(self._slots.items()):
            old = slot.connection
            if old is None or not old.is_open or old.opened_by is security:
                continue
            try:
                connection = await self._opener(key)
            except UnreachableError:
                continue  # no evidence about the secrets; the old connection may be about to fail as well
            if self._is_closed or slot.connection is not old:
                connection.close()  # the old one was lost and re-opened meanwhile, with the new secrets
                continue
            slot.connection = connection
            slot.opened_at = asyncio.get_running_loop().time()
            old.retire()
            count += 1
        return count

    def forgive(self) -> None:
        """Shortens all backoffs to the first step, because the cluster has responded."""
        for slot in self._slots.values():
            slot.failures = min(slot.failures, 1)

    async def close(self) -> None:
        """Closes every connection and cancel every attempt."""
        self._is_closed = True
        openings = [slot.opening for slot in self._slots.values() if slot.opening is not None]
        for opening in openings:
            opening.cancel()
        await asyncio.gather(*openings, return_exceptions=True)
        for slot in self._slots.values():
            if slot.connection is not None:
                slot.connection.close()


def retrieve_error(task: asyncio.Task[Any]) -> None:
    """Retrieves the exception of an abandoned attempt, so that asyncio does not report it."""
    if not task.cancelled():
        task.exception()
