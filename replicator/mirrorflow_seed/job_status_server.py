"""Publishes the progress of a Spark job (seed, verify, export, restore), as its driver reports it.

In a cluster the operator polls it by HTTP, on a laptop a display reads it, and the last report is written to a file.

`HTTP_PORT`, which only a cluster sets, opens `GET /progress` and `GET /healthz`; `TERMINATION_MESSAGE` names
the file. The same server receives the messages of tasks, on an address that executors reach (`url_for_tasks`).
"""

import json
import logging
import os
import threading
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self

from mirrorflow_seed.job_report import ArchiveReport, JobPhase, Report, encode

PORT_KEY = "HTTP_PORT"
MESSAGE_KEY = "TERMINATION_MESSAGE"
REQUEST_S = 10.0  # a silent client occupies a thread for at most this time
BODY_BYTES_MAX = 1 << 20  # of a message of a task
POST_TIMEOUT_S = 3.0

Display = Callable[[Report], None]
log = logging.getLogger("mirrorflow.seed")
# Ignores the environment's HTTP proxies: the driver is in the same network.
_DIRECT: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class TaskRequestHandler(Protocol):
    """Receives the messages of tasks, which post them to the secret `path`."""

    path: str

    def take(self, body: bytes) -> None:
        """Takes a JSON message. Raises ValueError, KeyError, TypeError or AttributeError if *body* is not valid."""


class JobStatusServer:
    """Serves the latest report over HTTP, and calls `display` with each new one."""

    def __init__(
        self, first: Report, *, display: Display | None = None, handler: TaskRequestHandler | None = None
    ) -> None:
        self._newest = first
        self._display = display
        self._handler = handler
        port = os.environ.get(PORT_KEY, "")
        # In a pod, a NetworkPolicy restricts the clients.
        self._server = self._serve("0.0.0.0", int(port)) if port else None  # noqa: S104

    @property
    def newest(self) -> Report:
        return self._newest

    def url_for_tasks(self, host: str, listen: str) -> str | None:
        """Returns where tasks post their messages, at *host*, and listens on the address *listen* if it does not yet.

        None if nothing can listen there: tasks then report nothing, and progress is read from the target alone.
        """
        if self._handler is None:
            return None
        if self._server is None:
            try:
                self._server = self._serve(listen, 0)
            except OSError as error:
                log.warning("Progress of running tasks is not shown: %s: %s", listen, error.strerror)
                return None
        return f"http://{host}:{self._server.server_address[1]}{self._handler.path}"

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

    def _serve(self, address: str, port: int) -> ThreadingHTTPServer:
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
                    handler.take(self.rfile.read(size))
                except (ValueError, KeyError, TypeError, AttributeError):
                    self._respond(None)
                else:
                    self._respond(b"{}")

            def _respond(self, body: bytes | None) -> None:
                self.send_response(200 if body is not None else 404)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body or b"")))
                self.end_headers()
                self.wfile.write(body or b"")

            def log_message(self, *_: object) -> None:
                """Logs nothing: polls arrive every few seconds."""

        server = ThreadingHTTPServer((address, port), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, name="http", daemon=True).start()
        return server


def post_message(url: str | None, message: Mapping[str, object]) -> bool:
    """Posts *message* of a task to the driver at *url*, if there is one; returns whether that succeeded. Blocks for a few seconds at most."""
    if url is None:
        return False
    request = urllib.request.Request(url, data=json.dumps(message).encode(), method="POST")  # noqa: S310 http, our driver
    try:
        with _DIRECT.open(request, timeout=POST_TIMEOUT_S) as response:
            return bool(response.status == HTTPStatus.OK)
    except (OSError, ValueError):
        return False


class JobReporter:
    """Publishes the reports of an export or a restore; a context manager that reports an exception as the end."""

    def __init__(
        self, job: str, run_id: str, display: Display | None, *, handler: TaskRequestHandler | None = None
    ) -> None:
        self._report = ArchiveReport(job=job, run_id=run_id)
        self._status_server = JobStatusServer(self._report, display=display, handler=handler)

    def url_for_tasks(self, host: str, listen: str) -> str | None:
        """As `JobStatusServer.url_for_tasks`."""
        return self._status_server.url_for_tasks(host, listen)

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
