"""The operator detects that kopf has ended its watches."""

import asyncio
import threading

import kopf
import pytest

from mirrorflow_operator.cluster.watches import Watches
from mirrorflow_operator.errors import NoResponseError
from tests.harness.kafka.processes import wait_until


def test_watches_are_not_alive_if_kopf_ends(monkeypatch: pytest.MonkeyPatch):
    """kopf ends if the API server does not respond to its first requests.

    Its thread then still waits for the stop flag.
    """

    async def failing_kopf(*, stop_flag: threading.Event, **_: object) -> None:
        asyncio.get_running_loop().run_in_executor(None, stop_flag.wait)
        raise NoResponseError("GET /apis", "no response")

    async def watch() -> None:
        watches = Watches(namespaces=(), loop=asyncio.get_running_loop(), on_event=lambda *_: None)
        watches.start()
        try:
            await asyncio.to_thread(wait_until, "the watches have ended", lambda: not watches.alive)
        finally:
            await watches.stop()

    monkeypatch.setattr(kopf, "operator", failing_kopf)
    asyncio.run(watch())
