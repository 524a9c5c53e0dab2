"""A short `make chaos` with three copiers of one flow and two clusters of three brokers.

Processes are killed and frozen at random.
"""

import os
from pathlib import Path

import pytest

from tests.chaos.dimensions import draw
from tests.chaos.trial import Trial
from tests.harness.kafka.installation import OLD_VERSION, VERSION

pytestmark = pytest.mark.faults

SECONDS = 20.0
# The steps are the same each time, so that a failure is caused by the change under test. `make chaos` draws other
# steps.
SEED = int(os.environ.get("MIRRORFLOW_CHAOS_SEED", "1"))
# Each value of each dimension is in one of the runs.
RUNS = {
    "fresh": f"brokers={VERSION} isolation=read_uncommitted tasks=2 copiers=3 codec=producer times=CreateTime"
    " expiry=day cleanup=compact transactions=allowed settings=rolling truncation=never"
    " internals=altered clocks=stepping copies=fixed quotas=none rights=fixed padding=large network=late",
    "old": f"brokers={OLD_VERSION} isolation=read_committed tasks=1 copiers=2 codec=zstd times=CreateTime"
    " expiry=minute cleanup=delete transactions=allowed settings=fixed truncation=alert"
    " internals=single clocks=true copies=fixed quotas=passing rights=fixed padding=none network=late",
    "mixed": f"brokers={VERSION} isolation=read_uncommitted tasks=3 copiers=1 codec=gzip times=LogAppendTime"
    " expiry=day cleanup=delete transactions=denied settings=fixed truncation=restart"
    " internals=replicated clocks=true copies=fixed quotas=none rights=fixed padding=large network=direct",
    "changing": f"brokers={VERSION} isolation=read_committed tasks=2 copiers=3 codec=uncompressed times=CreateTime"
    " expiry=day cleanup=delete transactions=allowed settings=rolling truncation=fail"
    " internals=replicated clocks=true copies=changing quotas=none rights=changing padding=none network=direct",
}

# `make test-faults` runs without an old Kafka, and `make test-java` with one.
AGES = [pytest.param(age, marks=[pytest.mark.java] if OLD_VERSION in RUNS[age] else []) for age in RUNS]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("age", AGES)
def test_both_sides_are_equal_after_the_chaos(tmp_path: Path, age: str) -> None:
    """No record is lost or changed, and no record is repeated unless the flow lacks an ACL."""
    lines: list[str] = []
    dimensions = dict(pair.split("=") for pair in RUNS[age].split())

    result = Trial(
        seed=SEED,
        seconds=SECONDS,
        records_per_s=2000,
        dimensions=draw(SEED, {"age": age} | dimensions),
        folder=tmp_path / "chaos",
        log=lines.append,
    ).run()

    assert [] == result.problems, "\n".join([*lines, result.summary()])
    assert result.source_records > 0
