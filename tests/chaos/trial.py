"""A trial with random faults, then recovery, and then a comparison of source and target record by record."""

import contextlib
import json
import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import KafkaException

from tests.chaos.actors import Copier, Side, Transactions, Writers
from tests.chaos.administration import Administration
from tests.chaos.comparison import Comparison
from tests.chaos.dimensions import CHOICES, Dimensions
from tests.chaos.schedule import Kind, Step, steps
from tests.harness.clock import SteppingClock
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.elections import FOLLOWER, LEADER, fragile_topic
from tests.harness.kafka.listeners import User
from tests.harness.kafka.processes import HarnessError, wait_until
from tests.harness.kafka.tools import FOREVER
from tests.harness.replay import differences
from tests.harness.replicator import Replicator

TOPICS = {"chaos.orders": 4, "chaos.events": 3}
BROKERS = {"min.insync.replicas": "2", "transaction.state.log.min.isr": "2"}
# A broker checks for expired producers every half second instead of every ten minutes. A minute is much longer than any
# process is unavailable, so that producers of current records do not expire.
EXPIRING = {"producer.id.expiration.ms": "60000", "producer.id.expiration.check.interval.ms": "500"}
# The fastest compaction of a broker: segments close every three seconds, and are checked twice a second.
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.bytes": str(1 << 20),
    "segment.ms": "3000",
    "min.cleanable.dirty.ratio": "0.01",
}
MIRROR = User(name="mirror", password="secret")
# The operations that a flow needs on the target, except those on transactional ids.
OPERATIONS = ("READ", "WRITE", "CREATE", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS")
TRANSACTIONAL_IDS = "mirrorflow:"
# Clock offsets: corrections by NTP, a daylight-saving mistake, and the correct time.
STEPS_S = (20, -20, 3600, -3600, 0)
LIMIT_FACTOR = 3  # limits and denials outlast an unavailable process, which then restarts under them
LATE_MARGIN_S = 1.0  # after this time, all late requests have arrived
TICK_S = 0.05
COUNT_S = 3.0  # the pause between two counts, each of which reads all records
# Several elections, session timeouts and takeovers on a busy machine take less time. A longer wait means that a copier
# is stuck.
SETTLE_S = 240.0
LAST_RECORDS = 500  # records written at the end, which reveal a copier that continues at a wrong offset


@dataclass(kw_only=True, slots=True)
class Result:
    """The result. `problems` is empty if both sides are equal and no copier was stuck."""

    seed: int
    seconds: float
    done: Counter[Kind] = field(default_factory=Counter)
    written: int = 0
    source_records: int = 0
    target_records: int = 0
    problems: list[str] = field(default_factory=list)

    def summary(self) -> str:
        """Returns the lines that are printed after the trial."""
        lines = [f"seed {self.seed}, {self.seconds:.0f} s"]
        lines += [f"  {self.done[kind]:4}  {kind.value}" for kind in Kind]
        lines.append(f"  {self.source_records} records on the source, {self.target_records} on the target")
        lines += [f"DIFFERENT: {problem}" for problem in self.problems]
        return "\n".join([*lines, "NOT EQUAL" if self.problems else "EQUAL, record by record"])


class Trial:
    """A trial. After a failure, *folder* has `events.log` and the logs of copiers and brokers."""

    def __init__(
        self,
        *,
        seed: int,
        seconds: float,
        records_per_s: int,
        dimensions: Dimensions,
        folder: Path,
        log: Callable[[str], None],
    ) -> None:
        self.folder = folder
        self.result = Result(seed=seed, seconds=seconds)
        self._records_per_s = records_per_s
        self._dimensions = dimensions
        self._log = log
        self._began_s = time.monotonic()
        self._sides: dict[str, Side] = {}
        self._copiers: list[Copier] = []
        self._late_until_s = 0.0

    def run(self) -> Result:
        """Runs the trial and stops all brokers and copiers."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        with (
            KafkaCluster(name="chaos-east", brokers=3, config=BROKERS) as east,
            self._target() as west,
        ):
            self._sides = {
                "source": Side(cluster=east, topics=list(TOPICS)),
                "target": Side(cluster=west, topics=[f"{east.name}.{topic}" for topic in TOPICS]),
            }
            self._create_topics(east, west)
            copies = tuple(f"{east.name}.{topic}" for topic in TOPICS)
            self._administrators = Administration(east=east, west=west, copies=copies, user=MIRROR.name)
            try:
                self._trial(east, west)
            except HarnessError as error:
                self._problem(str(error))
            finally:
                for copier in self._copiers:
                    if copier.replicator.running:
                        copier.replicator.kill()
                if self.result.problems:
                    self._keep()
        return self.result

    def _target(self) -> KafkaCluster:
        has_authorizer = self._dimensions.has_authorizer
        return KafkaCluster(
            name="chaos-west",
            brokers=3,
            version=self._dimensions.brokers,
            config=BROKERS | (EXPIRING if self._dimensions.expiry == "minute" else {}),
            authorizer=has_authorizer,
            listeners=("SASL_PLAINTEXT" if has_authorizer else "PLAINTEXT",),
            users=(MIRROR,),
            proxied=self._dimensions.network == "late",
        )

    def _create_topics(self, east: KafkaCluster, west: KafkaCluster) -> None:
        config = FOREVER | (COMPACTED if self._dimensions.cleanup == "compact" else {})
        copy_config = {
            "compression.type": self._dimensions.codec,
            "message.timestamp.type": self._dimensions.times,
        }
        for topic, partitions in TOPICS.items():
            if self._dimensions.is_truncated:
                fragile_topic(east, topic, partitions=partitions, config=config)
            else:
                east.create_topic(topic, partitions=partitions, replication_factor=3, config=config)
            west.create_topic(
                f"{east.name}.{topic}",
                partitions=partitions,
                replication_factor=3,
                config=config | copy_config,
            )
        if west.authorizer:
            for operation in OPERATIONS:
                west.allow(operation, "TOPIC", "*", user=MIRROR.name)
            west.allow("DESCRIBE_CONFIGS", "CLUSTER", "kafka-cluster", user=MIRROR.name)
            if self._dimensions.transactions == "allowed":
                for operation in ("WRITE", "DESCRIBE"):
                    west.allow(
                        operation, "TRANSACTIONAL_ID", TRANSACTIONAL_IDS, user=MIRROR.name, prefixed=True
                    )

    def _trial(self, east: KafkaCluster, west: KafkaCluster) -> None:
        self._copiers = [self._copier(east, west, number) for number in range(int(self._dimensions.copiers))]
        self._comparison = Comparison(
            dimensions=self._dimensions,
            east=east,
            west=west,
            replicators=[copier.replicator for copier in self._copiers],
        )
        for copier in self._copiers:
            copier.start()
        writers = Writers(
            east.bootstrap,
            list(TOPICS),
            seed=self.result.seed,
            records_per_s=self._records_per_s,
            age=self._dimensions.age,
            has_keys=self._dimensions.cleanup == "compact",
            has_padding=self._dimensions.padding == "large",
            is_once=not self._dimensions.is_truncated,
            failed=self._problem,
        )
        transactions = Transactions(
            east.bootstrap, list(TOPICS), seed=self.result.seed, has_aborts=self._dimensions.has_aborts
        )
        writers.start()
        if self._dimensions.has_source_transactions:
            transactions.start()
        self._note(f"all processes run: {self._dimensions}")
        try:
            self._inject_faults()
            self._recover()
        finally:
            writers.stop()
            transactions.stop()
        self._note(f"{transactions.committed} transactions committed, {transactions.aborted} aborted")
        self._note("all processes have recovered")
        self._wait_until_copied()
        # A restart and more records reveal an offset or sequence number that is wrong by one.
        for copier in self._copiers:
            copier.replicator.kill()
            copier.start()
        writers.write(LAST_RECORDS)
        writers.stop()
        self._wait_until_copied()
        for copier in self._copiers:
            os.kill(copier.replicator.pid, signal.SIGUSR1)
            copier.replicator.stop()
        self._replay()
        self.result.written = writers.records
        self._compare()

    def _replay(self) -> None:
        """Replays the event logs that partitions have written when they stopped and at the end of the trial."""
        count = 0
        for path in self.folder.glob("copier-*/temporary/*/*.json"):
            with contextlib.suppress(json.JSONDecodeError):  # the process was killed while it wrote the file
                for difference in differences(json.loads(path.read_text())):
                    self._problem(f"{path.name}: {difference}")
                count += 1
        self._note(f"{count} event logs replayed")

    def _copier(self, east: KafkaCluster, west: KafkaCluster, number: int) -> Copier:
        client = west.java_client("PROXIED" if west.proxied else west.listeners[0])
        policy = {"mirrorflow.source.loss.policy": self._dimensions.truncation}
        folder = self.folder / f"copier-{number}"
        is_stepping = self._dimensions.clocks == "stepping"
        clock = SteppingClock(folder / "clock") if is_stepping else None
        temporary = folder / "temporary"
        temporary.mkdir(parents=True)
        replicator = Replicator.standalone(
            east,
            west,
            topics="chaos\\..*",
            folder=folder,
            connector={
                "replication.factor": "3",
                "tasks.max": self._dimensions.tasks,
                "source.consumer.isolation.level": self._dimensions.isolation,
                **(policy if self._dimensions.is_truncated else {}),
                **{f"target.cluster.{name}": value for name, value in client.items()},
            },
            worker={
                "offset.storage.replication.factor": "1" if self._dimensions.internals == "single" else "3",
                **client,
            },
            environment={"TMPDIR": str(temporary), **({} if clock is None else clock.environment)},
        )
        replicator.name = f"copier-{number}"
        return Copier(replicator=replicator, clock=clock)

    def _inject_faults(self) -> None:
        end_s = time.monotonic() + self.result.seconds
        dimensions = self._dimensions
        is_enabled = {
            Kind.CHANGE_SETTINGS: dimensions.settings == "rolling",
            Kind.TRUNCATE_SOURCE: dimensions.is_truncated,
            Kind.ALTER_INTERNAL: dimensions.internals == "altered",
            Kind.STEP_CLOCK: dimensions.clocks == "stepping",
            Kind.ALTER_COPY: dimensions.copies == "changing",
            Kind.LIMIT_RATE: dimensions.quotas == "passing",
            Kind.DENY_COPY: dimensions.rights == "changing",
            Kind.LATE_REQUESTS: dimensions.network == "late",
        }
        schedule = steps(
            self.result.seed, without=[kind for kind, enabled in is_enabled.items() if not enabled]
        )
        step = next(schedule)
        due_s = time.monotonic() + step.after_s
        while (now := time.monotonic()) < end_s:
            if now >= due_s:
                self._do(step)
                step = next(schedule)
                due_s = now + step.after_s
            self._tick()
            time.sleep(TICK_S)

    def _tick(self) -> None:
        for side in self._sides.values():
            side.tick()
        for copier in self._copiers:
            copier.tick()
        if not self._is_any_broker_unavailable:
            self._administrators.tick()

    @property
    def _is_any_broker_unavailable(self) -> bool:
        return any(side.unavailable_id for side in self._sides.values())

    def _note_logs(self, broker: int) -> None:
        """Stores the records in the logs of an unavailable source broker, which may lose them."""
        for topic in TOPICS:
            self._comparison.note_log(topic, self._sides["source"].cluster.broker(broker))

    def _do(self, step: Step) -> None:
        copier = self._copiers[step.choice % len(self._copiers)]
        kind = step.kind
        match kind:
            case Kind.KILL_COPIER:
                done = copier.kill(step.away_s)
            case Kind.STOP_COPIER:
                done = copier.stop(step.away_s)
            case Kind.KILL_TASK:
                done = copier.kill_task(step.choice)
            case Kind.FREEZE_COPIER | Kind.FREEZE_TASK:
                done = copier.freeze(step.choice, step.away_s, task=kind is Kind.FREEZE_TASK)
            case Kind.CHANGE_SETTINGS:
                done = self._change_settings(step)
            case Kind.STEP_CLOCK:
                done = self._step_clock(copier, STEPS_S[step.choice // 7 % len(STEPS_S)])
            case Kind.ALTER_INTERNAL | Kind.ALTER_COPY | Kind.LIMIT_RATE | Kind.DENY_COPY:
                done = self._administer(step)
            case Kind.LATE_REQUESTS:
                done = self._make_late(step)
            case Kind.TRUNCATE_SOURCE:
                lost = self._sides["source"].lose_tail(step.choice, away_s=step.away_s / 2)
                done = bool(lost)
                if done:
                    self._note(f"source broker {lost} lost what was written for {step.away_s / 2:.1f} s")
                    self._note_logs(lost)
            case _:
                side = self._sides["source" if kind in {Kind.KILL_SOURCE, Kind.FREEZE_SOURCE} else "target"]
                freeze = kind in {Kind.FREEZE_SOURCE, Kind.FREEZE_TARGET}
                broker_id = side.strike(step.choice, leads=step.leads, freeze=freeze, away_s=step.away_s)
                done = bool(broker_id)
                if done:
                    self._note(f"{kind.value} {broker_id} for {step.away_s:.1f} s")
                if (
                    side is self._sides["source"]
                    and broker_id in {LEADER, FOLLOWER}
                    and self._dimensions.is_truncated
                ):
                    # On a slow machine, the other replica is out of sync, and is still elected.
                    self._note_logs(broker_id)
        if done:
            self.result.done[kind] += 1
            if kind.value.startswith(("copier", "task")):
                self._note(f"{copier.replicator.name}: {kind.value} for {step.away_s:.1f} s")

    def _change_settings(self, step: Step) -> bool:
        """Restarts all copiers with changed settings."""
        lines = {
            name: CHOICES[dimension][step.choice % len(CHOICES[dimension])]
            for name, dimension in (("tasks.max", "tasks"), ("source.consumer.isolation.level", "isolation"))
        }
        for copier in self._copiers:
            copier.change_settings(lines)
        self._note(f"settings of all copiers: {lines}")
        return True

    def _step_clock(self, copier: Copier, seconds: int) -> bool:
        if copier.clock is None:
            return False
        copier.clock.step_to(seconds)
        self._note(f"{copier.replicator.name}: clock {seconds:+} s")
        return True

    def _make_late(self, step: Step) -> bool:
        """Breaks the connections to a target broker and delays the requests in flight."""
        west = self._sides["target"].cluster
        broker = 1 + step.choice % west.brokers
        west.proxy(broker).make_late(int(step.away_s * 1000))
        self._late_until_s = max(self._late_until_s, time.monotonic() + step.away_s)
        self._note(f"requests to target broker {broker} late by {step.away_s:.1f} s")
        return True

    def _administer(self, step: Step) -> bool:
        """Changes the clusters while all brokers are available, because a request to a frozen broker would block."""
        if self._is_any_broker_unavailable:
            return False
        administrators, away_s = self._administrators, LIMIT_FACTOR * step.away_s
        match step.kind:
            case Kind.ALTER_INTERNAL:
                done = administrators.alter_internal(step.choice)
            case Kind.ALTER_COPY:
                done = administrators.alter_copy(step.choice)
            case Kind.LIMIT_RATE:
                done = administrators.limit_rate(step.choice, away_s)
            case _:
                done = administrators.deny_copy(step.choice, away_s)
        if done:
            self._note(done)
        return bool(done)

    def _recover(self) -> None:
        """Waits until all processes run, and removes limits and denials."""
        self._note("processes recover")

        def is_recovered() -> bool:
            self._tick()
            if time.monotonic() < self._late_until_s + LATE_MARGIN_S:
                return False
            return not any(side.unavailable_id for side in self._sides.values()) and not any(
                copier.has_ended or copier.is_stopping or copier.is_outdated or copier.frozen_pids
                for copier in self._copiers
            )

        wait_until(
            "all processes run and every replica is in sync", is_recovered, timeout_s=SETTLE_S, poll_s=TICK_S
        )
        self._administrators.restore()

    def _wait_until_copied(self) -> None:
        def is_copied() -> bool:
            self._tick()
            try:
                return all(self._comparison.is_copied(topic) for topic in TOPICS)
            except (KafkaException, KeyError):
                return False

        try:
            wait_until("every record is copied", is_copied, timeout_s=SETTLE_S, poll_s=COUNT_S)
        except HarnessError as error:
            reports = [
                f"{copier.replicator.name}: {partition['topic']}-{partition['partition']} {partition['phase']} at {partition['sourceOffset']}"
                f" of {partition['sourceEndOffset']}: {partition.get('message', '')}"
                for copier in self._copiers
                for partition in copier.replicator.partitions()
                if partition["phase"] != "waiting"
            ]
            differences = [
                difference for topic in TOPICS if (difference := self._comparison.difference(topic))
            ]
            self._problem("\n  ".join([str(error), *reports, *differences]))
            raise

    def _compare(self) -> None:
        ends = 0
        for topic in TOPICS:
            self.result.source_records += self._comparison.count("source", topic)
            self.result.target_records += self._comparison.count("target", topic)
            ends += sum(self._sides["target"].cluster.end_offsets(f"chaos-east.{topic}").values())
            if difference := self._comparison.difference(topic):
                self._problem(difference)
        is_whole = self._dimensions.cleanup == "delete"
        if self._dimensions.has_transactions and is_whole and ends == self.result.target_records:
            self._problem("there is no commit marker, so no record was written inside a transaction")

    def _note(self, event: str) -> None:
        line = f"{time.monotonic() - self._began_s:7.2f}  {time.strftime('%H:%M:%S')}  {event}"
        with (self.folder / "events.log").open("a") as file:
            file.write(line + "\n")
        self._log(line)

    def _problem(self, problem: str) -> None:
        self.result.problems.append(problem)
        self._note(problem)

    def _keep(self) -> None:
        """Copies the brokers' logs, which the clusters delete when they close."""
        for name, side in self._sides.items():
            for id_, broker in side.cluster.nodes.items():
                if broker.log.exists():
                    shutil.copy(broker.log, self.folder / f"{name}-broker-{id_}.log")
