"""One session of a task: fetches, copies and stores offsets for the partitions that are assigned to it.

It holds their state machines (`copying.partition`) and carries effects out; `copy.partition_dispatch` shows the
way of a batch. It notices when this process did not run for a while. Guarantees: after `stop`, everything acknowledged is in a
stored position that is marked as left. The worker decides which partitions it has (`assign`).
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Coroutine, Iterable, Sequence
from functools import partial
from typing import Any

from mirrorflow_core.copying.batch_packer import Packer
from mirrorflow_core.copying.partition import CopierState, PartitionCopier
from mirrorflow_core.copying.session import CopySession
from mirrorflow_core.errors import MirrorFlowError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.reports import AcknowledgedPosition, TaskReport
from mirrorflow_core.settings import OffsetStore, SourceSettings
from mirrorflow_core.writer.claim import ABANDONED_MS
from mirrorflow_core.writer.position import encode_position
from mirrorflow_kafka.client.broker_reader import BrokerReader
from mirrorflow_kafka.client.broker_writer import BrokerWriter
from mirrorflow_kafka.stores.compacted_topic import RecordLosses
from mirrorflow_replicator import process
from mirrorflow_replicator.copy.broker_routes import BrokerRoutes
from mirrorflow_replicator.copy.effect_handler import EffectHandler
from mirrorflow_replicator.copy.end_offsets import follow_ends, note_ends
from mirrorflow_replicator.copy.partition_dispatch import PartitionDispatch
from mirrorflow_replicator.copy.partition_reports import active_records, partition_report
from mirrorflow_replicator.copy.partition_resumer import PartitionResumer
from mirrorflow_replicator.copy.position_committer import (
    AtLeastOnceCommitter,
    PositionCommitter,
    PositionFlusher,
)
from mirrorflow_replicator.copy.rate_limiter import PauseWatch, RateLimiter
from mirrorflow_replicator.copy.replay_files import ReplayFiles
from mirrorflow_replicator.copy.stall_watch import StallWatch
from mirrorflow_replicator.copy.target_settings import TargetExpiries, note_log_append_time_topics
from mirrorflow_replicator.copy.task_parts import TaskParts
from mirrorflow_replicator.copy.transaction_runner import TransactionRunner

log = logging.getLogger("mirrorflow.task")

BUFFERED_BYTES_MAX = 16 << 20  # fetched and not yet sent, over all partitions
TOPICS_CHECK_S = 10.0  # whether they have lost records: two small requests for each
DRAIN_S = 3.0  # at stop, for what is in flight
TICK_S = 0.2
FINISH_S = 3.0  # at stop, for the last commit
LEAVE_S = 10.0  # at stop, for the positions: a coordinator that needs longer is being replaced
QUIET_S = 3.0  # without large responses: then free buffers are returned to the operating system
QUIET_BYTES = 256 << 10


class TaskSession:
    """Composes the parts that copy the assigned partitions, until the session ends or the task stops."""

    def __init__(self, settings: SourceSettings, index: int, parts: TaskParts) -> None:
        self.copiers: dict[TopicPartition, PartitionCopier] = {}
        self.pace = RateLimiter(settings.bytes_per_second)
        self._settings = settings
        self._index = index
        self._parts = parts
        self._changed: dict[PartitionCopier, None] = {}  # since the last report
        self._unconnected: dict[PartitionCopier, None] = {}  # added, and not connected or not prepared yet
        self._room = asyncio.Event()
        self._jobs: set[asyncio.Task[Any]] = set()
        self._copied_bytes = 0
        self._last_logged = ""  # the newest error, to log each one once
        self.errors = parts.errors
        self.pauses = PauseWatch(on_pause=self._was_paused)
        self._replays = ReplayFiles()
        self._session = self._new_session()
        self._routes = BrokerRoutes(
            source=parts.source,
            target=parts.target,
            reader=self._reader,
            writer=self._writer,
            on_error=self._note_cluster_error,
        )
        self._effects = EffectHandler(
            source=parts.source,
            target=parts.target,
            routes=self._routes,
            syncs=parts.syncs,
            errors=self.errors,
            replays=self._replays,
            on_change=self._copier_changed,
            spawn=self._spawn,
        )
        self._committer = self._new_committer()
        self._resumer = self._new_resumer()
        self._effects.begin(self._committer, self._resumer)
        self._flusher = PositionFlusher(
            self._committer,
            interval_s=settings.flush_interval_s,
            syncs=parts.syncs,
            on_error=self._note_cluster_error,
        )
        self._stalls = StallWatch(
            source=parts.source,
            target=parts.target,
            routes=self._routes,
            pace=self.pace,
            is_crowded=self._is_crowded,
            on_change=self._changed.setdefault,
        )

    def _new_session(self) -> CopySession:
        parts, settings = self._parts, self._settings
        return CopySession(
            start=parts.session.start,
            source_alias=parts.source.alias,
            target_alias=parts.target.alias,
            loss_policy=settings.on_source_loss,
            read_committed=settings.read_committed,
            skips_refused=settings.skips_refused_records,
            log_append_time_topics=parts.session.log_append_time_topics,
        )

    def _new_resumer(self) -> PartitionResumer:
        return PartitionResumer(
            source=self._parts.source,
            target=self._parts.target,
            session=self._session,
            apply=self._effects.apply,
            is_connected=self._is_connected,
            end_session=self._committer.end,
        )

    def _new_committer(self) -> PositionCommitter:
        parts, session = self._parts, self._parts.session
        if not self._session.is_fenced:
            return AtLeastOnceCommitter(parts.positions, end_session=session.end)
        return TransactionRunner(
            parts.target, session.transactions, self._session, self._effects, end_session=session.end
        )

    def _is_connected(self, copier: PartitionCopier) -> bool:
        dispatch = self._routes.dispatch_of(copier)
        return dispatch is not None and dispatch.is_connected

    def _is_crowded(self) -> bool:
        return self._effects.buffered_bytes >= BUFFERED_BYTES_MAX

    async def start(self) -> None:
        """Starts all loops."""
        expiries = TargetExpiries(self._parts.target, self._session, self._committer)
        await expiries.apply()
        for loop in (
            self._resumer.run(),
            self._resumer.examine_left_out(),
            self._routes.run(),
            self._flusher.run(),
            self._committer.run(),
            self._tick_loop(),
            expiries.follow(on_error=self._note_cluster_error, end_session=self._committer.end),
            self._stalls.run(),
            self._stalls.describe_open_transactions(on_error=self._note_cluster_error),
            follow_ends(
                self._parts.source,
                copiers=self.copiers.values,
                held_s=lambda: self.pace.held_s,
                read_committed=self._settings.read_committed,
                on_change=self._changed.setdefault,
                on_error=self._note_cluster_error,
            ),
        ):
            self._spawn(loop)
        if self._parts.syncs is not None:
            self._spawn(self._parts.syncs.run())
        if self._parts.schemas is not None:
            self._spawn(self._parts.schemas.run())
        self._spawn(self._follow_internal_topics())

    async def _follow_internal_topics(self) -> None:
        """Writes again what the topics of positions, offset syncs and offset maps have lost, until cancelled."""
        parts, offsets = self._parts, self._settings.offsets
        positions = RecordLosses(parts.target, offsets.topic, parts.session.offsets_topic)
        while True:
            try:
                if offsets.store is OffsetStore.KAFKA and await positions.has_lost_records():
                    self._committer.positions_lost()
                    await self._flusher.flush(self.copiers.values(), left=False)
                if parts.syncs is not None:
                    await parts.syncs.write_what_is_lost()
            except MirrorFlowError as error:
                self._note_cluster_error(error)
            await asyncio.sleep(TOPICS_CHECK_S)

    async def assign(self, partitions: Iterable[TopicPartition], *, bytes_per_s: int | None = None) -> None:
        """Copies exactly *partitions* from now on, at most *bytes_per_s*; None: no limit.

        Raises ClusterError: new partitions may not be copied until it is called again, also with the same ones.
        """
        self.pace.limit(bytes_per_s)
        assigned = set(partitions)
        self._session.limit_event_logs(len(assigned))
        await self._leave([copier for source, copier in self.copiers.items() if source not in assigned])
        new = [self._add(source) for source in sorted(assigned - set(self.copiers))]
        if new:
            self._resumer.add(new)
            self._unconnected |= dict.fromkeys(new)
        if unconnected := list(self._unconnected):
            self._changed |= self._unconnected  # reported also if a step fails
            await note_ends(self._parts.source, unconnected, read_committed=self._settings.read_committed)
            await note_log_append_time_topics(self._parts.target, unconnected, self._session)
            self._changed |= (
                self._unconnected
            )  # again: a report may have gone out before their ends were known
            await self._routes.connect(unconnected)
            self._unconnected.clear()

    def _add(self, source: TopicPartition) -> PartitionCopier:
        route = self._parts.route(source.topic)
        plain = self._session.start.producers.plain
        packer = Packer(source.topic, source.partition, route.name, plain, route.edits)
        copier = self.copiers[source] = PartitionCopier(source, route.name, self._session, packer)
        self._routes.add(PartitionDispatch(copier, self._effects, self._parts.schemas))
        self._effects.apply(copier, copier.started(self._parts.session.earlier.get(source)))
        self._stalls.changed(copier)
        return copier

    @property
    def is_fenced(self) -> bool:
        """Whether the task is the only writer of its partitions."""
        return self._session.is_fenced

    async def stop(self) -> None:
        """Stops fetching, finishes what is in flight, stores offsets and closes the connections."""
        await self.end(leaves=True)
        await asyncio.gather(self._parts.source.close(), self._parts.target.close())

    async def end(self, *, leaves: bool) -> None:
        """Ends the task, but keeps the clients of both clusters.

        *leaves*: first finishes what is in flight, and stores offsets.
        """
        if leaves:
            await self._leave(list(self.copiers.values()))
        for copier in self.copiers.values():
            # Fetch responses arrive until its reader is closed: a marker in one would move the position past records that were
            # fetched before it and not sent. The next session keeps the partition for its counts.
            self._effects.apply(copier, copier.leave())
        for job in self._jobs:
            job.cancel()
        await asyncio.gather(*self._jobs, return_exceptions=True)
        await self._routes.close()

    def acknowledged(self) -> tuple[AcknowledgedPosition, ...]:
        """Returns what the partitions have acknowledged, for the next session; call it when the task has ended."""
        return tuple(
            AcknowledgedPosition(*position.topic_partition, encode_position(position).decode())
            for position in self._committer.acknowledged_positions(self.copiers.values())
        )

    def report(self, *, whole: bool = False) -> TaskReport:
        """Returns what changed since the last report, or everything if *whole*."""
        copiers = list(self.copiers.values()) if whole else list(self._changed)
        self._changed.clear()
        syncs, schemas = self._parts.syncs, self._parts.schemas
        return TaskReport(
            task=self._index,
            state="RUNNING",
            partitions=tuple(partition_report(copier, self._effects.now_ms) for copier in copiers),
            errors=dict(self.errors),
            throttle_ms=self._routes.throttle_ms,
            is_rate_limited=self.pace.held_s > 0,
            offset_syncs=0 if syncs is None else syncs.written,
            active_records=active_records(self.copiers.values()),
            buffer_free_bytes=max(0, BUFFERED_BYTES_MAX - self._effects.buffered_bytes),
            commit_ms=self._flusher.mean_ms,
            warnings=(
                *(() if syncs is None else syncs.warnings),
                *(() if schemas is None else schemas.warnings),
            ),
        )

    def write_replays(self) -> None:
        """Writes what its partitions did lately into files, for a developer."""
        self._replays.write_some(self.copiers.values())

    async def _leave(self, copiers: Sequence[PartitionCopier]) -> None:
        """Gives *copiers* up: waits for what is in flight, then stores how far they got, marked as left."""
        if not copiers:
            return
        for copier in copiers:
            self._effects.apply(copier, copier.leave())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                for copier in copiers:
                    if (dispatch := self._routes.dispatch_of(copier)) is not None:
                        await dispatch.wait_until_drained()
        try:
            await self._committer.finish(FINISH_S)
            async with asyncio.timeout(LEAVE_S):
                await self._flusher.flush(copiers, left=True)
        # The next copier still finds where to continue in the target's log, after it has waited.
        except MirrorFlowError as error:
            self._note_cluster_error(error)
        except TimeoutError:
            log.warning(
                "The target took no positions within %g s; the next session looks in its logs.", LEAVE_S
            )
        if self._parts.syncs is not None:
            await self._parts.syncs.leave(copiers)
        for copier in copiers:
            self.copiers.pop(copier.source, None)
            self._resumer.forget(copier)
            self._routes.remove(copier)
            self._changed.pop(copier, None)
            self._unconnected.pop(copier, None)
            self._flusher.forget(copier)
            self._stalls.forget(copier)

    # -- callbacks

    def _copier_changed(self, copier: PartitionCopier) -> None:
        self._changed[copier] = None
        self._flusher.changed(copier)
        self._stalls.changed(copier)
        self._committer.progressed(copier)

    def _was_paused(self, paused_s: float) -> None:
        if paused_s >= ABANDONED_MS / 1000:
            # Another process may own the flow by now.
            self._committer.end(f"this process did not run for {paused_s:.0f} s")
        for copier in self.copiers.values():
            self._effects.apply(copier, copier.paused())
        self._stalls.paused()

    def _note_cluster_error(self, error: MirrorFlowError) -> None:
        self.errors[error.reason] += 1
        if str(error) != self._last_logged:
            self._last_logged = str(error)
            log.warning("%s", error)
        for copier in self.copiers.values():
            if copier.state is CopierState.RESUMING and not self._resumer.leaves_out(copier):
                self._effects.apply(copier, copier.delayed(error))

    def _reader_lost(self, node_id: int, error: MirrorFlowError) -> None:
        self._note_cluster_error(error)
        self._routes.reader_lost(node_id, error)

    def _writer_lost(self, node_id: int, error: MirrorFlowError) -> None:
        self._note_cluster_error(error)
        self._routes.writer_lost(node_id, error)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        job = asyncio.create_task(work)
        self._jobs.add(job)
        job.add_done_callback(self._job_ended)

    def _job_ended(self, job: asyncio.Task[None]) -> None:
        self._jobs.discard(job)
        if job.cancelled() or (error := job.exception()) is None:
            return
        if not isinstance(error, MirrorFlowError):
            # A bug in this code: the process ends and is restarted, instead of continuing without this job.
            asyncio.get_running_loop().call_exception_handler(
                {"message": "a task's job failed", "exception": error}
            )
            return
        self._note_cluster_error(error)

    # -- flow of bytes

    def _reader(self, node_id: int) -> BrokerReader:
        return BrokerReader(
            self._parts.source,
            node_id,
            read_committed=self._settings.read_committed,
            rack=self._parts.rack,
            room=partial(self._wait_for_room, node_id),
            response_bytes_max=lambda: self.pace.response_bytes_max,
            after=self._routes.pump,
            on_error=partial(self._reader_lost, node_id),
        )

    def _writer(self, node_id: int) -> BrokerWriter:
        return BrokerWriter(
            self._parts.target, node_id, awake=self._awake, on_error=partial(self._writer_lost, node_id)
        )

    def _awake(self) -> None:
        self.pauses.beat()
        self._effects.update_clock()
        self._room.set()

    async def _wait_for_room(self, node_id: int, response_bytes: int, largest_bytes: int) -> None:
        """Holds the reader back while too much is waiting to be sent, or the rate limit is used up.

        Over a long distance responses are large, and the next must be requested while the last is still being
        sent.
        """
        most_bytes = max(BUFFERED_BYTES_MAX, 2 * largest_bytes)
        while self._effects.buffered_bytes >= most_bytes:
            self._routes.pump()
            # Cleared after pumping, which sets it: a wait that ends at once would never let responses or
            # connections in.
            self._room.clear()
            if self._effects.buffered_bytes < most_bytes:
                break
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._room.wait()
        if response_bytes > QUIET_BYTES:
            self._copied_bytes += response_bytes
        await self.pace.spend(response_bytes, reader=node_id)

    async def _tick_loop(self) -> None:
        copied, quiet_since_s = 0, time.monotonic()
        while True:
            self.pauses.beat()
            if copied != self._copied_bytes:
                copied, quiet_since_s = self._copied_bytes, time.monotonic()
            elif quiet_since_s and time.monotonic() - quiet_since_s > QUIET_S:
                process.trim_memory()
                quiet_since_s = 0
            await asyncio.sleep(TICK_S)
