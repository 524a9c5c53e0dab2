"""The judgement of a switchover trial finds each kind of defect, and accepts what the promise allows."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.chaos.switchover.judgement import (
    UnplannedMove,
    difference,
    fence_problems,
    group_problems,
    journal_problems,
    problems_of,
    side_problems,
)
from tests.harness.kafka.pair_clients import Attempt, Outcome, ReadRecord

KINDS = [Outcome.ACKNOWLEDGED] * 4 + [Outcome.UNKNOWN, Outcome.ABORTED, Outcome.ACKNOWLEDGED]
WRITTEN = {
    "p": [
        Attempt(number=number, member="east" if number < 4 else "west", outcome=outcome)
        for number, outcome in enumerate(KINDS)
    ]
}


def read(attempt: int, partition: int = 0) -> ReadRecord:
    return ReadRecord(partition=partition, offset=attempt, key=f"k{partition}", producer="p", attempt=attempt)


EXACT = [read(attempt) for attempt in (0, 1, 2, 3, 6)]


@pytest.mark.parametrize(
    ("reads", "what"),
    [
        pytest.param(EXACT[:2] + EXACT[3:], "1 acknowledged records missing: p #2", id="missing"),
        pytest.param(EXACT[:3] + EXACT[2:], "1 records repeated: p #2", id="repeated"),
        pytest.param(
            [*EXACT[:1], EXACT[2], EXACT[1], *EXACT[3:]], "1 records out of order: p #1", id="swapped"
        ),
        pytest.param([*EXACT[:4], read(5), read(6)], "1 aborted records present: p #5", id="aborted"),
        pytest.param([*EXACT, read(9)], "1 records that no producer has sent: p #9", id="foreign"),
        pytest.param([*EXACT[:4], read(4), read(4), read(6)], "1 records repeated: p #4", id="unknown twice"),
        pytest.param([], "5 acknowledged records missing", id="nothing read"),
    ],
)
def test_each_kind_of_defect_is_reported(reads: Sequence[ReadRecord], what: str):
    (problem, *others) = problems_of(WRITTEN, reads, of="group")

    assert problem.startswith(f"group: {what}")
    assert [] == others


def test_reads_of_each_acknowledged_record_once_and_in_order_are_exact():
    assert [] == problems_of(WRITTEN, EXACT, of="group")


def test_a_record_whose_producer_got_an_error_may_be_read_once():
    assert [] == problems_of(WRITTEN, [*EXACT[:4], read(4), read(6)], of="group")


def test_order_is_compared_within_a_partition_only():
    reads = [read(1, 1), read(0), read(3, 1), read(2), read(6, 1)]

    assert [] == problems_of(WRITTEN, reads, of="group")


def test_a_key_in_two_partitions_is_out_of_order():
    moved = [*EXACT[:3], replace(EXACT[4], partition=1), EXACT[3]]

    (problem,) = problems_of(WRITTEN, moved, of="group")

    assert "1 records out of order: p #3" in problem


def test_a_record_in_a_different_partition_than_acknowledged_is_reported():
    written = {"p": [replace(attempt, partition=0) for attempt in WRITTEN["p"]]}
    reads = [*EXACT[:4], replace(EXACT[4], partition=1)]

    (problem,) = problems_of(written, reads, of="group")

    assert "1 records in another partition than acknowledged: p #6" in problem


@pytest.mark.parametrize(
    "west",
    [EXACT[:-1], [*EXACT, read(6)], [EXACT[1], EXACT[0], *EXACT[2:]], []],
    ids=["shorter", "longer", "swapped", "empty"],
)
def test_different_logs_are_reported(west: Sequence[ReadRecord]):
    assert difference(EXACT, west).startswith("partition 0 differs from record")
    assert difference(west, EXACT)


def test_equal_logs_at_different_offsets_are_equal():
    assert "" == difference(EXACT, [replace(record, offset=record.offset + 7) for record in EXACT])


# An unplanned move after attempt 3: the tail has attempt 3, and the group begins at attempt 1 again.
MOVE = UnplannedMove(to="west", began_ms=100)
TAIL = {("p", 3)}


def group_reads(*attempts: int, member: str, time_ms: int) -> list[ReadRecord]:
    return [replace(read(attempt), member=member, time_ms=time_ms) for attempt in attempts]


BEFORE = group_reads(0, 1, 2, member="east", time_ms=90)


def test_after_an_unplanned_switchover_a_group_may_repeat_records_and_skip_the_tail():
    reads = [*BEFORE, *group_reads(1, 2, 6, member="west", time_ms=110)]

    assert [] == group_problems(WRITTEN, reads, of="group", moves=[MOVE], kept=TAIL)


@pytest.mark.parametrize(
    ("after", "what"),
    [
        pytest.param((6,), "", id="exact"),
        pytest.param((1, 2), "group: 1 acknowledged records missing: p #6", id="missing"),
        pytest.param((1, 2, 2, 6), "group after unplanned move 1: 1 records repeated: p #2", id="repeated"),
        pytest.param((2, 1, 6), "group after unplanned move 1: 1 records out of order: p #1", id="swapped"),
    ],
)
def test_after_an_unplanned_switchover_a_group_reads_new_records_once_and_in_order(
    after: Sequence[int], what: str
):
    reads = [*BEFORE, *group_reads(*after, member="west", time_ms=110)]

    problems = group_problems(WRITTEN, reads, of="group", moves=[MOVE], kept=TAIL)

    assert (not problems) if not what else problems[0].startswith(what)


def test_a_repeated_record_before_an_unplanned_switchover_is_reported():
    reads = [
        *BEFORE,
        *group_reads(2, member="east", time_ms=120),
        *group_reads(6, member="west", time_ms=130),
    ]

    (problem,) = group_problems(WRITTEN, reads, of="group", moves=[MOVE], kept=TAIL)

    assert problem.startswith("group: 1 records repeated: p #2")


def test_a_repeated_record_after_a_planned_switchover_is_reported():
    reads = [*BEFORE, *group_reads(2, 3, 6, member="west", time_ms=110)]

    (problem,) = group_problems(WRITTEN, reads, of="group")

    assert problem.startswith("group: 1 records repeated: p #2")


@pytest.mark.parametrize(
    ("log", "kept", "what"),
    [
        ((0, 1, 2, 6), (3,), ""),
        ((0, 1, 2, 3, 6), (), ""),
        ((0, 1, 2, 6), (), "the log of west: 1 acknowledged records missing: p #3"),
        ((0, 1, 2, 3, 6), (3,), "west: 1 records both in the log and in a kept tail: p #3"),
        ((0, 1, 2, 6), (3, 3), "the tail kept on west: 1 records repeated: p #3"),
        ((0, 6), (2, 1, 3), "the tail kept on west: 1 records out of order: p #1"),
        ((0, 1, 2, 6), (3, 5), "the tail kept on west: 1 aborted records present: p #5"),
    ],
)
def test_each_acknowledged_record_is_in_the_log_or_in_the_kept_tail(
    log: Sequence[int], kept: Sequence[int], what: str
):
    problems = side_problems(WRITTEN, [read(key) for key in log], [read(key) for key in kept], of="west")

    assert ([] if not what else [what]) == [problem.partition(" (")[0] for problem in problems]


STATUS = {
    "active": "west",
    "fences": {"east": "complete", "west": "absent"},
    "newest": {"state": "Done"},
}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"newest": {"state": "Reversing"}}, "the newest switchover of the journal is in state Reversing"),
        ({"newest": None}, "the newest switchover of the journal is in state None"),
        ({"active": "east"}, "the journal's active member is east, not west"),
        ({"fences": {"east": "absent", "west": "absent"}}, "the journal's fences are"),
        ({"fences": {"east": "complete", "west": "partial"}}, "the journal's fences are"),
    ],
)
def test_a_journal_without_a_final_state_is_reported(change: dict[str, object], problem: str):
    (reported,) = journal_problems(STATUS | change, active="west", passive="east")

    assert reported.startswith(problem)


def test_the_journal_of_a_completed_switchover_is_accepted():
    assert [] == journal_problems(STATUS, active="west", passive="east")


@pytest.mark.parametrize(
    ("denied", "problem"),
    [
        ({"east": 1, "west": 2}, "2 DENY ACLs are left on west, the active member"),
        ({"east": 0, "west": 0}, "nothing keeps applications from writing to east, which was left"),
    ],
)
def test_a_fence_on_the_wrong_cluster_is_reported(denied: dict[str, int], problem: str):
    assert [problem] == fence_problems(denied, active="west", passive="east")


def test_a_fence_on_the_old_side_is_accepted():
    assert [] == fence_problems({"east": 1, "west": 0}, active="west", passive="east")
