"""Declares where a console reads flows from: this machine, or a cluster."""

from collections.abc import Set as AbstractSet
from typing import Protocol

from mirrorflow_console.documents import FlowReading


class FlowSource(Protocol):
    """Reads all flows. Called in a thread, one call at a time; what fails becomes the `problem` of a reading."""

    def read(
        self, detailed: AbstractSet[str], groups: AbstractSet[str], *, is_watched: bool
    ) -> list[FlowReading]:
        """Returns the state of all flows.

        *detailed* and *groups* are keys of flows of which a page shows all partitions, or the offsets of groups. Without a
        page, not *is_watched*, only what costs no request to a connector is needed.
        """

    @property
    def problem(self) -> str:
        """Why flows cannot be listed now; "" if they can."""
