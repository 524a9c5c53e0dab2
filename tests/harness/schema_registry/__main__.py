"""Serves a registry on loopback until it is killed: `python -m tests.harness.schema_registry --port 0 ...`.

It prints its port in one line. With `--follower` it only reads its topic, like a registry with
`leader.eligibility=false`.
"""

import argparse
import base64
import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.harness.schema_registry.registry_model import RegistryModel
from tests.harness.schema_registry.schemas_topic import SchemasTopic

JSON = "application/vnd.schemaregistry.v1+json"


class Registry:
    """A model, and the topic that makes it durable. If the topic is None, the model is only in memory."""

    def __init__(
        self, topic: SchemasTopic | None, *, is_follower: bool = False, authorization: str = ""
    ) -> None:
        self.authorization = authorization
        self._model = RegistryModel()
        self._topic = topic
        self._is_follower = is_follower
        self._lock = threading.Lock()
        if topic is not None:
            for key, value in topic.read_to_end():
                self._model.apply(key, value)
        if is_follower:
            threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        assert self._topic is not None
        while True:
            for key, value in self._topic.read():
                with self._lock:
                    self._model.apply(key, value)

    def respond(self, method: str, path: str, body: dict[str, Any] | None) -> tuple[int, Any]:
        is_read = method == "GET" or (method == "POST" and not path.endswith("/versions"))
        if self._is_follower and not is_read:
            return 500, {"error_code": 50004, "message": "Master not known."}
        with self._lock:
            status, response = self._model.respond(method, path, body)
            if self._model.log:
                # Like a real registry, the write is acknowledged before the response.
                if self._topic is not None:
                    self._topic.append(self._model.log)
                self._model.log.clear()
        return status, response


class Handler(BaseHTTPRequestHandler):
    """Serves `registry`, which `serve` sets."""

    registry: Registry
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 the name in the base class
        """Prints nothing."""

    def _serve(self) -> None:
        text = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        wanted = self.registry.authorization
        if wanted and self.headers.get("Authorization") != wanted:
            status, response = 401, {"error_code": 401, "message": "Unauthorized"}
        else:
            status, response = self.registry.respond(
                self.command, self.path, json.loads(text) if text else None
            )
        body = json.dumps(response).encode()
        self.send_response(status)
        self.send_header("Content-Type", JSON)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PUT = do_DELETE = _serve  # noqa: N815 names that the base class calls


def serve(registry: Registry, port: int = 0, certificate: str = "", key: str = "") -> ThreadingHTTPServer:
    """Returns a server on loopback that does not run yet."""
    server = ThreadingHTTPServer(("127.0.0.1", port), type("Serving", (Handler,), {"registry": registry}))
    server.daemon_threads = True
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    return server


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--bootstrap", default="")
    parser.add_argument("--topic", default="_schemas")
    parser.add_argument("--follower", action="store_true")
    parser.add_argument("--user", default="", help="user:password")
    arguments = parser.parse_args()
    topic = SchemasTopic(arguments.bootstrap, arguments.topic) if arguments.bootstrap else None
    if topic is not None and not arguments.follower:
        topic.create()
    user = base64.b64encode(arguments.user.encode()).decode() if arguments.user else ""
    registry = Registry(topic, is_follower=arguments.follower, authorization=f"Basic {user}" if user else "")
    server = serve(registry, arguments.port)
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
