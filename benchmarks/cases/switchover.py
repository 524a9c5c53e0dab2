"""The time for which writes are refused while applications move to the other cluster and back, by `mirrorflow switchover`.

Two clusters of its own have an authorizer: the fence is a DENY ACL. A switchover counts with the times of its own record, and as its
producer sees it: from the last record that one side has acknowledged to the first one of the other side, with a new producer.
"""

import contextlib
import json
import statistics
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer

from benchmarks.arena import FAILURES, Arena
from benchmarks.cases import Case, Extent
from benchmarks.results import Demand, Result
from mirrorflow_kafka.admin import admin
from tests.harness.kafka.processes import HarnessError, wait_until
from tests.integration.kafka.flows import call_cluster
from tests.integration.kafka.mirror_pairs import APP, Pair, all_numbers, pair_sides
from tests.integration.kafka.running import RunningCommand

PARTITIONS = 4
RATE_PER_S = 500
RECORD_BYTES = 200
SETTLED_S = 1.0  # of writing between two switchovers
BYTES_RECORDS = 20_000  # written to the side that is active, to compare the bytes of the copy
LIMIT_S = 2.0
BYTES_LIMIT = 1.02
WAIT_S = 120.0
ENDPOINT_POLL_S = 0.005
MIRRORFLOW = "MirrorFlow"
OTHER = {"east": "west", "west": "east"}
STATES = ("Fencing", "Quiescing", "Draining", "Verifying", "GroupsFinal", "ForwardEnded", "Promoting")


def switchover(arena: Arena, extent: Extent) -> Result:
    return measure(arena.folder, extent.of(20, 4))


def measure(parent: Path, runs: int) -> Result:
    """Carries *runs* switchovers out; logs and files of the pair are in a folder of *parent*."""
    result = Result(
        name="switchover",
        title="time for which writes are refused",
        setting=f"{runs} planned switchovers, there and back, of a topic with {PARTITIONS} partitions, an idempotent producer of"
        f" {RATE_PER_S} records of {RECORD_BYTES} bytes a second, and a consumer group. Consumers are stopped when they have read what was"
        " acknowledged before the fence. *refused*: by the record of the switchover; *seen*: by the producer, which is restarted.",
    )
    folder = parent / "switchover"
    folder.mkdir(parents=True)
    try:
        with pair_sides() as sides, _Applications(Pair(sides, folder, partitions=PARTITIONS)) as applications:
            for _ in range(runs):
                applications.switch(result)
            applications.compare(result)
    except FAILURES as error:
        result.notes.append(f"It failed: {str(error)[:600]}")
    _demand(result)
    return result


def _demand(result: Result) -> None:
    figures = result.figures.get(MIRRORFLOW, {})
    for metric, what in (
        ("refused_s", "writes refused"),
        ("seen_s", "writes refused, as the producer sees it"),
    ):
        times = figures.get(metric, [])
        worst, middle = (max(times), statistics.median(times)) if times else (None, None)
        result.demands.append(
            Demand(
                what=f"{what}, the longest of {len(times)}", sense="<=", limit=LIMIT_S, value=worst, unit="s"
            )
        )
        result.notes.append(f"{what}: p50 {middle or 0:.2f} s, longest of {len(times)} {worst or 0:.2f} s")
    result.demand(
        "records that the group reads again", "read_again", MIRRORFLOW, sense="<=", limit=0, unit="records"
    )
    result.demand("records missing", "missing", MIRRORFLOW, sense="<=", limit=0, unit="records")
    result.demand(
        "records copied, of each that was written since",
        "copied_share",
        MIRRORFLOW,
        sense="<=",
        limit=1,
        unit="x",
    )
    result.demand(
        "bytes copied, of each that was written since",
        "bytes_share",
        MIRRORFLOW,
        sense="<=",
        limit=BYTES_LIMIT,
        unit="x",
    )


class _Writing(threading.Thread):
    """A producer that follows the endpoint: when a record is refused, it is restarted when the endpoint names the other member."""

    def __init__(self, pair: Pair) -> None:
        super().__init__(daemon=True)
        self.acknowledged: list[tuple[str, int, float]] = []  # member, number, monotonic time
        self.is_refused = threading.Event()
        self._pair = pair
        self._stopping = threading.Event()
        self._refused: list[int] = []

    def stop(self) -> None:
        """Stops writing; `acknowledged` is complete then."""
        self._stopping.set()
        self.join(WAIT_S)

    def written_to(self, member: str) -> list[tuple[int, float]]:
        """Returns the numbers that *member* has acknowledged, with the times."""
        return [(number, at_s) for written, number, at_s in [*self.acknowledged] if written == member]

    def run(self) -> None:
        numbers, member = iter(range(1 << 40)), ""
        while not self._stopping.is_set():
            while (named := self._pair.endpoint.read_text()) in {"", member} and not self._stopping.is_set():
                time.sleep(ENDPOINT_POLL_S)
            member = named
            producer, again = self._producer(member), [*self._refused]
            self._refused.clear()
            self.is_refused.clear()
            while not self._stopping.is_set() and not self.is_refused.is_set():
                self._write(producer, member, again.pop(0) if again else next(numbers))
                producer.poll(1 / RATE_PER_S)
            producer.flush(WAIT_S)
            self._refused += again

    def _producer(self, member: str) -> Producer:
        security = self._pair.sides[member].client("SASL_PLAINTEXT", user=APP)
        return Producer({**security, "enable.idempotence": True, "linger.ms": 1})

    def _write(self, producer: Producer, member: str, number: int) -> None:
        def note(error: KafkaError | None, _: Message) -> None:
            if error is None:
                self.acknowledged.append((member, number, time.monotonic()))
            else:
                self._refused.append(number)
                self.is_refused.set()

        value = str(number).zfill(RECORD_BYTES)
        try:
            producer.produce(self._pair.topic, value, key=str(number), on_delivery=note)
        except KafkaException:  # it knows already that it may not write
            self._refused.append(number)
            self.is_refused.set()


class _Reading(threading.Thread):
    """A consumer of the group at one member. It ends when writes are refused there and everything that was acknowledged is read."""

    def __init__(self, pair: Pair, member: str, writing: _Writing) -> None:
        super().__init__(daemon=True)
        self.numbers: list[int] = []
        self._pair, self._member, self._writing = pair, member, writing
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Ends it when it has read everything, although writes are not refused."""
        self._stopping.set()
        self.join(WAIT_S)

    def run(self) -> None:
        settings = {
            **self._pair.sides[self._member].client("SASL_PLAINTEXT", user=APP),
            "group.id": self._pair.group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
        consumer = Consumer(settings)
        consumer.subscribe([self._pair.topic])
        with contextlib.closing(consumer):
            while not self._has_all():
                messages = [message for message in consumer.consume(500, 0.02) if not message.error()]
                self.numbers += [int(message.value() or b"-1") for message in messages]
                if messages:
                    consumer.commit(asynchronous=False)

    def _has_all(self) -> bool:
        if not self._stopping.is_set() and not self._writing.is_refused.is_set():
            return False
        return {number for number, _ in self._writing.written_to(self._member)} <= {
            *self.numbers,
            *self.earlier,
        }

    earlier: frozenset[int] = frozenset()  # what the group has read before


class _Applications:
    """Both flows, the producer and the consumer group of a pair."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self._active = "east"
        self._stack = contextlib.ExitStack()
        self._flows: dict[str, RunningCommand] = {}
        self._read: list[int] = []
        self._runs = 0

    def __enter__(self) -> Self:
        pair = self._pair
        self._start_flow("east")
        self._writing = _Writing(pair)
        self._writing.start()
        self._stack.callback(self._writing.stop)
        wait_until("records are copied", lambda: pair.sides["west"].total_end_offset(pair.topic) > 50)
        self._start_reading()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start_flow(self, source: str) -> None:
        if source not in self._flows:
            name = f"{source}-to-{OTHER[source]}"
            self._flows[source] = self._stack.enter_context(self._pair.running(name, f"flow-{source}"))

    def _start_reading(self) -> None:
        self._reading = _Reading(self._pair, self._active, self._writing)
        self._reading.earlier = frozenset(self._read)
        self._reading.start()

    def switch(self, result: Result) -> None:
        """Moves the applications to the other member, and adds the figures. Raises HarnessError if the switchover fails."""
        before, to = self._active, OTHER[self._active]
        wait_until("the group reads", lambda: len(self._reading.numbers) > 0, timeout_s=WAIT_S)
        time.sleep(SETTLED_S)
        report = self._pair.folder / f"report-{self._runs}.json"
        self._runs += 1
        begun = len(self._writing.written_to(to))
        with _running(self._pair.line("--to", to, "--report", report)) as command:
            wait_until(
                "the producer writes to the other side",
                lambda: len(self._writing.written_to(to)) > begun or command.poll(),
                timeout_s=WAIT_S,
            )
            self._reading.join(WAIT_S)
            self._read += self._reading.numbers
            self._active = to
            self._start_reading()
            self._start_flow(to)
            out, err = command.communicate(timeout=WAIT_S)
        if command.returncode:
            raise HarnessError(f"the switchover has failed: {out}{err}")
        last_s = max(at_s for _, at_s in self._writing.written_to(before))
        first_s = self._writing.written_to(to)[begun][1]
        self._add(result, json.loads(report.read_text()), seen_s=first_s - last_s)

    def _add(self, result: Result, report: dict[str, object], *, seen_s: float) -> None:
        states = dict.fromkeys(STATES, 0.0)
        for entry in report["states"]:  # type: ignore[attr-defined]
            if entry["state"] in states:
                states[entry["state"]] += entry["seconds"]
        profile = {f"{state}_s": seconds for state, seconds in states.items()}
        refused_s = float(str(report["writesRefusedSeconds"]))
        result.add(MIRRORFLOW, refused_s=refused_s, seen_s=seen_s, **profile)

    def compare(self, result: Result) -> None:
        """Stops writing, and adds what was read again, what was copied, and the bytes of a copy."""
        self._writing.stop()
        self._reading.stop()
        self._read += self._reading.numbers
        sent = [number for _, number, _ in self._writing.acknowledged]
        copies = {member: self._copied(member, sent) for member in OTHER}
        own = {member: len(self._writing.written_to(member)) for member in OTHER}
        copied = sum(len(numbers) - own[member] for member, numbers in copies.items())
        result.add(
            MIRRORFLOW,
            read_again=len(self._read) - len(set(self._read)),
            missing=len(set(sent) - set(self._read))
            + sum(len(set(sent) - set(copy)) for copy in copies.values()),
            copied_share=copied / len(sent),
            bytes_share=self._bytes_share(len(sent)),
        )

    def _copied(self, member: str, sent: list[int]) -> list[int]:
        """Returns all records on *member*, when the flow there has copied what was *sent*."""
        wait_until(
            f"{member} has all records",
            lambda: (
                self._pair.sides[member].total_end_offset(self._pair.topic) >= len(sent)
                and len(all_numbers(self._pair, member)) >= len(sent)
            ),
            timeout_s=WAIT_S,
        )
        return all_numbers(self._pair, member)

    def _bytes_share(self, records: int) -> float:
        """Writes BYTES_RECORDS more; returns the bytes by which the copy has grown, divided by those of the active side."""
        pair, sizes = self._pair, {member: -self._size(member) for member in OTHER}
        producer = Producer({**pair.sides[self._active].client("SASL_PLAINTEXT", user=APP), "linger.ms": 5})
        for number in range(records, records + BYTES_RECORDS):
            producer.produce(pair.topic, str(number).zfill(RECORD_BYTES), key=str(number))
            producer.poll(0)
        producer.flush(WAIT_S)
        idle = OTHER[self._active]
        wait_until(
            "the records are copied",
            lambda: len(all_numbers(pair, idle)) >= records + BYTES_RECORDS,
            timeout_s=WAIT_S,
        )
        grown = {member: size + self._size(member) for member, size in sizes.items()}
        return grown[idle] / grown[self._active]

    def _size(self, member: str) -> int:
        sizes = call_cluster(self._pair.sides[member], admin.log_sizes)
        return sum(size for partition, size in sizes.items() if partition.topic == self._pair.topic)


@contextlib.contextmanager
def _running(line: list[str | Path]) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


CASES: dict[str, Case] = {"switchover": switchover}
