"""The chart's policy limits the SparkApplications that the operator may write: the Spark operator makes pods of them.

The chart's role has the rights on them only where its value `sparkApplications.enabled` is set.
"""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mirrorflow_operator.api.load import parse_flow, read_document
from tests.harness.kafka.processes import wait_until
from tests.harness.kubernetes.api_server import ApiServer, RequestKind
from tests.harness.kubernetes.chart import NAMESPACE, OPERATOR, OPERATOR_USER, WHOLE_CLUSTER, granted
from tests.harness.kubernetes.kubectl import Kubectl
from tests.harness.kubernetes.operator_process import OperatorProcess
from tests.harness.kubernetes.requests import ApiResponse, Requests
from tests.harness.kubernetes.spark_operator import GROUP
from tests.integration.kubernetes.chart.conftest import TEAM
from tests.integration.kubernetes.controlled import all_objects, manifest

EXAMPLE = Path(__file__).parents[4] / "examples" / "spark-operator" / "launched-by-spark-operator.yaml"
RIGHTS = {
    RequestKind(verb=verb, group=GROUP, resource=resource)
    for verb in ("list", "watch", "create", "patch", "delete")
    for resource in ("sparkapplications", "scheduledsparkapplications")
}
REFUSAL = "a SparkApplication has another program, image or account"
Object = dict[str, Any]


def _planned(kind: str) -> Object:
    document = dict(read_document(EXAMPLE.read_text()))
    document["metadata"]["namespace"] = TEAM
    objects = all_objects(parse_flow(document), image="mirrorflow/replicator:0.1.0")
    return copy.deepcopy(next(item for item in objects if item["kind"] == kind))


def _application(**changes: Any) -> Object:
    application = _planned("SparkApplication")
    application["spec"] |= changes
    return application


def _driver(**changes: Any) -> Object:
    application = _planned("SparkApplication")
    application["spec"]["driver"] |= changes
    return application


def _pod(**changes: Any) -> Object:
    application = _planned("SparkApplication")
    application["spec"]["driver"]["template"]["spec"] |= changes
    return application


def _container(**changes: Any) -> Object:
    application = _planned("SparkApplication")
    application["spec"]["driver"]["template"]["spec"]["containers"][0] |= changes
    return application


def _scheduled() -> Object:
    application = _planned("ScheduledSparkApplication")
    application["spec"]["template"]["driver"]["image"] = "other:1"
    return application


CASES: dict[str, tuple[Callable[[], Object], str]] = {
    "image": (lambda: _application(image="other:1"), REFUSAL),
    "image-of-the-driver": (lambda: _driver(image="other:1"), REFUSAL),
    "image-of-a-schedule": (_scheduled, REFUSAL),
    "image-of-the-template": (lambda: _container(image="other:1"), "an image is not from"),
    "program": (lambda: _application(mainApplicationFile="local:///tmp/any.py"), REFUSAL),
    "properties": (lambda: _application(sparkConf={"spark.driver.extraJavaOptions": "-any"}), REFUSAL),
    "account": (lambda: _driver(serviceAccount="default"), "SparkApplication"),
    "host-network": (lambda: _pod(hostNetwork=True), "the network or the processes of the node"),
    "host-path": (
        lambda: _pod(volumes=[{"name": "host", "hostPath": {"path": "/"}}]),
        "a volume must be a ConfigMap, a Secret, an emptyDir",
    ),
    "root": (lambda: _pod(securityContext={}), "restricted Pod Security Standard"),
    "privileged": (
        lambda: _container(securityContext={"privileged": True}),
        "restricted Pod Security Standard",
    ),
}


def _dry_run(user: Kubectl, application: Object) -> ApiResponse:
    """Returns the API server's response to a server-side apply that stores nothing."""
    plural, name = f"{application['kind'].lower()}s", application["metadata"]["name"]
    path = f"/apis/{application['apiVersion']}/namespaces/{TEAM}/{plural}/{name}"
    return Requests(user.kubeconfig)(
        "PATCH",
        f"{path}?dryRun=All&force=true&fieldManager=mirrorflow-operator&fieldValidation=Strict",
        application,
        content_type="application/apply-patch+yaml",
    )


@pytest.fixture(scope="module")
def bounded(operator: Kubectl) -> Kubectl:
    """kubectl as the operator, once the policy applies."""
    wait_until(
        "the policy is enforced", lambda: REFUSAL in _dry_run(operator, _application(image="other:1")).message
    )
    return operator


@pytest.mark.parametrize("kind", ["SparkApplication", "ScheduledSparkApplication"])
def test_a_planned_application_is_admitted(bounded: Kubectl, kind: str):
    response = _dry_run(bounded, _planned(kind))

    assert response.status == 201, response.message


@pytest.mark.parametrize("case", CASES)
def test_an_application_with_another_driver_is_refused(bounded: Kubectl, case: str):
    """The operator's role allows the request."""
    make_application, sentence = CASES[case]
    response = _dry_run(bounded, make_application())

    assert response.status in {403, 422}
    assert "ValidatingAdmissionPolicy" in response.message
    assert sentence in response.message


def test_the_rights_on_applications_belong_to_the_charts_value():
    """By default the operator has none."""
    enabled = {**WHOLE_CLUSTER, "sparkApplications": {"enabled": True}}

    assert granted(enabled) - granted(WHOLE_CLUSTER) == RIGHTS


def test_an_operator_with_the_charts_role_launches_and_ends_an_application(
    installed: ApiServer, administrator: Kubectl, operator: Kubectl, tmp_path: Path
):
    """No request is refused, and each right on SparkApplications is used."""
    since = installed.log_size()
    name = "launched-in-a-cluster"
    flow = manifest(name, seed={"runId": "1"}, spark={"launcher": "SparkApplication"})
    environment = {"POD_NAMESPACE": NAMESPACE, "MIRRORFLOW_LEASE": OPERATOR}
    administrator("delete", "lease", OPERATOR, f"--namespace={NAMESPACE}", "--ignore-not-found")

    def exists() -> bool:
        return bool(
            administrator.get("sparkapplications", f"--selector=mirrorflow.io/run-of={name}")["items"]
        )

    def verbs() -> set[str]:
        requests = installed.audit_log_of(OPERATOR_USER, since)
        return {request.kind.verb for request in requests if request.kind.resource == "sparkapplications"}

    with OperatorProcess(
        kubeconfig=operator.kubeconfig, folder=tmp_path / "operator", environment=environment
    ) as process:
        process.wait_until_leading()
        administrator.apply(flow)
        wait_until("the application exists", exists)
        wait_until("it is watched", lambda: "watch" in verbs())
        administrator.apply(
            {**flow, "spec": {key: part for key, part in flow["spec"].items() if key != "seed"}}
        )
        wait_until("the application is gone", lambda: not exists())
        process.child.stop()
    administrator("delete", "mirrorflow", name)

    requests = installed.audit_log_of(OPERATOR_USER, since)
    assert [] == [request for request in requests if request.kind.group == GROUP and not request.allowed]
    assert verbs() == {"list", "watch", "patch", "delete"}
