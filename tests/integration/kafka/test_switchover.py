"""A pair of real clusters whose applications are moved: a producer and a consumer group, by `mirrorflow switchover`."""

import contextlib
import json
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from mirrorflow_core.topics.topic_acls import TOPIC as TOPIC_RESOURCE
from mirrorflow_core.topics.topic_acls import AclBinding
from mirrorflow_kafka.admin import admin
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import wait_until
from tests.integration.kafka.flows import call_cluster
from tests.integration.kafka.mirror_pairs import (
    APP,
    COMMAND_S,
    Application,
    Pair,
    Sides,
    all_numbers,
    is_member,
    pair_sides,
    read,
)
from tests.integration.kafka.running import RunningCommand


@pytest.fixture(scope="module")
def sides() -> Iterator[Sides]:
    with pair_sides() as clusters:
        yield clusters


@pytest.fixture
def own_sides() -> Iterator[Sides]:
    """For a switchover after which the flow to west stays ended, if it is not the last one on `sides`."""
    with pair_sides() as clusters:
        yield clusters


def topic_acls(cluster: KafkaCluster) -> set[AclBinding]:
    return set(
        call_cluster(cluster, lambda connected: admin.describe_acls(connected, resource_type=TOPIC_RESOURCE))
    )


def test_a_rehearsal_reports_its_states_and_leaves_the_source_unchanged(sides: Sides, tmp_path: Path):
    """The application pauses, and continues on the same cluster. The flow copies what it writes afterwards."""
    east, report = sides["east"], tmp_path / "report.json"
    pair = Pair(sides, tmp_path, readiness={"verifiedWithinSeconds": 3_600})
    verification = equal_verification(tmp_path / "results")
    acls = topic_acls(east)
    with pair.running("east-to-west", "forward") as forward, Application(pair) as application:
        wait_until("records are copied", lambda: sides["west"].total_end_offset(pair.topic) > 50)

        rehearsal = pair.command(
            "--to", "west", "--rehearse", "--report", report, "--verification", verification
        )

        assert 0 == rehearsal.returncode, rehearsal.stdout + rehearsal.stderr + forward.output()
        written = application.written_to("east")
        wait_until("the application continues", lambda: application.written_to("east") > written + 50)
        application.stop()
        wait_until("it is copied", lambda: all_numbers(pair, "east") == all_numbers(pair, "west"))
        status = pair.command("status", "--json")
    predicted = json.loads(status.stdout)["predicted"]
    assert 0 == predicted["recordsReadAgain"], predicted
    assert predicted["ifSourceIsLost"].keys() == {"recordsReadAgain", "secondsReadAgain"}
    assert acls == topic_acls(east)
    shown = json.loads(report.read_text())
    states = [entry["state"] for entry in shown["states"]]
    assert ["ForwardEnded", "RollingBack", "Rehearsed"] == states[-3:]
    assert_ends_with_sealed_records(shown, is_verified=True)
    print(report.read_text())


def equal_verification(folder: Path) -> Path:
    """Writes what `mirrorflow verify --out` writes of a run that has just found everything equal; returns *folder*."""
    run = folder / "run-nightly"
    run.mkdir(parents=True)
    result = {
        "runId": "nightly",
        "flow": "east-to-west",
        "source": "east",
        "target": "west",
        "windows": {"total": 1, "equal": 1, "reordered": 0, "different": 0, "undecided": 0},
        "differences": 0,
        "ended": datetime.now(tz=UTC).isoformat(),
    }
    (run / "verification.json").write_text(json.dumps(result))
    return folder


def assert_ends_with_sealed_records(report: dict[str, Any], *, is_verified: bool | None = None) -> None:
    """Each copy ends with the records that the seal has a digest of; a verification that the pair does not require has not passed."""
    ends = report["seal"]["ends"]
    assert all(entry["records"] > 0 and entry["digest"] for entry in ends if entry["end"])
    assert (
        sum(bool(entry["digest"]) for entry in ends) == report["verification"]["partitionsWithSealedDigest"]
    )
    (verification,) = (entry for entry in report["checks"] if entry["check"] == "verification")
    assert verification["passed"] is is_verified


@pytest.mark.faults
@pytest.mark.parametrize(
    "state",
    [
        "Checking",
        "Fencing",
        "Quiescing",
        "Verifying",
        "ForwardEnded",
        "RollingBack",
    ],
)
def test_a_killed_rehearsal_is_continued_by_the_next_command(sides: Sides, tmp_path: Path, state: str):
    """The command is killed in each state of a rehearsal. Afterwards the source is unchanged."""
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
    """The first command waits for a consumer that has committed an offset and stays on the source."""
    east, pair = sides["east"], Pair(sides, tmp_path)
    acls = topic_acls(east)
    consumer = Consumer({**east.client("SASL_PLAINTEXT", user=APP), "group.id": pair.group})
    consumer.subscribe([pair.topic])
    with contextlib.closing(consumer), pair.running("east-to-west", "forward"):
        wait_until(
            "the consumer is a member", lambda: consumer.poll(0.1) is None and consumer.assignment() != []
        )
        consumer.commit(offsets=[TopicPartition(pair.topic, 0, 0)], asynchronous=False)
        producer = Producer(east.client("SASL_PLAINTEXT", user=APP))
        producer.produce(pair.topic, b"0")
        assert not producer.flush(30)
        wait_until("the flow copies", lambda: sides["west"].total_end_offset(pair.topic) == 1)
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
        wait_until("the topic is copied", lambda: pair.topic in sides["west"].topics())
        refused = pair.command("--to", "east")

    assert 1 == refused.returncode
    assert "The switchover was refused, and nothing was changed." in refused.stdout
    assert "spec.members.west.flow: flow west-to-east does not run" in refused.stdout
    assert before == {alias: topic_acls(cluster) for alias, cluster in sides.items()}


def test_missing_rights_of_later_states_refuse_a_switchover_by_their_names(sides: Sides, tmp_path: Path):
    """Nothing has changed: the first of these rights is used while writes are refused, the last one after promoting."""
    east, west = sides["east"], sides["west"]
    pair = Pair(sides, tmp_path, readiness={"verifiedWithinSeconds": 3_600})
    spare = "mirrorflow:east:task-0-spare"
    denied = [
        (west, "READ", "GROUP", pair.group),
        (west, "WRITE", "TRANSACTIONAL_ID", spare),
        (east, "WRITE", "TOPIC", "mm2-claims.west.internal"),
    ]
    with pair.running("east-to-west", "forward"):
        producer = Producer(east.client("SASL_PLAINTEXT", user=APP))
        producer.produce(pair.topic, b"0")
        assert not producer.flush(30)
        consumer = Consumer({**east.client("SASL_PLAINTEXT", user=APP), "group.id": pair.group})
        with contextlib.closing(consumer):
            consumer.commit(offsets=[TopicPartition(pair.topic, 0, 1)], asynchronous=False)
        wait_until("the flow copies", lambda: west.total_end_offset(pair.topic) == 1)
        before = topic_acls(east)
        for cluster, operation, kind, name in denied:
            cluster.allow(operation, kind, name, deny=True)
        refused = pair.command("--to", "west")
        for cluster, operation, kind, name in denied:
            cluster.remove_acl(operation, kind, name, deny=True)

    assert 1 == refused.returncode, refused.stdout + refused.stderr
    for part in (
        f"GroupsFinal needs Read on group {pair.group} of west",
        f"ForwardEnded needs Write on transactional id {spare} of west",
        "Reversing needs Write on topic mm2-claims.west.internal of east",
        "it is unknown when a verification of flow east-to-west last found both clusters equal",
    ):
        assert part in refused.stdout
    assert before == topic_acls(east)


def has_one_record(cluster: KafkaCluster, topic: str) -> bool:
    return cluster.total_end_offset(topic) == 1


def test_a_copied_topic_that_is_hidden_from_the_switchover_refuses_it(sides: Sides, tmp_path: Path):
    """Without Describe, brokers do not list a topic. It would be neither fenced nor sealed, although applications use it."""
    east, pair = sides["east"], Pair(sides, tmp_path, has_canary=True)
    east.create_topic(pair.canary)
    with pair.running("east-to-west", "forward"):
        producer = Producer(east.client("SASL_PLAINTEXT", user=APP))
        for topic in (pair.topic, pair.canary):
            producer.produce(topic, b"0")
        assert not producer.flush(30)
        for topic in (pair.topic, pair.canary):
            wait_until("the flow copies", partial(has_one_record, sides["west"], topic))
        before = topic_acls(east)
        east.allow("DESCRIBE", "TOPIC", pair.canary, deny=True)
        refused = pair.command("--to", "west", "--rehearse")
        east.remove_acl("DESCRIBE", "TOPIC", pair.canary, deny=True)

    assert 1 == refused.returncode, refused.stdout + refused.stderr
    assert "The switchover was refused, and nothing was changed." in refused.stdout
    assert f"Describe on topic {pair.canary}" in refused.stdout
    assert before == topic_acls(east)


class Moving:
    """A planned switchover to west with a producer, a consumer group and both flows."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self._back: RunningCommand | None = None
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        pair, enter = self.pair, self._stack.enter_context
        self._forward = enter(pair.running("east-to-west", "forward"))
        pool = enter(ThreadPoolExecutor())
        self._application = enter(Application(pair))
        wait_until("records are copied", lambda: pair.sides["west"].total_end_offset(pair.topic) > 50)
        self._reading = pool.submit(read, pair, "east", self._application.has_all_of_east)
        wait_until("the group reads", lambda: is_member(pair))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def started(self, *arguments: str | Path) -> subprocess.Popen[str]:
        """Starts the command."""
        line = self.pair.line("--to", "west", *arguments)
        return self._stack.enter_context(
            subprocess.Popen(line, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )

    def start_back_early(self) -> None:
        """Starts the reverse flow as soon as writes to east are refused, long before the switchover has stored
        where it starts.
        """
        wait_until("writes are refused", self._application.was_refused.is_set)
        self._back = self._stack.enter_context(self.pair.running("west-to-east", "back"))

    def complete(self, switchover: subprocess.Popen[str]) -> str:
        """Starts the reverse flow when applications write to west, if it was not; returns the output of the command,
        which has succeeded.
        """
        application = self._application
        wait_until(
            "the application writes to west",
            lambda: application.written_to("west") > 50 or switchover.poll(),
        )
        # It may have ended with 0 already: a reverse flow that was started early owns its start at once.
        assert not switchover.poll(), "".join(switchover.communicate())
        self._numbers = self._reading.result(COMMAND_S)
        back = self._back or self._stack.enter_context(self.pair.running("west-to-east", "back"))
        out, err = switchover.communicate(timeout=COMMAND_S)
        output = f"{out or ''}{err}"  # a Job writes to stderr alone
        assert 0 == switchover.returncode, output + self._forward.output() + back.output()
        return output

    def assert_each_record_is_read_once(self) -> None:
        """Stops writing. Each record that was acknowledged is on both sides once, and the group has read it once."""
        self._application.stop()
        sent = [number for _, number in self._application.acknowledged]
        numbers = self._numbers + read(self.pair, "west", lambda number: number >= sent[-1])
        wait_until("the way back has copied all", lambda: all_numbers(self.pair, "east") == sent)
        assert sent == numbers
        assert sent == all_numbers(self.pair, "west")


def test_a_planned_switchover_moves_a_producer_and_a_group_and_each_record_is_read_once(
    sides: Sides, tmp_path: Path
):
    """The reverse flow, which has never run, is started too early, and copies nothing back.

    It is the last test on these clusters: the flow to west stays ended.
    """
    report = tmp_path / "report.json"
    with Moving(Pair(sides, tmp_path)) as moving:
        switchover = moving.started("--report", report)
        moving.start_back_early()
        moving.complete(switchover)

        moving.assert_each_record_is_read_once()
    assert_ends_with_sealed_records(json.loads(report.read_text()))
    print(report.read_text())


@pytest.mark.faults
@pytest.mark.parametrize("state", ["Promoting", "Reversing"])
def test_a_command_killed_after_promotion_is_continued(own_sides: Sides, tmp_path: Path, state: str):
    """Neither a record nor an offset of the group is lost, and nothing is moved twice."""
    pair = Pair(own_sides, tmp_path)
    with Moving(pair) as moving:
        kill_in(state, pair.line("--to", "west"))

        moving.complete(moving.started())

        moving.assert_each_record_is_read_once()


@pytest.mark.faults
def test_a_command_killed_during_its_endpoint_hook_runs_the_hook_again(own_sides: Sides, tmp_path: Path):
    pair = Pair(own_sides, tmp_path, has_slow_hook=True)
    with Moving(pair) as moving:
        killed = moving.started()
        wait_until("the hook runs", pair.hook_started.exists)
        killed.kill()
        killed.wait(COMMAND_S)
        pair.hook_started.unlink()
        again = moving.started()
        wait_until("the hook runs again", pair.hook_started.exists)
        pair.go.touch()

        moving.complete(again)

        moving.assert_each_record_is_read_once()


@pytest.mark.faults
def test_a_source_that_is_lost_after_promotion_does_not_block_the_endpoint(own_sides: Sides, tmp_path: Path):
    """The command is killed while it switches the endpoint, and then the source is killed.

    The next command needs only the target.
    """
    pair, report = Pair(own_sides, tmp_path, has_slow_hook=True), tmp_path / "report.json"
    with Moving(pair) as moving:
        killed = moving.started()
        wait_until("the hook runs", pair.hook_started.exists)
        complete = json.loads(pair.command("status", "--json").stdout)["fences"]
        killed.kill()
        killed.wait(COMMAND_S)
        own_sides["east"].broker(1).kill()
        pair.go.touch()

        refused = pair.command("--to", "west", "--unplanned", "--accept-loss")
        moved = pair.command("--to", "west", "--report", report)
        status = pair.command("status", "--json")

        same = f"`mirrorflow switchover -f {pair.file} --to west`"
        assert {"east": "complete", "west": "absent"} == complete
        assert 1 == refused.returncode
        assert f"run {same}: it leads applications to west" in refused.stderr, refused.stdout + refused.stderr
        assert 0 == moved.returncode, moved.stdout + moved.stderr
        assert f"Run {same} when east responds again: it starts the flow back." in moved.stdout
        assert ("Reversing", "west") == (json.loads(report.read_text())["state"], pair.endpoint.read_text())
        assert {"east": "unknown", "west": "absent"} == json.loads(status.stdout)["fences"]
        own_sides["east"].broker(1).start()
        moving.complete(moving.started())
        moving.assert_each_record_is_read_once()


@pytest.mark.faults
def test_a_target_that_is_lost_while_writes_are_refused_keeps_no_application_from_writing_to_the_source(
    own_sides: Sides, tmp_path: Path
):
    """The command is killed before the flow has ended, and then the target. The rollback needs the source alone, and its user's word."""
    east, pair = own_sides["east"], Pair(own_sides, tmp_path)
    acls = topic_acls(east)
    with pair.running("east-to-west", "forward") as forward, Application(pair) as application:
        wait_until("records are copied", lambda: own_sides["west"].total_end_offset(pair.topic) > 50)
        kill_in("Verifying", pair.line("--to", "west"))
        own_sides["west"].broker(1).kill()

        refused = pair.command("rollback")
        rolled_back = pair.command("rollback", "--accept-two-active")

        assert 1 == refused.returncode
        assert "has promoted nothing (state Verifying)" in refused.stderr, refused.stdout + refused.stderr
        assert 0 == rolled_back.returncode, rolled_back.stdout + rolled_back.stderr
        assert "Applications can write to east again." in rolled_back.stdout
        assert acls == topic_acls(east)
        written = application.written_to("east")
        wait_until("the application continues", lambda: application.written_to("east") > written + 50)
        own_sides["west"].broker(1).start()
        wait_until("west responds", lambda: pair.topic in own_sides["west"].topics())
        completed = pair.command("rollback")
        assert 0 == completed.returncode, completed.stdout + completed.stderr + forward.output()
        assert "The switchover was rolled back; east is still the active member" in completed.stdout
        application.stop()
        sent = [number for _, number in application.acknowledged]
        wait_until("the flow copies again", lambda: all_numbers(pair, "west") == sent)


@pytest.mark.faults
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_only_the_second_signal_after_promotion_stops_the_command(
    own_sides: Sides, tmp_path: Path, number: signal.Signals
):
    pair = Pair(own_sides, tmp_path, has_slow_hook=True)
    with Moving(pair) as moving:
        stopped = moving.started()
        assert stopped.stderr is not None
        wait_until("the hook runs", pair.hook_started.exists)
        stopped.send_signal(number)
        assert next(text for text in stopped.stderr if "can only be completed" in text)
        stopped.send_signal(number)
        _, err = stopped.communicate(timeout=COMMAND_S)
        assert 128 + number == stopped.returncode, err
        assert "It is in state Promoting. The same command continues it" in err
        pair.hook_started.unlink()
        again = moving.started()
        wait_until("the hook runs again", pair.hook_started.exists)
        again.send_signal(number)
        pair.go.touch()

        output = moving.complete(again)

        assert "The signal came after promoting, so the switchover was completed." in output
        moving.assert_each_record_is_read_once()
