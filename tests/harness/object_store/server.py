"""Serves S3 on 127.0.0.1 with moto, and writes a line about each request: `server.py PORT LOG`.

It runs in an environment that has only moto, so it imports nothing of this project (`store.py` starts it).
"""

import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from wsgiref.types import StartResponse, WSGIEnvironment

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple

Application = Callable[[WSGIEnvironment, StartResponse], Any]


class RequestLog:
    """Passes each request to *application* after a line about it was written to *log*."""

    def __init__(self, application: Application, log: Path) -> None:
        self._application = application
        self._log = log
        self._lock = threading.Lock()

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        # If a checksum follows the body, Content-Length includes its frame as well.
        size = environ.get("HTTP_X_AMZ_DECODED_CONTENT_LENGTH") or environ.get("CONTENT_LENGTH") or "0"
        line = {
            "method": environ["REQUEST_METHOD"],
            "path": environ["PATH_INFO"],
            "size_bytes": int(size),
            "copied": environ.get("HTTP_X_AMZ_COPY_SOURCE", ""),
        }
        with self._lock, self._log.open("a") as stream:
            stream.write(json.dumps(line) + "\n")
        return self._application(environ, start_response)


def main(port: int, log: Path) -> None:
    """Serves until the process is killed."""
    application = DomainDispatcherApplication(create_backend_app)
    run_simple("127.0.0.1", port, RequestLog(application, log), threaded=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
