"""Whatever befalls a target, in any order: where to go on is decided right, or not decided.

Random histories of `target.Target`. What cannot be told by anybody is named by a property of it, and left out by that name.
"""

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mirrorflow_core.exactly_once.alignment import SEQUENCES, Need, ResumeAt
from tests.unit.core.exactly_once.target import Target

EVENTS = st.one_of(
    st.tuples(st.just("write"), st.integers(1, 5)),
    st.tuples(st.just("write_foreign"), st.integers(1, 3)),
    st.tuples(st.just("replicate"), st.one_of(st.none(), st.integers(0, 30))),
    st.tuples(st.just("acknowledge")),
    st.tuples(st.just("settle"), st.integers(1, 5)),
    st.tuples(st.just("elect")),
    st.tuples(st.just("truncate"), st.integers(0, 20)),
    st.tuples(st.just("lose"), st.integers(0, 12), st.integers(1, 12)),
    st.tuples(st.just("forget")),
)
CLEANING = st.one_of(
    st.tuples(st.just("delete"), st.integers(0, 30)),
    st.tuples(st.just("compact"), st.integers(0, 20), st.integers(1, 10)),
)
FIRSTS = st.sampled_from([0, 1000, SEQUENCES - 3, SEQUENCES])


@settings(max_examples=5 * settings().max_examples)
@given(st.lists(EVENTS | CLEANING, max_size=14), FIRSTS)
def test_no_verdict_contradicts_what_the_target_has(events, first):
    """Whatever befalls a target, going on names the last of our records that is delivered: none is lost or sent twice."""
    target = Target(first=first)
    for name, *arguments in events:
        getattr(target, name)(*arguments)
        said = target.verdict()
        if not isinstance(said, ResumeAt) or target.hides_a_loss:
            continue
        if said.ordinal > target.delivered:
            # The leader's own word, where the log cannot be had against it; what is sent next depends on it anyway.
            assert target.remembers
            assert target.log_start or target.lost_pairs
            assert target.leader_has == said.ordinal
        else:
            assert target.hides_ours or target.delivered == said.ordinal
        assert said.alone or target.remembers
        assert said.known in target.ladder
        assert said.walk_records >= 0


@settings(max_examples=5 * settings().max_examples)
@given(st.lists(EVENTS, max_size=14), FIRSTS)
def test_a_log_that_is_whole_decides(events, first):
    """Where neither retention nor compaction took anything, it is known where to go on, or only replication is waited for."""
    target = Target(first=first)
    for name, *arguments in events:
        getattr(target, name)(*arguments)
        said = target.verdict()
        if isinstance(said, ResumeAt):
            assert said.ordinal == target.delivered or (target.remembers and target.lost_pairs)
        elif not target.is_shifted:
            assert (Need.WAIT, True) == (said, bool(target.unreplicated))


@settings(max_examples=2 * settings().max_examples)
@given(st.lists(EVENTS | CLEANING, max_size=14))
def test_whatever_happened_a_settled_target_is_gone_on_with(events):
    """No history leaves a partition waiting for ever: replicated and written to once more, it is decided."""
    target = Target()
    for name, *arguments in events:
        getattr(target, name)(*arguments)
    target.write(1)
    target.replicate()

    assume(not target.is_shifted)
    assert target.delivered == target.verdict().ordinal
