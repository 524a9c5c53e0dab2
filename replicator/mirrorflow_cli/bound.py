"""Start a program that ends with its parent: `python bound.py PARENT_PID PROGRAM ARGUMENT...`.

Asks Linux for a SIGKILL when the parent dies (PR_SET_PDEATHSIG, prctl(2)), kill -9 included, and becomes the program:
the setting survives execve. Elsewhere than on Linux the closed stdin alone tells the program. Runs as a script without
site packages, so that it costs a few milliseconds; it imports nothing of ours.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Never returns."""
    parent = int(arguments[0])
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # The parent may have died before the request was made; then nobody would ever send the signal.
    if os.getppid() != parent:
        sys.exit("the process that started this one is gone")
    os.execv(arguments[1], arguments[1:])  # noqa: S606  no shell is wanted


if __name__ == "__main__":
    main(sys.argv[1:])
