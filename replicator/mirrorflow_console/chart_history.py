"""Keeps the samples of charts on open pages up to date from Prometheus, without delaying a poll."""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from mirrorflow_console.lag_forecast import LagSample
from mirrorflow_console.prometheus_history import (
    FlowLabels,
    PrometheusError,
    PrometheusHistory,
    PrometheusRefusalError,
)

# Prometheus scrapes every 15 to 60 s; a chart of an hour has a point every 20 s.
REFRESH_S: Final = 30.0
CHARTS_MAX: Final = 100  # pages with different charts that are open at the same time

_LOG: Final = logging.getLogger(__name__)


class ChartSpan(Enum):
    """The time that a chart shows; the value is its name on a page."""

    HOUR = "hour"
    DAY = "day"
    WEEK = "week"

    @property
    def duration_s(self) -> float:
        return {"hour": 3_600.0, "day": 86_400.0, "week": 7 * 86_400.0}[self.value]

    @classmethod
    def of(cls, name: str | None) -> "ChartSpan":
        """Returns the span with *name*; an hour if there is none."""
        return next((span for span in cls if span.value == name), cls.HOUR)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """The samples of one chart, and when they were read."""

    samples: tuple[LagSample, ...]
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartRequest:
    """A chart on an open page: the flow by its key, and its labels in Prometheus."""

    key: str
    span: ChartSpan
    labels: FlowLabels


class ChartHistory:
    """Reads charts in the background. `charts` and `problem` are replaced, never changed."""

    def __init__(self, prometheus: PrometheusHistory) -> None:
        self.charts: Mapping[tuple[str, ChartSpan], Chart] = {}
        self.problem = ""
        self._prometheus = prometheus
        self._reading: asyncio.Task[None] | None = None

    def refresh(self, requests: Iterable[ChartRequest], now_s: float) -> None:
        """Begins to read those of *requests* that are old, unless it still reads. Forgets charts that no page shows."""
        wanted = {(request.key, request.span): request for request in list(requests)[:CHARTS_MAX]}
        self.charts = {name: chart for name, chart in self.charts.items() if name in wanted}
        due = [
            request
            for name, request in wanted.items()
            if name not in self.charts or now_s - self.charts[name].at_s >= REFRESH_S
        ]
        if due and (self._reading is None or self._reading.done()):
            self._reading = asyncio.create_task(self._read(due, now_s))

    async def _read(self, due: Iterable[ChartRequest], now_s: float) -> None:
        problem = ""
        for request in due:
            try:
                samples = await asyncio.to_thread(
                    self._prometheus.samples, request.labels, request.span.duration_s, now_s
                )
            except PrometheusRefusalError as error:
                problem = f"Prometheus at {self._prometheus.host} refuses a query: {error}."
                _LOG.warning("%s: %s", request.key, problem)
                continue
            except PrometheusError as error:
                self.problem = f"Prometheus at {self._prometheus.host} does not answer: {error}."
                _LOG.warning("%s", self.problem)
                return
            self.charts = {
                **self.charts,
                (request.key, request.span): Chart(samples=tuple(samples), at_s=now_s),
            }
        self.problem = problem
