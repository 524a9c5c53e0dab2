"""Writing positions: every few seconds those that have changed, and at the end all, said to be left.

A position never names a record that could still be taken back: what is delivered inside a transaction counts when that is
committed (`runtime.pinned`). Nothing depends on when a position is written but how far back a successor has to look.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence

from mirrorflow_replicator.errors import MirrorFlowError
from mirrorflow_replicator.flow.position import UNKNOWN, Position
from mirrorflow_replicator.kafka.known_positions import PositionStore
from mirrorflow_replicator.runtime.lane import Lane
from mirrorflow_replicator.runtime.syncing import Syncing


class Flushing:
    """See the module."""

    def __init__(
        self,
        store: PositionStore,
        *,
        copier: str,
        interval_s: float,
        syncs: Syncing | None,
        now_ms: Callable[[], int],
        on_error: Callable[[MirrorFlowError], None],
    ) -> None:
        self._store = store
        self._copier = copier
        self._interval_s = interval_s
        self._syncs = syncs
        self._now_ms = now_ms
        self._on_error = on_error
        self._dirty: dict[Lane, None] = {}  # since the last position

    def changed(self, lane: Lane) -> None:
        """*lane* may have got farther."""
        self._dirty[lane] = None

    def forget(self, lane: Lane) -> None:
        """*lane* is another task's now."""
        self._dirty.pop(lane, None)

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            if self._syncs is not None:
                self._syncs.promote(self._dirty)
            try:
                await self.flush(list(self._dirty), left=False)
            except MirrorFlowError as error:
                self._on_error(error)

    async def flush(self, lanes: Iterable[Lane], *, left: bool) -> None:
        """Write the positions of *lanes*; *left*: they are given up. Raises ClusterError."""
        lanes = list(lanes)
        positions = {lane: self._position(lane, left=left) for lane in lanes}
        due = {lane: position for lane, position in positions.items() if position is not None}
        for lane in lanes:
            self._dirty.pop(lane, None)
        if due:
            try:
                await self._store.write(due.values(), now_ms=self._now_ms())
            except MirrorFlowError:
                self._dirty.update(dict.fromkeys(due))
                raise
        for lane, position in due.items():
            lane.position = self._store.positions.get(lane.source, position)

    async def reread(self, waiting: Sequence[Lane]) -> list[Lane]:
        """Positions that others have written of *waiting*; returns those whose copier has said good-bye."""
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

    def _position(self, lane: Lane, *, left: bool) -> Position | None:
        """What is to be stored of *lane*; None if nothing was delivered or all of it is stored."""
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
