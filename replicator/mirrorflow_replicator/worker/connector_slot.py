"""Runs one connector whose settings may change at any time; what runs follows what is wanted.

    want(new) ──> the old one stops gracefully ──> the new one starts
        ^   └── changed again meanwhile: only the newest counts ──┘

Guarantees: at most one connector of a name runs at a time. When `settled` returns, what runs is what is
wanted then, which may have changed since the call. A slot does not delay another slot's change.
"""

import asyncio
from collections.abc import Callable

from mirrorflow_kafka.client.cancellation import cancel_and_wait
from mirrorflow_replicator.connectors.connector_host import ConnectorHost
from mirrorflow_replicator.http.command_decisions import Wanted


class ConnectorSlot:
    """The slot of one connector. *make* starts nothing: it returns the host whose `run` the slot runs.

    *broken* receives each run that has ended by itself or could not be created.
    """

    def __init__(
        self,
        name: str,
        *,
        make: Callable[[str, Wanted], ConnectorHost],
        broken: Callable[["asyncio.Task[None]"], None],
        grace_s: float,
    ) -> None:
        self.name = name
        self.hosted: ConnectorHost | None = None
        self._make = make
        self._broken = broken
        self._grace_s = grace_s
        self._wanted: Wanted | None = None
        self._current: Wanted | None = None
        self._running: asyncio.Task[None] | None = None
        self._moving: asyncio.Task[None] | None = None

    def want(self, wanted: Wanted | None) -> None:
        """Runs *wanted* from now on; None stops the connector."""
        self._wanted = wanted
        if wanted != self._current and self.is_settled:
            self._moving = asyncio.create_task(self._move(), name=f"place-{self.name}")
            self._moving.add_done_callback(self._moved)

    @property
    def is_settled(self) -> bool:
        """Whether no change is under way."""
        return self._moving is None or self._moving.done()

    async def settled(self) -> None:
        """Waits until what runs is what is wanted."""
        while self._moving is not None and not self._moving.done():
            await asyncio.wait({self._moving})
        if self._moving is not None:
            self._moving.result()

    async def _move(self) -> None:
        while self._current != self._wanted:
            await self._end()
            # Read only now: stopping took its time.
            wanted = self._wanted
            if wanted is not None:
                self.hosted = self._make(self.name, wanted)
                self._running = asyncio.create_task(self.hosted.run(), name=f"connector-{self.name}")
                self._running.add_done_callback(self._ended)
            self._current = wanted

    async def _end(self) -> None:
        hosted, running = self.hosted, self._running
        if hosted is None or running is None:
            return
        await hosted.stop(self._grace_s)
        self._running = None
        await cancel_and_wait(running)
        self.hosted = None

    def _moved(self, moving: "asyncio.Task[None]") -> None:
        if not moving.cancelled() and moving.exception() is not None:
            self._broken(moving)

    def _ended(self, running: "asyncio.Task[None]") -> None:
        if running is self._running and not running.cancelled():
            self._broken(running)
