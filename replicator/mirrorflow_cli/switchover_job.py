"""Starts a switchover in a Job of the operator: `python3 -m mirrorflow_cli.switchover_job FOLDER`.

It imports nothing before it handles SIGTERM: the kernel ignores a signal that process 1 of a container does not handle. A pod that
was deleted during the imports would begin a switchover, and be killed while writes are refused.
"""

import os
import signal
import sys

from mirrorflow_cli.errors import EXIT_SIGNAL_BASE


def main() -> int:
    """Runs the process with the arguments of the command line; returns its exit status."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(EXIT_SIGNAL_BASE + signal.SIGTERM))
    from mirrorflow_cli import switchover_process  # noqa: PLC0415 see the module's docstring

    return switchover_process.main()


if __name__ == "__main__":
    sys.exit(main())
