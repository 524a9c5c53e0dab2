"""Supervises task processes: starts them, assigns partitions, keeps their reports, restarts them when they die.

    spawn ──> settings, levels ──> starts (`SessionStarter`) and reports (`TaskReports`) ──> end ──┐
      ^─────────────────────────────── backoff ─────────────────────────────────────────────────┘

Guarantees: the newest report of each partition; a restart after a backoff that grows while the process keeps
dying; a stop that ends the process, by force when the grace period is over.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from mirrorflow_core.backoff import backoff_s
from mirrorflow_core.errors import MirrorFlowError, TaskEndedError, TaskNotStartedError, TaskSilentError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.reports import PartitionPhase, PartitionReport, TaskReport
from mirrorflow_core.settings import SourceSettings
from mirrorflow_core.stall_detection import STALLED_AFTER_S
from mirrorflow_kafka.client.cancellation import cancel_and_wait
from mirrorflow_replicator.connectors.child_process import KILLED_S, ChildProcess, Spawn, spawn
from mirrorflow_replicator.connectors.session_starter import Claim, SessionDelay, SessionStarter
from mirrorflow_replicator.connectors.task_messages import (
    Begin,
    SetLogLevel,
    Stop,
    TaskAssignment,
    WriteReplays,
)
from mirrorflow_replicator.logs import LOGGERS

RESTART_MIN_S, RESTART_MAX_S = 0.5, 30.0
RESTART_GRACE_S = 10.0  # a task drains for 3 s and then stores offsets
HEALTHY_S = 30.0  # after such a lifetime the backoff starts again at its minimum
CHECK_S = 1.0  # a small part of STALLED_AFTER_S

log = logging.getLogger("mirrorflow.worker")


class TaskReports:
    """The newest report of a task, and of each partition that is assigned to it."""

    def __init__(self, task: int) -> None:
        self.newest = TaskReport(task=task, state="UNASSIGNED")
        self.partitions: dict[TopicPartition, PartitionReport] = {}
        self._assigned: frozenset[TopicPartition] = frozenset()

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Keeps the reports of *partitions* only, from now on."""
        self._assigned = frozenset(partitions)
        for gone in self.partitions.keys() - self._assigned:
            del self.partitions[gone]

    def take(self, report: TaskReport) -> None:
        """Keeps *report*, which has the partitions that have changed."""
        self.newest = report
        for partition in report.partitions:
            source = TopicPartition(partition.topic, partition.partition)
            if source in self._assigned:
                self.partitions[source] = partition

    @property
    def lacks_partitions(self) -> bool:
        """Whether partitions are assigned and none of them was ever reported, nor why."""
        return self.newest.state != "FAILED" and not self.partitions and bool(self._assigned)

    def note_restart(self) -> None:
        """Notes that the process is restarted on request."""
        self.newest = replace(self.newest, state="RESTARTING", trace=None)

    def note_failure(self, error: MirrorFlowError) -> None:
        """Notes why there is no process until the next one is started."""
        self.newest = TaskReport(task=self.newest.task, state="FAILED", trace=str(error), reason=error.reason)

    def whole(self, target_topic: Callable[[str], str], problem: SessionDelay | None) -> TaskReport:
        """Returns the newest report with all partitions, sorted; with a *problem* all are stalled."""
        if problem is None:
            partitions = tuple(self.partitions[key] for key in sorted(self.partitions))
            return replace(self.newest, partitions=partitions)
        stalled = tuple(
            replace(
                self.partitions.get(partition)
                or PartitionReport(
                    topic=partition.topic,
                    target_topic=target_topic(partition.topic),
                    partition=partition.partition,
                    phase=PartitionPhase.STARTING,
                ),
                phase=PartitionPhase.STARTING,
                reason=problem.error.reason,
                message=str(problem.error),
                stalled_since_ms=problem.since_ms,
            )
            for partition in sorted(self._assigned)
        )
        return replace(self.newest, partitions=stalled)


class TaskSupervisor:
    """Supervises one task's process, which *start* creates. *claim* is as in `SessionStarter`."""

    def __init__(
        self,
        settings: SourceSettings,
        task: int,
        *,
        on_report: Callable[[TaskReport], None],
        claim: Claim,
        start: Spawn = spawn,
    ) -> None:
        self.task = task
        self.reports = TaskReports(task)
        self._starter = SessionStarter(task, target_alias=settings.target_alias, claim=claim)
        self._begin = Begin(settings=settings, task=task)
        self._on_report = on_report
        self._spawn = start
        self._child: ChildProcess | None = None
        self._stopping = False
        self._restarting = False  # the restart was requested, so the end is no failure
        self._restart_now = asyncio.Event()  # ends the wait before the next start
        self._silent_s = 0.0  # since the process was to start, or has last reported
        self._silence: SessionDelay | None = None
        LOGGERS.followers.add(self)
        self._running = asyncio.create_task(self._keep_running(), name=f"task-{task}")

    def assign(self, wanted: TaskAssignment) -> None:
        """Copies the partitions of *wanted* from now on, also after a restart."""
        self.reports.assign(wanted.partitions)
        self._starter.assign(wanted)

    def finish(self) -> None:
        """Ends the process's start as the only writer; it waits for the next one."""
        self._starter.finish()

    def report(self, target_topic: Callable[[str], str]) -> TaskReport:
        """Returns the newest report with all partitions; without a start or a report for long, all are stalled."""
        if self._silence is None:
            return self.reports.whole(target_topic, self._starter.problem)
        error = self._silence.error
        whole = self.reports.whole(target_topic, self._silence)
        return replace(whole, state="FAILED", trace=str(error), reason=error.reason)

    def set_level(self, logger: str, level: str) -> None:
        """Sets the level of *logger* in the task process; a later process gets it when it starts."""
        if self._child is not None:
            self._child.send(SetLogLevel(logger=logger, level=level))

    def write_replays(self) -> None:
        """Has the task write what its partitions did lately into files."""
        if self._child is not None:
            self._child.send(WriteReplays())

    def restart(self) -> None:
        """Ends the process gracefully, by force after RESTART_GRACE_S; the next one starts at once."""
        child = self._child
        if child is None or child.has_ended:
            self._restart_now.set()
            return
        self._restarting = True
        self.reports.note_restart()
        child.send(Stop())
        asyncio.get_running_loop().call_later(RESTART_GRACE_S, child.kill)

    async def stop(self, grace_s: float) -> None:
        """Ends the process gracefully; by force after *grace_s*."""
        self._stopping = True
        child = self._child
        if child is not None and not child.has_ended:
            child.send(Stop())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    await asyncio.shield(self._running)
            if not child.has_ended:
                log.warning("task %d did not end within %g s and is killed", self.task, grace_s)
                child.kill()
                # The end of the process closes its pipes; cancelled earlier, they would be torn down with a
                # closed loop.
                await asyncio.wait({self._running}, timeout=KILLED_S)
        await cancel_and_wait(self._running)
        self._starter.child_ended()

    async def _keep_running(self) -> None:
        quick_ends = 0  # in a row
        while not self._stopping:
            began = time.monotonic()
            error = await self._run_process()
            if self._stopping:
                return
            if self._restarting:
                self._restarting = False
                continue
            quick_ends = 1 if time.monotonic() - began > HEALTHY_S else quick_ends + 1
            pause_s = backoff_s(quick_ends, lowest_s=RESTART_MIN_S, highest_s=RESTART_MAX_S)
            self.reports.note_failure(error)
            log.warning("task %d starts again in %.1f s: %s", self.task, pause_s, error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._restart_now.wait()
            self._restart_now.clear()

    async def _run_process(self) -> MirrorFlowError:
        """Runs one process to its end; returns why it has ended."""
        watching = asyncio.create_task(self._watch_silence(), name=f"silence-{self.task}")
        try:
            code = await self._run_watched_process()
            return TaskEndedError(why=f"the task's process ended with {code}")
        except TaskNotStartedError as error:
            return error
        except Exception as error:
            # A bug in this code: the task begins again in a new process, instead of continuing without supervision.
            log.exception("The supervision of task %d failed", self.task)
            return TaskEndedError(
                why=f"the worker has killed the task's process because of a bug ({error!r})"
            )
        finally:
            watching.cancel()
            self._end_silence()

    async def _watch_silence(self) -> None:
        """Notes that the process neither reports nor ends. While this process is itself held up, no time is counted."""
        while True:
            await asyncio.sleep(CHECK_S)
            self._silent_s += CHECK_S
            if self._silent_s >= STALLED_AFTER_S and self._silence is None:
                child = self._child
                pid = None if child is None or child.has_ended else child.pid
                error = TaskSilentError(task=self.task, pid=pid, silent_s=STALLED_AFTER_S)
                self._silence = SessionDelay(error, round(1000 * (time.monotonic() - self._silent_s)))
                log.warning("%s", error)

    def _end_silence(self) -> None:
        self._silent_s, self._silence = 0.0, None

    async def _run_watched_process(self) -> int:
        """Runs one process to its end, and returns its exit code; kills it before this raises. Raises TaskNotStartedError."""
        try:
            child = self._child = await self._spawn()
        except OSError as error:
            raise TaskNotStartedError(task=self.task, problem=error.strerror or str(error)) from error
        try:
            return await self._follow_process(child)
        except Exception:
            await child.kill_and_wait()
            raise
        finally:
            self._starter.child_ended()

    async def _follow_process(self, child: ChildProcess) -> int:
        child.send(self._begin)
        for logger, level in LOGGERS.was_set.items():
            self.set_level(logger, level)
        self._starter.child_started(child)
        async for report in child.reports():
            self.reports.take(report)
            if not (self._starter.has_session and self.reports.lacks_partitions):
                self._end_silence()
            self._on_report(report)
            self._starter.child_reported(report)
        self._starter.child_ended()  # its session ends with its reports, also while it has yet to exit
        return await child.wait()
