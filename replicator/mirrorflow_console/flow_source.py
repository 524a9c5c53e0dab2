"""Declares where a console reads flows from: this machine, or a cluster."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Protocol

from mirrorflow_console.documents import Figures, FlowReading
from mirrorflow_console.partition_table import PartitionTable


class FlowSource(Protocol):
    """Reads all flows. Called in a thread, one call at a time; what fails becomes the `problem` of a reading."""

    def read(
        self, detailed: AbstractSet[str], groups: AbstractSet[str], *, is_watched: bool
    ) -> list[FlowReading]:
        """Returns the state of all flows: the same object as before where no more than figures has changed.

        *detailed* and *groups* are keys of flows of which a page shows all partitions, or the offsets of groups. Without a
        page, not *is_watched*, only what costs no request to a connector is needed.
        """

    @property
    def figures(self) -> Mapping[str, Figures]:
        """The figures of the last read, by the key of the flow; a reading has those of the read that made it."""

    @property
    def partitions(self) -> Mapping[str, PartitionTable]:
        """The partitions that the last read has read, by the key of the flow."""

    @property
    def problem(self) -> str:
        """Why flows cannot be listed now; "" if they can."""
