"""A distributed worker on two clusters with its files, its REST calls, and the copies on the target."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any

from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import records
from tests.harness.replicator import Replicator

NAME = "MirrorSourceConnector"
PACKAGE = "org.apache.kafka.connect.mirror."


@dataclass(kw_only=True)
class Site:
    """Two clusters and the alias of one worker. No other worker has its topics and connectors."""

    source: KafkaCluster
    target: KafkaCluster
    folder: Path
    alias: str = field(default_factory=lambda: f"d{uuid.uuid4().hex[:8]}")

    def topics(self) -> dict[str, str]:
        lines = {}
        for kind, word in (("config", "configs"), ("offset", "offsets"), ("status", "status")):
            lines[f"{kind}.storage.topic"] = f"mm2-{word}.{self.alias}.internal"
            lines[f"{kind}.storage.replication.factor"] = "1"
        return lines

    def worker(self, *connectors: Mapping[str, str], **properties: str) -> Replicator:
        lines = {
            "bootstrap.servers": self.target.bootstrap,
            "group.id": f"{self.alias}-mm2",
            "offset.flush.interval.ms": "500",
            "mirrorflow.http.listeners": "http://127.0.0.1:0",
            **self.topics(),
        } | {key.replace("_", "."): value for key, value in properties.items()}
        return Replicator(
            form="distributed", files=(lines, *connectors), folder=self.folder, source=self.source
        )

    def connector(self, topics: str, **properties: str) -> dict[str, str]:
        return {
            "connector.class": f"{PACKAGE}MirrorSourceConnector",
            "source.cluster.alias": self.alias,
            "target.cluster.alias": self.target.name,
            "source.cluster.bootstrap.servers": self.source.bootstrap,
            "target.cluster.bootstrap.servers": self.target.bootstrap,
            "topics": topics,
            "replication.factor": "1",
            "offset-syncs.topic.replication.factor": "1",
            "refresh.topics.interval.seconds": "1",
        } | {key.replace("_", "."): value for key, value in properties.items()}

    def copied(self, topic: str) -> int:
        """Returns how many records of the copy of *topic* a Java consumer reads."""
        copy = f"{self.alias}.{topic}"
        return len(records(self.target, copy)) if self.target.has_topic(copy) else 0


def state(worker: Replicator, name: str = NAME) -> tuple[str, list[str]]:
    """Returns the states of the connector and of its tasks, or an empty list while they are unknown."""
    status, body = worker.rest(f"/connectors/{name}/status")
    if status != 200:
        return "", []
    return body["connector"]["state"], [task["state"] for task in body["tasks"]]


def wait_for_state(worker: Replicator, expected: str, name: str = NAME) -> None:
    """Waits until connector and tasks are in state *expected*. A stopped connector has no tasks."""

    def reached() -> bool:
        connector, tasks = state(worker, name)
        return connector == expected and set(tasks) == (set() if expected == "STOPPED" else {expected})

    wait_until(f"{name} is {expected}", reached)


def change(worker: Replicator, method: str, path: str, body: Any = None, *, expect: int) -> Any:
    """Sends a writing request, asserts status *expect*, and returns the body.

    The request is repeated while the group has no leader.
    """

    def respond() -> tuple[int, Any] | None:
        status, response = worker.rest(path, method=method, body=body)
        is_rebalancing = status == HTTPStatus.CONFLICT and "momentarily" in response["message"]
        return None if is_rebalancing else (status, response)

    result = wait_until(f"{method} {path} gets a response", respond)
    assert result is not None
    status, response = result
    assert expect == status, response
    return response


def wait_for_copies(site: Site, topic: str, count: int) -> None:
    copy = f"{site.alias}.{topic}"
    # The end offset includes transaction markers, so it is only a first, cheap check.
    wait_until(
        f"{count} records are copied",
        lambda: site.target.total_end_offset(copy) >= count and site.copied(topic) >= count,
    )
    assert count == site.copied(topic)


def start(worker: Replicator) -> None:
    """Waits until the worker accepts commands."""
    wait_until("the worker is ready", lambda: worker.rest("/health")[0] == 200)


def offsets(worker: Replicator, name: str = NAME) -> dict[tuple[str, int], int]:
    entries = worker.rest(f"/connectors/{name}/offsets")[1]["offsets"]
    return {
        (entry["partition"]["topic"], entry["partition"]["partition"]): entry["offset"]["offset"]
        for entry in entries
    }
