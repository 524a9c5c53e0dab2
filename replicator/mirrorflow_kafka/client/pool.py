"""The connection pool of one cluster: one connection per broker, purpose and index, opened on demand.

A lost connection is re-opened when it is next requested. Concurrent callers share one attempt. Each failure
lengthens the backoff, so a broker that is down costs one connection attempt per second, however many callers
there are.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from mirrorflow_core.backoff import backoff_s
from mirrorflow_core.errors import ConnectionLostError, MirrorFlowError, UnreachableError
from mirrorflow_kafka.client.connection import Connection

# Java's reconnect.backoff.ms and reconnect.backoff.max.ms.
RECONNECT_BACKOFF_MIN_S = 0.05
RECONNECT_BACKOFF_MAX_S = 1.0
# After this time a connection counts as stable: its loss restarts the backoff instead of extending it.
STEADY_AFTER_S = 5.0


@dataclass(frozen=True, slots=True)
class PoolKey:
    """The key of a connection in the pool."""

    node_id: int
    purpose: str
    index: int


@dataclass(slots=True)
class _Slot:
    connection: Connection | None = None
    opening: asyncio.Task[Connection] | None = None
    failures: int = 0
    opened_at: float = 0.0


class ConnectionPool:
    """Opens connections with *opener*, keeps them, and re-opens them after a loss."""

    def __init__(self, opener: Callable[[PoolKey], Awaitable[Connection]], *, cluster: str) -> None:
        self._opener = opener
        self._cluster = cluster
        self._slots: dict[PoolKey, _Slot] = {}
        self._is_closed = False

    def open_nodes(self, purpose: str) -> set[int]:
        """Return the node ids with an open connection for *purpose*."""
        return {
            key.node_id
            for key, slot in self._slots.items()
            if key.purpose == purpose and slot.connection is not None and slot.connection.is_open
        }

    @property
    def has_open(self) -> bool:
        """Whether any connection is open, for any purpose."""
        return any(slot.connection is not None and slot.connection.is_open for slot in self._slots.values())

    async def get(self, key: PoolKey) -> Connection:
        """Return the open connection, or open one.

        Raises what the opener raises; ConnectionLostError after `close`.
        """
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
            slot.opening.add_done_callback(retrieve_error)
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
        """Replace, one by one, each connection not opened with *security*; return how many.

        Raises what the opener raises, except UnreachableError; connections not yet replaced stay open.
        """
        count = 0
        for key, slot in tuple(self._slots.items()):
            old = slot.connection
            if old is None or not old.is_open or old.opened_by is security:
                continue
            try:
                connection = await self._opener(key)
            except UnreachableError:
                continue  # no evidence about the secrets; the old connection may be about to fail as well
            if self._is_closed or slot.connection is not old:
                connection.close()  # the old one was lost and re-opened meanwhile, with the new secrets
                continue
            slot.connection = connection
            slot.opened_at = asyncio.get_running_loop().time()
            old.retire()
            count += 1
        return count

    def forgive(self) -> None:
        """Shorten all backoffs to the first step, because the cluster has responded."""
        for slot in self._slots.values():
            slot.failures = min(slot.failures, 1)

    async def close(self) -> None:
        """Close every connection and cancel every attempt."""
        self._is_closed = True
        openings = [slot.opening for slot in self._slots.values() if slot.opening is not None]
        for opening in openings:
            opening.cancel()
        await asyncio.gather(*openings, return_exceptions=True)
        for slot in self._slots.values():
            if slot.connection is not None:
                slot.connection.close()


def retrieve_error(task: asyncio.Task[Any]) -> None:
    """Retrieve the exception of an abandoned attempt, so that asyncio does not report it."""
    if not task.cancelled():
        task.exception()
