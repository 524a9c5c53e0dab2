"""Planned switchovers by the process of their Job, on two real clusters."""

import contextlib
import json
import signal
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.harness.kafka.processes import wait_until
from tests.integration.kafka.mirror_pairs import APP, COMMAND_S, Application, Pair, Sides
from tests.integration.kafka.running_switchover_job import RunningJob
from tests.integration.kafka.test_switchover import (
    Moving,
    own_sides,  # noqa: F401 a fixture
    sides,  # noqa: F401 a fixture
    topic_acls,
)


def test_a_job_stopped_before_promotion_rolls_back_and_the_next_process_reports_it(
    sides: Sides,  # noqa: F811
    tmp_path: Path,
):
    """It waits for a consumer that stays on the source, and ends by SIGTERM, as when its pod is deleted."""
    east, pair = sides["east"], Pair(sides, tmp_path)
    acls = topic_acls(east)
    job = RunningJob(pair, "stopped")
    consumer = Consumer({**east.client("SASL_PLAINTEXT", user=APP), "group.id": pair.group})
    consumer.subscribe([pair.topic])
    with contextlib.closing(consumer), pair.running("east-to-west", "forward"):
        with Application(pair):
            wait_until("the flow runs", lambda: sides["west"].total_end_offset(pair.topic) > 50)
        wait_until(
            "the consumer is a member", lambda: consumer.poll(0.1) is None and consumer.assignment() != []
        )
        consumer.commit(offsets=[TopicPartition(pair.topic, 0, 0)], asynchronous=False)
        with job.started() as process:
            wait_until(
                "it waits for the consumer",
                lambda: (
                    ((report := job.report()) is not None and report.state == "GroupsFinal")
                    or process.poll() is not None
                ),
            )
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=COMMAND_S)
        rolled_back = job.last_report()
        next_one = job.ended()
        other = RunningJob(pair, "stopped", type="Rehearsal").ended()

    assert 0 == process.returncode, err
    assert "Lifted" == rolled_back.state, rolled_back
    assert "Lifted" == next_one.state, next_one
    assert acls == topic_acls(east)
    assert "Refused" == other.state
    assert "has a switchover of this name already (Planned to west, state Lifted)" in other.reason


def test_a_job_that_starts_too_late_refuses_the_switchover(sides: Sides, tmp_path: Path):  # noqa: F811
    report = RunningJob(Pair(sides, tmp_path), "late", begin_until_ms=1).ended()

    assert "Refused" == report.state
    assert report.reason.startswith("It could not begin in time")


def test_a_job_with_unreadable_files_refuses_the_switchover(sides: Sides, tmp_path: Path):  # noqa: F811
    job = RunningJob(Pair(sides, tmp_path), "broken")
    request = job.folder / "switchover.json"
    request.write_text(json.dumps({**json.loads(request.read_text()), "format": 99}))

    report = job.ended()

    assert "Refused" == report.state
    assert "it was written by another version of the operator" in report.reason


def test_each_type_of_switchover_is_refused_if_its_endpoint_cannot_be_switched(
    sides: Sides,  # noqa: F811
    tmp_path: Path,
):
    """The process has no API server. Nothing is changed, even if the process does not query the source."""
    pair = Pair(sides, tmp_path)
    endpoint = {"kind": "ConfigMap", "namespace": "kafka", "name": "kafka", "key": "servers"}
    acls = topic_acls(sides["east"])
    jobs = (
        RunningJob(pair, "planned"),
        RunningJob(pair, "unplanned", type="Unplanned", acceptLoss=True),
    )
    reports = []
    for job in jobs:
        file = job.folder / "switchover.json"
        changes = {"endpointHook": None, "endpoint": {**endpoint, "values": {"west": "west:9092"}}}
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))
        reports.append(job.ended())

    assert ["Refused", "Refused"] == [report.state for report in reports]
    for report in reports:
        assert (
            "ConfigMap kafka/kafka cannot be switched: this process does not run in Kubernetes"
            in report.reason
        )
    assert acls == topic_acls(sides["east"])


@pytest.mark.faults
def test_the_next_process_of_a_job_promotes_without_the_source_and_ends_once_the_source_responds(
    own_sides: Sides,  # noqa: F811
    tmp_path: Path,
):
    """The pod is killed while it switches the endpoint, and then the source is killed."""
    pair = Pair(own_sides, tmp_path, has_slow_hook=True)
    job = RunningJob(pair, "lost-after-promoting")
    with Moving(pair) as moving:
        with job.started():
            wait_until("the hook runs", pair.hook_started.exists)
        own_sides["east"].broker(1).kill()
        pair.go.touch()
        with job.started() as process:
            wait_until(
                "it waits for the source",
                lambda: (
                    ((report := job.report()) is not None and "until east responds again" in report.waits_for)
                    or process.poll() is not None
                ),
            )
            waiting = job.report()
            assert waiting is not None, process.communicate()
            assert ("Reversing", "west", False) == (waiting.state, waiting.active, waiting.may_copy_back)
            assert "west" == pair.endpoint.read_text()
            own_sides["east"].broker(1).start()
            moving.complete(process)
        moving.assert_each_record_is_read_once()

    done = job.last_report()
    assert ("Done", "west", True) == (done.state, done.active, done.may_copy_back)


def test_a_job_moves_an_application_and_reports_when_the_reverse_flow_may_start(
    sides: Sides,  # noqa: F811
    tmp_path: Path,
):
    """The same Switchover, created again with a status that was lost, changes nothing and has the same record.

    It is the last test: the flow from east to west stays ended.
    """
    pair = Pair(sides, tmp_path)
    job = RunningJob(pair, "move")
    with (
        pair.running("east-to-west", "forward") as forward,
        contextlib.ExitStack() as stack,
        Application(pair) as application,
    ):
        wait_until("records are copied", lambda: sides["west"].total_end_offset(pair.topic) > 50)
        with job.started() as process:
            wait_until(
                "the reverse flow may start",
                lambda: (
                    ((report := job.report()) is not None and report.may_copy_back)
                    or process.poll() is not None
                ),
            )
            assert process.poll() is None, process.communicate()
            before = job.report()
            stack.enter_context(pair.running("west-to-east", "back"))
            _, err = process.communicate(timeout=COMMAND_S)
            assert 0 == process.returncode, err + forward.output()
        wait_until("the application continues", lambda: application.written_to("west") > 50)
        done = job.last_report()
        again = RunningJob(pair, "move").ended()

    assert before is not None
    assert ("Reversing", "west", f"{pair.name}/move") == (before.state, before.active, before.promoted_by)
    assert ("Done", "west", "east", True) == (done.state, done.active, done.source, done.may_copy_back)
    assert done.seal is not None
    assert done.seal.partitions == 1
    assert done.writes_refused_ms is not None
    assert 0 < done.writes_refused_ms
    assert ("Done", done.since, done.seal, done.states) == (
        again.state,
        again.since,
        again.seal,
        again.states,
    )
    print(done)
