"""What a canary application saw of a rehearsal: its figures, and where its group continued."""

import pytest

from mirrorflow_core.switchover.canary import CanaryStep, CanaryTimeline, continued_from


@pytest.mark.parametrize(
    ("numbers", "again", "skipped"),
    [
        ([5, 6], 0, 0),
        ([3, 4, 5], 2, 0),
        ([8], 0, 3),
        ([None, None, 5], 2, 0),
        ([4, 7], 1, 2),
    ],
    ids=["exact", "read again", "skipped", "records of an earlier rehearsal", "both"],
)
def test_records_read_again_and_skipped_are_counted_from_the_next_number(
    numbers: list[int | None], again: int, skipped: int
):
    assert (again, skipped) == continued_from(5, numbers)


def test_a_step_that_was_not_reached_has_no_seconds():
    timeline = CanaryTimeline(first_acknowledged=1.0, copied=1.5, left=4.0, offset_moved=3.0)

    assert 0.5 == timeline.seconds[CanaryStep.COPIED]
    assert 0.0 == timeline.seconds[CanaryStep.OFFSET_MOVED]
    assert None is timeline.seconds[CanaryStep.ACCEPTED]
