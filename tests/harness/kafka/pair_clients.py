"""Java applications of a pair of clusters: producers that keep an outbox, and the only consumer of a group.

Both follow a file with the alias of the active member, which the endpoint hook of the pair writes (PairProducer.java,
PairConsumer.java). They write what they have done into files, which this module reads.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.installation import java_command, write_properties
from tests.harness.kafka.listeners import User
from tests.harness.kafka.processes import Child, start

HEAP_MIB = 96
# Longer than any fault of brokers in a test, so that a record fails only because it is refused.
DELIVERY_MS = 900_000
# Brokers abort the transaction that a producer leaves open after this time, which is shorter than a switchover waits.
TRANSACTION_MS = 20_000
SESSION_MS = 10_000
REQUEST_MS = 10_000  # the time after which a request is repeated
BLOCK_MS = 3_000  # the time after which a call is repeated, unless the endpoint was switched


class Outcome(Enum):
    """The outcome of an attempt to write a number. The value is the word in the producer's file."""

    SENT = "sent"  # no response yet
    ACKNOWLEDGED = "acknowledged"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


@dataclass(slots=True, kw_only=True)
class Attempt:
    """An attempt of a producer to write a number. *partition* and *offset* are those of the acknowledgement."""

    number: int
    member: str
    outcome: Outcome = Outcome.SENT
    partition: int = -1
    offset: int = -1
    time_ms: int = 0  # of the acknowledgement


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRecord:
    """A record that the group has read and committed, or that a log contains."""

    partition: int
    offset: int
    key: str
    producer: str
    attempt: int
    member: str = ""
    time_ms: int = 0  # when its offset was committed


@dataclass(frozen=True, slots=True, kw_only=True)
class PairClients:
    """The files that the applications of one pair share in *folder*."""

    sides: Mapping[str, KafkaCluster]
    user: User
    folder: Path
    topic: str
    group: str

    @property
    def endpoint(self) -> Path:
        """Returns the file with the alias of the active member."""
        return self.folder / "endpoint"

    @property
    def hold(self) -> Path:
        """Returns the file that keeps the consumer closed while it exists."""
        return self.folder / "hold"

    def active(self) -> str:
        """Returns the alias in the endpoint file."""
        return self.endpoint.read_text().strip()

    def write_properties(self, *, protocol: str) -> None:
        """Writes the properties of both clients for each cluster. *protocol* is that of the group."""
        producer = {
            "acks": "all",
            "enable.idempotence": "true",
            "linger.ms": "2",
            "delivery.timeout.ms": str(DELIVERY_MS),
            "request.timeout.ms": str(REQUEST_MS),
            "max.block.ms": str(BLOCK_MS),
            "transaction.timeout.ms": str(TRANSACTION_MS),
        }
        consumer = {
            "group.id": self.group,
            "group.protocol": protocol,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": "false",
            "default.api.timeout.ms": str(BLOCK_MS),
            **({"session.timeout.ms": str(SESSION_MS)} if protocol == "classic" else {}),
        }
        for alias, cluster in self.sides.items():
            client = cluster.java_client(cluster.listeners[0], user=self.user)
            write_properties(self.folder / f"{alias}.producer.properties", client | producer)
            write_properties(self.folder / f"{alias}.consumer.properties", client | consumer)


@dataclass(slots=True, kw_only=True)
class PairProducer:
    """A producer with the name *name*.

    It is idempotent, or transactional with a *transactional_id*, and aborts some of its transactions.
    """

    clients: PairClients
    name: str
    rate: int
    transactional_id: str = ""
    abort_percent: int = 0
    seed: int = 1
    attempts: list[Attempt] = field(default_factory=list, init=False)  # attempts by their ids
    refusals: int = field(default=0, init=False)
    child: Child | None = field(default=None, init=False)
    _member: str = field(default="", init=False)
    _read_bytes: int = field(default=0, init=False)

    def start(self) -> None:
        self.child = _start(
            "PairProducer",
            self.clients,
            self.name,
            f"name={self.name}",
            f"rate={self.rate}",
            f"seed={self.seed}",
            f"transactional_id={self.transactional_id}",
            f"abort_percent={self.abort_percent}",
        )

    def update(self) -> None:
        """Reads the new lines of its file."""
        text, self._read_bytes = _new_text(self.clients.folder / f"{self.name}.out", self._read_bytes)
        for line in text.splitlines():
            match line.split():
                case [_, "session", member]:
                    self._member = member
                case [_, "sent", attempt, number]:
                    assert int(attempt) == len(self.attempts)
                    self.attempts.append(Attempt(number=int(number), member=self._member))
                case [time_ms, "acknowledged", attempt, partition, offset]:
                    acknowledged = self.attempts[int(attempt)]
                    acknowledged.outcome = Outcome.ACKNOWLEDGED
                    acknowledged.partition, acknowledged.offset = int(partition), int(offset)
                    acknowledged.time_ms = int(time_ms)
                case [_, "aborted" | "unknown" as outcome, attempt]:
                    self.attempts[int(attempt)].outcome = Outcome(outcome)
                case [_, "refused", _]:
                    self.refusals += 1

    def acknowledged(self, member: str = "") -> int:
        """Returns how many records were acknowledged, by *member* if given."""
        return sum(
            attempt.outcome is Outcome.ACKNOWLEDGED and attempt.member.startswith(member)
            for attempt in self.attempts
        )

    def stop(self) -> None:
        """Sends SIGTERM and reads the remaining lines. Then each attempt has an outcome."""
        assert self.child is not None
        self.child.stop(DELIVERY_MS / 1000)
        self.update()


@dataclass(slots=True, kw_only=True)
class PairConsumer:
    """The consumer of the group.

    `reads` are records whose offsets it has committed, in the order in which it has read them.
    """

    clients: PairClients
    name: str = "consumer"
    reads: list[ReadRecord] = field(default_factory=list, init=False)
    is_open: bool = field(default=False, init=False)
    is_assigned: bool = field(default=False, init=False)
    child: Child | None = field(default=None, init=False)
    _member: str = field(default="", init=False)
    _read_bytes: int = field(default=0, init=False)

    def start(self) -> None:
        self.child = _start("PairConsumer", self.clients, self.name, f"hold={self.clients.hold}")

    def update(self) -> None:
        """Reads the new lines of its file."""
        text, self._read_bytes = _new_text(self.clients.folder / f"{self.name}.out", self._read_bytes)
        for line in text.splitlines():
            match line.split():
                case [_, "session", member]:
                    self._member, self.is_open, self.is_assigned = member, True, False
                case [_, "assigned"]:
                    self.is_assigned = True
                case [_, "closed"]:
                    self.is_open = self.is_assigned = False
                case [time_ms, "read", partition, offset, key, producer, attempt, *_]:
                    self.reads.append(
                        ReadRecord(
                            partition=int(partition),
                            offset=int(offset),
                            key=key,
                            producer=producer,
                            attempt=int(attempt),
                            member=self._member,
                            time_ms=int(time_ms),
                        )
                    )

    def stop(self) -> None:
        """Sends SIGTERM, which closes the consumer, and reads the remaining lines."""
        assert self.child is not None
        self.child.stop()
        self.update()


def _start(program: str, clients: PairClients, name: str, *options: str) -> Child:
    log = clients.folder / f"{name}.log"
    arguments = (
        f"endpoint={clients.endpoint}",
        f"clients={clients.folder}",
        f"out={clients.folder / name}.out",
        f"topic={clients.topic}",
        *options,
    )
    return start(name, java_command(program, *arguments, log=log, heap_mib=HEAP_MIB), log=log)


def _new_text(path: Path, read_bytes: int) -> tuple[str, int]:
    """Returns the complete lines after *read_bytes* of a file, which may not exist yet, and their end."""
    if not path.exists():
        return "", read_bytes
    with path.open("rb") as file:
        file.seek(read_bytes)
        data = file.read()
    whole = data[: data.rfind(b"\n") + 1]
    return whole.decode(), read_bytes + len(whole)


def logged_records(values: Iterator[tuple[int, int, bytes | None, bytes | None]]) -> list[ReadRecord]:
    """Returns records of a log, given as partition, offset, key and value, in the form in which a consumer reads them."""
    records = []
    for partition, offset, key, value in values:
        producer, attempt, *_ = (value or b"").decode().split()
        records.append(
            ReadRecord(
                partition=partition,
                offset=offset,
                key=(key or b"").decode(),
                producer=producer,
                attempt=int(attempt),
            )
        )
    return records
