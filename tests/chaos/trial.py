"""One trial: everybody at work and taken away at random, then rest, then both sides compared record by record."""

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
# A hundred expiry checks a minute, where a broker as it comes makes one in ten minutes. What is written now is remembered for
# much longer than anybody is away: with a day it is so by itself.
FORGETFUL = {"producer.id.expiration.ms": "60000", "producer.id.expiration.check.interval.ms": "500"}
# As quickly as a broker compacts: closed segments every few seconds, each looked at twice a second.
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.bytes": str(1 << 20),
    "segment.ms": "3000",
    "min.cleanable.dirty.ratio": "0.01",
}
MIRROR = User(name="mirror", password="secret")
# All that a flow needs on the target but its transactional ids.
RIGHTS = ("READ", "WRITE", "CREATE", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS")
TRANSACTIONAL_IDS = "mirrorflow:"
# Of clocks that step: what NTP corrects, a daylight-saving mistake, and right again.
STEPS_S = (20, -20, 3600, -3600, 0)
PASSING = 3  # rates and rights are changed for longer than a process is away: a restart falls into that time
LATE_MARGIN_S = 1.0  # all that was late has arrived
TICK_S = 0.05
COUNT_S = 3.0  # each count reads all copies; markers take offsets, so those do not say
# Elections, sessions that end and successions in a row on a busy machine; what takes longer is stuck.
SETTLE_S = 240.0
LAST_RECORDS = 500  # written when all is calm: a copier that continued at a wrong offset shows it now


@dataclass(kw_only=True, slots=True)
class Result:
    """The result; `problems` is empty if both sides are equal and no copier got stuck."""

    seed: int
    seconds: float
    done: Counter[Kind] = field(default_factory=Counter)
    written: int = 0
    source_records: int = 0
    target_records: int = 0
    problems: list[str] = field(default_factory=list)

    def summary(self) -> str:
        """For people."""
        lines = [f"seed {self.seed}, {self.seconds:.0f} s"]
        lines += [f"  {self.done[kind]:4}  {kind.value}" for kind in Kind]
        lines.append(f"  {self.source_records} records on the source, {self.target_records} on the target")
        lines += [f"DIFFERENT: {problem}" for problem in self.problems]
        return "\n".join([*lines, "NOT EQUAL" if self.problems else "EQUAL, record by record"])


class Trial:
    """One trial. After a failure, *folder* has `events.log` and the logs of copiers and brokers."""

    def __init__(
        self,
        *,
        seed: int,
        seconds: float,
        records_per_s: int,
        dimensions: Dimensions,
        folder: Path,
        say: Callable[[str], None],
    ) -> None:
        self.folder = folder
        self.result = Result(seed=seed, seconds=seconds)
        self._records_per_s = records_per_s
        self._dimensions = dimensions
        self._say = say
        self._began_s = time.monotonic()
        self._sides: dict[str, Side] = {}
        self._copiers: list[Copier] = []
        self._late_until_s = 0.0

    def run(self) -> Result:
        """The whole trial; brokers and copiers are gone afterwards."""
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
            config=BROKERS | (FORGETFUL if self._dimensions.expiry == "minute" else {}),
            authorizer=has_authorizer,
            listeners=("SASL_PLAINTEXT" if has_authorizer else "PLAINTEXT",),
            users=(MIRROR,),
            proxied=self._dimensions.network == "late",
        )

    def _create_topics(self, east: KafkaCluster, west: KafkaCluster) -> None:
        config = FOREVER | (COMPACTED if self._dimensions.cleanup == "compact" else {})
        of_copy = {
            "compression.type": self._dimensions.codec,
            "message.timestamp.type": self._dimensions.times,
        }
        for topic, partitions in TOPICS.items():
            if self._dimensions.is_truncated:
                fragile_topic(east, topic, partitions=partitions, config=config)
            else:
                east.create_topic(topic, partitions=partitions, replication_factor=3, config=config)
            west.create_topic(
                f"{east.name}.{topic}", partitions=partitions, replication_factor=3, config=config | of_copy
            )
        if west.authorizer:
            for operation in RIGHTS:
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
        self._note(f"all at work: {self._dimensions}")
        try:
            self._chaos()
            self._calm()
        finally:
            writers.stop()
            transactions.stop()
        self._note(f"{transactions.committed} transactions committed, {transactions.aborted} aborted")
        self._note("calm")
        self._wait_until_equal_ends()
        # These show an offset or a sequence that is off by one, which is invisible while records still arrive.
        for copier in self._copiers:
            copier.replicator.kill()
            copier.start()
        writers.write(LAST_RECORDS)
        writers.stop()
        self._wait_until_equal_ends()
        for copier in self._copiers:
            os.kill(copier.replicator.pid, signal.SIGUSR1)
            copier.replicator.stop()
        self._replay()
        self.result.written = writers.records
        self._compare()

    def _replay(self) -> None:
        """Replays what partitions did when they stopped, and in the end."""
        count = 0
        for path in self.folder.glob("copier-*/temporary/*/*.json"):
            with contextlib.suppress(json.JSONDecodeError):  # its process was killed while it wrote
                for difference in differences(json.loads(path.read_text())):
                    self._problem(f"{path.name}: {difference}")
                count += 1
        self._note(f"{count} partitions replayed")

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

    # The chaos.

    def _chaos(self) -> None:
        end_s = time.monotonic() + self.result.seconds
        one = self._dimensions
        has = {
            Kind.CHANGE_SETTINGS: one.settings == "rolling",
            Kind.TRUNCATE_SOURCE: one.is_truncated,
            Kind.ALTER_INTERNAL: one.internals == "altered",
            Kind.STEP_CLOCK: one.clocks == "stepping",
            Kind.ALTER_COPY: one.copies == "changing",
            Kind.LIMIT_RATE: one.quotas == "passing",
            Kind.DENY_COPY: one.rights == "changing",
            Kind.LATE_REQUESTS: one.network == "late",
        }
        schedule = steps(self.result.seed, without=[kind for kind, is_there in has.items() if not is_there])
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
        if not self._is_any_away:
            self._administrators.tick()

    @property
    def _is_any_away(self) -> bool:
        return any(side.away for side in self._sides.values())

    def _note_logs(self, broker: int) -> None:
        """Notes what is in the logs of a source broker that is away, and may lose it."""
        for topic in TOPICS:
            self._comparison.note_log(topic, self._sides["source"].cluster.broker(broker))

    def _do(self, step: Step) -> None:
        copier = self._copiers[step.who % len(self._copiers)]
        kind = step.kind
        match kind:
            case Kind.KILL_COPIER:
                done = copier.kill(step.away_s)
            case Kind.STOP_COPIER:
                done = copier.stop(step.away_s)
            case Kind.KILL_TASK:
                done = copier.kill_task(step.who)
            case Kind.FREEZE_COPIER | Kind.FREEZE_TASK:
                done = copier.freeze(step.who, step.away_s, task=kind is Kind.FREEZE_TASK)
            case Kind.CHANGE_SETTINGS:
                done = self._change_settings(step)
            case Kind.STEP_CLOCK:
                done = self._step_clock(copier, STEPS_S[step.who // 7 % len(STEPS_S)])
            case Kind.ALTER_INTERNAL | Kind.ALTER_COPY | Kind.LIMIT_RATE | Kind.DENY_COPY:
                done = self._administer(step)
            case Kind.LATE_REQUESTS:
                done = self._make_late(step)
            case Kind.TRUNCATE_SOURCE:
                lost = self._sides["source"].lose_tail(step.who, away_s=step.away_s / 2)
                done = bool(lost)
                if done:
                    self._note(f"source broker {lost} lost what was written for {step.away_s / 2:.1f} s")
                    self._note_logs(lost)
            case _:
                side = self._sides["source" if kind in {Kind.KILL_SOURCE, Kind.FREEZE_SOURCE} else "target"]
                freeze = kind in {Kind.FREEZE_SOURCE, Kind.FREEZE_TARGET}
                found = side.strike(step.who, leads=step.leads, freeze=freeze, away_s=step.away_s)
                done = bool(found)
                if done:
                    self._note(f"{kind.value} {found} for {step.away_s:.1f} s")
                if (
                    side is self._sides["source"]
                    and found in {LEADER, FOLLOWER}
                    and self._dimensions.is_truncated
                ):
                    self._note_logs(
                        found
                    )  # on a slow machine the other replica is out of sync, and elected nevertheless
        if done:
            self.result.done[kind] += 1
            if kind.value.startswith(("copier", "task")):
                self._note(f"{copier.replicator.name}: {kind.value} for {step.away_s:.1f} s")

    def _change_settings(self, step: Step) -> bool:
        """Restart one copier after another with other settings, which all have from then on."""
        lines = {
            name: CHOICES[dimension][step.who % len(CHOICES[dimension])]
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
        """Breaks the connections to a broker of the target, and lets what was on its way to it arrive late."""
        west = self._sides["target"].cluster
        broker = 1 + step.who % west.brokers
        west.proxy(broker).make_late(int(step.away_s * 1000))
        self._late_until_s = max(self._late_until_s, time.monotonic() + step.away_s)
        self._note(f"requests to target broker {broker} late by {step.away_s:.1f} s")
        return True

    def _administer(self, step: Step) -> bool:
        """Has the administrators do it, while all brokers are there: they would wait for one that is frozen."""
        if self._is_any_away:
            return False
        administrators, away_s = self._administrators, PASSING * step.away_s
        match step.kind:
            case Kind.ALTER_INTERNAL:
                done = administrators.alter_internal(step.who)
            case Kind.ALTER_COPY:
                done = administrators.alter_copy(step.who)
            case Kind.LIMIT_RATE:
                done = administrators.limit_rate(step.who, away_s)
            case _:
                done = administrators.deny_copy(step.who, away_s)
        if done:
            self._note(done)
        return bool(done)

    def _calm(self) -> None:
        """Everybody comes back, and gets what was taken from the flow."""
        self._note("everybody comes back")

        def is_calm() -> bool:
            self._tick()
            if time.monotonic() < self._late_until_s + LATE_MARGIN_S:
                return False
            return not any(side.away for side in self._sides.values()) and not any(
                copier.is_away or copier.is_leaving or copier.is_outdated or copier.frozen_pids
                for copier in self._copiers
            )

        wait_until("everybody is back and every replica in sync", is_calm, timeout_s=SETTLE_S, poll_s=TICK_S)
        self._administrators.give_back()

    # The reckoning.

    def _wait_until_equal_ends(self) -> None:
        def is_copied() -> bool:
            self._tick()
            try:
                return all(self._comparison.is_copied(topic) for topic in TOPICS)
            except (KafkaException, KeyError):
                return False

        try:
            wait_until("all is copied", is_copied, timeout_s=SETTLE_S, poll_s=COUNT_S)
        except HarnessError as error:
            said = [
                f"{copier.replicator.name}: {one['topic']}-{one['partition']} {one['phase']} at {one['sourceOffset']}"
                f" of {one['sourceEndOffset']}: {one.get('message', '')}"
                for copier in self._copiers
                for one in copier.replicator.partitions()
                if one["phase"] != "waiting"
            ]
            differences = [found for topic in TOPICS if (found := self._comparison.difference(topic))]
            self._problem("\n  ".join([str(error), *said, *differences]))
            raise

    def _compare(self) -> None:
        ends = 0
        for topic in TOPICS:
            self.result.source_records += self._comparison.count("source", topic)
            self.result.target_records += self._comparison.count("target", topic)
            ends += sum(self._sides["target"].cluster.end_offsets(f"chaos-east.{topic}").values())
            if found := self._comparison.difference(topic):
                self._problem(found)
        is_whole = self._dimensions.cleanup == "delete"
        if self._dimensions.has_transactions and is_whole and ends == self.result.target_records:
            self._problem("no commit has left a marker, so nothing was written in transactions")

    def _note(self, event: str) -> None:
        line = f"{time.monotonic() - self._began_s:7.2f}  {time.strftime('%H:%M:%S')}  {event}"
        with (self.folder / "events.log").open("a") as file:
            file.write(line + "\n")
        self._say(line)

    def _problem(self, problem: str) -> None:
        self.result.problems.append(problem)
        self._note(problem)

    def _keep(self) -> None:
        """The brokers' logs would go with their clusters; the copiers' lie in the folder already."""
        for name, side in self._sides.items():
            for id_, broker in side.cluster.nodes.items():
                if broker.log.exists():
                    shutil.copy(broker.log, self.folder / f"{name}-broker-{id_}.log")
