"""Stores offsets: those that changed every few seconds, and all of them at stop, marked as left.

A stored offset never names a record that could still be aborted: what is delivered inside a transaction
counts when that is committed (`copy.transaction_member`). When an offset is stored only affects how far back
a successor has to read.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from mirrorflow_core.errors import MirrorFlowError
from mirrorflow_core.position import UNKNOWN, Position
from mirrorflow_kafka.stores.position_store import PositionStore
from mirrorflow_replicator.copy.offset_sync_writer import OffsetSyncWriter
from mirrorflow_replicator.copy.partition_copier import PartitionCopier

WRITES_AVERAGED = 10  # a minute at the default interval, like Kafka's own metric windows


class PositionWriter:
    """Stores the offsets of a task's partitions; `run` runs until cancelled."""

    def __init__(
        self,
        store: PositionStore,
        *,
        copier: str,
        interval_s: float,
        syncs: OffsetSyncWriter | None,
        now_ms: Callable[[], int],
        on_error: Callable[[MirrorFlowError], None],
    ) -> None:
        self._store = store
        self._copier = copier
        self._interval_s = interval_s
        self._syncs = syncs
        self._now_ms = now_ms
        self._on_error = on_error
        self._dirty: dict[PartitionCopier, None] = {}  # changed since their offset was last stored
        self._took_ms: deque[float] = deque(maxlen=WRITES_AVERAGED)

    def changed(self, lane: PartitionCopier) -> None:
        """Notes that *lane* may have made progress."""
        self._dirty[lane] = None

    def forget(self, lane: PartitionCopier) -> None:
        """Drops *lane*, which belongs to another task now."""
        self._dirty.pop(lane, None)

    @property
    def mean_ms(self) -> float:
        """The average duration of the newest writes, in ms; -1 before the first."""
        return sum(self._took_ms) / len(self._took_ms) if self._took_ms else -1.0

    async def run(self) -> None:
        """Stores changed offsets until cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            if self._syncs is not None:
                self._syncs.promote(self._dirty)
            try:
                await self.flush(list(self._dirty), left=False)
            except MirrorFlowError as error:
                self._on_error(error)

    async def flush(self, lanes: Iterable[PartitionCopier], *, left: bool) -> None:
        """Stores the offsets of *lanes*. *left*: they are given up. Raises ClusterError."""
        lanes = list(lanes)
        positions = {lane: self._position(lane, left=left) for lane in lanes}
        due = {lane: position for lane, position in positions.items() if position is not None}
        for lane in lanes:
            self._dirty.pop(lane, None)
        if due:
            began_s = time.monotonic()
            try:
                await self._store.write(due.values(), now_ms=self._now_ms())
            except MirrorFlowError:
                self._dirty.update(dict.fromkeys(due))
                raise
            self._took_ms.append((time.monotonic() - began_s) * 1000)
        for lane, position in due.items():
            lane.position = self._store.positions.get(lane.source, position)

    async def reread(self, waiting: Sequence[PartitionCopier]) -> list[PartitionCopier]:
        """Reads offsets that other copiers stored for *waiting*. Returns those whose copier has left."""
        try:
            await self._store.read_new()
        except MirrorFlowError as error:
            self._on_error(error)
        left = []
        for lane in waiting:
            found = self._store.positions.get(lane.source)
            if found is not None and found != lane.position:
                lane.position = found
                if found.left and found.copier != self._copier:
                    left.append(lane)
        return left

    def _position(self, lane: PartitionCopier, *, left: bool) -> Position | None:
        """Returns what to store for *lane*; None if nothing was delivered or everything is stored."""
        at, anchor, known = lane.pin.settled, lane.anchor, lane.position
        if lane.stream is None or at is None or anchor is None or at.ordinal < anchor.ordinal:
            return None
        end = lane.stream.known_end if at == lane.stream.delivered else UNKNOWN
        target_end = end if end > at.target_offset + 1 else UNKNOWN
        stored = (at.ordinal, at.source_offset, target_end, anchor.generation, left)
        if known is not None and stored == (
            known.sequence, known.source_offset, known.target_end, known.epoch, known.left,
        ):  # fmt: skip
            return None
        return Position(
            topic=lane.topic,
            partition=lane.partition,
            source_offset=at.source_offset,
            source_epoch=at.source_epoch,
            sequence=at.ordinal,
            target_offset=at.target_offset,
            target_end=target_end,
            epoch=anchor.generation,
            source_topic_id=anchor.source_topic_id,
            target_topic_id=anchor.target_topic_id,
            left=left,
            written_ms=self._now_ms(),
            copier=self._copier,
        )
