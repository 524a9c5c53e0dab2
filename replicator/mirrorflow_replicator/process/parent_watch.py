"""Ends a process when its parent ends, even if either is killed with SIGKILL."""

import asyncio
import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Makes the kernel kill this process when its parent dies. Linux only; elsewhere use `stdin_ended`.

    SIGKILL, because a stopped process does not handle any other signal. Exactly-once does not depend on a
    graceful stop.
    """
    if sys.platform != "linux":
        return
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before prctl
        os.kill(os.getpid(), signal.SIGKILL)


async def stdin_ended() -> None:
    """Waits until the writing end of our stdin is closed."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while await reader.read(4096):
        pass
