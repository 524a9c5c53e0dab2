"""Joins several sources of switchovers: those of this machine, and of contexts of the kubeconfig."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace

from mirrorflow_console.switchovers import SwitchoverReading, SwitchoverSource


class JoinedSwitchovers:
    """A `SwitchoverSource` over others. Namespaces of each begin with its label, a context, as those of its flows; "" stands for none."""

    def __init__(self, sources: Mapping[str, SwitchoverSource]) -> None:
        self._sources = sources

    def read(self) -> Sequence[SwitchoverReading]:
        """Returns the switchovers of all sources, one source after the other."""
        return [
            _labelled(label, reading) if label else reading
            for label, source in self._sources.items()
            for reading in source.read()
        ]


def _labelled(label: str, reading: SwitchoverReading) -> SwitchoverReading:
    kubectl = f"kubectl --context {shlex.quote(label)} "
    commands = {
        name: kubectl + command.removeprefix("kubectl ") if command.startswith("kubectl ") else command
        for name, command in (reading.commands or {}).items()
    }
    return replace(reading, namespace=f"{label} {reading.namespace}".strip(), commands=commands)
