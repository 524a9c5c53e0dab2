"""Where one connector runs whose settings may change at any time: what runs there follows what is wanted there.

    want(new) ──> the old one ends in order ──> the new one starts
        ^   └── wanted otherwise meanwhile: only the newest counts ──┘

Promises: at most one of a name runs at a time; whoever waits until it is `settled` finds what he wanted, or that it was
wanted otherwise since; a place does not hold up another one's change.
"""

import asyncio
from collections.abc import Callable

from mirrorflow_replicator.connect.herd import Wanted
from mirrorflow_replicator.runtime.hosted import Hosted
from mirrorflow_replicator.runtime.hosting import ended


class Place:
    """See the module. *make* starts nothing: it gives what `run` will run.

    *broken* hears of a run that has ended, or could not be made.
    """

    def __init__(
        self,
        name: str,
        *,
        make: Callable[[str, Wanted], Hosted],
        broken: Callable[["asyncio.Task[None]"], None],
        grace_s: float,
    ) -> None:
        self.name = name
        self.hosted: Hosted | None = None
        self._make = make
        self._broken = broken
        self._grace_s = grace_s
        self._wanted: Wanted | None = None
        self._current: Wanted | None = None
        self._running: asyncio.Task[None] | None = None
        self._moving: asyncio.Task[None] | None = None

    def want(self, wanted: Wanted | None) -> None:
        """Run this from now on; None for nothing."""
        self._wanted = wanted
        if wanted != self._current and self.is_settled:
            self._moving = asyncio.create_task(self._move(), name=f"place-{self.name}")
            self._moving.add_done_callback(self._moved)

    @property
    def is_settled(self) -> bool:
        """Whether what runs is what is wanted."""
        return self._moving is None or self._moving.done()

    async def settled(self) -> None:
        """Wait until what runs is what is wanted."""
        while self._moving is not None and not self._moving.done():
            await asyncio.wait({self._moving})
        if self._moving is not None:
            self._moving.result()

    async def _move(self) -> None:
        while self._current != self._wanted:
            await self._end()
            # Looked at only now: ending took its time.
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
        await ended(running)
        self.hosted = None

    def _moved(self, moving: "asyncio.Task[None]") -> None:
        if not moving.cancelled() and moving.exception() is not None:
            self._broken(moving)

    def _ended(self, running: "asyncio.Task[None]") -> None:
        if running is self._running and not running.cancelled():
            self._broken(running)
