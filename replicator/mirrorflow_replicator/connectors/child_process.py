"""Starts task processes: messages go to their stdin, reports come from their stdout.

`WarmProcess` keeps one started process waiting, so that a task that moves here need not wait for Python to
start. One is enough: a rebalance gives a node few tasks at a time, and the next one starts beside the first
task. It costs the memory of an idle process, about 30 MB.
"""

import asyncio
import contextlib
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable

from mirrorflow_core.reports import TaskReport
from mirrorflow_replicator.connectors.task_messages import Message, encode
from mirrorflow_replicator.copy.partition_reports import decode_report

KILLED_S = 5.0  # a killed process ends at once, unless the machine itself hangs
STARTED_S = 15.0  # a start takes one second, and some on a busy machine; then another process may be luckier
# A report of all partitions in one line: 300 bytes each, for a hundred thousand of them.
LINE_BYTES_MAX = 32 << 20
HELLO = b"\n"  # a process has started

log = logging.getLogger("mirrorflow.worker")


class ChildProcess:
    """One task process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._process.returncode is not None

    def send(self, message: Message) -> bool:
        """Sends *message*; returns False if the process can receive none."""
        stdin = self._process.stdin
        if stdin is None or stdin.is_closing():
            return False
        stdin.write(encode(message))
        return True

    async def started(self) -> None:
        """Waits until the process has started or ended; call it before `reports`."""
        await self._read_line()

    async def reports(self) -> AsyncIterator[TaskReport]:
        """Yields the reports of the process until it closes its stdout."""
        while line := await self._read_line():
            if line != HELLO:
                yield decode_report(line)

    async def wait(self) -> int:
        """Returns the exit code, once the process has ended."""
        return await self._process.wait()

    def kill(self) -> None:
        """Kills the process, unless it has ended."""
        if not self.has_ended:
            self._process.kill()

    async def close(self) -> None:
        """Ends a process that has no work by closing its stdin; by force after KILLED_S."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            async with asyncio.timeout(KILLED_S):
                await self.wait()
        except TimeoutError:
            self.kill()
            await self.wait()

    async def _read_line(self) -> bytes:
        return b"" if self._process.stdout is None else await self._process.stdout.readline()


Spawn = Callable[[], Awaitable[ChildProcess]]


async def spawn() -> ChildProcess:
    """Starts a task process, which waits for its first message."""
    return ChildProcess(
        await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "mirrorflow_replicator",
            "task",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=LINE_BYTES_MAX,
            process_group=0,  # Ctrl-C is for the worker, which stops its tasks
        )
    )


class WarmProcess:
    """One spare task process. `close` ends it if it was not taken."""

    def __init__(self) -> None:
        self._next: asyncio.Task[ChildProcess] | None = None
        self._closed = False

    def prepare(self) -> None:
        """Keeps a spare process from now on."""
        if self._next is None and not self._closed:
            self._next = asyncio.create_task(_started(), name="spare-task")

    async def ready(self) -> None:
        """Waits until the spare process has started, if there is one."""
        if self._next is not None:
            await asyncio.wait({self._next})

    async def take(self) -> ChildProcess:
        """Returns the spare process, or a new one if it has died; starts the next spare."""
        waiting, self._next = self._next, None
        self.prepare()
        if waiting is not None:
            child = await waiting
            if not child.has_ended:
                return child
        return await spawn()

    async def close(self) -> None:
        """Ends the spare process."""
        self._closed = True
        waiting, self._next = self._next, None
        if waiting is not None:
            await (await waiting).close()


async def _started() -> ChildProcess:
    """Returns a process that has started, or one that did not within STARTED_S and was killed."""
    child = await spawn()
    try:
        async with asyncio.timeout(STARTED_S):
            await child.started()
    except TimeoutError:
        log.warning(
            "A task's process (pid %d) has not started within %g s and is killed.", child.pid, STARTED_S
        )
        child.kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(KILLED_S):
                await child.wait()
    return child
