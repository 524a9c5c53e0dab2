"""The driver of a seed: plans waves, runs their tasks on Spark and reports progress.

    claim the flow ──> plan a wave ──> run its tasks on Spark ──> plan the next wave ... until the lag is small

The driver owns the flow, so a running connector waits meanwhile. The end offsets of a wave are frozen; the next wave
copies what the source has received since. A run stores no state of its own: after a kill, the next run continues from
the positions on the target. After SIGTERM or Ctrl-C, Spark cancels the tasks, and the driver fences them.
"""

import asyncio
import contextlib
import logging
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Final, TypeVar

from mirrorflow_core.errors import FlowTakenError, MirrorFlowError, NotAuthorizedError, SettingError
from mirrorflow_core.settings import LossPolicy, SourceSettings
from mirrorflow_replicator.connectors.topic_sync import Arrangement
from mirrorflow_seed.errors import (
    EXIT_DIFFERENT,
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_STOPPED,
    FlowLostError,
    NothingSelectedError,
    StalledError,
)
from mirrorflow_seed.job_report import JobPhase, SeedReport
from mirrorflow_seed.job_status_server import Display, JobStatusServer
from mirrorflow_seed.seed.claimed_flow import ClaimedFlow
from mirrorflow_seed.seed.retention_holder import RetentionHolder
from mirrorflow_seed.seed.seed_plan import SeedRange, SeedTask, ranges_of, tasks_of, was_copied_before
from mirrorflow_seed.seed.seed_progress import SeedProgress, StallTimer
from mirrorflow_seed.seed.seed_task_attempt import TaskResult, WaveSettings, run_task
from mirrorflow_seed.seed.task_messages import Coordinator
from mirrorflow_seed.settings import FlowFiles, JobSettings, require_shared_positions
from mirrorflow_seed.spark_errors import job_error
from mirrorflow_seed.spark_session import driver_address, spark_session
from mirrorflow_seed.spark_tasks import IdleTimer, SparkTasks, rates_of_tasks, share_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REPORT_EVERY_S: Final = 1.0
POSITIONS_EVERY_S: Final = 5.0  # as often as tasks write them
STALLED_WAVES_MAX: Final = 3  # in a row without progress
TRIES_MAX: Final = 10  # of a request to a cluster that cannot be used: one minute in total
RETRY_S: Final = 6.0
# A target that has just started lacks some brokers, and new topics have no leader at once.
ARRANGE_TRIES_MAX: Final = 5
ARRANGE_AGAIN_S: Final = 2.0

T = TypeVar("T")
log = logging.getLogger("mirrorflow.seed")


class SeedJob:
    """One run of a seed on *spark*."""

    def __init__(
        self,
        files: FlowFiles,
        job: JobSettings,
        spark: "SparkSession",
        status_server: JobStatusServer,
        coordinator: Coordinator,
    ) -> None:
        self._job = job
        self._settings: SourceSettings = files.load()
        require_shared_positions(self._settings)
        self._task_files = share_files(spark, files, are_mounted=job.has_mounted_files)
        self._tasks = SparkTasks(spark)
        self._status_server = status_server
        self._coordinator = coordinator
        self._url = status_server.url_for_tasks(*driver_address(spark))
        self._bytes_per_second = job.bytes_per_second or self._settings.bytes_per_second
        self._is_stopped = False
        self._progress = SeedProgress(job.run_id)
        self._phase = JobPhase.PREPARING
        self._message = ""
        self._stalled_s = 0.0  # seconds without progress when the job was stopped for it, else 0
        self._logged_reasons: frozenset[str] = frozenset()  # of errors that block tasks
        self._memory_bytes = 0
        self._left_at_start: int | None = None  # offsets, where each partition had been copied before

    async def run(self) -> int:
        """Runs the seed and returns the exit status.

        Raises SeedError, SettingError, MirrorFlowError, after reporting the job as failed.
        """
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, self._stop)
        publishing = asyncio.create_task(self._publish_periodically())
        try:
            status = await self._seed()
        except Exception as error:
            self._phase, self._message = JobPhase.FAILED, _without_names(error)
            raise
        finally:
            publishing.cancel()
            self._publish()
        return status

    def _stop(self) -> None:
        log.info("stopping: Spark cancels the tasks")
        self._is_stopped = True
        self._tasks.cancel()

    async def _seed(self) -> int:
        flow = await self._retry_transient(
            lambda: ClaimedFlow.open(self._settings, f"seed-{self._job.run_id}")
        )
        try:
            arrangement = await self._arrange(flow)
            initial = await self._retry_transient(flow.claim)
            await self._require_no_foreign_records(flow, arrangement)
            ranges = await self._plan(flow, arrangement, initial=initial)
            if was_copied_before(ranges, flow.next_offsets):
                self._left_at_start = self._progress.lag
            retention = RetentionHolder(flow)
            if self._left_at_start == 0:
                await retention.end()  # a seed that was killed after its last record may still hold it
                return self._final_status(arrangement)
            await self._retry_transient(lambda: retention.begin(arrangement.names, ranges))
            self._phase = JobPhase.RUNNING
            try:
                await self._run_waves(flow, arrangement, ranges, initial=initial)
            finally:
                if self._is_stopped:
                    await flow.fence_tasks()
                    await self._read_positions(flow)  # what tasks had not committed is not copied
                await retention.end()
        finally:
            await flow.close()
        return self._final_status(arrangement)

    async def _arrange(self, flow: ClaimedFlow) -> Arrangement:
        """Creates the target topics, and retries a few times while some are incomplete.

        Raises NothingSelectedError.
        """
        arrangement = await self._retry_transient(flow.arrange)
        if arrangement.nothing_selected is not None:
            raise NothingSelectedError(arrangement.nothing_selected)
        for _ in range(ARRANGE_TRIES_MAX):
            if not arrangement.incomplete or self._is_stopped:
                break
            await asyncio.sleep(ARRANGE_AGAIN_S)
            arrangement = await self._retry_transient(flow.arrange)
        return arrangement

    async def _run_waves(
        self, flow: ClaimedFlow, arrangement: Arrangement, ranges: tuple[SeedRange, ...], *, initial: bool
    ) -> None:
        catching_up = stalled = 0
        while not self._is_stopped:
            failed = {result.index for result in self._progress.failed}
            tasks = tasks_of(
                (seed_range for seed_range in ranges if seed_range.index not in failed),
                slots=await asyncio.to_thread(lambda: self._tasks.slots),
                is_limited=self._bytes_per_second is not None,
            )
            if tasks:
                before = self._progress.lag
                await self._retry_transient(partial(flow.store_starts, ranges))
                await self._run_wave(flow, tasks, initial=initial)
                if self._is_stopped:
                    return
                stalled = stalled + 1 if self._progress.lag >= before else 0
                if stalled >= STALLED_WAVES_MAX:
                    raise StalledError(duration=f"in {stalled} waves", reasons=self._reasons())
            waits = self._progress.has_unfinished
            ranges = await self._plan(flow, arrangement, initial=initial, frozen=waits)
            if not waits:
                catching_up += 1
                if self._progress.lag <= self._job.lag_records_max or catching_up > self._job.waves_max:
                    return

    async def _plan(
        self, flow: ClaimedFlow, arrangement: Arrangement, *, initial: bool, frozen: bool = False
    ) -> tuple[SeedRange, ...]:
        """Returns the ranges of the next wave; with *frozen*, the rest of the last one with the same end offsets."""
        progress = self._progress
        if frozen:
            return tuple(self._advanced(seed_range) for seed_range in progress.ranges)
        await self._retry_transient(flow.read_positions)
        logs = await self._retry_transient(lambda: flow.source_logs(arrangement.partitions))
        starts = await self._retry_transient(lambda: flow.start_offsets(logs, initial=initial))
        ranges = ranges_of(logs, flow.next_offsets, starts)
        if progress.ranges:
            ranges = tuple(self._advanced(seed_range) for seed_range in ranges)
        progress.begin_wave(ranges)
        return ranges

    def _advanced(self, seed_range: SeedRange) -> SeedRange:
        """Returns *seed_range*, starting at the next offset of its copy."""
        next_offset = self._progress.next_offsets.get(seed_range.index, 0)
        return replace(seed_range, start=max(seed_range.start, next_offset))

    async def _run_wave(self, flow: ClaimedFlow, tasks: Sequence[SeedTask], *, initial: bool) -> None:
        """Runs *tasks* on Spark, and reads their progress until they end."""
        wave = WaveSettings(
            files=self._task_files,
            group=flow.group,
            initial=initial,
            seconds=self._job.wave_s,
            url=self._url,
        )
        rates = rates_of_tasks(self._bytes_per_second, [task.bytes for task in tasks])
        tasks = [replace(task, bytes_per_second=rate) for task, rate in zip(tasks, rates, strict=True)]
        running = asyncio.create_task(asyncio.to_thread(self._run_tasks, tasks, wave))
        read_s = time.monotonic()
        stall_timer, idle_timer = StallTimer(read_s), IdleTimer(read_s)
        # In its own asyncio task: a request to an unreachable cluster takes up to a minute; a stop must not wait.
        reading = asyncio.create_task(self._read_positions(flow))
        while not running.done():
            await asyncio.wait({running}, timeout=REPORT_EVERY_S)
            for index, offset in list(self._coordinator.next_offsets.items()):
                self._progress.note_offset(index, offset)
            if reading.done() and time.monotonic() - read_s > POSITIONS_EVERY_S:
                reading = asyncio.create_task(self._read_positions(flow))
                read_s = time.monotonic()
            stalled_for_s = stall_timer.stalled_for_s(
                self._progress.lag, active=self._coordinator.active, now_s=time.monotonic()
            )
            self._check_progress(stalled_for_s)
            self._message = idle_timer.problem(is_idle=self._tasks.is_idle, now_s=time.monotonic())
            if self._is_stopped:  # also what has begun since the signal
                await asyncio.to_thread(self._tasks.cancel)
        self._message = ""
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        try:
            self._record_results(running.result())
        except Exception:
            # After a stop, tasks that did not end were cancelled, and Spark reports that as a failure.
            if not self._is_stopped:
                raise

    def _run_tasks(self, tasks: Sequence[SeedTask], wave: WaveSettings) -> list[TaskResult]:
        """Runs *tasks* and returns their results; blocks."""
        try:
            return self._tasks.run(partial(run_task, wave=wave), tasks)
        except Exception as error:
            raise job_error(error, "Spark has failed the job") from error

    def _record_results(self, ended: Sequence[TaskResult]) -> None:
        for task in ended:
            self._coordinator.receive(task.report)
            self._memory_bytes = max(self._memory_bytes, task.memory_bytes)
            self._progress.add_results(task.partition_results)
        log.info(
            "a wave of %d tasks has ended, %d offsets are left; the median task began to copy after %.2f s, the largest used %d MiB",
            len(ended),
            self._progress.lag,
            median(task.start_s for task in ended),
            self._memory_bytes >> 20,
        )
        for result in (result for task in ended for result in task.partition_results):
            source = self._progress.ranges[result.index].source
            if result.message:
                log.warning("%s", result.message)
            if result.gap_records:
                log.warning(
                    "%s: %d offsets were deleted on the source before they were copied",
                    source,
                    result.gap_records,
                )

    def _check_progress(self, stalled_for_s: float) -> None:
        """Logs new errors that block tasks, and stops the job after too long without progress."""
        errors_by_reason = self._coordinator.errors_by_reason
        for reason in errors_by_reason.keys() - self._logged_reasons:
            log.warning("tasks are held up: %s", errors_by_reason[reason][1])
        self._logged_reasons = frozenset(errors_by_reason)
        if stalled_for_s > self._job.stalled_s and not self._is_stopped:
            self._stalled_s = stalled_for_s
            self._stop()

    async def _read_positions(self, flow: ClaimedFlow) -> None:
        """Reads the positions that tasks have stored, and adds them to the progress."""
        with contextlib.suppress(MirrorFlowError):
            await flow.read_positions()
        for seed_range in self._progress.ranges:
            if seed_range.source in flow.next_offsets:
                self._progress.note_offset(seed_range.index, flow.next_offsets[seed_range.source])

    async def _require_no_foreign_records(self, flow: ClaimedFlow, arrangement: Arrangement) -> None:
        if not self._job.accept_foreign:
            await self._retry_transient(lambda: flow.require_no_foreign_records(arrangement))

    async def _retry_transient(self, request: Callable[[], Awaitable[T]]) -> T:
        """Returns the result of *request*, and retries it while a cluster cannot be used.

        Raises an error that is not transient at once, others after about one minute.
        """
        for tries in range(1, TRIES_MAX + 1):
            try:
                return await request()
            except MirrorFlowError as error:
                is_transient = error.retriable and not isinstance(error, NotAuthorizedError | SettingError)
                if not is_transient or tries == TRIES_MAX or self._is_stopped:
                    if isinstance(error, FlowTakenError):
                        raise FlowLostError from error
                    raise
                log.warning("%s", error)
                await asyncio.sleep(RETRY_S)
        raise AssertionError("the last try has raised")

    def _final_status(self, arrangement: Arrangement) -> int:
        for sentence in arrangement.uncopied.values():
            log.warning("%s", sentence)
        if self._stalled_s:
            raise StalledError(duration=f"for {self._stalled_s:.0f} s", reasons=self._reasons())
        if self._is_stopped:
            self._phase, self._message = JobPhase.PAUSED, "Stopped cleanly; the next start resumes."
            return EXIT_STOPPED
        if self._progress.failed or arrangement.uncopied:
            self._phase = JobPhase.FAILED
            if not self._progress.failed:
                self._message = f"{len(arrangement.uncopied)} topics have no target topic."
            # Tasks may notice before the driver that another job has taken the flow.
            is_taken = any(result.reason == FlowTakenError.reason for result in self._progress.failed)
            return EXIT_FAILED if is_taken else EXIT_DIFFERENT
        gap, cut_off = self._progress.gap_records, self._coordinator.unfinished
        sentences = []
        if self._left_at_start is not None:
            sentences.append(
                f"An earlier run or the connector had copied all but at most {self._left_at_start:,} offsets."
                if self._left_at_start
                else "Nothing was left: an earlier run or the connector had copied everything."
            )
        sentences += [f"{gap} offsets were deleted on the source before they were copied."] if gap else []
        if cut_off:
            sentences.append(
                f"{cut_off} {'task was' if cut_off == 1 else 'tasks were'} cut off; others finished their work."
            )
        self._message = " ".join(sentences)
        if gap and self._settings.on_source_loss is LossPolicy.FAIL:
            # A connector has copied the partition before, from the log start that the source had by then.
            self._phase = JobPhase.FAILED
            return EXIT_DIFFERENT
        self._phase = JobPhase.SUCCEEDED
        return EXIT_DONE

    def _reasons(self) -> tuple[str, ...]:
        """Returns the error reasons of tasks that have ended and of tasks that never returned a result."""
        ended = {result.reason for result in self._progress.partition_results.values() if result.reason}
        return tuple(sorted(ended | self._logged_reasons))

    async def _publish_periodically(self) -> None:
        while True:
            self._publish()
            await asyncio.sleep(REPORT_EVERY_S)

    def _publish(self) -> None:
        coordinator = self._coordinator
        self._status_server.publish(
            self._progress.report(
                self._phase,
                coordinator.totals,
                active=coordinator.active,
                now_s=time.monotonic(),
                blocked={reason: count for reason, (count, _) in coordinator.errors_by_reason.items()},
                message=self._message,
            )
        )


def _without_names(error: Exception) -> str:
    """Returns the reason of *error*, not its message, which may name topics and addresses: the report is public."""
    return getattr(error, "reason", "") or type(error).__name__


def run(
    files: FlowFiles, job: JobSettings, *, display: Display | None = None, spark: "SparkSession | None" = None
) -> int:
    """Runs a seed and returns its exit status; also called by the `mirrorflow` command.

    With *spark*, or an active session, the job uses that and leaves it open.
    """
    files.load()  # what is wrong with the flow is reported before Spark starts
    coordinator = Coordinator()
    status_server = JobStatusServer(SeedReport(run_id=job.run_id), display=display, handler=coordinator)
    try:
        with spark_session(job, f"mirrorflow-seed-{job.run_id}", spark) as session:
            return asyncio.run(SeedJob(files, job, session, status_server, coordinator).run())
    except BaseException as error:
        newest = status_server.newest
        if isinstance(newest, SeedReport) and newest.phase is JobPhase.PREPARING:
            is_failure = isinstance(error, Exception)  # and no signal
            status_server.publish(
                SeedReport(
                    run_id=job.run_id,
                    phase=JobPhase.FAILED if is_failure else JobPhase.PAUSED,
                    message=type(error).__name__ if is_failure else "Stopped by a signal before it began.",
                )
            )
        raise
    finally:
        status_server.close()
