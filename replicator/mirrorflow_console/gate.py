"""Decides who may see which flows. On a laptop everyone who reaches the loopback address; in a cluster `sign_in` decides."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from starlette.requests import Request

from mirrorflow_console.job_views import JobView
from mirrorflow_console.poller import Snapshot
from mirrorflow_console.switchovers import SwitchoverReading


@dataclass(frozen=True, slots=True, kw_only=True)
class Visitor:
    """Who looks at a page. *namespaces*: those whose flows, or switchovers, the visitor may see; None: all.

    *key_namespaces*: those of which the visitor may see keys of records, by default none.
    """

    name: str = ""
    namespaces: frozenset[str] | None = None
    switchover_namespaces: frozenset[str] | None = None
    key_namespaces: frozenset[str] | None = frozenset()

    def visible(self, snapshot: Snapshot) -> Snapshot:
        """Returns *snapshot* with the flows that the visitor may see, and nothing about others."""
        if self.namespaces is None:
            return snapshot
        views = tuple(view for view in snapshot.views if view.namespace in self.namespaces)
        readings = {
            key: reading for key, reading in snapshot.readings.items() if reading.namespace in self.namespaces
        }
        return replace(snapshot, views=views, readings=readings, is_whole=False)

    def visible_results(self, results: Iterable[JobView]) -> Iterator[JobView]:
        """Yields those of *results* whose flows the visitor may see, without keys where they may not see these."""
        for result in results:
            if self.namespaces is None or result.namespace in self.namespaces:
                has_keys = self.key_namespaces is None or result.namespace in self.key_namespaces
                yield result if has_keys else result.without_keys()

    def may_see(self, switchover: SwitchoverReading) -> bool:
        """Whether the visitor may see a switchover."""
        return self.switchover_namespaces is None or switchover.namespace in self.switchover_namespaces


class GateUnavailableError(Exception):
    """It cannot be decided now who a visitor is, or what they may see: nothing is shown, and nothing is called absent."""


class Gate(Protocol):
    """Recognises visitors."""

    async def visitor(self, request: Request, snapshot: Snapshot) -> Visitor | None:
        """Returns who sends *request*, with the namespaces of *snapshot* that they may see; None: they must sign in.

        Raises GateUnavailableError.
        """


class OpenGate:
    """Lets everyone see everything: the server listens on the loopback address only."""

    async def visitor(self, request: Request, snapshot: Snapshot) -> Visitor | None:
        return Visitor(key_namespaces=None)
