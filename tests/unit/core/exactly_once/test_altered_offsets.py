"""An altered or deleted position counts once, and nothing else does: neither our own REST nor what was known before."""

from mirrorflow_core.exactly_once.altered_offsets import WHY, AlteredOffset, altered
from mirrorflow_core.exactly_once.identity import UNTOLD, Anchor, Beginning, Decisions
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.position import UNKNOWN, Position

AT = TopicPartition("orders", 2)


def decided(*beginnings, generation=3, seen_at=7):
    decisions = Decisions()
    decisions.read(
        Anchor(
            generation=generation,
            topic="orders",
            partition=2,
            step=0,
            ordinal=0,
            source_offset=100,
            target_offset=5,
            source_topic_id="",
            target_topic_id="",
            why="begin",
            seen_at=seen_at,
        )
    )
    for one in beginnings:
        decisions.read(one)
    return decisions


def begins(generation, offset, why=WHY):
    return Beginning(generation=generation, topic="orders", partition=2, source_offset=offset, why=why)


def position(offset):
    return {AT: Position(topic="orders", partition=2, source_offset=offset)}


def test_a_position_that_was_taken_away_since_begins_anew():
    assert [begins(4, -1)] == altered(decided(), 3, {}, {AT: AlteredOffset(8, 3)})
    assert [begins(4, -1)] == altered(decided(seen_at=-1), 3, {}, {AT: AlteredOffset(0, UNKNOWN)}), (
        "compacted"
    )


def test_an_offset_that_was_set_since_is_where_it_begins_even_if_it_equals_the_earlier_one():
    assert [begins(4, 51)] == altered(decided(), 3, position(50), {AT: AlteredOffset(8, 3)})
    assert [begins(4, 100)] == altered(decided(), 3, position(99), {AT: AlteredOffset(8, UNKNOWN)})


def test_what_was_known_when_it_was_decided_is_no_news():
    assert not altered(decided(), 3, {}, {AT: AlteredOffset(7, 2)})
    assert not altered(decided(), 3, position(99), {AT: AlteredOffset(7, UNKNOWN)})


def test_what_our_own_rest_has_decided_is_no_news():
    """It decides a generation, and writes then; nothing may have been copied in that yet."""
    assert not altered(decided(begins(4, -1, "REST")), 4, {}, {AT: AlteredOffset(8, 3)})
    assert not altered(decided(begins(4, 51, "REST")), 4, position(50), {AT: AlteredOffset(8, 3)})
    assert [begins(5, -1)] == altered(decided(begins(4, 51, "REST")), 4, {}, {AT: AlteredOffset(9, 3)})


def test_where_it_is_unknown_what_was_seen_it_counts_behind_a_position_of_the_same_generation():
    for decisions, at in ((decided(seen_at=UNTOLD), 8), (decided(), UNKNOWN)):
        assert [begins(4, -1)] == altered(decisions, 3, {}, {AT: AlteredOffset(at, 3)})
        assert not altered(decisions, 3, {}, {AT: AlteredOffset(at, 2)})


def test_of_a_partition_that_was_never_copied_the_positions_say_all():
    assert not altered(Decisions(), 3, {}, {AT: AlteredOffset(8, 3)})
    assert not altered(decided(generation=4), 3, {}, {AT: AlteredOffset(8, 3)})
