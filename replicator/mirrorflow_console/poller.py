"""Reads all flows for all open pages together: one poll every 5 seconds while a page is open, whatever their number.

Without an open page, flows are read every 30 seconds, for the history. A page that opens waits for a poll if the last one is
old. Each poll replaces the `Snapshot` and wakes the streams, which hold no queue: a slow reader skips to the newest state.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Final

from mirrorflow_console.chart_history import Chart, ChartHistory, ChartRequest, ChartSpan
from mirrorflow_console.documents import ConnectorDocument, Figures, FlowReading
from mirrorflow_console.flow_changes import changes, dated_events
from mirrorflow_console.flow_source import FlowSource
from mirrorflow_console.flow_views import FlowView, flow_view, with_figures, worst_first
from mirrorflow_console.history import SAMPLE_STEP_S, TOPIC_STEP_S, History, HistoryEvent
from mirrorflow_console.lag_forecast import SPAN_MIN_S, WINDOWS_S, LagSample
from mirrorflow_console.partition_table import PartitionTable
from mirrorflow_console.partition_views import worst_topics
from mirrorflow_console.prometheus_history import FlowLabels
from mirrorflow_replicator.process import (
    keep_objects,
    return_free_memory,
    share_heaps,
    without_collector,
)

OPEN_INTERVAL_S: Final = 5.0
PAUSE_MIN_S: Final = 1.0  # after a poll, however many pages ask for another one
IDLE_INTERVAL_S: Final = 30.0  # as the operator polls
FRESH_S: Final = 5.0
FRESH_WAIT_S: Final = 4.0  # a page is shown after this time, with what is known then
# The page says which partitions have been read, and its stream brings the others with the next poll.
PARTIAL_WAIT_S: Final = 0.3

# In memory, because all flows need them at each poll: 31 samples of 1,000 flows take 6 MiB.
RECENT_STEP_S: Final = SPAN_MIN_S
RECENT_MAX: Final = int(WINDOWS_S[-1] / RECENT_STEP_S) + 1

FAILED: Final = (
    "Reading the flows has failed; the console's log has the reason. What follows is as of its last success."
)

HEAPS: Final = 2  # of all threads: few work at the same time, each for milliseconds

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The state of all flows after one poll; `views` are sorted worst first. `version` 0: none has been read yet.

    A view is made when more than figures has changed; `current` returns it with those of this poll.
    """

    version: int = 0
    at_s: float = 0.0  # wall clock
    views: tuple[FlowView, ...] = ()
    readings: Mapping[str, FlowReading] = field(default_factory=dict)
    figures: Mapping[str, Figures] = field(default_factory=dict)  # by key
    lags: Mapping[str, Sequence[LagSample]] = field(default_factory=dict)  # of the last minutes, by key
    problem: str = ""
    # From Prometheus, where one is configured.
    charts: Mapping[tuple[str, ChartSpan], Chart] = field(default_factory=dict)
    chart_problem: str = ""
    is_whole: bool = True  # False: flows that a visitor may not see have been left out

    def view(self, key: str) -> FlowView | None:
        """Returns the view of the flow *key* with its figures; None if there is none."""
        return next((self.current(view) for view in self.views if view.key == key), None)

    def current(self, view: FlowView) -> FlowView:
        """Returns *view*, one of `views`, with the figures of this poll."""
        figures, document = self.figures.get(view.key), self.readings[view.key].document
        if figures is None or document is None or view.troubles or figures is document.figures:
            return view
        lags = [*self.lags.get(view.key, ()), lag_sample(document, figures, self.at_s)]
        return with_figures(view, document, figures, lags)


@dataclass(frozen=True, slots=True)
class Interest:
    """What an open page shows, besides the state of all flows."""

    flow: str | None = None
    partitions: bool = False
    groups: bool = False
    span: ChartSpan | None = None  # of its chart


class SharedPoller:
    """Polls *source*, and keeps its *history*. *charts*: a history in Prometheus, which charts prefer."""

    def __init__(
        self,
        source: FlowSource,
        history: History,
        *,
        charts: ChartHistory | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.snapshot = Snapshot()
        self._source = source
        self._history = history
        self._charts = charts
        self._clock = clock
        self._interests: Counter[Interest] = Counter()
        self._wanted = asyncio.Event()
        self._polled = asyncio.Event()
        self._lags: dict[str, tuple[LagSample, ...]] = {}  # of the last minutes, by flow
        self._sample_slot = 0
        self._topic_slots: dict[str, int] = {}  # by flow: the step of time of its last topic lags

    async def run(self) -> None:
        """Polls until it is cancelled. A poll that fails is logged; the next one tries again."""
        share_heaps(HEAPS)
        while True:
            self._wanted.clear()
            try:
                await self._poll()
            except Exception:  # noqa: BLE001  one failed poll must not end the console
                _LOG.exception("Reading the flows failed.")
                self.snapshot = replace(self.snapshot, version=self.snapshot.version + 1, problem=FAILED)
                self._wake()
            interval_s = OPEN_INTERVAL_S if self._interests else IDLE_INTERVAL_S
            pause_s = min(PAUSE_MIN_S, interval_s)
            await asyncio.sleep(pause_s)
            with suppress(TimeoutError):
                async with asyncio.timeout(interval_s - pause_s):
                    await self._wanted.wait()

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
        has_all = len(document.partitions) >= document.partitions_total
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
        detailed = frozenset(
            interest.flow for interest in interests if interest.flow is not None and interest.partitions
        )
        groups = frozenset(
            interest.flow for interest in interests if interest.flow is not None and interest.groups
        )
        before = self.snapshot
        # Documents have no cycles; the collector would visit those of all flows again and again, half of the CPU of a poll.
        with without_collector():
            snapshot = await asyncio.to_thread(
                self._read, before, detailed, groups, is_watched=bool(interests)
            )
        if not before.version:
            await asyncio.to_thread(keep_objects)
        if self._charts is not None:
            self._charts.refresh(_chart_requests(snapshot, interests), snapshot.at_s)
            snapshot = replace(snapshot, charts=self._charts.charts, chart_problem=self._charts.problem)
        self.snapshot = snapshot
        del before  # before memory is returned
        await asyncio.to_thread(return_free_memory)
        self._wake()

    def _wake(self) -> None:
        """Wakes the pages that wait for a new snapshot."""
        polled, self._polled = self._polled, asyncio.Event()
        polled.set()

    def _read(
        self, before: Snapshot, detailed: frozenset[str], groups: frozenset[str], *, is_watched: bool
    ) -> Snapshot:
        readings = {
            reading.key: reading for reading in self._source.read(detailed, groups, is_watched=is_watched)
        }
        now_s, newer = self._clock(), self._source.figures
        known = {view.key: view for view in before.views}
        figures: dict[str, Figures] = {}
        views: list[FlowView] = []
        events: list[HistoryEvent] = []
        for key, reading in readings.items():
            document = reading.document
            if document is not None:
                figures[key] = newer.get(key, document.figures)
                self._keep_lag(key, document, figures[key], now_s)
            view = known.get(key)
            if view is None or not _is_same(before, view, reading, figures.get(key)):
                made = self._view(reading, figures.get(key), now_s, view)
                # The first poll of a process is no news: of the time before, only what the status dates is known.
                if before.version:
                    events += changes(None if view is None else before.current(view), made, now_s)
                else:
                    events += dated_events(made, now_s)
                view = made
            views.append(view)
        for key in self._lags.keys() - readings.keys():
            del self._lags[key]
            self._topic_slots.pop(key, None)
        events += [_ended(view, now_s) for view in before.views if view.key not in readings]
        self._history.add(
            self._samples(readings, figures, detailed | groups, now_s),
            dict(self._topic_lags(self._source.partitions, now_s)),
            events,
            now_s,
        )
        return Snapshot(
            version=before.version + 1,
            at_s=now_s,
            views=tuple(worst_first(views, figures)),
            readings=readings,
            figures=figures,
            lags=self._lags,
            problem=self._source.problem,
        )

    def _view(
        self, reading: FlowReading, figures: Figures | None, now_s: float, before: FlowView | None
    ) -> FlowView:
        document = reading.document
        if document is None or figures is None:
            return flow_view(reading)
        lags = [*self._lags.get(reading.key, ()), lag_sample(document, figures, now_s)]
        if figures is not document.figures:
            reading = replace(reading, document=replace(document, figures=figures))
        return flow_view(reading, lags, before=before)

    def _keep_lag(self, key: str, document: ConnectorDocument, figures: Figures, now_s: float) -> None:
        """Keeps the lags of the last minutes: a few are enough for a forecast."""
        kept = self._lags.get(key, ())
        if not kept or now_s - kept[-1].at_s >= RECENT_STEP_S:
            # A new tuple: pages read the old one.
            self._lags[key] = (*kept[1 - RECENT_MAX :], lag_sample(document, figures, now_s))

    def _samples(
        self,
        readings: Mapping[str, FlowReading],
        figures: Mapping[str, Figures],
        open_flows: AbstractSet[str],
        now_s: float,
    ) -> dict[str, LagSample]:
        """Returns the samples for the history: of flows on open pages at each poll, of the others twice a minute."""
        slot = int(now_s // SAMPLE_STEP_S)
        is_due, self._sample_slot = slot != self._sample_slot, slot
        samples = {}
        for key in figures if is_due else open_flows & figures.keys():
            document = readings[key].document
            if document is not None:
                samples[key] = lag_sample(document, figures[key], now_s)
        return samples

    def _topic_lags(
        self, partitions: Mapping[str, PartitionTable], now_s: float
    ) -> Iterator[tuple[str, list[tuple[str, int | None]]]]:
        """Yields the lags of the topics of each flow whose partitions were read, once in a step of time."""
        slot = int(now_s // TOPIC_STEP_S)
        for key, table in partitions.items():
            if table and self._topic_slots.get(key) != slot:
                self._topic_slots[key] = slot
                yield key, worst_topics(table)


def _chart_requests(snapshot: Snapshot, interests: Sequence[Interest]) -> Iterator[ChartRequest]:
    """Yields the charts of open pages whose flows have metrics: those that report their progress."""
    for interest in interests:
        reading = snapshot.readings.get(interest.flow or "")
        if interest.span is None or reading is None or reading.document is None:
            continue
        labels = FlowLabels(
            flow=reading.document.progress.summary["flow"],
            source=reading.document.source or reading.source,
            target=reading.document.target or reading.target,
            namespace=reading.namespace,
        )
        yield ChartRequest(key=reading.key, span=interest.span, labels=labels)


def lag_sample(document: ConnectorDocument, figures: Figures, at_s: float) -> LagSample:
    """Returns the lag in *figures*, which may be newer than those of *document*, as a sample."""
    is_unknown = not figures.lag_records and document.progress.summary["partitions"].get("lagUnknown")
    return LagSample(
        at_s,
        None if is_unknown else figures.lag_records,
        figures.lag_s,
        figures.records_per_s,
        figures.bytes_per_s,
    )


def _is_same(before: Snapshot, view: FlowView, reading: FlowReading, figures: Figures | None) -> bool:
    """Whether *view* holds for *reading*, but for its figures."""
    if reading is not before.readings[view.key] or view.troubles:
        return False
    known = before.figures.get(view.key)
    if figures is None or known is None:
        return figures is known
    return not figures.is_lagging and figures.uptime_s >= known.uptime_s


def _ended(view: FlowView, now_s: float) -> HistoryEvent:
    return HistoryEvent(
        at_s=now_s, flow=view.key, kind="ended", level=view.level.value, text="It no longer runs here."
    )
