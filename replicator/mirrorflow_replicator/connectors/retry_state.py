"""Keeps the retry state of a connector, and builds the common part of its report.

An error is logged when its reason differs from the previous one: the message of a lost connection changes
with each attempt. Each consecutive error doubles the pause before the next attempt, up to a maximum.
"""

import logging
import time
from typing import Final, Protocol

from mirrorflow_core.backoff import backoff_s
from mirrorflow_core.errors import MirrorFlowError
from mirrorflow_core.replication_policy import flow_name
from mirrorflow_core.reports import ConnectorReport
from mirrorflow_core.settings import ConnectorSettings
from mirrorflow_replicator.connectors.cluster_clients import missing_of

PAUSE_MIN_S: Final = 0.5

log = logging.getLogger("mirrorflow.worker")


class RetryState:
    """The errors of the connector, or the part of it, that the log calls *name*."""

    def __init__(self, name: str, *, pause_max_s: float) -> None:
        self.newest: MirrorFlowError | None = None  # of the last attempt; None while all is well
        self._name = name
        self._pause_max_s = pause_max_s
        self._in_a_row = 0

    def note(self, error: MirrorFlowError) -> None:
        """Notes a failed attempt."""
        if self.newest is None or self.newest.reason != error.reason:
            log.warning("%s: %s", self._name, error)
        self.newest = error
        self._in_a_row += 1

    def over(self) -> None:
        """Notes a successful attempt."""
        self.newest, self._in_a_row = None, 0

    @property
    def pause_s(self) -> float:
        """The pause before the next attempt, in seconds."""
        return backoff_s(self._in_a_row, lowest_s=PAUSE_MIN_S, highest_s=self._pause_max_s)


class Flow(Protocol):
    """The settings that every kind of connector has."""

    @property
    def flow(self) -> str:
        """The flow that claims the source alias on the target."""

    @property
    def source_alias(self) -> str:
        """The alias of the cluster that is read."""

    @property
    def target_alias(self) -> str:
        """The alias of the cluster that is written to."""


def report_of(
    connector: ConnectorSettings,
    flow: Flow,
    *,
    state: str,
    problem: MirrorFlowError | None,
    started_at_s: float,
) -> ConnectorReport:
    """Returns the connector's identity and its error; each connector adds what it does."""
    return ConnectorReport(
        name=connector.name,
        connector_class=connector.connector_class,
        flow=flow_name(flow.flow),
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
