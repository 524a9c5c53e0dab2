"""Publishes the progress of a Spark job (seed, verify, export, restore), as its driver reports it.

In a cluster the operator polls it by HTTP, on a laptop a display reads it, and the last report is written to a file.

`HTTP_PORT`, which only a cluster sets, opens `GET /progress` and `GET /healthz`; `TERMINATION_MESSAGE` names
the file. The same server answers the messages of tasks; without `HTTP_PORT` it then listens on 127.0.0.1
only.
"""

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from mirrorflow_seed.job_report import ArchiveReport, JobPhase, Report, encode

PORT_KEY = "HTTP_PORT"
MESSAGE_KEY = "TERMINATION_MESSAGE"
REQUEST_S = 10.0  # a silent client occupies a thread for at most this time
BODY_BYTES_MAX = 1 << 20  # of a message of a task

Display = Callable[[Report], None]


class TaskRequestHandler(Protocol):
    """Answers the messages of tasks, which post them to the secret `path`."""

    path: str

    def answer(self, body: bytes) -> bytes:
        """Returns a JSON answer to a JSON message.

        Raises ValueError, KeyError, TypeError or AttributeError if *body* is not valid.
        """


class JobStatusServer:
    """Serves the latest report over HTTP, and calls `display` with each new one."""

    def __init__(
        self, first: Report, *, display: Display | None = None, handler: TaskRequestHandler | None = None
    ) -> None:
        self._newest = first
        self._display = display
        self._handler = handler
        self._server = self._serve(os.environ.get(PORT_KEY, ""))

    @property
    def newest(self) -> Report:
        return self._newest

    @property
    def port(self) -> int | None:
        """The port of the HTTP server; None without one."""
        return None if self._server is None else int(self._server.server_address[1])

    def publish(self, report: Report) -> None:
        self._newest = report
        if self._display is not None:
            self._display(report)

    def close(self) -> None:
        """Stops the server and writes the last report to the termination message."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
        if path := os.environ.get(MESSAGE_KEY):
            Path(path).write_bytes(encode(self._newest))

    def _serve(self, port: str) -> ThreadingHTTPServer | None:
        if not port and self._handler is None:
            return None
        status_server, handler = self, self._handler

        class Handler(BaseHTTPRequestHandler):
            timeout = REQUEST_S

            def do_GET(self) -> None:
                bodies = {"/progress": encode(status_server.newest), "/healthz": b"{}"}
                self._respond(bodies.get(self.path.partition("?")[0]))

            def do_POST(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                if handler is None or self.path != handler.path or not 0 < size <= BODY_BYTES_MAX:
                    self._respond(None)
                    return
                try:
                    self._respond(handler.answer(self.rfile.read(size)))
                except (ValueError, KeyError, TypeError, AttributeError):
                    self._respond(None)

            def _respond(self, body: bytes | None) -> None:
                self.send_response(200 if body is not None else 404)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body or b"")))
                self.end_headers()
                self.wfile.write(body or b"")

            def log_message(self, *_: object) -> None:
                """Logs nothing: polls arrive every few seconds."""

        # In a pod, a NetworkPolicy restricts the clients.
        server = ThreadingHTTPServer(("0.0.0.0" if port else "127.0.0.1", int(port or 0)), Handler)  # noqa: S104
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, name="http", daemon=True).start()
        return server


class JobReporter:
    """Publishes the reports of an export or a restore; a context manager that reports an exception as the end."""

    def __init__(
        self, job: str, run_id: str, display: Display | None, *, handler: TaskRequestHandler | None = None
    ) -> None:
        self._report = ArchiveReport(job=job, run_id=run_id)
        self._status_server = JobStatusServer(self._report, display=display, handler=handler)

    @property
    def port(self) -> int | None:
        """The port to which tasks send their messages; None without an HTTP server."""
        return self._status_server.port

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            phase = JobPhase.FAILED if isinstance(error, Exception) else JobPhase.PAUSED
            self._publish(phase=phase, message=str(error))
        self._status_server.close()

    def running(self, *, total: int | None = None, **changes: Any) -> None:
        """Reports that the job is running, with the fields that changed."""
        if total is not None:
            changes["partitions"] = total
        self._publish(phase=JobPhase.RUNNING, **changes)

    def succeeded(self, *, message: str, **changes: Any) -> None:
        self._publish(phase=JobPhase.SUCCEEDED, done=self._report.partitions, message=message, **changes)

    def failed(self, message: str) -> None:
        self._publish(phase=JobPhase.FAILED, message=message)

    def stopped(self, message: str) -> None:
        """Reports that a signal ended the job gracefully."""
        self._publish(phase=JobPhase.PAUSED, message=message)

    def _publish(self, **changes: Any) -> None:
        self._report = replace(self._report, **changes)
        self._status_server.publish(self._report)
