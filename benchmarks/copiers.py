"""The copiers that are compared: MirrorFlow, Java MirrorMaker 2 by default and tuned, and the bare relay.

All copy one flow by one task. MM2 runs as Apache ships it (its dedicated mode, the JVM options of its start script, a heap
of 1 GiB) without heartbeats, which would start a second worker for the opposite direction. Its checkpoint connector runs
without groups, because it refuses a configuration that emits no checkpoints.
"""

import itertools
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.installation import java_command, write_properties
from tests.harness.kafka.processes import Child, family, start

ROOT = Path(__file__).parents[1]
MM2_HEAP_MIB = 1024
MM2_JVM = (
    "-Xms256m",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
)
# Strimzi's recommendation for the producer, and larger fetches for it.
TUNED_PRODUCER = {"batch.size": "327680", "linger.ms": "100"}
TUNED_CONSUMER = {"max.partition.fetch.bytes": str(10 << 20), "fetch.max.bytes": str(50 << 20)}
# Both check every second, so that neither waits for an interval of a minute.
GROUPS_MOVED_ON = {
    "sync.group.offsets.enabled": "true",
    "sync.group.offsets.interval.seconds": "1",
    "emit.checkpoints.interval.seconds": "1",
    "refresh.groups.interval.seconds": "5",
}
GROUPS_BY_DEFAULT = {"sync.group.offsets.enabled": "true"}
SEED = "MirrorFlow seed"
EXACTLY_ONCE_MM2 = "MM2 exactly-once"
INTERNAL_TOPICS = ("offset.storage", "config.storage", "status.storage")
_launches = itertools.count()


@dataclass(frozen=True, kw_only=True, slots=True)
class Flow:
    """The flow to copy: *topics* is a regular expression (for the relay a name), *records* the number of its records."""

    source: KafkaCluster
    target: KafkaCluster
    source_alias: str
    target_alias: str
    topics: str
    records: int
    source_listener: str
    target_listener: str
    folder: Path

    def remote(self, topic: str) -> str:
        """Returns the name of the copy."""
        return f"{self.source_alias}.{topic}"

    @property
    def source_bootstrap(self) -> str:
        return self.source.bootstrap_for(self.source_listener)

    @property
    def target_bootstrap(self) -> str:
        return self.target.bootstrap_for(self.target_listener)


@dataclass(frozen=True, kw_only=True, slots=True)
class Copier:
    """One of the compared programs; `launch` starts it without waiting."""

    name: str
    launch: Callable[[Flow], Child]


def end(child: Child) -> None:
    """Kills the process and its descendants with -9, so that the next run has both cores at once."""
    for pid in reversed(family(child.pid)):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    child.kill()


def mirrorflow(
    *,
    groups: str = "",
    name: str = "MirrorFlow",
    tasks: int = 1,
    moved: Mapping[str, str] = GROUPS_MOVED_ON,
    checkout: Path = ROOT,
) -> Copier:
    """`mirrorflow-replicator standalone` of *checkout* with default settings.

    It syncs the offsets of *groups* to the target as *moved* says.
    """
    return Copier(name=name, launch=lambda flow: _launch_mirrorflow(flow, groups, tasks, moved, checkout))


def seed(*, cores: int, name: str = SEED) -> Copier:
    """`mirrorflow-seed seed` in a local Spark session with *cores* task slots."""

    def launch(flow: Flow) -> Child:
        stem = _stem(flow)
        worker, source = _mirrorflow_files(flow, stem, "", cores)
        given = ["--worker", worker, "--source", source, f"--set=master=local[{cores}]", "--set=lag.max=0"]
        command = [sys.executable, "-m", "mirrorflow_seed", "seed", *given]
        return start(name, command, log=stem.with_suffix(".log"))

    return Copier(name=name, launch=launch)


def mm2(*, groups: str = "") -> Copier:
    """Java MM2 with default settings; it syncs the offsets of *groups* to the target."""
    lines = {"groups": groups, **GROUPS_MOVED_ON} if groups else {}
    return Copier(name="MM2", launch=lambda flow: _launch_mm2(flow, lines))


def exactly_once_mm2() -> Copier:
    """Java MM2 with default settings and exactly-once, for which its nodes need their internal REST."""

    def launch(flow: Flow) -> Child:
        lines = {
            "dedicated.mode.enable.internal.rest": "true",
            "listeners": "http://127.0.0.1:0",
            f"{flow.target_alias}.exactly.once.source.support": "enabled",
        }
        return _launch_mm2(flow, lines)

    return Copier(name=EXACTLY_ONCE_MM2, launch=launch)


def tuned_mm2(codec: str = "none") -> Copier:
    """Java MM2 tuned; it compresses like the source, because by default it would store the copy uncompressed."""
    producer = TUNED_PRODUCER | {"compression.type": codec}

    def launch(flow: Flow) -> Child:
        lines = {f"{flow.target_alias}.producer.{key}": value for key, value in producer.items()}
        lines |= {f"{flow.source_alias}.consumer.{key}": value for key, value in TUNED_CONSUMER.items()}
        return _launch_mm2(flow, lines)

    return Copier(name="MM2 tuned", launch=launch)


def relay() -> Copier:
    """The program `benchmarks.relay`."""
    return Copier(name="bare relay", launch=_launch_relay)


def _stem(flow: Flow) -> Path:
    flow.folder.mkdir(parents=True, exist_ok=True)
    return flow.folder / f"copier-{next(_launches)}"


def product_of(checkout: Path) -> dict[str, str]:
    """Returns the environment in which this interpreter, with its packages, runs the product of *checkout*."""
    return {
        "PYTHONPATH": os.pathsep.join(str(checkout / part) for part in ("replicator", "operator")),
        "PYTHONDONTWRITEBYTECODE": "",  # so that modules are compiled, like those of an installed package
    }


def _launch_mirrorflow(
    flow: Flow, groups: str, tasks: int, moved: Mapping[str, str], checkout: Path
) -> Child:
    stem = _stem(flow)
    files = _mirrorflow_files(flow, stem, groups, tasks, moved)
    command = [sys.executable, "-m", "mirrorflow_replicator", "standalone", *files]
    return start("MirrorFlow", command, log=stem.with_suffix(".log"), environment=product_of(checkout))


def mirrorflow_files(flow: Flow) -> tuple[str, str]:
    """Returns the files of worker and connector properties of a connector that the caller starts."""
    worker, connector = _mirrorflow_files(flow, _stem(flow), "", 1)
    return worker, connector


def _mirrorflow_files(
    flow: Flow, stem: Path, groups: str, tasks: int, moved: Mapping[str, str] = GROUPS_MOVED_ON
) -> list[str]:
    connector = {
        "name": "MirrorSourceConnector",
        "connector.class": "MirrorSourceConnector",
        "tasks.max": str(tasks),
        "source.cluster.alias": flow.source_alias,
        "target.cluster.alias": flow.target_alias,
        "source.cluster.bootstrap.servers": flow.source_bootstrap,
        "target.cluster.bootstrap.servers": flow.target_bootstrap,
        "topics": flow.topics,
        "replication.factor": "1",
        "offset-syncs.topic.replication.factor": "1",
    }
    worker = {
        "bootstrap.servers": flow.target_bootstrap,
        "offset.storage.topic": f"mm2-offsets.{flow.source_alias}.internal",
        "offset.storage.replication.factor": "1",
        "mirrorflow.http.listeners": "http://127.0.0.1:0",
    }
    written = {"worker": worker, "connector": connector}
    if groups:
        name = "MirrorCheckpointConnector"
        checkpoint = {"name": name, "connector.class": name, "groups": groups, **moved}
        written["checkpoint"] = {**connector, **checkpoint, "checkpoints.topic.replication.factor": "1"}
    return [
        str(write_properties(stem.with_suffix(f".{kind}.properties"), lines))
        for kind, lines in written.items()
    ]


def _launch_mm2(flow: Flow, extra: Mapping[str, str]) -> Child:
    stem = _stem(flow)
    source, target = flow.source_alias, flow.target_alias
    lines = {
        "clusters": f"{source}, {target}",
        f"{source}.bootstrap.servers": flow.source_bootstrap,
        f"{target}.bootstrap.servers": flow.target_bootstrap,
        f"{source}->{target}.enabled": "true",
        f"{source}->{target}.topics": flow.topics,
        f"{target}->{source}.enabled": "false",
        "emit.heartbeats.enabled": "false",
        "replication.factor": "1",
        "checkpoints.topic.replication.factor": "1",
        "heartbeats.topic.replication.factor": "1",
        "offset-syncs.topic.replication.factor": "1",
        "tasks.max": "1",
    }
    for alias, internal in itertools.product((source, target), INTERNAL_TOPICS):
        lines[f"{alias}.{internal}.replication.factor"] = "1"
    file = write_properties(stem.with_suffix(".properties"), lines | dict(extra))
    command = java_command(
        "org.apache.kafka.connect.mirror.MirrorMaker",
        str(file),
        log=stem.with_suffix(".log4j"),
        heap_mib=MM2_HEAP_MIB,
        jvm_options=MM2_JVM,
        archived=False,
    )
    return start("MM2", command, log=stem.with_suffix(".log"))


def _launch_relay(flow: Flow) -> Child:
    partitions = flow.source.topics()[flow.topics]
    remote = flow.remote(flow.topics)
    flow.target.create_topic(remote, partitions=partitions)
    ports = [address.rpartition(":")[2] for address in (flow.source_bootstrap, flow.target_bootstrap)]
    numbers = [str(partitions), str(flow.records)]
    command = [sys.executable, "-m", "benchmarks.relay", *ports, flow.topics, remote, *numbers]
    return start("bare relay", command, log=_stem(flow).with_suffix(".log"))
