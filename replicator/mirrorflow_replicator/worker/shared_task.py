"""Runs one node's part of a connector with one task and no process for it: checkpoints or heartbeats.

The node that has the connector stores that it has one task; the node that has the task does the work.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import replace

from mirrorflow_core.errors import MirrorFlowError
from mirrorflow_core.reports import ConnectorReport
from mirrorflow_core.settings import ConnectorSettings
from mirrorflow_kafka.client.cancellation import cancel_and_wait
from mirrorflow_replicator.connectors.connector_host import ConnectorHost
from mirrorflow_replicator.connectors.idle_connector import IdleConnector
from mirrorflow_replicator.connectors.retry_state import RetryState
from mirrorflow_replicator.worker.shared_source import RETRY_MAX_S, SharedSource, TaskShare


class SharedTask(SharedSource):
    """One node's part of a checkpoint or heartbeat connector.

    *make* returns the host that does the work; *publish* stores that there is one task.
    """

    heard_of_all = True

    def __init__(
        self,
        connector: ConnectorSettings,
        *,
        make: Callable[[], ConnectorHost | None],
        publish: Callable[[], Awaitable[None]],
        grace_s: float,
    ) -> None:
        super().__init__()
        self._name = connector.name
        self._absent = IdleConnector(
            connector.name, connector.properties, state="PAUSED" if connector.is_paused else "RUNNING"
        )
        self._make = make
        self._publish = publish
        self._grace_s = grace_s
        self._inner: ConnectorHost | None = None
        self._running: asyncio.Task[None] | None = None
        self._setbacks = RetryState(
            f"{connector.name}: its task cannot be written down", pause_max_s=RETRY_MAX_S
        )

    async def run(self) -> None:
        """Follows this node's share until cancelled."""
        try:
            while True:
                self._changed.clear()
                await self._follow()
                self._settled.set()
                try:
                    if self._share.leads:
                        await self._publish()
                except MirrorFlowError as error:
                    self._setbacks.note(error)
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(self._setbacks.pause_s):
                            await self._wait()
                else:
                    self._setbacks.over()
                    await self._wait()
        finally:
            await self._end()
            self._end_share()

    async def stop(self, grace_s: float) -> None:
        """Stops the work gracefully."""
        self._share, self._is_over = TaskShare(), True
        if self._inner is not None:
            await self._inner.stop(grace_s)
        self._end_share()

    def report(self) -> ConnectorReport:
        """Reports the connector now."""
        if self._inner is None:
            return self._absent.report()
        report = self._inner.report()
        return replace(report, heard_of_all=self._inner.heard_of_all)

    @property
    def target_cluster_id(self) -> str:
        """The target's cluster id; "" before the target was first reached."""
        return "" if self._inner is None else self._inner.target_cluster_id

    async def _wait(self) -> None:
        """Waits until the share changes; raises if the work itself has ended, which is a bug."""
        changed = asyncio.create_task(self._changed.wait())
        waits = {changed} if self._running is None else {changed, self._running}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if self._running is not None and self._running.done():
                self._running.result()
        finally:
            changed.cancel()

    async def _follow(self) -> None:
        if self._share.tasks and self._inner is None:
            self._inner = self._make()
            assert self._inner is not None
            self._running = asyncio.create_task(self._inner.run(), name=f"task-{self._name}")
        if not self._share.tasks:
            await self._end()

    async def _end(self) -> None:
        inner, running = self._inner, self._running
        self._inner = self._running = None
        if inner is not None and running is not None:
            await inner.stop(self._grace_s)
            await cancel_and_wait(running)
