"""A task that writes in transactions of its own, as Java's tasks do, so that either may follow the other (KIP-618).

    join ──> records ──> every half second: hold, all acknowledged ──> positions ──> commit ──> join ...

Where Java and ours share the tasks of a flow, the flow's numbers do not help: Java knows nothing of them. What both know is
the transactional id of a task, `GROUP-CONNECTOR-TASK`: who begins a task takes it away from all who had it before, and finds
in the offsets topic exactly what is committed. So here records and their positions are committed together.

Promises: nothing is committed without its position, no position without its records. One incarnation of a task has one
epoch; what cannot be known any more (a lost answer, an epoch that is another's) ends the process, and the next one goes on
behind the last commit. What it left open is aborted when the id is claimed again (`runtime.claiming`).
"""

import logging
import math
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from mirrorflow_replicator.errors import MirrorFlowError
from mirrorflow_replicator.flow.alignment import Pair
from mirrorflow_replicator.flow.altered import NOTHING_FOREIGN
from mirrorflow_replicator.flow.identity import Identity
from mirrorflow_replicator.flow.position import Position
from mirrorflow_replicator.kafka.cluster import Cluster
from mirrorflow_replicator.kafka.codes import EPOCH_IS_OVER, name_of
from mirrorflow_replicator.kafka.known_positions import PositionStore
from mirrorflow_replicator.kafka.offsets_in_transaction import OffsetsInTransaction
from mirrorflow_replicator.kafka.witnesses import Testimony
from mirrorflow_replicator.runtime.aligner import Aligner
from mirrorflow_replicator.runtime.clock import now_ms
from mirrorflow_replicator.runtime.flushing import Flushing
from mirrorflow_replicator.runtime.lane import Lane
from mirrorflow_replicator.runtime.pinning import Pinning
from mirrorflow_replicator.settings import SourceSettings

REQUEST_TIMED_OUT, NOT_ENOUGH_REPLICAS_AFTER_APPEND = 7, 20
# A refusal that says who we are not any more, or leaves open whether the batch was appended.
_OVER = {REQUEST_TIMED_OUT, NOT_ENOUGH_REPLICAS_AFTER_APPEND, *EPOCH_IS_OVER}
EX_TEMPFAIL = 75

log = logging.getLogger("mirrorflow.task")


def end_process(why: str) -> None:
    """End the incarnation; its parent starts the next one."""
    log.warning("The task ends, and begins again behind its last commit: %s", why)
    logging.shutdown()
    os._exit(EX_TEMPFAIL)


class Committing(Pinning):
    """The transactions of one incarnation of a task; *own* is its producer."""

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
        self._stored: dict[Lane, Pair] = {}
        self._positions = OffsetsInTransaction(
            target,
            settings.offsets.topic,
            own,
            connector=settings.name,
            source_alias=settings.source_alias,
        )

    def refused(self, code: int) -> None:
        """The target has refused a batch with *code*."""
        if code in _OVER:
            self._over(f"the target answered {name_of(code)}")

    def ended_elsewhere(self) -> None:
        """The transaction is not open any more, and nobody else ends it in order."""
        self._over("its transaction was ended by another")

    async def _keep_alive(self) -> None:
        """Nothing is open between commits, and an id that was forgotten is given anew."""
        self._touch_s = math.inf

    def _next_touch_s(self) -> float:
        return math.inf

    async def _complete(self, lanes: Sequence[Lane]) -> None:
        """Add the positions of what was delivered; all of it has to be known."""
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
                    Position(topic=lane.topic, partition=lane.partition, source_offset=pair.source_offset)
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


class CommittedFlushing(Flushing):
    """Positions are in the transactions; what else is due with them is done all the same."""

    async def flush(self, lanes: Iterable[Lane], *, left: bool) -> None:
        """Nothing is left to be written."""
        for lane in lanes:
            self._dirty.pop(lane, None)


class Resuming(Aligner):
    """Where an incarnation begins: behind what is committed. Nobody else writes as it does, so nothing else is in doubt.

    It writes with *own*, behind *positions*; the rest is an `Aligner`'s.
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

    async def _align(self, lane: Lane, heard: Testimony) -> None:
        if lane.lost_batches:
            self._over(f"what was written to {lane.target} was not answered")
            return
        pair = await self._beginning(lane) if lane.stream is None else lane.stream.delivered
        if lane.loss is not None:
            after = await self._anchoring.after_loss(lane, pair)
            if after is None:
                return
            pair = after
        if self._may_resume(lane):
            lane.resume(self._own, pair._replace(target_offset=-1), alone=True)

    async def _beginning(self, lane: Lane) -> Pair:
        anchor, position = lane.anchor, lane.position
        assert anchor is not None
        if self._positions.foreign.get(lane.source, NOTHING_FOREIGN).at <= anchor.seen_at:
            start = anchor.source_offset  # nothing is committed since the flow is copied in this way
        elif position is not None:
            start = position.source_offset + 1
        else:
            start = (await self._anchoring.offsets.by_settings([lane], initial=True))[lane][0]  # it was reset
        return Pair(source_offset=start - 1, ordinal=-1, target_offset=-1)
