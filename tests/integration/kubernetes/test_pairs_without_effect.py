"""What happens to the objects of a pair, or to its operators, never changes who may write, on a real API server.

There are no nodes: the tests write how the pod of a Switchover's Job has ended.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mirrorflow_cli.switchover_job_progress import SwitchoverProgress
from mirrorflow_core.switchover.record import SwitchoverRecord
from mirrorflow_core.switchover.states import SwitchoverState, SwitchoverType
from tests.harness.kafka.processes import wait_until
from tests.harness.kubernetes.api_server import ApiServer
from tests.harness.kubernetes.kubectl import Kubectl
from tests.harness.kubernetes.operator_process import OperatorProcess
from tests.integration.kubernetes.controlled import manifest
from tests.integration.kubernetes.ended_pods import end_pod

API_VERSION = "mirrorflow.io/v1alpha1"
JOB = "move-switchover"
IDENTITY = {"topics": {"include": ["orders"], "naming": {"policy": "Identity"}}}
Object = dict[str, Any]
Start = Callable[..., OperatorProcess]


@pytest.fixture
def start(mirrorflows: ApiServer, namespace: Kubectl, tmp_path: Path) -> Iterator[Start]:
    """Starts operators for the test's namespace. Each has its own Lease, so that it leads at once."""
    with ExitStack() as running:

        def started(name: str) -> OperatorProcess:
            identity = mirrorflows.user(f"{name}-{namespace.namespace}", groups=["system:masters"])
            operator = running.enter_context(
                OperatorProcess(
                    kubeconfig=identity.kubeconfig,
                    folder=tmp_path,
                    namespaces=[namespace.namespace],
                    name=name,
                )
            )
            operator.wait_until_leading()
            return operator

        yield started


@pytest.fixture
def flows(namespace: Kubectl) -> list[Object]:
    """The flows of the pair as they are in Git; that from east to west runs."""
    forward = manifest("east-to-west", **IDENTITY)
    sides = {"source": forward["spec"]["target"], "target": forward["spec"]["source"]}
    given = [forward, manifest("west-to-east", state="Stopped", **IDENTITY, **sides)]
    for flow in given:
        namespace.apply(flow)
    namespace.apply(_pair())
    return given


def _pair(**spec: Any) -> Object:
    members = {"east": {"flow": "east-to-west"}, "west": {"flow": "west-to-east"}}
    return {
        "apiVersion": API_VERSION,
        "kind": "MirrorPair",
        "metadata": {"name": "east-west"},
        "spec": {"members": members, "fence": {"method": "DenyAcl"}, **spec},
    }


def _switchover() -> Object:
    return {
        "apiVersion": API_VERSION,
        "kind": "Switchover",
        "metadata": {"name": "move"},
        "spec": {"pair": "east-west", "to": "west", "type": "Planned"},
    }


def _pods(namespace: Kubectl) -> list[Object]:
    """Returns the pods of the Job that have not ended."""
    pods: list[Object] = namespace.get("pods", "--selector=mirrorflow.io/switchover=move")["items"]
    return [pod for pod in pods if pod["status"]["phase"] == "Pending"]


def _end_job(namespace: Kubectl) -> None:
    """The Job's process reports that applications were moved to west, and ends."""
    record = SwitchoverRecord(
        id="east-west/move",
        pair="east-west",
        type=SwitchoverType.PLANNED,
        source="east",
        to="west",
        created_ms=1_796_000_000_000,
        epoch=1,
        state=SwitchoverState.DONE,
    )
    progress = SwitchoverProgress(
        id=record.id, record=record, active="west", promoted_by=record.id, epoch=1, may_copy_back=True
    )
    wait_until("the Job has a pod", partial(_pods, namespace))
    (pod,) = _pods(namespace)
    end_pod(namespace, pod, message=progress.body().decode())
    wait_until("the forward flow has no pods", lambda: _writers(namespace)["east-to-west-source"] == 0)
    wait_until("the reverse flow has pods", lambda: _writers(namespace).get("west-to-east-source") == 1)


def _writers(namespace: Kubectl) -> Object:
    """Returns who may write, and which pods copy: the active member, by what, its flow, and the replicas of the connectors."""
    status = namespace.get("mirrorpair", "east-west").get("status", {})
    return {
        **{name: status.get(name) for name in ("active", "promotedBy", "runs")},
        **{
            item["metadata"]["name"]: item["spec"]["replicas"]
            for item in namespace.get("deployments")["items"]
        },
    }


def _is_observed(namespace: Kubectl) -> bool:
    pair = namespace.get("mirrorpair", "east-west")
    generation: int = pair["metadata"]["generation"]
    observed: int = pair.get("status", {}).get("observedGeneration", 0)
    return observed == generation


def _job(namespace: Kubectl) -> tuple[Object, Object]:
    """Returns the uid of the Job, and the files with which it runs."""
    return (
        namespace.get("job", JOB)["metadata"]["uid"],
        namespace.get("configmap", JOB)["data"],
    )


def test_a_revert_in_git_after_a_switchover_changes_nothing(
    start: Start, flows: list[Object], namespace: Kubectl
):
    """Git still says that the flow from east to west runs, and that there is no Switchover. Then it is there again."""
    start("one")
    namespace.apply(_switchover())
    _end_job(namespace)
    before = _writers(namespace)

    namespace("delete", "switchover", "move")
    for flow in flows:
        namespace.apply({**flow, "spec": {**flow["spec"], "connectors": {"source": {"tasks": 2}}}})
        namespace.apply(flow)
    namespace.apply(_pair(deadlineSeconds=90, fence={"method": "None"}))
    wait_until("the revert is observed", partial(_is_observed, namespace))
    wait_until("the former Job is gone", lambda: not namespace.get("jobs")["items"])
    reverted = _writers(namespace)
    namespace.apply(_switchover())
    # The process of the Job reads the journal, which has the switchover.
    _end_job(namespace)

    assert ("west", "east-west/move", "west-to-east") == (
        before["active"],
        before["promotedBy"],
        before["runs"],
    )
    assert before == reverted == _writers(namespace)


@pytest.mark.usefixtures("flows")
def test_a_revert_and_a_restart_during_a_switchover_change_nothing(start: Start, namespace: Kubectl):
    """The operator is killed; a pair with other settings is there when the next one starts. The Job keeps what it began with."""
    first = start("first")
    namespace.apply(_switchover())
    wait_until("the Job has a pod", partial(_pods, namespace))
    begun, before = _job(namespace), _writers(namespace)
    first.child.kill()
    namespace("delete", "mirrorpair", "east-west")
    namespace.apply(_pair(fence={"method": "None"}, deadlineSeconds=600))
    second = start("second")
    wait_until("the pair is observed", partial(_is_observed, namespace))
    meanwhile, writers = _job(namespace), _writers(namespace)
    _end_job(namespace)
    moved = _writers(namespace)
    second.child.kill()
    namespace.apply(_pair(deadlineSeconds=90))
    start("third")
    wait_until("the revert is observed", partial(_is_observed, namespace))

    assert begun == meanwhile
    assert before == writers
    assert moved == _writers(namespace)
    assert "west" == moved["active"]


@pytest.mark.usefixtures("flows")
def test_two_operators_that_both_lead_carry_a_switchover_out_once(
    start: Start, namespace: Kubectl, mirrorflows: ApiServer
):
    """Two leaders are not expected; a Lease that a slow process believes to have is enough for it."""
    users = [f"{start(name).name}-{namespace.namespace}" for name in ("one", "two")]
    namespace.apply(_switchover())
    wait_until("the Job has a pod", partial(_pods, namespace))
    begun = _job(namespace)
    _end_job(namespace)
    moved = _writers(namespace)
    namespace.apply(_pair(deadlineSeconds=90))
    wait_until("the change is observed", partial(_is_observed, namespace))

    assert begun == _job(namespace)
    assert moved == _writers(namespace)
    assert ("west", "west-to-east") == (moved["active"], moved["runs"])
    created = [
        request.name
        for user in users
        for request in mirrorflows.audit_log_of(user)
        if request.kind.verb == "create" and request.kind.resource == "jobs" and request.status == 201
    ]
    assert [JOB] == created
