"""A pair of real clusters with a producer and a consumer group, which `mirrorflow switchover` moves."""

import contextlib
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import yaml
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.listeners import User
from tests.harness.kafka.processes import wait_until
from tests.integration.kafka.running import RunningCommand

APP, MIRROR = User(name="app", password="app-secret"), User(name="mirror", password="mirror-secret")
USERS = (APP, MIRROR)
COMMAND_S = 120.0
Sides = dict[str, KafkaCluster]


@contextlib.contextmanager
def pair_sides(*, grants_all: bool = True, proxied: bool = False) -> Iterator[Sides]:
    """Starts two clusters whose users need ACLs: `app` for the topic; `mirror` has all of them with *grants_all*, or none.

    *proxied*: with a listener without authentication, too, which can be cut.
    """
    with contextlib.ExitStack() as stack:
        clusters = {
            name: stack.enter_context(
                KafkaCluster(
                    name=name,
                    listeners=("SASL_PLAINTEXT",),
                    authorizer=True,
                    users=USERS,
                    proxied=proxied,
                )
            )
            for name in ("pair-east", "pair-west")
        }
        for cluster in clusters.values():
            if grants_all:
                cluster.allow("ALL", "CLUSTER", "kafka-cluster")
                for kind in ("TOPIC", "GROUP", "TRANSACTIONAL_ID"):
                    cluster.allow("ALL", kind, "*")
                cluster.allow("ALL", "TOPIC", "mm2-switchover-canary.internal", user="app")
            cluster.allow("ALL", "GROUP", "*", user="app")
        yield {"east": clusters["pair-east"], "west": clusters["pair-west"]}


@dataclass(slots=True)
class Pair:
    """The files of a pair in *folder*, and the output of its endpoint hook.

    The pair has its own name, topic and group.
    """

    sides: Sides
    folder: Path
    file: Path = field(init=False)
    name: str = field(default_factory=lambda: f"pair-{uuid.uuid4().hex[:8]}")
    partitions: int = 1
    has_slow_hook: bool = False  # the endpoint hook waits for the file `go`
    has_canary: bool = (
        False  # whether the flow copies the topic `canary`, which does not exist yet, with its group
    )
    readiness: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for cluster in self.sides.values():
            cluster.allow("ALL", "TOPIC", self.topic, user="app")
            if self.has_canary:
                cluster.allow("ALL", "TOPIC", self.canary, user="app")
        self.sides["east"].create_topic(self.topic, partitions=self.partitions)
        for user in USERS:
            secret = self.folder / user.name
            secret.mkdir()
            (secret / "password").write_text(user.password)
        self.endpoint.write_text("east")
        flows = [self._flow("east", "west"), self._flow("west", "east")]
        for flow in flows:
            self.flow_file(flow["metadata"]["name"]).write_text(yaml.safe_dump(flow))
        self.file = self.folder / "pair.yaml"
        self.file.write_text(yaml.safe_dump_all([self._pair(), *flows]))

    @property
    def topic(self) -> str:
        return f"{self.name}-orders"

    @property
    def group(self) -> str:
        return f"{self.name}-billing"

    @property
    def canary(self) -> str:
        """Returns the topic and the group of a rehearsal's application."""
        return f"{self.name}-canary"

    @property
    def _canaries(self) -> list[str]:
        return [self.canary] if self.has_canary else []

    @property
    def endpoint(self) -> Path:
        """Returns the file in which clients find the active member."""
        return self.folder / "endpoint"

    @property
    def hook_started(self) -> Path:
        """Returns a file that exists once the slow hook has started."""
        return self.folder / "hook-started"

    @property
    def go(self) -> Path:
        """Returns the file for which the slow hook waits."""
        return self.folder / "go"

    def flow_file(self, name: str) -> Path:
        return self.folder / f"{name}.yaml"

    def running(self, flow: str, folder: str) -> RunningCommand:
        """Returns a process of *flow* that is not yet started."""
        own = self.folder / folder
        own.mkdir()
        return RunningCommand(self.flow_file(flow), own, "--secrets", self.folder)

    def command(self, *arguments: str | Path, name: str = "switchover") -> subprocess.CompletedProcess[str]:
        """Runs `mirrorflow switchover`, or the command *name*, until it ends."""
        return subprocess.run(
            self.line(*arguments, name=name), capture_output=True, text=True, timeout=COMMAND_S, check=False
        )

    def line(self, *arguments: str | Path, name: str = "switchover") -> list[str | Path]:
        """Returns the command line."""
        own = ("-f", self.file, "--secrets", self.folder)
        return [sys.executable, "-m", "mirrorflow_cli", name, *arguments, *own]

    def _pair(self) -> dict[str, Any]:
        waiting = f"touch {self.hook_started}; while [ ! -e {self.go} ]; do sleep 0.05; done; "
        leading = f"printf %s $MIRRORFLOW_TO > {self.endpoint}"
        hook = ["/bin/sh", "-c", waiting + leading if self.has_slow_hook else leading]
        probe = _plain(APP)
        return {
            "apiVersion": "mirrorflow.io/v1alpha1",
            "kind": "MirrorPair",
            "metadata": {"name": self.name},
            "spec": {
                "members": {
                    "east": {"flow": "east-to-west", "probe": probe},
                    "west": {"flow": "west-to-east", "probe": probe},
                },
                "fence": {"method": "DenyAcl", "exceptPrincipals": ["User:mirror"]},
                "groups": {"include": [self.group, *self._canaries]},
                **({"readiness": self.readiness} if self.readiness else {}),
                "endpoint": {"hook": {"command": hook}},
                "deadlineSeconds": 60,
            },
        }

    def _flow(self, source: str, target: str) -> dict[str, Any]:
        return {
            "apiVersion": "mirrorflow.io/v1alpha1",
            "kind": "MirrorFlow",
            "metadata": {"name": f"{source}-to-{target}"},
            "spec": {
                "source": self._cluster(source),
                "target": self._cluster(target),
                "topics": {"include": [self.topic, *self._canaries], "naming": {"policy": "Identity"}},
                "groups": {"include": [self.group, *self._canaries]},
                "connectors": {
                    "source": {
                        "config": {
                            "offset.flush.interval.ms": "500",
                            # As often as a test that creates a topic needs it, otherwise the default.
                            **({"refresh.topics.interval.seconds": "2"} if self.has_canary else {}),
                        }
                    }
                },
            },
        }

    def _cluster(self, alias: str) -> dict[str, Any]:
        servers = self.sides[alias].bootstrap.split(",")
        return {
            "alias": alias,
            "bootstrapServers": servers,
            "authentication": _plain(MIRROR),
        }


def _plain(user: User) -> dict[str, Any]:
    return {
        "type": "Plain",
        "username": {"value": user.name},
        "password": {"secretName": user.name, "key": "password"},
    }


class Application(threading.Thread):
    """Writes numbers one after the other to the active member. After a restart, it repeats a refused number there."""

    def __init__(self, pair: Pair) -> None:
        super().__init__(daemon=True)
        self.acknowledged: list[tuple[str, int]] = []  # pairs of member and number
        self.was_refused = threading.Event()
        self._pair = pair
        self._stopping = threading.Event()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stops writing. Afterwards, `acknowledged` is complete."""
        self._stopping.set()
        self.join(60)

    def run(self) -> None:
        number = 0
        while not self._stopping.is_set():
            member = self._pair.endpoint.read_text()
            producer = Producer(
                {
                    **self._pair.sides[member].client("SASL_PLAINTEXT", user=APP),
                    "enable.idempotence": True,
                    "linger.ms": 0,
                }
            )
            while not self._stopping.is_set() and self._is_written(producer, number):
                self.acknowledged.append((member, number))
                number += 1
            self.was_refused.set()

    def written_to(self, member: str) -> int:
        """Returns how many records *member* has acknowledged."""
        return sum(written == member for written, _ in self.acknowledged)

    def has_all_of_east(self, number: int) -> bool:
        """Returns whether writes are refused and *number* is the last one that east has acknowledged, or writing has
        ended.
        """
        last = max((written for member, written in self.acknowledged if member == "east"), default=-1)
        return self._stopping.is_set() or (self.was_refused.is_set() and number == last)

    def _is_written(self, producer: Producer, number: int) -> bool:
        outcomes: list[bool] = []
        try:
            producer.produce(
                self._pair.topic,
                str(number).encode(),
                on_delivery=lambda error, _: outcomes.append(error is None),
            )
        except KafkaException:
            return False
        producer.flush(30)
        return outcomes == [True]


def read(pair: Pair, member: str, until: Callable[[int], bool]) -> list[int]:
    """Reads as a member of the group, from its committed offset.

    Stops when *until* is true for the newest number, and commits the offsets.
    """
    consumer = Consumer(
        {
            **pair.sides[member].client("SASL_PLAINTEXT", user=APP),
            "group.id": pair.group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    numbers: list[int] = []

    def has_read() -> bool:
        messages = [message for message in consumer.consume(500, 0.2) if not message.error()]
        if messages:
            numbers.extend(int(message.value()) for message in messages)
            consumer.commit(asynchronous=False)
        return bool(numbers) and until(numbers[-1])

    consumer.subscribe([pair.topic])
    wait_until("the group has read all records", has_read)
    consumer.close()
    return numbers


def is_member(pair: Pair) -> bool:
    """Returns whether the group has a member on east."""
    described = pair.sides["east"].admin.describe_consumer_groups([pair.group])[pair.group]
    try:
        return bool(described.result(30).members)
    except KafkaException:
        return False  # the coordinator is still loading


def all_numbers(pair: Pair, member: str) -> list[int]:
    """Returns the records that consumers of committed records can read, in all partitions."""
    consumer = Consumer(
        {
            "bootstrap.servers": pair.sides[member].internal_bootstrap,
            "group.id": "judge",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(pair.topic, number, 0) for number in range(pair.partitions)])
    numbers: list[int] = []
    open_partitions = pair.partitions
    with contextlib.closing(consumer):
        while open_partitions and (message := consumer.poll(30)) is not None:
            if message.error():
                open_partitions -= 1
            else:
                numbers.append(int(message.value()))
    assert message is not None, "no response"
    return numbers
