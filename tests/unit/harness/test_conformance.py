"""The judge of Apache's own tests says when a run counts for nothing, and takes results as they come."""

from pathlib import Path

import pytest

from tests.conformance.suite import Result, _problems, _result

RESULT = Result(test="testReplication", passed=True, seconds=30.0)
OURS = "[1s][info][class,load] conformance.WorkerProcess source: file:/x/.cache/conformance/shims.jar\n"
APACHES = (
    "[1s][info][class,load] org.apache.kafka.connect.runtime.distributed.DistributedHerder source: file:/x\n"
)
INNOCENT = "[1s][info][class,load] org.apache.kafka.connect.mirror.MirrorSourceConnector source: file:/x\n"
STARTED = "01:00:00 start 001-backup pid=1 command=x\n"


@pytest.mark.parametrize(
    ("loaded", "processes", "results", "status", "problem"),
    [
        (OURS + INNOCENT, STARTED, (RESULT,), 0, ""),
        (OURS, STARTED, (RESULT,), 1, ""),
        (INNOCENT, STARTED, (RESULT,), 0, "not started by the class"),
        (OURS + APACHES, STARTED, (RESULT,), 0, "DistributedHerder"),
        (OURS, "", (RESULT,), 0, "no worker was ever started"),
        (OURS, STARTED, (), 0, "no test has ended"),
        (OURS, STARTED, (RESULT,), -9, "status -9"),
    ],
)
def test_a_run_counts_only_if_the_worker_did_the_work(
    tmp_path: Path,
    loaded: str,
    processes: str,
    results: tuple[Result, ...],
    status: int,
    problem: str,
):
    """Otherwise the tests of Apache's worker would run against another program, or none."""
    (tmp_path / "loaded.log").write_text(loaded)

    found = _problems(tmp_path, results, status, processes)

    assert bool(problem) == bool(found)
    assert problem in " ".join(found)


def test_result_is_parsed_with_its_reason():
    """Name, status, seconds, and the first line of the reason."""
    line = "@result\tFAILED\t61.1\ttestReplication()\tnot met: timeout\n"

    assert _result(line) == Result(
        test="testReplication", passed=False, seconds=61.1, reason="not met: timeout"
    )
