"""A short `make chaos-switchover`: Java clients are moved to the other cluster and back; commands and flows are killed and frozen."""

import os
from pathlib import Path

import pytest

from tests.chaos.switchover.schedule import drawn_dimensions
from tests.chaos.switchover.trial import SwitchoverTrial

pytestmark = pytest.mark.faults

SECONDS = 5.0
# The same faults each time, so that a failure comes from the change under test; `make chaos-switchover` draws other ones.
SEED = int(os.environ.get("MIRRORFLOW_CHAOS_SEED", "3"))
DIMENSIONS = {
    "producers": "both",
    "protocol": "classic",
    "partitions": "3",
    "brokers": "1+1",
    "moves": "2",
    "rehearsals": "none",
    "back": "asked",
    "faults": "all",
    "unplanned": "none",
}


@pytest.mark.timeout(1_800)
def test_each_acknowledged_record_is_read_once_after_the_chaos(tmp_path: Path):
    """No record is lost, repeated or out of order, both clusters are equal, and nothing hangs."""
    lines: list[str] = []

    result = SwitchoverTrial(
        seed=SEED,
        seconds=SECONDS,
        dimensions=drawn_dimensions(SEED, DIMENSIONS),
        folder=tmp_path / "chaos",
        log=lines.append,
    ).run()

    assert [] == result.problems, "\n".join([*lines, result.summary()])
    assert 2 == result.moves
    assert result.acknowledged > 0
