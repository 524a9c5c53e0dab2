"""Reads the flows that run on this machine for this user, as `mirrorflow status` does."""

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from urllib.parse import urlsplit

from mirrorflow_cli.run_process import RunningFlow, running_flows
from mirrorflow_console.connector_client import ConnectorAddress
from mirrorflow_console.documents import DocumentError, Figures, FlowReading, connector_document
from mirrorflow_console.flow_reader import ConnectedFlow, FlowReader
from mirrorflow_console.partition_table import PartitionTable, columns_of

_PROCESS = "Its process"


class LocalFlows:
    """A `FlowSource`: running processes, by their registration."""

    def __init__(self) -> None:
        self._reader = FlowReader()

    @property
    def figures(self) -> Mapping[str, Figures]:
        """The figures of the last read, by the key of the flow."""
        return self._reader.figures

    @property
    def partitions(self) -> Mapping[str, PartitionTable]:
        """The partitions that the last read has read, by the key of the flow."""
        return self._reader.partitions

    @property
    def problem(self) -> str:
        return ""

    def read(
        self, detailed: AbstractSet[str], groups: AbstractSet[str], *, is_watched: bool
    ) -> list[FlowReading]:
        """Returns all running flows. There is no operator here, so they are read without a page, too."""
        flows = [_connected(key, flow) for key, flow in _with_keys(running_flows())]
        return self._reader.read(flows, detailed, groups, is_watched=is_watched)


def _with_keys(flows: tuple[RunningFlow, ...]) -> Iterator[tuple[str, RunningFlow]]:
    """Yields each flow with its key: the name, with the process id where several processes run the flow."""
    names = [flow.name for flow in flows]
    for flow in flows:
        pid = flow.pid or flow.replicator_pid
        yield (flow.name if names.count(flow.name) == 1 else f"{flow.name}~{pid}"), flow


def _connected(key: str, flow: RunningFlow) -> ConnectedFlow:
    reading = FlowReading(key=key, name=flow.name, began_ms=flow.began_ms)
    if flow.written is not None:
        return ConnectedFlow(reading=_as_written(reading, flow), subject=_PROCESS)
    address = _address(flow)
    if address is None:
        problem = " ".join(flow.problems) or "Its process starts, or waits for a restart."
        return ConnectedFlow(reading=replace(reading, problem=problem), subject=_PROCESS)
    return ConnectedFlow(reading=reading, subject=_PROCESS, sources=(address,), groups=(address,))


def _as_written(reading: FlowReading, flow: RunningFlow) -> FlowReading:
    """Returns *reading* with what the process wrote about its flow into a file."""
    written = flow.written or {}
    table = written.get("table")
    if isinstance(table, dict):
        columns = columns_of(table.get("partitions"))
        table = {**table, "summary": written.get("summary"), "columns": columns}
    try:
        document = connector_document(table)
    except DocumentError as error:
        return replace(reading, problem=f"{_PROCESS} does not report its progress: {error}.")
    return replace(reading, document=document, source=document.source, target=document.target)


def _address(flow: RunningFlow) -> ConnectorAddress | None:
    if flow.url is None:
        return None
    parts = urlsplit(flow.url)
    try:
        return ConnectorAddress(host=parts.hostname or "127.0.0.1", port=parts.port or 80)
    except ValueError:
        return None
