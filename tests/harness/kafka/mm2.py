"""Runs Java's MirrorMaker 2 in its dedicated mode from one cluster to another, for comparison.

The program and its jars are Apache's. Only the properties file is created here, and the JVM options are those of the
harness. The benchmarks measure it. Internal topics have replication factor 1 unless *properties* override it.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.installation import QUICK_JVM, VERSION, java_command, write_properties
from tests.harness.kafka.processes import Child, HarnessError, start, wait_until

INTERNAL_TOPICS = ("offset.storage", "config.storage", "status.storage")
_runs = itertools.count()


@dataclass(kw_only=True, slots=True)
class MirrorMaker:
    """Copies *topics* (a regular expression) from *source* to *target*. Aliases are the clusters' names.

    *properties* override lines of mm2.properties. It connects over *source_listener* and *target_listener*. PROXIED is
    the listener behind the proxy.
    """

    source: KafkaCluster
    target: KafkaCluster
    topics: str = ".*"
    properties: Mapping[str, str] = field(default_factory=dict)
    source_listener: str = ""
    target_listener: str = ""
    version: str = VERSION
    heap_mib: int = 512
    jvm_options: Sequence[str] = QUICK_JVM
    child: Child | None = field(default=None, init=False)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.child is not None and self.child.running:
            self.child.kill()

    @property
    def pid(self) -> int:
        return self._child().pid

    @property
    def running(self) -> bool:
        return self.child is not None and self.child.running

    def remote(self, topic: str) -> str:
        """Returns the name of the copy of *topic* by the default policy."""
        return f"{self.source.name}.{topic}"

    def start(self) -> None:
        """Starts MirrorMaker without waiting. `wait_until_replicated` waits."""
        stem = self.target.home / f"mm2-{next(_runs)}"
        file = write_properties(stem.with_suffix(".properties"), self.all_properties())
        log = stem.with_suffix(".log")
        command = java_command(
            "org.apache.kafka.connect.mirror.MirrorMaker",
            str(file),
            log=log,
            version=self.version,
            heap_mib=self.heap_mib,
            jvm_options=self.jvm_options,
        )
        self.child = start(f"MirrorMaker {self.source.name}->{self.target.name}", command, log=log)

    def stop(self) -> None:
        """Sends SIGTERM and waits. MirrorMaker stores its offsets before it ends."""
        self._child().stop()

    def kill(self) -> None:
        """Kills it with -9. Up to a minute of offsets is lost, because MM2 stores them every 60 s."""
        self._child().kill()

    def wait_until_replicated(
        self,
        topic: str,
        count: int,
        *,
        remote: Callable[[str], str] | None = None,
    ) -> None:
        """Waits until the copy of *topic* has at least *count* records in all partitions together."""
        name = (remote or self.remote)(topic)

        def copied() -> bool:
            self._child().must_run()
            if not self.target.has_topic(name):
                return False
            ends, starts = self.target.end_offsets(name), self.target.start_offsets(name)
            return sum(ends.values()) - sum(starts.values()) >= count

        try:
            wait_until(f"{count} records in {name}", copied)
        except HarnessError as error:
            raise HarnessError(f"{error}\n{self._child().tail()}") from error

    def all_properties(self) -> dict[str, str]:
        """Returns the lines of its mm2.properties. The clusters' aliases are their names."""
        source, target = self.source.name, self.target.name
        flow = f"{source}->{target}"
        lines = {"clusters": f"{source}, {target}"}
        for cluster, listener in ((self.source, self.source_listener), (self.target, self.target_listener)):
            client = cluster.java_client(listener or cluster.listeners[0])
            lines |= {f"{cluster.name}.{key}": value for key, value in client.items()}
            for internal in INTERNAL_TOPICS:
                lines[f"{cluster.name}.{internal}.replication.factor"] = "1"
            # By default, it searches every jar for plugins, which takes four seconds of the ten that it needs to start.
            lines[f"{cluster.name}.plugin.discovery"] = "service_load"
        lines |= {
            f"{flow}.enabled": "true",
            f"{flow}.topics": self.topics,
            f"{target}->{source}.enabled": "false",
            f"{target}->{source}.emit.heartbeats.enabled": "false",
            "replication.factor": "1",
            "checkpoints.topic.replication.factor": "1",
            "heartbeats.topic.replication.factor": "1",
            "offset-syncs.topic.replication.factor": "1",
            "tasks.max": "1",
            "refresh.topics.interval.seconds": "5",
        }
        return lines | dict(self.properties)

    def _child(self) -> Child:
        if self.child is None:
            raise HarnessError("MirrorMaker was never started.")
        return self.child
