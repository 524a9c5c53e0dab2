"""How a task stores positions and ends its writing: in transactions (`copy.transaction_runner`), or at least once."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from mirrorflow_core.copying.effects import Effects
from mirrorflow_core.copying.partition import PartitionCopier
from mirrorflow_core.copying.transaction import TIMES_AVERAGED
from mirrorflow_core.errors import MirrorFlowError
from mirrorflow_core.partitions import Position
from mirrorflow_core.writer.position import WriterPosition
from mirrorflow_core.writer.stream import Stream
from mirrorflow_kafka.stores.position_store import PositionStore
from mirrorflow_replicator.copy.offset_sync_writer import OffsetSyncWriter
from mirrorflow_replicator.process import now_ms


class CopierServices(Protocol):
    """What a committer uses of its task."""

    def apply(self, copier: PartitionCopier, effects: Effects) -> None:
        """Carries out *effects* of an event of *copier*."""

    def pump(self) -> None:
        """Lets every connection send what is ready."""

    def expects_response_by(self, copier: PartitionCopier, since_s: float) -> float:
        """Returns by when everything in flight of *copier* has reached its broker, counted from *since_s* (monotonic clock)."""


class PositionCommitter(Protocol):
    """What a task asks of the way in which positions are stored."""

    @property
    def took_ms(self) -> Sequence[float]:
        """The durations of the newest writes of positions."""

    def set_id_expiration(self, expires_s: float) -> None:
        """Uses the ids often enough for a coordinator that forgets them after *expires_s*."""

    def want(self, copier: PartitionCopier) -> None:
        """Takes *copier* into the transaction, because it has records to write, or lets it change its mode."""

    def sent(self, size_bytes: int) -> None:
        """Counts a batch of *size_bytes* that was sent inside the transaction."""

    def drained(self, copier: PartitionCopier) -> None:
        """Notes that *copier*, which is held for a commit, has nothing in flight any more."""

    def progressed(self, copier: PartitionCopier) -> None:
        """Notes that *copier* may have written everything that its source has."""

    def end(self, reason: str) -> None:
        """Ends the session because of *reason*."""

    async def store(self, copiers: Iterable[PartitionCopier], *, left: bool) -> None:
        """Stores the positions of *copiers*; *left*: they are given up. Raises ClusterError."""

    async def finish(self, timeout_s: float) -> None:
        """Commits at once, before partitions are given up."""

    def acknowledged_positions(self, copiers: Iterable[PartitionCopier]) -> list[WriterPosition]:
        """Returns what is stored, then how far *copiers* are acknowledged, for the next session of the task."""

    def positions_lost(self) -> None:
        """Stores all positions again: the topic has lost what was stored."""

    async def run(self) -> None:
        """Works until cancelled."""


class AtLeastOnceCommitter:
    """Stores positions of records that are acknowledged: what follows them is written again after a kill."""

    def __init__(self, store: PositionStore, *, end_session: Callable[[str], None]) -> None:
        self.took_ms: deque[float] = deque(maxlen=TIMES_AVERAGED)
        self._store = store
        self._end_session = end_session
        self._stored: dict[PartitionCopier, int] = {}  # source offsets

    def set_id_expiration(self, expires_s: float) -> None:
        """It has no transactional ids."""

    def want(self, copier: PartitionCopier) -> None:
        """There is no transaction, and no mode but plain batches."""

    def sent(self, size_bytes: int) -> None:
        """There is no transaction."""

    def drained(self, copier: PartitionCopier) -> None:
        """No partition is held for a commit."""

    def progressed(self, copier: PartitionCopier) -> None:
        """No commit depends on it."""

    def end(self, reason: str) -> None:
        """Ends the session: a refusal leaves open what was appended, or the leader takes the producer for a transactional one."""
        self._end_session(reason)

    async def store(self, copiers: Iterable[PartitionCopier], *, left: bool) -> None:
        """Stores how far *copiers* are acknowledged. Raises ClusterError."""
        due = {
            copier: _delivered(copier, copier.stream)
            for copier in copiers
            if copier.stream is not None
            and self._stored.get(copier, -1) != copier.stream.delivered.source_offset >= 0
        }
        if not due:
            return
        began_s = time.monotonic()
        await self._store.write(list(due.values()), now_ms=now_ms())
        self._stored |= {copier: position.source_offset for copier, position in due.items()}
        self.took_ms.append((time.monotonic() - began_s) * 1000)

    async def finish(self, timeout_s: float) -> None:
        """Nothing is open."""

    def acknowledged_positions(self, copiers: Iterable[PartitionCopier]) -> list[WriterPosition]:
        """Returns nothing: the next session obeys what is stored."""
        return []

    def positions_lost(self) -> None:
        """Has the next `store` write the positions again that were stored before."""
        self._stored.clear()

    async def run(self) -> None:
        """Waits until cancelled."""
        await asyncio.Event().wait()


def _delivered(copier: PartitionCopier, stream: Stream) -> Position:
    delivered = stream.delivered
    return Position(
        topic=copier.topic,
        partition=copier.partition,
        source_offset=delivered.source_offset,
        source_epoch=delivered.source_epoch,
        epochs=stream.epochs,
    )


class PositionFlusher:
    """Has positions stored: those that changed every few seconds, and all of them at stop, marked as left.

    When a position is stored only affects how far back a successor has to look. `run` runs until cancelled.
    """

    def __init__(
        self,
        committer: PositionCommitter,
        *,
        interval_s: float,
        syncs: OffsetSyncWriter | None,
        on_error: Callable[[MirrorFlowError], None],
    ) -> None:
        self._committer = committer
        self._interval_s = interval_s
        self._syncs = syncs
        self._on_error = on_error
        self._dirty: dict[PartitionCopier, None] = {}  # changed since their position was last stored

    def changed(self, copier: PartitionCopier) -> None:
        """Notes that *copier* may have made progress."""
        self._dirty[copier] = None

    def forget(self, copier: PartitionCopier) -> None:
        """Drops *copier*, which belongs to another task now."""
        self._dirty.pop(copier, None)

    @property
    def mean_ms(self) -> float | None:
        """The average duration of the newest writes, in ms; None before the first."""
        took_ms = self._committer.took_ms
        return sum(took_ms) / len(took_ms) if took_ms else None

    async def run(self) -> None:
        """Has changed positions stored until cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            if self._syncs is not None:
                self._syncs.promote(self._dirty)
            try:
                await self.flush(list(self._dirty), left=False)
            except MirrorFlowError as error:
                self._on_error(error)

    async def flush(self, copiers: Iterable[PartitionCopier], *, left: bool) -> None:
        """Has the positions of *copiers* stored. *left*: they are given up. Raises ClusterError."""
        copiers = list(copiers)
        for copier in copiers:
            self._dirty.pop(copier, None)
        try:
            await self._committer.store(copiers, left=left)
        except MirrorFlowError:
            self._dirty.update(dict.fromkeys(copiers))
            raise
