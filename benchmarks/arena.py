"""The environment of the copiers: two single-broker clusters, also reachable through a delaying proxy, cleaned after each run.

Topics that `load` creates stay on east until `drop`. Everything else that a run leaves on either side is removed after it, and
aliases are new for every run, so that no copier finds data of a previous one.
"""

import itertools
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from confluent_kafka import KafkaException

from benchmarks.copiers import Copier, Flow, end
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import Child, HarnessError, wait_until
from tests.harness.kafka.tools import FOREVER, Loaded, load

# The options of Apache's start script for a broker (kafka-run-class.sh), with twice the heap of kafka-server-start.sh,
# because one of the cases has 5,000 partitions.
BROKER_JVM = ("-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35")
BROKER_HEAP_MIB = 2048
BROKER_CONFIG = {"log.segment.delete.delay.ms": "1000"}  # so that a removed copy frees its page cache at once
CLEAN_WAIT_S = 120.0
DELETE_AT_ONCE = 200
# Errors of a run that are not errors of this program: they are noted, and the next run starts.
FAILURES = (HarnessError, KafkaException, OSError, subprocess.SubprocessError)
_runs = itertools.count(1)


@dataclass(kw_only=True, slots=True)
class Arena:
    """Both clusters; *folder* receives logs and properties files."""

    folder: Path
    east: KafkaCluster = field(init=False)
    west: KafkaCluster = field(init=False)
    _kept: set[str] = field(default_factory=set, init=False)

    def __enter__(self) -> Self:
        self.east, self.west = (
            KafkaCluster(
                name=name,
                proxied=True,
                heap_mib=BROKER_HEAP_MIB,
                jvm_options=BROKER_JVM,
                config=BROKER_CONFIG,
            )
            for name in ("east", "west")
        )
        try:
            self.east.start()
            self.west.start()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        self.east.close()
        self.west.close()

    @property
    def is_sound(self) -> bool:
        """Whether both brokers are running."""
        return all(cluster.broker(1).running for cluster in (self.east, self.west))

    def load(
        self,
        topic: str,
        records: int,
        *,
        partitions: int,
        size_bytes: int,
        codec: str = "none",
        batch_bytes: int = 16_384,
        single_record_batches: bool = False,
        timestamp_ms: int = -1,
    ) -> Loaded:
        """Creates *topic* on east and fills it with one Java producer; *timestamp_ms* of all records, or -1 for now."""
        self.make(topic, partitions)
        options: dict[str, Any] = {} if timestamp_ms < 0 else {"timestamp_ms": timestamp_ms}
        return load(
            self.east,
            topic,
            records,
            size_bytes=size_bytes,
            codec=codec,
            batch_bytes=batch_bytes,
            single_record_batches=single_record_batches,
            **options,
        )

    def make(self, topic: str, partitions: int) -> None:
        """Creates an empty topic on east that stays until `drop`."""
        self._kept.add(topic)
        self.east.create_topic(topic, partitions=partitions, config=FOREVER)

    def drop(self) -> None:
        """Removes every topic on both sides."""
        self._kept.clear()
        self.sweep()

    def flow(self, topics: str, *, records: int = 0, source: str = "", target: str = "") -> Flow:
        """Returns a flow with unused aliases; *source* and *target* are names of listeners."""
        number = next(_runs)
        return Flow(
            source=self.east,
            target=self.west,
            source_alias=f"from{number}",
            target_alias=f"to{number}",
            topics=topics,
            records=records,
            source_listener=source or "PLAINTEXT",
            target_listener=target or "PLAINTEXT",
            folder=self.folder,
        )

    @contextmanager
    def running(self, copier: Copier, flow: Flow) -> Iterator[Child]:
        """Runs *copier* on *flow* in the block; afterwards ends it and removes its topics."""
        child = copier.launch(flow)
        try:
            yield child
        finally:
            end(child)
            self.sweep()

    def sweep(self) -> None:
        """Removes all topics that `load` has not created."""
        for cluster, kept_here in ((self.west, set[str]()), (self.east, self._kept)):
            rest = sorted(
                name for name in cluster.topics() if not name.startswith("__") and name not in kept_here
            )
            for begin in range(0, len(rest), DELETE_AT_ONCE):
                for future in cluster.admin.delete_topics(rest[begin : begin + DELETE_AT_ONCE]).values():
                    future.result(CLEAN_WAIT_S)
            gone = set(rest)
            wait_until(
                f"{cluster.name} is clean",
                lambda cluster=cluster, gone=gone: not gone & set(cluster.topics()),  # type: ignore[misc]
                timeout_s=CLEAN_WAIT_S,
            )
