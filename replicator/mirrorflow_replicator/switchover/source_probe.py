"""Finds out in the background whether the source of an unplanned switchover answers, so that nothing has to wait for it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

from mirrorflow_core.errors import MirrorFlowError
from mirrorflow_core.switchover.record import SWITCHOVERS_TOPIC
from mirrorflow_kafka.client.cancellation import cancel_and_wait
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.config.providers import Resolver
from mirrorflow_replicator.switchover.pair_settings import SwitchoverSettings

# A broker that works answers within milliseconds, from another continent within one second.
PROBE_TIMEOUT_S: Final = 4.0
PROBE_INTERVAL_S: Final = 1.0


class SourceProbe:
    """Connects to the source again and again. `cluster` is its client while it answers, otherwise None."""

    def __init__(self, settings: SwitchoverSettings) -> None:
        self.cluster: Cluster | None = None
        self._settings = settings
        self._client: Cluster | None = None
        self._has_tried = asyncio.Event()

    async def wait_for_result(self) -> Cluster | None:
        """Returns `cluster` after the first attempt."""
        await self._has_tried.wait()
        return self.cluster

    async def run(self) -> None:
        """Tries for ever."""
        while True:
            try:
                self.cluster = await self._connected()
            except (MirrorFlowError, TimeoutError):
                self.cluster = None
            self._has_tried.set()
            await asyncio.sleep(PROBE_INTERVAL_S)

    async def close(self) -> None:
        """Closes the connections."""
        self.cluster = None
        if self._client is not None:
            await self._client.close()

    async def _connected(self) -> Cluster:
        if self._client is None:
            back = self._settings.back
            self._client = await Cluster.connect(
                back.target_admin, resolve=Resolver(back.providers).resolve_client, timeout_s=PROBE_TIMEOUT_S
            )
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            await self._client.refresh([SWITCHOVERS_TOPIC])
        return self._client


@contextlib.asynccontextmanager
async def source_probe(settings: SwitchoverSettings) -> AsyncIterator[SourceProbe]:
    """Probes the source inside the block."""
    probe = SourceProbe(settings)
    running = asyncio.create_task(probe.run(), name=f"probe-{settings.source}")
    try:
        yield probe
    finally:
        await cancel_and_wait(running)
        await probe.close()
