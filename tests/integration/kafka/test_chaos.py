"""`make chaos` in short: three copiers of one flow and two clusters of three brokers, everybody killed and frozen at random."""

import os
from pathlib import Path

import pytest

from tests.chaos.dimensions import draw
from tests.chaos.trial import Trial
from tests.harness.kafka.installation import OLD_VERSION, VERSION

pytestmark = pytest.mark.faults

SECONDS = 20.0
# The same steps each time, so that what fails here is the change at hand's; `make chaos` draws others.
SEED = int(os.environ.get("MIRRORFLOW_CHAOS_SEED", "1"))
# Each value of each dimension is in one of them.
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

# `make test-faults` has no older Kafka; `make test-java` has.
AGES = [pytest.param(age, marks=[pytest.mark.java] if OLD_VERSION in RUNS[age] else []) for age in RUNS]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("age", AGES)
def test_both_sides_are_equal_after_the_chaos(tmp_path: Path, age: str) -> None:
    """No record is lost or changed, and none repeated unless the flow lacks an ACL, whichever process was killed or frozen."""
    lines: list[str] = []
    asked = dict(pair.split("=") for pair in RUNS[age].split())

    result = Trial(
        seed=SEED,
        seconds=SECONDS,
        records_per_s=2000,
        dimensions=draw(SEED, {"age": age} | asked),
        folder=tmp_path / "chaos",
        say=lines.append,
    ).run()

    assert [] == result.problems, "\n".join([*lines, result.summary()])
    assert result.source_records > 0
