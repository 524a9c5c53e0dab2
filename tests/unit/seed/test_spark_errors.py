"""The error of a Spark that fails has its cause as one sentence; what Spark prints while it starts is held back."""

import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from mirrorflow_seed.errors import JobFailedError, JobSettingError, SparkMissingError
from mirrorflow_seed.spark_errors import (
    JAVA_NOTICE,
    QUIET_START_S,
    cause_of,
    job_error,
    quiet_start,
    start_error,
)

SPARK = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 8 times
Traceback (most recent call last):
  File "job.py", line 52, in __call__
mirrorflow_core.errors.UnreachableError: Cluster east cannot be reached at a:9092: no response within 20 s.

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:581)
"""


def test_the_cause_is_the_error_of_the_task():
    expected = "Cluster east cannot be reached at a:9092: no response within 20 s."
    assert expected == cause_of(RuntimeError(SPARK))
    assert "something else" == cause_of(RuntimeError("something else\n at x"))


def test_the_cause_is_the_innermost_java_error_without_a_task_error():
    """Each Java error repeats its cause."""
    java = "org.apache.spark.SparkException: Job aborted\n\tat A.b\nCaused by: x.Y: no space\nCaused by: java.io.IOException: disk full"
    assert cause_of(RuntimeError(java)) == "java.io.IOException: disk full"
    assert cause_of(RuntimeError("An error occurred.\n: org.apache.SparkException: no master")) == (
        "org.apache.SparkException: no master"
    )
    assert cause_of(RuntimeError()) == "RuntimeError"


def test_the_cause_is_the_last_line_of_a_python_traceback():
    """Spark Connect appends an SQLSTATE to it."""
    text = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "task.py", line 9, in run
    raise ValueError("the reason")
ValueError: the reason
 SQLSTATE: 38000"""
    assert "ValueError: the reason" == cause_of(RuntimeError(text))


@pytest.mark.parametrize(
    ("problem", "kind"),
    [
        ("org.apache.spark.SparkException: Could not parse Master URL: 'foo'", JobSettingError),
        ("java.lang.IllegalArgumentException: System memory 12 must be at least 471859200", JobSettingError),
        ('java.io.IOException: Cannot run program "/x/python": error=2', JobSettingError),
        ("org.apache.spark.SparkException: Yarn application has already ended", JobFailedError),
    ],
)
def test_a_wrong_spark_setting_is_a_setting_error_not_a_job_failure(problem: str, kind: type[Exception]):
    error = start_error(RuntimeError(f"An error occurred while calling None.X.\n: {problem}\n\tat a.b.C"))
    assert type(error) is kind
    assert problem in str(error)


STACK = """java.io.IOException: Cannot run program "/x/python": error=2, No such file or directory
\tat java.base/java.lang.ProcessBuilder.start(ProcessBuilder.java:1143)
Caused by: java.io.IOException: error=2, No such file or directory
\t... 32 more"""


@pytest.mark.parametrize(
    ("cause", "problem"),
    [
        (STACK, "Spark cannot run /x/python; set it, or PYSPARK_PYTHON"),
        ("ModuleNotFoundError: No module named 'mirrorflow_seed'", "has no module mirrorflow_seed; set it"),
        ("[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9", "has another version than"),
    ],
)
def test_a_python_that_executors_cannot_use_is_a_setting_error(cause: str, problem: str):
    error = job_error(RuntimeError(f"Job aborted due to stage failure:\n{cause}"), "The export has failed")

    assert isinstance(error, JobSettingError)
    assert str(error).startswith("spark.pyspark.python: ")
    assert problem in str(error)


def test_the_error_of_a_job_begins_with_the_failed_action():
    error = job_error(RuntimeError(SPARK), "The export has failed")

    assert type(error) is JobFailedError
    assert str(error) == (
        "The export has failed: Cluster east cannot be reached at a:9092: no response within 20 s."
    )


@pytest.mark.parametrize(
    ("printed", "cause"),
    [
        (
            [
                'Exception in thread "main" org.apache.spark.SparkException: Master must be yarn',
                "\tat a.B(C.scala:1)",
            ],
            "Master must be yarn",
        ),
        (
            ["WARNING: x", "Invalid maximum heap size: -Xmx12x", "Error: Could not create"],
            "Invalid maximum heap size: -Xmx12x",
        ),
        ([], "[JAVA_GATEWAY_EXITED] Java gateway process exited"),
    ],
)
def test_the_error_of_a_jvm_that_exits_has_the_cause_from_its_output(printed: list[str], cause: str):
    error = start_error(RuntimeError("[JAVA_GATEWAY_EXITED] Java gateway process exited"), printed)

    assert isinstance(error, JobSettingError)
    assert cause in str(error)


def test_the_error_names_the_missing_extra_of_spark_connect():
    cause = "[PACKAGE_NOT_INSTALLED] Pandas >= 2.2.0 must be installed; however, it was not found."
    error = start_error(RuntimeError(cause))

    assert isinstance(error, SparkMissingError)
    assert "pyspark[connect]" in str(error)


def _print(lines: str) -> None:
    subprocess.run(["/bin/sh", "-c", f'printf "{lines}" >&2'], check=True)


@contextmanager
def _stderr_in(folder: Path) -> Iterator[Path]:
    """Redirects stderr to a file until the block ends; yields its path."""
    path, original = folder / "stderr", os.dup(2)
    with path.open("wb") as file:
        os.dup2(file.fileno(), 2)
        try:
            yield path
        finally:
            os.dup2(original, 2)
            os.close(original)


def _wait_for(path: Path, text: str) -> str:
    deadline_s = time.monotonic() + 60
    while text not in path.read_text() and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return path.read_text()


def test_javas_greeting_is_dropped_and_other_output_is_passed_on(tmp_path: Path):
    """A JVM that Spark starts prints the greeting before it can be configured."""
    with _stderr_in(tmp_path) as stderr:
        with quiet_start():
            _print(f"{JAVA_NOTICE}: jdk.incubator.vector\\nException in thread main\\n")

        assert "Exception in thread main\n" == _wait_for(stderr, "main\n")


def test_the_output_of_a_failed_start_is_captured_and_not_shown(tmp_path: Path):
    lines: list[Sequence[str]] = []

    def fail() -> None:
        with quiet_start() as printed:
            lines.append(printed)
            _print("a reason\\n\\tat a.B(C.scala:1)\\n")
            raise JobFailedError("no")

    with _stderr_in(tmp_path) as stderr, pytest.raises(JobFailedError):
        fail()
    assert list(lines[0]) == ["a reason", "\tat a.B(C.scala:1)"]
    assert "" == stderr.read_text()


def test_a_slow_start_shows_the_output_of_spark_without_stack_traces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    assert QUIET_START_S < 30
    monkeypatch.setattr("mirrorflow_seed.spark_errors.QUIET_START_S", 0.0)
    with _stderr_in(tmp_path) as stderr, quiet_start():
        _print("waiting\\n\\tat a.B(C.scala:1)\\nstill waiting\\n")
        assert "waiting\nstill waiting\n" == _wait_for(stderr, "still waiting\n")
