"""Supervises task processes: starts them, assigns partitions, receives reports, restarts them when they die.

Guarantees: the newest report of each partition; a restart after a backoff that grows while the process keeps
dying; a stop that ends the process, by force when the grace period is over.

`WarmProcess` keeps one started process waiting, so that a task that moves here need not wait for Python to
start. One is enough: a rebalance gives a node few tasks at a time, and the next one starts beside the first
task. It costs the memory of an idle process, about 30 MB.
"""

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

from mirrorflow_core.backoff import Backoff, backoff_s
from mirrorflow_core.errors import MirrorFlowError, StartPendingError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.reports import AcknowledgedPosition, PartitionPhase, PartitionReport, TaskReport
from mirrorflow_core.settings import SourceSettings
from mirrorflow_core.stall_detection import STALLED_AFTER_S
from mirrorflow_kafka.client.cancellation import cancel_and_wait
from mirrorflow_replicator.connectors.task_messages import (
    Assign,
    Begin,
    Finish,
    Level,
    Message,
    Stop,
    TaskAssignment,
    encode,
)
from mirrorflow_replicator.copy.partition_reports import decode_report
from mirrorflow_replicator.logs import LOGGERS
from mirrorflow_replicator.process import now_ms

RESTART_MIN_S, RESTART_MAX_S = 0.5, 30.0
RESTART_GRACE_S = 10.0  # a task drains for 3 s and then stores offsets
# Short at first: a rebalance of the group, or electing its leader, takes a second.
CLAIM_RETRY_MIN_S, CLAIM_RETRY_MAX_S = 0.1, 5.0
KILLED_S = 5.0  # a killed process ends at once, unless the machine itself hangs
HEALTHY_S = 30.0  # after such a lifetime the backoff starts again at its minimum
# A report of all partitions in one line: 300 bytes each, for a hundred thousand of them.
LINE_BYTES_MAX = 32 << 20
HELLO = b"\n"  # a process has started

log = logging.getLogger("mirrorflow.worker")


Spawn = Callable[[], Awaitable[asyncio.subprocess.Process]]
Claim = Callable[[int, TaskAssignment], Awaitable[Assign]]


async def spawn() -> asyncio.subprocess.Process:
    """Starts a task process, which waits for its first message."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "mirrorflow_replicator",
        "task",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=LINE_BYTES_MAX,
    )


class TaskSupervisor:
    """Supervises one task's process, which *start* creates.

    Each assignment is sent as *claim* returns it, with the start of the task: others may have to be fenced first.
    *claim* raises MirrorFlowError while that is not possible.
    """

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
        self.state = "UNASSIGNED"
        self.trace = ""
        self.restarts = 0
        self.partitions: dict[TopicPartition, PartitionReport] = {}
        self.newest = TaskReport(task=task, state="UNASSIGNED")
        self._begin = Begin(settings=settings, task=task)
        self._on_report = on_report
        self._start = start
        self._claim = claim
        # Why its process has had no start for STALLED_AFTER_S, and since when (wall clock).
        self.start_problem: tuple[MirrorFlowError, int] | None = None
        self._claiming: asyncio.Task[None] | None = None
        self._has_work = False  # this process has had an assignment
        self._starts_given = 0  # to this process
        self._started_s = 0.0  # when the last one was given
        self._quick_ends = 0  # of consecutive starts that lasted less than HEALTHY_S
        self._assignment: TaskAssignment | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = False
        self._restarting = False  # the restart was requested, so the end is no failure
        self._restart_now = asyncio.Event()  # ends the wait before the next start
        LOGGERS.followers.add(self)
        self._running = asyncio.create_task(self._keep_running(), name=f"task-{task}")

    def assign(self, wanted: TaskAssignment) -> None:
        """Copies the partitions of *wanted* from now on, also after a restart."""
        if wanted == self._assignment:
            return
        self._assignment = wanted
        self.start_problem = None
        for gone in self.partitions.keys() - set(wanted.partitions):
            del self.partitions[gone]
        if self._has_work:
            self.finish()
        elif self._process is not None and self._claiming is None:
            self._claiming = asyncio.create_task(self._send_claimed(), name=f"claim-{self.task}")

    def finish(self) -> None:
        """Ends the process's start as the only writer; it waits for the next one."""
        if self._has_work:
            self._send(Finish())

    def restart(self) -> None:
        """Ends the process gracefully, by force after RESTART_GRACE_S; the next one starts at once."""
        process = self._process
        if process is None or process.returncode is not None:
            self._restart_now.set()  # it has ended, and waits for its next start
            return
        self._restarting = True
        self.state, self.trace = "RESTARTING", ""
        self._send(Stop())
        asyncio.get_running_loop().call_later(RESTART_GRACE_S, _kill, process)

    async def stop(self, grace_s: float) -> None:
        """Ends the process gracefully; by force after *grace_s*."""
        self._stopping = True
        process = self._process
        if process is not None and process.returncode is None:
            self._send(Stop())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    await asyncio.shield(self._running)
            if process.returncode is None:
                log.warning("task %d did not end within %g s and is killed", self.task, grace_s)
                process.kill()
                # The end of the process closes its pipes; cancelled earlier, they would be torn down with a
                # closed loop.
                await asyncio.wait({self._running}, timeout=KILLED_S)
        await cancel_and_wait(self._running)
        self._end_claiming()

    def set_level(self, logger: str, level: str) -> None:
        """Sets the level of *logger* in the task process."""
        self._send(Level(logger=logger, level=level))

    def _send(self, message: Message) -> bool:
        """Sends *message*. Returns False if no process can receive it: the next one gets it when it has started."""
        process = self._process
        if process is None or process.stdin is None or process.stdin.is_closing():
            return False
        process.stdin.write(encode(message))
        return True

    async def _keep_running(self) -> None:
        quick_ends = 0  # in a row
        while not self._stopping:
            began = time.monotonic()
            code = await self._live()
            if self._stopping:
                return
            if self._restarting:
                self._restarting = False
                self.restarts += 1
                continue
            quick_ends = 1 if time.monotonic() - began > HEALTHY_S else quick_ends + 1
            pause_s = backoff_s(quick_ends, lowest_s=RESTART_MIN_S, highest_s=RESTART_MAX_S)
            self.state, self.trace = "FAILED", f"the task's process ended with {code}; it is started again"
            self.newest = TaskReport(task=self.task, state=self.state, trace=self.trace, reason="TaskEnded")
            log.warning("task %d ended with %s; starting it again in %.1f s", self.task, code, pause_s)
            self.restarts += 1
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._restart_now.wait()
            self._restart_now.clear()

    async def _live(self) -> int:
        """Runs the process once; returns its exit code."""
        process = self._process = await self._start()
        self._starts_given = 0
        self._send(self._begin)
        for logger, level in LOGGERS.was_set.items():
            self.set_level(logger, level)
        if self._assignment is not None:
            self._claiming = asyncio.create_task(self._send_claimed(), name=f"claim-{self.task}")
        while line := await _read_line(process):
            if line != HELLO:
                self._take(decode_report(line))
        self._end_claiming()
        return await process.wait()

    def _claim_again(self, acknowledged: tuple[AcknowledgedPosition, ...]) -> None:
        """Gives the process its next start, later if the last ones were short."""
        self._has_work = False
        is_quick = time.monotonic() - self._started_s < HEALTHY_S
        self._quick_ends = self._quick_ends + 1 if is_quick else 0
        self._claiming = asyncio.create_task(self._send_claimed(acknowledged), name=f"claim-{self.task}")

    async def _send_claimed(self, acknowledged: tuple[AcknowledgedPosition, ...] = ()) -> None:
        """Sends this process the newest assignment once its partitions are claimed."""
        logged, began_s, since_ms = "", time.monotonic(), now_ms()
        if self._quick_ends > 1:
            await asyncio.sleep(
                backoff_s(self._quick_ends + 1, lowest_s=CLAIM_RETRY_MIN_S, highest_s=CLAIM_RETRY_MAX_S)
            )
        attempts = Backoff(min_s=CLAIM_RETRY_MIN_S, max_s=CLAIM_RETRY_MAX_S)
        async for _ in attempts:
            if (wanted := self._assignment) is None:
                return
            try:
                message = await self._claimed(replace(wanted, acknowledged=acknowledged), since_ms)
            except MirrorFlowError as error:
                if str(error) != logged:
                    logged = str(error)
                    log.warning("task %d does not begin yet: %s", self.task, error)
                if time.monotonic() - began_s >= STALLED_AFTER_S:
                    self.start_problem = error, since_ms
                continue
            if wanted is self._assignment:
                self._has_work = self._send(message)
                self.start_problem = None
                self._starts_given += 1
                self._started_s = time.monotonic()
                return
            attempts.reset()  # a newer assignment is claimed at once

    async def _claimed(self, wanted: TaskAssignment, since_ms: int) -> Assign:
        """Returns *wanted* with its start; notes when that takes long. Raises MirrorFlowError."""
        claiming = asyncio.ensure_future(self._claim(self.task, wanted))
        try:
            await asyncio.wait({claiming}, timeout=STALLED_AFTER_S)
            if not claiming.done():
                target = self._begin.settings.target_alias
                pending = StartPendingError(target=target, waits_s=STALLED_AFTER_S)
                self.start_problem = pending, since_ms
                log.warning("task %d: %s", self.task, pending)
            return await claiming
        finally:
            await cancel_and_wait(claiming)

    def _end_claiming(self) -> None:
        self._has_work = False
        if self._claiming is not None:
            self._claiming.cancel()
            self._claiming = None

    def partition_reports(self, target_topic: Callable[[str], str]) -> tuple[PartitionReport, ...]:
        """Returns the newest report of each partition, sorted; without a start for long, all are stalled."""
        if self.start_problem is None or self._assignment is None:
            return tuple(self.partitions[key] for key in sorted(self.partitions))
        error, since_ms = self.start_problem
        return tuple(
            replace(
                self.partitions.get(one)
                or PartitionReport(
                    topic=one.topic,
                    target_topic=target_topic(one.topic),
                    partition=one.partition,
                    phase=PartitionPhase.STARTING,
                ),
                phase=PartitionPhase.STARTING,
                reason=error.reason,
                message=str(error),
                stalled_since_ms=since_ms,
            )
            for one in sorted(self._assignment.partitions)
        )

    def _take(self, report: TaskReport) -> None:
        self.newest = report
        self.state, self.trace = report.state, report.trace
        held = set(self._assignment.partitions) if self._assignment is not None else set()
        for one in report.partitions:
            source = TopicPartition(one.topic, one.partition)
            if source in held:
                self.partitions[source] = one
        self._on_report(report)
        if self._has_work and self._starts_given and report.starts_ended >= self._starts_given:
            self._claim_again(report.acknowledged)


async def _read_line(process: asyncio.subprocess.Process) -> bytes:
    """Returns the next line of the process's stdout; b"" at its end."""
    return b"" if process.stdout is None else await process.stdout.readline()


def _kill(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()


class WarmProcess:
    """One spare task process. `close` ends it if it was not taken."""

    def __init__(self) -> None:
        self._next: asyncio.Task[asyncio.subprocess.Process] | None = None
        self._closed = False

    def prepare(self) -> None:
        """Keeps a spare process from now on."""
        if self._next is None and not self._closed:
            self._next = asyncio.create_task(_started(), name="spare-task")

    async def ready(self) -> None:
        """Waits until the spare process has started, if there is one."""
        if self._next is not None:
            await asyncio.wait({self._next})

    async def take(self) -> asyncio.subprocess.Process:
        """Returns the spare process, or a new one if it has died; starts the next spare."""
        waiting, self._next = self._next, None
        self.prepare()
        if waiting is not None:
            process = await waiting
            if process.returncode is None:
                return process
        return await spawn()

    async def close(self) -> None:
        """Ends the spare process by closing its stdin."""
        self._closed = True
        waiting, self._next = self._next, None
        if waiting is None:
            return
        process = await waiting
        if process.stdin is not None:
            process.stdin.close()
        try:
            async with asyncio.timeout(KILLED_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


async def _started() -> asyncio.subprocess.Process:
    process = await spawn()
    await _read_line(process)  # the empty line that reports it is ready, or EOF
    return process
