"""The processes that a trial kills and freezes, and the producers that write during the trial.

Calls do not wait, except for a broker's response. `tick` restarts stopped processes when their time is over.
"""

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from confluent_kafka import KafkaError, KafkaException, Producer

from tests.chaos.dimensions import AGES_DAYS
from tests.harness.clock import SteppingClock
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.elections import FOLLOWER, LEADER, tail_lost
from tests.harness.kafka.processes import HarnessError
from tests.harness.replicator import Replicator

CHECK_S = 0.5  # the pause between two checks whether all replicas are in sync
METADATA_S = 3.0
STOP_WAIT_S = 60.0  # a copier ends within this time after SIGTERM, like a pod within its grace period
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
# zstd, the last of `CODECS`, compresses these records to a hundred bytes. If batches were merged by their compressed
# size, they would exceed what a client accepts. A backlog of 10,000 records has 30 of them.
PADDED_BYTES = 200 << 10
PADDED_SHARE = 0.003
QUEUED_RECORDS_MAX = 20_000
FLUSH_S = 120.0
DAY_MS = 86_400_000
# Every record is delivered, regardless of how long its leader is unavailable.
DELIVERED: dict[str, str | int | bool] = {"enable.idempotence": True, "message.timeout.ms": 0}
# A leader that has lost its tail refuses an idempotent producer permanently. It would append retries of another
# producer twice.
SENT_ONCE: dict[str, str | int | bool] = {"acks": "all", "retries": 0, "message.timeout.ms": 10_000}
TRANSACTION_WAIT_S = 30.0  # for an election of the coordinator, and for the replicas of its log


@dataclass(kw_only=True, slots=True)
class Side:
    """A cluster of which at most one broker is unavailable. The next one stops only when all replicas are in sync."""

    cluster: KafkaCluster
    topics: Sequence[str]
    unavailable_id: int = 0  # id of the unavailable broker, or 0 if there is none
    is_frozen: bool = False
    return_s: float = 0.0
    is_returning: bool = False
    check_s: float = 0.0

    def strike(self, choice: int, *, leads: bool, freeze: bool, away_s: float) -> int:
        """Kills or freezes a broker and returns its id, or 0 while another broker is unavailable."""
        if self.unavailable_id:
            return 0
        broker_id = self._leader(choice) if leads else 0
        broker_id = broker_id if broker_id > 0 else 1 + choice % len(self.cluster.nodes)
        broker = self.cluster.broker(broker_id)
        if freeze:
            broker.freeze()
        else:
            broker.kill()
        self.unavailable_id, self.is_frozen, self.is_returning = broker_id, freeze, False
        self.return_s = time.monotonic() + away_s
        return broker_id

    def lose_tail(self, choice: int, *, away_s: float) -> int:
        """Loses the records of *away_s* in an unclean election. Returns the old leader, or 0 while a broker is
        unavailable.

        The topics were created by `elections.fragile_topic`.
        """
        if self.unavailable_id or not self.is_in_sync():
            return 0
        leader = (LEADER, FOLLOWER)[choice % 2]
        follower = LEADER + FOLLOWER - leader
        with tail_lost(self.cluster, *self.topics, leader=leader, follower=follower):
            time.sleep(away_s)
        self.unavailable_id, self.is_frozen, self.is_returning = leader, False, False
        self.return_s = time.monotonic()
        return leader

    def tick(self) -> None:
        """Restarts the broker when it is due, and checks whether its replicas have caught up."""
        now = time.monotonic()
        if not self.unavailable_id or now < self.return_s:
            return
        if not self.is_returning:
            broker = self.cluster.broker(self.unavailable_id)
            if self.is_frozen:
                broker.thaw()
            else:
                broker.launch()
            self.is_returning = True
        elif now >= self.check_s:
            self.check_s = now + CHECK_S
            if self.is_in_sync():
                self.unavailable_id = 0

    def is_in_sync(self) -> bool:
        """Returns whether every broker is available and every replica in sync."""
        try:
            metadata = self.cluster.admin.list_topics(timeout=METADATA_S)
        except KafkaException:
            return False
        return len(metadata.brokers) == len(self.cluster.nodes) and all(
            len(partition.isrs) == len(partition.replicas) and partition.leader > 0
            for topic in metadata.topics.values()
            for partition in topic.partitions.values()
        )

    def _leader(self, choice: int) -> int:
        try:
            return self.cluster.leader(self.topics[choice % len(self.topics)], 0)
        except (KafkaException, KeyError):
            return 0


@dataclass(kw_only=True, slots=True)
class Copier:
    """One process of the flow: running, ended, or stopping."""

    replicator: Replicator
    clock: SteppingClock | None = None
    frozen_pids: list[int] = field(default_factory=list)
    return_s: float = 0.0
    has_ended: bool = False  # ended by the trial, which starts it again
    is_stopping: bool = False  # has received SIGTERM
    is_outdated: bool = False  # runs with different settings than it should

    def start(self) -> None:
        self.replicator.start()
        self.is_outdated = False

    def change_settings(self, lines: Mapping[str, str]) -> None:
        """Changes settings of the connector. `tick` restarts the process when it is neither frozen nor ended."""
        process, connector = self.replicator.files
        assert isinstance(connector, Mapping)
        self.replicator.files = (process, {**connector, **lines})
        self.is_outdated = True

    def kill(self, away_s: float) -> bool:
        """Kills the worker and its tasks."""
        if self.has_ended or self.is_stopping:
            return False
        self.replicator.kill()
        self._end(away_s)
        return True

    def stop(self, away_s: float) -> bool:
        """Sends SIGTERM."""
        if self.has_ended or self.is_stopping or self.frozen_pids:
            return False
        os.kill(self.replicator.pid, signal.SIGTERM)
        self.is_stopping = True
        self.return_s = time.monotonic() + STOP_WAIT_S + away_s
        return True

    def kill_task(self, choice: int) -> bool:
        """Kills one task, which the worker starts again."""
        return self._signal_task(choice, signal.SIGKILL) is not None

    def freeze(self, choice: int, away_s: float, *, task: bool) -> bool:
        """Freezes one task, or all processes of the copier."""
        if self.has_ended or self.is_stopping or self.frozen_pids:
            return False
        if task:
            pid = self._signal_task(choice, signal.SIGSTOP)
            self.frozen_pids = [] if pid is None else [pid]
        else:
            self.frozen_pids = [self.replicator.pid, *self.replicator.task_pids()]
            for pid in self.frozen_pids:
                _send(pid, signal.SIGSTOP)
        self.return_s = time.monotonic() + away_s
        return bool(self.frozen_pids)

    def tick(self) -> None:
        """Resumes or starts the process when due. Raises `HarnessError` if it ended by itself or does not stop."""
        now = time.monotonic()
        if self.is_stopping:
            if not self.replicator.running:
                self.is_stopping = False
                self._end(max(0.0, self.return_s - STOP_WAIT_S - now))
            elif now > self.return_s:
                raise HarnessError(f"{self.replicator.name} did not end in {STOP_WAIT_S:g} s.")
        elif self.has_ended:
            if now >= self.return_s:
                self.has_ended = False
                self.start()
        elif not self.replicator.running:
            assert self.replicator.child is not None
            self.replicator.child.must_run()
        elif self.frozen_pids:
            if now >= self.return_s:
                self.thaw()
        elif self.is_outdated:
            self.stop(0.0)

    def thaw(self) -> None:
        for pid in self.frozen_pids:
            _send(pid, signal.SIGCONT)
        self.frozen_pids = []

    def _end(self, away_s: float) -> None:
        self.has_ended = True
        self.frozen_pids = []
        self.return_s = time.monotonic() + away_s

    def _signal_task(self, choice: int, number: signal.Signals) -> int | None:
        if self.has_ended or self.is_stopping or not self.replicator.running:
            return None
        pids = self.replicator.task_pids()
        if not pids:
            return None
        pid = pids[choice % len(pids)]
        _send(pid, number)
        return pid


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


class Writers:
    """librdkafka producers, one for each codec, which write at changing rates in a thread.

    No record is written twice. Unless *is_once* is true, some records are lost.
    """

    def __init__(
        self,
        bootstrap: str,
        topics: Sequence[str],
        *,
        seed: int,
        records_per_s: int,
        age: str = "fresh",
        has_keys: bool = False,
        has_padding: bool = False,
        is_once: bool = True,
        failed: Callable[[str], None],
    ) -> None:
        self._topics = topics
        self._has_keys = has_keys
        self._has_padding = has_padding
        self._rng = random.Random(seed)
        self._records_per_s = records_per_s
        self._ages_days = AGES_DAYS[age]
        self._age_days = self._ages_days[-1]
        self._is_mixed = age == "mixed"
        self._failed = failed
        self._stopped = threading.Event()
        self.records = 0
        self._producers = [
            Producer(
                {
                    "bootstrap.servers": bootstrap,
                    **(DELIVERED if is_once else SENT_ONCE),
                    "compression.type": codec,
                    "linger.ms": (0, 5, 50)[i % 3],
                    "batch.size": (16_384, 200_000)[i % 2],
                    "queue.buffering.max.messages": QUEUED_RECORDS_MAX,
                    "log_level": 0,
                    "error_cb": self._error,
                }
            )
            for i, codec in enumerate(CODECS)
        ]
        self._thread = threading.Thread(target=self._run, name="writers", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stops the thread and waits until every record is acknowledged."""
        self._stopped.set()
        self._thread.join(FLUSH_S)
        for producer in self._producers:
            if producer.flush(FLUSH_S):
                self._failed("a producer could not deliver all its records")

    def write(self, count: int) -> None:
        """Writes *count* records with random topics, codecs and keys."""
        rng = self._rng
        for _ in range(count):
            age_days = rng.choice(self._ages_days) if self._is_mixed else self._age_days
            timestamp_ms = 1 if age_days is None else time.time_ns() // 1_000_000 - age_days * DAY_MS
            producer = rng.choice(self._producers)
            size = rng.choice((5, 80, 80, 900))
            if self._has_padding and rng.random() < PADDED_SHARE:
                size, producer = PADDED_BYTES, self._producers[-1]
            value = b"%d %s" % (self.records, b"x" * size)
            is_keyed = rng.random() >= 0.2 or self._has_keys
            key = b"k%d" % rng.randrange(1000) if is_keyed else None
            while True:
                try:
                    producer.produce(
                        rng.choice(self._topics),
                        value,
                        key,
                        timestamp=timestamp_ms,
                        headers=[("n", b"%d" % self.records)],
                    )
                except BufferError:
                    if self._stopped.is_set():
                        return
                    producer.poll(0.1)
                else:
                    break
            self.records += 1

    def _run(self) -> None:
        rng = self._rng
        while not self._stopped.is_set():
            burst = rng.choice((0, 0.5, 1, 1, 2))  # multiple of the configured rate
            until_s = time.monotonic() + rng.uniform(0.2, 2.0)
            self._age_days = rng.choice(self._ages_days)
            while time.monotonic() < until_s and not self._stopped.wait(0.05):
                self.write(int(self._records_per_s * burst * 0.05))
                for producer in self._producers:
                    producer.poll(0)

    def _error(self, error: KafkaError) -> None:
        if error.fatal():
            self._failed(f"a producer failed permanently: {error}")


class Transactions:
    """A transactional producer in a thread. With *has_aborts*, it aborts half of its transactions."""

    def __init__(self, bootstrap: str, topics: Sequence[str], *, seed: int, has_aborts: bool) -> None:
        self._has_aborts = has_aborts
        self._bootstrap = bootstrap
        self._topics = topics
        self._rng = random.Random(seed)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="transactions", daemon=True)
        self.committed = self.aborted = 0
        self._started = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stops the thread, which leaves no transaction open."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(FLUSH_S)

    def _run(self) -> None:
        while not self._stopped.is_set():
            producer = Producer(
                {"bootstrap.servers": self._bootstrap, "transactional.id": "chaos", "log_level": 0}
            )
            try:
                producer.init_transactions(TRANSACTION_WAIT_S)
                while not self._stopped.wait(self._rng.uniform(0, 0.3)):
                    self._transaction(producer)
            except KafkaException:
                # A new producer with the same id aborts the transaction that the previous one leaves open.
                continue
        Producer({"bootstrap.servers": self._bootstrap, "transactional.id": "chaos"}).init_transactions(
            TRANSACTION_WAIT_S
        )

    def _transaction(self, producer: Producer) -> None:
        rng = self._rng
        producer.begin_transaction()
        self._started += 1
        for number in range(rng.choice((1, 10, 200))):
            producer.produce(
                rng.choice(self._topics),
                b"t%d %d" % (self._started, number),
                b"t%d" % number,
                headers=[("n", b"%d" % number)],
            )
        producer.flush(TRANSACTION_WAIT_S)
        if rng.random() < 0.5 or not self._has_aborts:
            producer.commit_transaction(TRANSACTION_WAIT_S)
            self.committed += 1
        else:
            producer.abort_transaction(TRANSACTION_WAIT_S)
            self.aborted += 1
