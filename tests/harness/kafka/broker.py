"""A KRaft node, which is broker and controller in one JVM.

It keeps its data folder and ports as long as the cluster exists.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.harness.kafka.installation import java_command
from tests.harness.kafka.processes import Child, HarnessError, accepts, log_folder, start, wait_until

METADATA_WAIT_S = 5.0


@dataclass(kw_only=True, slots=True)
class Broker:
    """A node that tests start, stop, kill and freeze. `cluster_id` and `format_arguments` apply at the first start."""

    id: int
    name: str
    version: str
    folder: Path
    properties: Path
    admin_port: int
    cluster_id: str
    format_arguments: Sequence[str]
    heap_mib: int
    jvm_options: Sequence[str]
    child: Child | None = field(default=None, init=False)

    @property
    def log(self) -> Path:
        """Returns the path of the log.

        It is outside the data folder, so that it still exists after the cluster of a failed test is closed.
        """
        return log_folder() / f"{self.name}-{self.folder.parent.name}.log"

    @property
    def pid(self) -> int:
        return self._child().pid

    @property
    def running(self) -> bool:
        return self.child is not None and self.child.running

    @property
    def responds(self) -> bool:
        """Returns whether the node runs and is not frozen."""
        return self.child is not None and self.child.running and not self.child.frozen

    def launch(self) -> None:
        """Starts the process without waiting."""
        if self.running:
            raise HarnessError(f"{self.name} runs already.")
        arguments = (str(self.properties), self.cluster_id, *self.format_arguments)
        command = java_command(
            "Broker",
            *arguments,
            log=self.log,
            version=self.version,
            heap_mib=self.heap_mib,
            jvm_options=self.jvm_options,
        )
        self.child = start(self.name, command, log=self.log)

    def start(self) -> None:
        """Starts the node, and returns when it responds to requests."""
        self.launch()
        self.wait_ready()

    def wait_ready(self) -> None:
        """Waits until the controller has registered the broker, and each partition that it can lead has a leader.

        A broker responds to metadata requests only after its registration. Leaders are elected slightly later.
        """
        wait_until(f"{self.name} opens its port", self._opened)
        client = AdminClient({"bootstrap.servers": f"127.0.0.1:{self.admin_port}", "log_level": 2})

        def responds() -> bool:
            self._child().must_run()
            try:
                metadata = client.list_topics(timeout=METADATA_WAIT_S)
            except KafkaException:
                return False
            partitions = (part for topic in metadata.topics.values() for part in topic.partitions.values())
            return self.id in metadata.brokers and all(
                part.leader >= 0 for part in partitions if self.id in part.isrs
            )

        wait_until(f"{self.name} responds, and its partitions have leaders", responds)

    def stop(self) -> None:
        """Sends SIGTERM, upon which the node transfers its leaderships and closes its logs."""
        self._child().stop()

    def kill(self) -> None:
        """Kills the node with -9."""
        self._child().kill()

    def freeze(self) -> None:
        self._child().freeze()

    def thaw(self) -> None:
        self._child().thaw()

    def _opened(self) -> bool:
        self._child().must_run()
        return accepts(self.admin_port)

    def _child(self) -> Child:
        if self.child is None:
            raise HarnessError(f"{self.name} was never started.")
        return self.child
