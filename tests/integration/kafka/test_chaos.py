"""`make chaos` in short: three copiers of one flow and two clusters of three brokers, everybody killed and frozen at random."""

import os
from pathlib import Path

import pytest

from tests.chaos.trial import Trial

SECONDS = 40.0
# A run draws its own steps unless it is told to repeat one: each is another chance to find what no one has thought of.
SEED = int(os.environ.get("MIRRORFLOW_CHAOS_SEED", int.from_bytes(os.urandom(3))))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("old", [False, True], ids=["fresh records", "old records"])
def test_both_sides_are_equal_after_the_chaos(tmp_path: Path, *, old: bool) -> None:
    """No record lost, repeated or changed, whoever was killed, frozen or away, and however often leaders forget."""
    lines: list[str] = []

    result = Trial(
        seed=SEED,
        seconds=SECONDS,
        copiers=3,
        records_per_s=2000,
        old=old,
        folder=tmp_path / "chaos",
        say=lines.append,
    ).run()

    assert [] == result.problems, "\n".join([*lines, result.summary()])
    assert result.source_records > 0
