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

from mirrorflow_core.errors import ClusterError, MirrorFlowError
from mirrorflow_core.reports import PartitionPhase
from mirrorflow_core.stall_detection import (
    OF_FETCHES,
    STALLED_AFTER_S,
    CopyFacts,
    Obstacle,
    ObstacleKind,
    Stall,
    Stalled,
    explains,
    find_stall,
)
from mirrorflow_kafka.client.broker_reader import BrokerReader
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.copy.broker_routes import BrokerRoutes
from mirrorflow_replicator.copy.copier_context import CopierState
from mirrorflow_replicator.copy.partition_copier import PartitionCopier
from mirrorflow_replicator.copy.rate_limiter import RateLimiter
from mirrorflow_replicator.process import now_ms

LOOK_S = 1.0  # a small part of STALLED_AFTER_S
JUDGE_AGAIN_S = 5.0  # checking ten thousand stalled partitions must not cost as much as copying them
# A longer gap between two checks means that this process did not run: no partition could have made progress
# then.
LOOK_GAP_MAX_S = 3.0
# A partition that was in doubt within this time is not idle yet: it may be asked about again and again, and
# the source end it knows is then old. In a livelock, questions come within 2 s of each other.
DOUBTED_S = 5.0
# A quota or rate limit that held back a reader or a target connection within this time explains why its
# partitions made no progress. As long as a broker may take for a produce request
# (client.broker_writer.REQUEST_TIMEOUT_MS).
LIMITED_S = STALLED_AFTER_S
TURNS_MIN = (
    2  # in full rounds over a reader's partitions: brokers first serve those that had no records (KIP-227)
)
LOGGED_MAX = 5  # of one check, logged by name: a dead broker stalls thousands, and the status has them all

_PHASES = {
    CopierState.ASKING: PartitionPhase.STARTING,
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
    doubts: int
    doubts_seen: int
    doubted_s: float  # when it was last in doubt
    reader: BrokerReader | None
    answers: int  # answers of that reader when the partition began to want records
    obstacle: Obstacle | None = None
    obstacle_s: float = 0.0
    logged: frozenset[str] = frozenset()  # reasons


class StallWatch:
    """Checks the partitions of one task. *on_change* takes partitions whose report has changed."""

    def __init__(
        self,
        *,
        source: Cluster,
        target: Cluster,
        wiring: BrokerRoutes,
        pace: RateLimiter,
        buffered_bytes_max: int,
        on_change: Callable[[PartitionCopier], None],
    ) -> None:
        self._source = source
        self._target = target
        self._pace = pace
        self._buffered_bytes_max = buffered_bytes_max
        self._wiring = wiring
        self._on_change = on_change
        self._seen: dict[PartitionCopier, _Seen] = {}
        self._idle_doubts: dict[PartitionCopier, int] = {}  # of those that are not checked
        self._looked_s: float | None = None
        self._awake_s = 0.0  # how long this process was seen to run: the clock of all times kept here

    def __len__(self) -> int:
        """Returns how many partitions are checked."""
        return len(self._seen)

    def changed(self, lane: PartitionCopier) -> None:
        """Adds *lane*, which has something to copy, has made progress, or met an error."""
        if lane not in self._seen:
            # A doubt since then counts as one question, however long ago it was.
            doubts = max(self._idle_doubts.pop(lane, lane.doubts), lane.doubts - 1)
            self._seen[lane] = _seen(lane, self._awake_s, doubts=doubts)
        error = lane.error
        if error is not None:
            lane.note_obstacle(_failed(error))

    def paused(self) -> None:
        """Discounts one doubt of every partition.

        They are asked about because this process did not run, which is no loop.
        """
        for seen in self._seen.values():
            seen.doubts += 1
            seen.doubts_seen += 1
        for lane in self._idle_doubts:
            self._idle_doubts[lane] += 1

    def forget(self, lane: PartitionCopier) -> None:
        """Drops *lane*, which belongs to another task now."""
        self._seen.pop(lane, None)
        self._idle_doubts.pop(lane, None)
        lane.note_stall(None)

    async def run(self) -> None:
        """Checks until cancelled."""
        while True:
            self.look(time.monotonic())
            await asyncio.sleep(LOOK_S)

    def look(self, now_s: float) -> None:
        """Finds the partitions that are stalled at *now_s*, and those that no longer are."""
        if self._looked_s is not None:
            self._awake_s += min(now_s - self._looked_s, LOOK_GAP_MAX_S)
        self._looked_s = now_s
        unled = set(self._wiring.without_leader)
        for lane in unled:
            self.changed(lane)
        found: list[Stall] = []
        for lane, seen in list(self._seen.items()):
            if lane.records != seen.records or _source_offset(lane) > seen.source_offset:
                self._moved(lane, seen)
            elif lane.is_halted or lane.state is CopierState.STOPPED or lane.state is CopierState.LEAVING:
                self._drop(lane)  # it has stopped and reports the reason
            else:
                self._note_obstacle(lane, seen)
                if lane not in unled and self._is_idle(lane, seen):
                    self._drop(lane)
                elif self._awake_s >= seen.due_s:
                    self._judge(lane, seen, found)
        _log_some(found)

    def _moved(self, lane: PartitionCopier, seen: _Seen) -> None:
        """Notes that *lane* delivered records or skipped some that are not copied."""
        if lane.stalled is not None:
            self._recovered(lane)
        lane.note_obstacle(None)
        seen.obstacle = None
        seen.records, seen.source_offset = lane.records, _source_offset(lane)
        seen.progress_s, seen.doubts = self._awake_s, lane.doubts
        seen.reader, seen.answers = lane.reader, _answers(lane)
        seen.due_s = self._awake_s + STALLED_AFTER_S
        if seen.logged:
            seen.logged = frozenset()

    def _drop(self, lane: PartitionCopier) -> None:
        self._recovered(lane)
        lane.note_obstacle(None)
        del self._seen[lane]
        self._idle_doubts[lane] = lane.doubts

    def _recovered(self, lane: PartitionCopier) -> None:
        if lane.stalled is not None:
            if not lane.is_halted:
                log.info("%s is copied again.", lane.source)
            lane.note_stall(None)
            self._on_change(lane)

    def _note_obstacle(self, lane: PartitionCopier, seen: _Seen) -> None:
        """Notes when the newest obstacle was met. Each obstacle is a new object."""
        if lane.obstacle is not seen.obstacle:
            seen.obstacle, seen.obstacle_s = lane.obstacle, self._awake_s
        if lane.doubts != seen.doubts_seen:
            seen.doubts_seen, seen.doubted_s = lane.doubts, self._awake_s
            seen.reader = None
        if lane.reader is not seen.reader or _has_unsent(lane):
            seen.reader, seen.answers = lane.reader, _answers(lane)

    def _is_idle(self, lane: PartitionCopier, seen: _Seen) -> bool:
        """Returns whether *lane* reads the source and has copied everything there."""
        if (
            lane.state is not CopierState.COPYING
            or _has_unsent(lane)
            or self._awake_s - seen.doubted_s < DOUBTED_S
        ):
            return False
        if lane.error is not None and not self._is_of_target(lane.error):
            return False  # the source may have more than was seen
        obstacle = seen.obstacle
        if (
            obstacle is not None
            and obstacle.kind in OF_FETCHES
            and explains(obstacle, self._awake_s - seen.obstacle_s)
        ):
            return False  # the known end of the source may be old
        return _source_offset(lane) + 1 >= lane.cursor.end_offset

    def _is_of_target(self, error: MirrorFlowError) -> bool:
        return isinstance(error, ClusterError) and error.cluster == self._target.alias

    def _judge(self, lane: PartitionCopier, seen: _Seen, found: list[Stall]) -> None:
        seen.due_s = self._awake_s + JUDGE_AGAIN_S
        stall = find_stall(self._facts(lane, seen))
        known = lane.stalled
        if stall is None:
            self._recovered(lane)
        elif known is None or not stall.is_same(known.stall):
            since_ms = now_ms() - round(1000 * (self._awake_s - seen.progress_s))
            lane.note_stall(Stalled(stall, since_ms if known is None else known.since_ms))
            self._on_change(lane)
            if stall.reason not in seen.logged:
                seen.logged |= {stall.reason}
                found.append(stall)

    def _facts(self, lane: PartitionCopier, seen: _Seen) -> CopyFacts:
        error = lane.error
        obstacle = seen.obstacle if error is None else _failed(error).after(seen.obstacle)
        limited_s = time.monotonic() - LIMITED_S  # a wait that ended earlier explains nothing
        reader, pipe = lane.reader, lane.pipe
        return CopyFacts(
            partition=str(lane.source),
            target_partition=str(lane.target),
            source=self._source.alias,
            target=self._target.alias,
            phase=_PHASES[lane.state],
            without_progress_s=self._awake_s - seen.progress_s,
            obstacle=obstacle,
            obstacle_age_s=0.0 if error is not None else self._awake_s - seen.obstacle_s,
            times_asked=lane.doubts - seen.doubts,
            is_in_flight=not lane.is_drained,
            is_fetched=bool(lane.packer),
            is_crowded_out=lane.around.buffered_bytes >= self._buffered_bytes_max,
            is_reading_limited=reader is not None
            and max(reader.held_until_s, self._pace.held_until_s(reader.node_id)) > limited_s,
            is_writing_limited=pipe is not None and pipe.held_until_s > limited_s,
            is_passed_over=reader is not None and _answers(lane) - seen.answers > TURNS_MIN * len(reader),
            awaits_commit=lane.is_held or lane.packer.needs_pin,
            transactional_id=lane.packer.producer.transactional_id,
            source_has_leader=self._source.leader(*lane.source) is not None,
            target_has_leader=self._target.leader(*lane.target) is not None,
        )


def _seen(lane: PartitionCopier, now_s: float, *, doubts: int) -> _Seen:
    """Returns *lane* as it is, with progress now and *doubts* as of the last check."""
    return _Seen(
        records=lane.records,
        source_offset=_source_offset(lane),
        progress_s=now_s,
        due_s=now_s + STALLED_AFTER_S,
        doubts=doubts,
        doubts_seen=doubts,
        doubted_s=-math.inf,
        reader=lane.reader,
        answers=_answers(lane),
    )


def _source_offset(lane: PartitionCopier) -> int:
    """Returns the source offset of the last record delivered or skipped; -1 if unknown."""
    return -1 if lane.stream is None else lane.stream.delivered.source_offset


def _has_unsent(lane: PartitionCopier) -> bool:
    return bool(lane.packer) or not lane.is_drained or lane.is_held


def _answers(lane: PartitionCopier) -> int:
    """Returns how many responses with records the reader of *lane* had so far."""
    return 0 if lane.reader is None else lane.reader.answers


def _failed(error: MirrorFlowError) -> Obstacle:
    return Obstacle(kind=ObstacleKind.FAILED, name=error.reason, message=str(error))


def _log_some(found: Sequence[Stall]) -> None:
    """Logs the first stalls one by one, and the others as a count for each reason."""
    for stall in found[:LOGGED_MAX]:
        log.warning("%s", stall.sentence)
    for reason, count in Counter(stall.reason for stall in found[LOGGED_MAX:]).items():
        log.warning("%d more partitions are stalled: %s.", count, reason)
