"""A task's process that has started and waits for work: what moves to this node does not wait for Python to start.

One is enough: a meeting gives a node few tasks at a time, and the next spare starts beside the first task. It costs the
memory of an idle process, some 30 MB.
"""

import asyncio

from mirrorflow_replicator.runtime.children import KILLED_S, spawn


class Spare:
    """See the module. `close` ends the one that nobody has taken."""

    def __init__(self) -> None:
        self._next: asyncio.Task[asyncio.subprocess.Process] | None = None
        self._closed = False

    def prepare(self) -> None:
        """Have one from now on."""
        if self._next is None and not self._closed:
            self._next = asyncio.create_task(_started(), name="spare-task")

    async def ready(self) -> None:
        """Wait until there is one, if one is to be had at all."""
        if self._next is not None:
            await asyncio.wait({self._next})

    async def take(self) -> asyncio.subprocess.Process:
        """The spare, or a new one where it has died; the next is on its way."""
        waiting, self._next = self._next, None
        self.prepare()
        if waiting is not None:
            process = await waiting
            if process.returncode is None:
                return process
        return await spawn()

    async def close(self) -> None:
        """End the one that waits: its input ends, and so does it."""
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
    await process.stdout.readline()  # its greeting, or its end
    return process
