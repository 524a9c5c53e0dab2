"""Secrets that rotate while we run: connections of a cluster are replaced, one by one, by such as use the new ones.

    look again ──> same as what every connection was opened with? ──yes──> rest
                        │ no
                        └──> open the next connection by the new ones ──accepted──> it takes the old one's place
                                          └──refused──> told once; the old connections stay, and it is tried again

Promises: an old connection is given up only when the new one in its place is open and authenticated; it is closed when its
last request is answered (`Connection.retire`), so that no write is in doubt. What new connections use is `credentials`'.
"""

import asyncio
import logging
from collections.abc import Callable

from mirrorflow_replicator.errors import MirrorFlowError
from mirrorflow_replicator.kafka.pool import ConnectionPool
from mirrorflow_replicator.kafka.roles import SecurityLike

# Secrets are files of a few bytes, read in a fraction of a millisecond; kubelet takes up to a minute to bring a new one.
LOOK_S = 5.0
# A broker may learn of a password later than we do, and one that counts failures shall not lock us out.
REFUSED_AGAIN_S = 20.0

log = logging.getLogger("mirrorflow.secrets")


class Rotation:
    """Follows the secrets of one cluster's client. `run` ends only by cancellation; `problem` is always safe to ask."""

    def __init__(self, alias: str, pool: ConnectionPool, security: Callable[[], SecurityLike | None]) -> None:
        self.problem: MirrorFlowError | None = None  # why today's secrets are not used; None while they are
        self._alias = alias
        self._pool = pool
        self._security = security
        self._refused: SecurityLike | None = None  # what was not accepted last
        self._try_at = 0.0

    @property
    def warnings(self) -> tuple[str, ...]:
        """The problem in words."""
        return () if self.problem is None else (self._sentence(self.problem),)

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Replace what was opened by other secrets than today's, as far as these are accepted."""
        now = asyncio.get_running_loop().time
        security = None
        try:
            security = self._security()
            if security is self._refused and now() < self._try_at:
                return
            replaced = await self._pool.replace_all_but(security)
        except MirrorFlowError as error:
            self._refused, self._try_at = security, now() + REFUSED_AGAIN_S
            if self.problem is None or str(self.problem) != str(error):
                log.warning("%s", self._sentence(error))
            self.problem = error
            return
        self._refused, self.problem = None, None
        if replaced:
            log.info("Cluster %s: %d connections now use the rotated secrets", self._alias, replaced)

    def _sentence(self, error: MirrorFlowError) -> str:
        return f"Cluster {self._alias}: the rotated secrets cannot be used, and connections opened by the old ones stay: {error}"
