"""Copies records in transactions of the task's own, as Java's tasks do, so that either may follow the other.

    join ──> records ──> every half second: hold, all acknowledged ──> offsets ──> commit ──> join ...

See KIP-618. Where Java and MirrorFlow share the tasks of a flow, the flow's sequence numbers do not help,
because Java does not know them. Both know the transactional id of a task, `GROUP-CONNECTOR-TASK`: a process
that begins a task fences all that had it before, and finds in the offsets topic exactly what is committed. So
records and their offsets are committed together.

Guarantees: nothing is committed without its offset, no offset without its records. One incarnation of a task
has one epoch; what can no longer be known (a lost answer, an epoch that is another's) ends the process, and
the next one continues behind the last commit. What it left open is aborted when the id is claimed again
(`worker.task_fencing`).
"""

import logging
import math
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from mirrorflow_core.errors import MirrorFlowError
from mirrorflow_core.exactly_once.alignment import OffsetPair
from mirrorflow_core.exactly_once.altered_offsets import NOTHING_FOREIGN
from mirrorflow_core.exactly_once.identity import Identity
from mirrorflow_core.position import Position
from mirrorflow_core.settings import SourceSettings
from mirrorflow_kafka.admin.target_probe import ProbeResult
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.client.error_codes import EPOCH_IS_OVER, name_of
from mirrorflow_kafka.stores.offsets_in_transaction import OffsetsInTransaction
from mirrorflow_kafka.stores.position_store import PositionStore
from mirrorflow_replicator.copy.copier_context import DetectedLoss
from mirrorflow_replicator.copy.partition_copier import PartitionCopier
from mirrorflow_replicator.copy.position_writer import PositionWriter
from mirrorflow_replicator.copy.resume.resumer import Resumer
from mirrorflow_replicator.copy.resume.source_truncation import REWRITTEN, truncation_of
from mirrorflow_replicator.copy.shared_transaction import SharedTransaction
from mirrorflow_replicator.process.clock import now_ms

REQUEST_TIMED_OUT, NOT_ENOUGH_REPLICAS_AFTER_APPEND = 7, 20
# Refusals that mean this producer is fenced, or leave open whether the batch was appended.
_OVER = {REQUEST_TIMED_OUT, NOT_ENOUGH_REPLICAS_AFTER_APPEND, *EPOCH_IS_OVER}
EX_TEMPFAIL = 75

log = logging.getLogger("mirrorflow.task")


def end_process(why: str) -> None:
    """Ends this incarnation of the task; the parent process starts the next one."""
    log.warning("The task ends, and begins again behind its last commit: %s", why)
    logging.shutdown()
    os._exit(EX_TEMPFAIL)


class OwnTransaction(SharedTransaction):
    """The transactions of one incarnation of a task. *own* is its producer."""

    def __init__(
        self,
        target: Cluster,
        own: Identity,
        settings: SourceSettings,
        *,
        pump: Callable[[], None],
        over: Callable[[str], None] = end_process,
    ) -> None:
        super().__init__(
            target,
            own,
            source_alias=settings.source_alias,
            timeout_ms=settings.transaction_timeout_ms,
            pump=pump,
        )
        self._over = over
        self._stored: dict[PartitionCopier, OffsetPair] = {}
        self._positions = OffsetsInTransaction(
            target,
            settings.offsets.topic,
            own,
            connector=settings.name,
            source_alias=settings.source_alias,
        )

    def refused(self, code: int) -> None:
        """Ends the incarnation if *code* leaves open what was appended, or means that it is fenced."""
        if code in _OVER:
            self._over(f"the target answered {name_of(code)}")

    def ended_elsewhere(self) -> None:
        """Ends the incarnation: only a fencing producer can have ended its transaction."""
        self._over("its transaction was ended by another")

    async def _keep_alive(self) -> None:
        """Does nothing: no transaction is open between commits, and a forgotten id is assigned again."""
        self._touch_s = math.inf

    def _next_touch_s(self) -> float:
        return math.inf

    async def _complete(self, lanes: Sequence[PartitionCopier]) -> None:
        """Adds the offsets of what was delivered to the transaction.

        Ends the incarnation if an outcome is unknown.
        """
        if any(not lane.is_drained or lane.lost_batches for lane in lanes):
            self._over("what was written last was not answered")
            return
        moved = {
            lane: lane.stream.delivered
            for lane in lanes
            if lane.stream is not None and self._stored.get(lane) != lane.stream.delivered
        }
        try:
            if moved:
                positions = [
                    Position(
                        topic=lane.topic,
                        partition=lane.partition,
                        source_offset=pair.source_offset,
                        source_epoch=pair.source_epoch,
                    )
                    for lane, pair in moved.items()
                    if pair.source_offset >= 0
                ]
                await self._positions.write(positions, now_ms=now_ms())
        except MirrorFlowError as error:
            self._over(str(error))
            raise
        self._stored |= moved

    def _step_back(self) -> None:
        self._over("another has claimed it")

    def _give_up(self, reason: str) -> None:
        self._over(reason)


class TransactionalPositionWriter(PositionWriter):
    """Writes no offsets, because they are in the transactions; offset syncs and maps become due as usual."""

    async def flush(self, lanes: Iterable[PartitionCopier], *, left: bool) -> None:
        """Clears what is due: nothing is left to write."""
        for lane in lanes:
            self._dirty.pop(lane, None)


class TransactionalStart(Resumer):
    """Finds where an incarnation begins: behind what is committed.

    No other process writes to its partitions, so nothing else is in doubt.

    It writes with *own*, behind *positions*; *rest* is passed to `Resumer`.
    """

    def __init__(
        self,
        own: Identity,
        positions: PositionStore,
        *,
        over: Callable[[str], None] = end_process,
        **rest: Any,
    ) -> None:
        super().__init__(**rest)
        self._own = own
        self._positions = positions
        self._over = over

    async def _align(self, lane: PartitionCopier, heard: ProbeResult) -> None:
        if lane.lost_batches:
            self._over(f"what was written to {lane.target} was not answered")
            return
        position = self._committed(lane)
        pair = await self._beginning(lane, position) if lane.stream is None else lane.stream.delivered
        if lane.loss is None:
            lane.loss = await self._truncation(lane, pair)
        if lane.loss is not None:
            after = await self._after_loss(lane, pair, has_copied=position is not None or pair.ordinal >= 0)
            if after is None:
                return
            pair = after
        if self._may_resume(lane):
            lane.resume(self._own, pair._replace(target_offset=-1), alone=True)

    async def _truncation(self, lane: PartitionCopier, pair: OffsetPair) -> DetectedLoss | None:
        """Returns the loss where the source's log was rewritten below *pair*, the last one copied.

        Raises ClusterError.

        Only leader epochs show it: an offset stored by such a task does not say where its record is on the
        target.
        """
        found = await truncation_of(self._source, lane.source, (pair,))
        return None if found is None else DetectedLoss(pair.source_offset + 1, found.offset, REWRITTEN)

    async def _after_loss(
        self, lane: PartitionCopier, pair: OffsetPair, *, has_copied: bool
    ) -> OffsetPair | None:
        """Returns where to continue by loss policy; None if the partition stops.

        The ordinal is this incarnation's. The flow's numbers only say whether anything was promised:
        everything behind the first commit was.
        """
        assert lane.anchor is not None
        promised = pair._replace(ordinal=max(pair.ordinal, lane.anchor.ordinal)) if has_copied else pair
        after = await self._anchoring.steps.after_loss(lane, promised)
        return None if after is None else after._replace(ordinal=pair.ordinal)

    def _committed(self, lane: PartitionCopier) -> Position | None:
        """Returns the offset committed since the flow is copied in this way; None if there is none."""
        assert lane.anchor is not None
        is_newer = self._positions.foreign.get(lane.source, NOTHING_FOREIGN).at > lane.anchor.seen_at
        return lane.position if is_newer else None

    async def _beginning(self, lane: PartitionCopier, position: Position | None) -> OffsetPair:
        anchor = lane.anchor
        assert anchor is not None
        if position is not None:
            return OffsetPair(
                position.source_offset, ordinal=-1, target_offset=-1, source_epoch=position.source_epoch
            )
        if self._positions.foreign.get(lane.source, NOTHING_FOREIGN).at <= anchor.seen_at:
            start = anchor.source_offset  # nothing was committed since the flow is copied in this way
        else:
            start = (await self._anchoring.offsets.by_settings([lane], initial=True))[lane][0]  # it was reset
        return OffsetPair(source_offset=start - 1, ordinal=-1, target_offset=-1)
