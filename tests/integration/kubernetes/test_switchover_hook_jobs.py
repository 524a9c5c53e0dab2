"""Hooks as Jobs on a real API server: the operator prepares them, and the process of a Switchover starts them by its Role.

There are no nodes: the tests write how the pods of the Jobs ended.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from mirrorflow_core.switchover.hook_jobs import FENCE_KINDS, hook_job_name
from mirrorflow_replicator.switchover.api_server_access import ApiRefusalError, ApiServerAccess
from mirrorflow_replicator.switchover.errors import HookJobFailedError
from mirrorflow_replicator.switchover.hook_jobs import HookJobSettings
from mirrorflow_replicator.switchover.hooks import HookAction
from tests.harness.kafka.processes import wait_until
from tests.harness.kubernetes.api_server import ApiServer
from tests.harness.kubernetes.flows import condition
from tests.harness.kubernetes.kubectl import Kubectl
from tests.harness.kubernetes.operator_process import OperatorProcess
from tests.integration.kubernetes.account_access import account_access
from tests.integration.kubernetes.controlled import manifest
from tests.integration.kubernetes.ended_pods import end_pod
from tests.integration.kubernetes.spark_jobs import SETTINGS
from tests.integration.kubernetes.switchover_rights import refusal_of, switchover_rights

API_VERSION = "mirrorflow.io/v1alpha1"
FLOWS = ("east-to-west", "west-to-east")
ACCOUNT = "east-to-west"
VARIABLES = {"MIRRORFLOW_FROM": "east", "MIRRORFLOW_TO": "west", "MIRRORFLOW_MEMBER": "east"}
FENCE, LIFT = (hook_job_name("east-west", kind) for kind in FENCE_KINDS[:2])
NAMES = {hook_job_name("east-west", kind) for kind in FENCE_KINDS}
HOOK_JOBS = "--selector=mirrorflow.io/hook"


@pytest.fixture(scope="module")
def operator(mirrorflows: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    user = mirrorflows.user("operator-of-hooks", groups=["system:masters"])
    folder = tmp_path_factory.mktemp("operator")
    with OperatorProcess(kubeconfig=user.kubeconfig, folder=folder, environment=SETTINGS) as process:
        process.wait_until_leading()
        yield process


@pytest.fixture
def pair(operator: OperatorProcess, namespace: Kubectl) -> Iterator[Kubectl]:
    """A namespace with the pair east-west, whose fence is a Job, and the rights of the chart."""
    operator.child.must_run()
    identity = {"topics": {"include": ["orders"], "naming": {"policy": "Identity"}}}
    forward = manifest("east-to-west", **identity)
    sides = {"source": forward["spec"]["target"], "target": forward["spec"]["source"]}
    namespace.apply(forward)
    namespace.apply(manifest("west-to-east", state="Stopped", **identity, **sides))
    namespace.apply(
        {
            "apiVersion": API_VERSION,
            "kind": "MirrorPair",
            "metadata": {"name": "east-west"},
            "spec": {
                "members": {"east": {"flow": "east-to-west"}, "west": {"flow": "west-to-east"}},
                "fence": {
                    "method": "Hook",
                    "hook": {"job": {"image": "example/gateway:1"}, "timeoutSeconds": 60},
                },
            },
        }
    )
    wait_until(
        "the pair is accepted",
        lambda: condition(namespace.get("mirrorpair", "east-west"), "Accepted").get("status") == "True",
    )
    with switchover_rights(namespace, "hooks", pair="east-west", flows=FLOWS):
        yield namespace


@pytest.fixture
def prepared(pair: Kubectl) -> Kubectl:
    """The namespace with a Switchover under way, whose Jobs the operator has prepared."""
    pair.apply(
        {
            "apiVersion": API_VERSION,
            "kind": "Switchover",
            "metadata": {"name": "move"},
            "spec": {"pair": "east-west", "to": "west", "type": "Planned"},
        }
    )
    wait_until("the Jobs are prepared", lambda: _jobs(pair).keys() == NAMES)
    return pair


@pytest.fixture
def access(prepared: Kubectl, tmp_path: Path) -> ApiServerAccess:
    """The access of the Switchover's pod, whose Role is that of the chart."""
    wait_until("the account exists", lambda: ACCOUNT in prepared("get", "serviceaccounts", "--output=name"))
    return account_access(prepared, ACCOUNT, tmp_path)


def _hook(namespace: Kubectl, access: ApiServerAccess) -> HookJobSettings:
    hook = HookJobSettings(
        namespace=str(namespace.namespace),
        pair="east-west",
        switchover="east-west/move",
        kinds=FENCE_KINDS,
        timeout_s=60.0,
        access=access,
    )
    wait_until("the Role is known", lambda: not asyncio.run(hook.problem()))
    return hook


def _jobs(namespace: Kubectl) -> dict[str, dict[str, Any]]:
    return {job["metadata"]["name"]: job for job in namespace.get("jobs", HOOK_JOBS)["items"]}


def _pods(namespace: Kubectl, kind: str) -> list[dict[str, Any]]:
    """Returns the pods of the hook *kind* that have not ended."""
    items: list[dict[str, Any]] = namespace.get("pods", f"--selector=mirrorflow.io/hook={kind}")["items"]
    return [pod for pod in items if pod["status"]["phase"] == "Pending"]


def _end_hook(namespace: Kubectl, kind: str, exit_code: int = 0) -> dict[str, str]:
    """Waits for the pod of the hook *kind*, and ends it as a kubelet does; returns its variables."""
    wait_until("the hook has a pod", lambda: len(_pods(namespace, kind)) == 1)
    (pod,) = _pods(namespace, kind)
    end_pod(namespace, pod, exit_code=exit_code)
    return {variable["name"]: variable["value"] for variable in pod["spec"]["containers"][0]["env"]}


@contextlib.contextmanager
def _running(hook: HookJobSettings, action: HookAction) -> Iterator[Future[None]]:
    """Runs *action* in a thread; its result is awaited at the end."""
    with ThreadPoolExecutor(1) as executor:
        future = executor.submit(lambda: asyncio.run(hook.run(action, VARIABLES)))
        yield future
        future.result()


def test_a_hook_runs_when_the_process_of_the_switchover_starts_its_job(
    prepared: Kubectl, access: ApiServerAccess
):
    """The Jobs are suspended until then, and the check starts none. Each runs once, so the operator prepares another one."""
    hook = _hook(prepared, access)
    before = prepared.get("pods", HOOK_JOBS)["items"]
    with _running(hook, HookAction.FENCE):
        fenced = _end_hook(prepared, "fence-source")
    with _running(hook, HookAction.LIFT):
        lifted = _end_hook(prepared, "lift-source")
    first = _jobs(prepared)[FENCE]["metadata"]["uid"]
    with _running(hook, HookAction.FENCE):
        again = _end_hook(prepared, "fence-source")

    assert [] == before
    assert fenced == again == {**VARIABLES, "MIRRORFLOW_ACTION": "fence", "MIRRORFLOW_PAIR": "east-west"}
    assert lifted == {**VARIABLES, "MIRRORFLOW_ACTION": "lift", "MIRRORFLOW_PAIR": "east-west"}
    assert first != _jobs(prepared)[FENCE]["metadata"]["uid"]


def test_a_hook_that_fails_is_reported_with_its_cause(prepared: Kubectl, access: ApiServerAccess):
    hook = _hook(prepared, access)

    with (
        pytest.raises(HookJobFailedError, match=r"exit code 3.*see kubectl logs"),
        _running(hook, HookAction.FENCE),
    ):
        _end_hook(prepared, "fence-source", 3)


def test_a_fence_that_runs_is_ended_before_the_lift_begins(prepared: Kubectl, access: ApiServerAccess):
    """A process that was replaced may still wait for it."""
    fence, lift = _hook(prepared, access), _hook(prepared, access)

    def lift_meanwhile() -> None:
        wait_until("the fence has a pod", lambda: len(_pods(prepared, "fence-source")) == 1)
        with _running(lift, HookAction.LIFT):
            _end_hook(prepared, "lift-source")

    with pytest.raises(HookJobFailedError, match="it was deleted"), _running(fence, HookAction.FENCE):
        lift_meanwhile()

    assert [] == _pods(prepared, "fence-source")


def test_the_process_of_a_switchover_may_only_read_start_and_delete_these_jobs(
    prepared: Kubectl, access: ApiServerAccess
):
    """It can neither change what a Job runs, or for whom injectors take its pod, nor create or read anything else."""
    _hook(prepared, access)
    jobs = f"/apis/batch/v1/namespaces/{prepared.namespace}/jobs"
    container = {"name": "hook", "image": "example/other:1"}
    other_template = {"spec": {"template": {"spec": {"containers": [container]}}}}
    other_account = {"spec": {"template": {"spec": {"serviceAccountName": "default"}}}}
    annotated = {"spec": {"template": {"metadata": {"annotations": {"inject": "true"}}}}}
    limited: list[dict[str, Any]] = [
        annotated,
        {"spec": {"template": {"spec": {"nodeSelector": {"zone": "a"}}}}},
        {"spec": {"parallelism": 0}},
        {"metadata": {"labels": {"app.kubernetes.io/managed-by": "other"}}},
    ]
    wait_until(
        "the policy is enforced",
        lambda: (
            "a Switchover may only" in refusal_of(access, "PATCH", f"{jobs}/{LIFT}?dryRun=All", annotated)
        ),
    )
    job = {**_jobs(prepared)[FENCE], "metadata": {"name": "mine", "namespace": prepared.namespace}}
    refused: dict[tuple[str, str], tuple[int, dict[str, Any] | None]] = {
        ("PATCH", f"{jobs}/{FENCE}"): (422, other_template),
        ("PATCH", f"{jobs}/{LIFT}"): (422, other_account),
        ("PATCH", f"{jobs}/{FENCE}/status"): (403, {}),
        ("PUT", f"{jobs}/{FENCE}"): (403, _jobs(prepared)[FENCE]),
        ("POST", jobs): (403, job),
        ("GET", jobs): (403, None),
        ("GET", f"{jobs}/move-switchover"): (403, None),
        ("DELETE", f"{jobs}/move-switchover"): (403, None),
        ("PATCH", f"{jobs}/move-switchover"): (403, {"spec": {"suspend": True}}),
        ("GET", f"/api/v1/namespaces/{prepared.namespace}/secrets/any"): (403, None),
        ("GET", f"/api/v1/namespaces/{prepared.namespace}/pods"): (403, None),
        ("GET", f"/apis/batch/v1/namespaces/default/jobs/{FENCE}"): (403, None),
    }

    statuses = {}
    for (method, path), (_, body) in refused.items():
        with pytest.raises(ApiRefusalError) as refusal:
            access.request(method, path, body)
        statuses[method, path] = refusal.value.status

    assert [] == [
        body
        for body in limited
        if "a Switchover may" not in refusal_of(access, "PATCH", f"{jobs}/{FENCE}", body)
    ]
    assert {request: status for request, (status, _) in refused.items()} == statuses


def test_a_job_that_was_deleted_is_prepared_again_and_all_go_with_the_end_of_the_switchover(
    prepared: Kubectl,
):
    uid = _jobs(prepared)[LIFT]["metadata"]["uid"]
    prepared("delete", "job", LIFT)
    wait_until(
        "it is prepared again",
        lambda: _jobs(prepared).get(LIFT, {"metadata": {"uid": uid}})["metadata"]["uid"] != uid,
    )
    prepared("delete", "switchover", "move")
    prepared("delete", "mirrorpair", "east-west")
    is_kept = _jobs(prepared).keys() == NAMES
    (pod,) = prepared.get("pods", "--selector=mirrorflow.io/switchover=move")["items"]
    end_pod(prepared, pod)
    wait_until("the Jobs of the hook are deleted", lambda: not _jobs(prepared))

    assert is_kept


def test_the_hook_of_another_switchover_is_not_started(prepared: Kubectl, access: ApiServerAccess):
    hook = _hook(prepared, access)
    earlier = _jobs(prepared)[FENCE]["metadata"]["uid"]
    prepared("annotate", "job", FENCE, "--overwrite", "mirrorflow.io/switchover-id=east-west/earlier")
    with _running(hook, HookAction.FENCE):
        wait_until(
            "it was replaced",
            lambda: _jobs(prepared).get(FENCE, {"metadata": {"uid": earlier}})["metadata"]["uid"] != earlier,
        )
        variables = _end_hook(prepared, "fence-source")

    assert "fence" == variables["MIRRORFLOW_ACTION"]
