"""The chart's policy limits which objects the operator may write, regardless of the roles of its account."""

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mirrorflow_operator.api.load import parse_flow, read_document
from mirrorflow_operator.plan.spark_pods import EXECUTOR_FILE
from mirrorflow_operator.settings import SEED_ACCOUNT
from tests.harness.kafka.processes import wait_until
from tests.harness.kubernetes.api_server import ApiServer
from tests.harness.kubernetes.chart import NAMESPACE, OPERATOR
from tests.harness.kubernetes.kubectl import Kubectl, KubectlError
from tests.harness.kubernetes.requests import ApiResponse, Requests
from tests.integration.kubernetes.chart.conftest import TEAM
from tests.integration.kubernetes.controlled import all_objects

VALID = sorted((Path(__file__).parents[3] / "examples" / "valid").glob("*.yaml"))
IMAGE = "mirrorflow/replicator:0.1.0"
Object = dict[str, Any]


def _planned(example: Path, image: str = IMAGE) -> list[Object]:
    document = dict(read_document(example.read_text()))
    document["metadata"]["namespace"] = TEAM
    flow = parse_flow(document)
    return all_objects(flow, image=image)


def _planned_object(kind: str) -> Object:
    return next(manifest for manifest in _planned(VALID[0]) if manifest["kind"] == kind)


def _seed_object(kind: str) -> Object:
    manifests = _planned(next(path for path in VALID if path.stem == "everything"))
    return next(
        manifest
        for manifest in manifests
        if manifest["kind"] == kind and "seed" in manifest["metadata"]["name"]
    )


def _seed_job(**changes: Any) -> Object:
    job = copy.deepcopy(_seed_object("Job"))
    job["spec"]["template"]["spec"] |= changes
    return job


def _executor(**changes: Any) -> Object:
    """Returns an executor pod as Spark builds it from the pod template."""
    pod: Object = json.loads(_seed_object("ConfigMap")["data"][EXECUTOR_FILE])
    pod["metadata"] |= {"name": "an-executor", "namespace": TEAM}
    pod["spec"] |= {"restartPolicy": "Never"}
    pod["spec"]["serviceAccountName"] = SEED_ACCOUNT
    pod["spec"]["containers"][0]["image"] = "mirrorflow/seed:1"
    pod["spec"] |= changes
    return pod


@pytest.fixture(scope="module")
def bounded(operator: Kubectl) -> Kubectl:
    """kubectl as the operator, once the policy applies."""

    wait_until(
        "the policy is enforced",
        lambda: (
            "ValidatingAdmissionPolicy" in _dry_run(operator, _deployment_with_pod(hostNetwork=True)).message
        ),
    )
    return operator


def _dry_run(user: Kubectl, manifest: Object) -> ApiResponse:
    """Returns the API server's response to a server-side apply that stores nothing."""
    api, kind = manifest["apiVersion"], manifest["kind"]
    root = "/api/v1" if api == "v1" else f"/apis/{api}"
    plural = "networkpolicies" if kind == "NetworkPolicy" else f"{kind.lower()}s"
    path = f"{root}/namespaces/{TEAM}/{plural}/{manifest['metadata']['name']}"
    return Requests(user.kubeconfig)(
        "PATCH",
        f"{path}?dryRun=All&force=true&fieldManager=mirrorflow-operator&fieldValidation=Strict",
        manifest,
        content_type="application/apply-patch+yaml",
    )


def _deployment_with_pod(**changes: Any) -> Object:
    deployment = copy.deepcopy(_planned_object("Deployment"))
    deployment["spec"]["template"]["spec"] |= changes
    return deployment


def _deployment_with_container(**changes: Any) -> Object:
    deployment = copy.deepcopy(_planned_object("Deployment"))
    deployment["spec"]["template"]["spec"]["containers"][0] |= changes
    return deployment


def _with_volume(source: Object) -> Object:
    volumes = _planned_object("Deployment")["spec"]["template"]["spec"]["volumes"]
    return _deployment_with_pod(volumes=[*volumes, {"name": "another", **source}])


def _deployment_secured_with(**changes: Any) -> Object:
    container = _planned_object("Deployment")["spec"]["template"]["spec"]["containers"][0]
    return _deployment_with_container(securityContext=container["securityContext"] | changes)


@pytest.mark.parametrize("example", VALID, ids=lambda path: path.stem)
def test_every_planned_object_is_admitted(bounded: Kubectl, example: Path):
    """The operator's role allows these requests as well."""
    responses = [_dry_run(bounded, manifest) for manifest in _planned(example)]

    assert {200, 201} >= {response.status for response in responses}, [
        response.message for response in responses
    ]


HOST_PATH = {"hostPath": {"path": "/"}}
TOKEN = {"projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}
CASES: dict[str, tuple[Callable[[], Object], str]] = {
    "host-path": (lambda: _with_volume(HOST_PATH), "a volume must be a ConfigMap, a Secret, an emptyDir"),
    "claim-of-a-connector": (
        lambda: _with_volume({"persistentVolumeClaim": {"claimName": "any"}}),
        "or a driver's claim",
    ),
    "token-volume": (lambda: _with_volume(TOKEN), "a volume must be a ConfigMap, a Secret, an emptyDir"),
    "host-network": (
        lambda: _deployment_with_pod(hostNetwork=True),
        "the network or the processes of the node",
    ),
    "host-pid": (lambda: _deployment_with_pod(hostPID=True), "the network or the processes of the node"),
    "host-ipc": (lambda: _deployment_with_pod(hostIPC=True), "the network or the processes of the node"),
    "token": (lambda: _deployment_with_pod(automountServiceAccountToken=True), "or has a token"),
    "token-by-default": (lambda: _deployment_with_pod(automountServiceAccountToken=None), "or has a token"),
    "root-allowed": (lambda: _deployment_with_pod(securityContext={}), "restricted Pod Security Standard"),
    "other-image": (
        lambda: _deployment_with_container(image="mirrorflow/replicator-x:1"),
        "an image is not from mirrorflow/replicator",
    ),
    "untagged-image": (
        lambda: _deployment_with_container(image="mirrorflow/replicator"),
        "an image is not from",
    ),
    "second-image": (
        lambda: _deployment_with_pod(initContainers=[{"name": "first", "image": "mirrorflow/replicator:1"}]),
        "the image of an init container or sidecar is not allowed",
    ),
    "escalation": (
        lambda: _deployment_secured_with(allowPrivilegeEscalation=True),
        "restricted Pod Security Standard",
    ),
    "capability": (
        lambda: _deployment_secured_with(capabilities={"drop": ["ALL"], "add": ["NET_RAW"]}),
        "restricted Pod Security",
    ),
    "root": (lambda: _deployment_secured_with(runAsUser=0), "restricted Pod Security Standard"),
    "host-port": (
        lambda: _deployment_with_container(ports=[{"containerPort": 1, "hostPort": 1}]),
        "restricted Pod Security",
    ),
    "secret-variables": (
        lambda: _deployment_with_container(envFrom=[{"secretRef": {"name": "s"}}]),
        "variables from a whole Secret",
    ),
    "resource-variable": (
        lambda: _deployment_with_container(
            env=[{"name": "P", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}]
        ),
        "variables from a whole Secret",
    ),
    "other-driver": (
        lambda: _with_volume({"csi": {"driver": "any.csi.example.com", "readOnly": True}}),
        "a volume of a CSI driver in admission.csiDrivers",
    ),
    "account-with-token": (
        lambda: {**_planned_object("ServiceAccount"), "automountServiceAccountToken": True},
        "a ServiceAccount mounts a token into pods",
    ),
    "job-of-another-account": (
        lambda: _seed_job(serviceAccountName="default"),
        "or has a token",
    ),
    "job-on-the-host": (lambda: _seed_job(hostNetwork=True), "the network or the processes of the node"),
    "unlabelled": (
        lambda: {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "any"}},
        "only objects labelled app.kubernetes.io/managed-by=mirrorflow-operator",
    ),
}


@pytest.mark.parametrize("owned", [True, False])
def test_labels_removed_by_hand_are_restored(
    bounded: Kubectl,
    administrator: Kubectl,
    owned: bool,  # noqa: FBT001
):
    """The operator may restore them only on an object that a MirrorFlow owns."""
    planned = copy.deepcopy(_planned_object("ConfigMap"))
    name = f"{planned['metadata']['name']}-{owned}".lower()
    owner = {
        "apiVersion": "mirrorflow.io/v1alpha1",
        "kind": "MirrorFlow",
        "name": "east-to-west",
        "uid": "8a7a0f6c-0000-4000-8000-000000000001",
        "controller": True,
    }
    without_labels = {"name": name, "namespace": TEAM, "ownerReferences": [owner] if owned else []}
    administrator.apply({**planned, "metadata": without_labels})
    planned["metadata"]["name"] = name
    response = _dry_run(bounded, planned)

    assert owned == (response.status == 200), response.message


def _service(**spec: Any) -> Object:
    metadata = {**_planned_object("ConfigMap")["metadata"], "name": "outward"}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {"ports": [{"port": 80}], **spec},
    }


@pytest.mark.parametrize("case", CASES)
def test_an_object_outside_the_plan_is_refused(bounded: Kubectl, case: str):
    """The operator's roles allow the request. The policy refuses it with its own message."""
    make_object, sentence = CASES[case]
    response = _dry_run(bounded, make_object())

    assert response.status in {403, 422}
    assert "ValidatingAdmissionPolicy" in response.message
    assert sentence in response.message


DRIVER_POD = "a-driver"
AS_DRIVER = f'--overrides={{"spec":{{"serviceAccountName":"{SEED_ACCOUNT}"}}}}'


@pytest.fixture
def driver(installed: ApiServer, administrator: Kubectl) -> Iterator[Kubectl]:
    """kubectl as a Spark driver in the namespace of a team, with the token of its pod and the role of the chart."""
    bind = f"--serviceaccount={TEAM}:{SEED_ACCOUNT}"
    administrator("create", "serviceaccount", SEED_ACCOUNT)
    administrator(
        "create",
        "role",
        SEED_ACCOUNT,
        "--resource=pods,configmaps,jobs.batch",
        "--verb=create,get,patch,delete,deletecollection",
    )
    administrator("create", "rolebinding", SEED_ACCOUNT, f"--role={SEED_ACCOUNT}", bind)
    administrator("run", DRIVER_POD, "--image=mirrorflow/seed:1", AS_DRIVER)
    token = administrator(
        "create", "token", SEED_ACCOUNT, "--bound-object-kind=Pod", f"--bound-object-name={DRIVER_POD}"
    )
    kubeconfig = installed.folder / "driver.kubeconfig"
    document = json.loads(administrator.kubeconfig.read_text())
    document["users"] = [{"name": document["users"][0]["name"], "user": {"token": token.strip()}}]
    kubeconfig.write_text(json.dumps(document))
    yield replace(administrator, kubeconfig=kubeconfig)
    administrator("delete", "rolebinding,role,serviceaccount", SEED_ACCOUNT)
    administrator("delete", "pod", DRIVER_POD, "--force")


@pytest.fixture
def executor(administrator: Kubectl, driver: Kubectl) -> Callable[..., Object]:  # noqa: ARG001  it creates the driver pod
    """Returns a function that returns executor pods as Spark creates them. The driver's pod owns them."""
    uid = administrator.get("pod", DRIVER_POD)["metadata"]["uid"]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": DRIVER_POD, "uid": uid, "controller": True}

    def owned_executor(**changes: Any) -> Object:
        pod = _executor(**changes)
        pod["metadata"]["ownerReferences"] = [owner]
        return pod

    return owned_executor


def test_a_driver_writes_and_deletes_only_its_own_executors(
    bounded: Kubectl,  # noqa: ARG001  the policy is enforced
    driver: Kubectl,
    administrator: Kubectl,
    executor: Callable[..., Object],
):
    """Its account may delete any pod. RBAC cannot limit this by a label, so the policy checks the owner."""
    wait_until("the driver has its rights", lambda: "cannot" not in _dry_run(driver, executor()).message)
    own = _dry_run(driver, executor())
    foreign = _dry_run(driver, _executor())
    administrator("run", "theirs", "--image=other:1", "--labels=spark-role=executor", AS_DRIVER)
    refusal = "a driver may write and delete only the pods of its own executors"

    assert own.status == 201, own.message
    assert refusal in foreign.message
    with pytest.raises(KubectlError, match=refusal):
        driver("delete", "pod", "theirs", "--wait=false")
    with pytest.raises(KubectlError, match=refusal):
        driver("delete", "--raw", f"/api/v1/namespaces/{TEAM}/pods?labelSelector=spark-role%3Dexecutor")
    assert administrator.get("pod", "theirs")["metadata"].get("deletionTimestamp") is None
    driver.apply(executor())
    driver("delete", "pod", "an-executor", "--wait=false")
    administrator("delete", "pod", "theirs", "--force")


def test_a_driver_may_create_only_executors(
    bounded: Kubectl,  # noqa: ARG001  the policy is enforced
    driver: Kubectl,
    executor: Callable[..., Object],
):
    """A stolen token can only create pods with allowed images, and without a token, host access or root."""
    wait_until("the driver has its rights", lambda: "cannot" not in _dry_run(driver, executor()).message)
    response = _dry_run(driver, executor())
    assert response.status == 201, response.message

    host = {"name": "v", "hostPath": {"path": "/"}}
    refused = {
        "the network or the processes of the node": [executor(hostNetwork=True)],
        # Kubernetes turns the token into a volume before it evaluates policies.
        "a volume must be": [
            executor(automountServiceAccountToken=True),
            executor(volumes=[*executor()["spec"]["volumes"], host]),
        ],
        "restricted Pod Security": [executor(securityContext={})],
        "an image is not from": [
            executor(containers=[{**executor()["spec"]["containers"][0], "image": "other:1"}])
        ],
        "a driver may not access batch/jobs": [_seed_object("Job")],
        "a driver may not access /configmaps": [_seed_object("ConfigMap")],
    }
    messages = [
        (sentence, _dry_run(driver, pod).message) for sentence, pods in refused.items() for pod in pods
    ]
    assert [] == [(sentence, message) for sentence, message in messages if sentence not in message]


def test_objects_of_other_owners_are_refused(bounded: Kubectl, administrator: Kubectl):
    """The operator may neither take them over under a flow's name nor delete them."""
    foreign = _planned_object("ConfigMap")
    administrator("create", "configmap", foreign["metadata"]["name"], "--from-literal=a=b")

    with pytest.raises(KubectlError, match="may write and delete only objects"):
        bounded.apply(foreign, "--force-conflicts", "--field-manager=mirrorflow-operator")
    with pytest.raises(KubectlError, match="may write and delete only objects"):
        bounded("delete", "configmap", foreign["metadata"]["name"])

    assert administrator.get("configmap", foreign["metadata"]["name"])["data"] == {"a": "b"}


def test_an_extra_role_gives_the_operator_no_further_access(bounded: Kubectl, installed: ApiServer):
    """Even with cluster-admin, the operator's account cannot write other objects."""
    installed.kubectl(
        "create", "clusterrolebinding", "mistake", "--clusterrole=cluster-admin",
        f"--serviceaccount={NAMESPACE}:{OPERATOR}",
    )  # fmt: skip
    try:
        wait_until("the role is granted", lambda: "yes" in bounded("auth", "can-i", "create", "pods"))
        for arguments in (
            ("create", "role", "any", "--verb=get", "--resource=pods"),
            ("create", "secret", "generic", "any"),
            ("create", "rolebinding", "any", "--clusterrole=admin", "--user=any"),
            ("create", "token", OPERATOR, f"--namespace={NAMESPACE}"),
            ("create", "namespace", "any"),
            ("delete", "namespace", TEAM, "--dry-run=server"),
            ("label", "namespace", TEAM, "any=any"),
        ):
            with pytest.raises(KubectlError, match="the operator may not access") as refused:
                bounded(*arguments)
            assert "ValidatingAdmissionPolicy" in str(refused.value)
        with pytest.raises(KubectlError, match="may write and delete only objects"):
            bounded("create", "job", "any", "--image=mirrorflow/replicator:1")
        for outward in ({"type": "LoadBalancer"}, {"type": "ExternalName", "externalName": "example.com"}):
            assert (
                "a Service is reachable from outside the cluster"
                in _dry_run(bounded, _service(**outward)).message
            )
        assert _dry_run(bounded, _service()).status == 201
    finally:
        installed.kubectl("delete", "clusterrolebinding", "mistake")
