"""Builds what each page shows from a snapshot and the history: a template and its values. Pure but for the history."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from typing import Any, Final

from mirrorflow_console.chart_history import Chart, ChartSpan
from mirrorflow_console.cluster_map import cluster_map
from mirrorflow_console.documents import FlowReading
from mirrorflow_console.flow_views import FlowView, Level, state_text
from mirrorflow_console.group_views import group_rows
from mirrorflow_console.heat_map import LEGENDS, Measure, batch_counts, heat_map
from mirrorflow_console.history import FINE_S, KEPT_S, SAMPLE_STEP_S, TOPIC_STEP_S, History
from mirrorflow_console.job_views import job_views
from mirrorflow_console.lag_forecast import LagSample
from mirrorflow_console.partition_table import PartitionTable
from mirrorflow_console.partition_views import is_internal, partition_levels, topic_rows
from mirrorflow_console.poller import Interest, Snapshot
from mirrorflow_console.schema_views import schema_view
from mirrorflow_console.sparkline import sparkline
from mirrorflow_console.switchover_views import switchover_views
from mirrorflow_console.switchovers import SwitchoverReading
from mirrorflow_console.time_line import time_line

FLOWS_SHOWN: Final = 50  # of hundreds; a filter and a link show the others
TOPICS_SHOWN: Final = 20
TOPICS_MAX: Final = 2_000
ROWS_SHOWN: Final = 50  # partitions and groups in a table
CHART_POINTS: Final = 180
SPARKLINE_MIN_S: Final = 300.0  # of a history that has just begun
EVENTS_SHOWN: Final = 200
QUERY_MAX: Final = 200  # characters of a filter
SWITCHOVERS_PATH: Final = "/switchovers"
# Writes are refused for seconds only, and what is read is a file of this machine.
COCKPIT_UPDATE_S: Final = 1.0


class PageError(Exception):
    """There is no such page, or it shows something that is not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One kind of page. *values* gets the snapshot that the visitor may see, the query, and the history."""

    template: str
    title: str
    values: Callable[[Snapshot, Mapping[str, str], History], dict[str, Any]]
    needs_partitions: bool = False
    needs_groups: bool = False
    has_chart: bool = False
    of_flow: bool = True
    # How often an open page is rendered again, in seconds; None: after each poll.
    update_s: float | None = None

    def interest(self, query: Mapping[str, str]) -> Interest:
        """Returns what an open page with *query* needs."""
        if not self.of_flow:
            return Interest()
        span = ChartSpan.of(query.get("span")) if self.has_chart else None
        return Interest(query.get("flow"), self.needs_partitions, self.needs_groups, span)


def _map(snapshot: Snapshot, query: Mapping[str, str], history: History) -> dict[str, Any]:
    wanted = query.get("q", "")[:QUERY_MAX].strip().lower()
    matching = [view for view in snapshot.views if _matches(view, wanted)]
    shown = [snapshot.current(view) for view in (matching if "all" in query else matching[:FLOWS_SHOWN])]
    since_s = snapshot.at_s - FINE_S
    levels = Counter(view.level for view in snapshot.views)
    return {
        "views": shown,
        "found": len(matching),
        "total": len(snapshot.views),
        "q": query.get("q", "")[:QUERY_MAX],
        "map": cluster_map(snapshot.views, snapshot.figures),
        "levels": [(level, levels[level]) for level in Level],
        "states": {view.key: _state_with_reasons(view, snapshot) for view in shown},
        "sparklines": {
            view.key: _lag_line(history.samples(view.key, since_s), snapshot.at_s) for view in shown
        },
    }


def _state_with_reasons(view: FlowView, snapshot: Snapshot) -> str:
    document = snapshot.readings[view.key].document
    return state_text(view, None if document is None else document.progress)


def _matches(view: FlowView, wanted: str) -> bool:
    if not wanted:
        return True
    columns = (view.name, view.namespace, view.source, view.target, view.state, view.level.word)
    return all(any(part in column.lower() for column in columns) for part in wanted.split())


def _lag_line(samples: list[LagSample], now_s: float) -> str:
    return sparkline(_binned([(sample.at_s, sample.records) for sample in samples], now_s, FINE_S, 48))


def _binned(
    points: list[tuple[float, float | None]], now_s: float, span_s: float, bins: int
) -> list[float | None]:
    """Returns the last value in each of *bins* equal parts of the last *span_s*, or of the time since the first value.

    None where there is none.
    """
    if points:
        span_s = min(span_s, max(SPARKLINE_MIN_S, now_s - points[0][0]))
    bins = max(2, min(bins, int(span_s / SAMPLE_STEP_S)))
    values: list[float | None] = [None] * bins
    for at_s, value in points:
        index = int((at_s - (now_s - span_s)) / span_s * bins)
        if 0 <= index <= bins:
            values[min(index, bins - 1)] = value
    for index in range(1, bins - 1):
        # A sample that came late leaves one part without a value; more are a gap.
        if values[index] is None and values[index + 1] is not None:
            values[index] = values[index - 1]
    return values


def _flow(snapshot: Snapshot, query: Mapping[str, str], history: History) -> dict[str, Any]:
    view, reading = _of_flow(snapshot, query)
    progress = None if reading.document is None else reading.document.progress
    topics = topic_rows(reading.partitions)
    rows = topics if "internal" in query else [row for row in topics if not is_internal(row.topic)]
    shown = rows[:TOPICS_MAX] if "all" in query else rows[:TOPICS_SHOWN]
    companions = () if progress is None else progress.companions
    lags = history.topic_lags(view.key, snapshot.at_s - FINE_S)
    bins = int(FINE_S / TOPIC_STEP_S / 2)
    span = ChartSpan.of(query.get("span"))
    chart = snapshot.charts.get((view.key, span))
    if chart is not None and not chart.samples:
        chart = None  # Prometheus does not scrape this flow, or has just begun to
    samples = history.samples(view.key, snapshot.at_s - span.duration_s) if chart is None else chart.samples
    return {
        "view": view,
        "state_text": _state_text(view, reading),
        "companions": companions,
        "schemas": schema_view([companion.received for companion in companions], reading.schemas),
        "topics": shown,
        "found": len(rows),
        "hidden": len(topics) - len(rows),
        "sparklines": {
            row.topic: sparkline(_binned([*lags.get(row.topic, ())], snapshot.at_s, FINE_S, bins))
            for row in shown
        },
        "chart": json.dumps(_chart(samples)),
        "has_samples": bool(samples),
        "span": span,
        "spans": [*ChartSpan],
        "chart_source": _chart_source(snapshot, chart),
        "events": history.events(snapshot.at_s - KEPT_S, flows=[view.key], limit=8),
        "is_complete": reading.document is None
        or len(reading.partitions) >= reading.document.partitions_total,
    }


def _state_text(view: FlowView, reading: FlowReading) -> str:
    progress = None if reading.document is None else reading.document.progress
    return f"{view.level.word}: {state_text(view, progress)}"


def _chart_source(snapshot: Snapshot, chart: Chart | None) -> str:
    """Returns a sentence about where a chart's samples are from; "" if that is the console's own history."""
    if chart is not None:
        return "From Prometheus."
    return (
        f"{snapshot.chart_problem} The chart has what this console has seen."
        if snapshot.chart_problem
        else ""
    )


def _chart(samples: Sequence[LagSample]) -> list[list[float | None]]:
    """Returns the series of the chart: time, lag in records, lag in seconds, records and bytes a second."""
    every = max(1, len(samples) // CHART_POINTS)
    kept = [sample for index, sample in enumerate(samples) if (len(samples) - 1 - index) % every == 0]
    return [
        [sample.at_s for sample in kept],
        [sample.records for sample in kept],
        [None if sample.seconds is None else round(sample.seconds, 2) for sample in kept],
        [round(sample.records_per_s, 1) for sample in kept],
        [round(sample.bytes_per_s) for sample in kept],
    ]


def _partitions(snapshot: Snapshot, query: Mapping[str, str], _: History) -> dict[str, Any]:
    view, reading = _of_flow(snapshot, query)
    partitions = reading.partitions
    levels = partition_levels(partitions)
    measure = next((choice for choice in Measure if choice.value == query.get("show")), Measure.STATE)
    place = (query.get("topic"), query.get("partition"))
    chosen = _index_of(partitions, *place)
    row = None if chosen is None else partitions.row(chosen)
    wanted = query.get("q", "")[:QUERY_MAX].strip().lower()
    listed = _listed(partitions, levels, wanted, internal="internal" in query)
    worst = nsmallest(ROWS_SHOWN, listed)
    heat = heat_map(partitions, levels, measure, internal="internal" in query)
    return {
        "view": view,
        "state_text": _state_text(view, reading),
        "map": heat,
        "hidden": len(partitions) - len(heat.cells),
        "measures": [*Measure],
        "legend": LEGENDS[measure],
        "rows": [(level, partitions.row(index)) for level, *_, index in worst],
        "found": len(listed),
        "total": 0 if reading.document is None else reading.document.partitions_total,
        "read": len(partitions),
        "chosen": row,
        "chosen_batches": {} if row is None else batch_counts(row["batches"]),
        "chosen_level": None if chosen is None else levels[chosen],
        "missing": f"{place[0]}-{place[1]}" if place[0] is not None and chosen is None else "",
        "q": query.get("q", "")[:QUERY_MAX],
    }


def _index_of(partitions: PartitionTable, topic: str | None, number: str | None) -> int | None:
    """Returns the index of a partition; None if it has not been read, or a page shows none."""
    if topic is None:
        return None
    indices = partitions.where(
        lambda name, partition: name == topic and str(partition) == number, "topic", "partition"
    )
    return next(iter(indices), None)


def _listed(
    partitions: PartitionTable, levels: Sequence[Level], wanted: str, *, internal: bool
) -> list[tuple[Level, int, str, int, int]]:
    """Returns the partitions that the table has, by what orders them and with their index.

    With a filter, those whose name or reason has it; else those of internal topics only if they need a person, or all if
    *internal*.
    """
    topics, numbers = partitions.column("topic"), partitions.column("partition")
    lags = partitions.each(lambda lag: -(lag or 0), "lagRecords")
    ranks = zip(levels, lags, topics, numbers, range(len(partitions)), strict=True)
    if wanted:
        return [
            rank
            for rank, reason in zip(ranks, partitions.column("reason"), strict=True)
            if wanted in f"{rank[2]}-{rank[3]} {reason}".lower()
        ]
    hidden = () if internal else {*filter(is_internal, partitions.values("topic"))}
    return [rank for rank in ranks if rank[2] not in hidden or rank[0] < Level.WAITING]


def _groups(snapshot: Snapshot, query: Mapping[str, str], _: History) -> dict[str, Any]:
    view, reading = _of_flow(snapshot, query)
    rows = group_rows(reading)
    wanted = query.get("q", "")[:QUERY_MAX].strip().lower()
    matching = [row for row in rows if wanted in row.group.lower()]
    open_group = next((row for row in rows if row.group == query.get("group")), None)
    return {
        "view": view,
        "state_text": _state_text(view, reading),
        "rows": matching[:ROWS_SHOWN],
        "found": len(matching),
        "open": open_group,
        "truncated": reading.offsets_truncated,
        "selected": _selected_groups(reading),
        "q": query.get("q", "")[:QUERY_MAX],
    }


def _selected_groups(reading: FlowReading) -> int | None:
    """Returns how many groups of the source the flow follows; None where no connector in this process does."""
    companions = () if reading.document is None else reading.document.progress.companions
    counts = [groups["selected"] for companion in companions if (groups := companion.received.get("groups"))]
    return sum(counts) if counts else None


def _jobs(snapshot: Snapshot, _query: Mapping[str, str], _: History) -> dict[str, Any]:
    return {"jobs": job_views(snapshot.readings.values()), "total": len(snapshot.views)}


def _history(snapshot: Snapshot, query: Mapping[str, str], history: History) -> dict[str, Any]:
    key = query.get("flow")
    view = None if key is None else snapshot.view(key)
    if key is not None and view is None:
        raise PageError("There is no such flow, or you may not see it.")
    since_s = snapshot.at_s - KEPT_S
    if key is not None:
        visible = history.events(since_s, flows=[key], of_each=EVENTS_SHOWN * 5)
    else:
        # Flows that have ended are among all, but not among those that a visitor may see now.
        flows = None if snapshot.is_whole else [view.key for view in snapshot.views]
        visible = history.events(since_s, flows=flows)
    return {
        "view": view,
        "lines": time_line(visible, snapshot.at_s),
        "events": visible[:EVENTS_SHOWN],
        "found": len(visible),
        "names": {view.key: view.name for view in snapshot.views},
        "history_problem": history.problem,
    }


def switchover_values(
    readings: Iterable[SwitchoverReading], query: Mapping[str, str], now_s: float
) -> dict[str, Any]:
    """Returns what the page of switchovers shows: the chosen one, or the one that needs a person most, and all others.

    Raises PageError.
    """
    views = switchover_views(readings, now_s)
    key = query.get("id")
    chosen = next((view for view in views if key in {None, view.reading.key}), None)
    if key is not None and chosen is None:
        raise PageError("There is no such switchover, or you may not see it.")
    return {
        "chosen": chosen,
        "switchovers": views[:EVENTS_SHOWN],
        "found": len(views),
        "at_s": now_s,
    }


def _no_switchovers(_snapshot: Snapshot, _query: Mapping[str, str], _: History) -> dict[str, Any]:
    """Returns the page without a switchover. `Console` adds those that it reads, and finds the chosen one: no poll reads them."""
    return switchover_values((), {}, 0.0)


def _of_flow(snapshot: Snapshot, query: Mapping[str, str]) -> tuple[FlowView, FlowReading]:
    key = query.get("flow", "")
    view = snapshot.view(key)
    if view is None:
        raise PageError("There is no such flow, or you may not see it.")
    return view, snapshot.readings[key]


PAGES: Final[Mapping[str, Page]] = {
    "/": Page(template="map.html", title="Flows", values=_map, of_flow=False),
    "/flow": Page(template="flow.html", title="Flow", values=_flow, needs_partitions=True, has_chart=True),
    "/partitions": Page(
        template="partitions.html", title="Partitions", values=_partitions, needs_partitions=True
    ),
    "/groups": Page(
        template="groups.html",
        title="Consumer groups",
        values=_groups,
        needs_partitions=True,  # the ends of the source, of which groups are behind
        needs_groups=True,
    ),
    "/jobs": Page(
        template="jobs.html", title="Seeds, verifications, archives and restores", values=_jobs, of_flow=False
    ),
    "/history": Page(template="history.html", title="History", values=_history, of_flow=False),
    SWITCHOVERS_PATH: Page(
        template="switchovers.html",
        title="Switchovers",
        values=_no_switchovers,
        of_flow=False,
        update_s=COCKPIT_UPDATE_S,
    ),
}
