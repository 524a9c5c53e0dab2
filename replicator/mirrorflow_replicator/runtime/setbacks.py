"""What keeps a connector from its work for now, and what its report says of itself whatever it does.

An error is told when it is another one than before, by its reason: what a lost connection says changes from one attempt to
the next. Each in a row makes the pause before the next attempt longer.
"""

import logging
import time
from typing import Final, Protocol

from mirrorflow_replicator.errors import MirrorFlowError
from mirrorflow_replicator.flow.report import ConnectorReport
from mirrorflow_replicator.runtime.sides import missing_of
from mirrorflow_replicator.settings import ConnectorSettings

PAUSE_MIN_S: Final = 0.5
DOUBLED_MAX: Final = 10  # more would only be a larger number than any longest pause

log = logging.getLogger("mirrorflow.worker")


class Setbacks:
    """Of the connector, or the part of it, that the log calls *name*."""

    def __init__(self, name: str, *, pause_max_s: float) -> None:
        self.newest: MirrorFlowError | None = None  # of the last attempt; None while all is well
        self._name = name
        self._pause_max_s = pause_max_s
        self._in_a_row = 0

    def note(self, error: MirrorFlowError) -> None:
        """An attempt has failed."""
        if self.newest is None or self.newest.reason != error.reason:
            log.warning("%s: %s", self._name, error)
        self.newest = error
        self._in_a_row += 1

    def over(self) -> None:
        """An attempt went well."""
        self.newest, self._in_a_row = None, 0

    @property
    def pause_s(self) -> float:
        """How long to wait before the next attempt."""
        return float(min(self._pause_max_s, PAUSE_MIN_S * 2 ** min(self._in_a_row - 1, DOUBLED_MAX)))


class Flow(Protocol):
    """The settings of a connector's kind have these."""

    @property
    def flow(self) -> str:
        """Who claims the source alias on the target."""

    @property
    def source_alias(self) -> str:
        """Of the cluster that is read."""

    @property
    def target_alias(self) -> str:
        """Of the cluster that is written to."""


def report_of(
    connector: ConnectorSettings,
    flow: Flow,
    *,
    state: str,
    problem: MirrorFlowError | None,
    started_at_s: float,
) -> ConnectorReport:
    """Who the connector is and what is wrong with it; what it does is for itself to add."""
    return ConnectorReport(
        name=connector.name,
        connector_class=connector.connector_class,
        flow=flow.flow,
        source_alias=flow.source_alias,
        target_alias=flow.target_alias,
        properties=connector.properties,
        state=state,
        trace="" if problem is None else str(problem),
        reason="" if problem is None else problem.reason,
        started_at_s=started_at_s,
        now_s=time.time(),
        task_properties=(dict(connector.properties),),
        missing=missing_of(problem),
    )
