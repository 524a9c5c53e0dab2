"""Kafka 2.8, 3.4, 3.9 and 4.4 as source and as target: each promise of a flow holds, as `make compatibility` checks it."""

from pathlib import Path

import pytest

from tests.compatibility.endpoints import opened
from tests.compatibility.result import CHECKS, Outcome
from tests.compatibility.trial import Trial
from tests.harness.kafka.installation import NEWEST_VERSION, OTHER_VERSIONS, VERSION

pytestmark = pytest.mark.java
PAIRS = [
    *((version, VERSION) for version in OTHER_VERSIONS),
    *((VERSION, version) for version in OTHER_VERSIONS),
    (NEWEST_VERSION, NEWEST_VERSION),
]


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_every_promise_holds_between_two_releases(source: str, target: str, tmp_path: Path) -> None:
    """The copy is exact after kill -9, and group offsets, checkpoints, settings and ACLs follow."""
    with (
        opened(source, "source", name="", client=None, folder=tmp_path) as from_,
        opened(target, "target", name="", client=None, folder=tmp_path) as to,
    ):
        result = Trial(source=from_, target=to, folder=tmp_path).run()

    assert dict.fromkeys(CHECKS, Outcome.PASSED) == {
        name: verdict.outcome for name, verdict in result.verdicts.items()
    }, result
    assert result.guarantee == "exactly-once"
