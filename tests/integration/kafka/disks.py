"""Full and slow disks of brokers.

A full disk is a file system of a few megabytes that a test can grow. A slow disk is simulated by stopping the broker often.
"""

import os
import signal
import subprocess
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from kafka.protocol.admin import AlterReplicaLogDirsRequest

from mirrorflow_kafka.client.cluster import Cluster
from tests.harness.kafka.broker import Broker
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import wait_until
from tests.integration.kafka.flows import call_cluster

ENOUGH_MB = 200
STOPPED_S, RUNS_S = 2.0, 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallDisk:
    """A small file system mounted at *folder*."""

    folder: Path

    @property
    def data(self) -> Path:
        """Returns the log directory of a broker on this disk."""
        return self.folder / "data"

    @property
    def config(self) -> Mapping[str, str]:
        """Returns the settings of a broker on this disk. With Kafka's default sizes, a single index would fill it."""
        return {
            "log.dirs": str(self.data),
            "log.index.size.max.bytes": "65536",
            "log.segment.bytes": "4194304",
        }

    def fill(self) -> None:
        """Fills the disk."""
        filler = self.folder / "filler"
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass

    def grow(self) -> None:
        """Grows the disk."""
        subprocess.run(["mount", "-o", f"remount,size={ENOUGH_MB}m", str(self.folder)], check=True)


@contextmanager
def small_disk(folder: Path, size_mb: int) -> Iterator[SmallDisk]:
    """Creates *folder* and mounts a disk of *size_mb* there. Without root, the test is skipped."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size_mb}m", "tmpfs", str(folder)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("this user may not mount a tmpfs")
    try:
        yield SmallDisk(folder=folder)
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def move_replicas(cluster: KafkaCluster, topics: Iterable[str], folder: Path) -> None:
    """Moves all partitions of *topics* to the log directory *folder* of the only broker."""
    partitions = {topic: range(cluster.partition_count(topic)) for topic in topics}
    folder_class = AlterReplicaLogDirsRequest.AlterReplicaLogDir
    moved = [
        folder_class.AlterReplicaLogDirTopic(name=topic, partitions=list(numbers))
        for topic, numbers in partitions.items()
    ]
    request = AlterReplicaLogDirsRequest(dirs=[folder_class(path=str(folder), topics=moved)])

    async def move(connected: Cluster) -> None:
        response = await connected.call(request)
        assert {partition.error_code for topic in response.results for partition in topic.partitions} == {
            0
        }, response

    call_cluster(cluster, move)
    logs = [folder / f"{topic}-{number}" for topic, numbers in partitions.items() for number in numbers]
    wait_until(f"all partitions are in {folder}", lambda: all(log.is_dir() for log in logs))


@contextmanager
def slow_disk(broker: Broker) -> Iterator[None]:
    """Makes *broker* as slow as if each write took STOPPED_S.

    The broker is repeatedly stopped for that time and then runs for RUNS_S.
    """
    is_over = threading.Event()

    def stop_and_continue() -> None:
        while not is_over.wait(RUNS_S):
            os.kill(broker.pid, signal.SIGSTOP)
            is_over.wait(STOPPED_S)
            os.kill(broker.pid, signal.SIGCONT)

    thread = threading.Thread(target=stop_and_continue, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
