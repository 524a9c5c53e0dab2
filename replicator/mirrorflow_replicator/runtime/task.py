"""A task: it owns partitions, and their fetching, copying and positions.

It holds the lanes, runs the aligner and the wiring, writes positions every few seconds and at the end, and notices when
this process did not run for a while. It promises that after `stop` everything acknowledged is in a position, said to be
left. Which partitions it has is told to it (`assign`).
"""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from mirrorflow_replicator.errors import MirrorFlowError
from mirrorflow_replicator.flow.identity import Identity
from mirrorflow_replicator.flow.partitions import TopicPartition
from mirrorflow_replicator.flow.report import TaskReport
from mirrorflow_replicator.flow.stream import Span
from mirrorflow_replicator.flow.transforms import Route
from mirrorflow_replicator.kafka import admin
from mirrorflow_replicator.kafka.cluster import Cluster
from mirrorflow_replicator.kafka.identity import IdentityLog
from mirrorflow_replicator.kafka.known_positions import PositionStore
from mirrorflow_replicator.kafka.source import SourceReader
from mirrorflow_replicator.kafka.target import TargetWriter
from mirrorflow_replicator.kafka.witnesses import LATEST
from mirrorflow_replicator.runtime import memory
from mirrorflow_replicator.runtime.aligner import Aligner
from mirrorflow_replicator.runtime.anchoring import Anchoring
from mirrorflow_replicator.runtime.clock import now_ms
from mirrorflow_replicator.runtime.committing import CommittedFlushing, Committing, Resuming
from mirrorflow_replicator.runtime.flushing import Flushing
from mirrorflow_replicator.runtime.lane import Lane
from mirrorflow_replicator.runtime.pace import Pace, PauseWatch
from mirrorflow_replicator.runtime.pinning import Pinning, expiries
from mirrorflow_replicator.runtime.reporting import partition_report
from mirrorflow_replicator.runtime.surroundings import State, Surroundings
from mirrorflow_replicator.runtime.syncing import Syncing
from mirrorflow_replicator.runtime.trouble import Trouble
from mirrorflow_replicator.runtime.wiring import Wiring
from mirrorflow_replicator.settings import SourceSettings

log = logging.getLogger("mirrorflow.task")

BUFFERED_BYTES_MAX = 16 << 20  # fetched and not yet sent, over all partitions
DRAIN_S = 3.0  # at stop, for what is in flight
TICK_S = 0.2
FINISH_S = 3.0  # at stop, for the last commit
QUIET_S = 3.0  # without large answers: then buffers are given back to the system
QUIET_BYTES = 256 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a task stands on."""

    source: Cluster
    target: Cluster
    identity: Identity
    log: IdentityLog
    positions: PositionStore
    route: Callable[[str], Route]
    rack: str = ""
    errors: Counter[str]  # by reason
    syncs: Syncing | None = None
    own: Identity | None = None  # what it writes with in transactions of its own; None: with *identity*


class CopyTask:
    """See the module."""

    def __init__(self, settings: SourceSettings, index: int, parts: Parts, *, copier: str) -> None:
        self.lanes: dict[TopicPartition, Lane] = {}
        self._positions_are_new = True  # they were read when it was begun, for its first partitions
        self.pace = Pace(settings.bytes_per_second)
        self._settings = settings
        self._index = index
        self._parts = parts
        self._copier = copier
        self._changed: dict[Lane, None] = {}  # since the last report
        self._room = asyncio.Event()
        self._jobs: set[asyncio.Task[Any]] = set()
        self._copied_bytes = 0
        self._told = ""  # the newest trouble, to be logged once
        self.errors = parts.errors
        self.pauses = PauseWatch(on_pause=self._was_paused)
        self._wiring = Wiring(
            source=parts.source,
            target=parts.target,
            reader=self._reader,
            writer=self._writer,
            on_error=self._cluster_trouble,
        )
        self._anchoring = Anchoring(
            source=parts.source,
            target=parts.target,
            identity=parts.identity,
            log=parts.log,
            settings=settings,
            now_ms=now_ms,
            positions=parts.positions,
        )
        self._aligner = self._align(copier)
        self._trouble = Trouble(
            source=parts.source,
            target=parts.target,
            wiring=self._wiring,
            aligner=self._aligner,
            errors=self.errors,
            spawn=self._spawn,
        )
        self._flushing = (Flushing if parts.own is None else CommittedFlushing)(
            parts.positions,
            copier=copier,
            interval_s=settings.flush_interval_s,
            syncs=parts.syncs,
            now_ms=now_ms,
            on_error=self._cluster_trouble,
        )
        self._pinning = self._pin(settings)
        self._around = self._surroundings()

    def _align(self, copier: str) -> Aligner:
        aligner: Callable[..., Aligner] = (
            Aligner if self._parts.own is None else partial(Resuming, self._parts.own, self._parts.positions)
        )
        return aligner(
            source=self._parts.source,
            target=self._parts.target,
            identity=self._parts.identity,
            anchoring=self._anchoring,
            copier=copier,
            read_committed=self._settings.read_committed,
            stale=self._wiring.stale,
            pump=self._wiring.pump,
        )

    def _pin(self, settings: SourceSettings) -> Pinning:
        if self._parts.own is not None:
            return Committing(self._parts.target, self._parts.own, settings, pump=self._wiring.pump)
        return Pinning(
            self._parts.target,
            self._parts.identity,
            source_alias=settings.source_alias,
            timeout_ms=settings.transaction_timeout_ms,
            pump=self._wiring.pump,
        )

    def _surroundings(self) -> Surroundings:
        return Surroundings(
            read_committed=self._settings.read_committed,
            doubtful=self._aligner.doubtful,
            source_trouble=self._trouble.of_source,
            refused=self._refused,
            stopped=self._trouble.stopped,
            changed=self._lane_changed,
            clock_ms=now_ms,
            syncs=self._parts.syncs,
            pinning=self._pinning,
            pins_all=self._parts.own is not None,
        )

    async def start(self) -> None:
        """Begin to serve; positions and decisions have been read."""
        memory_ms, self._pinning.expires_s = await expiries(self._parts.target)
        self._around.old_after_ms = memory_ms // 2
        for loop in (
            self._aligner.run(),
            self._wiring.run(),
            self._flushing.run(),
            self._pinning.run(),
            self._tick_loop(),
        ):
            self._spawn(loop)
        if self._parts.syncs is not None:
            self._spawn(self._parts.syncs.run())

    async def assign(
        self,
        partitions: Iterable[TopicPartition],
        *,
        initial: bool,
        gone: bool = False,
        bytes_per_s: int | None = None,
    ) -> None:
        """Copy exactly *partitions* from now on, at most so fast. *gone*: who copied them before is known to be dead."""
        self.pace.bytes_per_s = bytes_per_s
        wanted = set(partitions)
        await self._leave([lane for source, lane in self.lanes.items() if source not in wanted])
        new = []
        if not wanted <= self.lanes.keys() and not self._positions_are_new:
            # Whoever has had them until now may have written since we have looked.
            await self._parts.positions.read_new()
        self._positions_are_new = False
        for source in sorted(wanted - set(self.lanes)):
            lane = Lane(source, self._parts.route(source.topic), self._around)
            lane.position = self._parts.positions.positions.get(source)
            lane.initial = initial
            self.lanes[source] = lane
            new.append(lane)
            if gone:
                self._aligner.predecessor_gone(lane)
        if new:
            await self._note_ends(new)
            await self._wiring.add(new)

    async def stop(self) -> None:
        """Stop fetching, finish what is in flight, write positions, close."""
        await self._leave(list(self.lanes.values()))
        for job in self._jobs:
            job.cancel()
        await asyncio.gather(*self._jobs, return_exceptions=True)
        await self._wiring.close()
        await asyncio.gather(self._parts.source.close(), self._parts.target.close())

    def report(self, *, whole: bool = False) -> TaskReport:
        """What has changed since the last report, or everything."""
        lanes = list(self.lanes.values()) if whole else list(self._changed)
        self._changed.clear()
        syncs = self._parts.syncs
        return TaskReport(
            task=self._index,
            state="RUNNING",
            partitions=tuple(partition_report(lane) for lane in lanes),
            errors=dict(self.errors),
            throttle_ms=self._wiring.throttle_ms,
            offset_syncs=0 if syncs is None else syncs.written,
            warnings=() if syncs is None else syncs.warnings,
        )

    async def _note_ends(self, lanes: Sequence[Lane]) -> None:
        committed = self._settings.read_committed
        partitions = [lane.source for lane in lanes]
        ends = await admin.list_offsets(self._parts.source, partitions, LATEST, read_committed=committed)
        for lane in lanes:
            lane.start_end = ends[lane.source].offset
            lane.source_end = lane.start_end
            self._changed[lane] = None

    async def _leave(self, lanes: Sequence[Lane]) -> None:
        """Give *lanes* up: let what is in flight arrive, store how far it got, and say that we have left."""
        if not lanes:
            return
        for lane in lanes:
            lane.leave()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                for lane in lanes:
                    await lane.drained.wait()
        try:
            await self._pinning.finish(FINISH_S)
            await self._flushing.flush(lanes, left=True)
        except MirrorFlowError as error:
            # The next copier finds the place all the same: by the target's memory, after some silence.
            self._cluster_trouble(error)
        if self._parts.syncs is not None:
            await self._parts.syncs.leave(lanes)
        for lane in lanes:
            self.lanes.pop(lane.source, None)
            self._aligner.forget(lane)
            self._wiring.remove(lane)
            self._changed.pop(lane, None)
            self._flushing.forget(lane)

    # -- what the parts say

    def _lane_changed(self, lane: Lane) -> None:
        self._changed[lane] = None
        self._flushing.changed(lane)

    def _refused(self, lane: Lane, code: int, message: str, span: Span) -> None:
        self._pinning.refused(code)
        self._trouble.of_target(lane, code, message, span)

    def _was_paused(self) -> None:
        for lane in self.lanes.values():
            lane.doubt()

    def _cluster_trouble(self, error: MirrorFlowError) -> None:
        self.errors[error.reason] += 1
        if str(error) != self._told:
            self._told = str(error)
            log.warning("%s", error)
        for lane in self.lanes.values():
            if lane.state is State.ASKING:
                lane.note(error)

    def _reader_lost(self, node_id: int, error: MirrorFlowError) -> None:
        self._cluster_trouble(error)
        self._wiring.reader_lost(node_id)
        for lane in self.lanes.values():
            if lane.state is State.COPYING and lane.reader is self._wiring.readers.get(node_id):
                lane.note(error)

    def _writer_lost(self, node_id: int, error: MirrorFlowError) -> None:
        self._cluster_trouble(error)
        self._wiring.writer_lost(node_id)
        for lane in self.lanes.values():
            if lane.state is State.COPYING and lane.pipe in self._wiring.writers[node_id].pipes:
                lane.note(error)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        job = asyncio.create_task(work)
        self._jobs.add(job)
        job.add_done_callback(self._job_ended)

    def _job_ended(self, job: asyncio.Task[None]) -> None:
        self._jobs.discard(job)
        if job.cancelled() or (error := job.exception()) is None:
            return
        if not isinstance(error, MirrorFlowError):
            # A mistake of ours: the process ends with it, and is started again, rather than go on half alive.
            asyncio.get_running_loop().call_exception_handler(
                {"message": "a task's job failed", "exception": error}
            )
            return
        self._cluster_trouble(error)

    # -- flow of bytes

    def _reader(self, node_id: int) -> SourceReader:
        return SourceReader(
            self._parts.source,
            node_id,
            read_committed=self._settings.read_committed,
            rack=self._parts.rack,
            room=self._wait_for_room,
            after=self._wiring.pump,
            on_error=partial(self._reader_lost, node_id),
        )

    def _writer(self, node_id: int) -> TargetWriter:
        return TargetWriter(
            self._parts.target, node_id, awake=self._awake, on_error=partial(self._writer_lost, node_id)
        )

    def _awake(self) -> None:
        self.pauses.beat()
        self._around.look_at_clock()
        self._room.set()

    async def _wait_for_room(self, answer_bytes: int, largest_bytes: int) -> None:
        """Hold the reader back while too much is waiting to be sent, or the rate is used up.

        On a long way answers are large, and the next one has to be asked for while the last one is still being sent.
        """
        most_bytes = max(BUFFERED_BYTES_MAX, 2 * largest_bytes)
        while self._around.buffered_bytes >= most_bytes:
            self._wiring.pump()
            # Not before pumping, which sets it: a wait that is over at once would never let answers, or connections, come.
            self._room.clear()
            if self._around.buffered_bytes < most_bytes:
                break
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._room.wait()
        if answer_bytes > QUIET_BYTES:
            self._copied_bytes += answer_bytes
        await self.pace.spend(answer_bytes)

    async def _tick_loop(self) -> None:
        copied, quiet_since_s = 0, time.monotonic()
        while True:
            self.pauses.beat()
            if copied != self._copied_bytes:
                copied, quiet_since_s = self._copied_bytes, time.monotonic()
            elif quiet_since_s and time.monotonic() - quiet_since_s > QUIET_S:
                memory.give_back()
                quiet_since_s = 0
            if self._aligner.has_watches:
                # While another copier is at work, its positions tell how far it is and when it leaves.
                waiting = [lane for lane in self.lanes.values() if lane.state is State.WAITING]
                for lane in await self._flushing.reread(waiting):
                    self._aligner.predecessor_left(lane)
            await asyncio.sleep(TICK_S)
