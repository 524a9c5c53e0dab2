"""Runs one connector of a file, or its paused form; the file may change that while the process runs.

    run ──> set_state(another state) ──> stop gracefully ──> run the other form

Guarantees: both forms never run at the same time. The report is that of the form that runs, so a connector
that is about to pause is RUNNING until it has stopped.
"""

import asyncio
from dataclasses import replace

from mirrorflow_core.reports import ConnectorReport
from mirrorflow_core.settings import ConnectorSettings
from mirrorflow_kafka.client.cancellation import cancel_and_wait
from mirrorflow_replicator.connectors.connector_host import ConnectorHost, host
from mirrorflow_replicator.http.samples import Samples
from mirrorflow_replicator.worker.state_files import PAUSED, with_state


class FileConnector:
    """A connector of a file. *hosted* runs it first; stopping it may take *grace_s*."""

    def __init__(
        self, settings: ConnectorSettings, hosted: ConnectorHost, *, samples: Samples, grace_s: float
    ) -> None:
        self.settings = settings
        self._hosted = hosted
        self._samples = samples
        self._grace_s = grace_s
        self._changed = asyncio.Event()
        self._is_over = False

    @property
    def copies(self) -> bool:
        """Whether it is a source connector."""
        return self.settings.source is not None

    def set_state(self, state: str) -> None:
        """Runs the paused form from now on, or the other one."""
        if self.settings.is_paused == (state == PAUSED):
            return
        properties = with_state(self.settings.properties, state)
        self.settings = replace(self.settings, is_paused=state == PAUSED, properties=properties)
        self._changed.set()

    async def run(self) -> None:
        """Runs the form that is wanted until cancelled; ends if that form ends by itself."""
        while True:
            running = asyncio.create_task(self._hosted.run())
            changed = asyncio.create_task(self._changed.wait())
            try:
                await asyncio.wait({running, changed}, return_when=asyncio.FIRST_COMPLETED)
                if running.done():
                    return running.result()
                await self._hosted.stop(self._grace_s)
            finally:
                await asyncio.gather(*(cancel_and_wait(one) for one in (running, changed) if not one.done()))
            if self._is_over:
                await asyncio.Event().wait()  # to be cancelled
            self._changed.clear()
            hosted = host(self.settings, samples=self._samples)
            assert hosted is not None, "settings that ask for nothing do so in both forms"
            self._hosted = hosted

    async def stop(self, grace_s: float) -> None:
        """Stops it gracefully; nothing starts after this."""
        self._is_over = True
        await self._hosted.stop(grace_s)

    def report(self) -> ConnectorReport:
        """Returns the current report of the connector."""
        return self._hosted.report()

    @property
    def heard_of_all(self) -> bool:
        """Whether everything it does was reported once."""
        return self._hosted.heard_of_all

    @property
    def target_cluster_id(self) -> str:
        """The target's cluster id; "" before it was reached."""
        return self._hosted.target_cluster_id
