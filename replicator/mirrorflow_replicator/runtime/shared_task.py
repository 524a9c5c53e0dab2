"""One node's part of a connector whose work is one task without a process of its own: checkpoints, heartbeats.

The node that has the connector writes down that it has one task; the node that has the task does the work.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import replace

from mirrorflow_replicator.errors import MirrorFlowError
from mirrorflow_replicator.flow.report import ConnectorReport
from mirrorflow_replicator.runtime.hosted import Hosted
from mirrorflow_replicator.runtime.hosting import ended
from mirrorflow_replicator.runtime.setbacks import Setbacks
from mirrorflow_replicator.runtime.sharing import RETRY_MAX_S, Share, Shared
from mirrorflow_replicator.runtime.standing_in import StandIn
from mirrorflow_replicator.settings import ConnectorSettings


class SharedTask(Shared):
    """See the module. *make* gives what does the work; *publish* writes down that there is one task."""

    heard_of_all = True

    def __init__(
        self,
        connector: ConnectorSettings,
        *,
        make: Callable[[], Hosted | None],
        publish: Callable[[], Awaitable[None]],
        grace_s: float,
    ) -> None:
        super().__init__()
        self._name = connector.name
        self._absent = StandIn(connector.name, connector.properties, state="RUNNING")
        self._make = make
        self._publish = publish
        self._grace_s = grace_s
        self._inner: Hosted | None = None
        self._running: asyncio.Task[None] | None = None
        self._setbacks = Setbacks(
            f"{connector.name}: its task cannot be written down", pause_max_s=RETRY_MAX_S
        )

    async def run(self) -> None:
        """Follow what is ours until cancelled."""
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

    async def stop(self, grace_s: float) -> None:
        """End the work in order."""
        self._share = Share()
        if self._inner is not None:
            await self._inner.stop(grace_s)
        self._settled.set()

    def report(self) -> ConnectorReport:
        """The connector now."""
        if self._inner is None:
            return self._absent.report()
        report = self._inner.report()
        return replace(report, heard_of_all=self._inner.heard_of_all)

    @property
    def target_cluster_id(self) -> str:
        """The target's own id; "" before it was reached."""
        return "" if self._inner is None else self._inner.target_cluster_id

    async def _wait(self) -> None:
        """Until something else is ours; the end of the work itself is a mistake of ours and not to go unnoticed."""
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
            await ended(running)
