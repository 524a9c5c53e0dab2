"""Candidates for where a partition continues: one for each witness, with what speaks for it."""

from dataclasses import replace

from mirrorflow_core.exactly_once.alignment import Evidence, LeaderMemory, OffsetPair, Tail
from mirrorflow_core.exactly_once.resume_candidates import (
    Candidate,
    Witness,
    candidates,
    describe_evidence,
    describe_memory,
)

# The position: source offset 149 is record 49 at target offset 59; the count began at source offset 100, target offset 10.
EVIDENCE = Evidence(
    epoch=16,
    ladder=(OffsetPair(149, 49, 59), OffsetPair(99, -1, 9)),
    memory=LeaderMemory(epoch=16, sequence=69),
    log_start=0,
    high_watermark=85,
    tail=Tail(scanned_from=60, sequence=64, target_offset=74),
)


def test_each_witness_has_a_candidate():
    assert candidates(EVIDENCE) == (
        Candidate(witness=Witness.MEMORY, ordinal=69, source_offset=170, is_exact=False),
        Candidate(witness=Witness.LOG, ordinal=64, source_offset=165, is_exact=False, target_offset=74),
        Candidate(witness=Witness.POSITION, ordinal=49, source_offset=150, is_exact=True, target_offset=59),
        Candidate(witness=Witness.COUNT, ordinal=74, source_offset=175, is_exact=False, target_offset=84),
    )


def test_a_leader_that_remembers_another_epoch_or_no_record_is_no_witness():
    for memory in (None, LeaderMemory(epoch=15, sequence=69), LeaderMemory(epoch=16, sequence=-1)):
        found = candidates(replace(EVIDENCE, memory=memory))

        assert Witness.MEMORY not in {one.witness for one in found}


def test_an_anchor_alone_is_no_position():
    """Nothing was stored yet: all that is known is where the count began."""
    found = candidates(replace(EVIDENCE, ladder=EVIDENCE.ladder[-1:], memory=None, tail=None))

    assert [one.witness for one in found] == [Witness.COUNT]


def test_a_log_shorter_than_the_position_cannot_be_counted():
    found = candidates(replace(EVIDENCE, high_watermark=40, tail=None, memory=None))

    assert [one.witness for one in found] == [Witness.POSITION]


def test_sequences_that_wrapped_are_counted_on_from_the_position():
    ladder = (OffsetPair(149, (1 << 31) + 4, 59), OffsetPair(99, (1 << 31) - 46, 9))

    found = candidates(replace(EVIDENCE, ladder=ladder, memory=LeaderMemory(epoch=16, sequence=9), tail=None))

    assert found[0] == Candidate(
        witness=Witness.MEMORY, ordinal=(1 << 31) + 9, source_offset=155, is_exact=False
    )


def test_what_is_known_of_the_target_is_one_sentence():
    assert describe_evidence(EVIDENCE) == (
        "its log has offsets 0 to 85, and its leader remembers epoch 16, sequence 69 of the flow; the source offset to "
        "continue at could be 170 or above by the leader's memory, 165 or above by the last batch in the log, 150 by the "
        "newest position, about 175 by counting"
    )


def test_a_target_that_shows_nothing_is_said_to():
    empty = replace(EVIDENCE, ladder=EVIDENCE.ladder[-1:], memory=None, tail=None, high_watermark=0)

    assert describe_evidence(empty).endswith("the source offset to continue at is shown by nothing")


def test_an_open_transaction_is_part_of_the_leaders_memory():
    memory = LeaderMemory(epoch=16, sequence=-1, open_since=40)

    assert describe_memory(memory) == "epoch 16, no record, a transaction open since offset 40"
