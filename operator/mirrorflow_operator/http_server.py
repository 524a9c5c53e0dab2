"""Serves the operator's /healthz and /readyz for the kubelet and /metrics for Prometheus.

The endpoints are read-only and expose no flow names. What a client can cost is bounded: a connection serves
one request, and ends DEADLINE_S after it began, whatever its client has sent or read by then.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, cast

from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client.aiohttp import make_aiohttp_handler

from mirrorflow_operator.metrics import Metrics

DEADLINE_S: Final = 10.0  # Prometheus' default timeout of a scrape; probes wait for less
CONNECTIONS_MAX: Final = 64  # probes, a few Prometheus servers and people
SHUTDOWN_TIMEOUT_S: Final = 1.0  # a scrape takes a millisecond


@asynccontextmanager
async def serving(
    host: str, port: int, metrics: Metrics, sick: Callable[[], str], unready: Callable[[], str]
) -> AsyncIterator[int]:
    """Serves inside the block, on the port that it yields (chosen by the OS where *port* is 0).

    *sick* and *unready* return a sentence that describes the problem, or "" without one.
    """

    async def healthz(_: web.Request) -> web.Response:
        return _word(sick())

    async def readyz(_: web.Request) -> web.Response:
        return _word(unready())

    application = web.Application(middlewares=[_one_request])
    application.add_routes(
        [
            web.get("/healthz", healthz),
            web.get("/readyz", readyz),
            web.get("/metrics", make_aiohttp_handler(metrics.registry)),
        ]
    )
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=SHUTDOWN_TIMEOUT_S)
    await runner.setup()
    handlers = cast("web.Server", runner.server)  # set by setup()
    try:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _BoundedConnection(handlers), host, port)
        try:
            yield int(server.sockets[0].getsockname()[1])
        finally:
            server.close()  # listening only; connections end with the runner
    finally:
        await runner.cleanup()


class _BoundedConnection(asyncio.Protocol):
    """Passes a new connection to aiohttp, which limits neither their number nor the time of a request."""

    def __init__(self, handlers: web.Server) -> None:
        self._handlers = handlers

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        connection = cast("asyncio.Transport", transport)
        if len(self._handlers.connections) >= CONNECTIONS_MAX:
            connection.abort()
            return
        handler = self._handlers()
        connection.set_protocol(handler)
        handler.connection_made(connection)
        asyncio.get_running_loop().call_later(DEADLINE_S, connection.abort)


@web.middleware
async def _one_request(request: web.Request, handler: Handler) -> web.StreamResponse:
    response = await handler(request)
    response.force_close()
    return response


def _word(problem: str) -> web.Response:
    return web.Response(status=503 if problem else 200, text=problem or "ok")
