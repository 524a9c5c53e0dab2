"""Polls each pod's progress about every `interval_s`, and sooner while it is starting or cannot be read.

    poller = Poller(changed=queue.add)
    poller.set_targets(key, [target])                  # the flow's pods; cheap if they have not changed
    poller.reading(uid)                                # the pod's last reading, None before the first
    poller.reading(uid, "MirrorCheckpointConnector")   # the same for one of several connectors in the pod
    await poller.run()                                 # until cancelled

`changed(key)` is called only when a reading may change the flow's status (`assess.reading_digest`). Polls are
spread over the interval at random, so that after a restart the operator does not poll three thousand pods in
the same second of each interval. The number of polls in flight is limited, and large enough that pods which do
not answer cannot delay those that do.
"""

import asyncio
import heapq
import itertools
import logging
import random
import time
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Final

import aiohttp

from mirrorflow_core.backoff import backoff_s
from mirrorflow_operator.cluster.progress_client import PollTarget, request_progress, session
from mirrorflow_operator.metrics import Metrics
from mirrorflow_operator.status.assess import reading_digest
from mirrorflow_operator.status.observation import Key
from mirrorflow_operator.status.pod_reports import Reading, Replicating

_LOG = logging.getLogger(__name__)
_TargetId = tuple[str, str | None]  # as `uid` and `connector` of a PollTarget

INTERVAL_S: Final = 30.0
JITTER: Final = 0.1  # of the interval, in both directions; three polls end within `observation.FRESH_S`
# A new or unreadable pod is polled after 2, 4, 8 and 16 seconds, then at the normal interval.
EAGER_PART: Final = 1 / 15
_EAGER_MAX: Final = 5  # 2 ** 4 > 15: from here on the wait is the normal interval
# Pods due within 0.25 s of one another are polled together: the loop wakes once for 25 pods of 3,000.
TICK_PART: Final = 1 / 120
# At the operator's start, 3,000 pods are first polled within six seconds, at a fifth of a core.
FIRST_PER_S: Final = 500
# If no pod answers within 4 s, 256 at once still poll 3,000 pods in 47 s; each takes a socket and some 20 kB.
IN_FLIGHT_MAX: Final = 256


@dataclass(slots=True, kw_only=True, eq=False)
class _Entry:
    """One pod, or one of its connectors: its last reading, and when it is polled next (the loop's clock)."""

    key: Key
    target: PollTarget
    due_s: float = 0.0
    eager: int = 0  # polls since the target was added or changed, while starting; _EAGER_MAX once settled
    in_flight: bool = False
    reading: Reading | None = None
    digest: Hashable = None  # the `digest_of` `reading`


@dataclass(slots=True, kw_only=True)
class Poller:
    """Schedules and runs the polls of all flows' pods.

    `digest_of` returns a reading's digest; readings with equal digests do not change the flow's status.
    """

    changed: Callable[[Key], None]
    metrics: Metrics = field(default_factory=Metrics)
    digest_of: Callable[[Reading], Hashable] = reading_digest
    interval_s: float = INTERVAL_S
    in_flight_max: int = IN_FLIGHT_MAX
    wall_s: Callable[[], float] = time.time
    _entries: dict[_TargetId, _Entry] = field(default_factory=dict)
    _targets: dict[Key, tuple[PollTarget, ...]] = field(default_factory=dict)
    _heap: list[tuple[float, int, _Entry]] = field(default_factory=list)
    _order: "itertools.count[int]" = field(default_factory=itertools.count)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)

    def __len__(self) -> int:
        """Returns the number of targets: each pod once for every connector that is polled in it."""
        return len(self._entries)

    def set_targets(self, key: Key, targets: Iterable[PollTarget]) -> None:
        """Sets the targets of the flow *key*; targets that are not in *targets* are removed."""
        wanted = tuple(targets)
        before = self._targets.get(key, ())
        if wanted == before:
            return
        for gone in set(map(_target_id, before)) - set(map(_target_id, wanted)):
            del self._entries[gone]
        for target in wanted:
            entry = self._entries.get(_target_id(target))
            if entry is None:
                self._entries[_target_id(target)] = entry = _Entry(key=key, target=target)
            elif entry.target == target:
                continue
            entry.target = target
            entry.eager = 0
            self._schedule(entry)
        if wanted:
            self._targets[key] = wanted
        else:
            self._targets.pop(key, None)

    def targets(self, key: Key) -> tuple[PollTarget, ...]:
        """Returns the targets of the flow *key*."""
        return self._targets.get(key, ())

    def remove(self, key: Key) -> None:
        self.set_targets(key, ())

    def reading(self, uid: str, connector: str | None = None) -> Reading | None:
        """Returns the pod's last reading, of *connector* where it runs several; None before a first poll."""
        entry = self._entries.get((uid, connector))
        return None if entry is None else entry.reading

    async def run(self) -> None:
        """Polls until cancelled; polls in flight are cancelled with it.

        Each start polls all pods soon, and counts each first reading as changed: what is known of them may be old.
        """
        for entry in self._entries.values():
            entry.eager, entry.digest = 0, None
            self._schedule(entry)
        slots = asyncio.Semaphore(self.in_flight_max)
        async with session() as client, asyncio.TaskGroup() as polls:
            while True:
                entry = await self._next()
                await slots.acquire()
                entry.in_flight = True
                poll = polls.create_task(self._poll(client, entry))
                poll.add_done_callback(lambda _: slots.release())

    async def _next(self) -> _Entry:
        """Waits until an entry is due; returns the one that has been due longest."""
        loop = asyncio.get_running_loop()
        tick_s = self.interval_s * TICK_PART
        while True:
            while self._heap:
                due_s, _, entry = self._heap[0]
                is_current = self._entries.get(_target_id(entry.target)) is entry and entry.due_s == due_s
                if is_current and due_s > loop.time():
                    break
                heapq.heappop(self._heap)
                if is_current and not entry.in_flight:
                    return entry
            self._wake.clear()
            wait_s = max(tick_s, self._heap[0][0] - loop.time()) if self._heap else None
            try:
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _poll(self, client: aiohttp.ClientSession, entry: _Entry) -> None:
        target = entry.target
        try:
            reading = await request_progress(client, target, now_s=self.wall_s())
        finally:
            entry.in_flight = False
        self.metrics.polls.inc()
        if reading.failure is not None:
            self.metrics.polls_failed.inc()
        if self._entries.get(_target_id(target)) is not entry:
            return  # the target was removed during the poll
        entry.reading = reading
        entry.eager = entry.eager + 1 if _is_unsettled(reading) else _EAGER_MAX
        self._schedule(entry)
        digest = self.digest_of(reading)
        if digest != entry.digest:
            entry.digest = digest
            _LOG.debug("a pod of %s reports a change: %s", entry.key, reading)
            self.changed(entry.key)

    def _schedule(self, entry: _Entry) -> None:
        """Schedules the next poll: soon for a new or starting pod, after about one interval for others."""
        soon_s = self.interval_s * EAGER_PART
        if entry.eager == 0:
            wait_s = random.uniform(0, max(soon_s, len(self) / FIRST_PER_S))  # noqa: S311  it spreads the polls
        else:
            wait_s = backoff_s(entry.eager, lowest_s=soon_s, highest_s=self.interval_s, jitter=JITTER)
        loop = asyncio.get_running_loop()
        entry.due_s = loop.time() + wait_s
        heapq.heappush(self._heap, (entry.due_s, next(self._order), entry))
        self._wake.set()


def _target_id(target: PollTarget) -> _TargetId:
    return target.uid, target.connector


def _is_unsettled(reading: Reading) -> bool:
    if reading.report is not None:
        return False
    return reading.summary is None or reading.summary.replicating is Replicating.WAITING
