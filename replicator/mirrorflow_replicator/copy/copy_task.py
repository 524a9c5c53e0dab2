"""A copy task: fetches, copies and stores offsets for the partitions that are assigned to it.

It holds the partition copiers, runs the resumer, the broker routes and the writer of transactions and positions, and
notices when this process did not run for a while. Guarantees: after `stop`, everything acknowledged is in a stored
position that is marked as left. The worker decides which partitions it has (`assign`).
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any

from mirrorflow_core.errors import MirrorFlowError, NotAuthorizedError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.reports import AcknowledgedPosition, TaskReport
from mirrorflow_core.settings import OffsetStore, SourceSettings
from mirrorflow_core.writer.claim import ABANDONED_MS
from mirrorflow_core.writer.position import encode_position
from mirrorflow_core.writer.stream import Span
from mirrorflow_core.writer.write_mode import plain_age_limit_ms
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.client.broker_reader import BrokerReader
from mirrorflow_kafka.client.broker_writer import BrokerWriter
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.stores.compacted_topic import RecordLosses
from mirrorflow_replicator import process
from mirrorflow_replicator.copy.broker_error_handler import BrokerErrorHandler
from mirrorflow_replicator.copy.broker_routes import BrokerRoutes
from mirrorflow_replicator.copy.copier_context import PRODUCER_EXPIRATION_MS, CopierContext, CopierState
from mirrorflow_replicator.copy.end_offsets import follow_stopped_ends, note_ends
from mirrorflow_replicator.copy.partition_copier import PartitionCopier
from mirrorflow_replicator.copy.partition_reports import active_records, partition_report
from mirrorflow_replicator.copy.partition_resumer import PartitionResumer
from mirrorflow_replicator.copy.position_writer import PositionWriter, TaskWriter, UnfencedWriter
from mirrorflow_replicator.copy.rate_limiter import PauseWatch, RateLimiter
from mirrorflow_replicator.copy.stall_watch import StallWatch
from mirrorflow_replicator.copy.task_parts import TaskParts
from mirrorflow_replicator.copy.task_transaction import TaskTransaction
from mirrorflow_replicator.process import now_ms

TIMESTAMP_TYPE = "message.timestamp.type"


async def note_log_append_time_topics(target: Cluster, copiers: Collection[PartitionCopier]) -> None:
    """Notes which target topics of *copiers* use LogAppendTime, where that may be read. Raises ClusterError."""
    topics = sorted({copier.target_topic for copier in copiers})
    kinds = await admin.describe_topic_setting(target, topics, TIMESTAMP_TYPE)
    for copier in copiers:
        if kinds.get(copier.target_topic) == "LogAppendTime":
            copier.context.log_append_time_topics.add(copier.target_topic)


# Far less than the time between two checks of a broker (producer.id.expiration.check.interval.ms, ten
# minutes).
READ_EVERY_S = 15.0
PRODUCER_KEY = "producer.id.expiration.ms"
TRANSACTIONAL_ID_KEY = "transactional.id.expiration.ms"
TRANSACTIONAL_ID_EXPIRATION_MS = 7 * 86_400_000


class TargetExpiries:
    """The target's expiration settings, for all partition copiers of a task.

    Brokers may differ, so the smallest value counts. A broker that does not answer keeps its last one.
    """

    def __init__(self, target: Cluster, context: CopierContext, writer: TaskWriter) -> None:
        self._target = target
        self._context = context
        self._writer = writer
        self._by_broker: dict[int, dict[str, int]] = {}

    async def apply(self) -> None:
        """Reads the settings once. Raises ClusterError."""
        with contextlib.suppress(NotAuthorizedError):
            self._by_broker |= await admin.describe_brokers(
                self._target, [PRODUCER_KEY, TRANSACTIONAL_ID_KEY]
            )
        self._writer.keep_ids(self._smallest(TRANSACTIONAL_ID_KEY, TRANSACTIONAL_ID_EXPIRATION_MS) / 1000)
        forgotten_ms = self._smallest(PRODUCER_KEY, PRODUCER_EXPIRATION_MS)
        self._context.limit_plain_age(plain_age_limit_ms(forgotten_ms))

    def _smallest(self, name: str, default: int) -> int:
        return min((one[name] for one in self._by_broker.values() if name in one), default=default)

    async def follow(
        self, *, on_error: Callable[[MirrorFlowError], None], end_task: Callable[[str], None]
    ) -> None:
        """Applies the settings until cancelled.

        If leaders forget producers earlier than before, the task ends: the fence of its next start is young.
        """
        while True:
            await asyncio.sleep(READ_EVERY_S)
            before_ms = self._context.plain_age_limit_ms
            try:
                await self.apply()
            except MirrorFlowError as error:
                on_error(error)
            if self._context.plain_age_limit_ms < before_ms and self._context.is_fenced:
                end_task(f"{PRODUCER_KEY} of {self._target.alias} was lowered")


log = logging.getLogger("mirrorflow.task")

BUFFERED_BYTES_MAX = 16 << 20  # fetched and not yet sent, over all partitions
TOPICS_CHECK_S = 10.0  # whether they have lost records: two small requests for each
DRAIN_S = 3.0  # at stop, for what is in flight
TICK_S = 0.2
FINISH_S = 3.0  # at stop, for the last commit
LEAVE_S = 10.0  # at stop, for the positions: a coordinator that needs longer is being replaced
QUIET_S = 3.0  # without large responses: then free buffers are returned to the operating system
QUIET_BYTES = 256 << 10


class CopyTask:
    """Composes the parts that copy the assigned partitions."""

    def __init__(self, settings: SourceSettings, index: int, parts: TaskParts) -> None:
        self.copiers: dict[TopicPartition, PartitionCopier] = {}
        self.pace = RateLimiter(settings.bytes_per_second)
        self._settings = settings
        self._index = index
        self._parts = parts
        self._changed: dict[PartitionCopier, None] = {}  # since the last report
        self._room = asyncio.Event()
        self._jobs: set[asyncio.Task[Any]] = set()
        self._copied_bytes = 0
        self._told = ""  # the newest error, to log each one once
        self.errors = parts.errors
        self.pauses = PauseWatch(on_pause=self._was_paused)
        self._routes = BrokerRoutes(
            source=parts.source,
            target=parts.target,
            reader=self._reader,
            writer=self._writer,
            on_error=self._note_cluster_error,
        )
        self._task_writer = self._new_task_writer()
        self._resumer = PartitionResumer(
            source=parts.source,
            target=parts.target,
            start=parts.fenced.start,
            writer=self._task_writer,
            settings=settings,
            log_append_time_topics=parts.fenced.log_append_time_topics,
            end_task=parts.fenced.end,
        )
        self._error_handler = BrokerErrorHandler(
            source=parts.source,
            target=parts.target,
            routes=self._routes,
            resumer=self._resumer,
            errors=self.errors,
            spawn=self._spawn,
            skips_refused=settings.skips_refused_records,
        )
        self._flushing = PositionWriter(
            self._task_writer,
            interval_s=settings.flush_interval_s,
            syncs=parts.syncs,
            on_error=self._note_cluster_error,
        )
        self._stalls = StallWatch(
            source=parts.source,
            target=parts.target,
            routes=self._routes,
            pace=self.pace,
            buffered_bytes_max=BUFFERED_BYTES_MAX,
            on_change=self._changed.setdefault,
        )
        self._context = self._new_context()

    def _new_task_writer(self) -> TaskWriter:
        parts, fenced = self._parts, self._parts.fenced
        if fenced.start.unfenced_why:
            return UnfencedWriter(parts.positions, end_task=fenced.end)
        return TaskTransaction(
            parts.target, fenced.transactions, fenced.start, pump=self._routes.pump, end_task=fenced.end
        )

    def _new_context(self) -> CopierContext:
        return CopierContext(
            read_committed=self._settings.read_committed,
            schedule_resume=self._resumer.schedule_resume,
            on_fetch_error=self._error_handler.on_fetch_error,
            on_produce_error=self._on_produce_error,
            stopped=self._error_handler.stopped,
            changed=self._copier_changed,
            clock_ms=now_ms,
            syncs=self._parts.syncs,
            writer=self._task_writer,
            plain_producer=self._parts.fenced.start.producers.plain,
            log_append_time_topics=self._parts.fenced.log_append_time_topics,
            unfenced_why=self._parts.fenced.start.unfenced_why,
        )

    async def start(self) -> None:
        """Starts all loops."""
        expiries = TargetExpiries(self._parts.target, self._context, self._task_writer)
        await expiries.apply()
        for loop in (
            self._resumer.run(),
            self._resumer.examine_left_out(),
            self._routes.run(),
            self._flushing.run(),
            self._task_writer.run(),
            self._tick_loop(),
            expiries.follow(on_error=self._note_cluster_error, end_task=self._parts.fenced.end),
            self._stalls.run(),
            self._stalls.describe_open_transactions(on_error=self._note_cluster_error),
            follow_stopped_ends(
                self._parts.source,
                copiers=self.copiers.values,
                read_committed=self._settings.read_committed,
                on_change=self._changed.setdefault,
                on_error=self._note_cluster_error,
            ),
        ):
            self._spawn(loop)
        if self._parts.syncs is not None:
            self._spawn(self._parts.syncs.run())
        self._spawn(self._follow_internal_topics())

    async def _follow_internal_topics(self) -> None:
        """Writes again what the topics of positions, offset syncs and offset maps have lost, until cancelled."""
        parts, offsets = self._parts, self._settings.offsets
        positions = RecordLosses(parts.target, offsets.topic, parts.fenced.offsets_topic)
        while True:
            try:
                if offsets.store is OffsetStore.KAFKA and await positions.has_lost_records():
                    self._task_writer.positions_lost()
                    await self._flushing.flush(self.copiers.values(), left=False)
                if parts.syncs is not None:
                    await parts.syncs.write_what_is_lost()
            except MirrorFlowError as error:
                self._note_cluster_error(error)
            await asyncio.sleep(TOPICS_CHECK_S)

    async def assign(self, partitions: Iterable[TopicPartition], *, bytes_per_s: int | None = None) -> None:
        """Copies exactly *partitions* from now on, at most *bytes_per_s*; None: no limit."""
        self.pace.limit(bytes_per_s)
        wanted = set(partitions)
        await self._leave([copier for source, copier in self.copiers.items() if source not in wanted])
        new = []
        for source in sorted(wanted - set(self.copiers)):
            copier = PartitionCopier(source, self._parts.route(source.topic), self._context)
            if source in self._parts.fenced.earlier:
                earlier = self._parts.fenced.earlier[source]
                copier.inherit(earlier)
                self._error_handler.stop_again(copier, earlier)
            self.copiers[source] = copier
            self._stalls.changed(copier)
            new.append(copier)
        if new:
            self._resumer.add(new)
            await note_ends(self._parts.source, new, read_committed=self._settings.read_committed)
            await note_log_append_time_topics(self._parts.target, new)
            self._changed |= dict.fromkeys(new)
            await self._routes.add(new)

    @property
    def is_fenced(self) -> bool:
        """Whether the task is the only writer of its partitions."""
        return self._context.is_fenced

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
            copier.packer.clear()
        for job in self._jobs:
            job.cancel()
        await asyncio.gather(*self._jobs, return_exceptions=True)
        await self._routes.close()

    def acknowledged(self) -> tuple[AcknowledgedPosition, ...]:
        """Returns what the partitions have acknowledged, for the next start; call it when the task has ended."""
        return tuple(
            AcknowledgedPosition(*one.topic_partition, encode_position(one).decode())
            for one in self._task_writer.acknowledged(self.copiers.values())
        )

    def report(self, *, whole: bool = False) -> TaskReport:
        """Returns what changed since the last report, or everything if *whole*."""
        copiers = list(self.copiers.values()) if whole else list(self._changed)
        self._changed.clear()
        syncs = self._parts.syncs
        return TaskReport(
            task=self._index,
            state="RUNNING",
            partitions=tuple(partition_report(copier) for copier in copiers),
            errors=dict(self.errors),
            throttle_ms=self._routes.throttle_ms,
            offset_syncs=0 if syncs is None else syncs.written,
            active_records=active_records(self.copiers.values()),
            buffer_free_bytes=max(0, BUFFERED_BYTES_MAX - self._context.buffered_bytes),
            commit_ms=self._flushing.mean_ms,
            warnings=() if syncs is None else syncs.warnings,
        )

    async def _leave(self, copiers: Sequence[PartitionCopier]) -> None:
        """Gives *copiers* up: waits for what is in flight, then stores how far they got, marked as left."""
        if not copiers:
            return
        for copier in copiers:
            copier.leave()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                for copier in copiers:
                    await copier.drained.wait()
        try:
            await self._task_writer.finish(FINISH_S)
            async with asyncio.timeout(LEAVE_S):
                await self._flushing.flush(copiers, left=True)
        # The next copier still finds where to continue in the target's log, after it has waited.
        except MirrorFlowError as error:
            self._note_cluster_error(error)
        except TimeoutError:
            log.warning(
                "The target took no positions within %g s; the next start looks in its logs.", LEAVE_S
            )
        if self._parts.syncs is not None:
            await self._parts.syncs.leave(copiers)
        for copier in copiers:
            self.copiers.pop(copier.source, None)
            self._resumer.forget(copier)
            self._routes.remove(copier)
            self._changed.pop(copier, None)
            self._flushing.forget(copier)
            self._stalls.forget(copier)

    # -- callbacks

    def _copier_changed(self, copier: PartitionCopier) -> None:
        self._changed[copier] = None
        self._flushing.changed(copier)
        self._stalls.changed(copier)
        self._task_writer.progressed(copier)

    def _on_produce_error(self, copier: PartitionCopier, code: int, message: str, span: Span) -> None:
        self._task_writer.refused(code)
        self._error_handler.on_produce_error(copier, code, message, span)

    def _was_paused(self, paused_s: float) -> None:
        if paused_s >= ABANDONED_MS / 1000:
            # Another process may own the flow by now.
            self._parts.fenced.end(f"this process did not run for {paused_s:.0f} s")
        for copier in self.copiers.values():
            copier.resync()
        self._stalls.paused()

    def _note_cluster_error(self, error: MirrorFlowError) -> None:
        self.errors[error.reason] += 1
        if str(error) != self._told:
            self._told = str(error)
            log.warning("%s", error)
        for copier in self.copiers.values():
            if copier.state is CopierState.RESUMING and not self._resumer.leaves_out(copier):
                copier.note(error)

    def _reader_lost(self, node_id: int, error: MirrorFlowError) -> None:
        self._note_cluster_error(error)
        self._routes.reader_lost(node_id)
        for copier in self.copiers.values():
            if copier.state is CopierState.COPYING and copier.reader is self._routes.readers.get(node_id):
                copier.note(error)

    def _writer_lost(self, node_id: int, error: MirrorFlowError) -> None:
        self._note_cluster_error(error)
        self._routes.writer_lost(node_id)
        for copier in self.copiers.values():
            if copier.state is CopierState.COPYING and copier.pipe in self._routes.writers[node_id].pipes:
                copier.note(error)

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
            after=self._routes.pump,
            on_error=partial(self._reader_lost, node_id),
        )

    def _writer(self, node_id: int) -> BrokerWriter:
        return BrokerWriter(
            self._parts.target, node_id, awake=self._awake, on_error=partial(self._writer_lost, node_id)
        )

    def _awake(self) -> None:
        self.pauses.beat()
        self._context.update_clock()
        self._room.set()

    async def _wait_for_room(self, node_id: int, response_bytes: int, largest_bytes: int) -> None:
        """Holds the reader back while too much is waiting to be sent, or the rate limit is used up.

        Over a long distance responses are large, and the next must be requested while the last is still being
        sent.
        """
        most_bytes = max(BUFFERED_BYTES_MAX, 2 * largest_bytes)
        while self._context.buffered_bytes >= most_bytes:
            self._routes.pump()
            # Cleared after pumping, which sets it: a wait that ends at once would never let responses or
            # connections in.
            self._room.clear()
            if self._context.buffered_bytes < most_bytes:
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
                process.give_back()
                quiet_since_s = 0
            await asyncio.sleep(TICK_S)
