"""A pair of real clusters whose applications are moved: a producer and a consumer group, by `mirrorflow switchover`."""

import contextlib
import json
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pytest
import yaml
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from mirrorflow_core.topics.topic_acls import TOPIC as TOPIC_RESOURCE
from mirrorflow_core.topics.topic_acls import AclBinding
from mirrorflow_kafka.admin import admin
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.listeners import User
from tests.harness.kafka.processes import wait_until
from tests.integration.kafka.flows import call_cluster
from tests.integration.kafka.running import RunningCommand

APP, MIRROR = User(name="app", password="app-secret"), User(name="mirror", password="mirror-secret")
USERS = (APP, MIRROR)
COMMAND_S = 120.0
Sides = dict[str, KafkaCluster]


@pytest.fixture(scope="module")
def sides() -> Iterator[Sides]:
    """Two clusters whose users need ACLs: `app` for the topic, `mirror` for everything."""
    with contextlib.ExitStack() as stack:
        clusters = {
            name: stack.enter_context(
                KafkaCluster(name=name, listeners=("SASL_PLAINTEXT",), authorizer=True, users=USERS)
            )
            for name in ("pair-east", "pair-west")
        }
        for cluster in clusters.values():
            cluster.allow("ALL", "CLUSTER", "kafka-cluster")
            for kind in ("TOPIC", "GROUP", "TRANSACTIONAL_ID"):
                cluster.allow("ALL", kind, "*")
            cluster.allow("ALL", "TOPIC", "mm2-switchover-canary.internal", user="app")
            cluster.allow("ALL", "GROUP", "*", user="app")
        yield {"east": clusters["pair-east"], "west": clusters["pair-west"]}


@dataclass(slots=True)
class Pair:
    """The files of a pair in *folder*, and what its endpoint hook has written. It has a name, a topic and a group of its own."""

    sides: Sides
    folder: Path
    file: Path = field(init=False)
    name: str = field(default_factory=lambda: f"pair-{uuid.uuid4().hex[:8]}")

    def __post_init__(self) -> None:
        for cluster in self.sides.values():
            cluster.allow("ALL", "TOPIC", self.topic, user="app")
        self.sides["east"].create_topic(self.topic)
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
    def endpoint(self) -> Path:
        """The file in which clients find the active member."""
        return self.folder / "endpoint"

    def flow_file(self, name: str) -> Path:
        return self.folder / f"{name}.yaml"

    def running(self, flow: str, folder: str) -> RunningCommand:
        """Returns a process of *flow*, not started yet."""
        own = self.folder / folder
        own.mkdir()
        return RunningCommand(self.flow_file(flow), own, "--secrets", self.folder)

    def command(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """Runs `mirrorflow switchover` to its end."""
        return subprocess.run(
            self.line(*arguments), capture_output=True, text=True, timeout=COMMAND_S, check=False
        )

    def line(self, *arguments: str | Path) -> list[str | Path]:
        """Returns the command line."""
        own = ("-f", self.file, "--secrets", self.folder)
        return [sys.executable, "-m", "mirrorflow_cli", "switchover", *arguments, *own]

    def _pair(self) -> dict[str, Any]:
        hook = ["/bin/sh", "-c", f"printf %s $MIRRORFLOW_TO > {self.endpoint}"]
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
                "groups": {"include": [self.group]},
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
                "topics": {"include": [self.topic], "naming": {"policy": "Identity"}},
                "groups": {"include": [self.group]},
                "connectors": {"source": {"config": {"offset.flush.interval.ms": "500"}}},
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
    """Writes numbers one after the other to the active member, and repeats a refused one there after a restart."""

    def __init__(self, pair: Pair) -> None:
        super().__init__(daemon=True)
        self.acknowledged: list[tuple[str, int]] = []  # member, number
        self.was_refused = threading.Event()
        self._pair = pair
        self._stopping = threading.Event()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stops writing; `acknowledged` is complete then."""
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
        """Returns whether writes are refused, and *number* is the last one that east has acknowledged; or writing has ended."""
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
    """Reads as a member of the group, from its committed offset, until *until* is true of the newest number; commits what it reads."""
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


def topic_acls(cluster: KafkaCluster) -> set[AclBinding]:
    return set(
        call_cluster(cluster, lambda connected: admin.describe_acls(connected, resource_type=TOPIC_RESOURCE))
    )


def is_member(pair: Pair) -> bool:
    """Returns whether the group has a member on east."""
    described = pair.sides["east"].admin.describe_consumer_groups([pair.group])[pair.group]
    try:
        return bool(described.result(30).members)
    except KafkaException:
        return False  # the coordinator is loading


def all_numbers(pair: Pair, member: str) -> list[int]:
    """Reads everything that consumers of committed records can read, from the beginning to the end."""
    consumer = Consumer(
        {
            "bootstrap.servers": pair.sides[member].internal_bootstrap,
            "group.id": "judge",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(pair.topic, 0, 0)])
    numbers: list[int] = []
    with contextlib.closing(consumer):
        while (message := consumer.poll(30)) is not None and not message.error():
            numbers.append(int(message.value()))
    assert message is not None, "no answer"
    return numbers


def test_a_rehearsal_reports_its_states_and_leaves_the_source_as_it_was(sides: Sides, tmp_path: Path):
    """The application pauses, and continues at the same cluster; the flow copies what it writes then."""
    east, pair, report = sides["east"], Pair(sides, tmp_path), tmp_path / "report.json"
    acls = topic_acls(east)
    with pair.running("east-to-west", "forward") as forward, Application(pair) as application:
        wait_until("records are copied", lambda: sides["west"].total_end_offset(pair.topic) > 50)

        rehearsal = pair.command("--to", "west", "--rehearse", "--report", report)

        assert 0 == rehearsal.returncode, rehearsal.stdout + rehearsal.stderr + forward.output()
        written = application.written_to("east")
        wait_until("the application continues", lambda: application.written_to("east") > written + 50)
        application.stop()
        wait_until("it is copied", lambda: all_numbers(pair, "east") == all_numbers(pair, "west"))
    assert acls == topic_acls(east)
    states = [entry["state"] for entry in json.loads(report.read_text())["states"]]
    assert ["ForwardEnded", "RollingBack", "Rehearsed"] == states[-3:]
    print(report.read_text())


@pytest.mark.faults
@pytest.mark.parametrize(
    "state",
    [
        "Checking",
        "Fencing",
        "Quiescing",
        "Sealed",
        "Draining",
        "Verifying",
        "GroupsFinal",
        "ForwardEnded",
        "RollingBack",
    ],
)
def test_a_command_that_was_killed_is_continued(sides: Sides, tmp_path: Path, state: str):
    """Each state is that of a rehearsal; afterwards the source is as it was."""
    east, pair = sides["east"], Pair(sides, tmp_path)
    acls = topic_acls(east)
    with pair.running("east-to-west", "forward") as forward, Application(pair) as application:
        wait_until("records are copied", lambda: sides["west"].total_end_offset(pair.topic) > 50)
        kill_in(state, pair.line("--to", "west", "--rehearse"))

        again = pair.command("--to", "west", "--rehearse")

        assert 0 == again.returncode, again.stdout + again.stderr + forward.output()
        written = application.written_to("east")
        wait_until("the application continues", lambda: application.written_to("east") > written + 50)
    assert acls == topic_acls(east)


def kill_in(state: str, line: list[str | Path]) -> None:
    """Kills a command as soon as it shows *state*."""
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = []
        for text in process.stderr:
            lines.append(text)
            if text.split()[1:2] == [state]:
                process.kill()
                return
    raise AssertionError("".join(lines))


def test_a_second_command_is_refused_and_ctrl_c_rolls_back(sides: Sides, tmp_path: Path):
    """The first one waits for a consumer of the group, which has committed an offset and stays at the source."""
    east, pair = sides["east"], Pair(sides, tmp_path)
    acls = topic_acls(east)
    consumer = Consumer({**east.client("SASL_PLAINTEXT", user=APP), "group.id": pair.group})
    consumer.subscribe([pair.topic])
    with contextlib.closing(consumer), pair.running("east-to-west", "forward"):
        wait_until(
            "the consumer is a member", lambda: consumer.poll(0.1) is None and consumer.assignment() != []
        )
        consumer.commit(offsets=[TopicPartition(pair.topic, 0, 0)], asynchronous=False)
        with subprocess.Popen(
            pair.line("--to", "west"), stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as first:
            assert first.stderr is not None
            waiting = next(text for text in first.stderr if "consumers of these groups are stopped" in text)

            second = pair.command("--to", "west")
            status = pair.command("status", "--json")
            first.send_signal(signal.SIGINT)
            out, err = first.communicate(timeout=COMMAND_S)

    assert waiting.rstrip().endswith("otherwise.")
    assert pair.group in waiting
    assert 1 == second.returncode
    assert f"Process {first.pid} on host" in second.stderr
    assert "GroupsFinal" == json.loads(status.stdout)["newest"]["state"]
    assert 130 == first.returncode, out + err
    assert "The switchover was rolled back; east is still the active member" in out
    assert acls == topic_acls(east)


def test_a_switchover_to_the_active_member_is_refused_and_changes_nothing(sides: Sides, tmp_path: Path):
    pair = Pair(sides, tmp_path)
    before = {alias: topic_acls(cluster) for alias, cluster in sides.items()}

    with pair.running("east-to-west", "forward"):
        refused = pair.command("--to", "east")

    assert 1 == refused.returncode
    assert "The switchover was refused, and nothing was changed." in refused.stdout
    assert "spec.members.west.flow: flow west-to-east does not run" in refused.stdout
    assert before == {alias: topic_acls(cluster) for alias, cluster in sides.items()}


def test_a_planned_switchover_moves_a_producer_and_a_group_and_each_record_is_read_once(
    sides: Sides, tmp_path: Path
):
    pair, report = Pair(sides, tmp_path), tmp_path / "report.json"
    with (
        pair.running("east-to-west", "forward") as forward,
        contextlib.ExitStack() as stack,
        ThreadPoolExecutor() as pool,
        Application(pair) as application,
    ):
        wait_until("records are copied", lambda: sides["west"].total_end_offset(pair.topic) > 50)
        reading = pool.submit(read, pair, "east", application.has_all_of_east)
        wait_until("the group reads", lambda: is_member(pair))
        with subprocess.Popen(
            pair.line("--to", "west", "--report", report),
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as switchover:
            wait_until(
                "the application writes to west",
                lambda: application.written_to("west") > 50 or switchover.poll() is not None,
            )
            assert switchover.poll() is None, "".join(switchover.communicate())
            numbers = reading.result(COMMAND_S)
            back = stack.enter_context(pair.running("west-to-east", "back"))
            out, err = switchover.communicate(timeout=COMMAND_S)
        assert 0 == switchover.returncode, out + err + forward.output() + back.output()
        application.stop()
        sent = [number for _, number in application.acknowledged]
        numbers += read(pair, "west", lambda number: number >= sent[-1])
        wait_until("the way back has copied all", lambda: all_numbers(pair, "east") == sent)

    assert sent == numbers
    assert sent == all_numbers(pair, "west")
    print(report.read_text())
