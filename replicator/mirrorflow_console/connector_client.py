"""Requests the progress of connectors over HTTP, bounded in bytes and time, for both forms of the console.

All connectors are polled from one thread, and their connections stay open between polls: a thousand connectors would open a
thousand connections at each of them.
The heads of responses are read here, without h11, which needs more than twice the CPU time (docs/decisions/026).
"""

import errno
import http.client
import os
import re
import resource
import selectors
import socket
import ssl
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

from mirrorflow_console.documents import BODY_MAX_BYTES, DocumentError

# Between two pieces of a response; a replicator's event loop never blocks for one second.
SILENCE_MAX_S: Final = 2.0
RESPONSE_MAX_S: Final = 8.0  # from the request to the last byte
# All pages wait for the slowest connector of a poll. One that was too slow twice in a row has only a second for some time, so that a
# pod that sends a byte now and then delays no more than one poll in six from then on.
LATE_RESPONSE_MAX_S: Final = 1.0
LATE_S: Final = 30.0
LATE_KEPT_S: Final = (
    4 * LATE_S
)  # a connector that is still polled has answered by then, or was too slow again
LATE_RESPONSES_MIN: Final = 2  # one slow response may be that of a busy node
# Connectors that are polled at the same time. More would only wait in this process.
REQUESTS_MAX: Final = 128
# Connections that stay open, each with a file descriptor here and one of the 64 connections that a replicator accepts. At
# most half of the descriptors that the system allows: visitors need the others.
KEPT_MAX: Final = 2_000
RESET: Final = "Connection reset by peer"
INVALID: Final = "invalid HTTP response"
TOO_LONG: Final = f"the response has more than {BODY_MAX_BYTES // 1024 // 1024} MiB"
_PIECE_BYTES: Final = 256 * 1024
_HEAD_MAX_BYTES: Final = 16 * 1024
_TICK_S: Final = 0.2  # between two checks of the time limits
_READ: Final = selectors.EVENT_READ
_WRITE: Final = selectors.EVENT_WRITE
_STATUS: Final = b"HTTP/1."  # how each response begins
_STATUS_AT: Final = len("HTTP/1.1 ")
_STATUS_END: Final = len("HTTP/1.1 200")
_HEAD_END: Final = b"\r\n\r\n"
# In a head in lower case: a search that ignores case takes five times as long.
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *([0-9]{1,12}) *(?:\r|$)")
_CHUNKED: Final = b"\r\ntransfer-encoding:"
_CLOSES: Final = re.compile(rb"\r\nconnection: *close")

# A generator that runs until its socket blocks; it yields the events that it waits for, and returns the body.
_Exchange = Generator[int, None, bytes]
# The index of a request with the body of its response, or why there is none.
_Result = tuple[int, "bytes | DocumentError"]


class ConnectorAddress(NamedTuple):
    """The HTTP address of a connector. *host_name*: it serves TLS, with a certificate of this name; "" if it does not.

    Behind a port-forward, *host* is the pod as namespace/name.
    """

    host: str
    port: int
    host_name: str = ""


# Returns a socket that is connected to a connector: the socket of a port-forward. Raises OSError.
Dial = Callable[[ConnectorAddress], Any]


class ConnectorRequest:
    """A GET request to a connector; *target* is the path with its query. `head`: its bytes."""

    __slots__ = ("address", "head", "target")

    def __init__(self, address: ConnectorAddress, target: str) -> None:
        self.address = address
        self.target = target
        host = address.host.rpartition("/")[2]
        host = f"[{host}]" if ":" in host else host
        self.head = (
            f"GET {target} HTTP/1.1\r\nHost: {host}:{address.port}\r\nUser-Agent: mirrorflow-console\r\n\r\n"
        ).encode()


class _EndedError(Exception):
    """The server has closed a connection before the first byte of a response: it was idle for too long."""


class _ConnectorConnection:
    """A connection to a connector. `stays_open`: the server accepts another request after the last response."""

    def __init__(
        self, address: ConnectorAddress, context: ssl.SSLContext | None, dial: Dial | None = None
    ) -> None:
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        self.socket = socket.socket(family, socket.SOCK_STREAM) if dial is None else dial(address)
        self.socket.setblocking(False)
        self._is_connected = dial is not None
        self.stays_open = False
        self.is_new = True
        self._address = address
        self._context = context if address.host_name else None

    def exchange(self, head: bytes) -> _Exchange:
        """Sends a request, and returns the body of its response.

        Raises DocumentError, OSError, ssl.SSLError, and _EndedError on a connection that was used before.
        """
        if self.is_new:
            yield from self._connect()
        while head:
            try:
                head = head[self.socket.send(head) :]
            except (BlockingIOError, ssl.SSLWantWriteError):
                yield _WRITE
            except (BrokenPipeError, ConnectionResetError):
                raise self._ended() from None
        piece = yield from self._piece()
        if not piece:
            raise self._ended()
        received = piece
        while (end := received.find(_HEAD_END)) < 0:
            is_http = _STATUS.startswith(received[: len(_STATUS)]) or received.startswith(_STATUS)
            if not is_http or len(received) > _HEAD_MAX_BYTES:
                raise DocumentError(INVALID)
            piece = yield from self._piece()
            if not piece:
                raise DocumentError(INVALID)
            received += piece
        length, self.stays_open = _parsed_head(received[:end])
        received = received[end + len(_HEAD_END) :]
        if len(received) == length:  # in one piece, as most are
            self.is_new = False
            return received
        return (yield from self._rest(bytearray(received), length))

    def _rest(self, received: bytearray, length: int | None) -> _Exchange:
        """Returns the body, of which *received* has arrived; without a *length* it ends with the connection."""
        while length is None or len(received) < length:
            piece = yield from self._piece()
            if not piece and length is not None:
                raise DocumentError(INVALID)
            if not piece:
                break
            received += piece
            if len(received) > BODY_MAX_BYTES:
                raise DocumentError(TOO_LONG)
        self.is_new = False
        return bytes(received)

    def _connect(self) -> Generator[int, None, None]:
        """Connects, and verifies the certificate."""
        error = 0 if self._is_connected else self.socket.connect_ex(self._address[:2])
        if error == errno.EINPROGRESS:
            yield _WRITE
            error = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, os.strerror(error))
        if self._context is None:
            return
        self.socket = secure = self._context.wrap_socket(
            self.socket, server_hostname=self._address.host_name, do_handshake_on_connect=False
        )
        while True:
            try:
                secure.do_handshake()
            except ssl.SSLWantReadError:
                yield _READ
            except ssl.SSLWantWriteError:
                yield _WRITE
            else:
                return

    def _piece(self) -> _Exchange:
        """Returns the next bytes of the response; none at its end."""
        if self._context is None:
            yield _READ  # TLS may have bytes that it has already read from the socket
        while True:
            try:
                return self.socket.recv(_PIECE_BYTES)
            except (BlockingIOError, ssl.SSLWantReadError):
                yield _READ
            except ssl.SSLWantWriteError:
                yield _WRITE
            except ssl.SSLEOFError:
                return b""
            except ConnectionResetError:
                raise self._ended() from None

    def _ended(self) -> Exception:
        return ConnectionResetError(errno.ECONNRESET, RESET) if self.is_new else _EndedError()


class _ResponseHead(NamedTuple):
    """What the client needs of a response's head. *length*: of the body in bytes; None if it ends with the connection."""

    length: int | None
    stays_open: bool


@lru_cache(maxsize=128)  # most responses of a poll have one of a few heads
def _parsed_head(head: bytes) -> _ResponseHead:
    """Parses the head of a response. Raises DocumentError."""
    status = head[_STATUS_AT:_STATUS_END]
    fields = head.lower()
    if not status.isdigit() or _CHUNKED in fields:
        raise DocumentError(INVALID)
    if int(status) != http.client.OK:
        raise DocumentError(f"its response has HTTP status {int(status)}")
    match = _LENGTH.search(fields)
    length = None if match is None else int(match[1])
    if length is not None and length > BODY_MAX_BYTES:
        raise DocumentError(TOO_LONG)
    stays_open = length is not None and head.startswith(b"HTTP/1.1") and not _CLOSES.search(fields)
    return _ResponseHead(length, stays_open)


@dataclass(slots=True)
class _RunningRequest:
    """A request under way. The times are of the monotonic clock."""

    index: int
    request: ConnectorRequest
    exchange: _Exchange
    began_s: float
    limit_s: float  # from its beginning to its end
    progressed_s: float = 0.0


@dataclass(slots=True)
class _LateResponses:
    """The responses of one connector that were too slow, since the last one that was not."""

    count: int = 0
    noted_s: float = 0.0  # when the last of them was given up that had the whole time, monotonic clock

    def has_less_time(self, now_s: float) -> bool:
        return self.count >= LATE_RESPONSES_MIN and now_s - self.noted_s < LATE_S


class ConnectorClient:
    """Asks many connectors at the same time, and keeps their connections. For one thread at a time.

    *dial* returns a connected socket where addresses are not reached directly. *response_max_s*: from a request to the last byte of
    its response, however steadily bytes arrive.
    """

    def __init__(self, dial: Dial | None = None, *, response_max_s: float | None = None) -> None:
        self._dial = dial
        self._response_max_s = RESPONSE_MAX_S if response_max_s is None else response_max_s
        self._selector = selectors.DefaultSelector()  # with the connection as data
        self._watched: dict[_ConnectorConnection, int] = {}  # the events for which the selector watches it
        self._kept: dict[ConnectorAddress, _ConnectorConnection] = {}
        self._late: dict[ConnectorAddress, _LateResponses] = {}
        self._kept_max = min(KEPT_MAX, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
        self._context: ssl.SSLContext | None = None

    def fetch(
        self, requests: Sequence[ConnectorRequest], context: ssl.SSLContext | None = None
    ) -> Iterator[_Result]:
        """Yields the index of each request with the body of its response, or why there is none, as they arrive.

        *context* verifies the certificates of new connections.
        """
        self._context = context
        now_s = time.monotonic()
        self._late = {
            address: late for address, late in self._late.items() if now_s - late.noted_s < LATE_KEPT_S
        }
        waiting = iter(enumerate(requests))
        running: dict[_ConnectorConnection, _RunningRequest] = {}
        try:
            while True:
                while len(running) < REQUESTS_MAX and (following := next(waiting, None)) is not None:
                    if (result := self._start(*following, running)) is not None:
                        yield result
                if not running:
                    return
                for key, _ in self._selector.select(_TICK_S):
                    if (result := self._advance(key.data, running)) is not None:
                        yield result
                yield from self._overdue(running)
        finally:
            for connection in running:
                self._close(connection)

    def close(self) -> None:
        """Closes all connections. The client cannot be used afterwards."""
        for connection in self._kept.values():
            connection.socket.close()
        self._kept.clear()
        self._selector.close()

    def __del__(self) -> None:
        """Closes all connections with the last user of the client: a poll may outlast the console's server."""
        self.close()

    def _start(
        self, index: int, request: ConnectorRequest, running: dict[_ConnectorConnection, _RunningRequest]
    ) -> _Result | None:
        """Sends a request, and returns its result if it has already ended."""
        connection = self._kept.pop(request.address, None)
        try:
            connection = connection or _ConnectorConnection(request.address, self._context, self._dial)
        except OSError as error:
            return index, DocumentError(_failure(error))
        now_s, limit_s = time.monotonic(), self._response_max_s
        late = self._late.get(request.address)
        if late is not None and late.has_less_time(now_s):
            limit_s = min(LATE_RESPONSE_MAX_S, limit_s)
        running[connection] = _RunningRequest(
            index, request, connection.exchange(request.head), now_s, limit_s
        )
        return self._advance(connection, running)

    def _advance(
        self, connection: _ConnectorConnection, running: dict[_ConnectorConnection, _RunningRequest]
    ) -> _Result | None:
        """Continues an exchange until its socket blocks, and returns its result once it has ended."""
        pending = running.get(connection)
        if pending is None:  # The server has closed a connection that was kept.
            self._kept = {address: kept for address, kept in self._kept.items() if kept is not connection}
            self._close(connection)
            return None
        pending.progressed_s = time.monotonic()
        result: bytes | DocumentError
        try:
            events = next(pending.exchange)
        except StopIteration as ended:
            result = ended.value
        except _EndedError:
            del running[connection]
            self._close(connection)
            return self._start(pending.index, pending.request, running)
        except DocumentError as error:
            result = error
        except (OSError, ValueError) as error:
            result = DocumentError(_failure(error))
        else:
            self._watch(connection, events)
            return None
        del running[connection]
        self._late.pop(pending.request.address, None)
        self._keep_or_close(pending.request.address, connection, is_valid=isinstance(result, bytes))
        return pending.index, result

    def _keep_or_close(
        self, address: ConnectorAddress, connection: _ConnectorConnection, *, is_valid: bool
    ) -> None:
        has_room = len(self._kept) < self._kept_max and address not in self._kept
        if is_valid and connection.stays_open and has_room:
            self._kept[address] = connection
            self._watch(connection, _READ)
        else:
            self._close(connection)

    def _overdue(self, running: dict[_ConnectorConnection, _RunningRequest]) -> Iterator[_Result]:
        """Ends the exchanges that take too long. Called after what has arrived was read."""
        now_s = time.monotonic()
        for connection, pending in [*running.items()]:
            if now_s - pending.progressed_s > SILENCE_MAX_S:
                reason = f"it does not answer within {SILENCE_MAX_S:g} s"
            elif now_s - pending.began_s > pending.limit_s:
                reason = f"the response takes more than {pending.limit_s:g} s"
            else:
                continue
            if pending.limit_s == self._response_max_s:
                late = self._late.setdefault(pending.request.address, _LateResponses())
                late.count += 1
                late.noted_s = now_s
            del running[connection]
            self._close(connection)
            yield pending.index, DocumentError(reason)

    def _watch(self, connection: _ConnectorConnection, events: int) -> None:
        watched = self._watched.get(connection)
        if watched is None:
            self._selector.register(connection.socket.fileno(), events, connection)
        elif watched != events:
            self._selector.modify(connection.socket.fileno(), events, connection)
        self._watched[connection] = events

    def _close(self, connection: _ConnectorConnection) -> None:
        if self._watched.pop(connection, None) is not None:
            self._selector.unregister(connection.socket.fileno())
        connection.socket.close()


def _failure(error: OSError | ValueError) -> str:
    if isinstance(error, ssl.SSLError):
        return "TLS certificate verification failed"
    reason = error.strerror if isinstance(error, OSError) else None
    return f"the connection fails ({reason or type(error).__name__})"
