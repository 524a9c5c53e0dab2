"""A debugger for processes whose standard input is a pipe, such as tasks.

Set PYTHONBREAKPOINT=tests.harness.debugger.listen to use it.
"""

import pdb  # noqa: T100 this is the debugger
import socket
import sys


def listen() -> None:
    """Stops at `breakpoint()`, writes a local port to stderr, and takes commands from the first client of that port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        print(f"pdb waits: nc 127.0.0.1 {server.getsockname()[1]}", file=sys.stderr, flush=True)
        connection = server.accept()[0]
    stream = connection.makefile("rw", buffering=1)
    debugger = pdb.Pdb(stdin=stream, stdout=stream)
    debugger.use_rawinput = False
    debugger.set_trace(sys._getframe(1))  # the caller's frame
