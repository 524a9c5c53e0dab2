"""The HTTP server of a process: sockets, limits and time-outs; what is said comes from `connect`.

It promises that no client costs more than a bounded share: connections, header and body sizes, and the time that a
client may take to send or read are limited. Requests of a connection are answered in order, pipelined or not. A bug in
an answer becomes a 500 with Connect's error body and a log line, not a dead server.
h11 and the renderers are imported by the first connection: a process that nobody asks never pays for them.
"""  # noqa: A005 - a submodule of `runtime`, never imported by the name of the standard library's

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self
from urllib.parse import parse_qsl, urlsplit

from mirrorflow_replicator.errors import InvalidSettingError

if TYPE_CHECKING:
    import ssl

    from mirrorflow_replicator.connect.commands import Command
    from mirrorflow_replicator.connect.view import Request, Response, WorkerView

    CarryOut = Callable[[Command, Request], Awaitable[Response]]
    Route = Callable[[Request], Response | Command]

log = logging.getLogger(__name__)

LISTENERS_KEY = "listeners"
OWN_PATHS = frozenset({"/healthz", "/readyz", "/metrics", "/progress", "/progress/partitions", "/offsets"})
READ_BYTES = 64 * 1024
TICK_S = 1.0
CARRY_OUT_S = 90.0  # as Connect's REST requests
STALLED_S = 10.0  # the loop of a healthy worker never stands still for a hundredth of that


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """What a client may cost."""

    connections: int = 64  # a monitoring system, an operator, probes and a few people; 64 x 64 KiB is 4 MiB
    header_bytes: int = 16 * 1024  # h11's own default; Connect's (Jetty) is 8 KiB
    body_bytes: int = 1024 * 1024  # a configuration to validate has a few kB
    request_s: float = 10.0  # from a request's first byte to its last
    idle_s: float = 60.0  # between requests; Prometheus scrapes every 15 to 60 s
    write_s: float = 30.0  # for a client to take a piece of an answer


LIMITS = HttpLimits()


class HttpServer:
    """Answers on every listener until closed. Make it with `start`."""

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
        self.addresses: tuple[str, ...] = ()  # as listened on, with the ports that were free

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
        """Listen on each of *listeners* (`http://host:port`, `https://host:port`; no host is every address).

        *others_tls* is for all but the first, where they have one of their own.

        `view()` is called for each request, *carry_out* for those that change something; a view that takes changes
        needs one. *route* takes the place of all paths that there are. Raises InvalidSettingError where an address cannot be listened on.
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
        """Stop listening and end every connection."""
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
                # IPv4 and IPv6 would be given different free ports.
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
            from mirrorflow_replicator.runtime.exchange import Exchange  # noqa: PLC0415 - see the module's docstring

            await Exchange(reader, writer, self._limits).serve(self._answer)
        except asyncio.CancelledError:
            # `close` cancels us and waits; Python 3.11 logs a connection's task that ends as cancelled.
            if not self._closing:
                raise
        except (TimeoutError, ConnectionError, EOFError) as error:
            log.debug("client left: %r", error)
        except Exception:
            log.exception("connection failed")
        finally:
            self._connections.discard(task)
            # What a client has not taken in its time is dropped: closing would wait for it for ever.
            if writer.transport.get_write_buffer_size():
                writer.transport.abort()
            else:
                writer.close()

    async def _answer(self, request: Request) -> Response:
        from mirrorflow_replicator.connect.view import Response, error_response  # noqa: PLC0415

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
            from mirrorflow_replicator.connect import rest  # noqa: PLC0415

            return rest.answer(request, self._current())
        if request.method not in {"GET", "HEAD"}:
            return _not_read(request)
        if request.path == "/healthz":
            return self._healthz()
        from mirrorflow_replicator.connect.view import here  # noqa: PLC0415

        view = here(self._current())
        if request.path == "/readyz":
            return _readyz(ready=view.ready)
        if request.path == "/metrics":
            from mirrorflow_replicator.connect import metrics  # noqa: PLC0415

            return metrics.answer(view)
        query = dict(parse_qsl(request.query, keep_blank_values=True))
        if request.path == "/offsets":
            from mirrorflow_replicator.connect import group_offsets  # noqa: PLC0415

            return group_offsets.answer(query, view)
        from mirrorflow_replicator.connect import progress  # noqa: PLC0415

        if request.path == "/progress":
            return progress.answer(query, view)
        return progress.partitions(query, view)

    def _current(self) -> WorkerView:
        """The view of this moment; who was ready once stays so, for a partition added later is no new start.

        A connector that was made over REST is one.
        """
        view = self._view()
        self._was_ready = view.ready or (self._was_ready and not view.takes_changes)
        if view.ready == self._was_ready:
            return view
        return replace(view, ready=self._was_ready, serving=self._was_ready)

    def _healthz(self) -> Response:
        from mirrorflow_replicator.connect.view import json_response  # noqa: PLC0415

        silent_s = asyncio.get_running_loop().time() - self._ticked_s
        if silent_s > STALLED_S:
            return json_response({"status": "stalled", "silentSeconds": round(silent_s, 1)}, status=503)
        return json_response({"status": "alive"})


def _readyz(*, ready: bool) -> Response:
    from mirrorflow_replicator.connect.view import json_response  # noqa: PLC0415

    if ready:
        return json_response({"status": "ready"})
    return json_response({"status": "starting"}, status=503)


def _not_read(request: Request) -> Response:
    from mirrorflow_replicator.connect.view import Response, error_response  # noqa: PLC0415

    allow = (("Allow", "GET,HEAD,OPTIONS"),)
    if request.method == "OPTIONS":
        return Response(headers=allow)
    return error_response(405, "HTTP 405 Method Not Allowed", headers=allow)


def _parse(listener: str) -> tuple[str, str, int]:
    """Scheme, host (empty: every address) and port of a listener as Java writes it."""
    try:
        parts = urlsplit(listener)
        scheme, host, port = parts.scheme.lower(), parts.hostname or "", parts.port
    except ValueError:  # a port that is none, a bracket that does not close
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
