"""The HTTP server of a process: sockets, limits, TLS and timeouts; other modules of `http` produce the answers.

Guarantees: each client's cost is bounded, by limits on connections, header and body sizes, and the time a client may take to
send or read. Requests of a connection are answered in order, pipelined or not. A bug in an answer becomes a 500 with Connect's
error body and a log line, and the server keeps running.

TLS is read from Java's `ssl.*` as in Connect's REST server (RestServer, SSLUtils), in every form that clients may use. It
follows the files: connections opened after a certificate was renewed get the new one.
"""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Self
from urllib.parse import parse_qsl

from mirrorflow_core.errors import InvalidSettingError, SettingError
from mirrorflow_kafka.security.keystores import client_key, trusted_certificates
from mirrorflow_kafka.security.rotation import LOOK_S, stamp
from mirrorflow_kafka.security.tls import choose_ciphers, choose_versions, load_key, trust
from mirrorflow_replicator.config.worker import LISTENERS_KEY, parse_listener
from mirrorflow_replicator.http import metrics, progress, rest
from mirrorflow_replicator.http.commands import NOT_ALLOWED, Command
from mirrorflow_replicator.http.connection import LIMITS, READ_BYTES, HttpConnection, HttpLimits
from mirrorflow_replicator.http.worker_view import (
    Request,
    Response,
    WorkerView,
    error_response,
    here,
    json_response,
)

CarryOut = Callable[[Command, Request], Awaitable[Response]]
Route = Callable[[Request], Response | Command]

log = logging.getLogger(__name__)

OWN_PATHS = frozenset({"/healthz", "/readyz", "/metrics", "/progress", "/progress/partitions", "/offsets"})
TICK_S = 1.0
CARRY_OUT_S = 90.0  # as for Connect's REST requests
STALLED_S = 10.0  # a healthy worker never blocks the loop for a hundredth of that


async def refuse(_command: Command, _request: Request) -> Response:
    """Carries nothing out: the answer where connectors cannot be changed."""
    return error_response(405, NOT_ALLOWED, headers=rest.ALLOW)


class HttpServer:
    """Answers on every listener until closed. Create it with `start`."""

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
        try:
            found = self._route(request)
            if isinstance(found, Response):
                return found
            async with asyncio.timeout(CARRY_OUT_S):
                return await self._carry_out(found, request)
        except TimeoutError:
            return error_response(500, "Request timed out")
        except Exception:
            log.exception("request failed: %s %s", request.method, request.path)
            return error_response(500, "The request failed inside this process; its log says why.")

    def _route_all(self, request: Request) -> Response | Command:
        if request.path not in OWN_PATHS:
            return rest.answer(request, self._current())
        if request.method == "OPTIONS":
            return Response(headers=rest.ALLOW)
        if request.method not in {"GET", "HEAD"}:
            return error_response(405, NOT_ALLOWED, headers=rest.ALLOW)
        if request.path == "/healthz":
            silent_s = asyncio.get_running_loop().time() - self._ticked_s
            if silent_s > STALLED_S:
                return json_response({"status": "stalled", "silentSeconds": round(silent_s, 1)}, status=503)
            return json_response({"status": "alive"})
        view = here(self._current())
        query = dict(parse_qsl(request.query, keep_blank_values=True))
        match request.path:
            case "/readyz" if view.ready:
                return json_response({"status": "ready"})
            case "/readyz":
                return json_response({"status": "starting"}, status=503)
            case "/metrics":
                return metrics.answer(view)
            case "/offsets":
                return progress.offsets(query, view)
            case "/progress":
                return progress.answer(query, view)
            case _:
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


_CLIENT_AUTH = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}

secrets_log = logging.getLogger("mirrorflow.secrets")


class ServerTls:
    """The TLS of the listeners, from the current *resolved* properties.

    Raises SettingError if the first ones are wrong.
    """

    def __init__(self, resolved: Callable[[], Mapping[str, str]]) -> None:
        self._resolved = resolved
        self._seen = self._read()
        self._newest, self.warnings = server_context(self._seen[0])
        self.context = self._newest  # passed to the listeners; it switches each connection to the newest
        self.context.sni_callback = self._use_newest
        self._reported = ""

    async def follow(self) -> None:
        """Checks for renewed certificates until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.reload()

    def reload(self) -> None:
        """Applies changed files; if they are unusable, logs that once and keeps the last good certificate."""
        try:
            seen = self._read()
            if seen == self._seen:
                return
            self._newest, _ = server_context(seen[0])
        except SettingError as error:
            if str(error) != self._reported:
                self._reported = str(error)
                secrets_log.warning("HTTPS keeps using the previous certificate: %s", error)
            return
        self._seen, self._reported = seen, ""
        secrets_log.info("HTTPS now uses the renewed certificate")

    def _read(self) -> tuple[Mapping[str, str], Mapping[str, object]]:
        properties = dict(self._resolved())
        return properties, {
            key: stamp(value) for key, value in properties.items() if key.endswith(".location")
        }

    def _use_newest(self, caller: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        # Called at every ClientHello, with or without a server name.
        caller.context = self._newest


def server_context(properties: Mapping[str, str]) -> tuple[ssl.SSLContext, tuple[str, ...]]:
    """Returns a server's context and its warnings. Raises SettingError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    warnings = [*choose_versions(context, properties), *choose_ciphers(context, properties)]
    own = client_key(properties)
    if own is None:
        raise InvalidSettingError(
            key="ssl.keystore.location",
            problem="it is missing, and a listener is https",
            action="name the server's keystore, or write http:// listeners only",
        )
    load_key(context, own)
    written = properties.get("ssl.client.auth", "none").strip().lower()
    if written not in _CLIENT_AUTH:
        raise InvalidSettingError(
            key="ssl.client.auth",
            problem=f"{written!r} is not known",
            action="write " + " or ".join(_CLIENT_AUTH),
        )
    if _CLIENT_AUTH[written] is not ssl.CERT_NONE:
        _ask_for_certificates(context, properties, _CLIENT_AUTH[written])
    return context, tuple(warnings)


def _ask_for_certificates(
    context: ssl.SSLContext, properties: Mapping[str, str], mode: ssl.VerifyMode
) -> None:
    """Makes *context* request client certificates. Raises InvalidSettingError without a trust store.

    Without one the public authorities would be trusted, and anyone can get a certificate from them.
    """
    anchors = trusted_certificates(properties)
    if anchors is None:
        raise InvalidSettingError(
            key="ssl.truststore.location",
            problem="it is missing, and ssl.client.auth asks for certificates",
            action="name the store of the authorities that are trusted",
        )
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    trust(context, anchors)
    context.verify_mode = mode
