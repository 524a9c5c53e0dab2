"""Who is asked when: each pod about every `interval_s`, and sooner as long as it is starting or cannot be read.

    poller = Poller(changed=queue.add)
    poller.put(key, [Place(uid=..., host=...)])     # whenever the flow's pods have changed; cheap when they have not
    poller.reading(uid)                             # the last word of that pod, None before the first
    poller.reading(uid, "MirrorCheckpointConnector")   # the same of one of several connectors in it
    await poller.run()                              # until cancelled

`changed(key)` is called only when a pod says something that may change what is made of its flow: figures that move within
their bucket wake nobody. Questions are spread over the interval by chance, so that a restarted operator does not ask
three thousand pods in one second for ever after; and so many are under way at most that pods which do not answer
cannot hold up those that do.
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

from mirrorflow_operator.assess.admission import Key
from mirrorflow_operator.assess.progress import Reading, Replicating
from mirrorflow_operator.assess.telling import telling
from mirrorflow_operator.polling.asking import Place, ask, session

log = logging.getLogger(__name__)
_Whom = tuple[str, str]  # the pod's uid, and the name of a connector where it has several

INTERVAL_S: Final = 30.0
JITTER: Final = 0.1  # of the interval, both ways
# A pod that is new or not readable is asked after 2, 4, 8, 16 seconds, then as all others.
EAGER_PART: Final = 1 / 15
_EAGER_MAX: Final = 5  # 2 ** 4 > 15: by then a pod is asked as all others
# Those that are due within 0.25 s of one another are asked together: one waking of the loop for 25 pods of 3,000.
TICK_PART: Final = 1 / 120
# Of an operator's start: 3,000 pods are first asked within six seconds, at a fifth of a core.
FIRST_PER_S: Final = 500
# With nobody answering in 4 s, 256 at once still get round 3,000 pods in 47 s; each takes a socket and some 20 kB.
AT_ONCE_MAX: Final = 256


@dataclass(slots=True, kw_only=True, eq=False)
class _Entry:
    """One pod, or one of its connectors: what it said, and when it is asked next (the loop's clock)."""

    key: Key
    place: Place
    due_s: float = 0.0
    eager: int = 0  # questions since it was new, turned ready or could be read
    asking: bool = False
    reading: Reading | None = None
    told: Hashable = None  # as `telling` has it


@dataclass(slots=True, kw_only=True)
class Poller:
    """See the module. `telling` of two readings is the same where they cannot make a difference to the flow."""

    changed: Callable[[Key], None]
    telling: Callable[[Reading], Hashable] = telling
    interval_s: float = INTERVAL_S
    at_once: int = AT_ONCE_MAX
    wall_s: Callable[[], float] = time.time
    chance: Callable[[], float] = random.random
    asked: int = 0  # questions since the start
    failed: int = 0  # of these, without a summary
    _entries: dict[_Whom, _Entry] = field(default_factory=dict)
    _of_flow: dict[Key, tuple[Place, ...]] = field(default_factory=dict)
    _heap: list[tuple[float, int, _Entry]] = field(default_factory=list)
    _order: "itertools.count[int]" = field(default_factory=itertools.count)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)

    def __len__(self) -> int:
        """How many pods are asked, each for every connector that it has."""
        return len(self._entries)

    def put(self, key: Key, places: Iterable[Place]) -> None:
        """The pods of *key* that can be asked are these; others of the flow are forgotten."""
        wanted = tuple(places)
        before = self._of_flow.get(key, ())
        if wanted == before:
            return
        for gone in set(map(_whom, before)) - set(map(_whom, wanted)):
            del self._entries[gone]
        for place in wanted:
            entry = self._entries.get(_whom(place))
            if entry is None:
                self._entries[_whom(place)] = entry = _Entry(key=key, place=place)
            elif entry.place == place:
                continue
            entry.place = place
            entry.eager = 0
            self._schedule(entry)
        if wanted:
            self._of_flow[key] = wanted
        else:
            self._of_flow.pop(key, None)

    def remove(self, key: Key) -> None:
        """The flow is gone."""
        self.put(key, ())

    def reading(self, uid: str, connector: str = "") -> Reading | None:
        """What the pod said last, of *connector* where it has several, or why it did not; None: it was not asked yet."""
        entry = self._entries.get((uid, connector))
        return None if entry is None else entry.reading

    async def run(self) -> None:
        """Asks until it is cancelled; then every question under way ends, too."""
        slots = asyncio.Semaphore(self.at_once)
        async with session() as client, asyncio.TaskGroup() as questions:
            while True:
                entry = await self._next()
                await slots.acquire()
                entry.asking = True
                question = questions.create_task(self._ask(client, entry))
                question.add_done_callback(lambda _: slots.release())

    async def _next(self) -> _Entry:
        """The entry that is due longest, once one is due."""
        loop = asyncio.get_running_loop()
        tick_s = self.interval_s * TICK_PART
        while True:
            while self._heap:
                due_s, _, entry = self._heap[0]
                is_current = self._entries.get(_whom(entry.place)) is entry and entry.due_s == due_s
                if is_current and due_s > loop.time():
                    break
                heapq.heappop(self._heap)
                if is_current and not entry.asking:
                    return entry
            self._wake.clear()
            wait_s = max(tick_s, self._heap[0][0] - loop.time()) if self._heap else None
            try:
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _ask(self, client: aiohttp.ClientSession, entry: _Entry) -> None:
        place = entry.place
        try:
            reading = await ask(client, place, now_s=self.wall_s())
        finally:
            entry.asking = False
        self.asked += 1
        self.failed += reading.unread is not None
        if self._entries.get(_whom(place)) is not entry:
            return  # gone meanwhile
        entry.reading = reading
        entry.eager = entry.eager + 1 if _is_unsettled(reading) else _EAGER_MAX
        self._schedule(entry)
        told = self.telling(reading)
        if told != entry.told:
            entry.told = told
            log.debug("pod of %s says something else: %s", entry.key, reading)
            self.changed(entry.key)

    def _schedule(self, entry: _Entry) -> None:
        """A new pod soon, a starting one soon again, all others about an interval from now."""
        jitter = 1 - JITTER + 2 * JITTER * self.chance()
        if entry.eager == 0:
            wait_s = max(self.interval_s * EAGER_PART, len(self) / FIRST_PER_S) * self.chance()
        else:
            wait_s = self.interval_s * min(1.0, EAGER_PART * 2.0 ** (entry.eager - 1)) * jitter
        loop = asyncio.get_running_loop()
        entry.due_s = loop.time() + wait_s
        heapq.heappush(self._heap, (entry.due_s, next(self._order), entry))
        self._wake.set()


def _whom(place: Place) -> _Whom:
    return place.uid, place.connector


def _is_unsettled(reading: Reading) -> bool:
    if reading.report is not None:
        return False
    return reading.summary is None or reading.summary.replicating is Replicating.WAITING
