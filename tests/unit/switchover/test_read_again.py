"""What groups would read again if applications were moved now, by a planned switchover and by the loss of the source."""

from typing import Any

import pytest

from mirrorflow_core.offsets.checkpoints import GroupOffset
from mirrorflow_replicator.switchover.read_again import ReadAgain, read_again

NOW_MS = 1_000_000


def row(**changes: Any) -> GroupOffset:
    """A group that stands on the target where it stands on the source; *changes* make it another one."""
    given: dict[str, Any] = {
        "group": "billing",
        "topic": "orders",
        "partition": 0,
        "target_topic": "orders",
        "source_offset": 110,
        "target_offset": 100,
        "at_most": 100,
        "checkpoint_offset": 100,
        "checkpoint_written_ms": NOW_MS - 60_000,
        "group_offset": 100,
        "written": True,
        "why": "",
    }
    return GroupOffset(**{**given, **changes})


BEHIND = {"group_offset": 70, "written": False, "checkpoint_written_ms": NOW_MS - 2_500}


@pytest.mark.parametrize(
    ("rows", "planned", "lost", "lost_s"),
    [
        ([row()], 0, 0, 0.0),
        ([row(), row(partition=1, **BEHIND)], 0, 30, 2.5),
        ([row(at_most=104)], 4, 4, 0.0),
        ([row(at_most=104, **BEHIND)], 4, 34, 2.5),
        ([row(group_offset=103, at_most=104)], 1, 1, 0.0),
        ([row(at_most=None), row(group="audit")], None, None, 0.0),
        ([row(target_offset=None, written=False, checkpoint_written_ms=None)], None, None, None),
        ([row(has_members_on_target=True, **BEHIND)], None, 30, 2.5),
        ([], 0, 0, 0.0),
    ],
    ids=[
        "exact",
        "behind",
        "bound",
        "bound-and-behind",
        "ahead",
        "unknown-bound",
        "unknown",
        "members-on-target",
        "none",
    ],
)
def test_records_and_time_that_groups_would_read_again(
    rows: list[GroupOffset], planned: int | None, lost: int | None, lost_s: float | None
):
    assert read_again(rows, NOW_MS) == ReadAgain(
        groups=len({item.group for item in rows}), planned_records=planned, lost_records=lost, lost_s=lost_s
    )
