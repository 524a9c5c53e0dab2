"""Reads the connectors of many flows, of each as much as is shown: for both forms of the console.

Most flows need only their summary. Partitions are read of flows on an open page, of flows in trouble, and once a minute of
each flow, for the lags of its topics.
"""

import ssl
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote
from zlib import crc32

from mirrorflow_console.connector_client import (
    KEPT_MAX,
    ConnectorAddress,
    ConnectorClient,
    ConnectorRequest,
    Dial,
)
from mirrorflow_console.documents import (
    OFFSETS_MAX,
    DocumentError,
    DocumentUpdate,
    Figures,
    FlowReading,
    group_offsets,
    parse_json,
    schemas_report,
    updated_document,
)
from mirrorflow_console.merged_documents import merged
from mirrorflow_console.partition_table import PARTITIONS_MAX, PartitionTable

# Most flows have fewer. The greatest lags come first, so trouble with lag is among them.
PARTITIONS_USUAL: Final = 1_000
# Polls in which the partitions of each flow are read once: a minute, which is a step of a topic's last hour.
TURNS: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectedFlow:
    """A flow, with the addresses of its source connector's processes, and of those that know its groups and schemas, the best first."""

    reading: FlowReading
    subject: str  # of the sentence that a process does not report its progress
    sources: tuple[ConnectorAddress, ...] = ()
    groups: tuple[ConnectorAddress, ...] = ()
    schemas: tuple[ConnectorAddress, ...] = ()  # of a schema connector in a pod of its own


class FlowReader:
    """Reads flows, and remembers what their connectors returned. For one thread at a time. *dial* as for `ConnectorClient`."""

    def __init__(self, dial: Dial | None = None) -> None:
        self._client = ConnectorClient(dial)
        self._updates: dict[ConnectorAddress, DocumentUpdate] = {}
        # By key: as given, and with what was read.
        self._readings: dict[str, tuple[FlowReading, FlowReading]] = {}
        self.figures: dict[str, Figures] = {}  # as `FlowSource.figures`
        self.partitions: dict[str, PartitionTable] = {}  # as `FlowSource.partitions`
        self._turn = 0
        self._context: ssl.SSLContext | None = None

    def read(
        self,
        flows: Sequence[ConnectedFlow],
        detailed: AbstractSet[str],
        groups: AbstractSet[str],
        *,
        is_watched: bool,
        context: ssl.SSLContext | None = None,
    ) -> list[FlowReading]:
        """Returns the readings of *flows* with what their connectors return, in their order.

        *detailed*, *groups* and *is_watched*: as for `FlowSource.read`. Without a page, polls are rare and read partitions.
        *context* verifies the certificates of connectors that serve TLS.
        """
        self._turn = (self._turn + 1) % TURNS
        self._context = context
        self.figures, self.partitions = {}, {}
        requests: list[ConnectorRequest] = []
        for flow in flows:
            key = flow.reading.key
            if key in detailed:
                requests += [_request(address, PARTITIONS_MAX) for address in flow.sources]
            else:
                is_due = not is_watched or (crc32(key.encode()) + self._turn) % TURNS == 0
                requests += [self._brief_request(address, flow, is_due=is_due) for address in flow.sources]
        updates = dict(self._documents(requests))
        # The partitions of a connector in trouble have more about it than its summary.
        troubled = [
            request.address
            for request in requests
            if "limit=0" in request.target and _is_in_trouble(updates[request.address])
        ]
        updates.update(self._documents([_request(address, PARTITIONS_USUAL) for address in troubled]))
        self._updates = {
            address: update for address, update in updates.items() if isinstance(update, DocumentUpdate)
        }
        readings = [self._reading(flow, updates) for flow in flows]
        self._readings = {
            flow.reading.key: (flow.reading, reading) for flow, reading in zip(flows, readings, strict=True)
        }
        return self._with_schemas(flows, self._with_groups(flows, readings, groups), detailed)

    def _reading(
        self, flow: ConnectedFlow, updates: Mapping[ConnectorAddress, DocumentUpdate | DocumentError]
    ) -> FlowReading:
        """Returns the reading of *flow*, the last one where no more than figures has changed."""
        key = flow.reading.key
        update = updates[flow.sources[0]] if len(flow.sources) == 1 else None
        given, known = self._readings.get(key, (None, None))
        if not isinstance(update, DocumentUpdate):
            reading = _with_documents(flow, [updates[address] for address in flow.sources])
        elif (
            known is not None
            and known.document is update.document
            and (given is flow.reading or given == flow.reading)
            and not known.offsets
        ):
            reading = known
        else:
            reading = _with_documents(flow, [update])
        if isinstance(update, DocumentUpdate):
            self.figures[key], self.partitions[key] = update.figures, update.partitions
        elif reading.document is not None:
            self.figures[key] = reading.document.figures
            self.partitions[key] = reading.document.partitions
        return reading

    def _brief_request(
        self, address: ConnectorAddress, flow: ConnectedFlow, *, is_due: bool
    ) -> ConnectorRequest:
        """Returns the request for a connector of which no page is open."""
        known = self._updates.get(address)
        if known is None or _is_in_trouble(known):
            return _request(address, PARTITIONS_USUAL if is_due or known is not None else 0)
        # Documents of several processes are added up, for which each must be whole.
        unless = known.document.digest if len(flow.sources) == 1 else ""
        return (
            _request(address, PARTITIONS_USUAL, unless=unless)
            if is_due
            else _figures_request(address, unless)
        )

    def _documents(
        self, requests: Sequence[ConnectorRequest]
    ) -> Iterator[tuple[ConnectorAddress, DocumentUpdate | DocumentError]]:
        for index, body in self._client.fetch(requests, self._context):
            address = requests[index].address
            known = self._updates.get(address)
            try:
                yield address, updated_document(_parsed(body), None if known is None else known.document)
            except DocumentError as error:
                yield address, error

    def _with_groups(
        self, flows: Sequence[ConnectedFlow], readings: list[FlowReading], keys: AbstractSet[str]
    ) -> list[FlowReading]:
        """Returns *readings*, those of *keys* with the offsets of groups: of the first address that returns some."""
        wanted = [address for flow in flows if flow.reading.key in keys for address in flow.groups]
        if not wanted:
            return readings
        by_address = dict(self._offsets(wanted))
        offsets = [
            next((by_address[address] for address in flow.groups if address in by_address), None)
            for flow in flows
        ]
        return [
            reading if rows is None else replace(reading, offsets=rows[0], offsets_truncated=rows[1])
            for reading, rows in zip(readings, offsets, strict=True)
        ]

    def _with_schemas(
        self, flows: Sequence[ConnectedFlow], readings: list[FlowReading], keys: AbstractSet[str]
    ) -> list[FlowReading]:
        """Returns *readings*, those of *keys* with what the pods of schema connectors report."""
        wanted = [
            (index, address)
            for index, flow in enumerate(flows)
            if flow.reading.key in keys
            for address in flow.schemas
        ]
        requests = [_request(address, 0) for _, address in wanted]
        for number, body in self._client.fetch(requests, self._context):
            try:
                report = schemas_report(_parsed(body))
            except DocumentError:
                continue  # as for groups; the condition SchemasInSync has the cause
            index = wanted[number][0]
            readings[index] = replace(readings[index], schemas=report)
        return readings

    def _offsets(
        self, addresses: Sequence[ConnectorAddress]
    ) -> Iterator[tuple[ConnectorAddress, tuple[tuple[Mapping[str, Any], ...], bool]]]:
        """Yields the addresses that return offsets of groups, with them and whether there are more."""
        requests = [ConnectorRequest(address, f"/offsets?limit={OFFSETS_MAX}") for address in addresses]
        for index, body in self._client.fetch(requests, self._context):
            try:
                rows, is_truncated = group_offsets(_parsed(body))
            except DocumentError:
                continue  # the page shows that there are none; the next poll asks again
            if rows:
                yield addresses[index], (rows, is_truncated)


@lru_cache(KEPT_MAX)  # the same at each poll, until the connector's digest changes
def _figures_request(address: ConnectorAddress, digest: str) -> ConnectorRequest:
    return _request(address, 0, unless=digest)


def _request(address: ConnectorAddress, limit: int, *, unless: str = "") -> ConnectorRequest:
    return ConnectorRequest(address, f"/progress/partitions?limit={limit}&columns=yes&unless={quote(unless)}")


def _is_in_trouble(update: DocumentUpdate | DocumentError) -> bool:
    return isinstance(update, DocumentUpdate) and (update.document.has_trouble or update.figures.is_lagging)


def _parsed(body: bytes | DocumentError) -> Any:
    if isinstance(body, DocumentError):
        raise body
    return parse_json(body)


def _with_documents(flow: ConnectedFlow, updates: Iterable[DocumentUpdate | DocumentError]) -> FlowReading:
    reading, problems, read = flow.reading, [], []
    for update in updates:
        if isinstance(update, DocumentError):
            problems.append(f"{flow.subject} does not report its progress: {update}.")
        else:
            read.append(update.document)
    if problems:
        return replace(reading, problem=" ".join(problems))
    if not read:
        return reading
    document = merged(read)
    return replace(
        reading,
        document=document,
        source=reading.source or document.source,
        target=reading.target or document.target,
    )
