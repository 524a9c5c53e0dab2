"""The reader requests each connector once per poll, and partitions only if they are shown or explain a problem."""

import asyncio
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from mirrorflow_console.connector_client import ConnectorAddress
from mirrorflow_console.documents import FlowReading
from mirrorflow_console.flow_reader import TURNS, ConnectedFlow, FlowReader
from mirrorflow_core.reports import ConnectorReport, SchemasReport
from mirrorflow_replicator.http.server import HttpServer
from tests.unit.console.flow_readings import STOPPED, healthy, table
from tests.unit.http.reports import NOW_S, connector, partition, samples_of_progress, task, view

NOTHING: frozenset[str] = frozenset()


class Connectors:
    """Serves `report` as a replicator does, and keeps the queries."""

    def __init__(self) -> None:
        self.report: ConnectorReport = healthy(partition(0), partition(1))
        self.queries: list[dict[str, str]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                query = dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True))
                outer.queries.append(query)
                body = json.dumps(table(outer.report, limit=int(query["limit"]), query=query)).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Logs nothing."""

        self.server = ThreadingHTTPServer(("", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def flow(self, name: str = "a", processes: int = 1) -> ConnectedFlow:
        addresses = (
            ConnectorAddress(f"127.0.0.{1 + index}", self.server.server_port) for index in range(processes)
        )
        return ConnectedFlow(
            reading=FlowReading(key=name, name=name), subject="Its process", sources=tuple(addresses)
        )

    def limits(self) -> list[str]:
        """Returns the limits of the requests since the last call."""
        limits = [query["limit"] for query in self.queries]
        self.queries.clear()
        return limits


@pytest.fixture
def connectors() -> Iterator[Connectors]:
    served = Connectors()
    yield served
    served.server.shutdown()
    served.server.server_close()


def read_without_partitions(reader: FlowReader, connectors: Connectors, flow: ConnectedFlow) -> FlowReading:
    """Reads until a poll needs no partitions of *flow*, and returns its reading."""
    for _ in range(TURNS):
        (reading,) = reader.read([flow], NOTHING, NOTHING, is_watched=True)
        if connectors.limits() == ["0"]:
            return reading
    raise AssertionError("Partitions were read at each poll.")


def test_partitions_of_a_flow_without_problems_are_read_once_a_minute(connectors):
    reader, flow = FlowReader(), connectors.flow()

    for _ in range(TURNS):
        reader.read([flow], NOTHING, NOTHING, is_watched=True)

    assert sorted(connectors.limits()) == ["0"] * (TURNS - 1) + ["1000"]


def test_an_open_page_has_all_partitions_at_each_poll(connectors):
    reader, flow = FlowReader(), connectors.flow()

    for _ in range(3):
        (reading,) = reader.read([flow], frozenset({"a"}), NOTHING, is_watched=True)
        assert reading.document is not None
        assert len(reading.partitions) == 2

    assert connectors.limits() == ["20000"] * 3


def test_a_new_problem_is_shown_with_its_partition_in_the_same_poll(connectors):
    reader, flow = FlowReader(), connectors.flow()
    read_without_partitions(reader, connectors, flow)

    connectors.report = healthy(partition(0), partition(3, **STOPPED))
    (reading,) = reader.read([flow], NOTHING, NOTHING, is_watched=True)
    assert reading.document is not None
    assert reading.partitions.column("phase") == ["copying", "stopped"]
    assert connectors.limits()[-1] == "1000"

    reader.read([flow], NOTHING, NOTHING, is_watched=True)
    assert connectors.limits() == ["1000"]


def test_a_reading_is_reused_while_only_figures_change(connectors):
    reader, flow = FlowReader(), connectors.flow()
    before = read_without_partitions(reader, connectors, flow)

    connectors.report = healthy(partition(0, records=500), partition(1))
    (after,) = reader.read([flow], NOTHING, NOTHING, is_watched=True)
    assert after is before
    assert reader.figures["a"].records > (before.document.figures.records if before.document else 0)

    connectors.report = healthy(partition(0), partition(1), state="PAUSED")
    (paused,) = reader.read([flow], NOTHING, NOTHING, is_watched=True)
    assert paused is not before
    assert paused.document is not None
    assert paused.document.progress.summary["state"] == "PAUSED"


def test_partitions_of_a_page_that_was_closed_are_not_kept(connectors):
    """The page may be opened again after hours."""
    reader, flow = FlowReader(), connectors.flow()
    reader.read([flow], frozenset({"a"}), NOTHING, is_watched=True)
    connectors.limits()

    reading = read_without_partitions(reader, connectors, flow)

    assert reading.document is not None
    assert len(reading.partitions) == 0
    assert reading.document.partitions_total == 2


def test_a_flow_of_several_processes_has_the_sum_of_their_figures(connectors):
    reader, flow = FlowReader(), connectors.flow(processes=3)
    for _ in range(2):
        (reading,) = reader.read([flow], NOTHING, NOTHING, is_watched=True)

    assert reading.document is not None
    assert reading.document.progress.summary["partitions"]["total"] == 6
    assert reader.figures["a"].lag_records == 60


def test_the_pod_of_a_schema_connector_is_polled_only_for_an_open_page(connectors):
    schemas = SchemasReport(subjects=3, versions=7, passed_s=NOW_S)
    connectors.report = connector(task(), name="MirrorSchemaConnector", schemas=schemas)
    flow = replace(connectors.flow(), sources=(), schemas=connectors.flow().sources)
    reader = FlowReader()

    (closed,) = reader.read([flow], NOTHING, NOTHING, is_watched=True)
    assert (closed.schemas, connectors.limits()) == (None, [])

    (opened,) = reader.read([flow], frozenset({"a"}), NOTHING, is_watched=True)
    assert opened.schemas is not None
    assert opened.schemas["schemas"]["versions"] == 7
    assert connectors.limits() == ["0"]


def test_an_unresponsive_connector_has_no_document(connectors):
    reader, flow = FlowReader(), connectors.flow()
    connectors.server.shutdown()
    connectors.server.server_close()

    (reading,) = reader.read([flow], NOTHING, NOTHING, is_watched=True)

    assert reading.document is None
    assert reading.problem.startswith("Its process does not report its progress:")
    assert reader.figures == {}


def test_a_replicator_serves_all_polls_over_one_connection():
    """The replicator's own server, with its limits and its way to write responses."""
    report = healthy(partition(0), partition(1))
    state = view(report, samples=samples_of_progress(report), ready=True)
    reader = FlowReader()

    async def run() -> tuple[list[FlowReading], int]:
        server = await HttpServer.start(["http://127.0.0.1:0"], lambda: state)
        try:
            address = ConnectorAddress("127.0.0.1", int(server.addresses[0].rpartition(":")[2]))
            flow = ConnectedFlow(
                reading=FlowReading(key="a", name="a"), subject="Its process", sources=(address,)
            )
            readings = [
                (await asyncio.to_thread(reader.read, [flow], NOTHING, NOTHING, is_watched=True))[0]
                for _ in range(TURNS + 1)
            ]
            return readings, len(server._connections)
        finally:
            await server.close()

    readings, connections = asyncio.run(run())

    assert connections == 1
    assert all(flow_reading is readings[-1] for flow_reading in readings[2:])
    assert readings[-1].document is not None
    assert readings[-1].document.source == "A"
