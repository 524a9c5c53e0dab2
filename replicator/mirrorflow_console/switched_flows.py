"""Adds the switchover of its pair that is under way to each flow that another source reads."""

import time
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace

from mirrorflow_console.documents import Figures, FlowReading, RunningSwitchover
from mirrorflow_console.flow_source import FlowSource
from mirrorflow_console.partition_table import PartitionTable
from mirrorflow_console.switchover_views import running_switchover, switchover_views
from mirrorflow_console.switchovers import SwitchoverSource


class SwitchedFlows:
    """A `FlowSource`: the flows of *source*, those of a pair that is switched over with its switchover."""

    def __init__(
        self, source: FlowSource, switchovers: SwitchoverSource, clock: Callable[[], float] = time.time
    ) -> None:
        self._source = source
        self._switchovers = switchovers
        self._clock = clock
        # By key: as read, and with the switchover.
        self._switched: dict[str, tuple[FlowReading, FlowReading]] = {}

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
        readings = self._source.read(detailed, groups, is_watched=is_watched)
        under_way = self._under_way()
        self._switched = {
            reading.key: (
                reading,
                self._with_switchover(reading, under_way.get((reading.namespace, reading.name))),
            )
            for reading in readings
        }
        return [switched for _, switched in self._switched.values()]

    def _under_way(self) -> dict[tuple[str, str], RunningSwitchover]:
        """Returns the switchovers that have not ended, by the namespace and name of their flows."""
        return {
            (view.reading.namespace, flow): running_switchover(view)
            for view in reversed(switchover_views(self._switchovers.read(), self._clock()))
            if view.is_under_way
            for flow in (view.reading.flows or {}).values()
        }

    def _with_switchover(self, reading: FlowReading, switchover: RunningSwitchover | None) -> FlowReading:
        given, known = self._switched.get(reading.key, (None, None))
        if known is not None and given is reading and known.switchover == switchover:
            return known  # the same object, by which the poller sees that nothing has changed
        return reading if switchover is None else replace(reading, switchover=switchover)
