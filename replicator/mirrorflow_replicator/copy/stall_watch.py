"""Finds the partitions of a task that make no progress, once a second, and reports them until they do.

`mirrorflow_core.stall_detection` decides what a stall is; this module keeps when each partition last made
progress and which obstacles it met since. Only partitions that may have something to copy are checked, so
idle ones cost nothing: a partition is added when it changes, and dropped when it is found idle.
"""

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mirrorflow_core.copying.partition import CopierState, PartitionCopier
from mirrorflow_core.errors import ClusterError, MirrorFlowError
from mirrorflow_core.reports import PartitionPhase
from mirrorflow_core.stall_detection import (
    OF_FETCHES,
    STALLED_AFTER_S,
    CopyFacts,
    Obstacle,
    ObstacleKind,
    OpenTransaction,
    Stall,
    Stalled,
    explains,
    find_stall,
)
from mirrorflow_kafka.admin.log_requests import ProducersResponse, describe_producers
from mirrorflow_kafka.client.broker_reader import BrokerReader
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.copy.broker_routes import BrokerRoutes
from mirrorflow_replicator.copy.rate_limiter import RateLimiter

CHECK_S = 1.0  # a small part of STALLED_AFTER_S
JUDGE_AGAIN_S = 5.0  # checking ten thousand stalled partitions must not cost as much as copying them
# A longer gap between two checks means that this process did not run: no partition could have made progress
# then.
CHECK_GAP_MAX_S = 3.0
# A partition that was resynced within this time is not idle yet: it may be resynced again and again, and
# the source end it knows is then old. In a livelock, resyncs come within 2 s of each other.
RESYNCED_S = 5.0
# A quota or rate limit that held back a reader or a target connection within this time explains why its
# partitions made no progress. As long as a broker may take for a produce request
# (client.broker_writer.REQUEST_TIMEOUT_MS).
LIMITED_S = STALLED_AFTER_S
TURNS_MIN = (
    2  # in full rounds over a reader's partitions: brokers first serve those that had no records (KIP-227)
)
# The source's leaders are asked who holds a transaction open before that becomes a stall, so that its first report names
# the producer. A short transaction costs no request.
DESCRIBED_AFTER_S = 20.0
DESCRIBE_AGAIN_S = 60.0  # where they did not report it
DESCRIBED_MAX = 100  # partitions at once; a hanging transaction holds back few
LOGGED_MAX = 5  # of one check, logged by name: a dead broker stalls thousands, and the status has them all

_PHASES = {
    CopierState.RESUMING: PartitionPhase.STARTING,
    CopierState.COPYING: PartitionPhase.COPYING,
    CopierState.STOPPED: PartitionPhase.STOPPED,
    CopierState.LEAVING: PartitionPhase.STOPPED,
}

log = logging.getLogger("mirrorflow.task")


@dataclass(slots=True, kw_only=True)
class _Seen:
    """A partition as of its last progress, and what it met since. Times are the watch's own."""

    records: int
    source_offset: int
    progress_s: float
    due_s: float  # when it is checked next
    resyncs: int
    resyncs_seen: int
    resynced_s: float  # when it was last resynced
    reader: BrokerReader | None
    responses: int  # responses of that reader when the partition began to want records
    obstacle: Obstacle | None = None
    obstacle_s: float = 0.0
    logged: frozenset[str] = frozenset()  # reasons
    open_transaction: OpenTransaction | None = None  # of the source, since the last progress
    describe_s: float = 0.0  # when the source's leader may be asked for it


class StallWatch:
    """Checks the partitions of one task. *on_change* takes partitions whose report has changed."""

    def __init__(
        self,
        *,
        source: Cluster,
        target: Cluster,
        routes: BrokerRoutes,
        pace: RateLimiter,
        is_crowded: Callable[[], bool],
        on_change: Callable[[PartitionCopier], None],
    ) -> None:
        self._source = source
        self._target = target
        self._pace = pace
        self._is_crowded = is_crowded  # whether what is fetched and not yet sent fills the memory of the task
        self._routes = routes
        self._on_change = on_change
        self._seen: dict[PartitionCopier, _Seen] = {}
        self._idle_resyncs: dict[PartitionCopier, int] = {}  # of those that are not checked
        self._checked_s: float | None = None
        self._awake_s = 0.0  # how long this process was seen to run: the clock of all times kept here

    def __len__(self) -> int:
        """Returns how many partitions are checked."""
        return len(self._seen)

    def changed(self, copier: PartitionCopier) -> None:
        """Adds *copier*, which has something to copy, has made progress, or met an error."""
        if copier not in self._seen:
            # Resyncs since then count as one, however long ago they were.
            resyncs = max(self._idle_resyncs.pop(copier, copier.resyncs), copier.resyncs - 1)
            self._seen[copier] = _seen(copier, self._reader_of(copier), self._awake_s, resyncs=resyncs)
        error = copier.health.error
        if error is not None:
            copier.health.note_obstacle(_failed(error))

    def paused(self) -> None:
        """Discounts one resync of every partition.

        They are resynced because this process did not run, which is no loop.
        """
        for seen in self._seen.values():
            seen.resyncs += 1
            seen.resyncs_seen += 1
        for copier in self._idle_resyncs:
            self._idle_resyncs[copier] += 1

    def forget(self, copier: PartitionCopier) -> None:
        """Drops *copier*, which belongs to another task now."""
        self._seen.pop(copier, None)
        self._idle_resyncs.pop(copier, None)
        copier.health.note_stall(None)

    async def run(self) -> None:
        """Checks until cancelled."""
        while True:
            self.check(time.monotonic())
            await asyncio.sleep(CHECK_S)

    async def describe_open_transactions(self, *, on_error: Callable[[MirrorFlowError], None]) -> None:
        """Asks the source's leaders whose transactions hold partitions back, until cancelled."""
        while True:
            await asyncio.sleep(CHECK_S)
            await self._describe(on_error)

    async def _describe(self, on_error: Callable[[MirrorFlowError], None]) -> None:
        due = [copier for copier, seen in self._seen.items() if self._is_to_describe(copier, seen)]
        del due[DESCRIBED_MAX:]
        if not due:
            return
        for copier in due:
            self._seen[copier].describe_s = self._awake_s + DESCRIBE_AGAIN_S
        try:
            responses = await describe_producers(self._source, [copier.source for copier in due])
        except MirrorFlowError as error:  # the stalls are reported without their producers
            on_error(error)
            return
        for copier in due:
            response = responses[copier.source]
            try:
                self._source.raise_for(response.error, "DescribeProducers", str(copier.source))
            except MirrorFlowError as error:
                on_error(error)
                continue
            if copier in self._seen:
                self._seen[copier].open_transaction = _transaction_at(copier.cursor.end_offset, response)

    def _is_to_describe(self, copier: PartitionCopier, seen: _Seen) -> bool:
        return (
            copier.cursor.is_held_back
            and seen.open_transaction is None
            and self._awake_s - seen.progress_s >= DESCRIBED_AFTER_S
            and self._awake_s >= seen.describe_s
        )

    def _reader_of(self, copier: PartitionCopier) -> BrokerReader | None:
        dispatch = self._routes.dispatch_of(copier)
        return None if dispatch is None else dispatch.reader

    def check(self, now_s: float) -> None:
        """Finds the partitions that are stalled at *now_s*, and those that no longer are."""
        if self._checked_s is not None:
            self._awake_s += min(now_s - self._checked_s, CHECK_GAP_MAX_S)
        self._checked_s = now_s
        unled = set(self._routes.without_leader)
        for copier in unled:
            self.changed(copier)
        stalls: list[Stall] = []
        for copier, seen in list(self._seen.items()):
            if copier.counts.records != seen.records or _source_offset(copier) > seen.source_offset:
                self._moved(copier, seen)
            elif (
                copier.health.is_halted
                or copier.state is CopierState.STOPPED
                or copier.state is CopierState.LEAVING
            ):
                self._drop(copier)  # it has stopped and reports the reason
            else:
                self._note_obstacle(copier, seen)
                if copier not in unled and self._is_idle(copier, seen):
                    self._drop(copier)
                elif self._awake_s >= seen.due_s:
                    self._judge(copier, seen, stalls)
        _log_some(stalls)

    def _moved(self, copier: PartitionCopier, seen: _Seen) -> None:
        """Notes that *copier* delivered records or skipped some that are not copied."""
        if copier.health.stalled is not None:
            self._recovered(copier)
        copier.health.note_obstacle(None)
        seen.obstacle = seen.open_transaction = None
        seen.describe_s = 0.0
        seen.records, seen.source_offset = copier.counts.records, _source_offset(copier)
        seen.progress_s, seen.resyncs = self._awake_s, copier.resyncs
        seen.reader = self._reader_of(copier)
        seen.responses = _responses(seen.reader)
        seen.due_s = self._awake_s + STALLED_AFTER_S
        if seen.logged:
            seen.logged = frozenset()

    def _drop(self, copier: PartitionCopier) -> None:
        self._recovered(copier)
        copier.health.note_obstacle(None)
        del self._seen[copier]
        self._idle_resyncs[copier] = copier.resyncs

    def _recovered(self, copier: PartitionCopier) -> None:
        if copier.health.stalled is not None:
            if not copier.health.is_halted:
                log.info("%s is copied again.", copier.source)
            copier.health.note_stall(None)
            self._on_change(copier)

    def _note_obstacle(self, copier: PartitionCopier, seen: _Seen) -> None:
        """Notes when the newest obstacle was met. Each obstacle is a new object."""
        if copier.health.obstacle is not seen.obstacle:
            seen.obstacle, seen.obstacle_s = copier.health.obstacle, self._awake_s
        if copier.resyncs != seen.resyncs_seen:
            seen.resyncs_seen, seen.resynced_s = copier.resyncs, self._awake_s
            seen.reader = None
        reader = self._reader_of(copier)
        if reader is not seen.reader or _has_unsent(copier):
            seen.reader, seen.responses = reader, _responses(reader)

    def _is_idle(self, copier: PartitionCopier, seen: _Seen) -> bool:
        """Returns whether *copier* reads the source and has copied everything there."""
        if (
            copier.state is not CopierState.COPYING
            or _has_unsent(copier)
            or self._awake_s - seen.resynced_s < RESYNCED_S
        ):
            return False
        if copier.health.error is not None and not self._is_of_target(copier.health.error):
            return False  # the source may have more than was seen
        obstacle = seen.obstacle
        if (
            obstacle is not None
            and obstacle.kind in OF_FETCHES
            and explains(obstacle, self._awake_s - seen.obstacle_s)
        ):
            return False  # the known end of the source may be old
        return _has_read_all(copier) and not copier.cursor.is_held_back

    def _is_of_target(self, error: MirrorFlowError) -> bool:
        return isinstance(error, ClusterError) and error.cluster == self._target.alias

    def _judge(self, copier: PartitionCopier, seen: _Seen, stalls: list[Stall]) -> None:
        seen.due_s = self._awake_s + JUDGE_AGAIN_S
        stall = find_stall(self._facts(copier, seen))
        known = copier.health.stalled
        if stall is None:
            self._recovered(copier)
        elif known is None or not stall.is_same(known.stall):
            since_ms = round(1000 * (time.monotonic() - (self._awake_s - seen.progress_s)))
            copier.health.note_stall(Stalled(stall, since_ms if known is None else known.since_ms))
            self._on_change(copier)
            if stall.reason not in seen.logged:
                seen.logged |= {stall.reason}
                stalls.append(stall)

    def _facts(self, copier: PartitionCopier, seen: _Seen) -> CopyFacts:
        error = copier.health.error
        obstacle = seen.obstacle if error is None else _failed(error).after(seen.obstacle)
        limited_s = time.monotonic() - LIMITED_S  # a wait that ended earlier explains nothing
        dispatch = self._routes.dispatch_of(copier)
        reader, connection = (None, None) if dispatch is None else (dispatch.reader, dispatch.connection)
        return CopyFacts(
            partition=str(copier.source),
            target_partition=str(copier.target),
            source=self._source.alias,
            target=self._target.alias,
            phase=_PHASES[copier.state],
            without_progress_s=self._awake_s - seen.progress_s,
            obstacle=obstacle,
            obstacle_age_s=0.0 if error is not None else self._awake_s - seen.obstacle_s,
            times_asked=copier.resyncs - seen.resyncs,
            is_in_flight=not copier.is_drained,
            is_fetched=bool(copier.packer),
            is_crowded_out=self._is_crowded(),
            is_reading_limited=reader is not None
            and max(reader.held_until_s, self._pace.held_until_s(reader.node_id)) > limited_s,
            is_writing_limited=connection is not None and connection.held_until_s > limited_s,
            had_its_turn=reader is not None and _responses(reader) - seen.responses > TURNS_MIN * len(reader),
            awaits_commit=copier.is_held or copier.packer.needs_transaction,
            transactional_id=copier.packer.producer.transactional_id,
            source_has_leader=self._source.leader(*copier.source) is not None,
            target_has_leader=self._target.leader(*copier.target) is not None,
            held_at_offset=copier.cursor.end_offset if _is_held_back(copier) else None,
            open_transaction=seen.open_transaction,
        )


def _seen(copier: PartitionCopier, reader: BrokerReader | None, now_s: float, *, resyncs: int) -> _Seen:
    """Returns *copier* as it is, with progress now and *resyncs* as of the last check."""
    return _Seen(
        records=copier.counts.records,
        source_offset=_source_offset(copier),
        progress_s=now_s,
        due_s=now_s + STALLED_AFTER_S,
        resyncs=resyncs,
        resyncs_seen=resyncs,
        resynced_s=-math.inf,
        reader=reader,
        responses=_responses(reader),
    )


def _source_offset(copier: PartitionCopier) -> int:
    """Returns the source offset of the last record delivered or skipped; -1 if unknown."""
    return -1 if copier.stream is None else copier.stream.delivered.source_offset


def _has_read_all(copier: PartitionCopier) -> bool:
    return _source_offset(copier) + 1 >= copier.cursor.end_offset


def _is_held_back(copier: PartitionCopier) -> bool:
    """Returns whether only an open transaction of the source keeps *copier* from copying more."""
    return (
        copier.state is CopierState.COPYING
        and copier.cursor.is_held_back
        and _has_read_all(copier)
        and not _has_unsent(copier)
    )


def _transaction_at(offset: int, response: ProducersResponse) -> OpenTransaction | None:
    """Returns the open transaction that begins at *offset*; None: it has ended meanwhile."""
    for producer in response.producers:
        if producer.current_txn_start_offset == offset:
            return OpenTransaction(
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                start_offset=offset,
                last_timestamp_ms=producer.last_timestamp if producer.last_timestamp >= 0 else None,
            )
    return None


def _has_unsent(copier: PartitionCopier) -> bool:
    return bool(copier.packer) or not copier.is_drained or copier.is_held


def _responses(reader: BrokerReader | None) -> int:
    """Returns how many responses with records *reader* had so far."""
    return 0 if reader is None else reader.responses


def _failed(error: MirrorFlowError) -> Obstacle:
    return Obstacle(kind=ObstacleKind.FAILED, name=error.reason, message=str(error))


def _log_some(stalls: Sequence[Stall]) -> None:
    """Logs the first stalls one by one, and the others as a count for each reason."""
    for stall in stalls[:LOGGED_MAX]:
        log.warning("%s", stall.sentence)
    for reason, count in Counter(stall.reason for stall in stalls[LOGGED_MAX:]).items():
        log.warning("%d more partitions are stalled: %s.", count, reason)
