"""The Job of a Switchover, run as a process: its command line and its files are those that the operator plans."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from mirrorflow_operator.api.load import read_documents
from mirrorflow_operator.api.mirror_pair import load_pair
from mirrorflow_operator.api.switchover import parse_switchover
from mirrorflow_operator.plan.switchover_objects import FlowOfPair, switchover_objects
from mirrorflow_operator.status.switchover_reports import SwitchoverReport, parse_switchover_report
from tests.harness.kafka.processes import free_port, wait_until
from tests.integration.kafka.mirror_pairs import APP, COMMAND_S, Application, Pair, Sides
from tests.integration.kafka.test_switchover import sides, topic_acls  # noqa: F401 a fixture

HOUR_MS = 3_600_000


class RunningJob:
    """One Switchover of a pair; `start` is what the kubelet does with the Job's container."""

    def __init__(self, pair: Pair, name: str, *, begin_until_ms: int | None = None, **spec: Any) -> None:
        self.folder = pair.folder / name
        self.folder.mkdir(exist_ok=True)
        self.port = free_port()
        self._message = self.folder / "termination-log"
        objects = self._objects(pair, name, begin_until_ms or time.time_ns() // 1_000_000 + HOUR_MS, spec)
        for file, text in objects[0]["data"].items():
            # In the pod, Secrets are mounted where the properties refer to them.
            (self.folder / file).write_text(text.replace("/mnt/mirrorflow/secrets", str(pair.folder)))
        self._container = objects[-1]["spec"]["template"]["spec"]["containers"][0]

    @staticmethod
    def _objects(pair: Pair, name: str, begin_until_ms: int, spec: dict[str, Any]) -> list[dict[str, Any]]:
        loaded = load_pair(pair.file.read_text())
        request = {
            **read_documents(pair.file.read_text())[0],
            "kind": "Switchover",
            "metadata": {"name": name},
        }
        switchover = parse_switchover(
            {**request, "spec": {"pair": pair.name, "to": "west", "type": "Planned", **spec}}
        )
        flows = {
            alias: FlowOfPair(flow=flow, flow_id=flow.metadata.name, version="1")
            for alias, flow in loaded.flows.items()
        }
        return switchover_objects(
            switchover, loaded.pair, flows, image="replicator", begin_until_ms=begin_until_ms
        )

    @contextlib.contextmanager
    def started(self) -> Iterator[subprocess.Popen[str]]:
        variables = {variable["name"]: variable["value"] for variable in self._container["env"]}
        variables |= {"HTTP_PORT": str(self.port), "TERMINATION_MESSAGE": str(self._message)}
        python, *line = self._container["command"]
        assert python == "python3"
        command = [
            sys.executable,
            *(part if part != "/etc/mirrorflow" else str(self.folder) for part in line),
        ]
        with subprocess.Popen(
            command, env={**os.environ, **variables}, stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                yield process
            finally:
                if process.poll() is None:
                    process.kill()

    def report(self) -> SwitchoverReport | None:
        """Returns what the running process reports; None before it listens."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/progress", timeout=5) as response:
                return parse_switchover_report(response.read())
        except OSError:
            return None

    def last_report(self) -> SwitchoverReport:
        report = parse_switchover_report(self._message.read_bytes())
        assert report is not None
        return report

    def ended(self) -> SwitchoverReport:
        """Runs the process to its end."""
        with self.started() as process:
            _, err = process.communicate(timeout=COMMAND_S)
            assert 0 == process.returncode, err
        return self.last_report()


def test_a_job_that_is_stopped_before_promoting_rolls_back_and_the_next_process_reports_it(
    sides: Sides,  # noqa: F811
    tmp_path: Path,
):
    """It waits for a consumer that stays at the source, and ends by SIGTERM, as when its pod is deleted."""
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


def test_a_job_that_starts_too_late_refuses(sides: Sides, tmp_path: Path):  # noqa: F811
    report = RunningJob(Pair(sides, tmp_path), "late", begin_until_ms=1).ended()

    assert "Refused" == report.state
    assert report.reason.startswith("It could not begin in time")


def test_a_job_with_files_that_it_cannot_read_refuses(sides: Sides, tmp_path: Path):  # noqa: F811
    job = RunningJob(Pair(sides, tmp_path), "broken")
    request = job.folder / "switchover.json"
    request.write_text(json.dumps({**json.loads(request.read_text()), "format": 99}))

    report = job.ended()

    assert "Refused" == report.state
    assert "it was written by another version of the operator" in report.reason


def test_a_job_moves_an_application_and_reports_when_the_flow_back_may_start(
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
                "the flow back may start",
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
