"""The judgement of a switchover trial finds each kind of defect, and accepts what the promise allows."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.chaos.switchover.judgement import difference, fence_problems, journal_problems, problems_of
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
def test_each_kind_of_defect_is_found(reads: Sequence[ReadRecord], what: str):
    (problem, *others) = problems_of(WRITTEN, reads, of="group")

    assert problem.startswith(f"group: {what}")
    assert [] == others


def test_reads_of_each_acknowledged_record_once_and_in_order_are_exact():
    assert [] == problems_of(WRITTEN, EXACT, of="group")


def test_a_record_whose_producer_got_an_error_may_be_read_once():
    assert [] == problems_of(WRITTEN, [*EXACT[:4], read(4), read(6)], of="group")


def test_partitions_have_an_order_of_their_own():
    reads = [read(1, 1), read(0), read(3, 1), read(2), read(6, 1)]

    assert [] == problems_of(WRITTEN, reads, of="group")


def test_a_key_in_two_partitions_is_out_of_order():
    moved = [*EXACT[:3], replace(EXACT[4], partition=1), EXACT[3]]

    (problem,) = problems_of(WRITTEN, moved, of="group")

    assert "1 records out of order: p #3" in problem


def test_a_record_in_another_partition_than_acknowledged_is_found():
    written = {"p": [replace(attempt, partition=0) for attempt in WRITTEN["p"]]}
    reads = [*EXACT[:4], replace(EXACT[4], partition=1)]

    (problem,) = problems_of(written, reads, of="group")

    assert "1 records in another partition than acknowledged: p #6" in problem


@pytest.mark.parametrize(
    "west",
    [EXACT[:-1], [*EXACT, read(6)], [EXACT[1], EXACT[0], *EXACT[2:]], []],
    ids=["shorter", "longer", "swapped", "empty"],
)
def test_logs_that_differ_are_found(west: Sequence[ReadRecord]):
    assert difference(EXACT, west).startswith("partition 0 differs from record")
    assert difference(west, EXACT)


def test_equal_logs_at_different_offsets_are_equal():
    assert "" == difference(EXACT, [replace(record, offset=record.offset + 7) for record in EXACT])


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
def test_a_journal_that_is_not_final_is_found(change: dict[str, object], problem: str):
    (found,) = journal_problems(STATUS | change, active="west", passive="east")

    assert found.startswith(problem)


def test_the_journal_of_a_completed_switchover_is_accepted():
    assert [] == journal_problems(STATUS, active="west", passive="east")


@pytest.mark.parametrize(
    ("denied", "problem"),
    [
        ({"east": 1, "west": 2}, "2 DENY ACLs are left on west, the active member"),
        ({"east": 0, "west": 0}, "nothing keeps applications from writing to east, which was left"),
    ],
)
def test_a_fence_on_the_wrong_cluster_is_found(denied: dict[str, int], problem: str):
    assert [problem] == fence_problems(denied, active="west", passive="east")


def test_a_fence_on_the_cluster_that_was_left_is_accepted():
    assert [] == fence_problems({"east": 1, "west": 0}, active="west", passive="east")
