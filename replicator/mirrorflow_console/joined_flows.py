"""Joins several sources of flows: those of this machine, and of contexts of the kubeconfig."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import TypeVar

from mirrorflow_console.documents import Figures, FlowReading
from mirrorflow_console.flow_source import FlowSource
from mirrorflow_console.partition_table import PartitionTable

Value = TypeVar("Value")


class JoinedFlows:
    """A `FlowSource` over others. Keys and namespaces of each begin with its label; "" stands for none."""

    def __init__(self, sources: Mapping[str, FlowSource]) -> None:
        self._sources = sources
        self._labelled: dict[str, tuple[FlowReading, FlowReading]] = {}  # by key: as read, and with its label

    @property
    def figures(self) -> Mapping[str, Figures]:
        """The figures of the last read of all sources."""
        return _joined({label: source.figures for label, source in self._sources.items()})

    @property
    def partitions(self) -> Mapping[str, PartitionTable]:
        """The partitions that the last read of all sources has read."""
        return _joined({label: source.partitions for label, source in self._sources.items()})

    @property
    def problem(self) -> str:
        """The problems of all sources, each with its label."""
        problems = ((label, source.problem) for label, source in self._sources.items())
        return " ".join(f"{label}: {problem}" if label else problem for label, problem in problems if problem)

    def read(
        self, detailed: AbstractSet[str], groups: AbstractSet[str], *, is_watched: bool
    ) -> list[FlowReading]:
        """Returns the flows of all sources, one source after the other."""
        readings: list[FlowReading] = []
        labelled: dict[str, tuple[FlowReading, FlowReading]] = {}
        for label, source in self._sources.items():
            own = [
                frozenset(
                    key.removeprefix(f"{label}|") for key in keys if key.startswith(f"{label}|") or not label
                )
                for keys in (detailed, groups)
            ]
            for reading in source.read(own[0], own[1], is_watched=is_watched):
                known = self._labelled.get(f"{label}|{reading.key}")
                is_known = known is not None and known[0] is reading
                given = (
                    known
                    if known is not None and is_known
                    else (reading, _labelled(label, reading) if label else reading)
                )
                labelled[f"{label}|{reading.key}"] = given
                readings.append(given[1])
        self._labelled = labelled
        return readings


def _joined(by_label: Mapping[str, Mapping[str, Value]]) -> dict[str, Value]:
    return {
        f"{label}|{key}" if label else key: value
        for label, values in by_label.items()
        for key, value in values.items()
    }


def _labelled(label: str, reading: FlowReading) -> FlowReading:
    return replace(reading, key=f"{label}|{reading.key}", namespace=f"{label} {reading.namespace}".strip())
