"""Task processes as the worker sees them: started, told what to copy, listened to, started again when they die.

A child promises its owner: the newest report of each of its partitions; a restart after a back-off that grows while it
keeps dying; and a stop that ends it, by force if the grace is over.
"""

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

from mirrorflow_replicator.flow.identity import Identity
from mirrorflow_replicator.flow.partitions import TopicPartition
from mirrorflow_replicator.flow.report import PartitionReport, TaskReport
from mirrorflow_replicator.runtime.loggers import LOGGERS
from mirrorflow_replicator.runtime.messages import Assign, Begin, Level, Stop, encode
from mirrorflow_replicator.runtime.reporting import decode_report
from mirrorflow_replicator.settings import SourceSettings

RESTART_MIN_S, RESTART_MAX_S = 0.5, 30.0
RESTART_GRACE_S = 10.0  # a task drains for 3 s and then writes positions
KILLED_S = 5.0  # what is killed is gone at once, unless the machine itself hangs
HEALTHY_S = 30.0  # a process that lived so long begins its back-off anew
# A report of all partitions in one line: 300 bytes each, for a hundred thousand of them.
LINE_BYTES_MAX = 32 << 20
HELLO = b"\n"  # a process has started

log = logging.getLogger("mirrorflow.worker")


Spawn = Callable[[], Awaitable[asyncio.subprocess.Process]]


async def spawn() -> asyncio.subprocess.Process:
    """A task's process that waits to be told who it is."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "mirrorflow_replicator",
        "task",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=LINE_BYTES_MAX,
    )


class Child:
    """One task's process; *start* makes it."""

    def __init__(
        self,
        settings: SourceSettings,
        task: int,
        *,
        copier: str,
        on_report: Callable[[TaskReport], None],
        start: Spawn = spawn,
    ) -> None:
        self.task = task
        self.state = "UNASSIGNED"
        self.trace = ""
        self.restarts = 0
        self.partitions: dict[TopicPartition, PartitionReport] = {}
        self.newest = TaskReport(task=task, state="UNASSIGNED")
        self._begin = Begin(settings=settings, task=task, copier=copier)
        self._on_report = on_report
        self._start = start
        self._assign: Assign | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = False
        self._restarting = False  # asked for, so its end is no failure
        self._again = asyncio.Event()  # not to wait any longer
        LOGGERS.followers.add(self)
        self._running = asyncio.create_task(self._keep_running(), name=f"task-{task}")

    def assign(self, message: Assign) -> None:
        """Copy these from now on, also after a restart."""
        self._assign = message
        wanted = set(message.partitions)
        for gone in [partition for partition in self.partitions if partition not in wanted]:
            del self.partitions[gone]
        self._tell(message)

    def adopt(self, identity: Identity) -> None:
        """Begin again with another identity: in a new process, so that nothing of the old one is left."""
        if self._assign is not None and self._assign.identity != identity:
            self._assign = replace(self._assign, identity=identity)
            self._tell(Stop())

    def restart(self) -> None:
        """End the process in order, by force if it does not; the next one follows at once."""
        process = self._process
        if process is None or process.returncode is not None:
            self._again.set()  # it has ended, and waits
            return
        self._restarting = True
        self.state, self.trace = "RESTARTING", ""
        self._tell(Stop())
        asyncio.get_running_loop().call_later(RESTART_GRACE_S, _kill, process)

    async def stop(self, grace_s: float) -> None:
        """End it in order; by force after *grace_s*."""
        self._stopping = True
        process = self._process
        if process is not None and process.returncode is None:
            self._tell(Stop())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    await asyncio.shield(self._running)
            if process.returncode is None:
                log.warning("task %d did not end within %g s and is killed", self.task, grace_s)
                process.kill()
                # Its pipes are closed by its end; cancelled before, they would be torn down with a closed loop.
                await asyncio.wait({self._running}, timeout=KILLED_S)
        self._running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._running

    def set_level(self, logger: str, level: str) -> None:
        """Let it log what is wanted now."""
        self._tell(Level(logger=logger, level=level))

    def _tell(self, message: Assign | Stop | Level) -> None:
        process = self._process
        if process is not None and process.stdin is not None and not process.stdin.is_closing():
            process.stdin.write(encode(message))

    async def _keep_running(self) -> None:
        pause_s = RESTART_MIN_S
        while not self._stopping:
            began = time.monotonic()
            code = await self._live()
            if self._stopping:
                return
            if self._restarting:
                self._restarting = False
                self.restarts += 1
                continue
            if time.monotonic() - began > HEALTHY_S:
                pause_s = RESTART_MIN_S
            self.state, self.trace = "FAILED", f"the task's process ended with {code}; it is started again"
            self.newest = TaskReport(task=self.task, state=self.state, trace=self.trace, reason="TaskEnded")
            log.warning("task %d ended with %s; starting it again in %g s", self.task, code, pause_s)
            self.restarts += 1
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._again.wait()
            self._again.clear()
            pause_s = min(2 * pause_s, RESTART_MAX_S)

    async def _live(self) -> int:
        """One life of the process; returns how it ended."""
        process = self._process = await self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(encode(self._begin))
        for logger, level in LOGGERS.was_set.items():
            process.stdin.write(encode(Level(logger=logger, level=level)))
        if self._assign is not None:
            # Its predecessor was our own child and is dead: nobody's silence has to be waited for.
            repeated = replace(self._assign, gone=self.restarts > 0)
            process.stdin.write(encode(repeated))
        while line := await process.stdout.readline():
            if line != HELLO:
                self._take(decode_report(line))
        return await process.wait()

    def _take(self, report: TaskReport) -> None:
        self.newest = report
        self.state, self.trace = report.state, report.trace
        held = set(self._assign.partitions) if self._assign is not None else set()
        for one in report.partitions:
            source = TopicPartition(one.topic, one.partition)
            if source in held:
                self.partitions[source] = one
        self._on_report(report)


def _kill(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
