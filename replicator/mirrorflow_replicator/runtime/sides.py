"""Both clusters of a connector, whether they can be used and since when: by their clients' connections, and before there are
any by the errors of those who tried. What is said ends up in `/progress`.
"""

import time
from collections.abc import Callable, Iterable

from mirrorflow_replicator.connect.references import references
from mirrorflow_replicator.errors import (
    AuthenticationFailedError,
    FileMissingError,
    MirrorFlowError,
    UnreachableError,
    UnresolvedReferenceError,
    UnsupportedBrokerError,
)
from mirrorflow_replicator.flow.report import SideReport, worst_side
from mirrorflow_replicator.kafka.cluster import Cluster

# What is about the whole cluster; a missing ACL is not.
_OF_CLUSTERS = (UnreachableError, AuthenticationFailedError, UnsupportedBrokerError)


class Sides:
    """By the aliases of the clusters."""

    def __init__(self, source: str, target: str, *, clock: Callable[[], float] = time.time) -> None:
        self._source = source
        self._target = target
        self._clock = clock
        self._failed: dict[str, SideReport] = {}

    def note(self, error: object) -> None:
        """An attempt to make a client has failed with *error*."""
        if isinstance(error, _OF_CLUSTERS):
            before = self._failed.get(error.cluster)
            since_s = self._clock() if before is None else before.since_s
            self._failed[error.cluster] = SideReport(reason=error.reason, since_s=since_s)

    def connected(self, cluster: Cluster) -> None:
        """There is a client, whose word counts from now on."""
        self._failed.pop(cluster.alias, None)

    def reports(self, clusters: Iterable[Cluster]) -> tuple[SideReport, SideReport]:
        """Source and target, as *clusters* and failed attempts have them."""
        known = [(cluster.alias, cluster.reach) for cluster in clusters]
        known += list(self._failed.items())
        source, target = (
            worst_side(side for alias, side in known if alias == wanted)
            for wanted in (self._source, self._target)
        )
        return source, target


def missing_of(error: MirrorFlowError | None) -> tuple[str, str] | None:
    """Folder and file (of a Secret: its mount and its key) that *error* misses; None if it is about something else."""
    if isinstance(error, FileMissingError):
        folder, _, name = error.path.rpartition("/")
        return folder, name
    if isinstance(error, UnresolvedReferenceError):
        return next(((one.path, one.key) for one in references(error.reference)), None)
    return None
