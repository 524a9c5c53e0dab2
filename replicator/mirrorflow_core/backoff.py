"""Exponential backoff with jitter, between the attempts of a loop or after a count of failures."""

import random
from typing import Self

JITTER = 0.2
GROWTH = 2.0


def backoff_s(
    failures: int, *, lowest_s: float, highest_s: float, jitter: float = JITTER, growth: float = GROWTH
) -> float:
    """Returns the exponential backoff with jitter after *failures* in a row, in seconds; 0 after none.

    Each is *growth* times the one before. A smaller growth notices sooner that the cause is over, after more attempts.
    """
    if failures == 0:
        return 0.0
    exponent = min(failures - 1, 30)  # it exceeds every upper limit and does not overflow
    return jittered_s(min(lowest_s * growth**exponent, highest_s), jitter=jitter)


def jittered_s(wait_s: float, *, jitter: float = JITTER) -> float:
    """Returns *wait_s*, up to *jitter* of it longer or shorter, so that many waits do not end together."""
    return wait_s * random.uniform(1 - jitter, 1 + jitter)  # noqa: S311 it spreads, it does not protect


class Backoff:
    """The attempts of a loop, numbered from 1: waits before each but the first, *growth* times as long each time.

        async for attempt in Backoff(min_s=0.1, max_s=15):
            try:
                return await connect()
            except UnreachableError as error:
                log.warning("attempt %d: %s", attempt, error)

    The loop ends after *attempts_max* attempts, if given. `next_s` is the pause before the next attempt.
    """

    def __init__(
        self, *, min_s: float, max_s: float, attempts_max: int | None = None, growth: float = GROWTH
    ) -> None:
        self.next_s = 0.0
        self._growth = growth
        self._min_s, self._max_s = min_s, max_s
        self._attempts_max = attempts_max
        self._attempts = 0

    def reset(self) -> None:
        """Begins again: the next attempt follows at once, and the pause after it is the shortest."""
        self._attempts, self.next_s = 0, 0.0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> int:
        if self._attempts == self._attempts_max:
            raise StopAsyncIteration
        import asyncio  # noqa: PLC0415 the command uses `backoff_s` alone, and runs no loop

        await asyncio.sleep(self.next_s)
        self._attempts += 1
        self.next_s = backoff_s(
            self._attempts, lowest_s=self._min_s, highest_s=self._max_s, growth=self._growth
        )
        return self._attempts
