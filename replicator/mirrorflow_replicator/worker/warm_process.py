"""Keeps one started task process waiting, so that a task that moves here need not wait for Python to start.

One is enough: a rebalance gives a node few tasks at a time, and the next one starts beside the first task. It
costs the memory of an idle process, about 30 MB.
"""

import asyncio

from mirrorflow_replicator.connectors.task_supervisor import KILLED_S, spawn


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
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(KILLED_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


async def _started() -> asyncio.subprocess.Process:
    process = await spawn()
    assert process.stdout is not None
    await process.stdout.readline()  # the empty line that reports it is ready, or EOF
    return process
