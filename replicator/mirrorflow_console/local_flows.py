"""Reads the flows that run on this machine for this user, as `mirrorflow status` does."""

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final
from urllib.parse import urlsplit

from mirrorflow_cli.run_process import RunningFlow, running_flows
from mirrorflow_console.connector_client import ConnectorAddress, request_document, request_group_offsets
from mirrorflow_console.documents import ConnectorDocument, DocumentError, FlowReading, connector_document

THREADS: Final = 8  # a flow that does not answer delays only the few that share its thread


class LocalFlows:
    """A `FlowSource`: running processes, by their registration."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(max_workers=THREADS, thread_name_prefix="flows")

    @property
    def problem(self) -> str:
        return ""

    def read(
        self, detailed: AbstractSet[str], groups: AbstractSet[str], *, is_watched: bool
    ) -> list[FlowReading]:
        """Returns all running flows. There is no operator here, so they are read without a page, too."""
        named = list(_with_keys(running_flows()))
        return list(self._threads.map(lambda item: _read(item[0], item[1], detailed, groups), named))


def _with_keys(flows: tuple[RunningFlow, ...]) -> Iterator[tuple[str, RunningFlow]]:
    """Yields each flow with its key: the name, with the process id where several processes run the flow."""
    names = [one.name for one in flows]
    for one in flows:
        pid = one.pid or one.replicator_pid
        yield (one.name if names.count(one.name) == 1 else f"{one.name}~{pid}"), one


def _read(key: str, flow: RunningFlow, detailed: AbstractSet[str], groups: AbstractSet[str]) -> FlowReading:
    reading = FlowReading(key=key, name=flow.name, began_ms=flow.began_ms)
    try:
        document = _document(flow, is_detailed=key in detailed)
    except DocumentError as error:
        return _failed(reading, f"Its process does not report its progress: {error}.")
    if document is None:
        return _failed(reading, " ".join(flow.problems) or "Its process starts, or waits for a restart.")
    offsets, is_truncated = _offsets(flow) if key in groups else ((), False)
    return FlowReading(
        key=key,
        name=flow.name,
        source=document.source,
        target=document.target,
        document=document,
        began_ms=flow.began_ms,
        offsets=offsets,
        offsets_truncated=is_truncated,
    )


def _failed(reading: FlowReading, problem: str) -> FlowReading:
    return FlowReading(key=reading.key, name=reading.name, problem=problem, began_ms=reading.began_ms)


def _document(flow: RunningFlow, *, is_detailed: bool) -> ConnectorDocument | None:
    if flow.written is not None:
        return connector_document(flow.written.get("table"), flow.written.get("summary"))
    address = _address(flow)
    return None if address is None else request_document(address, is_detailed=is_detailed)


def _offsets(flow: RunningFlow) -> tuple[tuple[Mapping[str, Any], ...], bool]:
    address = _address(flow)
    if address is None:
        return (), False
    try:
        return request_group_offsets(address)
    except DocumentError:
        return (), False  # the page says that there are none; the next poll asks again


def _address(flow: RunningFlow) -> ConnectorAddress | None:
    if flow.url is None:
        return None
    parts = urlsplit(flow.url)
    try:
        return ConnectorAddress(host=parts.hostname or "127.0.0.1", port=parts.port or 80)
    except ValueError:
        return None
