"""Runs a test registry in memory, in a thread of this process."""

import threading
from collections.abc import Callable
from http.server import ThreadingHTTPServer
from typing import Any

from tests.harness.schema_registry.__main__ import Registry, serve
from tests.harness.schema_registry.registry_model import RegistryModel

Respond = Callable[[str, str, dict[str, Any] | None], tuple[int, Any]]


class RunningRegistry:
    """A registry in memory. *respond* replaces its responses."""

    def __init__(
        self, respond: Respond | None = None, *, authorization: str = "", certificate: str = "", key: str = ""
    ) -> None:
        self._scheme, self._host = ("https", "localhost") if certificate else ("http", "127.0.0.1")
        self.model = RegistryModel()
        registry = Registry(None, authorization=authorization)
        registry.respond = respond or self._respond  # type: ignore[assignment]
        self.requests: list[str] = []
        self._server: ThreadingHTTPServer = serve(registry, 0, certificate, key)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def _respond(self, method: str, path: str, body: dict[str, Any] | None) -> tuple[int, Any]:
        self.requests.append(f"{method} {path}")
        return self.model.respond(method, path, body)

    @property
    def url(self) -> str:
        return f"{self._scheme}://{self._host}:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
