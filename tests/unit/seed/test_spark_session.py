"""Tests the Spark configuration of a job."""

import os
import socket
import sys
from pathlib import Path

import pytest

from mirrorflow_seed.errors import JobFailedError, JobSettingError, SparkMissingError
from mirrorflow_seed.settings import job_of
from mirrorflow_seed.spark_session import (
    _own,
    _without_unused_remote,
    require_reachable,
    require_spark,
    user_defaults,
)


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
