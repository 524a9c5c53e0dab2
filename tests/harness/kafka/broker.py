"""One KRaft node: broker and controller in one JVM, with its own data folder and ports for as long as the cluster lives."""

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
    """Started, stopped, killed and frozen by a test; `cluster_id` and `format_arguments` count at the first start."""

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
        """Outside its folder, which goes when the cluster is closed: a failed test still needs it."""
        return log_folder() / f"{self.name}-{self.folder.parent.name}.log"

    @property
    def pid(self) -> int:
        return self._child().pid

    @property
    def running(self) -> bool:
        return self.child is not None and self.child.running

    @property
    def answers(self) -> bool:
        """Whether it runs and is not frozen."""
        return self.child is not None and self.child.running and not self.child.frozen

    def launch(self) -> None:
        """Starts the process and does not wait."""
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
        """Starts it, and returns when it answers requests."""
        self.launch()
        self.wait_ready()

    def wait_ready(self) -> None:
        """Until the controller has let it in, and each partition that it could lead has a leader.

        A broker answers metadata requests only when it has been let in; leaders come a moment later.
        """
        wait_until(f"{self.name} opens its port", self._opened)
        client = AdminClient({"bootstrap.servers": f"127.0.0.1:{self.admin_port}", "log_level": 2})

        def answers() -> bool:
            self._child().must_run()
            try:
                found = client.list_topics(timeout=METADATA_WAIT_S)
            except KafkaException:
                return False
            partitions = (part for topic in found.topics.values() for part in topic.partitions.values())
            return self.id in found.brokers and all(
                part.leader >= 0 for part in partitions if self.id in part.isrs
            )

        wait_until(f"{self.name} answers, and what it could lead is led", answers)

    def stop(self) -> None:
        """SIGTERM: hands its leaders over and closes its logs."""
        self._child().stop()

    def kill(self) -> None:
        """kill -9."""
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
