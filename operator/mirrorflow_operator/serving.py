"""The operator's own HTTP: /healthz and /readyz for kubelet, /metrics for Prometheus. Read-only, and says nothing of flows' names."""

from collections.abc import Callable
from typing import Final

from aiohttp import web

from mirrorflow_operator.metrics import Metrics

METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
SHUTDOWN_TIMEOUT_S: Final = 1.0  # a scrape takes a millisecond


async def serve(
    host: str, port: int, metrics: Metrics, sick: Callable[[], str], unready: Callable[[], str]
) -> tuple[web.AppRunner, int]:
    """Starts to listen; the port is the one that was chosen where *port* is 0.

    *sick* and *unready* give a sentence, or "" where all is well.
    """

    async def healthz(_: web.Request) -> web.Response:
        return _word(sick())

    async def readyz(_: web.Request) -> web.Response:
        return _word(unready())

    async def page(_: web.Request) -> web.Response:
        return web.Response(body=metrics.text().encode(), headers={"Content-Type": METRICS_TYPE})

    application = web.Application()
    application.add_routes(
        [web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", page)]
    )
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=SHUTDOWN_TIMEOUT_S)
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    return runner, int(runner.addresses[0][1])


def _word(problem: str) -> web.Response:
    return web.Response(status=503 if problem else 200, text=problem or "ok")
