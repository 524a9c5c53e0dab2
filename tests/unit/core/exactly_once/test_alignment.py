"""Where to go on is decided by witnesses: every attack on it that can be told without time.

The rows are those of the attacks that were run on real brokers; each test's sentence is the disaster it stands against.
"""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.exactly_once.alignment import (
    SEQUENCES,
    LeaderMemory,
    Need,
    ResumeAt,
    align,
    guess,
    ordinal_near,
    sequence_of,
)
from tests.unit.core.exactly_once.target import EPOCH, Target, settled

ORDINALS = st.integers(0, 2**40)


def remembering(sequence, epoch=EPOCH):
    return LeaderMemory(epoch=epoch, sequence=sequence)


# Sequences.


@given(ORDINALS, st.integers(-(2**30) + 1, 2**30 - 1))
def test_an_ordinal_is_found_again_from_its_sequence(ordinal, away):
    """Sequences go round every 2^31 records; what is known is never 2^30 records away."""
    near = max(ordinal + away, -1)

    assert ordinal == ordinal_near(sequence_of(ordinal), near)


@pytest.mark.parametrize("ordinal", [SEQUENCES - 1, SEQUENCES, 2 * SEQUENCES - 1, 2 * SEQUENCES])
def test_sequences_hold_across_the_wrap(ordinal):
    """After 2^31 - 1 comes 0: the last record before the wrap and the first behind it are told apart."""
    assert ordinal == ordinal_near(sequence_of(ordinal), ordinal - 1)
    assert ordinal == ordinal_near(sequence_of(ordinal), ordinal + 1)


def test_sequences_are_not_negative():
    """The record before the first has none, and must not look like record 2^31 - 1 of the next round."""
    assert SEQUENCES - 1 == ordinal_near(SEQUENCES - 1, -1)


# Attacks.


def test_a_fresh_partition_begins_alone():
    """First batches pipelined while no leader remembers us lost 1,520 records: a later one was accepted as the first."""
    target = Target()

    said = target.verdict()

    assert ResumeAt(ordinal=-1, target_offset=-1, known=target.ladder[0], alone=True) == said


def test_an_unreplicated_first_batch_is_waited_for():
    """Its leader says 99, is killed, and a new one without memory takes 100 at offset 0: all before it was lost."""
    target = Target()
    target.write(100)

    assert Need.WAIT is target.verdict()

    target.elect()

    assert -1 == target.verdict().ordinal


def test_an_unreplicated_tail_is_waited_for():
    """Taken for delivered, it stays missing when its leader dies and nothing more is to be sent."""
    target = settled(50)
    target.write(50)

    assert Need.WAIT is target.verdict()


def test_a_replicated_tail_beyond_what_we_know_is_believed():
    """Another copier's records are not copied again."""
    target = settled(50)
    target.write(50)
    target.replicate()

    said = target.verdict()

    assert (99, 99, 49, False) == (said.ordinal, said.target_offset, said.known.ordinal, said.alone)
    assert 50 == said.walk_records


def test_an_unclean_election_that_kept_a_part_is_filled_from_there():
    """The target lost its tail: what is left decides, not what was acknowledged."""
    target = settled(60)
    target.write(40)
    target.replicate()
    target.acknowledge()
    target.truncate(70)

    said = target.verdict()

    assert (69, 59, 69) == (said.ordinal, said.known.ordinal, said.target_offset)


def test_an_unclean_election_that_kept_nothing_begins_at_the_anchor():
    """Sequence 500 was accepted at offset 0, and 0 to 499 were lost."""
    target = settled(500)
    target.truncate(0)

    said = target.verdict()

    assert (-1, True) == (said.ordinal, said.alone)


@pytest.mark.parametrize("remembered", [True, False])
def test_an_emptied_log_does_not_begin_anew(remembered):
    """Retention took all our records; with or without the leader's memory, none is sent twice."""
    target = settled(100)
    target.delete(100)
    if not remembered:
        target.forget()

    said = target.verdict()

    assert (99, not remembered) == (said.ordinal, said.alone)


@pytest.mark.parametrize(("since", "decided"), [(0, True), (1, False)])
def test_an_emptied_and_forgotten_log_continues_where_it_ended_behind_our_marker(since, decided):
    """Old records, a marker behind them, all of it deleted: without its end it was unknown whether a record of ours was last."""
    target = settled(100)
    target.write_foreign(1)  # a marker, for all that can be told of it
    target.replicate()
    end = target.high_watermark
    target.write_foreign(since)
    target.replicate()
    target.delete(target.high_watermark)
    target.forget()
    evidence = replace(target.evidence(), known_end=end)

    said = align(evidence)

    newest = target.ladder[0]
    assert (
        ResumeAt(ordinal=99, target_offset=newest.target_offset, known=newest, alone=True) == said
    ) is decided
    assert decided or said is Need.READ_TAIL
    assert target.verdict() is Need.UNDECIDED


def test_an_emptied_log_with_more_than_we_know_is_not_counted_but_guessed():
    """The offsets since the known pair may have been anybody's: nothing is written before a policy wants the guess."""
    target = settled(50)
    target.write(50)
    target.replicate()
    target.delete(100)
    target.forget()

    assert Need.UNDECIDED is target.verdict()
    assert 99 == guess(target.witnesses()).ordinal


def test_a_forgetful_leader_is_asked_nothing_and_its_log_decides():
    """Absent is an answer of its own: not -1, which would begin anew, and not what we know, which would leave a gap."""
    target = settled(50)
    target.write(50)
    target.replicate()
    target.forget()

    said = target.verdict()

    assert (99, True) == (said.ordinal, said.alone)


def test_a_forgetful_leader_whose_log_was_cut_in_front_stops():
    """Others wrote behind our records, which retention took: how many there were is unknown."""
    target = settled(50)
    target.write(20)
    target.write_foreign(30)
    target.replicate()
    target.delete(80)
    target.forget()

    assert Need.UNDECIDED is target.verdict()


def test_a_frozen_leader_of_the_past_is_not_believed_against_the_log():
    """Thawed after an election it answered with a stale sequence and no error."""
    target = settled(50)
    target.write(50)
    target.replicate()

    assert Need.WAIT is target.verdict(memory=remembering(59))


def test_a_leader_that_knows_only_what_we_know_is_believed_where_others_wrote():
    """A foreign open transaction behind our last record changes nothing of ours."""
    target = settled(50)
    target.write_foreign(10)
    target.replicate()

    said = target.verdict()

    assert (49, 49, False) == (said.ordinal, said.target_offset, said.alone)


def test_records_of_others_in_between_are_not_counted_as_ours():
    """Counting offsets would skip as many records of the source as the others wrote."""
    target = settled(50)
    target.write_foreign(7)
    target.write(3)
    target.replicate()

    said = target.verdict()

    assert (52, 59) == (said.ordinal, said.target_offset)


def test_a_fenced_copier_stops():
    """A later epoch has another anchor: our sequences mean other records there."""
    assert Need.FENCED is settled(5).verdict(memory=remembering(4, epoch=EPOCH + 1))


def test_the_memory_of_an_older_epoch_is_none_of_ours():
    """Sequence 4 of the epoch before is another record; the stream begins at its anchor, alone."""
    target = Target(log=[-1] * 5)
    target.replicate()

    said = target.verdict(memory=remembering(4, epoch=EPOCH - 1))

    assert (-1, True) == (said.ordinal, said.alone)


def test_after_a_fence_the_epoch_has_begun_and_nothing_of_it_is_written():
    """The empty transaction takes one offset and leaves "-1", which is not a sequence."""
    target = Target(log=[-1] * 5)
    target.write_foreign(1)
    target.replicate()

    said = target.verdict(memory=remembering(-1))

    assert -1 == said.ordinal


def test_a_marker_that_is_remembered_alone_does_not_hide_what_another_has_written():
    """A commit gave a leader that had forgotten the records a "-1" again: a copier without positions wrote all of them twice."""
    target = Target()
    target.write(8)
    target.write_foreign(1)
    target.replicate()

    assert Need.BLANK is target.verdict(memory=remembering(-1))


def test_a_target_that_was_deleted_under_us_begins_at_the_anchor():
    """Nothing of the stream is there, not even what was before it."""
    target = Target(first=1000, log=[-1] * 10)
    target.replicate()
    target.write(20)
    target.replicate()
    target.acknowledge()
    target.truncate(0)

    said = target.verdict()

    assert (999, True) == (said.ordinal, said.alone)


def test_counting_is_not_believed_where_others_wrote():
    """One marker below the high watermark and one record of ours above it: the record is not delivered."""
    target = Target()
    target.write_foreign(1)
    target.replicate()
    target.write(1)

    assert Need.WAIT is target.verdict()


def test_an_emptied_log_and_an_unreplicated_tail_are_waited_for():
    """Three offsets cannot hold eight records: five are not replicated, and a new leader would not have them."""
    target = Target()
    target.write(3)
    target.replicate()
    target.write(5)
    target.delete(3)

    assert Need.WAIT is target.verdict()


def test_offsets_where_others_lie_are_no_room_for_ours():
    """Retention took one offset, others hold the rest: of the five that the leader remembers four are not replicated."""
    target = Target()
    target.write_foreign(9)
    target.replicate()
    target.delete(1)
    target.write(5)

    assert Need.WAIT is target.verdict()


def test_an_emptied_log_that_others_wrote_is_not_counted():
    """A marker, deleted since, is taken for our first record, which is then never sent."""
    target = Target()
    target.write_foreign(1)
    target.replicate()
    target.delete(1)

    assert not isinstance(target.verdict(), ResumeAt)


def test_a_hole_is_not_gone_over():
    """The log says 19 and has room for fewer records since the known pair: what is missing must not be passed over."""
    target = settled(10)
    target.log += range(15, 20)
    target.remembers = True
    target.replicate()

    assert Need.UNDECIDED is target.verdict()
