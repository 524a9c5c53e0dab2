"""How `mirrorflow dump resumption` shows a partition; that both clusters are read is the integration tests' business."""

import json
from dataclasses import replace

import pytest

from mirrorflow_cli.__main__ import main
from mirrorflow_cli.dump_resumption import COLUMNS, fields, rows
from mirrorflow_cli.resumption_evidence import DecidedStart, Resumption
from mirrorflow_core.exactly_once.alignment import LeaderMemory
from mirrorflow_core.exactly_once.identity import Anchor
from mirrorflow_core.exactly_once.resume_candidates import Candidate, Witness
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.position import Position, Rung
from mirrorflow_kafka.admin import target_probe
from mirrorflow_replicator.copy.resume.source_scan import LogExtent
from tests.unit.copy.test_batch_packer import IDENTITY

ANCHOR = Anchor(
    generation=1, topic="orders", partition=3, step=0, ordinal=0, source_offset=100, target_offset=10,
    source_topic_id="s", target_topic_id="t", why="earliest",
)  # fmt: skip
POSITION = Position(
    topic="orders", partition=3, source_offset=149, sequence=49, target_offset=59, epoch=1, copier="ab12",
    rungs=(Rung(120, 20, -1, 5),),
)  # fmt: skip
FOUND = Resumption(
    partition=TopicPartition("orders", 3),
    target=TopicPartition("east.orders", 3),
    source_log=LogExtent(100, 200),
    testimony=target_probe.ProbeResult(
        memory=LeaderMemory(epoch=16, sequence=69), log_start=0, high_watermark=85
    ),
    identity=IDENTITY,
    anchor=ANCHOR,
    position=POSITION,
    candidates=(
        Candidate(witness=Witness.MEMORY, ordinal=69, source_offset=170, is_exact=False),
        Candidate(witness=Witness.POSITION, ordinal=49, source_offset=150, is_exact=True, target_offset=59),
    ),
    decision=DecidedStart(source_offset=170, why="both logs agree"),
)


def test_a_partition_has_a_row_and_each_candidate_one_below():
    first, *below = rows(FOUND)

    assert dict(zip(COLUMNS, first, strict=True)) == {
        "partition": "orders-3",
        "source": "100..200",
        "target": "0..85",
        "leader remembers": "epoch 16, sequence 69",
        "position": "149 @ 59 (before: 120 @ ?)",
        "begun at": "100",
        "continue at": "170",
        "by": "both logs agree",
    }
    assert [row[-2:] for row in below] == [
        ("(170 or above)", "the leader's memory"),
        ("(150)", "the newest position"),
    ]


def test_a_partition_that_was_never_copied_shows_what_there_is():
    fresh = replace(
        FOUND, identity=None, anchor=None, position=None, candidates=(),
        decision=DecidedStart(source_offset=None, why="it was never copied"),
    )  # fmt: skip

    assert [tuple(row) for row in rows(fresh)] == [
        ("orders-3", "100..200", "0..85", "-", "-", "-", "-", "it was never copied")
    ]


def test_a_target_that_cannot_be_asked_says_why_in_place_of_its_offsets():
    silent = replace(
        FOUND, problem="the target answers LEADER_NOT_AVAILABLE", testimony=target_probe.ProbeResult(error=5)
    )

    assert next(rows(silent))[2] == "the target answers LEADER_NOT_AVAILABLE"
    assert fields(silent)["target"] == {"first_offset": None, "end_offset": None}


def test_json_has_all_of_it():
    found = json.loads(json.dumps(fields(FOUND)))

    assert (found["topic"], found["partition"], found["target_topic"]) == ("orders", 3, "east.orders")
    assert found["source"] == {"first_offset": 100, "end_offset": 200}
    assert found["leader"] == {"epoch": 16, "last_sequence": 69, "transaction_open_since": None}
    assert found["position"]["rungs"] == [
        {"source_offset": 120, "sequence": 20, "target_offset": -1, "at_ms": 5, "source_epoch": -1}
    ]
    assert found["anchor"]["source_offset"] == 100
    assert found["candidates"][1] == {
        "by": "the newest position", "source_offset": 150, "is_exact": True, "ordinal": 49, "target_offset": 59,
    }  # fmt: skip
    assert found["decision"] == {"source_offset": 170, "why": "both logs agree"}


def test_a_topic_can_be_named_for_this_kind_only(capsys: pytest.CaptureFixture[str]):
    status = main(["dump", "identity", "--from", "a:1", "--to", "b:1", "--topic", "orders"])

    assert status == 2
    assert "--topic is for `mirrorflow dump resumption`" in capsys.readouterr().err
