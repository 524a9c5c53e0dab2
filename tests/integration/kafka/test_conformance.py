"""Runs a few of Apache's own MM2 tests against MirrorFlow's worker. `make conformance` runs all of them."""

from pathlib import Path

import pytest

from tests.conformance.__main__ import OUR_DEDICATED, OUR_WORKER
from tests.conformance.suite import DEDICATED, VERSIONS, run

pytestmark = pytest.mark.java

# One-way and two-way replication, restarts over REST, group offsets and topic settings, with less than a minute for
# each.
SHORT = "testSyncTopicConfigs|testRestartReplication"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kafka", VERSIONS)
def test_a_single_mm2_process_passes_apaches_single_node_test(kafka: str, tmp_path: Path):
    """The process has only the properties of Apache's test."""
    verdict = run(
        DEDICATED, command=OUR_DEDICATED, tests="testSingleNodeCluster", kafka=kafka, folder=tmp_path / "run"
    )

    assert verdict.good, (verdict.problems, verdict.failed)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kafka", VERSIONS)
def test_apaches_own_tests_pass_on_mirrorflows_worker(kafka: str, tmp_path: Path):
    """Each test passes, and the tested worker is MirrorFlow's."""
    verdict = run("base", command=OUR_WORKER, tests=SHORT, kafka=kafka, folder=tmp_path / "run")

    assert () == verdict.problems
    assert {} == {result.test: result.reason for result in verdict.failed}
    assert len(SHORT.split("|")) == len(verdict.results)


def test_a_worker_that_does_not_run_fails(tmp_path: Path):
    verdict = run(
        "base", command=("/bin/false", "{properties}"), tests="testSyncTopicConfigs", folder=tmp_path / "run"
    )

    assert ["testSyncTopicConfigs"] == [result.test for result in verdict.failed]
    assert not verdict.good
