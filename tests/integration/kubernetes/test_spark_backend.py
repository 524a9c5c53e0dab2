"""Spark's Kubernetes backend as in the image, with only its jars and a real API server.

No pod runs. The test acts as the kubelet, and starts the image's own command as a process of this machine, with the
arguments that Spark has written into each pod. The jars, the configuration, the executor's command, RPC with its key,
and the driver's permissions are real.
"""

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from mirrorflow_seed import jars, kubernetes_backend, settings
from tests.harness.kafka.processes import Child, free_port, start, wait_until
from tests.harness.kubernetes.api_server import ApiServer
from tests.harness.kubernetes.kubectl import Kubectl

pyspark = pytest.importorskip("pyspark", reason="PySpark is not installed: make setup")

USER = "spark-driver"
VERBS = ["get", "list", "watch", "create", "delete", "deletecollection"]  # the chart's Role
WAIT_S = 400.0  # 25 s on an idle machine; minutes on a busy one
PROGRAM = """
import sys
from mirrorflow_seed.spark_session import spark_session
from mirrorflow_seed.spark_tasks import SparkTasks
from mirrorflow_seed.settings import load_job
from mirrorflow_seed.verify.result_folder import ResultFolder
from tests.unit.seed.verify.test_verification_results import verification, window
job = load_job(sys.argv[1], {})
windows = window(0), window(1)
result, found = ResultFolder(job), verification(*windows)
with spark_session(job, "backend") as spark:
    result.prepare()
    result.begin_table("east-to-west")
    print("SUM", sum(SparkTasks(spark).run(abs, range(8))), flush=True)
    result.complete_table((), windows)
result.write(found)
"""
TEMPLATE = '{"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "executor"}]}}'


@pytest.fixture
def spark_of_the_image(tmp_path: Path) -> Iterator[Mapping[str, str]]:
    """Creates PySpark as in the image, with links, and returns the environment that finds it."""
    package, home = tmp_path / "lib" / "pyspark", tmp_path / "spark"
    shutil.copytree(Path(pyspark.__file__).parent, package, copy_function=_link)
    jars.split(package, home)
    yield {**os.environ, "SPARK_HOME": str(home), "PYTHONPATH": str(package.parent)}
    shutil.rmtree(tmp_path / "lib")
    shutil.rmtree(home)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # the file is on a different file system
        shutil.copy2(source, target)


@pytest.mark.timeout(600)
def test_a_job_runs_with_only_the_images_jars_and_permissions_on_pods(
    api_server: ApiServer, namespace: Kubectl, tmp_path: Path, spark_of_the_image: Mapping[str, str]
):
    _allow_pods(namespace)
    _make_the_drivers_pod(namespace)
    (tmp_path / "executor.yaml").write_text(TEMPLATE)
    (tmp_path / "job.properties").write_text(_job(api_server.url, tmp_path))
    environment = {
        **spark_of_the_image,
        "KUBECONFIG": str(api_server.user(USER).kubeconfig),
        "POD_NAME": "driver",
        "POD_NAMESPACE": namespace.namespace,
        "POD_IP": "127.0.0.1",
    }
    log = tmp_path / "driver.log"
    program = [sys.executable, "-c", PROGRAM, str(tmp_path / "job.properties")]
    driver = start("driver", program, log=log, environment=environment)
    executors: dict[str, Child] = {}

    def ended() -> bool:
        _start_executors(namespace, environment, executors, tmp_path)
        return driver.process.poll() is not None

    try:
        wait_until("the driver has ended", ended, timeout_s=WAIT_S, poll_s=0.5)
    finally:
        for child in (driver, *executors.values()):
            child.kill()

    log_text = log.read_text()
    assert "SUM 28" in log_text, log_text[-4_000:]
    assert driver.process.returncode == 0, log_text[-4_000:]
    # The driver writes this, because executors do not have its volume.
    result_folder = tmp_path / "output" / "run-1"
    assert {"windows", "verification.json", "report.html"} == {path.name for path in result_folder.iterdir()}
    assert len(list((result_folder / "windows").glob("part-*.parquet"))) == 1
    assert "forbidden" not in log_text
    assert not namespace.get("pods", "--selector=spark-role=executor")["items"]


@pytest.mark.timeout(600)
def test_a_job_outside_of_the_cluster_runs_on_executors_in_it(
    api_server: ApiServer, namespace: Kubectl, tmp_path: Path
):
    """No variable of a pod is set. The settings are Spark's own, as for any application of a user."""
    _allow_pods(namespace)
    wait_until("the default ServiceAccount exists", lambda: "default" in namespace("get", "serviceaccounts"))
    properties = {
        "master": f"k8s://{api_server.url}",
        "output": tmp_path / "output",
        "spark.kubernetes.namespace": namespace.namespace,
        "spark.kubernetes.container.image": "apache/spark",
        "spark.kubernetes.executor.disableConfigMap": "true",
        "spark.driver.host": "127.0.0.1",
        "spark.executor.instances": "1",
        "spark.executor.memory": "512m",
        "spark.network.timeout": "300s",
    }
    job = tmp_path / "job.properties"
    job.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    environment = {
        **os.environ,
        "KUBECONFIG": str(api_server.user(USER).kubeconfig),
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "PYSPARK_PYTHON": sys.executable,
    }
    log = tmp_path / "driver.log"
    driver = start("driver", [sys.executable, "-c", PROGRAM, str(job)], log=log, environment=environment)
    executors: dict[str, Child] = {}

    def ended() -> bool:
        _start_executors(namespace, environment, executors, tmp_path)
        return driver.process.poll() is not None

    try:
        wait_until("the driver has ended", ended, timeout_s=WAIT_S, poll_s=0.5)
    finally:
        for child in (driver, *executors.values()):
            child.kill()

    log_text = log.read_text()
    assert "SUM 28" in log_text, log_text[-4_000:]
    assert driver.process.returncode == 0, log_text[-4_000:]
    assert executors


def _job(url: str, folder: Path) -> str:
    properties = {
        "master": f"k8s://{url}",
        "executors.max": "1",
        "output": folder / "output",
        kubernetes_backend.IMAGE_KEY: "seed",
        settings.POD_TEMPLATE_KEY: folder / "executor.yaml",
        "spark.driver.port": free_port(),
        "spark.driver.blockManager.port": free_port(),
        "spark.blockManager.port": free_port(),
        "spark.network.timeout": "300s",
    }
    return "".join(f"{key}={value}\n" for key, value in properties.items())


def _start_executors(
    namespace: Kubectl, environment: Mapping[str, str], started: dict[str, Child], folder: Path
) -> None:
    for pod in namespace.get("pods", "--selector=spark-role=executor")["items"]:
        name = pod["metadata"]["name"]
        if name in started:
            continue
        variables = pod["spec"]["containers"][0]["env"]
        variables_of_pod = {
            variable["name"]: variable["value"] for variable in variables if "value" in variable
        }
        variables_of_pod |= {"SPARK_EXECUTOR_POD_IP": "127.0.0.1", "SPARK_EXECUTOR_POD_NAME": name}
        variables_of_pod |= {"SPARK_LOCAL_DIRS": str(folder / "scratch")}
        environment_of_pod = {**environment, **variables_of_pod}
        started[name] = start(
            name,
            kubernetes_backend.executor_command(environment_of_pod),
            log=folder / f"{name}.log",
            environment=environment_of_pod,
        )


def _allow_pods(namespace: Kubectl) -> None:
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": VERBS}]
    group = "rbac.authorization.k8s.io"
    role = {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": {"name": USER}, "rules": rules}
    binding = {
        "apiVersion": f"{group}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": USER},
        "roleRef": {"apiGroup": group, "kind": "Role", "name": USER},
        "subjects": [{"apiGroup": group, "kind": "User", "name": USER}],
    }
    for manifest in (role, binding):
        namespace.apply(manifest)


def _make_the_drivers_pod(namespace: Kubectl) -> None:
    """Creates the driver's pod, which owns the executors."""
    wait_until("the default ServiceAccount exists", lambda: "default" in namespace("get", "serviceaccounts"))
    containers = [{"name": "driver", "image": "seed"}]
    namespace.apply(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "driver"},
            "spec": {"containers": containers},
        }
    )
