"""Runs a test registry as a process that can be killed and restarted on its port."""

import json
import sys
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.harness.kafka.processes import Child, start, wait_until

HTTP_TIMEOUT_S = 60.0


@dataclass(kw_only=True, slots=True)
class SchemaRegistry:
    """A registry. An empty `bootstrap` keeps its contents in memory."""

    folder: Path
    bootstrap: str = ""
    topic: str = "_schemas"
    arguments: tuple[str, ...] = ()
    name: str = "registry"
    port: int = 0
    child: Child | None = field(default=None, init=False)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Starts the process, and waits until it serves. A second start keeps the port."""
        self.folder.mkdir(parents=True, exist_ok=True)
        log = self.folder / f"{self.name}.log"
        log.unlink(missing_ok=True)
        command = [
            sys.executable,
            "-m",
            "tests.harness.schema_registry",
            f"--port={self.port}",
            f"--topic={self.topic}",
            *self.arguments,
        ]
        if self.bootstrap:
            command.append(f"--bootstrap={self.bootstrap}")
        self.child = start(self.name, command, log=log)
        # The port is among the messages of the Kafka client.
        ports: list[str] = []

        def serves() -> bool:
            ports[:] = [line for line in log.read_text().splitlines() if line.isdigit()]
            return bool(ports)

        wait_until("the registry serves", serves)
        self.port = int(ports[0])

    def kill(self) -> None:
        if self.child is not None:
            self.child.kill()
            self.child = None

    def request(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """Returns the JSON of the response. Raises urllib.error.HTTPError."""
        data = None if body is None else json.dumps(body).encode()
        wanted = urllib.request.Request(
            f"{self.url}{path}", data=data, method=method, headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(wanted, timeout=HTTP_TIMEOUT_S) as response:
            return json.loads(response.read())

    def register(self, subject: str, schema: str, **more: Any) -> int:
        """Registers a schema like a serializer, and returns its id."""
        return int(self.request("POST", f"/subjects/{subject}/versions", {"schema": schema, **more})["id"])

    def export(self) -> list[dict[str, Any]]:
        """Returns all versions of the default context, including deletions, with requests of its own."""
        live = {(version["subject"], version["version"]) for version in self._listed("false")}
        return [
            {**version, "deleted": (version["subject"], version["version"]) not in live}
            for version in self._listed("true")
        ]

    def _listed(self, with_deleted: str) -> list[dict[str, Any]]:
        versions: list[dict[str, Any]] = []
        while page := self.request("GET", f"/schemas?deleted={with_deleted}&offset={len(versions)}"):
            versions += page
        return versions
