"""Serves the operator's /healthz and /readyz for the kubelet and /metrics for Prometheus.

The endpoints are read-only and expose no flow names.
"""

from collections.abc import Callable
from typing import Final

from aiohttp import web
from prometheus_client.aiohttp import make_aiohttp_handler

from mirrorflow_operator.metrics import Metrics

SHUTDOWN_TIMEOUT_S: Final = 1.0  # a scrape takes a millisecond


async def serve(
    host: str, port: int, metrics: Metrics, sick: Callable[[], str], unready: Callable[[], str]
) -> tuple[web.AppRunner, int]:
    """Starts the server; returns its runner and the port it listens at (chosen by the OS where *port* is 0).

    *sick* and *unready* return a sentence that describes the problem, or "" without one.
    """

    async def healthz(_: web.Request) -> web.Response:
        return _word(sick())

    async def readyz(_: web.Request) -> web.Response:
        return _word(unready())

    application = web.Application()
    application.add_routes(
        [
            web.get("/healthz", healthz),
            web.get("/readyz", readyz),
            web.get("/metrics", make_aiohttp_handler(metrics.registry)),
        ]
    )
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=SHUTDOWN_TIMEOUT_S)
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    return runner, int(runner.addresses[0][1])


def _word(problem: str) -> web.Response:
    return web.Response(status=503 if problem else 200, text=problem or "ok")
