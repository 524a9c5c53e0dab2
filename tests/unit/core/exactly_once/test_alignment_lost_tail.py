"""A target that lost its tail in an unclean election, and others wrote over it: what is known of it is not there any more.

Each known pair is believed only as long as nothing refutes it; where that is unknown, nothing is written.
"""

import pytest

from mirrorflow_core.exactly_once.alignment import Need, OffsetPair, ResumeAt, Tail, align, guess, scan_from
from tests.unit.core.exactly_once.target import Target, settled


def test_a_lost_tail_that_others_wrote_over_is_filled_again():
    """An unclean election took our records and others wrote as many: what was acknowledged is not there any more."""
    target = settled(3)
    target.lose(0, 3)

    said = target.verdict()

    assert (-1, -1, True) == (target.delivered, said.ordinal, said.alone)


@pytest.mark.parametrize("foreign", [3, 4, 50])
@pytest.mark.parametrize("kept", [0, 1, 39, 40, 41, 59])
def test_what_is_left_below_a_lost_tail_is_found_below_its_refuted_pair(kept, foreign):
    """A part of ours is left below strangers; whatever the leader remembers, exactly what is gone is sent again."""
    for forgets in (False, True):
        target = settled(20)
        target.settle(20)
        target.settle(20)
        target.lose(kept, foreign + 60 - kept)
        if forgets:
            target.forget()

        said = target.verdict()

        assert (kept - 1, not target.remembers) == (said.ordinal, said.alone)
        assert said.known.ordinal <= kept - 1


def test_a_stream_that_began_anew_below_its_anchor_is_found_there():
    """The target had lost all, and lost its tail again: what is left lies where others' records were at first."""
    target = Target(first=1000, log=[-1] * 10)
    target.ladder.insert(0, OffsetPair(source_offset=1004, ordinal=1004, target_offset=4))
    target.truncate(0)
    target.write(5)
    target.lose(3, 30)
    target.forget()

    assert 1002 == target.delivered == target.verdict().ordinal


def test_a_pair_that_is_there_costs_one_look():
    """Five thousand leaders that forgot an idle flow are asked for one batch each."""
    target = settled(50)
    target.forget()

    assert 49 == scan_from(target.evidence())
    assert 49 == target.verdict().ordinal


@pytest.mark.parametrize("target", [Target(log=[-1] * 5), settled(50)], ids=["anchor", "retention"])
def test_where_nothing_could_be_refuted_nothing_is_read(target):
    """An anchor is no record; and behind a log that is emptied up to our last record there is none to look at."""
    target.replicate()
    if target.ladder[1:]:
        target.delete(50)
    else:
        target.ladder = [OffsetPair(source_offset=-1, ordinal=-1, target_offset=4)]
    target.forget()

    assert target.witnesses().tail is None
    assert target.delivered == target.verdict().ordinal


def test_a_pair_inside_a_larger_batch_is_there():
    """The batch that holds the offset may end behind it."""
    target = settled(50)
    target.log += range(50, 60)
    target.replicate()

    said = align(target.evidence(memory=None, tail=Tail(scanned_from=49, sequence=59, target_offset=59)))

    assert ResumeAt(ordinal=59, target_offset=59, known=target.ladder[0], alone=True) == said


def test_a_pair_whose_record_was_compacted_away_is_believed():
    """Where nothing lies nothing is refuted: an idle compacted target, whose leader forgot us, is not filled anew."""
    target = settled(50)
    target.write_foreign(5)
    target.replicate()
    target.forget()
    target.compact(40, 12)

    said = target.verdict()

    assert (49, True) == (said.ordinal, said.alone)


def test_a_compacted_pair_of_which_the_leader_remembers_less_is_refuted():
    """The cleaner leaves a header of whom the leader remembers; without it the pair's record was another lineage's."""
    target = settled(20)
    target.settle(20)
    target.lose(30, 20)
    target.compact(35, 10)

    assert (29, 29) == (target.delivered, target.verdict().ordinal)


def test_a_lost_tail_is_not_filled_from_a_pair_that_cannot_be_seen():
    """The newest pair is refuted, retention took the place of the next: how much of ours was there is unknown."""
    target = settled(20)
    target.settle(20)
    target.lose(30, 20)
    target.delete(20)
    target.forget()
    assert 29 == target.verdict().ordinal

    target.delete(30)

    assert Need.UNDECIDED is target.verdict()
    assert 29 == guess(target.witnesses()).ordinal


def test_a_lost_tail_in_a_compacted_log_is_not_filled_from_the_anchor():
    """All known pairs are refuted, and what is missing may have been ours: sent again, it would come behind newer values."""
    target = settled(20)
    target.lose(10, 20)
    target.forget()
    target.compact(0, 10)

    assert Need.UNDECIDED is target.verdict()


def test_records_that_retention_took_are_known_not_to_lie_where_others_do():
    """Written down at an offset of others, the pair would be refuted by them when the leader forgets us."""
    target = settled(20)
    target.write(10)
    target.write_foreign(5)
    target.replicate()
    target.delete(30)

    said = target.verdict()

    assert (29, 29) == (said.ordinal, said.target_offset)
