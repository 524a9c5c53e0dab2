"""A distributed worker of Apache's Kafka Connect (ConnectDistributed), with its REST API.

        with ConnectWorker(cluster=west, group="g") as worker:
            worker.call("PUT", "/connectors/heartbeats/config", {...})

Its three topics are `GROUP-configs`, `-offsets` and `-status`, with one replica.
"""

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.installation import java_command, write_properties
from tests.harness.kafka.processes import Child, HarnessError, free_port, start, wait_until

CALL_WAIT_S = 60.0
CONVERTER = "org.apache.kafka.connect.converters.ByteArrayConverter"


@dataclass(kw_only=True, slots=True)
class ConnectWorker:
    """A worker process on *cluster*. *properties* override lines of its worker.properties."""

    cluster: KafkaCluster
    group: str
    properties: Mapping[str, str] = field(default_factory=dict)
    heap_mib: int = 384
    child: Child | None = field(default=None, init=False)
    _address: str = field(default="", init=False)

    @property
    def address(self) -> str:
        """Returns the address of its REST API."""
        return self._address

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.child is not None and self.child.running:
            self.child.kill()

    def start(self) -> None:
        """Starts the worker, and waits until it responds."""
        port = free_port()
        self._address = f"http://127.0.0.1:{port}"
        lines = {
            "bootstrap.servers": self.cluster.bootstrap,
            "group.id": self.group,
            "listeners": self._address,
            "key.converter": CONVERTER,
            "value.converter": CONVERTER,
            "plugin.discovery": "service_load",
        }
        for kind, suffix in (("config", "configs"), ("offset", "offsets"), ("status", "status")):
            lines[f"{kind}.storage.topic"] = f"{self.group}-{suffix}"
            lines[f"{kind}.storage.replication.factor"] = "1"
        stem = self.cluster.home / f"connect-{port}"
        file = write_properties(stem.with_suffix(".properties"), lines | dict(self.properties))
        log = stem.with_suffix(".log")
        command = java_command(
            "org.apache.kafka.connect.cli.ConnectDistributed", str(file), log=log, heap_mib=self.heap_mib
        )
        self.child = start(f"Connect worker {self.group}", command, log=log)
        wait_until(f"the Connect worker responds at {self._address}", self._ready)

    def stop(self) -> None:
        """Sends SIGTERM, and waits for the end."""
        if self.child is not None:
            self.child.stop()

    def call(self, method: str, path: str, body: object = None) -> Any:
        """Returns the JSON of the response, or None without a body. Raises HTTPError for an error status."""
        request = urllib.request.Request(
            self._address + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=CALL_WAIT_S) as response:
            content = response.read()
        return json.loads(content) if content else None

    def state(self, connector: str) -> tuple[str, list[str]]:
        """Returns the states of *connector* and of its tasks, or an empty string while the worker does not know it."""
        try:
            status = self.call("GET", f"/connectors/{connector}/status")
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
            return "", []
        return status["connector"]["state"], [task["state"] for task in status["tasks"]]

    def _ready(self) -> bool:
        if self.child is None:
            raise HarnessError("The worker was never started.")
        self.child.must_run()
        try:
            return self.call("GET", "/health") is not None
        except OSError:
            return False
