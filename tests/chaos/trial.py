"""One trial: everybody at work and taken away at random, then rest, then both sides compared record by record."""

import shutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import KafkaException

from tests.chaos.actors import Copier, Side, Transactions, Writers
from tests.chaos.schedule import Kind, Step, steps
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import HarnessError, wait_until
from tests.harness.kafka.tools import FOREVER, digest, records
from tests.harness.replicator import Replicator

TOPICS = {"chaos.orders": 4, "chaos.events": 3}
BROKERS = {"min.insync.replicas": "2", "transaction.state.log.min.isr": "2"}
# A hundred expiry checks a minute, where a broker as it comes makes one in ten minutes. What is written now is remembered for
# much longer than anybody is away: with a day it is so by itself.
FORGETFUL = {"producer.id.expiration.ms": "60000", "producer.id.expiration.check.interval.ms": "500"}
TICK_S = 0.05
# Elections, sessions that end and successions in a row on a busy machine; what takes longer is stuck.
SETTLE_S = 240.0
LAST_RECORDS = 500  # written when all is calm: whoever goes on wrongly shows it now
AROUND = 3  # records shown on either side of a difference


@dataclass(kw_only=True, slots=True)
class Result:
    """What came of it; `problems` is empty when both sides are equal and nobody got stuck."""

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
    """See the module. Everything it leaves when it fails is in *folder*: `events.log`, logs of copiers and brokers."""

    def __init__(
        self,
        *,
        seed: int,
        seconds: float,
        copiers: int,
        records_per_s: int,
        read_committed: bool = False,
        old: bool = False,
        folder: Path,
        say: Callable[[str], None],
    ) -> None:
        self.folder = folder
        self.result = Result(seed=seed, seconds=seconds)
        self._copier_count = copiers
        self._records_per_s = records_per_s
        self._isolation = "read_committed" if read_committed else "read_uncommitted"
        self._old = old
        self._say = say
        self._began_s = time.monotonic()
        self._sides: dict[str, Side] = {}
        self._copiers: list[Copier] = []

    def run(self) -> Result:
        """The whole trial; brokers and copiers are gone afterwards."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        with (
            KafkaCluster(name="chaos-east", brokers=3, config=BROKERS) as east,
            KafkaCluster(
                name="chaos-west", brokers=3, config=BROKERS | (FORGETFUL if self._old else {})
            ) as west,
        ):
            self._sides = {
                "source": Side(cluster=east, topics=list(TOPICS)),
                "target": Side(cluster=west, topics=[f"{east.name}.{topic}" for topic in TOPICS]),
            }
            for topic, partitions in TOPICS.items():
                east.create_topic(topic, partitions=partitions, replication_factor=3, config=FOREVER)
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

    def _trial(self, east: KafkaCluster, west: KafkaCluster) -> None:
        self._copiers = [self._copier(east, west, number) for number in range(self._copier_count)]
        for copier in self._copiers:
            copier.start()
        writers = Writers(
            east.bootstrap,
            list(TOPICS),
            seed=self.result.seed,
            records_per_s=self._records_per_s,
            old=self._old,
            failed=self._problem,
        )
        transactions = Transactions(east.bootstrap, list(TOPICS), seed=self.result.seed)
        writers.start()
        transactions.start()
        self._note("all at work")
        try:
            self._chaos()
            self._calm()
        finally:
            writers.stop()
            transactions.stop()
        self._note(f"{transactions.committed} transactions committed, {transactions.aborted} aborted")
        self._note("calm")
        self._wait_until_equal_ends()
        # What nobody sees while records still come: a position or a sequence that is one off.
        for copier in self._copiers:
            copier.replicator.kill()
            copier.start()
        writers.write(LAST_RECORDS)
        writers.stop()
        self._wait_until_equal_ends()
        for copier in self._copiers:
            copier.replicator.stop()
        self.result.written = writers.records
        self._compare()

    def _copier(self, east: KafkaCluster, west: KafkaCluster, number: int) -> Copier:
        replicator = Replicator.standalone(
            east,
            west,
            topics="chaos\\..*",
            folder=self.folder / f"copier-{number}",
            connector={
                "replication.factor": "3",
                "tasks.max": "2",
                "source.consumer.isolation.level": self._isolation,
            },
            worker={"offset.storage.replication.factor": "3"},
        )
        replicator.name = f"copier-{number}"
        return Copier(replicator=replicator)

    # The chaos.

    def _chaos(self) -> None:
        end_s = time.monotonic() + self.result.seconds
        schedule = steps(self.result.seed)
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
            case _:
                side = self._sides["source" if kind in {Kind.KILL_SOURCE, Kind.FREEZE_SOURCE} else "target"]
                freeze = kind in {Kind.FREEZE_SOURCE, Kind.FREEZE_TARGET}
                found = side.strike(step.who, leads=step.leads, freeze=freeze, away_s=step.away_s)
                done = bool(found)
                if done:
                    self._note(f"{kind.value} {found} for {step.away_s:.1f} s")
        if done:
            self.result.done[kind] += 1
            if kind.value.startswith(("copier", "task")):
                self._note(f"{copier.replicator.name}: {kind.value} for {step.away_s:.1f} s")

    def _calm(self) -> None:
        """Everybody comes back."""
        self._note("everybody comes back")

        def is_calm() -> bool:
            self._tick()
            return not any(side.away for side in self._sides.values()) and not any(
                copier.is_away or copier.is_leaving or copier.frozen_pids for copier in self._copiers
            )

        wait_until("everybody is back and every replica in sync", is_calm, timeout_s=SETTLE_S, poll_s=TICK_S)

    # The reckoning.

    def _wait_until_equal_ends(self) -> None:
        east, west = (side.cluster for side in self._sides.values())
        # Not offsets: markers take some on the source and none on the target.
        want = {topic: _counts(self._digest(east, topic)) for topic in TOPICS}

        def is_copied() -> bool:
            self._tick()
            try:
                found = {topic: self._copied(west, f"{east.name}.{topic}") for topic in TOPICS}
            except (KafkaException, KeyError):
                return False
            return all(
                found[topic].get(partition, 0) >= count
                for topic, counts in want.items()
                for partition, count in counts.items()
            )

        try:
            wait_until("all is copied", is_copied, timeout_s=SETTLE_S, poll_s=5.0 if self._old else 0.5)
        except HarnessError as error:
            said = [
                f"{copier.replicator.name}: {one['topic']}-{one['partition']} {one['phase']} at {one['sourceOffset']}"
                f" of {one['sourceEndOffset']}: {one.get('message', '')}"
                for copier in self._copiers
                for one in copier.replicator.partitions()
                if one["phase"] != "waiting"
            ]
            self._problem("\n  ".join([str(error), *said]))
            raise

    def _copied(self, west: KafkaCluster, topic: str) -> dict[int, int]:
        """Records of each partition of the target; where markers take offsets, they have to be counted."""
        return _counts(self._digest_of_copy(west, topic)) if self._old else west.end_offsets(topic)

    def _digest_of_copy(self, west: KafkaCluster, topic: str) -> dict[int, tuple[int, str]]:
        return digest(west, topic, isolation=self._target_isolation)

    def _compare(self) -> None:
        east, west = (side.cluster for side in self._sides.values())
        ends = sum(sum(west.end_offsets(f"{east.name}.{topic}").values()) for topic in TOPICS)
        for topic in TOPICS:
            ours, theirs = self._digest(east, topic), self._digest_of_copy(west, f"{east.name}.{topic}")
            self.result.source_records += sum(count for count, _ in ours.values())
            self.result.target_records += sum(count for count, _ in theirs.values())
            if ours != theirs:
                self._problem(self._first_difference(east, west, topic))
        if self._old and ends == self.result.target_records:
            self._problem("no commit has left a marker, so nothing was pinned")

    def _first_difference(self, east: KafkaCluster, west: KafkaCluster, topic: str) -> str:
        ours = records(east, topic, payload="sha256", isolation=self._isolation)
        theirs = records(west, f"{east.name}.{topic}", payload="sha256", isolation=self._target_isolation)
        found = []
        for partition in range(TOPICS[topic]):
            one = [record for record in ours if record.partition == partition]
            other = [record for record in theirs if record.partition == partition]
            marks = [[(r.timestamp, r.key, r.value, r.headers) for r in side] for side in (one, other)]
            if marks[0] == marks[1]:
                continue
            pairs = zip(*marks, strict=False)
            at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(map(len, marks)))
            there = Counter(map(str, marks[1]))
            here = Counter(map(str, marks[0]))
            found.append(
                f"{topic}-{partition}: {len(one)} and {len(other)} records, "
                f"{(here - there).total()} missing, {(there - here).total()} repeated; first at index {at}"
            )
            for name, side in (("source", one), ("target", other)):
                found += [
                    f"  {name} {record.offset}: {record.timestamp} n={record.headers[0][1]!r}"
                    for record in side[max(0, at - AROUND) : at + AROUND]
                ]
        return "\n".join(found)

    @property
    def _target_isolation(self) -> str:
        """Of old records a reader sees each once with read_committed alone: see docs/exactly-once.md."""
        return "read_committed" if self._old else "read_uncommitted"

    def _digest(self, source: KafkaCluster, topic: str) -> dict[int, tuple[int, str]]:
        return digest(source, topic, isolation=self._isolation)

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


def _counts(digests: dict[int, tuple[int, str]]) -> dict[int, int]:
    return {partition: count for partition, (count, _) in digests.items()}
