"""One connection to one broker: version negotiation, SASL authentication, then requests and responses in order.

`send` is for Fetch and Produce and copies no bytes; `call` is for all other requests. When a connection ends,
all requests without a response fail with ConnectionLostError. Nothing is retried here: `client.cluster` and the
partition copiers decide whether a request may be repeated. `client.pool` opens connections.

ApiVersions falls back to version 0 (KIP-511); SASL uses SaslHandshake 1 and SaslAuthenticate requests (KIP-152).
"""

import asyncio
import itertools
import random
import ssl
import struct
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from time import monotonic
from typing import Any, NamedTuple, Protocol

from kafka.protocol.metadata import ApiVersionsRequest
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from mirrorflow_core.errors import (
    AuthenticationFailedError,
    ClusterError,
    ConnectionLostError,
    UnreachableError,
    UnsupportedBrokerError,
)
from mirrorflow_core.wire.error_codes import UNSUPPORTED_VERSION, name_of
from mirrorflow_core.wire.primitives import Cursor
from mirrorflow_kafka.client.frames import FrameError, FrameProtocol
from mirrorflow_kafka.security.client_security import ClientSecurity
from mirrorflow_kafka.security.tls import tls_problem

Versions = Mapping[int, tuple[int, int]]  # API key -> (lowest, highest) version that the broker supports
HANDSHAKE_TIMEOUT_S = 30.0  # per request; `open_connection` limits the whole handshake
# SCRAM takes two rounds, GSSAPI three; a broker that sends more challenges is not authenticating.
SASL_ROUNDS_MAX = 10
UNSUPPORTED_SASL_MECHANISM = 33
ILLEGAL_SASL_STATE = 34
_HANDSHAKE_VERSION = 1
_VERSION = metadata.version("mirrorflow")
# Java's request.timeout.ms is 30 s, and a broker may take all of it for a produce request; the rest covers
# the round trip. A broker that is frozen with the socket open is detected after this time, and after the time that
# its measured rate takes for what is in flight.
RESPONSE_TIMEOUT_S = 40.0
# A throttled response extends the deadline of the next ones (KIP-219), at most by this. With a broker's
# default quota windows throttling lasts about ten seconds, unless one request is many times larger than the
# quota allows.
MUTED_MAX_S = 300.0
# Java re-authenticates at a random 85 to 95 % of the session lifetime, so that connections spread out
# (KIP-368).
REAUTHENTICATE_AT = (0.85, 0.95)
REAUTHENTICATION_TIMEOUT_S = 30.0
# When a replaced connection is closed: later than any response takes, so only a holder that keeps sending is
# cut off.
RETIRED_MAX_S = 60.0
RETIRED_CHECK_S = 0.5
_API_VERSIONS_KEY = 18
Part = bytes | bytearray | memoryview
_HEADER = struct.Struct(">ihhih")  # size, api key, api version, correlation id, length of the client id
_CORRELATION = struct.Struct(">i")
_generations = itertools.count(1)


def _versions_of(response: Any) -> dict[int, tuple[int, int]]:
    return {int(api.api_key): (int(api.min_version), int(api.max_version)) for api in response.api_keys}


def _after_tags(frame: memoryview, index: int) -> int:
    """Returns the index after the tagged fields at *index* (KIP-482); brokers send none in headers today."""
    cursor = Cursor(frame, flexible=True, index=index)
    cursor.tags()
    return cursor.index


def choose_version(request: Any, versions: Versions, *, cluster: str) -> int:
    """Returns the highest version that the request, kafka-python's schema and the broker allow.

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
    lowest_known, highest_known = lowest, highest
    lowest, highest = max(lowest, known[0]), min(highest, known[1])
    if lowest > highest:
        raise UnsupportedBrokerError(
            cluster=cluster,
            feature=f"{feature} in versions {lowest_known} to {highest_known}",
            needs=f"another version of Kafka (the broker supports versions {known[0]} to {known[1]} of {feature} only)",
        )
    return highest


class PendingResponse(Protocol):
    """Receives a response synchronously on arrival: a future, or an object that bypasses the event loop."""

    def done(self) -> bool:
        """Returns whether the response is no longer needed."""

    def set_result(self, result: memoryview, /) -> None:
        """Receives the body after the response header."""

    def set_exception(self, exception: ClusterError, /) -> None:
        """Fails the request."""


class _Held(NamedTuple):
    """A request that waits until the connection is re-authenticated."""

    response: PendingResponse
    api_key: int
    api_version: int
    parts: Sequence[Part]
    flexible: bool
    transit_s: float


class _Pending(NamedTuple):
    """An in-flight request."""

    response: PendingResponse
    correlation_id: int
    has_tags: bool  # the response header is version 1
    expires_at: float


class Connection:
    """An open connection, created by `open_connection`.

    `generation` is unique per connection in the process; `lost` resolves (never raises) with the error when
    the connection ends. `is_retired` means that a replacement exists (`security.secret_rotation`): a long-term
    holder sends nothing more on this connection and requests the replacement from the cluster.
    """

    def __init__(
        self,
        *,
        cluster: str,
        address: str,
        node_id: int,
        client_id: str,
        opened_by: object = None,
        response_timeout_s: float = RESPONSE_TIMEOUT_S,
    ) -> None:
        self.cluster = cluster
        self.address = address
        self.node_id = node_id
        self.generation = next(_generations)
        self.versions: Versions = {}
        self.opened_by = opened_by  # the security it was opened with
        self.is_retired = False
        self.client_id = client_id
        self._client_id = client_id.encode()
        self._response_timeout_s = response_timeout_s
        self._muted_until = 0.0  # until then the broker reads nothing from this connection
        self._loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[ClusterError] = self._loop.create_future()
        self._on_writable: Callable[[], None] | None = None
        self.frames = FrameProtocol(
            on_frame=self._receive, on_lost=self._on_lost, on_writable=self._note_writable
        )
        self._pending: deque[_Pending] = deque()
        self._held: deque[_Held] | None = None
        self._correlation_id = 0
        self._timer: asyncio.TimerHandle | None = None
        self._reauthentication_timer: asyncio.TimerHandle | None = None
        self._reauthentication: asyncio.Task[None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether requests can still be sent."""
        return not self.lost.done()

    @property
    def in_flight(self) -> int:
        """The number of requests without a response."""
        return len(self._pending)

    @property
    def muted_until_s(self) -> float:
        """Until when the broker reads nothing from this connection, because of a quota (loop time)."""
        return self._muted_until

    def waits_for(self, seconds: float) -> bool:
        """Returns whether the oldest request has been without a response for *seconds*, without a quota."""
        if not self._pending:
            return False
        sent_s = self._pending[0].expires_at - self._response_timeout_s
        return self._loop.time() - max(sent_s, self._muted_until) > seconds

    def send(
        self, api_key: int, api_version: int, parts: Sequence[Part], *, flexible: bool
    ) -> asyncio.Future[memoryview]:
        """Sends one request; returns a future of the response body after the header.

        *parts* are written without a copy and must not change before the response arrives. The body is a
        writable view of the frame's own memory. The future fails with ConnectionLostError.
        """
        response: asyncio.Future[memoryview] = self._loop.create_future()
        self.send_for(response, api_key, api_version, parts, flexible=flexible)
        return response

    def send_for(
        self,
        response: PendingResponse,
        api_key: int,
        api_version: int,
        parts: Sequence[Part],
        *,
        flexible: bool,
        transit_s: float = 0.0,
    ) -> None:
        """As `send`, but calls *response* synchronously when the response arrives; *response* must not raise.

        *transit_s* is how long the request may be on its way over a slow link; the broker has so much longer to answer.
        """
        if self.lost.done():
            self._fail(response, self.lost.result())
        elif self._held is not None:
            self._held.append(_Held(response, api_key, api_version, parts, flexible, transit_s))
        else:
            self._write(response, api_key, api_version, parts, flexible, transit_s)

    def _write(
        self,
        response: PendingResponse,
        api_key: int,
        api_version: int,
        parts: Sequence[Part],
        flexible: bool,  # noqa: FBT001 the hot path
        transit_s: float,
    ) -> None:
        client_id = self._client_id
        correlation_id = self._correlation_id
        self._correlation_id = (correlation_id + 1) & 0x7FFFFFFF
        # Request header 1, or 2 with its empty tagged fields (KIP-482); the client id is never compact.
        size = _HEADER.size - 4 + len(client_id) + flexible + sum(map(len, parts))
        header = _HEADER.pack(size, api_key, api_version, correlation_id, len(client_id)) + client_id
        # The loop's clock, without its detour.
        expires_at = monotonic() + self._response_timeout_s + transit_s
        # The response header of ApiVersions stays 0 so that any client can read it (KIP-511).
        has_tags = flexible and api_key != _API_VERSIONS_KEY
        self._pending.append(_Pending(response, correlation_id, has_tags, expires_at))
        if self._timer is None:
            self._timer = self._loop.call_at(expires_at - transit_s, self._check_oldest)
        self.frames.write((header + b"\x00" if flexible else header, *parts), size + 4)

    def _receive(self, frame: memoryview) -> None:
        if not self._pending:
            self._end("it sent a response without a request")
            return
        response, expected, has_tags, _ = self._pending.popleft()
        (correlation_id,) = _CORRELATION.unpack_from(frame)
        if correlation_id != expected:
            self._pending.appendleft(_Pending(response, expected, has_tags, 0.0))
            self._end(f"it answered request {correlation_id} where {expected} was next")
            return
        if response.done():  # the caller was cancelled
            return
        start = _CORRELATION.size
        if has_tags:
            try:
                start = start + 1 if frame[start] == 0 else _after_tags(frame, start)
            except (struct.error, IndexError):
                self._pending.appendleft(_Pending(response, expected, has_tags, 0.0))
                self._end("the header of its response cannot be read")
                return
        response.set_result(frame[start:])

    def _check_oldest(self) -> None:
        self._timer = None
        if not self._pending:
            return
        # A large response may be on its way over a slow link for longer.
        alive_s = max(self._muted_until, self.frames.arriving_s)
        expires_at = max(self._pending[0].expires_at, alive_s + self._response_timeout_s)
        now = self._loop.time()
        if expires_at <= now:
            self._end(f"it has not answered for {self._response_timeout_s:g} s")
        else:
            # Not later: when the oldest request has its response, a later one may expire before the oldest would have.
            check_at = min(expires_at, now + self._response_timeout_s)
            self._timer = self._loop.call_at(check_at, self._check_oldest)

    async def call(self, request: Any, *, timeout_s: float = RESPONSE_TIMEOUT_S) -> Any:
        """Sends a kafka-python request in the highest version both sides support; returns the decoded response.

        The caller checks the error codes in the response. Raises UnsupportedBrokerError, ConnectionLostError,
        and UnreachableError after *timeout_s*.
        """
        version = choose_version(request, self.versions, cluster=self.cluster)
        response = await self._exchange(request, version, self.send, timeout_s=timeout_s)
        self.throttled(getattr(response, "throttle_time_ms", None) or 0)
        return response

    def throttled(self, throttle_ms: int) -> None:
        """Notes a response's throttle time, during which the broker reads no further request (KIP-219)."""
        if throttle_ms:
            muted_until = self._loop.time() + min(throttle_ms / 1000, MUTED_MAX_S)
            self._muted_until = max(self._muted_until, muted_until)

    async def _exchange(
        self,
        request: Any,
        version: int,
        send: Callable[..., asyncio.Future[memoryview]],
        *,
        timeout_s: float,
    ) -> Any:
        """Encodes *request* at *version*, sends it with *send*, and returns the decoded response. Raises as `call`."""
        body = request.encode(version=version)
        request.with_header()
        response_class = request.header.get_response_class()
        flexible = request.flexible_version_q(version)
        response = send(request.API_KEY, version, (body,), flexible=flexible)
        try:
            async with asyncio.timeout(timeout_s):
                view = await response
        except TimeoutError:
            raise UnreachableError(
                cluster=self.cluster,
                addresses=self.address,
                problem=f"{request.name} was not answered within {timeout_s:g} s",
            ) from None
        try:
            return response_class.decode(view)
        except (struct.error, IndexError, ValueError) as error:
            raise self.unreadable(f"{request.name} version {version}") from error

    def unreadable(self, request: str) -> ConnectionLostError:
        """Ends the connection, whose response to *request* cannot be read; returns the error to raise or to report."""
        problem = f"its response to {request} cannot be read"
        self._end(problem)
        return self._lost_error(problem)

    @property
    def is_full(self) -> bool:
        """Whether the socket has no room: what is sent now is copied."""
        return self.frames.is_full

    def call_when_writable(self, on_writable: Callable[[], None]) -> None:
        """Calls *on_writable* each time the socket has room again."""
        self._on_writable = on_writable

    def _note_writable(self) -> None:
        if self._on_writable is not None:
            self._on_writable()

    async def negotiate(self) -> None:
        """Finds out the request versions that the broker supports (KIP-511). Raises UnsupportedBrokerError."""
        version = ApiVersionsRequest.max_version
        while True:
            request = ApiVersionsRequest(client_software_name="mirrorflow", client_software_version=_VERSION)
            response = await self._handshake(request, version)
            if not response.error_code:
                self.versions = _versions_of(response)
                return
            if response.error_code != UNSUPPORTED_VERSION or version == 0:
                raise UnsupportedBrokerError(
                    cluster=self.cluster,
                    feature=f"ApiVersions (error {response.error_code})",
                    needs="Kafka 0.10 or later",
                )
            # The refusal is in version 0 and may list the supported versions; older brokers list none.
            _, highest = _versions_of(response).get(_API_VERSIONS_KEY, (0, 0))
            version = highest if highest < version else 0

    async def authenticate(self, security: ClientSecurity) -> float:
        """Authenticates with SASL, if *security* uses it; returns the session lifetime in seconds, 0 for unlimited.

        Raises AuthenticationFailedError with the broker's own message.
        """
        client = security.sasl_client(self.address)
        if client is None:
            return 0.0
        request = SaslHandshakeRequest(mechanism=client.mechanism, min_version=_HANDSHAKE_VERSION)
        response = await self._handshake(request)
        if response.error_code:
            offered = ", ".join(response.mechanisms or ()) or "none"
            problem = f"{name_of(response.error_code)} in response to the SASL handshake"
            if response.error_code == ILLEGAL_SASL_STATE:
                problem = "the listener does not use SASL, as security.protocol does"
            if response.error_code == UNSUPPORTED_SASL_MECHANISM:
                problem = f"the listener offers {offered}; set sasl.mechanism"
            raise self.authentication_error(client.mechanism, problem)
        token: bytes | None = await client.first()
        lifetime_ms = 0
        for _ in range(SASL_ROUNDS_MAX):
            if token is None:
                return lifetime_ms / 1000
            request = SaslAuthenticateRequest(auth_bytes=token)
            response = await self._handshake(request)
            if response.error_code:
                problem = response.error_message or f"error {response.error_code}"
                raise self.authentication_error(client.mechanism, client.refused(problem.rstrip(".")))
            lifetime_ms = getattr(response, "session_lifetime_ms", 0) or 0
            token = client.receive(bytes(response.auth_bytes or b""))
        raise self.authentication_error(
            client.mechanism, f"the conversation has not ended after {SASL_ROUNDS_MAX} rounds"
        )

    def authentication_error(self, mechanism: str, problem: str) -> AuthenticationFailedError:
        """Returns the error to raise where the broker does not accept TLS or SASL."""
        return AuthenticationFailedError(
            cluster=self.cluster, address=self.address, mechanism=mechanism, problem=problem
        )

    async def _handshake(self, request: Any, version: int | None = None) -> Any:
        """Sends *request* ahead of those that wait for authentication."""
        if version is None:
            version = choose_version(request, self.versions, cluster=self.cluster)
        return await self._exchange(
            request, version, self._send_unauthenticated, timeout_s=HANDSHAKE_TIMEOUT_S
        )

    def _send_unauthenticated(
        self, api_key: int, api_version: int, parts: Sequence[Part], *, flexible: bool
    ) -> asyncio.Future[memoryview]:
        response: asyncio.Future[memoryview] = self._loop.create_future()
        if self.lost.done():
            self._fail(response, self.lost.result())
        else:
            self._write(response, api_key, api_version, parts, flexible, 0.0)
        return response

    def reauthenticate_before(self, lifetime_s: float, renew: Callable[[], ClientSecurity | None]) -> None:
        """Schedules re-authentication before *lifetime_s* ends (KIP-368), with credentials from *renew*."""
        delay_s = lifetime_s * random.uniform(*REAUTHENTICATE_AT)  # noqa: S311 it spreads, it does not protect
        self._reauthentication_timer = self._loop.call_later(delay_s, self._begin_reauthentication, renew)

    def _begin_reauthentication(self, renew: Callable[[], ClientSecurity | None]) -> None:
        if self.is_open:
            self._reauthentication = self._loop.create_task(self._reauthenticate(renew))

    async def _reauthenticate(self, renew: Callable[[], ClientSecurity | None]) -> None:
        # Between the handshake and the last token the broker accepts only SASL requests, so all others wait;
        # requests already sent get their responses before the handshake.
        self._held = deque()
        try:
            async with asyncio.timeout(REAUTHENTICATION_TIMEOUT_S):
                security = renew()
                lifetime_s = 0.0 if security is None else await self.authenticate(security)
        except TimeoutError:
            self._end(f"re-authentication took longer than {REAUTHENTICATION_TIMEOUT_S:g} s")
        except ClusterError as error:
            self._end_with(error)
        except Exception as error:  # noqa: BLE001 whatever a config provider raises must not leave requests held for ever
            self._end(f"re-authentication failed ({type(error).__name__})")
        else:
            self._release()
            if lifetime_s and security is not None:
                self.reauthenticate_before(lifetime_s, renew)

    def _release(self) -> None:
        held, self._held = self._held, None
        for request in held or ():
            if not request.response.done():
                self._write(*request)

    def retire(self) -> None:
        """Marks the connection as replaced; closes when all requests have their responses, or after RETIRED_MAX_S."""
        self.is_retired = True
        self._end_when_idle(self._loop.time() + RETIRED_MAX_S)

    def _end_when_idle(self, deadline: float) -> None:
        if not self.is_open:
            return
        if self._loop.time() >= deadline or not (self._pending or self._held):
            self._end("another one has taken its place")
        else:
            self._loop.call_later(RETIRED_CHECK_S, self._end_when_idle, deadline)

    def close(self) -> None:
        """Closes the connection now; requests without a response fail. Safe to repeat."""
        self._end("we closed it")

    def _end(self, problem: str) -> None:
        self._end_with(self._lost_error(problem))

    def _on_lost(self, error: Exception | None) -> None:
        if isinstance(error, ssl.SSLError):
            self._end_with(self.authentication_error("TLS", tls_problem(error)))
        elif isinstance(error, FrameError):
            self._end(str(error))
        else:
            self._end(f"the connection was lost ({error})" if error else "the broker closed the connection")

    def _end_with(self, error: ClusterError) -> None:
        if self.lost.done():
            return
        self.lost.set_result(error)
        for timer in (self._timer, self._reauthentication_timer):
            if timer is not None:
                timer.cancel()
        unanswered = [request.response for request in self._pending] + [
            request.response for request in self._held or ()
        ]
        self._pending.clear()
        self._held = None
        for response in unanswered:
            if not response.done():
                self._fail(response, error)
        task = self._reauthentication
        if task is not None and task is not asyncio.current_task(self._loop):
            task.cancel()
        # Not close(): it would wait for the write buffer, which a frozen broker never drains.
        self.frames.abort()

    def _fail(self, response: PendingResponse, error: ClusterError) -> None:
        """Fails one request with its own error, chained to *error*.

        The exception counts as retrieved, so that an abandoned future does not log a warning.
        """
        own = self._lost_error(error.problem if isinstance(error, ConnectionLostError) else str(error))
        own.__cause__ = error
        response.set_exception(own)
        if isinstance(response, asyncio.Future):
            response.exception()

    def _lost_error(self, problem: str) -> ConnectionLostError:
        return ConnectionLostError(cluster=self.cluster, address=self.address, problem=problem)
