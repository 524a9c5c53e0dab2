"""What the threads of a rehearsal's application note: times of one clock, and counts in bounded memory."""

import pytest

from mirrorflow_core.switchover.states import SwitchoverState as S
from mirrorflow_replicator.switchover import canary_notes
from mirrorflow_replicator.switchover.canary_notes import CanaryNotes


class Clock:
    """Advances by a second each time that it is read."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 1
        return self.now_s


def test_the_first_refused_write_separates_the_writes_before_and_after_the_fence():
    """Between the request for the fence and the moment in which brokers enforce it, writes are still accepted."""
    notes = CanaryNotes(Clock())
    notes.note_acknowledged(0)  # 1
    notes.note_state(S.FENCING)  # 2
    notes.note_acknowledged(1)  # 3
    for _ in range(2):
        notes.note_refused("TOPIC_AUTHORIZATION_FAILED")  # 4, the second one reads no clock
    notes.note_state(S.ROLLING_BACK)  # 5
    notes.note_acknowledged(2)  # 6
    timeline = notes.timeline()

    assert (1.0, 3.0, 4.0, 6.0) == (
        timeline.first_acknowledged,
        timeline.last_acknowledged,
        timeline.refused,
        timeline.accepted,
    )
    assert (2, "TOPIC_AUTHORIZATION_FAILED") == (notes.refused_writes, notes.refused_with)


def test_without_a_refused_write_the_fence_is_the_limit():
    notes = CanaryNotes(Clock())
    notes.note_acknowledged(0)  # 1
    notes.note_state(S.FENCING)  # 2
    notes.note_state(S.ROLLING_BACK)  # 3
    notes.note_acknowledged(1)  # 4
    timeline = notes.timeline()

    assert (1.0, None, 4.0) == (timeline.last_acknowledged, timeline.refused, timeline.accepted)


def test_the_group_has_read_all_when_each_acknowledged_record_was_read_and_writes_are_refused():
    """A record may be read before its acknowledgement has arrived, and twice if the group joins again."""
    notes = CanaryNotes(Clock())
    notes.note_acknowledged(0)
    notes.note_read([0, 1])
    assert not notes.has_read_all(1.0)
    notes.note_acknowledged(1)
    notes.note_acknowledged(2)
    notes.note_state(S.FENCING)
    notes.note_refused("TOPIC_AUTHORIZATION_FAILED")
    notes.note_read([0, 1])
    assert not notes.has_read_all(1.0)
    notes.note_read([2])

    assert notes.has_read_all(1.0)
    assert (3, 2) == (notes.read_records, notes.last_read)


def test_only_changes_of_the_offset_before_the_rollback_count():
    notes = CanaryNotes(Clock())
    notes.note_state(S.FENCING)  # 1
    for offset in (7, 7, 9):
        notes.note_target_offset(offset)  # 2 and 3
    notes.note_state(S.ROLLING_BACK)  # 4
    notes.note_target_offset(11)

    assert (11, 3.0) == (notes.target_offset, notes.timeline().offset_moved)


def test_a_group_that_is_far_behind_is_a_problem_and_not_a_matter_of_memory(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(canary_notes, "UNMATCHED_MAX", 3)
    notes = CanaryNotes(Clock())
    for number in range(3):
        notes.note_acknowledged(number)
    assert notes.problem == ""
    notes.note_acknowledged(3)

    assert "behind its producer by more than 3 records" in notes.problem


def test_the_first_problem_counts():
    notes = CanaryNotes(Clock())
    notes.note_problem("first")
    notes.note_problem("second")

    assert notes.problem == "first"
