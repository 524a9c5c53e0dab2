"""Tests the errors for a missing Spark, and the one sentence that a user gets of an error of Spark."""

import subprocess
import sys
import time

import pytest

from mirrorflow_seed.errors import SparkMissingError
from mirrorflow_seed.spark_session import JAVA_NOTICE, _without_java_notice, cause_of, require_spark

SPARK = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 8 times
Traceback (most recent call last):
  File "job.py", line 52, in __call__
mirrorflow_core.errors.UnreachableError: Cluster east cannot be reached at a:9092: no answer within 20 s.

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:581)
"""


def test_missing_pyspark_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    """Before any cluster is contacted."""
    monkeypatch.setitem(sys.modules, "pyspark", None)

    with pytest.raises(SparkMissingError, match=r"\[cli,seed\]"):
        require_spark()


def test_missing_java_is_reported(monkeypatch: pytest.MonkeyPatch):
    """Java is neither on the PATH nor in JAVA_HOME."""
    monkeypatch.setitem(sys.modules, "pyspark", sys)
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)

    with pytest.raises(SparkMissingError, match="Java 17"):
        require_spark()


def test_error_of_the_task_is_found():
    expected = "Cluster east cannot be reached at a:9092: no answer within 20 s."
    assert expected == cause_of(RuntimeError(SPARK))
    assert "something else" == cause_of(RuntimeError("something else\n at x"))


def test_innermost_java_error_is_found_without_one_of_ours():
    """Each error repeats its cause."""
    java = "org.apache.spark.SparkException: Job aborted\n\tat A.b\nCaused by: x.Y: no space\nCaused by: java.io.IOException: disk full"
    assert cause_of(RuntimeError(java)) == "java.io.IOException: disk full"
    assert cause_of(RuntimeError("An error occurred.\n: org.apache.SparkException: no master")) == (
        "org.apache.SparkException: no master"
    )
    assert cause_of(RuntimeError()) == "RuntimeError"


def test_notice_of_java_is_left_out_and_all_else_passed_on(capfd: pytest.CaptureFixture[str]) -> None:
    """A JVM that Spark starts prints it before anything can be configured."""
    lines = f"{JAVA_NOTICE.decode()}: jdk.incubator.vector\\nException in thread main\\n"
    with _without_java_notice():
        subprocess.run(["/bin/sh", "-c", f'printf "{lines}" >&2'], check=True)

    found, deadline_s = "", time.monotonic() + 60
    while "thread main" not in found and time.monotonic() < deadline_s:
        found += capfd.readouterr().err
    assert "Exception in thread main\n" == found
