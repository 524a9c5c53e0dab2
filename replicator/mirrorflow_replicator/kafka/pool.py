"""The connections of one cluster: one for each broker, purpose and index, opened when first wanted, re-opened when lost.

Callers that want the same connection wait for one attempt together; after a failure the next attempt waits longer, so
a broker that is down costs a connection attempt a second, however many ask.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from mirrorflow_replicator.errors import ConnectionLostError, MirrorFlowError, UnreachableError
from mirrorflow_replicator.kafka.connection import Connection

# Java's reconnect.backoff.ms and reconnect.backoff.max.ms.
RECONNECT_BACKOFF_MIN_S = 0.05
RECONNECT_BACKOFF_MAX_S = 1.0
# A connection that lived this long was a good one: its loss is news, not a further failure.
STEADY_AFTER_S = 5.0
BACKOFF_JITTER = 0.2


@dataclass(frozen=True, slots=True)
class PoolKey:
    """Which connection."""

    node_id: int
    purpose: str
    index: int


@dataclass(slots=True)
class _Slot:
    connection: Connection | None = None
    opening: asyncio.Task[Connection] | None = None
    failures: int = 0
    opened_at: float = 0.0


def backoff_s(failures: int, *, lowest_s: float, highest_s: float) -> float:
    """Exponential with jitter: how long to wait after *failures* in a row; 0 after none."""
    if failures == 0:
        return 0.0
    exponent = min(failures - 1, 30)  # 2 ** 30 is beyond any bound, and no overflow
    wait_s = min(lowest_s * float(2**exponent), highest_s)
    return wait_s * random.uniform(1 - BACKOFF_JITTER, 1 + BACKOFF_JITTER)  # noqa: S311 it spreads, it does not protect


class ConnectionPool:
    """Opens by *opener*; see the module."""

    def __init__(self, opener: Callable[[PoolKey], Awaitable[Connection]], *, cluster: str) -> None:
        self._opener = opener
        self._cluster = cluster
        self._slots: dict[PoolKey, _Slot] = {}
        self._is_closed = False

    def open_nodes(self, purpose: str) -> set[int]:
        """Brokers with an open connection for *purpose*."""
        return {
            key.node_id
            for key, slot in self._slots.items()
            if key.purpose == purpose and slot.connection is not None and slot.connection.is_open
        }

    @property
    def has_open(self) -> bool:
        """Whether any broker has an open connection, for whatever purpose."""
        return any(slot.connection is not None and slot.connection.is_open for slot in self._slots.values())

    async def get(self, key: PoolKey) -> Connection:
        """The open connection, or a new one. Raises what the opener raises, and ConnectionLostError after `close`."""
        slot = self._slots.setdefault(key, _Slot())
        if slot.connection is not None and slot.connection.is_open:
            return slot.connection
        if self._is_closed:
            raise ConnectionLostError(
                cluster=self._cluster, address=f"broker {key.node_id}", problem="we closed it"
            )
        if slot.opening is None or slot.opening.done():
            slot.opening = asyncio.create_task(
                self._open(key, slot), name=f"connect-{self._cluster}-{key.node_id}"
            )
            slot.opening.add_done_callback(_retrieve)
        return await asyncio.shield(slot.opening)

    async def _open(self, key: PoolKey, slot: _Slot) -> Connection:
        now = asyncio.get_running_loop().time
        if slot.connection is not None:
            slot.failures = 1 if now() - slot.opened_at > STEADY_AFTER_S else slot.failures + 1
            slot.connection = None
        await asyncio.sleep(
            backoff_s(slot.failures, lowest_s=RECONNECT_BACKOFF_MIN_S, highest_s=RECONNECT_BACKOFF_MAX_S)
        )
        try:
            connection = await self._opener(key)
        except MirrorFlowError:
            slot.failures += 1
            raise
        if self._is_closed:
            connection.close()
        slot.connection = connection
        slot.opened_at = now()
        return connection

    async def replace_all_but(self, security: object) -> int:
        """Open anew, one by one, each connection that was opened by another *security*; how many those were.

        Raises what the opener raises but UnreachableError; the connections not yet replaced stay as they are.
        """
        count = 0
        for key, slot in tuple(self._slots.items()):
            old = slot.connection
            if old is None or not old.is_open or old.opened_by is security:
                continue
            try:
                connection = await self._opener(key)
            except UnreachableError:
                continue  # says nothing of the secrets; the old one may be as good as lost
            if self._is_closed or slot.connection is not old:
                connection.close()  # lost and opened again meanwhile, by the new ones
                continue
            slot.connection = connection
            slot.opened_at = asyncio.get_running_loop().time()
            old.retire()
            count += 1
        return count

    def forgive(self) -> None:
        """Try all again at once: the cluster has been seen alive."""
        for slot in self._slots.values():
            slot.failures = min(slot.failures, 1)

    async def close(self) -> None:
        """End every connection and attempt."""
        self._is_closed = True
        openings = [slot.opening for slot in self._slots.values() if slot.opening is not None]
        for opening in openings:
            opening.cancel()
        await asyncio.gather(*openings, return_exceptions=True)
        for slot in self._slots.values():
            if slot.connection is not None:
                slot.connection.close()


def _retrieve(task: asyncio.Task[Connection]) -> None:
    """An attempt that nobody waits for any more must not be reported as an unseen exception."""
    if not task.cancelled():
        task.exception()
