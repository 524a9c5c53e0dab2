"""Tracks whether a cluster is reachable, from its connection attempts and without extra probes.

A cluster is unreachable from the first attempt that fails while no connection is open, until a connection is
opened. A bootstrap address that responds counts only if nothing else is known, because brokers may advertise
unreachable addresses.
"""

import time
from collections.abc import Callable

from mirrorflow_core.errors import ClusterError
from mirrorflow_core.reports import SideReport


class Reachability:
    """The reachability of one cluster.

    *is_open* returns whether a connection to one of its brokers is open.
    """

    def __init__(self, *, is_open: Callable[[], bool], clock: Callable[[], float] = time.time) -> None:
        self._is_open = is_open
        self._clock = clock
        self._reason: str | None = None  # why it is unreachable; "" if reachable; None if unknown
        self._since_s = clock()

    def opened(self, *, is_bootstrap: bool) -> None:
        """Note that a connection was opened, to a broker or to a bootstrap address."""
        if self._reason is None or (self._reason and not is_bootstrap):
            self._reason, self._since_s = "", self._clock()

    def failed(self, error: ClusterError) -> None:
        """Note that a connection attempt failed."""
        if not self._reason and not self._is_open():
            self._reason, self._since_s = error.reason, self._clock()

    def report(self, cluster_id: str) -> SideReport:
        """Return the current state, and since when it holds."""
        return SideReport(reason=self._reason, since_s=self._since_s, cluster_id=cluster_id)
