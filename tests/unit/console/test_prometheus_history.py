"""Samples of a chart come from Prometheus's API; other responses raise an error with the reason."""

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from mirrorflow_console import prometheus_history
from mirrorflow_console.chart_history import Chart, ChartHistory, ChartRequest, ChartSpan
from mirrorflow_console.history import History
from mirrorflow_console.lag_forecast import LagSample
from mirrorflow_console.pages import PAGES
from mirrorflow_console.poller import SharedPoller
from mirrorflow_console.prometheus_history import (
    FlowLabels,
    PrometheusError,
    PrometheusHistory,
    PrometheusRefusalError,
)
from tests.unit.console.flow_readings import FixedFlows, healthy, reading
from tests.unit.http.reports import partition

LABELS = FlowLabels(flow="east-to-west", source="east", target="west")
NOW_S = 1_000_000.0
HOUR_S = 3_600.0


class Dripping(BaseHTTPRequestHandler):
    """Sends a byte now and then, without an end."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        with suppress(OSError):
            while True:
                self.wfile.write(b" ")
                time.sleep(0.02)

    def log_message(self, *_: Any) -> None:
        """Logs nothing."""


def test_a_response_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch):
    """Each byte arrives long before a timeout of the socket."""
    monkeypatch.setattr(prometheus_history, "TIMEOUT_S", 0.5)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Dripping)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with pytest.raises(PrometheusError, match="no whole response"):
            PrometheusHistory(f"http://127.0.0.1:{server.server_port}").samples(LABELS, HOUR_S, NOW_S)
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def served(
    responses: dict[str, Any] | bytes, status: int = 200
) -> Iterator[tuple[PrometheusHistory, list[str]]]:
    """Serves *responses*, by a part of the query, or the same bytes to each; yields the queries, too."""
    queries: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            query = parse_qs(urlsplit(self.path).query)["query"][0]
            queries.append(query)
            body = responses
            if not isinstance(body, bytes):
                points = next((series for part, series in body.items() if part in query), None)
                result = [] if points is None else [{"metric": {}, "values": points}]
                body = json.dumps({"status": "success", "data": {"result": result}}).encode()
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Logs nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield PrometheusHistory(f"http://127.0.0.1:{server.server_port}/"), queries
    finally:
        server.shutdown()
        server.server_close()


def test_series_are_joined_by_time():
    series = {
        "record_lag": [[10, "5"], [30, "7"]],
        "lag_seconds": [[10, "1.5"], [30, "NaN"]],
        "records_total": [[30, "20"]],
    }
    with served(series) as (history, _):
        samples = history.samples(LABELS, HOUR_S, NOW_S)

    assert samples == [LagSample(10.0, 5, 1.5, 0.0, 0.0), LagSample(30.0, 7, None, 20.0, 0.0)]


def test_a_history_without_series_has_no_samples():
    with served({}) as (history, _):
        assert history.samples(LABELS, HOUR_S, NOW_S) == []


def test_labels_are_quoted_and_a_known_namespace_is_part_of_the_query():
    labels = FlowLabels(flow='a"} or x{b="\\', source="é", target="west", namespace="team")
    with served({}) as (history, queries):
        history.samples(labels, HOUR_S, NOW_S)

    matchers = r'flow="a\"} or x{b=\"\\",source="é",target="west",namespace="team"'
    assert all(f"{{{matchers}}}" in query for query in queries)
    assert len(queries) == 4


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        (b"<html>", 200, "not the API"),
        (b"[]", 200, "not the API"),
        (b'{"data": {"result": [{"values": [[1]]}]}}', 200, "not the API"),
        (b'{"data": {"result": [{"values": [[1, "x"]]}]}}', 200, "not the API"),
        (b"x" * 2_000_000, 200, "not the API"),
        (b"{}", 503, "HTTP status 503"),
        (b"", 302, "HTTP status 302"),
    ],
)
def test_an_unexpected_response_raises_an_error_with_the_reason(body, status, reason):
    with served(body, status) as (history, _), pytest.raises(PrometheusError, match=reason):
        history.samples(LABELS, HOUR_S, NOW_S)


def test_a_connection_that_takes_the_whole_time_is_given_up(monkeypatch: pytest.MonkeyPatch):
    connect = HTTPConnection.connect

    def connect_slowly(connection: HTTPConnection) -> None:
        connect(connection)
        time.sleep(0.2)

    monkeypatch.setattr(prometheus_history, "TIMEOUT_S", 0.1)
    monkeypatch.setattr(HTTPConnection, "connect", connect_slowly)
    with served({}) as (history, queries), pytest.raises(PrometheusError, match="no whole response"):
        history.samples(LABELS, HOUR_S, NOW_S)
    assert queries == []


def test_a_refused_connection_raises_an_error_with_the_reason():
    with pytest.raises(PrometheusError, match="refused"):
        PrometheusHistory("http://127.0.0.1:1").samples(LABELS, HOUR_S, NOW_S)


@pytest.mark.parametrize(
    "url",
    [
        "prometheus:9090",
        "ftp://prometheus",
        "http://",
        "http://user:pw@prometheus",
        "http://p:99999",
        "http://p?x=1",
    ],
)
def test_an_invalid_address_is_refused(url):
    with pytest.raises(ValueError, match=r"."):
        PrometheusHistory(url)


def test_a_chart_that_prometheus_refuses_does_not_keep_others_from_being_read():
    """A flow may have a name of which a query is invalid, or too many series for the limits of the server."""
    read: list[str] = []

    class Stub(PrometheusHistory):
        def samples(self, labels: FlowLabels, span_s: float, now_s: float) -> list[LagSample]:
            read.append(labels.flow)
            if labels.flow == "odd":
                raise PrometheusRefusalError("HTTP status 422")
            return [LagSample(now_s, 1, 1.0, 1.0, 1.0)]

    charts = ChartHistory(Stub("http://127.0.0.1:1"))
    requests = [
        ChartRequest(key=name, span=ChartSpan.HOUR, labels=FlowLabels(flow=name, source="a", target="b"))
        for name in ("odd", "fine")
    ]

    async def refresh() -> None:
        charts.refresh(requests, NOW_S)
        assert charts._reading is not None
        await charts._reading

    asyncio.run(refresh())

    assert read == ["odd", "fine"]
    assert {key for key, _ in charts.charts} == {"fine"}
    assert "HTTP status 422" in charts.problem


def test_a_refused_query_has_an_error_of_its_own():
    with served(b"no", 422) as (history, _), pytest.raises(PrometheusRefusalError, match="HTTP status 422"):
        history.samples(LABELS, HOUR_S, NOW_S)


def test_names_beyond_the_basic_plane_are_quoted_as_promql_reads_them():
    """PromQL knows no surrogate pairs, by which JSON may write them."""
    assert (
        FlowLabels(flow="\N{ROCKET}", source="a", target="b").matchers
        == 'flow="\N{ROCKET}",source="a",target="b"'
    )


def test_a_flow_that_prometheus_does_not_know_shows_the_consoles_own_chart():
    """Prometheus may scrape some flows only; an empty chart of it hid what the console has seen."""
    history = History(None)
    poller = SharedPoller(FixedFlows([reading(healthy(partition(0)), name="a")]), history)
    asyncio.run(poller._poll())
    empty = Chart(samples=(), at_s=NOW_S)
    snapshot = replace(poller.snapshot, charts={("a", ChartSpan.HOUR): empty})

    shown = PAGES["/flow"].values(snapshot, {"flow": "a"}, history)

    assert shown["has_samples"]
    assert "From Prometheus" not in shown["chart_source"]
