"""A position carries a short, well spread ladder of older points."""

from hypothesis import given, settings
from hypothesis import strategies as st

from mirrorflow_core.position import RUNG_AGES_MS, RUNGS_MAX, Position, Rung, advance


def position(offset: int, **changes: int | str) -> Position:
    fields: dict[str, int | str] = {"sequence": offset, "target_offset": offset, "epoch": 1, **changes}
    return Position(topic="foo", partition=0, source_offset=offset, **fields)  # type: ignore[arg-type]


def test_the_first_position_has_no_rungs():
    """There is nothing older than the first."""
    assert () == advance(None, position(5), 1_000).rungs


def test_the_written_position_becomes_the_first_rung():
    """The next write keeps the one before as a rung, with its own time."""
    first = advance(None, position(5), 1_000)

    assert (Rung(5, 5, 5, 1_000),) == advance(first, position(9), 6_000).rungs


def test_an_idle_partition_adds_no_rung():
    """Writing the same offset again keeps the ladder as it was."""
    first = advance(None, position(5), 1_000)

    assert () == advance(first, position(5), 90_000).rungs


def test_another_epoch_or_topic_drops_the_ladder():
    """Rungs of a stream that has ended say nothing of the new one."""
    first = advance(advance(None, position(5), 0), position(9), 5_000)

    assert () == advance(first, position(20, epoch=2), 9_000).rungs
    assert () == advance(first, position(20, target_topic_id="x"), 9_000).rungs


def test_an_unknown_sequence_is_no_rung():
    """A position that Java wrote cannot serve to realign."""
    java = position(5, sequence=-1)

    assert () == advance(java, position(9), 5_000).rungs


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 400_000)), min_size=1, max_size=200))
def test_rungs_descend_and_are_few(steps: list[tuple[int, int]]):
    """Whatever the pace, rungs lie strictly below one another and are at most four."""
    now_ms, offset, last = 0, 0, None
    for more, elapsed_ms in steps:
        now_ms, offset = now_ms + elapsed_ms, offset + more
        last = advance(last, position(offset), now_ms)
        ladder = [last.sequence, *(rung.sequence for rung in last.rungs)]

        assert len(last.rungs) <= RUNGS_MAX
        assert sorted(set(ladder), reverse=True) == ladder


@settings(max_examples=20)  # each is four hours of writes
@given(interval_ms=st.integers(3_000, 10_000))
def test_ages_are_near_their_targets(interval_ms: int):
    """Written at a steady pace for hours, each rung is younger than twice its target and older than the target before."""
    last, now_ms = None, 0
    for count in range(4 * 3_600_000 // interval_ms):
        now_ms = count * interval_ms
        last = advance(last, position(count), now_ms)

    assert last is not None
    ages = [now_ms - rung.at_ms for rung in last.rungs]
    floors = (0, *RUNG_AGES_MS)

    assert RUNGS_MAX == len(ages)
    assert all(
        floor <= age <= 2 * target + 2 * before + interval_ms
        for age, target, floor, before in zip(ages, RUNG_AGES_MS, floors, floors, strict=False)
    )
