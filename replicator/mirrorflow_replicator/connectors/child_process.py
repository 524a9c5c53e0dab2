"""Starts task processes: messages go to their stdin, reports come from their stdout.

The first one may be forked before the event loop starts (`fork_first`). It has the worker's imports then, which take most of
a start, and shares their memory. All others are started anew: a process with threads and connections cannot be forked safely.

`WarmProcess` keeps one started process waiting, so that a task that moves here need not wait for Python to
start. One is enough: a rebalance gives a node few tasks at a time, and the next one starts beside the first
task. It costs the memory of an idle process, about 30 MB.
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol

from mirrorflow_core.reports import TaskReport
from mirrorflow_replicator.connectors.report_lines import decode_report
from mirrorflow_replicator.connectors.task_messages import Message, encode

KILLED_S = 5.0  # a killed process ends at once, unless the machine itself hangs
STARTED_S = 15.0  # a start takes one second, and some on a busy machine; then another process may be luckier
# A report of all partitions in one line: 300 bytes each, for a hundred thousand of them.
LINE_BYTES_MAX = 32 << 20
HELLO = b"\n"  # a process has started

log = logging.getLogger("mirrorflow.worker")


class _Input(Protocol):
    """What is used of a stream or transport to the process's stdin."""

    def write(self, data: bytes) -> None: ...

    def is_closing(self) -> bool: ...

    def close(self) -> None: ...


class _Process(Protocol):
    """What is used of `asyncio.subprocess.Process`."""

    @property
    def pid(self) -> int: ...

    @property
    def returncode(self) -> int | None: ...

    @property
    def stdin(self) -> _Input | None: ...

    @property
    def stdout(self) -> asyncio.StreamReader | None: ...

    async def wait(self) -> int: ...

    def kill(self) -> None: ...


class _ForkedProcess:
    """A process that this one has forked, like `asyncio.subprocess.Process` once it is attached to the running loop."""

    def __init__(self, pid: int, stdin: int, stdout: int) -> None:
        self.returncode: int | None = None
        self.stdin: asyncio.WriteTransport | None = None
        self.stdout: asyncio.StreamReader | None = None
        self.pid = pid
        self._pipes = stdin, stdout
        self._pidfd = os.pidfd_open(pid)  # readable once the process has ended
        self._ended = asyncio.Event()

    async def attach(self) -> None:
        """Opens its pipes in the running loop and waits for its end there."""
        loop = asyncio.get_running_loop()
        stdin, stdout = self._pipes
        reader = asyncio.StreamReader(limit=LINE_BYTES_MAX)
        loop.add_reader(self._pidfd, self._note_end)
        await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(stdout, "rb", buffering=0)
        )
        self.stdin, _ = await loop.connect_write_pipe(
            asyncio.BaseProtocol, os.fdopen(stdin, "wb", buffering=0)
        )
        self.stdout = reader

    def _note_end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self._ended.set()

    async def wait(self) -> int:
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    def kill(self) -> None:
        if self.returncode is None:
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)


class ChildProcess:
    """One task process."""

    def __init__(self, process: _Process) -> None:
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

    async def kill_and_wait(self) -> None:
        """Kills the process, and waits for its end for at most KILLED_S."""
        self.kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(KILLED_S):
                await self.wait()

    async def _read_line(self) -> bytes:
        """Returns the next whole line; empty at the end, also if the process was killed while it wrote a line."""
        stdout, is_too_long = self._process.stdout, False
        while stdout is not None:
            try:
                line = await stdout.readuntil()
            except asyncio.IncompleteReadError:
                break
            except asyncio.LimitOverrunError as error:
                await stdout.readexactly(error.consumed)
                is_too_long = True
                continue
            if not is_too_long:
                return line
            is_too_long = False
            log.warning(
                "A task's process (pid %d) has sent a report of more than %d MiB, which is dropped. Give the connector more "
                "tasks (tasks.max).",
                self.pid,
                LINE_BYTES_MAX >> 20,
            )
        return b""


Spawn = Callable[[], Awaitable[ChildProcess]]


_forked: list[_ForkedProcess] = []  # the process that `spawn` returns first, if one was forked


def fork_first() -> bool:
    """Forks the process that `spawn` returns first; returns whether this is that process, which is to run as a task.

    Call it after the imports and before there is an event loop. Only on Linux, and not beside threads, which a user's own class
    may have started: then `spawn` starts all processes.
    """
    if sys.platform != "linux" or threading.active_count() > 1 or not _has_pidfds():
        return False
    child_stdin, stdin = os.pipe()
    stdout, child_stdout = os.pipe()
    pid = os.fork()
    if pid:
        os.close(child_stdin)
        os.close(child_stdout)
        _forked.append(_ForkedProcess(pid, stdin, stdout))
        return False
    os.setpgid(0, 0)  # Ctrl-C is for the worker, which stops its tasks
    os.dup2(child_stdin, 0)
    os.dup2(child_stdout, 1)
    for descriptor in (child_stdin, stdin, stdout, child_stdout):
        os.close(descriptor)
    return True


def _has_pidfds() -> bool:
    """Returns whether the kernel has descriptors of processes (Linux 5.3; a sandbox may refuse them)."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True


async def spawn() -> ChildProcess:
    """Starts a task process, or takes the forked one; it waits for its first message. Raises OSError."""
    if _forked:
        forked = _forked.pop()
        await forked.attach()
        return ChildProcess(forked)
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
        self._next: asyncio.Task[ChildProcess | None] | None = None
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
        """Returns the spare process, or a new one if there is none; starts the next spare. Raises OSError."""
        waiting, self._next = self._next, None
        self.prepare()
        if waiting is not None:
            child = await waiting
            if child is not None and not child.has_ended:
                return child
        return await spawn()

    async def close(self) -> None:
        """Ends the spare process."""
        self._closed = True
        waiting, self._next = self._next, None
        if waiting is not None and (child := await waiting) is not None:
            await child.close()


async def _started() -> ChildProcess | None:
    """Returns a process that has started, or one that did not within STARTED_S and was killed; None: the system refuses it."""
    try:
        child = await spawn()
    except OSError as error:
        log.warning("A spare process for a task cannot be started: %s", error)
        return None
    try:
        async with asyncio.timeout(STARTED_S):
            await child.started()
    except TimeoutError:
        log.warning(
            "A task's process (pid %d) has not started within %g s and is killed.", child.pid, STARTED_S
        )
        await child.kill_and_wait()
    return child
