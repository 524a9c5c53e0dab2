"""Whether a cluster can be used, as its own connections have it: told from attempts, not by asking for it.

A cluster is unreachable from the first attempt that fails while no connection is open until one is opened again. That a
bootstrap address answers says so only where nothing else is known: brokers may be advertised where nobody gets to.
"""

import time
from collections.abc import Callable

from mirrorflow_replicator.errors import ClusterError
from mirrorflow_replicator.flow.report import SideReport


class Reach:
    """Of one cluster. `is_open` says whether a connection to one of its brokers is open."""

    def __init__(self, *, is_open: Callable[[], bool], clock: Callable[[], float] = time.time) -> None:
        self._is_open = is_open
        self._clock = clock
        self._reason: str | None = None  # why not; "" where it was reached; None where nothing is known
        self._since_s = clock()

    def opened(self, *, is_bootstrap: bool) -> None:
        """A connection was opened, for good or to ask a bootstrap address."""
        if self._reason is None or (self._reason and not is_bootstrap):
            self._reason, self._since_s = "", self._clock()

    def failed(self, error: ClusterError) -> None:
        """An attempt to open one failed."""
        if not self._reason and not self._is_open():
            self._reason, self._since_s = error.reason, self._clock()

    def report(self, cluster_id: str) -> SideReport:
        """As of now."""
        return SideReport(reason=self._reason, since_s=self._since_s, cluster_id=cluster_id)
