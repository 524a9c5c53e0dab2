"""A pair of real clusters, and a consumer for which its switchover waits."""

import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import yaml
from confluent_kafka import Consumer

from tests.harness.kafka.cluster import KafkaCluster

LIMIT_S = 300  # the time for which writes may be refused; all steps that wait for the consumer are faster


@dataclass(frozen=True, slots=True)
class SwitchedPair:
    """The files of a pair of *east* and *west* in *folder*, for *topic*. The names are derived from the topic."""

    east: KafkaCluster
    west: KafkaCluster
    folder: Path
    topic: str
    source: str = field(default_factory=lambda: f"e{uuid.uuid4().hex[:6]}")
    to: str = field(default_factory=lambda: f"w{uuid.uuid4().hex[:6]}")

    def __post_init__(self) -> None:
        members = {self.source: {"flow": self.forward}, self.to: {"flow": f"{self.to}-to-{self.source}"}}
        pair = {
            "apiVersion": "mirrorflow.io/v1alpha1",
            "kind": "MirrorPair",
            "metadata": {"name": self.name},
            "spec": {
                "members": members,
                # The producers of this pair are stopped.
                "fence": {"method": "None"},
                "groups": {"include": [self.group]},
                "deadlineSeconds": LIMIT_S,
            },
        }
        flows = [self._flow(self.source, self.to), self._flow(self.to, self.source)]
        self.file.write_text(yaml.safe_dump_all([pair, *flows]))
        self.flow_file.write_text(yaml.safe_dump(flows[0]))

    @property
    def name(self) -> str:
        return f"pair-{self.source}"

    @property
    def forward(self) -> str:
        """Returns the name of the flow that runs."""
        return f"{self.source}-to-{self.to}"

    @property
    def group(self) -> str:
        return f"{self.name}-billing"

    @property
    def file(self) -> Path:
        return self.folder / "pair.yaml"

    @property
    def flow_file(self) -> Path:
        return self.folder / "flow.yaml"

    def _flow(self, source: str, target: str) -> dict[str, Any]:
        bootstraps = {self.source: self.east.bootstrap, self.to: self.west.bootstrap}
        return {
            "apiVersion": "mirrorflow.io/v1alpha1",
            "kind": "MirrorFlow",
            "metadata": {"name": f"{source}-to-{target}"},
            "spec": {
                "source": {"alias": source, "bootstrapServers": [bootstraps[source]]},
                "target": {"alias": target, "bootstrapServers": [bootstraps[target]]},
                "topics": {"include": [self.topic], "naming": {"policy": "Identity"}},
                "groups": {"include": [self.group]},
                "connectors": {"source": {"config": {"offset.flush.interval.ms": "500"}}},
            },
        }

    def has_copied(self, records: int) -> bool:
        """Returns whether the copy of the topic has *records*."""
        return self.west.has_topic(self.topic) and self.west.total_end_offset(self.topic) == records

    @contextmanager
    def switching(self, *arguments: str | Path) -> Iterator[subprocess.Popen[bytes]]:
        """Runs `mirrorflow switchover` to the other cluster, and ends it at the end of the block."""
        program = str(Path(sys.executable).parent / "mirrorflow")
        command = [program, "switchover", "--to", self.to, "-f", str(self.file), *map(str, arguments)]
        with (self.folder / "switchover.out").open("wb") as out:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def output(self) -> str:
        """Returns what `mirrorflow switchover` has printed."""
        return (self.folder / "switchover.out").read_text()


class WaitingConsumer(threading.Thread):
    """A member of the pair's group on east.

    Inside the block it has read all records, and it stays in the group until `leave`.
    """

    def __init__(self, pair: SwitchedPair, records: int) -> None:
        super().__init__(daemon=True)
        self._has_committed = threading.Event()
        self._leaving = threading.Event()
        self._records = records
        self._topic = pair.topic
        self._consumer = Consumer(
            {
                "bootstrap.servers": pair.east.bootstrap,
                "group.id": pair.group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )

    def run(self) -> None:
        self._consumer.subscribe([self._topic])
        read = 0
        while not self._leaving.is_set():
            read += sum(1 for message in self._consumer.consume(500, 0.2) if not message.error())
            if read >= self._records and not self._has_committed.is_set():
                self._consumer.commit(asynchronous=False)
                self._has_committed.set()
        self._consumer.close()

    def __enter__(self) -> Self:
        self.start()
        assert self._has_committed.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        """Leaves the group."""
        self._leaving.set()
        self.join(60)
