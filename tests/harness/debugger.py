"""A debugger for processes whose standard input is a pipe, as that of a task: PYTHONBREAKPOINT=tests.harness.debugger.listen."""

import pdb  # noqa: T100 this is the debugger
import socket
import sys


def listen() -> None:
    """Stops at `breakpoint()`, and is controlled by the first client of a port of this machine, which it writes to stderr."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        print(f"pdb waits: nc 127.0.0.1 {server.getsockname()[1]}", file=sys.stderr, flush=True)
        connection = server.accept()[0]
    stream = connection.makefile("rw", buffering=1)
    debugger = pdb.Pdb(stdin=stream, stdout=stream)
    debugger.use_rawinput = False
    debugger.set_trace(sys._getframe(1))  # of the caller
