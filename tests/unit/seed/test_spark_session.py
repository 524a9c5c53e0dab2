"""Tests the Spark configuration of a job, and the messages for errors of Spark."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from mirrorflow_seed.errors import JobFailedError, JobSettingError, SparkMissingError
from mirrorflow_seed.settings import job_of
from mirrorflow_seed.spark_session import (
    JAVA_NOTICE,
    QUIET_START_S,
    _own,
    _quiet_start,
    _without_unused_remote,
    cause_of,
    job_error,
    require_reachable,
    require_spark,
    start_error,
    user_defaults,
)

SPARK = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 8 times
Traceback (most recent call last):
  File "job.py", line 52, in __call__
mirrorflow_core.errors.UnreachableError: Cluster east cannot be reached at a:9092: no response within 20 s.

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
        extra = {"spark.kubernetes.container.image": "seed:1"}
        return _own(job_of({"master": master}), "name", extra, light=True).get("spark.driver.host")

    assert (host("local[2]"), host("yarn"), host("k8s://https://api.example:6443")) == (
        "127.0.0.1",
        None,
        None,
    )


def test_executors_in_pods_need_an_image(own_spark: Path):  # noqa: ARG001
    with pytest.raises(JobSettingError, match=r"spark\.kubernetes\.container\.image: it is not set"):
        _own(job_of({"master": "k8s://https://api.example:6443"}), "name", {}, light=True)


def test_job_without_a_master_runs_on_all_cores_of_this_machine(own_spark: Path):  # noqa: ARG001
    assert "local[*,8]" == _own(job_of({}), "name", {}, light=True)["spark.master"]


@pytest.mark.parametrize(("job", "address"), [({"master": "local[1]"}, None), ({}, "sc://spark:15002")])
def test_a_master_of_the_job_takes_precedence_over_the_connect_server_of_the_environment(
    job: dict[str, str], address: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PySpark refuses a session with both, as `--cores` with SPARK_REMOTE."""
    monkeypatch.setenv("SPARK_REMOTE", "sc://spark:15002")

    with _without_unused_remote(job_of(job)):
        assert address == os.environ.get("SPARK_REMOTE")
    assert "sc://spark:15002" == os.environ["SPARK_REMOTE"]


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
        require_reachable(f"k8s://https://127.0.0.1:{port}")
        require_reachable(f"sc://127.0.0.1:{port}/;user_id=me")
    require_reachable("yarn")
    for master in ("spark://here", "k8s://https://", "sc://:15002", "spark://here:port"):
        with pytest.raises(JobSettingError, match="HOST:PORT"):
            require_reachable(master)


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
        with _quiet_start():
            _print(f"{JAVA_NOTICE}: jdk.incubator.vector\\nException in thread main\\n")

        assert "Exception in thread main\n" == _wait_for(stderr, "main\n")


def test_the_output_of_a_failed_start_is_captured_and_not_shown(tmp_path: Path):
    lines: list[Sequence[str]] = []

    def fail() -> None:
        with _quiet_start() as printed:
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
    monkeypatch.setattr("mirrorflow_seed.spark_session.QUIET_START_S", 0.0)
    with _stderr_in(tmp_path) as stderr, _quiet_start():
        _print("waiting\\n\\tat a.B(C.scala:1)\\nstill waiting\\n")
        assert "waiting\nstill waiting\n" == _wait_for(stderr, "still waiting\n")
