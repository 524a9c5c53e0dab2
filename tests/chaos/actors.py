"""Those who suffer: two clusters, the copiers of one flow, and the producers that never stop.

Nothing here waits, except for a broker's response: `tick` brings stopped processes back when their time has come.
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

LOOK_S = 0.5  # how often a cluster is asked whether its replicas are in sync
METADATA_S = 3.0
STOP_WAIT_S = 60.0  # a copier told to stop finishes within the grace period of a pod
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
# Records that zstd, the last of `CODECS`, compresses to a hundred bytes: merged by what they have on disk, they unpack to more
# than any client takes. A backlog of 10,000 records has 30 of them.
PADDED_BYTES = 200 << 10
PADDED_SHARE = 0.003
QUEUED_RECORDS_MAX = 20_000
FLUSH_S = 120.0
DAY_MS = 86_400_000
# What was begun is delivered, however long a leader is away.
DELIVERED: dict[str, str | int | bool] = {"enable.idempotence": True, "message.timeout.ms": 0}
# A leader that has lost its tail refuses an idempotent producer for good, and takes again what another one retries.
SENT_ONCE: dict[str, str | int | bool] = {"acks": "all", "retries": 0, "message.timeout.ms": 10_000}
TRANSACTION_WAIT_S = 30.0  # an election of the coordinator, and the wait for the replicas of its log


@dataclass(kw_only=True, slots=True)
class Side:
    """A cluster of which one broker at most is away: the next one only when all replicas are in sync again."""

    cluster: KafkaCluster
    topics: Sequence[str]
    away: int = 0  # its id; 0: all are there
    frozen: bool = False
    back_s: float = 0.0
    is_returning: bool = False
    look_s: float = 0.0

    def strike(self, step_who: int, *, leads: bool, freeze: bool, away_s: float) -> int:
        """Takes a broker away; its id, or 0 while another is."""
        if self.away:
            return 0
        victim = self._leader(step_who) if leads else 0
        victim = victim if victim > 0 else 1 + step_who % len(self.cluster.nodes)
        broker = self.cluster.broker(victim)
        if freeze:
            broker.freeze()
        else:
            broker.kill()
        self.away, self.frozen, self.is_returning = victim, freeze, False
        self.back_s = time.monotonic() + away_s
        return victim

    def lose_tail(self, step_who: int, *, away_s: float) -> int:
        """An unclean election, which loses what is written for *away_s*; the broker that lost, or 0 while another is away.

        The topics are those of `elections.FRAGILE`, with replicas on `elections.LEADER` and `elections.FOLLOWER`.
        """
        if self.away or not self.is_whole():
            return 0
        leader = (LEADER, FOLLOWER)[step_who % 2]
        follower = LEADER + FOLLOWER - leader
        with tail_lost(self.cluster, *self.topics, leader=leader, follower=follower):
            time.sleep(away_s)
        self.away, self.frozen, self.is_returning = leader, False, False
        self.back_s = time.monotonic()
        return leader

    def tick(self) -> None:
        """Brings the broker back, and notices when it has caught up."""
        now = time.monotonic()
        if not self.away or now < self.back_s:
            return
        if not self.is_returning:
            broker = self.cluster.broker(self.away)
            if self.frozen:
                broker.thaw()
            else:
                broker.launch()
            self.is_returning = True
        elif now >= self.look_s:
            self.look_s = now + LOOK_S
            if self.is_whole():
                self.away = 0

    def is_whole(self) -> bool:
        """Whether every broker is there and every replica in sync."""
        try:
            found = self.cluster.admin.list_topics(timeout=METADATA_S)
        except KafkaException:
            return False
        return len(found.brokers) == len(self.cluster.nodes) and all(
            len(partition.isrs) == len(partition.replicas) and partition.leader > 0
            for topic in found.topics.values()
            for partition in topic.partitions.values()
        )

    def _leader(self, who: int) -> int:
        try:
            return self.cluster.leader(self.topics[who % len(self.topics)], 0)
        except (KafkaException, KeyError):
            return 0


@dataclass(kw_only=True, slots=True)
class Copier:
    """One process of the flow: at work, away, or leaving."""

    replicator: Replicator
    clock: SteppingClock | None = None
    frozen_pids: list[int] = field(default_factory=list)
    back_s: float = 0.0
    is_away: bool = False  # ended by us, to be started again
    is_leaving: bool = False  # told to stop
    is_outdated: bool = False  # runs with other settings than it should

    def start(self) -> None:
        self.replicator.start()
        self.is_outdated = False

    def change_settings(self, lines: Mapping[str, str]) -> None:
        """Lines of the connector; it is restarted with them as soon as it is neither frozen nor away."""
        process, connector = self.replicator.files
        assert isinstance(connector, Mapping)
        self.replicator.files = (process, {**connector, **lines})
        self.is_outdated = True

    def kill(self, away_s: float) -> bool:
        """kill -9 of all its processes."""
        if self.is_away or self.is_leaving:
            return False
        self.replicator.kill()
        self._leave(away_s)
        return True

    def stop(self, away_s: float) -> bool:
        """SIGTERM."""
        if self.is_away or self.is_leaving or self.frozen_pids:
            return False
        os.kill(self.replicator.pid, signal.SIGTERM)
        self.is_leaving = True
        self.back_s = time.monotonic() + STOP_WAIT_S + away_s
        return True

    def kill_task(self, who: int) -> bool:
        """kill -9 of one task, which the worker starts again."""
        return self._signal_task(who, signal.SIGKILL) is not None

    def freeze(self, who: int, away_s: float, *, task: bool) -> bool:
        """SIGSTOP of one task, or of all its processes."""
        if self.is_away or self.is_leaving or self.frozen_pids:
            return False
        if task:
            pid = self._signal_task(who, signal.SIGSTOP)
            self.frozen_pids = [] if pid is None else [pid]
        else:
            self.frozen_pids = [self.replicator.pid, *self.replicator.task_pids()]
            for pid in self.frozen_pids:
                _send(pid, signal.SIGSTOP)
        self.back_s = time.monotonic() + away_s
        return bool(self.frozen_pids)

    def tick(self) -> None:
        """Thaws and starts what is due. `HarnessError` if it has ended by itself, or does not end when told to."""
        now = time.monotonic()
        if self.is_leaving:
            if not self.replicator.running:
                self.is_leaving = False
                self._leave(max(0.0, self.back_s - STOP_WAIT_S - now))
            elif now > self.back_s:
                raise HarnessError(f"{self.replicator.name} did not end in {STOP_WAIT_S:g} s.")
        elif self.is_away:
            if now >= self.back_s:
                self.is_away = False
                self.start()
        elif not self.replicator.running:
            assert self.replicator.child is not None
            self.replicator.child.must_run()
        elif self.frozen_pids:
            if now >= self.back_s:
                self.thaw()
        elif self.is_outdated:
            self.stop(0.0)

    def thaw(self) -> None:
        for pid in self.frozen_pids:
            _send(pid, signal.SIGCONT)
        self.frozen_pids = []

    def _leave(self, away_s: float) -> None:
        self.is_away = True
        self.frozen_pids = []
        self.back_s = time.monotonic() + away_s

    def _signal_task(self, who: int, number: signal.Signals) -> int | None:
        if self.is_away or self.is_leaving or not self.replicator.running:
            return None
        pids = self.replicator.task_pids()
        if not pids:
            return None
        pid = pids[who % len(pids)]
        _send(pid, number)
        return pid


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


class Writers:
    """librdkafka producers, one for each codec, in a thread of their own: trickles, bursts and silences.

    No record is written twice. Unless *is_once*, some are not written at all.
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
        self._chance = random.Random(seed)
        self._records_per_s = records_per_s
        self._ages_days = AGES_DAYS[age]
        self._age_days = self._ages_days[-1]
        self._is_mixed = age == "mixed"
        self._failed = failed
        self._quit = threading.Event()
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
        """Ends, with everything that was written acknowledged."""
        self._quit.set()
        self._thread.join(FLUSH_S)
        for producer in self._producers:
            if producer.flush(FLUSH_S):
                self._failed("a producer could not deliver all it had")

    def write(self, count: int) -> None:
        """*count* records, spread over topics, codecs and keys."""
        chance = self._chance
        for _ in range(count):
            age_days = chance.choice(self._ages_days) if self._is_mixed else self._age_days
            timestamp_ms = 1 if age_days is None else time.time_ns() // 1_000_000 - age_days * DAY_MS
            producer = chance.choice(self._producers)
            size = chance.choice((5, 80, 80, 900))
            if self._has_padding and chance.random() < PADDED_SHARE:
                size, producer = PADDED_BYTES, self._producers[-1]
            value = b"%d %s" % (self.records, b"x" * size)
            is_keyed = chance.random() >= 0.2 or self._has_keys
            key = b"k%d" % chance.randrange(1000) if is_keyed else None
            while True:
                try:
                    producer.produce(
                        chance.choice(self._topics),
                        value,
                        key,
                        timestamp=timestamp_ms,
                        headers=[("n", b"%d" % self.records)],
                    )
                except BufferError:
                    if self._quit.is_set():
                        return
                    producer.poll(0.1)
                else:
                    break
            self.records += 1

    def _run(self) -> None:
        chance = self._chance
        while not self._quit.is_set():
            burst = chance.choice((0, 0.5, 1, 1, 2))  # of the rate, for a moment
            until_s = time.monotonic() + chance.uniform(0.2, 2.0)
            self._age_days = chance.choice(self._ages_days)
            while time.monotonic() < until_s and not self._quit.wait(0.05):
                self.write(int(self._records_per_s * burst * 0.05))
                for producer in self._producers:
                    producer.poll(0)

    def _error(self, error: KafkaError) -> None:
        if error.fatal():
            self._failed(f"a producer failed for good: {error}")


class Transactions:
    """A transactional producer in a thread of its own: with *has_aborts* half of its transactions are aborted."""

    def __init__(self, bootstrap: str, topics: Sequence[str], *, seed: int, has_aborts: bool) -> None:
        self._has_aborts = has_aborts
        self._bootstrap = bootstrap
        self._topics = topics
        self._chance = random.Random(seed)
        self._quit = threading.Event()
        self._thread = threading.Thread(target=self._run, name="transactions", daemon=True)
        self.committed = self.aborted = 0
        self._begun = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends with no transaction open."""
        self._quit.set()
        if self._thread.is_alive():
            self._thread.join(FLUSH_S)

    def _run(self) -> None:
        while not self._quit.is_set():
            producer = Producer(
                {"bootstrap.servers": self._bootstrap, "transactional.id": "chaos", "log_level": 0}
            )
            try:
                producer.init_transactions(TRANSACTION_WAIT_S)
                while not self._quit.wait(self._chance.uniform(0, 0.3)):
                    self._transaction(producer)
            except KafkaException:
                # Whatever it was, a new producer with the same id ends the transaction that this one leaves.
                continue
        Producer({"bootstrap.servers": self._bootstrap, "transactional.id": "chaos"}).init_transactions(
            TRANSACTION_WAIT_S
        )

    def _transaction(self, producer: Producer) -> None:
        chance = self._chance
        producer.begin_transaction()
        self._begun += 1
        for number in range(chance.choice((1, 10, 200))):
            producer.produce(
                chance.choice(self._topics),
                b"t%d %d" % (self._begun, number),
                b"t%d" % number,
                headers=[("n", b"%d" % number)],
            )
        producer.flush(TRANSACTION_WAIT_S)
        if chance.random() < 0.5 or not self._has_aborts:
            producer.commit_transaction(TRANSACTION_WAIT_S)
            self.committed += 1
        else:
            producer.abort_transaction(TRANSACTION_WAIT_S)
            self.aborted += 1
