"""Builds flows for the tests of the console; the worker's code renders their documents."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from mirrorflow_console.documents import Figures, FlowReading, connector_document
from mirrorflow_console.partition_table import PartitionTable
from mirrorflow_core.reports import ConnectorReport, PartitionPhase, SideReport
from mirrorflow_replicator.http.progress import partitions
from tests.unit.http.reports import NOW_S, connector, content, partition, samples_of_progress, task, view

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
    """A running source connector with the partitions *parts*."""
    values: dict[str, Any] = {"source": REACHABLE, "target": REACHABLE, "has_reported_all": True}
    return connector(task(*(parts or (partition(),))), **(values | changes))


def table(
    *reports: ConnectorReport, limit: int = 1_000, query: Mapping[str, str] | None = None, **changes: Any
) -> dict[str, Any]:
    """The response of `/progress/partitions` with columns for *reports*; *query* has further parameters."""
    state = view(*reports, samples=samples_of_progress(reports[0]), ready=True, **changes)
    asked = {"limit": str(limit), "columns": "yes", **(query or {})}
    body: dict[str, Any] = json.loads(content(partitions(asked, state)))
    return body


def set_value(document: dict[str, Any], index: int, **values: Any) -> None:
    """Sets *values* of the partition *index* in the columns of *document*."""
    columns = document["columns"]
    for name, value in values.items():
        if not isinstance(columns[name], list):
            columns[name] = [columns[name]] * len(columns["partition"])
        columns[name][index] = value


def reading(
    report: ConnectorReport, *others: ConnectorReport, name: str = "east-to-west", **changes: Any
) -> FlowReading:
    """The reading of a flow whose connectors are *report* and *others*."""
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
    """A status with conditions; each row has type, status, reason and message."""
    fields = ("type", "status", "reason", "message")
    return {
        "conditions": [
            {**dict(zip(fields, row, strict=True)), "lastTransitionTime": "2026-11-01T10:00:00Z"}
            for row in rows
        ]
    }


class FixedFlows:
    """A source of flows that a test sets; *requests* has the arguments of each read."""

    problem = ""
    figures: ClassVar[Mapping[str, Figures]] = {}

    @property
    def partitions(self) -> Mapping[str, PartitionTable]:
        return {flow_reading.key: flow_reading.partitions for flow_reading in self.readings}

    def __init__(self, readings: Sequence[FlowReading] = ()) -> None:
        self.readings = list(readings)
        self.reads = 0
        self.requests: list[tuple[frozenset[str], frozenset[str], bool]] = []

    def read(self, detailed: Any, groups: Any, *, is_watched: bool) -> list[FlowReading]:
        self.reads += 1
        self.requests.append((frozenset(detailed), frozenset(groups), is_watched))
        return list(self.readings)
