"""No process outlives the one that started it, not even by kill -9 (of either)."""

import asyncio
import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Be killed by the kernel when the parent dies; Linux only, elsewhere the end of stdin must do (`stdin_ended`).

    SIGKILL, because a stopped process would sleep through anything else. Exactly-once does not need our good-bye.
    """
    if sys.platform != "linux":
        return
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before we asked
        os.kill(os.getpid(), signal.SIGKILL)


async def stdin_ended() -> None:
    """Wait until the writing end of our stdin is closed, whoever held it."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while await reader.read(4096):
        pass
