"""A short `make chaos-switchover` with a killed source: its tail is kept after it returns, then clients are moved back."""

import os
from pathlib import Path

import pytest

from tests.chaos.switchover.schedule import drawn_dimensions, unplanned_moves
from tests.chaos.switchover.trial import SwitchoverTrial

pytestmark = pytest.mark.faults

SECONDS = 3.0
# The same faults each time, so that a failure comes from the change under test; `make chaos-switchover` draws other ones.
SEED = int(os.environ.get("MIRRORFLOW_CHAOS_SEED", "1"))
DIMENSIONS = {
    "producers": "both",
    "protocol": "classic",
    "partitions": "3",
    "brokers": "1+1",
    "moves": "2",
    "rehearsals": "none",
    "back": "asked",
    "faults": "command",
    "unplanned": "killed",
}


@pytest.mark.timeout(1_800)
def test_each_acknowledged_record_is_on_the_new_side_or_in_the_kept_tail_after_the_chaos(tmp_path: Path):
    """No record is in both, groups skip none of the new side, and both clusters are equal except for the tail."""
    lines: list[str] = []
    dimensions = drawn_dimensions(SEED, DIMENSIONS)

    result = SwitchoverTrial(
        seed=SEED, seconds=SECONDS, dimensions=dimensions, folder=tmp_path / "chaos", log=lines.append
    ).run()

    assert [] == result.problems, "\n".join([*lines, result.summary()])
    assert (2, sum(unplanned_moves(SEED, dimensions))) == (result.moves, result.unplanned)
    assert result.acknowledged > 0
