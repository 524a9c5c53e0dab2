"""Queues the flows that need a pass, each key once, with delays and backoff.

Level-triggered: a key means that something may have changed, not what. A key that is added while a worker
processes it is queued again afterwards, so two workers never hold one key and no change is lost. There is at
most one entry per key: a thousand changes of one flow cause one pass, and at most one pass per `interval_s`.
"""

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from mirrorflow_core.backoff import backoff_s

# A rollout causes a dozen events within a second; one pass and one status write cover them all
INTERVAL_S: Final = 1.0
BACKOFF_MIN_S: Final = 0.5
BACKOFF_MAX_S: Final = 50.0  # after an outage of the API server every flow has a pass within a minute
_COMPACT_ABOVE: Final = 64
K = TypeVar("K", bound=Hashable)


@dataclass(slots=True, kw_only=True)
class WorkQueue(Generic[K]):
    """A queue of unique keys; times are seconds of the monotonic *clock*."""

    interval_s: float = INTERVAL_S
    clock: Callable[[], float] = time.monotonic
    _due: dict[K, float] = field(default_factory=dict)
    _heap: list[tuple[float, int, K]] = field(default_factory=list)  # may hold outdated entries
    _working: dict[K, float] = field(default_factory=dict)  # when the key's current pass began
    _last_started: dict[K, float] = field(default_factory=dict)  # when the key's last pass began
    _failures: dict[K, int] = field(default_factory=dict)
    _order: "itertools.count[int]" = field(default_factory=itertools.count)
    _taken_at: float = float("-inf")
    _wake: asyncio.Event = field(default_factory=asyncio.Event)

    def __len__(self) -> int:
        """Returns how many keys are due now or being processed."""
        now = self.clock()
        return len(self._working) + sum(due <= now for due in self._due.values())

    def add(self, key: K, after_s: float = 0.0) -> None:
        """Makes *key* due in *after_s* seconds, or earlier if it was; at most one pass per `interval_s`."""
        due = self.clock() + after_s
        if key in self._last_started:
            due = max(due, self._last_started[key] + self.interval_s)
        if due < self._due.get(key, float("inf")):
            self._due[key] = due
            heapq.heappush(self._heap, (due, next(self._order), key))
            self._compact()
            self._wake.set()

    def forget(self, key: K) -> None:
        """Removes *key* with its failures and its last pass."""
        self._due.pop(key, None)
        self._failures.pop(key, None)
        self._last_started.pop(key, None)

    def take(self) -> K | None:
        """Takes the key that has been due longest and is not being processed; None if there is none now."""
        held = []
        oldest = None
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
            self._working[key] = self._taken_at = now
            self._last_started[key] = now
            oldest = key
            break
        for entry in held:
            heapq.heappush(self._heap, entry)
        return oldest

    async def get(self) -> K:
        """Waits until a key is due; takes it as `take` does."""
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
        """Ends a successful pass over *key*; *again_after_s*: seconds until the next one without an event."""
        self._working.pop(key, None)
        self._failures.pop(key, None)
        if again_after_s is not None:
            self.add(key, again_after_s)
        self._wake.set()

    def failed(self, key: K, at_least_s: float = 0.0) -> float:
        """Ends a failed pass over *key* and queues it with exponential backoff.

        Returns the wait in seconds.
        """
        self._working.pop(key, None)
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        # What the server asks for is bounded, too: no event reports that it works again.
        wait_s = max(
            min(BACKOFF_MAX_S, at_least_s),
            backoff_s(failures, lowest_s=BACKOFF_MIN_S, highest_s=BACKOFF_MAX_S),
        )
        self._due.pop(key, None)  # passes requested meanwhile wait, too: they would fail the same way
        self.add(key, wait_s)
        self._wake.set()
        return wait_s

    def oldest_s(self) -> float:
        """Returns for how many seconds the oldest key has been due or processed; 0 if there is none."""
        now = self.clock()
        since = [*self._due.values(), *self._working.values()]
        return max(0.0, now - min(since)) if since else 0.0

    def stuck_s(self) -> float:
        """Returns for how many seconds the longest pass has run, or no pass has begun though a key was due.

        This is not how long a flow waits: a thousand flows at once take time without being stuck.
        """
        now = self.clock()
        longest = now - min(self._working.values(), default=now)
        waiting = [due for key, due in self._due.items() if key not in self._working]
        idle = now - max(self._taken_at, min(waiting)) if waiting else 0.0
        return max(0.0, longest, idle)

    def _until_next_s(self) -> float | None:
        waiting = [due for key, due in self._due.items() if key not in self._working]
        return max(0.0, min(waiting) - self.clock()) if waiting else None

    def _compact(self) -> None:
        if len(self._heap) > 2 * len(self._due) + _COMPACT_ABOVE:
            self._heap = [(due, next(self._order), key) for key, due in self._due.items()]
            heapq.heapify(self._heap)
