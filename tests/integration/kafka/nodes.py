"""Several nodes of one worker group: starts them, reports their tasks, and measures the longest pause of each partition."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Self

from confluent_kafka import Consumer, Producer, TopicPartition

from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import wait_until
from tests.harness.replicator import Replicator
from tests.integration.kafka.distributed import NAME, Site, start, state

GROUP = {
    "dedicated_mode_enable_internal_rest": "true",
    "session_timeout_ms": "6000",  # the minimum that brokers accept
}
EVERY_S = 0.02
TORRENT_BYTES = 60_000  # bytes per write, or three megabytes per second


@contextmanager
def nodes(
    site: Site, count: int, *connectors: Mapping[str, str], **properties: str
) -> Iterator[list[Replicator]]:
    """Runs *count* nodes that accept commands and have the files of *connectors*."""
    with ExitStack() as stack:
        running = []
        for number in range(count):
            node = site.worker(*connectors, **GROUP, **properties)
            node.name = f"node{number}"
            running.append(stack.enter_context(node))
        for node in running:
            start(node)
        yield running


def workers(node: Replicator, name: str = NAME) -> dict[int, str]:
    """Returns the worker of each task, as *node* reports it."""
    status, body = node.rest(f"/connectors/{name}/status")
    return {task["id"]: task["worker_id"] for task in body["tasks"]} if status == 200 else {}


def address(node: Replicator) -> str:
    return node.url.removeprefix("http://")


def wait_until_shared(
    nodes: Sequence[Replicator],
    tasks: int,
    name: str = NAME,
    worker_id: Callable[[Replicator], str] = address,
    beside: Sequence[str] = (),
) -> None:
    """Waits until all *nodes* report *tasks* running tasks.

    Together with those of the connectors *beside*, the tasks must be spread evenly.
    """

    def shared() -> bool:
        assignments = [workers(node, name) for node in nodes]
        others = [worker for name_beside in beside for worker in workers(nodes[0], name_beside).values()]
        worker_ids = list(assignments[0].values())
        loads = [(worker_ids + others).count(worker_id(node)) for node in nodes]
        return (
            all(assignment == assignments[0] for assignment in assignments)
            and len(worker_ids) == tasks
            and sum(loads) == tasks + len(others)
            and max(loads) - min(loads) <= 1
            and all(state(node, name) == ("RUNNING", ["RUNNING"] * tasks) for node in nodes)
        )

    wait_until(f"{tasks} tasks are shared by {len(nodes)} nodes", shared)


class CopyPauseMeter:
    """Writes to each partition of a topic continuously, and observes the growth of its copy.

    `longest_s` is the longest time since `begin` in which the copy of a partition did not grow.
    """

    def __init__(
        self, source: KafkaCluster, target: KafkaCluster, topic: str, copy: str, partitions: int
    ) -> None:
        self._producer = Producer({"bootstrap.servers": source.internal_bootstrap, "linger.ms": 0})
        self._consumer = Consumer(
            {
                "bootstrap.servers": target.internal_bootstrap,
                "group.id": f"pulse-{copy}",
                "enable.auto.commit": False,
            }
        )
        self._topic, self._copy, self._partitions = topic, copy, partitions
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._seen_s: dict[int, float] = {}
        self._longest_s: dict[int, float] = {}
        self._threads = [threading.Thread(target=job, daemon=True) for job in (self._write, self._read)]
        self.written = 0

    def __enter__(self) -> Self:
        self._consumer.assign([TopicPartition(self._copy, number, 0) for number in range(self._partitions)])
        for thread in self._threads:
            thread.start()
        wait_until("each partition has a copied record", lambda: len(self._seen_s) == self._partitions)
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join(30)
        self._producer.flush(30)
        self._consumer.close()

    def begin(self) -> None:
        """Discards the observed pauses."""
        with self._lock:
            self._longest_s = {}
            self._seen_s = dict.fromkeys(range(self._partitions), time.monotonic())

    def longest_s(self) -> Mapping[int, float]:
        with self._lock:
            now = time.monotonic()
            return {
                number: max(self._longest_s.get(number, 0.0), now - seen)
                for number, seen in self._seen_s.items()
            }

    def silent_s(self) -> float:
        """Returns the longest time for which the copy of a partition has not grown until now."""
        with self._lock:
            return time.monotonic() - min(self._seen_s.values())

    def _write(self) -> None:
        while not self._stopped.wait(EVERY_S):
            for number in range(self._partitions):
                self._producer.produce(self._topic, b"beat", partition=number)
                self.written += 1
            self._producer.poll(0)

    def _read(self) -> None:
        while not self._stopped.is_set():
            for message in self._consumer.consume(500, 0.05):
                number = message.partition()
                if message.error() or number is None:
                    continue
                with self._lock:
                    now = time.monotonic()
                    gap_s = now - self._seen_s.get(number, now)
                    self._longest_s[number] = max(self._longest_s.get(number, 0.0), gap_s)
                    self._seen_s[number] = now


class Torrent:
    """Writes a few megabytes a second to some partitions of a topic."""

    def __init__(self, source: KafkaCluster, topic: str, partitions: Sequence[int]) -> None:
        self._producer = Producer({"bootstrap.servers": source.internal_bootstrap, "linger.ms": 0})
        self._topic, self._partitions = topic, partitions
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self.written = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join(30)
        self._producer.flush(30)

    def _write(self) -> None:
        while not self._stopped.wait(EVERY_S):
            for number in self._partitions:
                self._producer.produce(self._topic, bytes(TORRENT_BYTES), partition=number)
                self.written += 1
            self._producer.poll(0)
