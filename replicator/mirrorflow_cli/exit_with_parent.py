"""Starts a program that ends with its parent: `python exit_with_parent.py PARENT_PID PROGRAM ARGUMENT...`.

Requests from Linux a SIGKILL when the parent dies (PR_SET_PDEATHSIG, prctl(2)), also after kill -9, and then
execs the program: the setting survives execve. On other systems the program detects the end of its parent
only by its closed stdin. Runs as a script without site packages, so that it costs a few milliseconds; it
imports nothing of this project.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Execs the program; never returns."""
    parent = int(arguments[0])
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # The parent may have died before the prctl call; then the kernel would never send the signal.
    if os.getppid() != parent:
        sys.exit("the process that started this one is gone")
    os.execv(arguments[1], arguments[1:])  # noqa: S606  no shell is wanted


if __name__ == "__main__":
    main(sys.argv[1:])
