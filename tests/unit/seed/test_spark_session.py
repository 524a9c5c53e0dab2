"""Tests the Spark configuration of a job, and the messages for errors of Spark."""

import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mirrorflow_seed.errors import JobFailedError, JobSettingError, SparkMissingError
from mirrorflow_seed.settings import job_of
from mirrorflow_seed.spark_session import (
    JAVA_NOTICE,
    _own,
    _without_java_notice,
    cause_of,
    require_reachable,
    require_spark,
    start_error,
    user_defaults,
)

SPARK = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 8 times
Traceback (most recent call last):
  File "job.py", line 52, in __call__
mirrorflow_core.errors.UnreachableError: Cluster east cannot be reached at a:9092: no answer within 20 s.

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:581)
"""


def test_missing_pyspark_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pyspark", None)

    with pytest.raises(SparkMissingError, match=r"\[cli,seed\]"):
        require_spark()


def test_missing_java_is_reported(monkeypatch: pytest.MonkeyPatch):
    """Java is neither on PATH nor in JAVA_HOME."""
    monkeypatch.setitem(sys.modules, "pyspark", sys)
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)

    with pytest.raises(SparkMissingError, match="Java 17"):
        require_spark()


def test_the_cause_is_the_error_of_the_task():
    expected = "Cluster east cannot be reached at a:9092: no answer within 20 s."
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


@pytest.fixture
def own_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Prepares the environment of a user's Spark; returns the path of its spark-defaults.conf."""
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "POD_NAME", "POD_NAMESPACE", "POD_IP"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.setenv("PYSPARK_PYTHON", "python")
    return tmp_path / "spark-defaults.conf"


def test_settings_in_spark_defaults_are_never_overwritten(own_spark: Path):
    own_spark.write_text(
        "# theirs\nspark.master   yarn\nspark.speculation true\nspark.driver.host=h\nspark.ui.enabled true \n"
    )
    conf = _own(job_of({"spark.task.maxFailures": "2"}), "name", {"spark.task.maxFailures": "2"}, light=True)

    assert user_defaults({"SPARK_CONF_DIR": str(own_spark.parent)})["spark.ui.enabled"] == "true"
    assert (conf["spark.master"], conf["spark.app.name"], conf["spark.task.maxFailures"]) == (
        "yarn",
        "name",
        "2",
    )
    assert not {"spark.speculation", "spark.driver.host", "spark.ui.enabled"} & conf.keys()


def test_the_driver_address_is_set_only_for_a_local_master(own_spark: Path):  # noqa: ARG001
    def host(master: str) -> str | None:
        return _own(job_of({"master": master}), "name", {}, light=True).get("spark.driver.host")

    assert (host("local[2]"), host("yarn"), host("k8s://https://api.example:6443")) == (
        "127.0.0.1",
        None,
        None,
    )


def test_job_without_a_master_runs_on_all_cores_of_this_machine(own_spark: Path):  # noqa: ARG001
    assert "local[*,8]" == _own(job_of({}), "name", {}, light=True)["spark.master"]


def test_an_unreachable_master_is_an_error():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        with pytest.raises(
            JobFailedError, match=f"spark://127.0.0.1:{port} cannot be reached: Connection refused"
        ):
            require_reachable(f"spark://127.0.0.1:{port}", timeout_s=0.1)
        listening.listen()
        require_reachable(f"spark://127.0.0.1:{port}")
        require_reachable(f"spark://127.0.0.1:1,127.0.0.1:{port}")
    require_reachable("yarn")
    with pytest.raises(JobSettingError, match="HOST:PORT"):
        require_reachable("spark://here")


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


def test_javas_notice_is_dropped_and_other_output_is_passed_on(capfd: pytest.CaptureFixture[str]) -> None:
    """A JVM that Spark starts prints the notice before it can be configured."""
    lines = f"{JAVA_NOTICE.decode()}: jdk.incubator.vector\\nException in thread main\\n"
    with _without_java_notice():
        subprocess.run(["/bin/sh", "-c", f'printf "{lines}" >&2'], check=True)

    stderr, deadline_s = "", time.monotonic() + 60
    while "thread main" not in stderr and time.monotonic() < deadline_s:
        stderr += capfd.readouterr().err
    assert "Exception in thread main\n" == stderr
