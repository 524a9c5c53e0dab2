"""Starts a replicator before its flow is known: it imports its modules while the command reads and validates the flow.

On Linux the command forks it, after the imports that both need and before it has a thread, a connection or a file of the run.
Elsewhere the replicator is a new process.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import IO, Protocol, Self

from mirrorflow_cli import exit_with_parent
from mirrorflow_replicator.process import die_with_parent, importing
from mirrorflow_replicator.worker import prepared_start

REPLICATOR = (sys.executable, "-m", "mirrorflow_replicator")
ENVIRONMENT = {"MIRRORFLOW_EXIT_WITH_STDIN": "1"}


class ChildOfCommand(Protocol):
    """What the command uses of `subprocess.Popen`."""

    pid: int

    @property
    def stdin(self) -> IO[bytes] | None: ...

    def poll(self) -> int | None: ...

    def wait(self) -> int: ...

    def send_signal(self, sig: int) -> None: ...


def start_replicator(
    program: Sequence[str], environment: Mapping[str, str], *, stdin: int, output: int
) -> ChildOfCommand:
    """Starts *program*, which ends with this process, in a process group of its own; *environment* has more variables."""
    return subprocess.Popen(  # noqa: S603  our own program
        [sys.executable, "-I", "-S", exit_with_parent.__file__, str(os.getpid()), *program],
        stdin=stdin,
        stdout=output,
        stderr=output,
        env={**os.environ, **environment, **ENVIRONMENT},
        process_group=0,
    )


class _ForkedReplicator:
    """A replicator that this process has forked, like `subprocess.Popen`. Its stdin is *connection*."""

    stdin: IO[bytes] | None = None

    def __init__(self, environment: Mapping[str, str], connection: socket.socket) -> None:
        self._status: int | None = None
        with importing():  # what both need
            from mirrorflow_core import stall_detection  # noqa: F401, PLC0415
            from mirrorflow_kafka.security import client_security  # noqa: F401, PLC0415
            from mirrorflow_replicator.config import worker_properties  # noqa: F401, PLC0415
            from mirrorflow_replicator.http import rest_plugins  # noqa: F401, PLC0415
        sys.stdout.flush()
        self.pid = os.fork()
        if not self.pid:
            _run_forked(environment, connection)

    def poll(self) -> int | None:
        """Returns the exit status if the process has ended, negative for a signal."""
        return self._wait(os.WNOHANG)

    def wait(self) -> int:
        """Waits for the end of the process; returns its exit status."""
        status = self._wait(0)
        assert status is not None
        return status

    def _wait(self, options: int) -> int | None:
        if self._status is None:
            ended, status = os.waitpid(self.pid, options)
            self._status = os.waitstatus_to_exitcode(status) if ended else None
        return self._status

    def send_signal(self, sig: int) -> None:
        """Sends *sig*, unless `poll` has seen the end."""
        if self.poll() is None:
            os.kill(self.pid, sig)


def _run_forked(environment: Mapping[str, str], connection: socket.socket) -> None:
    """Runs a replicator in this process, which was forked, and ends it."""
    status = 1
    try:
        die_with_parent()
        os.setpgid(0, 0)  # Ctrl-C is for the command, which stops the replicator
        os.environ.update({**environment, **ENVIRONMENT})
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream, descriptor in enumerate((connection.fileno(), nowhere, nowhere)):
            os.dup2(descriptor, stream)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        from mirrorflow_replicator.__main__ import main  # noqa: PLC0415

        status = main([prepared_start.MODE], is_own_process=True)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001 as the interpreter does; nothing may return into the command
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(status)


class PreparedReplicator:
    """A replicator that waits for its arguments. As a context manager, it ends the process on exit if it was not taken."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._connection, theirs = socket.socketpair()
        self._is_taken = False
        self._process: ChildOfCommand
        with theirs:
            if sys.platform == "linux" and threading.active_count() == 1:
                self._process = _ForkedReplicator(environment, theirs)
            else:
                program = (*REPLICATOR, prepared_start.MODE)
                self._process = start_replicator(
                    program, environment, stdin=theirs.fileno(), output=subprocess.DEVNULL
                )

    def take(
        self, arguments: Sequence[str], environment: Mapping[str, str], *, output: int
    ) -> ChildOfCommand | None:
        """Returns the process, which continues with *arguments* and logs to *output*; None if it was taken, or has ended."""
        if self._is_taken:
            return None
        with contextlib.suppress(OSError):
            prepared_start.hand_over(self._connection, arguments, environment, output=output)
            self._is_taken = True
            return self._process
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()
        if not self._is_taken:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
