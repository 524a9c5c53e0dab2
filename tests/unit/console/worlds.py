"""Flows for the tests of the console: their documents are rendered by the worker's own code."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mirrorflow_console.documents import FlowReading, connector_document
from mirrorflow_core.reports import ConnectorReport, PartitionPhase, SideReport
from mirrorflow_replicator.http.progress import partitions
from tests.unit.http.reports import NOW_S, connector, content, moved, partition, task, view

REACHABLE = SideReport(reason="", since_s=NOW_S - 90, cluster_id="id")
UNREACHABLE = SideReport(
    reason="Unreachable",
    since_s=NOW_S - 42,
    message="Cluster B cannot be reached at b:9092: connection refused.",
)
STOPPED: dict[str, Any] = {
    "phase": PartitionPhase.STOPPED,
    "reason": "RecordTooLarge",
    "message": "orders-3: the target refuses a record of 2 MB.",
}


def healthy(*parts: Any, **changes: Any) -> ConnectorReport:
    """A source connector that runs, with *parts* as its partitions."""
    values: dict[str, Any] = {"source": REACHABLE, "target": REACHABLE, "has_reported_all": True}
    return connector(task(*(parts or (partition(),))), **(values | changes))


def table(*reports: ConnectorReport, **changes: Any) -> dict[str, Any]:
    """What `/progress/partitions` returns for *reports*."""
    shown = view(*reports, samples=moved(reports[0]), ready=True, **changes)
    found: dict[str, Any] = json.loads(content(partitions({}, shown)))
    return found


def reading(
    report: ConnectorReport, *others: ConnectorReport, name: str = "east-to-west", **changes: Any
) -> FlowReading:
    """The reading of a flow of which *report* and *others* are the connectors."""
    document = connector_document(table(report, *others))
    values: dict[str, Any] = {
        "key": name,
        "name": name,
        "source": document.source,
        "target": document.target,
        "document": document,
    }
    return FlowReading(**(values | changes))


def conditions(*rows: tuple[str, str, str, str]) -> Mapping[str, Any]:
    """A status with conditions: type, status, reason, message."""
    fields = ("type", "status", "reason", "message")
    return {
        "conditions": [
            {**dict(zip(fields, row, strict=True)), "lastTransitionTime": "2026-11-01T10:00:00Z"}
            for row in rows
        ]
    }


class FixedFlows:
    """A source of flows that a test sets."""

    problem = ""

    def __init__(self, readings: Sequence[FlowReading] = ()) -> None:
        self.readings = list(readings)
        self.reads = 0
        self.asked: list[tuple[frozenset[str], frozenset[str], bool]] = []

    def read(self, detailed: Any, groups: Any, *, is_watched: bool) -> list[FlowReading]:
        self.reads += 1
        self.asked.append((frozenset(detailed), frozenset(groups), is_watched))
        return list(self.readings)
