"""Limits how fast a task copies, and detects that the process did not run for a while."""

import asyncio
import math
import time
from collections.abc import Callable

PAUSE_S = 1.0  # after a longer pause another process may own the flow
BURST_S = 0.25  # how far ahead of the rate one response may be
# For how long one response may hold its reader back, unless its first batch takes longer: a full response of 4 MiB would hold it for
# minutes at a low limit, and what all partitions copy would come in bursts.
RESPONSE_HOLD_S = 2.0
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # also counts while the machine is suspended


class PauseWatch:
    """Detects that this process did not run: it was frozen or swapped out, or its machine was suspended.

    *on_pause* is called with the duration in seconds.
    """

    __slots__ = ("_last_s", "_on_pause")

    def __init__(self, *, on_pause: Callable[[float], None]) -> None:
        self._on_pause = on_pause
        self._last_s = time.clock_gettime(_CLOCK)

    def beat(self) -> None:
        """Checks for a pause. Must be called often, and before anything is written."""
        now_s = time.clock_gettime(_CLOCK)
        paused_s, self._last_s = now_s - self._last_s, now_s
        if paused_s > PAUSE_S:
            self._on_pause(paused_s)


class RateLimiter:
    """A limit in bytes per second that can be changed at any time; None: no limit."""

    def __init__(self, bytes_per_s: int | None) -> None:
        self._bytes_per_s = bytes_per_s
        self._held_until_s: dict[int, float] = {}
        self._paid_until_s = 0.0

    def limit(self, bytes_per_s: int | None) -> None:
        """Changes the limit."""
        self._bytes_per_s = bytes_per_s

    def held_until_s(self, reader: int) -> float:
        """Returns when the newest wait of *reader* ends or has ended (monotonic clock)."""
        return self._held_until_s.get(reader, -math.inf)

    @property
    def held_s(self) -> float:
        """How much longer a reader waits at most; 0 if none does."""
        return max(0.0, max(self._held_until_s.values(), default=0.0) - time.monotonic())

    @property
    def response_bytes_max(self) -> int | None:
        """How large a response is worth to be requested; None without a limit."""
        return max(1, int(self._bytes_per_s * RESPONSE_HOLD_S)) if self._bytes_per_s else None

    async def spend(self, size_bytes: int, *, reader: int = 0) -> None:
        """Waits until *reader* may read *size_bytes* more."""
        if not self._bytes_per_s:
            return
        now_s = time.monotonic()
        self._paid_until_s = max(self._paid_until_s, now_s - BURST_S) + size_bytes / self._bytes_per_s
        if self._paid_until_s > now_s:
            self._held_until_s[reader] = self._paid_until_s
            await asyncio.sleep(self._paid_until_s - now_s)
