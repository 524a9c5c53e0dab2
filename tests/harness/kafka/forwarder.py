"""Forwards one address of this machine to a port, as a name that is led to a cluster does; it can be cut.

The program of `proxy` forwards ports of 127.0.0.1. Here the address counts: clients find it by a name, which is led to another one.
"""

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self

CHUNK_BYTES = 64 * 1024


class Forwarder:
    """Accepts connections on *address* and *port*, and forwards each to *target_port* of 127.0.0.1, until it is cut."""

    def __init__(self, address: str, port: int, target_port: int) -> None:
        self._target_port = target_port
        self._lock = threading.Lock()
        self._is_cut = False
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server((address, port))
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cut()

    def cut(self) -> None:
        """Closes every connection, and refuses new ones."""
        with self._lock:
            self._is_cut = True
            sockets = [self._listener, *self._open]
        for each in sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._target_port))
            except OSError:
                client.close()
                continue
            with self._lock:
                if self._is_cut:
                    client.close()
                    server.close()
                    return
                self._open |= {client, server}
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._copy, args=(source, sink), daemon=True).start()

    def _copy(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK_BYTES):
                sink.sendall(data)
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
