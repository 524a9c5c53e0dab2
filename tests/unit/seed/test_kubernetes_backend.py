"""Tests the Spark configuration of a driver in a pod, and the command line of an executor."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_seed import kubernetes_backend, settings
from mirrorflow_seed.errors import JobSettingError, SparkMissingError
from mirrorflow_seed.settings import JobSettings, job_of

POD = {"POD_NAME": "east-to-west-seed-1-abcde", "POD_NAMESPACE": "flows", "POD_IP": "10.1.2.3"}
IMAGE, TEMPLATE = "mirrorflow/seed:1", "/etc/mirrorflow/executor.yaml"
UNNAMED_USER_ID = 1_000_730_000  # a user id that /etc/passwd of no machine has
EXECUTOR = {
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@10.1.2.3:7078",
    "SPARK_EXECUTOR_ID": "7",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_EXECUTOR_MEMORY": "512m",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_EXECUTOR_POD_IP": "10.1.2.4",
    "SPARK_EXECUTOR_POD_NAME": "seed-exec-7",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_HOME": "/opt/spark",
    "JAVA_HOME": "/opt/java",
}


def _job(**given: str) -> JobSettings:
    properties = {key.replace("__", "."): value for key, value in given.items()}
    return job_of({kubernetes_backend.IMAGE_KEY: IMAGE, settings.POD_TEMPLATE_KEY: TEMPLATE} | properties)


def test_driver_names_its_pod_as_owner_of_executors():
    conf = kubernetes_backend.conf(_job(), POD)

    assert conf["spark.kubernetes.driver.pod.name"] == POD["POD_NAME"]
    assert conf["spark.kubernetes.namespace"] == POD["POD_NAMESPACE"]
    assert conf["spark.driver.host"] == conf["spark.driver.bindAddress"] == POD["POD_IP"]
    assert conf["spark.kubernetes.container.image"] == IMAGE
    assert conf["spark.kubernetes.executor.podTemplateFile"] == TEMPLATE


def test_ipv6_address_is_bracketed():
    assert kubernetes_backend.conf(_job(), POD | {"POD_IP": "fd00::3"})["spark.driver.host"] == "[fd00::3]"


@pytest.mark.parametrize("name", sorted(POD))
def test_driver_without_pod_variables_names_the_missing_one(name: str):
    with pytest.raises(JobSettingError, match=name):
        kubernetes_backend.conf(_job(), {**POD, name: ""})


@pytest.mark.parametrize("key", [kubernetes_backend.IMAGE_KEY, settings.POD_TEMPLATE_KEY])
def test_executors_without_image_or_template_are_refused(key: str):
    with pytest.raises(JobSettingError, match=key.replace(".", r"\.")):
        kubernetes_backend.conf(_job(**{key.replace(".", "__"): ""}), POD)


@pytest.mark.parametrize("cores", ["0", "-1", "two", "1.5", "100"])
def test_invalid_number_of_tasks_is_refused(cores: str):
    with pytest.raises(JobSettingError, match=r"spark\.executor\.cores"):
        kubernetes_backend.conf(_job(spark__executor__cores=cores), POD)


def test_only_pods_are_requested_from_the_api_server():
    """The Role permits only pods, so a request for another resource would be denied."""
    conf = kubernetes_backend.conf(_job(), POD)

    assert conf["spark.kubernetes.executor.disableConfigMap"] == "true"
    assert conf["spark.kubernetes.driver.ownPersistentVolumeClaim"] == "false"
    assert conf["spark.kubernetes.driver.reusePersistentVolumeClaim"] == "false"
    assert conf["spark.kubernetes.driver.service.deleteOnTermination"] == "false"


def test_executors_authenticate_their_peers():
    conf = kubernetes_backend.conf(_job(), POD)

    assert conf["spark.authenticate"] == conf["spark.network.crypto.enabled"] == "true"
    assert conf["spark.driver.port"] == "7078"
    assert conf["spark.driver.blockManager.port"] == conf["spark.blockManager.port"] == "7079"


@given(executors=st.integers(1, 10_000), cores=st.integers(1, 99))
def test_failure_limit_grows_with_executors_and_memory_with_tasks(executors: int, cores: int):
    """A large job survives a few lost nodes. Each task has memory for its own buffers."""
    job = _job(executors__max=str(executors), spark__executor__cores=str(cores))

    conf = kubernetes_backend.conf(job, POD)

    assert int(conf["spark.executor.maxNumFailures"]) >= max(20, 10 * executors)
    assert conf["spark.dynamicAllocation.maxExecutors"] == str(executors)
    assert conf["spark.default.parallelism"] == str(executors * cores)
    assert int(conf["spark.executor.memoryOverhead"].removesuffix("m")) >= 256 * (cores + 1)


def test_an_executor_has_enough_direct_memory_for_network_buffers():
    """An executor without 200 MiB of direct memory exits. Java's default limit is the heap size."""
    conf = kubernetes_backend.conf(_job(), POD)

    assert "MaxDirectMemorySize" not in conf["spark.executor.extraJavaOptions"]
    assert int(conf["spark.executor.memory"].removesuffix("m")) > 200


def test_executor_command_uses_sparks_variables():
    options = {"SPARK_JAVA_OPT_10": "-Dten=1", "SPARK_JAVA_OPT_2": "-Dtwo=a b", "SPARK_JAVA_OPTS_NOT": "x"}

    command = kubernetes_backend.executor_command(EXECUTOR | options)

    assert command[:5] == ["/opt/java/bin/java", "-Dtwo=a b", "-Dten=1", "-Xms512m", "-Xmx512m"]
    assert command[5:8] == ["-cp", "/opt/spark/jars/*", kubernetes_backend.BACKEND]
    parameters = dict(zip(command[8::2], command[9::2], strict=True))
    assert parameters == {
        "--driver-url": EXECUTOR["SPARK_DRIVER_URL"],
        "--executor-id": "7",
        "--cores": "2",
        "--app-id": "spark-1",
        "--hostname": "10.1.2.4",
        "--podName": "seed-exec-7",
        "--resourceProfileId": "0",
    }


@pytest.mark.parametrize("name", sorted(set(EXECUTOR) - {"JAVA_HOME"}))
def test_executor_without_sparks_variables_is_refused(name: str):
    environment = {key: value for key, value in EXECUTOR.items() if key != name}

    with pytest.raises(SparkMissingError, match=name):
        kubernetes_backend.executor_command(environment)


SUBMITTED = (
    "--properties-file",
    "/opt/spark/conf/spark.properties",
    "--class",
    "org.apache.spark.deploy.PythonRunner",
)


def test_a_submitted_driver_gets_the_arguments_after_the_program():
    file, arguments = kubernetes_backend.driver_command(
        [*SUBMITTED, "local:///seed.py", "verify", "--job", "a b"]
    )

    assert file == "/opt/spark/conf/spark.properties"
    assert arguments == ["verify", "--job", "a b"]


@pytest.mark.parametrize("given", [(), ("local:///seed.py", "verify"), SUBMITTED[2:], SUBMITTED])
def test_a_driver_that_spark_submit_has_not_described_is_refused(given):
    with pytest.raises(SparkMissingError, match="`driver` is internal"):
        kubernetes_backend.driver_command(given)


def test_the_session_of_a_submitted_driver_also_has_the_properties_of_its_submission():
    """spark-submit refuses a shell in cluster mode, which is the mode in the file."""
    environment = {"PYSPARK_SUBMIT_ARGS": "pyspark-shell"}

    kubernetes_backend.use_properties_of_submission("/conf/a b.properties", environment)

    expected = "--deploy-mode client --properties-file '/conf/a b.properties' pyspark-shell"
    assert environment == {"PYSPARK_SUBMIT_ARGS": expected}


def test_named_user_keeps_its_name():
    assert kubernetes_backend.user_name_variables() == {}


@pytest.mark.parametrize("has_library", [True, False])
def test_user_id_without_a_name_gets_one_if_the_library_exists(tmp_path, monkeypatch, has_library):
    """The image has the library; elsewhere nothing changes."""
    library = tmp_path / "lib" / "libnss_wrapper.so"
    library.parent.mkdir()
    if has_library:
        library.touch()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("os.getuid", lambda: UNNAMED_USER_ID)

    variables = kubernetes_backend.user_name_variables()

    if not has_library:
        assert variables == {}
        return
    assert variables["LD_PRELOAD"] == str(library)
    name, _, user_id, *_ = Path(variables["NSS_WRAPPER_PASSWD"]).read_text().split(":")
    assert (name, user_id) == ("mirrorflow", str(UNNAMED_USER_ID))
