"""Tracks whether both clusters of a connector can be used, and since when; `/progress` reports it.

The clients' connections show it; before there are any, the errors of attempts to connect do.
"""

import time
from collections.abc import Callable, Iterable

from mirrorflow_core.errors import (
    AuthenticationFailedError,
    FileMissingError,
    MirrorFlowError,
    UnreachableError,
    UnresolvedReferenceError,
    UnsupportedBrokerError,
)
from mirrorflow_core.java.properties import references
from mirrorflow_core.reports import SideReport, worst_side
from mirrorflow_kafka.client.cluster import Cluster

# Errors about the whole cluster; a missing ACL is not one.
_OF_CLUSTERS = (UnreachableError, AuthenticationFailedError, UnsupportedBrokerError)


class ClusterClients:
    """The state of both clusters of a connector, by alias."""

    def __init__(self, source: str, target: str, *, clock: Callable[[], float] = time.time) -> None:
        self._source = source
        self._target = target
        self._clock = clock
        self._failed: dict[str, SideReport] = {}

    def note(self, error: object) -> None:
        """Notes that an attempt to create a client failed with *error*."""
        if isinstance(error, _OF_CLUSTERS):
            before = self._failed.get(error.cluster)
            since_s = self._clock() if before is None else before.since_s
            self._failed[error.cluster] = SideReport(reason=error.reason, since_s=since_s)

    def connected(self, cluster: Cluster) -> None:
        """Notes that a client exists: its own state counts from now on."""
        self._failed.pop(cluster.alias, None)

    def reports(self, clusters: Iterable[Cluster]) -> tuple[SideReport, SideReport]:
        """Returns the state of source and target, from *clusters* and failed attempts."""
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
        return next(((one.path, one.key) for one in references(error.reference)), None)
    return None
