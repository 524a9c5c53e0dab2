"""The HTTP server of a process: sockets, limits and timeouts; other modules of `http` produce the answers.

Guarantees: each client's cost is bounded, by limits on connections, header and body sizes, and the time a
client may take to send or read. Requests of a connection are answered in order, pipelined or not. A bug in an
answer becomes a 500 with Connect's error body and a log line, and the server keeps running. h11 and the
renderers are imported at the first connection: a process that receives no request does not pay for them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self
from urllib.parse import parse_qsl, urlsplit

from mirrorflow_core.errors import InvalidSettingError

if TYPE_CHECKING:
    import ssl

    from mirrorflow_replicator.http.commands import Command
    from mirrorflow_replicator.http.worker_view import Request, Response, WorkerView

    CarryOut = Callable[[Command, Request], Awaitable[Response]]
    Route = Callable[[Request], Response | Command]

log = logging.getLogger(__name__)

LISTENERS_KEY = "listeners"
OWN_PATHS = frozenset({"/healthz", "/readyz", "/metrics", "/progress", "/progress/partitions", "/offsets"})
READ_BYTES = 64 * 1024
TICK_S = 1.0
CARRY_OUT_S = 90.0  # as for Connect's REST requests
STALLED_S = 10.0  # a healthy worker never blocks the loop for a hundredth of that


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """The limits for one client, and for all of them together."""

    connections: int = 64  # a monitoring system, an operator, probes and a few people; 64 x 64 KiB is 4 MiB
    header_bytes: int = 16 * 1024  # h11's own default; Connect's (Jetty) is 8 KiB
    body_bytes: int = 1024 * 1024  # a configuration to validate has a few kB
    request_s: float = 10.0  # from a request's first byte to its last
    idle_s: float = 60.0  # between requests; Prometheus scrapes every 15 to 60 s
    write_s: float = 30.0  # for a client to take a piece of an answer


LIMITS = HttpLimits()


class HttpServer:
    """Answers on every listener until closed. Create it with `start`."""

    def __init__(
        self,
        view: Callable[[], WorkerView],
        limits: HttpLimits,
        carry_out: CarryOut | None = None,
        route: Route | None = None,
    ) -> None:
        self._view = view
        self._route = route or self._route_all
        self._carry_out = carry_out
        self._limits = limits
        self._servers: list[asyncio.Server] = []
        self._connections: set[asyncio.Task[None]] = set()
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
        carry_out: CarryOut | None = None,
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
                [await server._listen(one, (at and others_tls) or tls) for at, one in enumerate(listeners)]
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
        scheme, host, port = _parse(listener)
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
                host or (None if port else "0.0.0.0"),  # noqa: S104 - the listener asks for every address
                port,
                ssl=tls if scheme == "https" else None,
                ssl_handshake_timeout=self._limits.request_s if scheme == "https" else None,
                limit=READ_BYTES,
            )
        except OSError as error:
            raise InvalidSettingError(
                key=LISTENERS_KEY,
                problem=f"{listener} cannot be listened on: {error.strerror or error}",
                action="choose a free port of this host",
            ) from error
        self._servers.append(server)
        bound_host, bound_port = server.sockets[0].getsockname()[:2]
        return (
            f"{scheme}://[{bound_host}]:{bound_port}"
            if ":" in bound_host
            else f"{scheme}://{bound_host}:{bound_port}"
        )

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
            from mirrorflow_replicator.http.connection import HttpConnection  # noqa: PLC0415 - see the module's docstring

            await HttpConnection(reader, writer, self._limits).serve(self._answer)
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

    async def _answer(self, request: Request) -> Response:
        from mirrorflow_replicator.http.worker_view import Response, error_response  # noqa: PLC0415

        try:
            found = self._route(request)
            if isinstance(found, Response):
                return found
            assert self._carry_out is not None
            async with asyncio.timeout(CARRY_OUT_S):
                return await self._carry_out(found, request)
        except TimeoutError:
            return error_response(500, "Request timed out")
        except Exception:
            log.exception("request failed: %s %s", request.method, request.path)
            return error_response(500, "The request failed inside this process; its log says why.")

    def _route_all(self, request: Request) -> Response | Command:
        if request.path not in OWN_PATHS:
            from mirrorflow_replicator.http import rest  # noqa: PLC0415

            return rest.answer(request, self._current())
        if request.method not in {"GET", "HEAD"}:
            return _not_read(request)
        if request.path == "/healthz":
            return self._healthz()
        from mirrorflow_replicator.http.worker_view import here  # noqa: PLC0415

        view = here(self._current())
        if request.path == "/readyz":
            return _readyz(ready=view.ready)
        if request.path == "/metrics":
            from mirrorflow_replicator.http import metrics  # noqa: PLC0415

            return metrics.answer(view)
        query = dict(parse_qsl(request.query, keep_blank_values=True))
        if request.path == "/offsets":
            from mirrorflow_replicator.http import group_offsets  # noqa: PLC0415

            return group_offsets.answer(query, view)
        from mirrorflow_replicator.http import progress  # noqa: PLC0415

        if request.path == "/progress":
            return progress.answer(query, view)
        return progress.partitions(query, view)

    def _current(self) -> WorkerView:
        """Returns the view now; once ready, it stays ready: a partition added later is not a new start.

        Where connectors are changed over REST it can become unready: a new connector is a new start.
        """
        view = self._view()
        self._was_ready = view.ready or (self._was_ready and not view.takes_changes)
        if view.ready == self._was_ready:
            return view
        return replace(view, ready=self._was_ready, serving=self._was_ready)

    def _healthz(self) -> Response:
        from mirrorflow_replicator.http.worker_view import json_response  # noqa: PLC0415

        silent_s = asyncio.get_running_loop().time() - self._ticked_s
        if silent_s > STALLED_S:
            return json_response({"status": "stalled", "silentSeconds": round(silent_s, 1)}, status=503)
        return json_response({"status": "alive"})


def _readyz(*, ready: bool) -> Response:
    from mirrorflow_replicator.http.worker_view import json_response  # noqa: PLC0415

    if ready:
        return json_response({"status": "ready"})
    return json_response({"status": "starting"}, status=503)


def _not_read(request: Request) -> Response:
    from mirrorflow_replicator.http.worker_view import Response, error_response  # noqa: PLC0415

    allow = (("Allow", "GET,HEAD,OPTIONS"),)
    if request.method == "OPTIONS":
        return Response(headers=allow)
    return error_response(405, "HTTP 405 Method Not Allowed", headers=allow)


def _parse(listener: str) -> tuple[str, str, int]:
    """Returns scheme, host (empty: every address) and port of a listener in Java's form."""
    try:
        parts = urlsplit(listener)
        scheme, host, port = parts.scheme.lower(), parts.hostname or "", parts.port
    except ValueError:  # an invalid port, or a bracket that does not close
        scheme, host, port = "", "", None
    if (
        scheme not in {"http", "https"}
        or port is None
        or parts.path.strip("/")
        or parts.query
        or parts.username
    ):
        raise InvalidSettingError(
            key=LISTENERS_KEY,
            problem=f"{listener} is no listener",
            action="write http://host:port or https://host:port",
        )
    return scheme, host, port
