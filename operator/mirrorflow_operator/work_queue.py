"""What is to be looked at again, and when: each key once, however often it is asked for.

Level-based: a key says that something may have changed, not what. A key that is asked for while it is worked on comes again
afterwards, so two workers never hold one key, and nothing that happened meanwhile is lost. At most one entry a key; who asks for a
thousand changes of one flow gets one pass for them, and not more than one in `interval_s`.
"""

import asyncio
import heapq
import itertools
import random
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

INTERVAL_S: Final = (
    1.0  # a rollout makes a dozen events within a second; one pass, and one status, sees them all
)
BACKOFF_FIRST_S: Final = 0.5
BACKOFF_MAX_S: Final = 60.0  # after an outage of the API server every flow is looked at within a minute
_COMPACT_ABOVE: Final = 64
K = TypeVar("K", bound=Hashable)


@dataclass(slots=True, kw_only=True)
class WorkQueue(Generic[K]):
    """Times are seconds of *clock*, which never goes back; *chance* gives numbers from 0 to 1 for jitter."""

    interval_s: float = INTERVAL_S
    clock: Callable[[], float] = time.monotonic
    chance: Callable[[], float] = random.random
    _due: dict[K, float] = field(default_factory=dict)
    _heap: list[tuple[float, int, K]] = field(default_factory=list)  # may name what is no longer due then
    _working: dict[K, float] = field(default_factory=dict)  # since when
    _ended: dict[K, float] = field(default_factory=dict)  # a key's last pass began
    _failures: dict[K, int] = field(default_factory=dict)
    _order: "itertools.count[int]" = field(default_factory=itertools.count)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)

    def __len__(self) -> int:
        """How many are due by now or worked on."""
        now = self.clock()
        return len(self._working) + sum(due <= now for due in self._due.values())

    def add(self, key: K, after_s: float = 0.0) -> None:
        """*key* is due *after_s* from now, or earlier if it was due earlier."""
        due = self.clock() + after_s
        if key in self._ended:
            due = max(due, self._ended[key] + self.interval_s)
        if due < self._due.get(key, float("inf")):
            self._due[key] = due
            heapq.heappush(self._heap, (due, next(self._order), key))
            self._compact()
            self._wake.set()

    def forget(self, key: K) -> None:
        """There is nothing of *key* any more."""
        self._due.pop(key, None)
        self._failures.pop(key, None)
        self._ended.pop(key, None)

    def take(self) -> K | None:
        """The key that is due longest and that nobody works on; None if there is none now."""
        held = []
        found = None
        now = self.clock()
        while self._heap and self._heap[0][0] <= now:
            entry = heapq.heappop(self._heap)
            due, _, key = entry
            if self._due.get(key) != due:
                continue
            if key in self._working:
                held.append(entry)
                continue
            del self._due[key]
            self._working[key] = now
            self._ended[key] = now
            found = key
            break
        for entry in held:
            heapq.heappush(self._heap, entry)
        return found

    async def get(self) -> K:
        """As `take`, once there is one."""
        while True:
            key = self.take()
            if key is not None:
                return key
            self._wake.clear()
            try:
                await asyncio.wait_for(self._wake.wait(), self._until_next_s())
            except TimeoutError:
                continue

    def done(self, key: K, again_after_s: float | None = None) -> None:
        """A pass over *key* went well; *again_after_s*: when to look again though nobody may ask."""
        self._working.pop(key, None)
        self._failures.pop(key, None)
        if again_after_s is not None:
            self.add(key, again_after_s)
        self._wake.set()

    def failed(self, key: K, at_least_s: float = 0.0) -> float:
        """A pass over *key* went wrong: again later, each time later than before. Returns the seconds until then."""
        self._working.pop(key, None)
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        longest = min(BACKOFF_FIRST_S * 2.0 ** min(failures, 16), BACKOFF_MAX_S)
        wait_s = max(at_least_s, longest * (0.5 + 0.5 * self.chance()))
        self._due.pop(key, None)  # what was asked for meanwhile waits, too: it would fail like this
        self.add(key, wait_s)
        self._wake.set()
        return wait_s

    def oldest_s(self) -> float:
        """For how long the oldest has been due or worked on; 0 if nothing is."""
        now = self.clock()
        since = [*self._due.values(), *self._working.values()]
        return max(0.0, now - min(since)) if since else 0.0

    def _until_next_s(self) -> float | None:
        waiting = [due for key, due in self._due.items() if key not in self._working]
        return max(0.0, min(waiting) - self.clock()) if waiting else None

    def _compact(self) -> None:
        if len(self._heap) > 2 * len(self._due) + _COMPACT_ABOVE:
            self._heap = [(due, next(self._order), key) for key, due in self._due.items()]
            heapq.heapify(self._heap)
