"""Has positions stored: those that changed every few seconds, and all of them at stop, marked as left.

When a position is stored only affects how far back a successor has to look.
"""

import asyncio
from collections.abc import Callable, Iterable

from mirrorflow_core.errors import MirrorFlowError
from mirrorflow_replicator.copy.offset_sync_writer import OffsetSyncWriter
from mirrorflow_replicator.copy.partition_copier import PartitionCopier
from mirrorflow_replicator.copy.task_writer import TaskWriter


class PositionWriter:
    """Has the positions of a task's partitions stored; `run` runs until cancelled."""

    def __init__(
        self,
        writer: TaskWriter,
        *,
        interval_s: float,
        syncs: OffsetSyncWriter | None,
        on_error: Callable[[MirrorFlowError], None],
    ) -> None:
        self._writer = writer
        self._interval_s = interval_s
        self._syncs = syncs
        self._on_error = on_error
        self._dirty: dict[PartitionCopier, None] = {}  # changed since their position was last stored

    def changed(self, lane: PartitionCopier) -> None:
        """Notes that *lane* may have made progress."""
        self._dirty[lane] = None

    def forget(self, lane: PartitionCopier) -> None:
        """Drops *lane*, which belongs to another task now."""
        self._dirty.pop(lane, None)

    @property
    def mean_ms(self) -> float:
        """The average duration of the newest writes, in ms; -1 before the first."""
        took_ms = self._writer.took_ms
        return sum(took_ms) / len(took_ms) if took_ms else -1.0

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

    async def flush(self, lanes: Iterable[PartitionCopier], *, left: bool) -> None:
        """Has the positions of *lanes* stored. *left*: they are given up. Raises ClusterError."""
        lanes = list(lanes)
        for lane in lanes:
            self._dirty.pop(lane, None)
        try:
            await self._writer.store(lanes, left=left)
        except MirrorFlowError:
            self._dirty.update(dict.fromkeys(lanes))
            raise
