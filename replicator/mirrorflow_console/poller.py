"""Reads all flows for all open pages together: one poll every 5 seconds while a page is open, whatever their number.

Without an open page, flows are read every 30 seconds, for the history. A page that opens waits for a poll if the last one is
old. Each poll replaces the `Snapshot` and wakes the streams, which hold no queue: a slow reader skips to the newest state.
"""

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from mirrorflow_console.documents import FlowReading
from mirrorflow_console.flow_changes import changes
from mirrorflow_console.flow_source import FlowSource
from mirrorflow_console.flow_views import FlowView, flow_view, topic_rows, worst_first
from mirrorflow_console.history import TOPIC_STEP_S, History, HistoryEvent
from mirrorflow_console.lag_forecast import SPAN_MIN_S, WINDOWS_S, LagSample
from mirrorflow_replicator.process import return_free_memory, share_heaps

OPEN_INTERVAL_S: Final = 5.0
IDLE_INTERVAL_S: Final = 30.0  # as the operator polls
FRESH_S: Final = 5.0
FRESH_WAIT_S: Final = 4.0  # a page is shown after this time, with what is known then
# The page says which partitions have been read, and its stream brings the others with the next poll.
PARTIAL_WAIT_S: Final = 0.3

# In memory, because all flows need them at each poll: 31 samples of 1,000 flows take 6 MiB.
RECENT_STEP_S: Final = SPAN_MIN_S
RECENT_MAX: Final = int(WINDOWS_S[-1] / RECENT_STEP_S) + 1

HEAPS: Final = 2  # of all threads: sixteen of them read connectors, each for milliseconds

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The state of all flows after one poll; `views` are sorted worst first. `version` 0: none has been read yet."""

    version: int = 0
    at_s: float = 0.0  # wall clock
    views: tuple[FlowView, ...] = ()
    readings: Mapping[str, FlowReading] = field(default_factory=dict)
    problem: str = ""

    def view(self, key: str) -> FlowView | None:
        """Returns the view of the flow *key*; None if there is none."""
        return next((one for one in self.views if one.key == key), None)


@dataclass(frozen=True, slots=True)
class Interest:
    """What an open page shows, besides the state of all flows."""

    flow: str | None = None
    partitions: bool = False
    groups: bool = False


class SharedPoller:
    """Polls *source*, and keeps its *history*."""

    def __init__(
        self, source: FlowSource, history: History, *, clock: Callable[[], float] = time.time
    ) -> None:
        self.snapshot = Snapshot()
        self._source = source
        self._history = history
        self._clock = clock
        self._interests: Counter[Interest] = Counter()
        self._wanted = asyncio.Event()
        self._polled = asyncio.Event()
        self._recent: dict[str, deque[LagSample]] = {}
        self._topics_at_s = 0.0

    async def run(self) -> None:
        """Polls until it is cancelled. A poll that fails is logged; the next one tries again."""
        share_heaps(HEAPS)
        while True:
            self._wanted.clear()
            try:
                await self._poll()
            except Exception:  # noqa: BLE001  one failed poll must not end the console
                _LOG.exception("Reading the flows failed.")
            interval_s = OPEN_INTERVAL_S if self._interests else IDLE_INTERVAL_S
            try:
                async with asyncio.timeout(interval_s):
                    await self._wanted.wait()
            except TimeoutError:
                continue

    async def next_version(self, version: int) -> Snapshot:
        """Waits for a snapshot that is newer than *version*."""
        while self.snapshot.version <= version:
            await self._polled.wait()
        return self.snapshot

    async def fresh(self, interest: Interest) -> Snapshot:
        """Returns a snapshot with what *interest* needs, polling if there is none."""
        is_recent = self._clock() - self.snapshot.at_s <= FRESH_S
        if is_recent and self._has(interest):
            return self.snapshot
        wait_s = PARTIAL_WAIT_S if is_recent and not interest.groups else FRESH_WAIT_S
        with self.watching(interest):
            self._wanted.set()
            try:
                async with asyncio.timeout(wait_s):
                    return await self.next_version(self.snapshot.version)
            except TimeoutError:
                return self.snapshot

    def _has(self, interest: Interest) -> bool:
        reading = self.snapshot.readings.get(interest.flow or "")
        if reading is None or reading.document is None:
            return True
        document = reading.document
        has_all = len(document.progress.partitions) >= document.partitions_total
        return (has_all or not interest.partitions) and (bool(reading.offsets) or not interest.groups)

    @contextmanager
    def watching(self, interest: Interest) -> Iterator[None]:
        """Keeps *interest* while a page is open."""
        is_first = not self._interests
        self._interests[interest] += 1
        if is_first:
            self._wanted.set()
        try:
            yield
        finally:
            self._interests[interest] -= 1
            if self._interests[interest] <= 0:
                del self._interests[interest]

    async def _poll(self) -> None:
        interests = list(self._interests)
        detailed = frozenset(one.flow for one in interests if one.flow is not None and one.partitions)
        groups = frozenset(one.flow for one in interests if one.flow is not None and one.groups)
        before, polled = self.snapshot, self._polled
        self.snapshot = await asyncio.to_thread(
            self._read, before, detailed, groups, is_watched=bool(interests)
        )
        del before  # before memory is returned
        await asyncio.to_thread(return_free_memory)
        self._polled = asyncio.Event()
        polled.set()

    def _read(
        self, before: Snapshot, detailed: frozenset[str], groups: frozenset[str], *, is_watched: bool
    ) -> Snapshot:
        readings = {one.key: one for one in self._source.read(detailed, groups, is_watched=is_watched)}
        now_s = self._clock()
        samples = {
            key: sample for key, one in readings.items() if (sample := _sample(one, now_s)) is not None
        }
        views = worst_first(
            flow_view(one, self._recent_lags(key, samples.get(key))) for key, one in readings.items()
        )
        for key in self._recent.keys() - readings.keys():
            del self._recent[key]
        known = {one.key: one for one in before.views}
        # The first poll of a process is no news: what happened while no console ran is not known.
        events = [
            event for view in views if before.version for event in changes(known.get(view.key), view, now_s)
        ]
        events += [_ended(one, now_s) for one in before.views if one.key not in readings]
        is_due = now_s - self._topics_at_s >= TOPIC_STEP_S
        self._topics_at_s = now_s if is_due else self._topics_at_s
        self._history.add(samples, _topic_lags(readings) if is_due else {}, events, now_s)
        return Snapshot(
            version=before.version + 1,
            at_s=now_s,
            views=tuple(views),
            readings=readings,
            problem=self._source.problem,
        )

    def _recent_lags(self, key: str, sample: LagSample | None) -> list[LagSample]:
        """Returns the lags of the last minutes with *sample*, the current one. A few are enough for a forecast."""
        kept = self._recent.setdefault(key, deque(maxlen=RECENT_MAX))
        if sample is None:
            return []
        found = [*kept, sample]
        if not kept or sample.at_s - kept[-1].at_s >= RECENT_STEP_S:
            kept.append(sample)
        return found


def _sample(reading: FlowReading, now_s: float) -> LagSample | None:
    if reading.document is None:
        return None
    summary = reading.document.progress.summary
    is_unknown = summary["partitions"].get("lagUnknown") and not summary["lagRecords"]
    return LagSample(
        now_s,
        None if is_unknown else summary["lagRecords"],
        summary["lagSeconds"],
        summary["recordsPerSecond"],
        summary["bytesPerSecond"],
    )


def _topic_lags(readings: Mapping[str, FlowReading]) -> dict[str, list[tuple[str, int | None]]]:
    return {
        key: [(row.topic, row.lag_records) for row in topic_rows(one.document.progress, internal=False)]
        for key, one in readings.items()
        if one.document is not None
    }


def _ended(view: FlowView, now_s: float) -> HistoryEvent:
    return HistoryEvent(
        at_s=now_s, flow=view.key, kind="ended", level=view.level.value, text="It no longer runs here."
    )
