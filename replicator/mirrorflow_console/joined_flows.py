"""Joins several sources of flows: those of this machine, and of contexts of the kubeconfig."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace

from mirrorflow_console.documents import FlowReading
from mirrorflow_console.flow_source import FlowSource


class JoinedFlows:
    """A `FlowSource` over others. Keys and namespaces of each begin with its label; "" stands for none."""

    def __init__(self, sources: Mapping[str, FlowSource]) -> None:
        self._sources = sources

    @property
    def problem(self) -> str:
        """The problems of all sources, each with its label."""
        found = ((label, source.problem) for label, source in self._sources.items())
        return " ".join(f"{label}: {problem}" if label else problem for label, problem in found if problem)

    def read(
        self, detailed: AbstractSet[str], groups: AbstractSet[str], *, is_watched: bool
    ) -> list[FlowReading]:
        """Returns the flows of all sources, one source after the other."""
        readings = []
        for label, source in self._sources.items():
            own = [
                frozenset(
                    key.removeprefix(f"{label}|") for key in keys if key.startswith(f"{label}|") or not label
                )
                for keys in (detailed, groups)
            ]
            found = source.read(own[0], own[1], is_watched=is_watched)
            readings += [_labelled(label, one) for one in found] if label else found
        return readings


def _labelled(label: str, reading: FlowReading) -> FlowReading:
    return replace(reading, key=f"{label}|{reading.key}", namespace=f"{label} {reading.namespace}".strip())
