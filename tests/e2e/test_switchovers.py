"""An application of a MirrorPair is moved to the other Kafka cluster and back by Switchovers, after rehearsals.

The operator, the connectors of both flows and the Jobs of the Switchovers are pods. The application is a Java producer and a Java
consumer group, which follow the ConfigMap that each Switchover switches.
"""

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import pytest

from tests.chaos.switchover.judgement import difference, group_problems, problems_of
from tests.e2e.conftest import VALUES
from tests.e2e.story import condition_of
from tests.e2e.switchovers import (
    ENDPOINT,
    ENDPOINT_RIGHTS,
    FLOW_FROM,
    KEY,
    MOVE_S,
    PAIR,
    create_switchover,
    endpoint,
    sides,
    status_of,
    wait_until_ended,
    wait_until_switchable,
)
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.pair_clients import (
    Attempt,
    Outcome,
    PairClients,
    PairConsumer,
    PairProducer,
    ReadRecord,
    logged_records,
)
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import digest, load, records
from tests.harness.kubernetes.flows import API_VERSION, secret, side
from tests.harness.kubernetes.skipping import skip_without
from tests.harness.kubernetes.stage import WAIT_S, Object, Stage, require_stage
from tests.harness.pair_files import APP, MIRROR, allow_users

NAME, NETWORK = "switchovers", 247  # differs from the nodes of the other tests
TOPIC, GROUP, CANARY = "orders", "billing", "canary"
STOCK, STOCK_RECORDS = "stock", 1_500  # a topic without producers; its newest 1,000 records are sealed
PARTITIONS = 2  # of the application's topic; the others have one
SEALED_PARTITIONS = PARTITIONS + 2
RATE = 100  # records per second
STOP_CONSUMERS = "consumers of these groups are stopped"
STATES = ("Checking", "Fencing", "Quiescing", "Verifying", "ForwardEnded", "Promoting", "Reversing", "Done")


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A `Stage` whose Kafka clusters check ACLs, and whose chart lets the Jobs of the pair switch its endpoint."""
    skip_without(require_stage)
    values = {**VALUES, "switchovers": {"endpoints": [ENDPOINT_RIGHTS]}}
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
    stage.east.create_topic(STOCK)
    load(stage.east, STOCK, STOCK_RECORDS)
    stage.apply(
        endpoint(stage.east.bootstrap),
        _flow(stage, "east", "west"),
        {**(back := _flow(stage, "west", "east")), "spec": {**back["spec"], "state": "Stopped"}},
        _pair(stage),
    )
    stage.wait_for(FLOW_FROM["east"], "Ready")
    wait_until_switchable(stage, "east")
    return stage


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
            "topics": {"include": [TOPIC, CANARY, STOCK], "naming": {"policy": "Identity"}},
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
        """Creates the Switchover *name*, stops the consumer when the status requires it, and returns the last status."""
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

    def stop(self) -> None:
        """Stops writing, waits until everything is read, and stops reading."""
        self.producer.stop()
        written = self.producer.acknowledged()

        def has_read_all() -> bool:
            self.consumer.update()
            return len(self.consumer.reads) >= written

        wait_until("the group has read all records", has_read_all, timeout_s=WAIT_S, poll_s=0.2)
        self.consumer.stop()

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
    assert status["seal"]["partitions"] == SEALED_PARTITIONS
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
    status = wait_until_ended(stage, name)
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
    """Each acknowledged record is on the active side and read by the group: once, in order, where it was acknowledged.

    The record of a Switchover stays when its objects are deleted.
    """
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
        application.stop()
    wait_until(
        "both clusters are equal", lambda: _digest(stage.east) == _digest(stage.west), timeout_s=WAIT_S
    )

    attempts, written = application.producer.attempts, {"shop": application.producer.attempts}
    logs = {alias: _log_of(cluster) for alias, cluster in sides(stage).items()}
    acknowledged = {alias: application.producer.acknowledged(alias) for alias in logs}
    print(f"acknowledged {acknowledged}, in logs { ({alias: len(log) for alias, log in logs.items()}) }")
    assert min(acknowledged.values()) > RATE
    assert application.producer.refusals > 0
    assert group_problems(written, application.consumer.reads, of=GROUP) == []
    assert problems_of(written, logs["east"], of="the log of east") == []
    assert difference(logs["east"], logs["west"]) == ""
    assert {alias: _moved_records(attempts, alias, log) for alias, log in logs.items()} == {
        "east": 0,
        "west": 0,
    }
    stage.kubectl("delete", "job", "move-to-west-switchover")
    assert status_of(stage, "move-to-west")["state"] == "Done"


def _digest(cluster: KafkaCluster) -> dict[int, tuple[int, str]]:
    return digest(cluster, TOPIC, isolation="read_committed")


def _log_of(cluster: KafkaCluster) -> list[ReadRecord]:
    return logged_records(
        (record.partition, record.offset, record.key, record.value)
        for record in records(cluster, TOPIC, isolation="read_committed")
    )


def _moved_records(attempts: list[Attempt], member: str, log: list[ReadRecord]) -> int:
    """Returns how many records of the log of *member* are not at the offset at which it has acknowledged them."""
    places = {record.attempt: (record.partition, record.offset) for record in log}
    return sum(
        places.get(index) != (attempt.partition, attempt.offset)
        for index, attempt in enumerate(attempts)
        if attempt.outcome is Outcome.ACKNOWLEDGED and attempt.member == member
    )
