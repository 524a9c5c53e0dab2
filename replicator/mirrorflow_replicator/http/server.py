"""Runs the HTTP server of a process: sockets, limits and timeouts; other modules of `http` build the responses.

Guarantees: each client's cost is bounded, by limits on connections, header and body sizes, and the time a client may take to
send or read. Of bodies above the usual limit, which only calls with task configs may have, one is read at a time. Requests of a connection get their responses in order, pipelined or not. A bug in a handler becomes a 500 with Connect's
error body and a log line, and the server keeps running. If the input is not HTTP, the connection gets Connect's error body and
is closed.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, Self
from urllib.parse import parse_qsl

import h11

from mirrorflow_core.connect.session_keys import Signature
from mirrorflow_core.errors import InvalidSettingError
from mirrorflow_core.light_dataclasses import dataclass
from mirrorflow_replicator.config.worker_properties import LISTENERS_KEY, parse_listener
from mirrorflow_replicator.http import application_offsets, group_offsets, metrics, progress, rest
from mirrorflow_replicator.http.commands import NOT_ALLOWED, Command
from mirrorflow_replicator.http.worker_view import (
    ALGORITHM_HEADER,
    SIGNATURE_HEADER,
    Request,
    Response,
    WorkerView,
    error_response,
    json_response,
    local_view,
)

READ_BYTES = 64 * 1024
WRITE_BYTES = 64 * 1024  # a piece of a large body; the client must have taken the previous one
LINGER_BYTES = 4 * 1024 * 1024  # read and dropped after a refusal: TCP's reset would overtake the response
LINGER_S = 2.0
BODILESS = (204, 304)  # for which HTTP forbids a body and its length

_MAC, _ALGORITHM = (name.lower().encode() for name in (SIGNATURE_HEADER, ALGORITHM_HEADER))

Handler = Callable[[Request], Awaitable[Response]]
CarryOut = Callable[[Command, Request], Awaitable[Response]]
Routed = Response | Command | Coroutine[Any, Any, Response]
Route = Callable[[Request], Routed]
log = logging.getLogger(__name__)
OWN_PATHS = frozenset({"/healthz", "/readyz", "/metrics", "/progress", "/progress/partitions", "/offsets"})
TRANSLATE_PATH = "/offsets/translate"
TICK_S = 1.0
CARRY_OUT_S = 90.0  # as for Connect's REST requests
STALLED_S = 10.0  # a healthy worker never blocks the loop for a hundredth of that


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """The limits for one client, and for all of them together."""

    connections: int = 64  # a monitoring system, an operator, probes and a few people; 64 x 64 KiB is 4 MiB
    header_bytes: int = 16 * 1024  # h11's own default; Connect's (Jetty) is 8 KiB
    body_bytes: int = 1024 * 1024  # a configuration to validate has a few kB
    # Of another node's call with the task configs of a connector, which name all of its partitions; one at a time.
    tasks_bytes: int = 16 * 1024 * 1024
    request_s: float = 10.0  # from a request's first byte to its last
    idle_s: float = 60.0  # between requests; Prometheus scrapes every 15 to 60 s
    write_s: float = 30.0  # for a client to take a piece of a response


LIMITS = HttpLimits()


class _RefusedError(Exception):
    """The request is answered with *response*, and nothing more is read as HTTP."""

    def __init__(self, response: Response) -> None:
        self.response = response
        super().__init__()


class HttpConnection:
    """The server side of one connection."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        limits: HttpLimits,
        large_body: asyncio.Lock,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._limits = limits
        self._large_body = large_body  # held by the connection whose request has a body above the usual limit
        self._holds_large_body = False
        self._host = ""  # of the current request
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.header_bytes)
        # Then `drain` returns when the client's side has taken everything: a slow client costs one piece.
        writer.transport.set_write_buffer_limits(high=0)

    async def serve(self, handler: Handler) -> None:
        """Serves requests until the client closes, breaks the protocol or exceeds a time limit.

        Raises TimeoutError or ConnectionError when the client idles or disconnects.
        """
        while await self._wait_for_request():
            try:
                request = await self._request()
                if request is None:
                    return
                response = await handler(request)
                await self._send(self._with_absolute_location(response), head=request.method == "HEAD")
            except _RefusedError as refused:
                await self._refuse(refused.response)
                return
            finally:
                if self._holds_large_body:
                    self._holds_large_body = False
                    self._large_body.release()
            if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
                return
            self._http.start_next_cycle()

    def _with_absolute_location(self, response: Response) -> Response:
        """Returns *response* with an absolute Location as in Java, with the host from the request."""
        if not self._host or not any(name == "Location" for name, _ in response.headers):
            return response
        scheme = "http" if self._writer.get_extra_info("ssl_object") is None else "https"
        base = f"{scheme}://{self._host}"
        headers = tuple(
            (name, base + value if name == "Location" and value.startswith("/") else value)
            for name, value in response.headers
        )
        return replace(response, headers=headers)

    async def _wait_for_request(self) -> bool:
        """Waits for the first byte of the next request; returns False if the client has closed instead."""
        data, closed = self._http.trailing_data
        if data or closed:
            return not closed or bool(data)
        async with asyncio.timeout(self._limits.idle_s):
            received = await self._reader.read(READ_BYTES)
        self._http.receive_data(received)
        return bool(received)

    async def _request(self) -> Request | None:
        """Returns the next request, whole; None if the client closed before it was complete."""
        try:
            async with asyncio.timeout(self._limits.request_s):
                return await self._read()
        except TimeoutError:
            raise _RefusedError(error_response(408, "HTTP 408 Request Timeout")) from None
        except h11.RemoteProtocolError as error:
            if self._http.trailing_data[1]:  # the client has closed the connection
                return None
            status = error.error_status_hint or 400
            raise _RefusedError(
                error_response(status, f"The request is not valid HTTP/1.1: {error}.")
            ) from error

    async def _read(self) -> Request | None:
        head = await self._event()
        if not isinstance(head, h11.Request):
            return None
        self._check(head)
        path, _, query = head.target.decode("ascii").partition("?")
        has_tasks = head.method == b"POST" and path.endswith("/tasks")
        bytes_max = self._limits.tasks_bytes if has_tasks else self._limits.body_bytes
        body = bytearray()
        while isinstance(event := await self._event(), h11.Data):
            body += event.data
            if len(body) > bytes_max:
                message = f"The request body exceeds {bytes_max} bytes."
                raise _RefusedError(error_response(413, message))
            if len(body) > self._limits.body_bytes and not self._holds_large_body:
                self._holds_large_body = await self._large_body.acquire()
        headers = dict(head.headers)
        self._host = headers.get(b"host", b"").decode("latin-1")
        return Request(
            method=head.method.decode("ascii"),
            path=path,
            query=query,
            body=bytes(body),
            content_type=_text(headers.get(b"content-type")),
            signature=Signature(
                mac=_text(headers.get(_MAC)),
                algorithm=_text(headers.get(_ALGORITHM)),
            ),
        )

    def _check(self, head: h11.Request) -> None:
        """Refuses what h11 lets through: a large head that arrived in one read, and unsupported versions."""
        if head.http_version not in {b"1.0", b"1.1"}:
            raise _RefusedError(error_response(505, "HTTP 505 HTTP Version Not Supported"))
        size = len(head.target) + sum(len(name) + len(value) for name, value in head.headers)
        if size > self._limits.header_bytes:
            message = f"The request head exceeds {self._limits.header_bytes} bytes."
            raise _RefusedError(error_response(431, message))

    async def _event(self) -> object:
        while True:
            event = self._http.next_event()
            if event is not h11.NEED_DATA:
                return event
            if self._http.they_are_waiting_for_100_continue:
                await self._write(self._http.send(h11.InformationalResponse(status_code=100, headers=[])))
            self._http.receive_data(await self._reader.read(READ_BYTES))

    async def _send(self, response: Response, *, head: bool) -> None:
        headers = [("Date", formatdate(usegmt=True)), *response.headers]
        body = response.body
        if body or not isinstance(body, bytes):
            headers.append(("Content-Type", response.content_type))
        if isinstance(body, bytes) and response.status not in BODILESS:
            headers.append(("Content-Length", str(len(body))))
        reason = HTTPStatus(response.status).phrase
        start = h11.Response(status_code=response.status, headers=headers, reason=reason)
        pending = bytearray(self._http.send(start) or b"")
        for piece in () if head else _pieces(body):
            pending += self._http.send(h11.Data(data=piece)) or b""
            if len(pending) >= WRITE_BYTES:
                await self._write(bytes(pending))
                pending.clear()
            await asyncio.sleep(0)
        pending += self._http.send(h11.EndOfMessage()) or b""
        await self._write(bytes(pending))

    async def _refuse(self, response: Response) -> None:
        if self._http.our_state not in {h11.IDLE, h11.SEND_RESPONSE}:
            return
        closing = Response(
            status=response.status, headers=(*response.headers, ("Connection", "close")), body=response.body
        )
        await self._send(closing, head=False)
        if self._writer.can_write_eof():
            self._writer.write_eof()
        left = LINGER_BYTES
        async with asyncio.timeout(LINGER_S):
            while left > 0 and (dropped := await self._reader.read(READ_BYTES)):
                left -= len(dropped)

    async def _write(self, data: bytes | None) -> None:
        if not data:
            return
        self._writer.write(data)
        async with asyncio.timeout(self._limits.write_s):
            await self._writer.drain()


def _pieces(body: bytes | Iterable[bytes]) -> Iterable[bytes]:
    if not isinstance(body, bytes):
        return body
    return (body[begin : begin + WRITE_BYTES] for begin in range(0, len(body), WRITE_BYTES))


async def refuse(_command: Command, _request: Request) -> Response:
    """Refuses every command: for a process whose connectors cannot be changed."""
    return error_response(405, NOT_ALLOWED, headers=rest.ALLOW)


class HttpServer:
    """Serves requests on every listener until closed. Create it with `start`."""

    def __init__(
        self,
        view: Callable[[], WorkerView],
        limits: HttpLimits,
        carry_out: CarryOut,
        route: Route | None = None,
    ) -> None:
        self._view = view
        self._route = route or self._route_all
        self._carry_out = carry_out
        self._limits = limits
        self._servers: list[asyncio.Server] = []
        self._connections: set[asyncio.Task[None]] = set()
        self._large_body = asyncio.Lock()
        self._ticked_s = 0.0
        self._tick_handle: asyncio.TimerHandle | None = None
        self._was_ready = False
        self._closing = False
        self.addresses: tuple[str, ...] = ()  # with the ports that were actually bound

    @classmethod
    async def start(
        cls,
        listeners: Sequence[str],
        view: Callable[[], WorkerView],
        *,
        carry_out: CarryOut = refuse,
        tls: ssl.SSLContext | None = None,
        others_tls: ssl.SSLContext | None = None,
        limits: HttpLimits = LIMITS,
        route: Route | None = None,
    ) -> Self:
        """Listens on each of *listeners*: `http://host:port` or `https://host:port`; no host: every address.

        *others_tls* is the TLS of all listeners but the first, if it differs. `view()` is called for each
        request, *carry_out* for those that change something; a view that accepts changes needs one. *route*
        replaces all other paths. Raises InvalidSettingError where an address cannot be bound.
        """
        server = cls(view, limits, carry_out, route)
        try:
            server.addresses = tuple(
                [
                    await server._listen(listener, (index and others_tls) or tls)
                    for index, listener in enumerate(listeners)
                ]
            )
        except BaseException:
            await server.close()
            raise
        server._tick()
        return server

    async def close(self) -> None:
        """Stops listening and ends every connection."""
        self._closing = True
        if self._tick_handle is not None:
            self._tick_handle.cancel()
        for server in self._servers:
            server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        for server in self._servers:
            await server.wait_closed()
        self._servers.clear()

    async def _listen(self, listener: str, tls: ssl.SSLContext | None) -> str:
        scheme, host, port = parse_listener(listener)
        if scheme == "https" and tls is None:
            raise InvalidSettingError(
                key=LISTENERS_KEY,
                problem=f"{listener} needs a certificate",
                action="set ssl.keystore.location",
            )
        try:
            server = await asyncio.start_server(
                self._accept,
                # The system would choose different free ports for IPv4 and IPv6.
                host or (None if port else "0.0.0.0"),  # noqa: S104  the listener binds every address
                port,
                ssl=tls if scheme == "https" else None,
                ssl_handshake_timeout=self._limits.request_s if scheme == "https" else None,
                limit=READ_BYTES,
            )
        except OSError as error:
            raise InvalidSettingError(
                key=LISTENERS_KEY,
                problem=f"cannot bind {listener}: {error.strerror or error}",
                action="choose a free port of this host",
            ) from error
        self._servers.append(server)
        bound_host, bound_port = server.sockets[0].getsockname()[:2]
        return f"{scheme}://{f'[{bound_host}]' if ':' in bound_host else bound_host}:{bound_port}"

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        self._ticked_s = loop.time()
        self._tick_handle = loop.call_later(TICK_S, self._tick)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= self._limits.connections:
            writer.transport.abort()
            return
        task = asyncio.current_task()
        if task is None:
            return
        self._connections.add(task)
        try:
            await HttpConnection(reader, writer, self._limits, self._large_body).serve(self._respond)
        except asyncio.CancelledError:
            # `close` cancels this task and waits; Python 3.11 logs a connection's cancelled task.
            if not self._closing:
                raise
        except (TimeoutError, ConnectionError, EOFError) as error:
            log.debug("client left: %r", error)
        except Exception:
            log.exception("connection failed")
        finally:
            self._connections.discard(task)
            # Drop what a client has not taken in its time: closing would wait for it for ever.
            if writer.transport.get_write_buffer_size():
                writer.transport.abort()
            else:
                writer.close()

    async def _respond(self, request: Request) -> Response:
        try:
            routed = self._route(request)
            if isinstance(routed, Response):
                return routed
            async with asyncio.timeout(CARRY_OUT_S):
                if isinstance(routed, Coroutine):
                    return await routed
                return await self._carry_out(routed, request)
        except TimeoutError:
            return error_response(500, "Request timed out")
        except Exception:
            log.exception("request failed: %s %s", request.method, request.path)
            return error_response(500, "The request failed inside this process; see its log.")

    def _route_all(self, request: Request) -> Routed:
        if request.path == TRANSLATE_PATH and request.method == "POST":
            # It changes nothing, so `rest.modify.enable` does not restrict it.
            return application_offsets.respond(request, local_view(self._current_view()))
        if request.path == TRANSLATE_PATH:
            return error_response(405, NOT_ALLOWED, headers=application_offsets.ALLOW)
        if request.path not in OWN_PATHS:
            return rest.respond(request, self._current_view())
        if request.method == "OPTIONS":
            return Response(headers=rest.ALLOW)
        if request.method not in {"GET", "HEAD"}:
            return error_response(405, NOT_ALLOWED, headers=rest.ALLOW)
        if request.path == "/healthz":
            silent_s = asyncio.get_running_loop().time() - self._ticked_s
            if silent_s > STALLED_S:
                return json_response({"status": "stalled", "silentSeconds": round(silent_s, 1)}, status=503)
            return json_response({"status": "alive"})
        view = local_view(self._current_view())
        query = dict(parse_qsl(request.query, keep_blank_values=True))
        match request.path:
            case "/readyz" if view.ready:
                return json_response({"status": "ready"})
            case "/readyz":
                return json_response({"status": "starting"}, status=503)
            case "/metrics":
                return metrics.respond(view)
            case "/offsets":
                return group_offsets.offsets(query, view)
            case "/progress":
                return progress.respond(query, view)
            case _:
                return progress.partitions(query, view)

    def _current_view(self) -> WorkerView:
        """Returns the view now; once ready, it stays ready: a partition added later is not a new start.

        Where connectors are changed over REST it can become unready: a new connector is a new start.
        """
        view = self._view()
        self._was_ready = view.ready or (self._was_ready and not view.takes_changes)
        if view.ready == self._was_ready:
            return view
        return replace(view, ready=self._was_ready, serving=self._was_ready)


def _text(header: bytes | None) -> str | None:
    return None if header is None else header.decode("latin-1")
