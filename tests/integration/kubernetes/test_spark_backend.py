"""Spark's Kubernetes backend as in the image, with only its jars and a real API server.

No pod runs. The test acts as the kubelet, and starts the image's own command as a process of this machine, with the
arguments that Spark has written into each pod. The jars, the configuration, the executor's command, RPC with its key,
and the driver's permissions are real.
"""

import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from mirrorflow_operator.api.load import parse_flow, read_document
from mirrorflow_operator.plan.job_objects import job_objects
from mirrorflow_operator.plan.spark_run import Runs, SparkDefaults
from mirrorflow_seed import jars, kubernetes_backend, settings
from tests.harness.kafka.processes import Child, free_port, start, wait_until
from tests.harness.kubernetes.api_server import ApiServer
from tests.harness.kubernetes.kubectl import Kubectl

pyspark = pytest.importorskip("pyspark", reason="PySpark is not installed: make setup")

USER = "spark-driver"
VERBS = ["get", "list", "watch", "create", "delete", "deletecollection"]  # the chart's Role
REQUEST_MS = 120_000  # of Spark to the API server; its default of 10 s is too short on a busy machine
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
# What `mirrorflow-seed driver` does before it runs a job.
SUBMITTED_PROGRAM = """
import os
import signal
import sys
from mirrorflow_seed import kubernetes_backend
from mirrorflow_seed.spark_session import spark_session
from mirrorflow_seed.settings import load_job
assert sys.argv[2] == "driver"
file, arguments = kubernetes_backend.driver_command(sys.argv[3:])
assert arguments == ["seed"], arguments
kubernetes_backend.use_properties_of_submission(file, os.environ)
with spark_session(load_job(sys.argv[1], {}), "submitted"):
    signal.pause()
"""
PYTHON_RUNNER = "org.apache.spark.deploy.PythonRunner"
EXAMPLE = Path(__file__).parents[3] / "examples" / "spark-operator" / "launched-by-spark-operator.yaml"
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


@pytest.mark.timeout(600)
def test_spark_submit_creates_the_driver_of_a_spark_application(
    api_server: ApiServer, namespace: Kubectl, tmp_path: Path
):
    """It is given what Kubeflow's Spark operator derives from the application, and keeps the template of the driver."""
    wait_until("the default ServiceAccount exists", lambda: "default" in namespace("get", "serviceaccounts"))
    application = _application(namespace.namespace)
    name, spec = application["metadata"]["name"], application["spec"]

    _submit(api_server, application, tmp_path)

    pod = namespace.get("pod", f"{name}-driver")
    _check_driver(pod, spec)
    config_map = next(
        volume["configMap"]["name"]
        for volume in pod["spec"]["volumes"]
        if volume["name"].startswith("spark-conf-volume")
    )
    properties = set(namespace.get("configmap", config_map)["data"]["spark.properties"].splitlines())
    assert set(_properties_of_submission(name).splitlines()) <= properties


@pytest.mark.timeout(600)
def test_a_submitted_driver_starts_executors_with_the_labels_of_its_submission(
    api_server: ApiServer, namespace: Kubectl, tmp_path: Path
):
    """The Spark operator finds executors by their labels. The arguments are those of the driver's pod."""
    _allow_pods(namespace)
    _make_the_drivers_pod(namespace)
    properties = tmp_path / "spark.properties"
    properties.write_text(_properties_of_submission("east-to-west"))
    (tmp_path / "executor.yaml").write_text(TEMPLATE)
    job = tmp_path / "job.properties"
    # A driver in the cluster has the address that Spark assumes.
    more = {"master": api_server.url, "requestTimeout": REQUEST_MS, "connectionTimeout": REQUEST_MS}
    lines = "".join(f"spark.kubernetes.driver.{key}={value}\n" for key, value in more.items())
    job.write_text(_job(api_server.url, tmp_path) + lines)
    environment = {
        **os.environ,
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "KUBECONFIG": str(api_server.user(USER).kubeconfig),
        "POD_NAME": "driver",
        "POD_NAMESPACE": namespace.namespace,
        "POD_IP": "127.0.0.1",
    }
    log = tmp_path / "driver.log"
    arguments = [
        "driver",
        "--properties-file",
        str(properties),
        "--class",
        PYTHON_RUNNER,
        "local:///seed.py",
        "seed",
    ]
    program = [sys.executable, "-c", SUBMITTED_PROGRAM, str(job), *arguments]
    driver = start("driver", program, log=log, environment=environment)

    def executors() -> list[dict[str, Any]]:
        assert driver.process.poll() is None, log.read_text()[-4_000:]
        pods: list[dict[str, Any]] = namespace.get("pods", "--selector=spark-role=executor")["items"]
        return pods

    try:
        wait_until("an executor is requested", lambda: len(executors()) == 1, timeout_s=WAIT_S, poll_s=0.5)
        (executor,) = executors()
    finally:
        driver.kill()

    assert executor["metadata"]["labels"]["sparkoperator.k8s.io/app-name"] == "east-to-west"
    assert executor["metadata"]["ownerReferences"][0]["name"] == "driver"
    assert "forbidden" not in log.read_text()


def _properties_of_submission(name: str) -> str:
    """Returns properties that spark-submit gives the driver of the application *name*."""
    properties = {
        "spark.app.name": name,
        "spark.submit.deployMode": "cluster",
        "spark.kubernetes.submitInDriver": "true",
        "spark.kubernetes.driver.pod.name": f"{name}-driver",
        "spark.kubernetes.executor.label.sparkoperator.k8s.io/app-name": name,
        "spark.kubernetes.executor.podTemplateFile": "/opt/spark/pod-template/pod-spec-template.yml",
        "spark.dynamicAllocation.enabled": "true",
        "spark.driver.port": "7078",
        "spark.driver.blockManager.port": "7079",
    }
    return "".join(f"{key}={value}\n" for key, value in properties.items())


def _application(namespace: str) -> dict[str, Any]:
    document = dict(read_document(EXAMPLE.read_text()))
    document["metadata"]["namespace"] = namespace
    planned = job_objects(
        parse_flow(document), Runs(seed=True), defaults=SparkDefaults(image="seed", account="default")
    )
    return next(item for item in planned if item["kind"] == "SparkApplication")


def _submit(api_server: ApiServer, application: dict[str, Any], folder: Path) -> None:
    """Runs spark-submit in cluster mode with the arguments of `buildSparkSubmitArgs` in kubeflow/spark-operator."""
    metadata, spec = application["metadata"], application["spec"]
    name, driver, executor = metadata["name"], spec["driver"], spec["executor"]
    kubernetes = "spark.kubernetes"
    conf = {
        f"{kubernetes}.namespace": metadata["namespace"],
        f"{kubernetes}.container.image": spec["image"],
        f"{kubernetes}.submission.waitAppCompletion": "false",
        f"{kubernetes}.submission.requestTimeout": REQUEST_MS,
        f"{kubernetes}.submission.connectionTimeout": REQUEST_MS,
        f"{kubernetes}.driver.pod.name": f"{name}-driver",
        f"{kubernetes}.authenticate.driver.serviceAccountName": driver["serviceAccount"],
        f"{kubernetes}.driver.request.cores": driver["coreRequest"],
        "spark.driver.memory": driver["memory"],
        "spark.driver.memoryOverhead": driver["memoryOverhead"],
        "spark.executor.instances": executor["instances"],
        "spark.executor.cores": executor["cores"],
        f"{kubernetes}.executor.request.cores": executor["coreRequest"],
        f"{kubernetes}.executor.limit.cores": executor["coreLimit"],
        "spark.executor.memory": executor["memory"],
        "spark.executor.memoryOverhead": executor["memoryOverhead"],
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.maxExecutors": spec["dynamicAllocation"]["maxExecutors"],
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    }
    for role, part in (("driver", driver), ("executor", executor)):
        template = folder / f"{role}-template.json"
        template.write_text(json.dumps({"apiVersion": "v1", "kind": "Pod", **part["template"]}))
        conf |= {
            f"{kubernetes}.{role}.podTemplateFile": template,
            f"{kubernetes}.{role}.podTemplateContainerName": f"spark-kubernetes-{role}",
            f"{kubernetes}.{role}.label.sparkoperator.k8s.io/app-name": name,
        }
        labels = metadata["labels"] | part.get("labels", {})
        conf |= {f"{kubernetes}.{role}.label.{key}": value for key, value in labels.items()}
    home = Path(pyspark.__file__).parent
    command = [
        str(home / "bin" / "spark-submit"),
        *("--master", f"k8s://{api_server.url}", "--deploy-mode", "cluster", "--name", name),
        *(argument for key, value in conf.items() for argument in ("--conf", f"{key}={value}")),
        spec["mainApplicationFile"],
        *spec["arguments"],
    ]
    environment = {**os.environ, "SPARK_HOME": str(home), "KUBECONFIG": str(api_server.kubectl.kubeconfig)}
    log = folder / "submit.log"
    submission = start("spark-submit", command, log=log, environment=environment)
    try:
        wait_until("spark-submit has ended", lambda: submission.process.poll() is not None, timeout_s=WAIT_S)
    finally:
        submission.kill()
    assert submission.process.returncode == 0, log.read_text()[-4_000:]


def _check_driver(pod: dict[str, Any], spec: dict[str, Any]) -> None:
    """Checks that Spark has kept the template, and has added what the driver needs."""
    template = spec["driver"]["template"]
    (container,), (expected,) = pod["spec"]["containers"], template["spec"]["containers"]
    assert container["name"] == "spark-kubernetes-driver"
    assert container["args"] == [
        *("driver", "--properties-file", "/opt/spark/conf/spark.properties"),
        *("--class", PYTHON_RUNNER, spec["mainApplicationFile"]),
        *spec["arguments"],
    ]
    assert (
        container["resources"]["limits"]["memory"] == container["resources"]["requests"]["memory"] == "1536Mi"
    )
    assert container["resources"]["requests"]["cpu"] == "200m"
    assert container["terminationMessagePath"] == expected["terminationMessagePath"]
    assert container["securityContext"] == expected["securityContext"]
    assert {variable["name"] for variable in expected["env"]} <= {
        variable["name"] for variable in container["env"]
    }
    mounts = {(mount["name"], mount["mountPath"]) for mount in container["volumeMounts"]}
    assert {(mount["name"], mount["mountPath"]) for mount in expected["volumeMounts"]} <= mounts
    assert pod["spec"]["restartPolicy"] == "Never"
    assert pod["spec"]["terminationGracePeriodSeconds"] == template["spec"]["terminationGracePeriodSeconds"]
    assert template["metadata"]["labels"].items() <= pod["metadata"]["labels"].items()


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
