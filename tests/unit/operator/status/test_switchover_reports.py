"""The operator parses reports of a Job, and ignores everything else."""

import json
from dataclasses import replace

import pytest

from mirrorflow_cli.switchover_job_progress import MESSAGE_MAX_BYTES, SwitchoverProgress
from mirrorflow_cli.switchover_report import canary_report
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.switchover.canary import CanaryResult, CanaryTimeline
from mirrorflow_core.switchover.loss import EndEvidence, LossAssessment, PartitionLoss
from mirrorflow_core.switchover.record import HISTORY_MAX, StateEntry, SwitchoverRecord
from mirrorflow_core.switchover.states import SwitchoverState, SwitchoverType
from mirrorflow_operator.api.pair_status import CanaryMilliseconds, CanarySummary, SwitchoverLoss, TopicLoss
from mirrorflow_operator.status.switchover_reports import SwitchoverReport, parse_switchover_report

RECORD = SwitchoverRecord(
    id="east-west/move",
    pair="east-west",
    type=SwitchoverType.PLANNED,
    source="east",
    to="west",
    created_ms=1_000,
    state=SwitchoverState.REVERSING,
    epoch=3,
    fenced_ms=2_000,
    history=(
        StateEntry(SwitchoverState.FENCING, 2_000),
        StateEntry(SwitchoverState.REVERSING, 3_500),
    ),
)


def test_a_parsed_report_equals_the_written_one():
    progress = SwitchoverProgress(
        id=RECORD.id,
        record=RECORD,
        waits_for="Waits for the first record.",
        notes=("Restart producers.",),
        active="west",
        promoted_by=RECORD.id,
        epoch=3,
        may_copy_back=True,
    )

    read = parse_switchover_report(progress.body())

    assert read is not None
    assert read == SwitchoverReport(
        id="east-west/move",
        state="Reversing",
        since="1970-01-01T00:00:03.500Z",
        waits_for="Waits for the first record.",
        source="east",
        active="west",
        promoted_by="east-west/move",
        epoch=3,
        may_copy_back=True,
        fenced="1970-01-01T00:00:02.000Z",
        writes_refused_ms=1_500,
        states=read.states,
        notes=("Restart producers.",),
    )
    assert ["Fencing", "Reversing"] == [entry.state for entry in read.states]


def test_the_parsed_loss_of_an_unplanned_switchover_equals_the_written_one():
    lost = tuple(
        PartitionLoss(
            topic=topic,
            partition=number,
            copied=10,
            source_end=end,
            evidence=EndEvidence.FLOW,
            seen_ms=9_000,
        )
        for topic, number, end in (("a", 0, 15), ("a", 1, 17), ("b", 0, 10), ("c", 0, 11), ("d", 0, None))
    )
    unplanned = replace(RECORD, type=SwitchoverType.UNPLANNED, state=SwitchoverState.FORWARD_ENDED)
    record = replace(unplanned, loss=LossAssessment(partitions=lost))

    read = parse_switchover_report(SwitchoverProgress(id=RECORD.id, record=record).body())

    assert read is not None
    assert read.loss == SwitchoverLoss(
        lost_offsets_at_least=13,
        partitions_with_loss=3,
        partitions_with_unknown_end=1,
        known_until="1970-01-01T00:00:09.000Z",
        topics=(
            TopicLoss(topic="a", lost_offsets_at_least=12),
            TopicLoss(topic="c", lost_offsets_at_least=1),
        ),
    )


def test_the_parsed_canary_of_a_rehearsal_equals_the_written_one():
    timeline = CanaryTimeline(last_acknowledged=1.0, accepted=2.25, rolling_back=2.0)
    seen = CanaryResult(
        topic="orders.canary",
        group="canary",
        client="confluent-kafka 2.16.1, librdkafka 2.16.1",
        timeline=timeline,
        acknowledged_records=100,
        refused_writes=30,
        refused_with="TOPIC_AUTHORIZATION_FAILED",
        read_records=90,
        source_offset=90,
        target_offset=90,
        read_again=0,
        skipped=None,
    )
    record = replace(RECORD, type=SwitchoverType.REHEARSAL, state=SwitchoverState.REHEARSED)
    progress = SwitchoverProgress(id=RECORD.id, record=record)
    progress.note_canary(canary_report(seen)["canaryApplication"])

    read = parse_switchover_report(progress.body())

    assert read is not None
    assert read.canary == CanarySummary(
        passed=True,
        message="Canary group canary has read 0 records again on the other cluster, and skipped 0. Its producer could not write for 1.2 s.",
        client="confluent-kafka 2.16.1, librdkafka 2.16.1",
        records_acknowledged=100,
        records_read=90,
        writes_refused=30,
        records_read_again=0,
        records_skipped=None,
        milliseconds=CanaryMilliseconds(accepted=250, not_written=1_250),
    )


def test_a_refusal_without_a_record_is_parsed():
    read = parse_switchover_report(SwitchoverProgress(id="a", refusal="spec.to: no; yes.").body())

    assert read == SwitchoverReport(id="a", state="Refused", reason="spec.to: no; yes.")


def test_a_long_report_fits_into_a_termination_message():
    entries = tuple(StateEntry(SwitchoverState.FENCING, number) for number in range(HISTORY_MAX))
    lost = tuple(
        PartitionLoss(topic=f"{number:03}" + "t" * 246, partition=0, copied=0, source_end=5)
        for number in range(300)
    )
    long = replace(RECORD, history=entries, reason='"' * 5_000, loss=LossAssessment(partitions=lost))
    partition = str(TopicPartition("t" * 249, 7))
    progress = SwitchoverProgress(
        id=RECORD.id, record=long, waits_for=f"ä{partition}" * 50, notes=["ü" * 999] * 50
    )

    body = progress.body()

    assert len(body) <= MESSAGE_MAX_BYTES
    assert parse_switchover_report(body) is not None


@pytest.mark.parametrize(
    "text",
    ["", "Traceback", "[]", '{"job":"seed","version":1}', '{"job":"switchover","version":2}', "x" * 5_000],
)
def test_a_text_that_is_not_a_report_is_ignored(text: str):
    assert parse_switchover_report(text) is None


def test_values_of_wrong_types_are_ignored():
    foreign = {
        "version": 1,
        "job": "switchover",
        "switchover": "a b",
        "state": 7,
        "since": "yesterday",
        "writesRefusedMs": -1,
        "active": ["west"],
        "epoch": True,
        "mayCopyBack": "yes",
        "seal": 1,
        "loss": "much",
        "states": [1, {"state": "Done"}],
        "notes": "no",
    }

    assert SwitchoverReport(id="", writes_refused_ms=0) == parse_switchover_report(json.dumps(foreign))
