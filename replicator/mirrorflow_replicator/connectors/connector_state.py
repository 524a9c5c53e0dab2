"""What every connector tracks besides its work: whether its clusters can be used, its errors and backoff, its common report.

The clients' connections show whether a cluster can be used; before there are any, the errors of attempts to connect do.

An error is logged when its reason differs from the previous one: the message of a lost connection changes with each attempt.
Each consecutive error doubles the pause before the next attempt, up to a maximum.
"""

import logging
import time
from collections.abc import Callable, Iterable
from typing import Final

from mirrorflow_core.backoff import backoff_s
from mirrorflow_core.errors import (
    AuthenticationFailedError,
    FileMissingError,
    MirrorFlowError,
    UnreachableError,
    UnresolvedReferenceError,
    UnsupportedBrokerError,
)
from mirrorflow_core.java.properties import references
from mirrorflow_core.replication_policy import flow_name
from mirrorflow_core.reports import ConnectorReport, SideReport, worst_side
from mirrorflow_core.settings import (
    CheckpointSettings,
    ConnectorSettings,
    HeartbeatSettings,
    SchemaSettings,
    SourceSettings,
)
from mirrorflow_kafka.client.cluster import Cluster

# Errors about the whole cluster; a missing ACL is not one.
_CLUSTER_ERRORS = (UnreachableError, AuthenticationFailedError, UnsupportedBrokerError)
PAUSE_MIN_S: Final = 0.5
log = logging.getLogger("mirrorflow.worker")


class ClusterClients:
    """The state of both clusters of a connector, by alias."""

    def __init__(self, source: str, target: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._target = target
        self._clock = clock
        self._failed: dict[str, SideReport] = {}

    def note(self, error: object) -> None:
        """Notes that an attempt to create a client failed with *error*."""
        if isinstance(error, _CLUSTER_ERRORS):
            before = self._failed.get(error.cluster)
            since_s = self._clock() if before is None else before.since_s
            self._failed[error.cluster] = SideReport(reason=error.reason, since_s=since_s, message=str(error))

    def connected(self, cluster: Cluster) -> None:
        """Notes that a client exists: its own state counts from now on."""
        self._failed.pop(cluster.alias, None)

    def reports(self, clusters: Iterable[Cluster]) -> tuple[SideReport, SideReport]:
        known = [(cluster.alias, cluster.reach) for cluster in clusters]
        known += list(self._failed.items())
        source, target = (
            worst_side(side for alias, side in known if alias == wanted)
            for wanted in (self._source, self._target)
        )
        return source, target


def missing_of(error: MirrorFlowError | None) -> tuple[str, str] | None:
    """Returns the folder and file that *error* misses; None if it is about something else.

    For a Secret these are its mount and its key.
    """
    if isinstance(error, FileMissingError):
        folder, _, name = error.path.rpartition("/")
        return folder, name
    if isinstance(error, UnresolvedReferenceError):
        return next(((reference.path, reference.key) for reference in references(error.reference)), None)
    return None


class RetryState:
    """The consecutive errors of a connector or of a part of it, and the pause before the next attempt. *name* is for the log."""

    def __init__(self, name: str, *, pause_max_s: float) -> None:
        self.problem: MirrorFlowError | None = None  # of the last attempt; None while all is well
        self._name = name
        self._pause_max_s = pause_max_s
        self._failures = 0

    def failed(self, error: MirrorFlowError) -> None:
        """Notes a failed attempt."""
        if self.problem is None or self.problem.reason != error.reason:
            log.warning("%s: %s", self._name, error)
        self.problem = error
        self._failures += 1

    def succeeded(self) -> None:
        """Notes that an attempt succeeded."""
        self.problem, self._failures = None, 0

    @property
    def pause_s(self) -> float:
        return backoff_s(self._failures, lowest_s=PAUSE_MIN_S, highest_s=self._pause_max_s)


def report_of(
    connector: ConnectorSettings,
    flow: SourceSettings | CheckpointSettings | HeartbeatSettings | SchemaSettings,
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
        trace=None if problem is None else str(problem),
        reason=None if problem is None else problem.reason,
        started_at_s=started_at_s,
        task_properties=(dict(connector.properties),),
        missing=missing_of(problem),
    )
