"""Two clocks of a task: how fast it may copy, and whether it was stopped for a while without knowing."""

import asyncio
import time
from collections.abc import Callable

PAUSE_S = 1.0  # clause 4: after a longer pause others may have copied, so the target is asked
BURST_S = 0.25  # how far ahead of the rate one answer may run
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # counts a suspended machine as well


class PauseWatch:
    """Notices that this process did not run: it was frozen, swapped out, or its machine was."""

    __slots__ = ("_last_s", "_on_pause")

    def __init__(self, *, on_pause: Callable[[], None]) -> None:
        self._on_pause = on_pause
        self._last_s = time.clock_gettime(_CLOCK)

    def beat(self) -> None:
        """To be called often, and before anything is written."""
        now_s = time.clock_gettime(_CLOCK)
        paused = now_s - self._last_s > PAUSE_S
        self._last_s = now_s
        if paused:
            self._on_pause()


class Pace:
    """A limit of bytes per second, changeable at any time; None is no limit."""

    def __init__(self, bytes_per_s: int | None) -> None:
        self.bytes_per_s = bytes_per_s
        self._paid_until_s = 0.0

    async def spend(self, size_bytes: int) -> None:
        """Wait until *size_bytes* more may be read."""
        if not self.bytes_per_s:
            return
        now_s = time.monotonic()
        self._paid_until_s = max(self._paid_until_s, now_s - BURST_S) + size_bytes / self.bytes_per_s
        if self._paid_until_s > now_s:
            await asyncio.sleep(self._paid_until_s - now_s)
