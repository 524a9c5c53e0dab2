"""The newer of two copiers waits for the older, and not for a dead one."""

import pytest

from mirrorflow_core.exactly_once.succession import (
    POSITION_FRESH_S,
    SILENCE_S,
    Predecessor,
    Watch,
    must_wait,
)


def predecessor(*, copier="old", left=False, age_s=1.0):
    return Predecessor(copier=copier, left=left, age_s=age_s)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (predecessor(), True),
        (None, False),
        (predecessor(left=True), False),
        (predecessor(copier="new"), False),
        (predecessor(age_s=POSITION_FRESH_S), False),
        (predecessor(age_s=POSITION_FRESH_S - 0.1), True),
        (predecessor(age_s=-5.0), True),  # its clock is ahead of ours
    ],
)
def test_only_a_copier_that_may_be_at_work_is_waited_for(found, expected):
    """Not where there was none, not for one that has left, not for ourselves, not for one that wrote no position for long."""
    assert expected == must_wait(found, own_copier="new")


def test_a_copier_that_advances_is_waited_for():
    """Each step begins the silence anew."""
    watch = Watch(target_end=10, since_s=0.0)
    for second in range(1, 20):
        watch = watch.seen(10 + second, float(second))

        assert not watch.is_over(second + SILENCE_S - 0.1)


def test_silence_ends_the_wait():
    """It is counted from the last step, however often one looks."""
    watch = Watch(target_end=10, since_s=0.0).seen(11, 5.0)
    for second in (6.0, 7.0):
        watch = watch.seen(11, second)

    assert [False, True] == [watch.is_over(5.0 + SILENCE_S - 0.1), watch.is_over(5.0 + SILENCE_S)]


def test_a_target_that_shrinks_is_a_step_too():
    """An unclean election: the copier that fills it again is at work."""
    assert not Watch(target_end=10, since_s=0.0).seen(5, 9.0).is_over(10.0)


def test_patience_differs_so_that_two_watchers_do_not_start_together():
    """It is kept from look to look."""
    watch = Watch(target_end=10, since_s=0.0, patience_s=4.0).seen(11, 1.0)

    assert [False, True] == [watch.is_over(4.9), watch.is_over(5.0)]
