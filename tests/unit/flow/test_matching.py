"""Where the source was compacted, aligning record by record finds what counting loses: the simulation that decided it, in small."""

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_replicator.flow.matching import Matcher

CASES = 1_500  # of the 20,000 that the module cites, and shorter ones: enough for each kind of source to come often


def first_new(copied, source):
    """The index of the first of *source* that was never copied; None if all was."""
    matcher = Matcher(copied)
    return next((i for i, record in enumerate(source) if not matcher.has(record)), None)


def compacted(chance):
    """A source before and after compaction: what was copied since a known pair, what is left of the source, the right answer.

    Keys, values and timestamps repeat more or less; the cleaner has reached any place; retention may have come on top.
    """
    size = chance.randint(50, 300)
    keys, values, per_ms = chance.choice([5, 30, 300]), chance.choice([2, 1000]), chance.choice([1, 5, 50])
    records = [(chance.randrange(keys), chance.randrange(values), i // per_ms) for i in range(size)]
    known = chance.randint(0, size // 3)
    last = min(size - 2, known + chance.randint(1, size // 3))
    cleaned = chance.randint(known, size - 1)
    newest = {records[i][0]: i for i in range(cleaned)}
    left = [i for i in range(size) if i >= cleaned or newest[records[i][0]] == i]
    if chance.random() < 0.2:
        deleted = chance.randint(0, last)
        left = [i for i in left if i >= deleted]
    left = [i for i in left if i > known]
    truth = next((n for n, i in enumerate(left) if i > last), None)
    return records[known + 1 : last + 1], [records[i] for i in left], truth


def test_aligning_is_right_where_it_can_be_decided():
    """The rest are twins: records of one key, value and millisecond that nobody can tell apart, and never lose more than them."""
    chance = random.Random(1)
    outcomes: Counter[str] = Counter()
    for _ in range(CASES):
        copied, source, truth = compacted(chance)
        found = first_new(copied, source)
        end = len(source) if truth is None else truth
        at = len(source) if found is None else found
        if at > end:
            # What was passed over must have twins among what was copied.
            assert set(source[end:at]) <= set(copied)
        outcomes["exact" if at == end else "lost" if at > end else "repeated"] += 1

    assert 0 == outcomes["repeated"]
    assert outcomes["exact"] >= 0.98 * CASES


def test_counting_would_not_do():
    """The same cases by number of records: the reason why aligning is there."""
    chance = random.Random(1)
    exact = 0
    for _ in range(CASES):
        copied, source, truth = compacted(chance)
        exact += min(len(copied), len(source)) == (len(source) if truth is None else truth)

    assert exact < 0.2 * CASES


@given(st.lists(st.integers(0, 3), max_size=20), st.lists(st.integers(4, 9), max_size=5))
def test_an_untouched_source_is_gone_on_with_after_what_was_copied(copied, new):
    """No compaction: the first record that differs is the first new one."""
    assert (len(copied) if new else None) == first_new(copied, copied + new)


@given(st.lists(st.integers(0, 3), max_size=20), st.data())
def test_whatever_compaction_leaves_of_what_was_copied_is_found(copied, data):
    """Any subsequence is recognised whole: nothing is copied twice."""
    left = [record for record in copied if data.draw(st.booleans())]

    assert first_new(copied, left) is None


def test_nothing_copied_means_all_is_new():
    assert 0 == first_new([], ["a"])


def test_after_the_first_new_record_nothing_was_copied():
    """Order decides: a record that was copied before the last match is a new one of the same kind."""
    assert 1 == first_new(["a", "b"], ["b", "a"])
