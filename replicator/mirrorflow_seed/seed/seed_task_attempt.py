"""Runs one attempt of a seed task: fences the earlier attempts, resumes where they ended, and copies.

Spark retries a task that has failed or has lost its executor (`TASK_FAILURES_MAX` in `spark_session`); the next
attempt then runs this module. `_fence_earlier_attempts` initializes the task's transactional ids, which only a job that
owns the flow may do; so the target refuses what Spark runs twice or too late. The start offsets are the positions that
the earlier attempts have stored. `_run_until_done` retries the errors of a cluster within the attempt.

The partitions are copied by the replicator's own task. An attempt ends when each range has reached its frozen
end, when its time is over (`AttemptDeadline`), or when nothing more can be copied. It then stores that it has left its partitions. Its
result is used only for the report. A job that stops lets Spark cancel its tasks. An attempt that Spark cannot reach,
for example on a node that is cut off, ends by itself: it checks the lock of the flow (`_check_lock_periodically`).
"""

import asyncio
import logging
import secrets
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from mirrorflow_core.backoff import backoff_s
from mirrorflow_core.copying.partition import PartitionCopier
from mirrorflow_core.errors import (
    FlowTakenError,
    FlowUnfencedError,
    IdentityError,
    MirrorFlowError,
    SettingError,
    SourceDataLostError,
)
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.reports import AcknowledgedPosition
from mirrorflow_core.settings import SourceSettings
from mirrorflow_core.writer.transactional_ids import TransactionalIds
from mirrorflow_kafka.client.cancellation import cancel_and_wait
from mirrorflow_kafka.client.cluster import Cluster, connect_both
from mirrorflow_kafka.security.secret_rotation import Resolve
from mirrorflow_kafka.stores.position_store import position_store
from mirrorflow_kafka.writer.producer_transactions import ProducerTransactions
from mirrorflow_replicator import process
from mirrorflow_replicator.config.providers import Resolver
from mirrorflow_replicator.connectors.flow_owner import FlowOwner
from mirrorflow_replicator.connectors.task_messages import TaskAssignment
from mirrorflow_replicator.copy.task_parts import KnownSchemas, SessionParts, flow_topics
from mirrorflow_replicator.copy.task_session import TaskSession
from mirrorflow_replicator.copy.task_session_factory import start_task_session
from mirrorflow_seed.seed.seed_plan import SeedRange, SeedTask
from mirrorflow_seed.seed.task_messages import (
    TASK_REPORT_EVERY_S,
    SeedTaskReport,
    send_report,
)
from mirrorflow_seed.settings import FlowFiles

POLL_S: Final = 0.05
START_S: Final = 60.0  # upper bound for a start; added to the time of a task
RETRY_MIN_S, RETRY_MAX_S = 0.5, 15.0  # while a cluster cannot be used
# A check is an empty transaction of the flow's lock, which all tasks of a job share: 200 tasks make 7 in a second.
LOCK_CHECK_EVERY_S: Final = 30.0

log = logging.getLogger("mirrorflow.seed")


class PartitionOutcome(Enum):
    """How the copy of one partition ended in an attempt."""

    DONE = "done"
    UNFINISHED = "unfinished"  # the time was over, or another job has taken the flow
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class WaveSettings:
    """The input that all tasks of a wave share. It holds no secret and no resolved reference."""

    files: FlowFiles
    group: str  # the job's name in the claim of the flow
    initial: bool  # the flow began with this job
    seconds: float
    url: str | None  # of the driver's `Coordinator`


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResult:
    """The result of one partition in an attempt."""

    index: int
    outcome: PartitionOutcome
    next_offset: int | None = None  # None: the attempt ended before it was known
    gap_records: int = 0
    reason: str | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """The result of one Spark task."""

    report: SeedTaskReport
    partition_results: tuple[PartitionResult, ...]
    memory_bytes: int  # peak memory of its process
    start_s: float  # from the start of the task until it copied, connecting and resuming included


class AttemptDeadline:
    """When an attempt gives its slot to other tasks: *copying_s* after its first records, START_S later if none come.

    An attempt that does not yield keeps its slot as long as it copies: each settled offset that grows gives it *copying_s* again.
    Otherwise as many attempts as slots, each with a partition that has no leader, would hold up the job. All times are of the
    monotonic clock.
    """

    def __init__(self, copying_s: float, *, yields: bool, began_s: float) -> None:
        self._copying_s = copying_s
        self._yields = yields
        self._until_s = began_s + START_S + copying_s
        self._settled: dict[int, int] = {}

    def begin_copying(self, now_s: float) -> None:
        """Shortens the time once records move: a slow start must not use up a short time."""
        self._until_s = min(self._until_s, now_s + self._copying_s)

    def observe(self, settled: Mapping[int, int], now_s: float) -> None:
        """Takes the settled offset of each range. The first one of a range is where it resumes, which is no progress."""
        has_grown = False
        for index, offset in settled.items():
            has_grown |= offset > self._settled.get(index, offset)
            self._settled[index] = max(offset, self._settled.get(index, offset))
        if has_grown and not self._yields:
            self._until_s = max(self._until_s, now_s + self._copying_s)

    def is_over(self, now_s: float) -> bool:
        return now_s > self._until_s


def run_task(seed_task: SeedTask, wave: WaveSettings) -> TaskResult:
    """Runs *seed_task* in a Spark worker process."""
    prepare_process()
    return asyncio.run(SeedTaskAttempt(seed_task, wave, wave.files.load()).run())


def prepare_process() -> None:
    """Tunes memory use and sets up logging in a Spark worker process."""
    process.tune_memory()
    logging.basicConfig(
        level=logging.WARNING, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s"
    )


async def _connect_both(settings: SourceSettings, resolve: Resolve) -> tuple[Cluster, Cluster]:
    return await connect_both(settings.source_consumer, settings.target_producer, resolve=resolve)


class SeedTaskAttempt:
    """One attempt of a seed task; `run` copies its ranges and returns the result.

    *connect* opens source and target. The attempt ends early once *wants_end* returns True.
    """

    def __init__(
        self,
        seed_task: SeedTask,
        wave: WaveSettings,
        settings: SourceSettings,
        *,
        connect: Callable[[SourceSettings, Resolve], Awaitable[tuple[Cluster, Cluster]]] = _connect_both,
        wants_end: Callable[[], bool] = lambda: False,
    ) -> None:
        self._wave = wave
        self._bytes_per_second = seed_task.bytes_per_second
        self._settings = replace(settings, schema_wait=None)  # executors may have no access to registries
        self._resolve: Resolve = Resolver(settings.providers).resolve_client
        self._connect = connect
        self._wants_end = wants_end
        # Names the task's transactional ids, which all its attempts share.
        self._chain = min(seed_range.index for seed_range in seed_task.ranges)
        # Passed from one session of the copy to the next, so that the next resumes exactly where it ended.
        self._previous_copiers: dict[TopicPartition, PartitionCopier] = {}
        self._log_append_time_topics: set[str] = set()
        self._acknowledged: tuple[AcknowledgedPosition, ...] = ()
        self._restart_reason = ""
        self._unfinished: dict[int, SeedRange] = {
            seed_range.index: seed_range for seed_range in seed_task.ranges
        }
        # The newest one of each range; it inherits all counts.
        self._copiers: dict[int, PartitionCopier] = {}
        self._partition_results: dict[int, PartitionResult] = {}
        self._attempt = secrets.token_hex(8)
        self._progress = SeedTaskReport(attempt=self._attempt)
        self._began_s = time.monotonic()
        self._deadline = AttemptDeadline(wave.seconds, yields=seed_task.yields, began_s=self._began_s)
        self._has_copied = False
        self._start_s = 0.0
        self._bug: BaseException | None = None
        self._connection_error: MirrorFlowError | None = None
        self._flow_lost: FlowTakenError | None = None

    async def run(self) -> TaskResult:
        """Copies until the attempt ends, and reports to the driver meanwhile.

        Raises unexpected exceptions, which are bugs of ours: Spark then retries the task.
        """
        asyncio.get_running_loop().set_exception_handler(self._note_bug)
        await self._report()
        reporting = asyncio.create_task(self._report_periodically())
        try:
            await self._run_until_done()
        finally:
            reporting.cancel()
        for seed_range in list(self._unfinished.values()):
            self._finish(seed_range, PartitionOutcome.UNFINISHED, self._error_of(seed_range))
        self._progress = replace(self._progress, ended=True)
        await self._report()
        return TaskResult(
            report=self._progress,
            partition_results=tuple(self._partition_results.values()),
            memory_bytes=process.peak_bytes(),
            start_s=self._start_s,
        )

    async def _run_until_done(self) -> None:
        """Connects and copies, and retries after each error, until all ranges are done or the attempt must end."""
        failures = 0
        while self._unfinished and not self._must_end():
            try:
                await self._run_once()
            except (SettingError, IdentityError) as error:
                for seed_range in list(self._unfinished.values()):
                    self._finish(seed_range, PartitionOutcome.FAILED, error)
            except MirrorFlowError as error:
                self._connection_error = error
                log.warning("%s", error)
                failures += 1
                await self._pause(backoff_s(failures, lowest_s=RETRY_MIN_S, highest_s=RETRY_MAX_S))
            else:
                self._connection_error, failures = None, 0

    async def _run_once(self) -> None:
        """Fences the earlier attempts, then copies the unfinished ranges until this session ends."""
        self._restart_reason = ""
        clusters = await self._connect(self._settings, self._resolve)
        owner = FlowOwner(self._settings, on_lost=lambda: None, group=self._wave.group)
        task = None
        checking = None
        try:
            session = await self._fence_earlier_attempts(clusters, owner)
            task = await start_task_session(
                self._settings,
                clusters,
                position_store(self._settings, clusters[1]),
                resolve=self._resolve,
                task=0,
                session=session,
            )
            checking = asyncio.create_task(self._check_lock_periodically(owner))
            await self._copy(task)
        finally:
            if checking is not None:
                await cancel_and_wait(checking)
            if task is not None:
                self._previous_copiers |= task.copiers
                await task.stop()
                self._acknowledged = task.acknowledged()
            else:
                await asyncio.gather(*(cluster.close() for cluster in clusters))
            self._update_progress()
        if self._bug is not None:
            raise self._bug
        for seed_range in list(self._unfinished.values()):
            self._finish_if_done(seed_range)  # acknowledgements may have arrived while the session stopped

    async def _fence_earlier_attempts(
        self, clusters: tuple[Cluster, Cluster], owner: FlowOwner
    ) -> SessionParts:
        """Initializes the task's transactional ids, and returns where each unfinished partition resumes.

        Raises FlowUnfencedError if the target cannot fence, FlowTakenError if the job has lost the flow.
        """
        settings = self._settings
        ids = TransactionalIds(settings.source_alias).seed(self._wave.group, self._chain)
        wanted = TaskAssignment(
            partitions=tuple(seed_range.source for seed_range in self._unfinished.values()),
            initial=self._wave.initial,
            acknowledged=self._acknowledged,
        )
        given = await owner.start_in_group(clusters, 0, wanted, ids=ids)
        if given.start.unfenced_reason is not None:
            raise FlowUnfencedError(source=settings.source_alias, why=given.start.unfenced_reason)
        transactions = ProducerTransactions(
            clusters[1],
            flow_topics(settings),
            sequences=given.sequences,
            timeout_ms=given.transaction_timeout_ms,
        )
        return SessionParts(
            start=given.start,
            transactions=transactions,
            earlier=self._previous_copiers,
            log_append_time_topics=self._log_append_time_topics,
            known_schemas=KnownSchemas(),
            end=self._request_restart,
        )

    async def _check_lock_periodically(self, owner: FlowOwner) -> None:
        """Ends the attempt once another job, or the end of this one, has taken the flow."""
        while True:
            await asyncio.sleep(LOCK_CHECK_EVERY_S)
            try:
                await owner.require_lock()
            except FlowTakenError as error:
                log.warning("%s", error)
                self._flow_lost = error
                return
            except MirrorFlowError as error:
                log.warning("The lock of the flow cannot be checked: %s", error)

    def _request_restart(self, why: str) -> None:
        log.warning("Restarting the copy after its last commit: %s", why)
        self._restart_reason = why

    async def _copy(self, task: TaskSession) -> None:
        """Copies until nothing is left to do in this session."""
        assigned: frozenset[int] = frozenset()
        while self._unfinished and not self._must_end() and self._bug is None and not self._restart_reason:
            wanted = frozenset(self._unfinished)
            if wanted != assigned:
                await task.assign(
                    [seed_range.source for seed_range in self._unfinished.values()],
                    bytes_per_s=self._bytes_per_second,
                )
                assigned = wanted
                self._copiers |= {
                    index: task.copiers[seed_range.source] for index, seed_range in self._unfinished.items()
                }
            await asyncio.sleep(POLL_S)
            self._update_progress()
            if not self._has_copied and any(copier.counts.records for copier in self._copiers.values()):
                self._has_copied = True
                self._start_s = time.monotonic() - self._began_s
                self._deadline.begin_copying(time.monotonic())
            for seed_range in list(self._unfinished.values()):
                self._finish_if_done(seed_range)
            if all(
                _delivered(self._copiers[index]) >= seed_range.end
                for index, seed_range in self._unfinished.items()
            ):
                return  # stopping the session commits the rest; the caller then checks the ranges once more

    def _finish_if_done(self, seed_range: SeedRange) -> None:
        """Records the outcome of *seed_range* if it has reached its end or cannot be copied."""
        copier = self._copiers.get(seed_range.index)
        if copier is None:
            return
        error = copier.health.error
        if copier.settled_next_offset >= seed_range.end:
            self._finish(seed_range, PartitionOutcome.DONE, None)
        elif copier.health.is_halted and error is not None and not error.retriable:
            self._finish(seed_range, PartitionOutcome.FAILED, error)

    def _finish(
        self, seed_range: SeedRange, outcome: PartitionOutcome, error: MirrorFlowError | None
    ) -> None:
        self._unfinished.pop(seed_range.index)
        copier = self._copiers.get(seed_range.index)
        self._partition_results[seed_range.index] = PartitionResult(
            index=seed_range.index,
            outcome=outcome,
            next_offset=None if copier is None else copier.settled_next_offset,
            gap_records=_gap_records(copier, error),
            reason=None if error is None else error.reason,
            message=None if error is None else str(error),
        )

    def _error_of(self, seed_range: SeedRange) -> MirrorFlowError | None:
        """Returns the error that blocks *seed_range*: a lost flow, else its own, else that of the connection."""
        if self._flow_lost is not None:
            return self._flow_lost
        copier = self._copiers.get(seed_range.index)
        return (
            self._connection_error if copier is None or copier.health.error is None else copier.health.error
        )

    def _must_end(self) -> bool:
        return self._flow_lost is not None or self._deadline.is_over(time.monotonic()) or self._wants_end()

    def _update_progress(self) -> None:
        copiers = self._copiers
        settled = {index: copier.settled_next_offset for index, copier in copiers.items()}
        self._deadline.observe(settled, time.monotonic())
        self._progress = SeedTaskReport(
            attempt=self._attempt,
            records=sum(copier.counts.records for copier in copiers.values()),
            bytes=sum(copier.counts.bytes for copier in copiers.values()),
            seconds=time.monotonic() - self._began_s,
            next_offsets=settled,
        )

    async def _report_periodically(self) -> None:
        while True:
            await asyncio.sleep(TASK_REPORT_EVERY_S)
            # One error is enough: an unusable cluster blocks all ranges alike.
            errors = (self._error_of(seed_range) for seed_range in list(self._unfinished.values()))
            error = next(filter(None, errors), None)
            self._progress = replace(
                self._progress,
                seconds=time.monotonic() - self._began_s,
                reason=None if error is None else error.reason,
                message=None if error is None else str(error),
            )
            await self._report()

    async def _report(self) -> None:
        await asyncio.to_thread(send_report, self._wave.url, self._progress)

    async def _pause(self, seconds: float) -> None:
        for _ in range(round(seconds / POLL_S)):
            if self._must_end():
                return
            await asyncio.sleep(POLL_S)

    def _note_bug(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        loop.default_exception_handler(context)
        error = context.get("exception")
        if isinstance(error, BaseException):
            self._bug = error


def _delivered(copier: PartitionCopier) -> int:
    """Returns the first source offset that may be undelivered; an open transaction may still be aborted."""
    return -1 if copier.stream is None else copier.stream.delivered.source_offset + 1


def _gap_records(copier: PartitionCopier | None, error: MirrorFlowError | None) -> int:
    """Returns the number of source offsets that were deleted before they were copied."""
    gap = 0 if copier is None else copier.counts.lost_records
    if isinstance(error, SourceDataLostError):
        gap += max(0, error.found - error.wanted)
    return gap
