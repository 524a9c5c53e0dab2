"""The conformance run checks that the tests ran against MirrorFlow's worker, and parses their results."""

from pathlib import Path

import pytest

from tests.conformance.suite import Result, _problems, _result

RESULT = Result(test="testReplication", passed=True, seconds=30.0)
LOADED_SHIM = (
    "[1s][info][class,load] conformance.WorkerProcess source: file:/x/.cache/conformance/shims.jar\n"
)
LOADED_HERDER = (
    "[1s][info][class,load] org.apache.kafka.connect.runtime.distributed.DistributedHerder source: file:/x\n"
)
LOADED_CONNECTOR = (
    "[1s][info][class,load] org.apache.kafka.connect.mirror.MirrorSourceConnector source: file:/x\n"
)
LOADED_BROKER = "[1s][info][class,load] kafka.server.BrokerServer source: file:/x/.cache/kafka/4.4.0/libs/kafka_2.13-4.4.0.jar\n"
STARTED = "01:00:00 start 001-backup pid=1 command=x\n"


@pytest.mark.parametrize(
    ("loaded", "processes", "results", "status", "problem"),
    [
        (LOADED_SHIM + LOADED_CONNECTOR, STARTED, (RESULT,), 0, ""),
        (LOADED_SHIM, STARTED, (RESULT,), 1, ""),
        (LOADED_CONNECTOR, STARTED, (RESULT,), 0, "not started by the class"),
        (
            LOADED_SHIM + LOADED_BROKER.replace("4.4.0", "4.3.1"),
            STARTED,
            (RESULT,),
            0,
            "of Kafka 4.3.1, 4.4.0",
        ),
        (LOADED_SHIM + LOADED_HERDER, STARTED, (RESULT,), 0, "DistributedHerder"),
        (LOADED_SHIM, "", (RESULT,), 0, "no worker was ever started"),
        (LOADED_SHIM, STARTED, (), 0, "no test has ended"),
        (LOADED_SHIM, STARTED, (RESULT,), -9, "status -9"),
    ],
)
def test_a_run_is_valid_only_if_mirrorflows_worker_ran(
    tmp_path: Path,
    loaded: str,
    processes: str,
    results: tuple[Result, ...],
    status: int,
    problem: str,
):
    """Otherwise the tests would run against Apache's worker, or none."""
    (tmp_path / "loaded.log").write_text(loaded + LOADED_BROKER)

    problems = _problems(tmp_path, results, status, processes, "4.4.0")

    assert bool(problem) == bool(problems)
    assert problem in " ".join(problems)


def test_a_result_line_is_parsed():
    line = "@result\tFAILED\t61.1\ttestReplication()\tnot met: timeout\n"

    assert _result(line) == Result(
        test="testReplication", passed=False, seconds=61.1, reason="not met: timeout"
    )
