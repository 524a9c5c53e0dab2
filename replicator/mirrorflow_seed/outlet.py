"""Where a driver says how far it is: over HTTP in the cluster, to a display on a laptop, and in a file when it ends.

`HTTP_PORT` (set in the cluster alone) opens `GET /progress` and `GET /healthz`; `TERMINATION_MESSAGE` names the file. A job
whose tasks want orders has them answered by the same server; without a port it listens on this machine alone.
"""

import os
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Protocol

from mirrorflow_seed.report import Report, encode

PORT_KEY = "HTTP_PORT"
MESSAGE_KEY = "TERMINATION_MESSAGE"
REQUEST_S = 10.0  # a client that says nothing does not hold a thread for longer

BODY_BYTES_MAX = 1 << 20  # of a task's question

Display = Callable[[Report], None]


class Answering(Protocol):
    """Who answers tasks. `path` is theirs to know; `answer` raises ValueError, KeyError or TypeError for what it does not understand."""

    path: str

    def answer(self, body: bytes) -> bytes:
        """JSON for JSON."""


class Outlet:
    """Holds the newest report; `display` is called with each."""

    def __init__(
        self, first: Report, *, display: Display | None = None, orders: Answering | None = None
    ) -> None:
        self._newest = first
        self._display = display
        self._orders = orders
        self._server = self._serve(os.environ.get(PORT_KEY, ""))

    @property
    def newest(self) -> Report:
        """The last that was said."""
        return self._newest

    @property
    def port(self) -> int | None:
        """Where it serves; None if it does not."""
        return None if self._server is None else int(self._server.server_address[1])

    def say(self, report: Report) -> None:
        """From now on this is the answer."""
        self._newest = report
        if self._display is not None:
            self._display(report)

    def close(self) -> None:
        """Leave the last word behind."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
        if path := os.environ.get(MESSAGE_KEY):
            Path(path).write_bytes(encode(self._newest))

    def _serve(self, port: str) -> ThreadingHTTPServer | None:
        if not port and self._orders is None:
            return None
        outlet, orders = self, self._orders

        class Handler(BaseHTTPRequestHandler):
            timeout = REQUEST_S

            def do_GET(self) -> None:
                bodies = {"/progress": encode(outlet.newest), "/healthz": b"{}"}
                self._give(bodies.get(self.path.partition("?")[0]))

            def do_POST(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                if orders is None or self.path != orders.path or not 0 < size <= BODY_BYTES_MAX:
                    self._give(None)
                    return
                try:
                    self._give(orders.answer(self.rfile.read(size)))
                except (ValueError, KeyError, TypeError, AttributeError):
                    self._give(None)

            def _give(self, body: bytes | None) -> None:
                self.send_response(200 if body is not None else 404)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body or b"")))
                self.end_headers()
                self.wfile.write(body or b"")

            def log_message(self, *_: object) -> None:
                """A poll every few seconds is no news."""

        # In a pod a NetworkPolicy says who may come.
        server = ThreadingHTTPServer(("0.0.0.0" if port else "127.0.0.1", int(port or 0)), Handler)  # noqa: S104
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, name="http", daemon=True).start()
        return server
