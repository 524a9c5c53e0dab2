"""A pair whose applications have moved without a switchover of the flow.

The forward flow has ended, and the old side has a tail. Both clusters are shared, so each pair has its own aliases and
topics. The fence is None, because the clusters have no authorizer.
"""

import argparse
import json
import subprocess
import sys
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from mirrorflow_cli.pair_arguments import pair_from, switchover_settings
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.switchover.flow_end import EndedFlow, end_flow, ended_flow
from mirrorflow_replicator.switchover.pair_settings import SwitchoverSettings
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import Record, load, records
from tests.integration.kafka.flows import call_cluster
from tests.integration.kafka.running import RunningCommand

COMMAND_S = 180.0
COPIED = 1_000
MIRRORFLOW = (sys.executable, "-m", "mirrorflow_cli")


@dataclass(slots=True)
class DivergedPair:
    """A diverged pair whose file is in *folder*. Topics that begin with *topics* are copied from *old* to *new*."""

    old: KafkaCluster
    new: KafkaCluster
    topics: str
    folder: Path
    fence: dict[str, Any] = field(default_factory=lambda: {"method": "None"})
    name: str = field(default_factory=lambda: f"pair-{uuid.uuid4().hex[:8]}")
    _started: int = 0

    def __post_init__(self) -> None:
        flows = [self._flow(self.left, self.active), self._flow(self.active, self.left)]
        for flow in flows:
            self._flow_file(flow).write_text(yaml.safe_dump(flow))
        self.file.write_text(yaml.safe_dump_all([self._pair(), *flows]))

    @property
    def left(self) -> str:
        """Returns the alias of the old side."""
        return f"{self.name}-old"

    @property
    def active(self) -> str:
        """Returns the alias of the new side."""
        return f"{self.name}-new"

    @property
    def file(self) -> Path:
        return self.folder / "pair.yaml"

    @property
    def switchover(self) -> str:
        """Returns the id of the switchover that ends the flow."""
        return f"{self.name}-1"

    @property
    def settings(self) -> SwitchoverSettings:
        """Returns the settings of the switchover from the old side."""
        arguments = argparse.Namespace(file=str(self.file), secrets=str(self.folder))
        return switchover_settings(arguments, pair_from(arguments), self.active)

    def kept(self, topic: str) -> str:
        """Returns the topic that keeps the tail of *topic*."""
        return f"{topic}.diverged.{self.switchover}"

    def running(self, *, back: bool = False) -> RunningCommand:
        """Returns a process of the flow or of the reverse flow, not yet started. At its end, it is killed with -9."""
        self._started += 1
        own = self.folder / f"process-{self._started}"
        own.mkdir()
        return RunningCommand(self.flow_file(back=back), own, *self._secrets)

    def copy(self, topic: str, records: int) -> None:
        """Runs the flow until the new side has *records* of *topic*, and then kills it."""
        with self.running() as process:
            wait_until(
                "the records are copied",
                lambda: self.new.total_end_offset(topic) >= records or process.has_ended,
            )
            assert not process.has_ended, process.output()

    def end(self) -> EndedFlow:
        """Ends the flow on the new side alone, as an unplanned switchover does."""

        async def end(cluster: Cluster) -> EndedFlow:
            await end_flow(self.settings.forward, cluster, self.switchover)
            return await ended_flow(self.settings.forward, cluster, self.switchover)

        return call_cluster(self.new, end)

    def line(self, *arguments: str | Path) -> list[str | Path]:
        """Returns the command line of `mirrorflow diverged`."""
        return [*MIRRORFLOW, "diverged", *arguments, "-f", self.file, *self._secrets, "--left", self.left]

    def command(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """Runs `mirrorflow diverged` until it ends."""
        return _run(self.line(*arguments))

    def mirrorflow(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """Runs another command until it ends."""
        return _run([*MIRRORFLOW, *arguments, *self._secrets])

    def flow_file(self, *, back: bool = False) -> Path:
        """Returns the file of the flow or of the reverse flow."""
        return self._flow_file(
            self._flow(self.active, self.left) if back else self._flow(self.left, self.active)
        )

    @property
    def _secrets(self) -> tuple[str, Path]:
        return "--secrets", self.folder

    def _flow_file(self, flow: dict[str, Any]) -> Path:
        return self.folder / f"{flow['metadata']['name']}.yaml"

    def _pair(self) -> dict[str, Any]:
        return {
            "apiVersion": "mirrorflow.io/v1alpha1",
            "kind": "MirrorPair",
            "metadata": {"name": self.name},
            "spec": {
                "members": {
                    self.left: {"flow": f"{self.left}-to-{self.active}"},
                    self.active: {"flow": f"{self.active}-to-{self.left}"},
                },
                "fence": self.fence,
            },
        }

    def _flow(self, source: str, target: str) -> dict[str, Any]:
        return {
            "apiVersion": "mirrorflow.io/v1alpha1",
            "kind": "MirrorFlow",
            "metadata": {"name": f"{source}-to-{target}"},
            "spec": {
                "source": self._cluster(source),
                "target": self._cluster(target),
                "topics": {
                    "include": [f"{self.topics}.*"],
                    "exclude": [".*[.]diverged[.].*"],
                    "naming": {"policy": "Identity"},
                },
                "connectors": {"source": {"config": {"offset.flush.interval.ms": "500"}}},
            },
        }

    def _cluster(self, alias: str) -> dict[str, Any]:
        cluster = self.old if alias == self.left else self.new
        return {"alias": alias, "bootstrapServers": cluster.internal_bootstrap.split(",")}


def _run(line: list[str | Path]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(line, capture_output=True, text=True, timeout=COMMAND_S, check=False)


def copied_pair(old: KafkaCluster, new: KafkaCluster, topic: str, folder: Path) -> DivergedPair:
    """Returns a pair whose flow was killed after it had copied `COPIED` numbers of *topic*, which is on both clusters."""
    pair = DivergedPair(old, new, topic, folder)
    load(old, topic, COPIED, keys=True)
    pair.copy(topic, COPIED)
    return pair


def tail_of(pair: DivergedPair, topic: str) -> list[Record]:
    """Returns the committed records of the old side that were written after the `COPIED` numbers."""
    return [
        record
        for record in records(pair.old, topic, isolation="read_committed")
        if record.key is not None and int(record.key) >= COPIED
    ]


def output(command: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Returns the JSON object that *command* has printed; it must have succeeded."""
    assert command.returncode == 0, command.stdout + command.stderr
    parsed: dict[str, Any] = json.loads(command.stdout)
    return parsed
