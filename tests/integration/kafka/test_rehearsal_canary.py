"""A rehearsal beside an application with confluent-kafka, whose topic and group move between two real clusters.

The command and the Job of a Switchover run it.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.kafka.processes import wait_until
from tests.integration.kafka.mirror_pairs import Pair, Sides, pair_sides
from tests.integration.kafka.running_switchover_job import RunningJob


@pytest.fixture(scope="module")
def sides() -> Iterator[Sides]:
    with pair_sides() as clusters:
        yield clusters


def test_a_rehearsal_measures_a_producer_and_a_group_that_read_each_record_once(sides: Sides, tmp_path: Path):
    """The second rehearsal begins with the records and offsets that the first one has left in the topic and the group."""
    pair = Pair(sides, tmp_path, has_canary=True)
    report, page = tmp_path / "report.json", tmp_path / "report.html"
    arguments = ("--to", "west", "--rehearse", "--canary-topic", pair.canary, "--report", report)
    with pair.running("east-to-west", "forward") as forward:
        wait_until("the flow runs", lambda: pair.topic in sides["west"].topics())
        for run in ("first", "second"):
            rehearsal = pair.command(*arguments, "--report", page)
            assert 0 == rehearsal.returncode, run + rehearsal.stdout + rehearsal.stderr + forward.output()
            written = json.loads(report.read_text())
            seen = written["canaryApplication"]
            print(json.dumps(seen, indent=2))

            assert (True, 0, 0) == (seen["passed"], seen["recordsReadAgain"], seen["recordsSkipped"])
            assert "TOPIC_AUTHORIZATION_FAILED" == seen["refusedWith"]
            assert None not in seen["seconds"].values()
            assert seen["targetOffset"] is not None
            assert {"group": pair.canary, "outcome": "exact", "recordsReadAgain": 0} in written["groups"]
            assert seen["sentence"] in rehearsal.stdout
    assert "confluent-kafka" in page.read_text()
    assert "Canary application" in page.read_text()


def test_the_job_of_a_rehearsal_runs_its_canary_and_reports_what_that_saw(sides: Sides, tmp_path: Path):
    """The topic does not exist before. A canary that the flow does not copy refuses the next rehearsal."""
    pair = Pair(sides, tmp_path, has_canary=True)
    with pair.running("east-to-west", "forward") as forward:
        wait_until("the flow runs", lambda: pair.topic in sides["west"].topics())

        passed = RunningJob(pair, "passed", type="Rehearsal", canary={"topic": pair.canary}).ended()
        refused = RunningJob(pair, "refused", type="Rehearsal", canary={"topic": "other"}).ended()

    assert "Rehearsed" == passed.state, passed.reason + forward.output()
    seen = passed.canary
    print(seen)
    assert seen is not None
    assert (True, 0, 0) == (seen.passed, seen.records_read_again, seen.records_skipped)
    assert seen.writes_refused > 0
    assert seen.client.startswith("confluent-kafka")
    assert None not in seen.milliseconds.model_dump().values()
    assert "Refused" == refused.state
    assert "spec.canary: flow east-to-west does not copy topic other" in refused.reason


def test_a_topic_that_the_flow_does_not_copy_is_refused_before_anything_changes(sides: Sides, tmp_path: Path):
    pair = Pair(sides, tmp_path)

    refused = pair.command("--to", "west", "--rehearse", "--canary-topic", pair.canary)

    assert 2 == refused.returncode
    assert f"--canary-topic: flow east-to-west does not copy topic {pair.canary}" in refused.stderr
    assert pair.canary not in sides["east"].topics()
