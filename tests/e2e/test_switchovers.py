"""An application of a MirrorPair is moved to the other Kafka cluster and back by Switchovers, after a rehearsal.

The operator, the connectors of both flows and the Jobs of the Switchovers are pods. The application is a Java producer and a Java
consumer group, which follow the ConfigMap that each Switchover switches.
"""

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import pytest

from tests.chaos.switchover.judgement import group_problems
from tests.e2e.conftest import VALUES
from tests.e2e.story import condition_of
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.pair_clients import PairClients, PairConsumer, PairProducer
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import digest
from tests.harness.kubernetes.flows import API_VERSION, secret, side
from tests.harness.kubernetes.skipping import skip_without
from tests.harness.kubernetes.stage import FLOWS, WAIT_S, Object, Stage, require_stage
from tests.harness.pair_files import APP, MIRROR, allow_users

NAME, NETWORK = "switchovers", 247  # differs from the nodes of the other tests
PAIR, TOPIC, GROUP, CANARY = "east-west", "orders", "billing", "canary"
FLOW_FROM = {"east": "east-to-west", "west": "west-to-east"}
ENDPOINT, KEY = "kafka", "bootstrap.servers"
PARTITIONS = 2  # of the application's topic; that of the canary has one
RATE = 100  # records per second
STOP_CONSUMERS = "consumers of these groups are stopped"
# A switchover takes some ten seconds on an idle machine; pods start slowly on a busy one.
MOVE_S = 300.0
STATES = ("Checking", "Fencing", "Quiescing", "Verifying", "ForwardEnded", "Promoting", "Reversing", "Done")


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A `Stage` whose Kafka clusters check ACLs, and whose chart lets the Jobs of the pair switch its endpoint."""
    skip_without(require_stage)
    endpoint = {"namespace": FLOWS, "configMap": ENDPOINT, "flows": [*FLOW_FROM.values()]}
    values = {**VALUES, "switchovers": {"endpoints": [endpoint]}}
    brokers = {"authorizer": True, "users": (MIRROR, APP)}
    folder = tmp_path_factory.mktemp("switchovers")
    with Stage(folder=folder, name=NAME, network=NETWORK, values=values, brokers=brokers) as stage:
        yield stage


@pytest.fixture(scope="module")
def pair(stage: Stage) -> Stage:
    """The pair, whose flow from east runs, so that it can be switched over."""
    for cluster in sides(stage).values():
        allow_users(cluster, TOPIC)
        cluster.allow("ALL", "TOPIC", CANARY, user=APP.name)
        stage.apply(secret(f"{cluster.name}-app", password=APP.password))
    stage.east.create_topic(TOPIC, partitions=PARTITIONS)
    stage.east.create_topic(CANARY)
    stage.apply(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": ENDPOINT},
            "data": {KEY: stage.east.bootstrap},
        },
        _flow(stage, "east", "west"),
        {**(back := _flow(stage, "west", "east")), "spec": {**back["spec"], "state": "Stopped"}},
        _pair(stage),
    )
    stage.wait_for(FLOW_FROM["east"], "Ready")
    wait_until_switchable(stage, "east")
    return stage


def sides(stage: Stage) -> dict[str, KafkaCluster]:
    """Returns both clusters by their aliases."""
    return {cluster.name: cluster for cluster in (stage.east, stage.west)}


def _flow(stage: Stage, source: str, target: str) -> Object:
    clusters = sides(stage)
    config = {"offset.flush.interval.ms": "500", "refresh.topics.interval.seconds": "1"}
    return {
        "apiVersion": API_VERSION,
        "kind": "MirrorFlow",
        "metadata": {"name": FLOW_FROM[source]},
        "spec": {
            "source": side(clusters[source]),
            "target": side(clusters[target]),
            "topics": {"include": [TOPIC, CANARY], "naming": {"policy": "Identity"}},
            "groups": {"include": [GROUP, CANARY]},
            "connectors": {"source": {"config": config}},
        },
    }


def _pair(stage: Stage) -> Object:
    members = {
        alias: {"flow": FLOW_FROM[alias], "probe": _login(cluster)} for alias, cluster in sides(stage).items()
    }
    return {
        "apiVersion": API_VERSION,
        "kind": "MirrorPair",
        "metadata": {"name": PAIR},
        "spec": {
            "members": members,
            "fence": {"method": "DenyAcl", "exceptPrincipals": [f"User:{MIRROR.name}"]},
            "groups": {"include": [GROUP, CANARY]},
            "endpoint": {"configMap": {"name": ENDPOINT, "key": KEY}},
            "readiness": {"maxLagSeconds": 60},
            "deadlineSeconds": 240,
        },
    }


def _login(cluster: KafkaCluster) -> Object:
    password = {"secretName": f"{cluster.name}-app", "key": "password"}
    return {"type": "ScramSha512", "username": {"value": APP.name}, "password": password}


def wait_until_switchable(stage: Stage, active: str) -> None:
    """Waits until the pair reports that applications, which are on *active*, could be moved now."""

    def is_switchable() -> bool:
        current = stage.kubectl.get("mirrorpair", PAIR)
        return (
            condition_of(current, "Ready")[:2] == ("True", "CanSwitch")
            and current["status"]["active"] == active
        )

    wait_until(f"{PAIR} can be switched, with {active} active", is_switchable, timeout_s=MOVE_S, poll_s=0.5)


def create_switchover(stage: Stage, name: str, **spec: Any) -> None:
    """Creates a Switchover of the pair."""
    stage.apply(
        {
            "apiVersion": API_VERSION,
            "kind": "Switchover",
            "metadata": {"name": name},
            "spec": {"pair": PAIR, **spec},
        }
    )


def status_of(stage: Stage, name: str) -> Object:
    """Returns the status of a Switchover; it is empty before the operator has written one."""
    return dict(stage.kubectl.get("switchover", name).get("status", {}))


class RunningApplication:
    """The producer and the consumer group. They follow the file that `update` writes from the ConfigMap."""

    def __init__(self, stage: Stage, folder: Path) -> None:
        self._stage = stage
        self._members = {cluster.bootstrap: alias for alias, cluster in sides(stage).items()}
        self.clients = PairClients(sides=sides(stage), user=APP, folder=folder, topic=TOPIC, group=GROUP)
        self.clients.write_properties(protocol="classic")
        self.producer = PairProducer(clients=self.clients, name="shop", rate=RATE)
        self.consumer = PairConsumer(clients=self.clients)
        self.update_endpoint()

    def __enter__(self) -> Self:
        self.producer.start()
        self.consumer.start()
        return self

    def __exit__(self, *_: object) -> None:
        for child in (self.producer.child, self.consumer.child):
            if child is not None and child.running:
                child.kill()

    def update_endpoint(self) -> str:
        """Shows the application what the ConfigMap says; returns the alias of that member."""
        servers = self._stage.kubectl.get("configmap", ENDPOINT)["data"][KEY]
        written = self.clients.folder / "endpoint.new"
        written.write_text(self._members[servers])
        written.rename(self.clients.endpoint)
        return self._members[servers]

    def update(self) -> None:
        """Reads what the application has written and read. Raises HarnessError if one of its processes has ended."""
        # First what was read: then each of these records is known to have been sent.
        for client in (self.consumer, self.producer):
            assert client.child is not None
            client.child.must_run()
            client.update()

    def wait_until_it_works(self, member: str) -> None:
        """Waits until *member* acknowledges records and the group reads them."""

        def works() -> bool:
            self.update()
            attempts, reads = self.producer.attempts, self.consumer.reads
            read = {(record.producer, record.attempt) for record in reads if record.member == member}
            return sum(attempts[attempt].member == member for _, attempt in read) > RATE

        wait_until(f"the application works on {member}", works, timeout_s=WAIT_S, poll_s=0.2)

    def move(self, name: str, to: str) -> Object:
        """Creates the Switchover *name*, stops the consumer when the status asks for it, and returns the last status."""
        create_switchover(self._stage, name, to=to, type="Planned")
        status: Object = {}

        def has_ended() -> bool:
            nonlocal status
            status = status_of(self._stage, name)
            if STOP_CONSUMERS in status.get("waitsFor", ""):
                self.clients.hold.touch()
            if self.update_endpoint() == to:
                self.clients.hold.unlink(missing_ok=True)
            self.update()
            return "completionTime" in status

        wait_until(f"Switchover {name} has ended", has_ended, timeout_s=MOVE_S, poll_s=0.2)
        return status

    def stop(self) -> list[str]:
        """Stops writing, waits until everything is read, and returns what is wrong with what the group has read."""
        self.producer.stop()
        written = self.producer.acknowledged()

        def has_read_all() -> bool:
            self.consumer.update()
            return len(self.consumer.reads) >= written

        wait_until("the group has read all records", has_read_all, timeout_s=WAIT_S, poll_s=0.2)
        self.consumer.stop()
        return group_problems({"shop": self.producer.attempts}, self.consumer.reads, of=GROUP)

    def pauses_s(self, since_ms: int) -> tuple[float, float]:
        """Returns for how long the producer had no acknowledgement, and for how long the group read nothing, at most."""
        acknowledged = [attempt.time_ms for attempt in self.producer.attempts if attempt.time_ms > since_ms]
        read = [record.time_ms for record in self.consumer.reads if record.time_ms > since_ms]
        longest = [
            max((after - before for before, after in pairwise(sorted(times))), default=0)
            for times in (acknowledged, read)
        ]
        return longest[0] / 1000, longest[1] / 1000


def report_of_pod(stage: Stage, name: str) -> dict[str, Any]:
    """Returns what the process of the Switchover *name* has reported last, by its only pod, which has never restarted."""
    (pod,) = stage.kubectl.get("pods", f"--selector=mirrorflow.io/switchover={name}")["items"]
    (container,) = pod["status"]["containerStatuses"]
    assert container["restartCount"] == 0
    report: dict[str, Any] = json.loads(container["state"]["terminated"]["message"])
    return report


def event_reasons(stage: Stage, kind: str, name: str) -> list[str]:
    """Returns the reasons of the Events of an object."""
    selector = f"--field-selector=involvedObject.kind={kind},involvedObject.name={name}"
    return [event["reason"] for event in stage.kubectl.get("events", selector)["items"]]


def assert_moved(stage: Stage, name: str, status: Object, *, source: str, to: str) -> None:
    """Asserts that the Switchover *name* has its record, its Events and its report, and that *to* is active."""
    resource = {"status": status}
    assert status["state"] == "Done", status
    assert condition_of(resource, "Succeeded")[:2] == ("True", "Moved")
    assert condition_of(resource, "WritesRefused")[:2] == ("False", "WritesAccepted")
    assert condition_of(resource, "Reconciling")[0] == "False"
    assert condition_of(resource, "Stalled")[0] == "False"
    assert (status["source"], status["id"], status["job"]) == (source, f"{PAIR}/{name}", f"{name}-switchover")
    assert status["seal"]["partitions"] == PARTITIONS + 1
    assert status["writesRefused"]["milliseconds"] > 0
    entered = [entry["state"] for entry in status["states"]]
    assert [state for state in entered if state in STATES] == [*STATES]
    reasons = event_reasons(stage, "Switchover", name)
    assert {"JobCreated", "Done"} <= set(reasons) <= {"JobCreated", "Accepted", *entered}
    report = report_of_pod(stage, name)
    assert (report["state"], report["active"], report["mayCopyBack"]) == ("Done", to, True)
    assert report["states"] == status["states"]
    assert stage.kubectl.get("configmap", ENDPOINT)["data"][KEY] == sides(stage)[to].bootstrap
    wait_until_switchable(stage, to)
    current = stage.kubectl.get("mirrorpair", PAIR)["status"]
    assert (current["runs"], current["promotedBy"]) == (FLOW_FROM[to], f"{PAIR}/{name}")
    assert "Promoted" in event_reasons(stage, "MirrorPair", PAIR)
    wait_until(
        f"only the flow from {to} has pods",
        lambda: stage.pods(FLOW_FROM[to], "source") and not stage.pods(FLOW_FROM[source]),
        timeout_s=WAIT_S,
    )


def test_a_rehearsal_runs_its_canary_in_the_pod_and_changes_nothing(pair: Stage):
    """A client that is not MirrorFlow's writes and reads meanwhile. It reads each record once."""
    stage, name = pair, "rehearsal"
    create_switchover(stage, name, to="west", type="Rehearsal", canary={"topic": CANARY})
    wait_until(
        f"Switchover {name} has ended",
        lambda: "completionTime" in status_of(stage, name),
        timeout_s=MOVE_S,
        poll_s=0.5,
    )
    status = status_of(stage, name)
    canary = status.get("canary", {})
    print(json.dumps(canary), status.get("writesRefused"))

    assert status["state"] == "Rehearsed", status
    assert condition_of({"status": status}, "Succeeded")[:2] == ("True", "Rehearsed")
    assert canary["passed"], canary
    assert (canary["recordsReadAgain"], canary["recordsSkipped"]) == (0, 0)
    assert canary["writesRefused"] > 0
    assert canary["client"].startswith("confluent-kafka")
    assert {"copied", "refused", "read", "accepted", "continued", "notWritten"} <= canary[
        "milliseconds"
    ].keys()
    assert {"JobCreated", "Rehearsed"} <= set(event_reasons(stage, "Switchover", name))
    assert report_of_pod(stage, name)["canary"]["passed"]
    assert stage.kubectl.get("configmap", ENDPOINT)["data"][KEY] == stage.east.bootstrap
    wait_until_switchable(stage, "east")


def test_switchovers_move_an_application_to_the_other_cluster_and_back(pair: Stage, tmp_path: Path):
    """Each acknowledged record is read once and in order. The record of a Switchover stays when its objects are deleted."""
    stage = pair
    with RunningApplication(stage, tmp_path) as application:
        application.wait_until_it_works("east")
        for name, source, to in (("move-to-west", "east", "west"), ("back-to-east", "west", "east")):
            begin_ms = application.consumer.reads[-1].time_ms
            status = application.move(name, to)
            assert_moved(stage, name, status, source=source, to=to)
            application.wait_until_it_works(to)
            pauses_s = application.pauses_s(begin_ms)
            print(f"{name}: refused {status['writesRefused']}, pauses of producer and group {pauses_s}")
        refusals = application.producer.refusals
        problems = application.stop()
    wait_until(
        "both clusters are equal", lambda: _digest(stage.east) == _digest(stage.west), timeout_s=WAIT_S
    )

    assert problems == []
    assert refusals > 0
    assert {attempt.member for attempt in application.producer.attempts} == {"east", "west"}
    assert sum(count for count, _ in _digest(stage.east).values()) >= application.producer.acknowledged()
    stage.kubectl("delete", "job", "move-to-west-switchover")
    assert status_of(stage, "move-to-west")["state"] == "Done"


def _digest(cluster: KafkaCluster) -> dict[int, tuple[int, str]]:
    return digest(cluster, TOPIC, isolation="read_committed")
