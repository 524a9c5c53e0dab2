"""A few of Apache's own MM2 tests against our worker; `make conformance` runs them all."""

from pathlib import Path

import pytest

from tests.conformance.__main__ import OUR_WORKER
from tests.conformance.suite import run

pytestmark = pytest.mark.java

# One way and both, restarts by REST, group offsets, settings of topics: under a minute each.
SHORT = "testSyncTopicConfigs|testRestartReplication"


@pytest.mark.timeout(600)
def test_apaches_own_tests_pass_on_our_worker(tmp_path: Path):
    """Each of them passes, and the worker that they judged is ours."""
    verdict = run("base", command=OUR_WORKER, tests=SHORT, folder=tmp_path / "run")

    assert () == verdict.problems
    assert {} == {result.test: result.reason for result in verdict.failed}
    assert len(SHORT.split("|")) == len(verdict.results)


def test_a_worker_that_does_not_run_fails(tmp_path: Path):
    """The judge can say no."""
    verdict = run(
        "base", command=("/bin/false", "{properties}"), tests="testSyncTopicConfigs", folder=tmp_path / "run"
    )

    assert ["testSyncTopicConfigs"] == [result.test for result in verdict.failed]
    assert not verdict.good
