"""Adds the newest verification of each flow, from a folder of results, to what another source reads."""

from collections import Counter
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any

from mirrorflow_console.documents import Figures, FlowReading
from mirrorflow_console.flow_source import FlowSource
from mirrorflow_console.partition_table import PartitionTable
from mirrorflow_console.result_files import ResultFiles


class VerifiedFlows:
    """A `FlowSource`: the flows of *source*, each with the newest of *results* under its name.

    A result names no cluster. So flows of contexts with the same name have none, unless one of them is the only flow of that name.
    """

    def __init__(self, source: FlowSource, results: ResultFiles) -> None:
        self._source = source
        self._results = results
        self._verified: dict[
            str, tuple[FlowReading, FlowReading]
        ] = {}  # by key: as read, and with the result

    @property
    def figures(self) -> Mapping[str, Figures]:
        """Those of the source."""
        return self._source.figures

    @property
    def partitions(self) -> Mapping[str, PartitionTable]:
        """Those of the source."""
        return self._source.partitions

    @property
    def problem(self) -> str:
        """That of the source."""
        return self._source.problem

    def read(
        self, detailed: AbstractSet[str], groups: AbstractSet[str], *, is_watched: bool
    ) -> list[FlowReading]:
        """Returns all flows of the source."""
        newest = self._results.newest()
        readings = {
            reading.key: reading for reading in self._source.read(detailed, groups, is_watched=is_watched)
        }
        counts = Counter(reading.name for reading in readings.values())
        self._verified = {
            key: (
                reading,
                self._with_result(
                    reading,
                    newest.get(reading.name) if not reading.namespace or counts[reading.name] == 1 else None,
                ),
            )
            for key, reading in readings.items()
        }
        return [verified for _, verified in self._verified.values()]

    def _with_result(self, reading: FlowReading, result: Mapping[str, Any] | None) -> FlowReading:
        given, known = self._verified.get(reading.key, (None, None))
        if known is not None and given is reading and known.verification is result:
            return known  # the same object, by which the poller sees that nothing has changed
        return replace(reading, verification=result)
