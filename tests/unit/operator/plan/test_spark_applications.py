"""The SparkApplications of jobs, which Kubeflow's Spark operator launches.

The golden file has the application of a seed and the schedule of a verification. The other tests compare them with the Job that
the operator would create instead.
"""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from mirrorflow_operator.api.load import parse_flow
from mirrorflow_operator.plan import job_properties, spark_applications
from mirrorflow_operator.plan.drift import Object
from mirrorflow_operator.plan.job_objects import job_objects, without_blocked_jobs
from mirrorflow_operator.plan.names import FLOW_LABEL, QUEUE_LABEL, RUN_OF_LABEL
from mirrorflow_operator.plan.spark_applications import attempt_number, run_name_of
from mirrorflow_operator.plan.spark_run import Attempt, Runs, SparkDefaults
from mirrorflow_seed import kubernetes_backend
from tests.harness.goldens import check_golden, yaml_text
from tests.unit.operator.plan.test_connector_objects import GOLDENS

ROOT = Path(__file__).parents[4]
NAME = "launched-by-spark-operator"
EXAMPLE = ROOT / "examples" / "spark-operator" / f"{NAME}.yaml"
DEFAULTS = SparkDefaults(image="registry.example/mirrorflow-seed:1.0.0")
EVERY_RUN = Runs(seed=True, verify=True, archive=True, restore=True)
APPLICATIONS = {"SparkApplication", "ScheduledSparkApplication"}


def _planned(runs: Runs = EVERY_RUN, *, launcher: str = "SparkApplication", **changes: Any) -> list[Object]:
    document = yaml.safe_load(EXAMPLE.read_text())
    document["spec"] |= changes
    document["spec"]["spark"]["launcher"] = launcher
    return job_objects(parse_flow(document), runs, defaults=DEFAULTS)


def _of_kind(planned: list[Object], kind: str) -> Object:
    (planned_object,) = (item for item in planned if item["kind"] == kind)
    return planned_object


def _name(planned: list[Object], kind: str = "SparkApplication") -> str:
    return str(_of_kind(planned, kind)["metadata"]["name"])


def test_the_applications_are_those_of_the_golden_file() -> None:
    applications = [item for item in _planned() if item["kind"] in APPLICATIONS]

    check_golden(GOLDENS / f"{NAME}.jobs.yaml", yaml_text(applications))


def test_no_job_is_planned_beside_an_application() -> None:
    kinds = {item["kind"] for item in _planned()}

    assert kinds == {"NetworkPolicy", "ConfigMap", *APPLICATIONS}


def test_the_driver_has_the_pod_of_a_job_without_what_spark_sets() -> None:
    """Spark appends its arguments to those of the template, and replaces sizes, account and restart policy."""
    job = _of_kind(_planned(launcher="Job"), "Job")
    spec = _of_kind(_planned(), "SparkApplication")["spec"]
    expected, template = job["spec"]["template"], spec["driver"]["template"]
    (of_job,), (of_application,) = expected["spec"].pop("containers"), template["spec"].pop("containers")

    assert template["metadata"] == expected["metadata"]
    assert expected["spec"].pop("restartPolicy") == "Never"
    assert expected["spec"].pop("serviceAccountName") == spec["driver"]["serviceAccount"]
    for pod in (template, expected):
        (config,) = (volume for volume in pod["spec"]["volumes"] if volume["name"] == "config")
        assert config.pop("configMap")  # each has its own
    assert template["spec"] == expected["spec"]
    assert of_job.pop("name") == "driver"
    assert of_application.pop("name") == "spark-kubernetes-driver"
    assert of_job.pop("args") == spec["arguments"]
    assert of_job.pop("resources") == {
        "requests": {"cpu": "200m", "memory": "1536Mi"},
        "limits": {"memory": "1536Mi"},
    }
    assert of_application == of_job
    assert (spec["driver"]["coreRequest"], spec["driver"]["memory"], spec["driver"]["memoryOverhead"]) == (
        "200m",
        "512m",
        "1024m",
    )


def test_an_application_has_the_executors_that_its_driver_requests() -> None:
    """Queues and quotas count them by the application."""
    planned = _planned()
    properties = dict(
        line.split("=", 1)
        for line in _of_kind(planned[:2], "ConfigMap")["data"]["job.properties"].splitlines()
    )
    spec = _of_kind(planned, "SparkApplication")["spec"]
    executor = spec["executor"]

    assert (
        executor["instances"] == spec["dynamicAllocation"]["maxExecutors"] == int(properties["executors.max"])
    )
    assert executor["cores"] == int(properties["spark.executor.cores"])
    assert executor["memory"] == properties["spark.executor.memory"]
    assert executor["memoryOverhead"] == properties["spark.executor.memoryOverhead"]
    assert executor["coreRequest"] == properties["spark.kubernetes.executor.request.cores"]
    assert executor["coreLimit"] == properties["spark.kubernetes.executor.limit.cores"]
    assert executor["template"]["metadata"]["labels"] == executor["labels"]


def test_sizes_that_the_spec_does_not_give_are_those_of_the_driver() -> None:
    """`mirrorflow_seed` sets them, and the operator does not import it."""
    executor = _of_kind(
        _planned(Runs(seed=True), seed={"runId": "1", "executors": {"cores": 3}}), "SparkApplication"
    )["spec"]["executor"]

    assert job_properties.HEAP_MIB == kubernetes_backend.HEAP_MIB
    assert spark_applications.JVM_MIB == kubernetes_backend.JVM_MIB
    assert spark_applications.TASK_MIB == kubernetes_backend.TASK_MIB
    assert executor["memoryOverhead"] == f"{256 + 3 * 256}m"


def test_an_application_refers_to_secrets_and_has_none() -> None:
    """Only references are in it; the operator cannot read Secrets."""
    application = _of_kind(_planned(), "SparkApplication")
    volumes = application["spec"]["driver"]["template"]["spec"]["volumes"]

    assert {"east-ca", "east-mirror"} == {
        volume["secret"]["secretName"] for volume in volumes if "secret" in volume
    }
    assert "sparkConf" not in application["spec"]


def test_executors_do_not_get_the_flows_label() -> None:
    """Spark copies labels of an application to executors, and the operator watches pods with the flow's label."""
    for application in (item for item in _planned() if item["kind"] in APPLICATIONS):
        assert FLOW_LABEL not in application["metadata"]["labels"]
        assert application["metadata"]["labels"][RUN_OF_LABEL] == "east-to-west"
        spec = application["spec"].get("template", application["spec"])
        assert FLOW_LABEL in spec["driver"]["template"]["metadata"]["labels"]
        assert FLOW_LABEL not in spec["executor"]["labels"]
        assert spec["executor"]["labels"]["app.kubernetes.io/name"] == "mirrorflow-executor"


def test_each_attempt_is_an_application_with_the_same_files() -> None:
    first = _planned(Runs(seed=True))
    run_name = run_name_of(_name(first))
    second = _planned(Runs(seed=True, attempts={run_name: Attempt(number=2, failures=1)}))

    assert (_name(first), _name(second)) == (f"{run_name}-r1", f"{run_name}-r2")
    assert _of_kind(first[:2], "ConfigMap") == _of_kind(second[:2], "ConfigMap")
    assert _of_kind(first, "SparkApplication")["spec"] == _of_kind(second, "SparkApplication")["spec"]
    annotations = _of_kind(second, "SparkApplication")["metadata"]["annotations"]
    assert annotations == {"mirrorflow.io/run-id": "1", "mirrorflow.io/failures": "1"}


def test_a_pause_suspends_the_application_and_keeps_its_name() -> None:
    running, paused = _planned(Runs(seed=True)), _planned(Runs(seed=True), state="Paused")

    assert _name(running) == _name(paused)
    assert [_of_kind(planned, "SparkApplication")["spec"]["suspend"] for planned in (running, paused)] == [
        False,
        True,
    ]


def test_an_application_in_a_queue_is_suspended_by_kueue_alone() -> None:
    application = _of_kind(_planned(Runs(seed=True), spark={"queue": "batch"}), "SparkApplication")

    assert application["metadata"]["labels"][QUEUE_LABEL] == "batch"
    assert "suspend" not in application["spec"]


def test_the_launcher_is_part_of_the_name() -> None:
    """So an application and a Job of the same run are different objects, and one replaces the other."""
    assert run_name_of(_name(_planned(Runs(seed=True)))) != _name(
        _planned(Runs(seed=True), launcher="Job"), "Job"
    )


def test_an_attempt_waits_for_the_driver_of_the_attempt_before_it() -> None:
    planned = _planned(Runs(seed=True))
    name = _name(planned)
    before = name.removesuffix("-r1") + "-r9"

    in_time = without_blocked_jobs(planned, existing=frozenset({before}), alive=frozenset({before}))

    assert "SparkApplication" not in {item["kind"] for item in in_time}
    assert planned == without_blocked_jobs(planned, existing=frozenset({before}), alive=frozenset())


@pytest.mark.parametrize(
    ("name", "run", "number"),
    [
        ("orders-seed-0a1b2c3d-r1", "orders-seed-0a1b2c3d", 1),
        ("orders-seed-0a1b2c3d-r12", "orders-seed-0a1b2c3d", 12),
        ("orders-verify-1795000000000000000", "orders-verify-1795000000000000000", None),
        ("orders-seed-0a1b2c3d", "orders-seed-0a1b2c3d", None),
    ],
)
def test_the_name_of_an_application_has_its_run_and_number(name: str, run: str, number: int | None) -> None:
    assert (run_name_of(name), attempt_number(name)) == (run, number)


def test_the_names_of_the_longest_flow_fit_into_a_label() -> None:
    """The Spark operator labels pods with the name of their application."""
    document = yaml.safe_load(EXAMPLE.read_text())
    document["metadata"]["name"] = "a" * 35
    del document["spec"]["verify"]
    document["spec"]["archive"] = {"url": "s3://backups/orders", "follow": True}
    planned = job_objects(parse_flow(document), Runs(archive=True), defaults=DEFAULTS)

    assert len(_name(planned)) + len("00") <= 63  # up to 999 attempts
    assert len(f"{'a' * 35}-archive-{2**63 - 1}") == 63  # of a schedule


def test_the_version_of_spark_is_that_of_the_image() -> None:
    pinned = re.search(r"^pyspark==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)

    assert pinned is not None
    assert pinned[1] == spark_applications.SPARK_VERSION


def test_the_image_has_the_program_of_an_application() -> None:
    """spark-submit takes a program for Python by its suffix."""
    file = spark_applications.MAIN_FILE.removeprefix("local://")

    assert file.endswith(".py")
    assert f"/mirrorflow_seed/__main__.py {file}\n" in (ROOT / "Dockerfile").read_text()
