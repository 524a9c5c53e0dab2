"""The chart's policy on the objects of Switchovers: what the operator creates for them, and which Jobs may have a token."""

from typing import Any

import pytest

from mirrorflow_operator.api.mirror_pair import MirrorPair
from mirrorflow_operator.plan.fence_policies import fence_policies
from mirrorflow_operator.plan.hook_jobs import hook_jobs
from mirrorflow_operator.plan.switchover_objects import FlowOfPair, switchover_objects
from tests.harness.kafka.processes import wait_until
from tests.harness.kubernetes.kubectl import Kubectl, KubectlError
from tests.integration.kubernetes.chart.conftest import ENDPOINT, HOOK_ACCOUNT, HOOK_IMAGE, TEAM
from tests.unit.operator.pairs import flow, mirror_pair, switchover

NAMES = {"east": "kafka.east.example.com", "west": "kafka.west.example.com"}
SERVICE = {"service": {"name": ENDPOINT, "externalNames": NAMES}}
HOOK = {"hook": {"job": {"image": f"{HOOK_IMAGE}:1"}}}
HAS_TOKEN = "a pod uses the network or the processes of the node, or has a token"
Object = dict[str, Any]


@pytest.fixture(scope="module")
def bounded(operator: Kubectl) -> Kubectl:
    """kubectl as the operator, after the policy is in force."""
    unlabelled = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "any"}}
    wait_until(
        "the policy is enforced", lambda: "may write and delete only" in _refusal(operator, unlabelled)
    )
    return operator


def _objects(pair: MirrorPair, forward: str = "east-to-west") -> list[Object]:
    """Returns the objects of a Switchover of *pair* in the namespace of the team, whose flow is named *forward*."""
    flows = {
        alias: FlowOfPair(flow=flow(alias, other), flow_id=f"{alias}.{TEAM}", version="0.1.0")
        for alias, other in (("east", "west"), ("west", "east"))
    }
    east = flows["east"].flow
    metadata = east.metadata.model_copy(update={"name": forward})
    flows["east"] = FlowOfPair(
        flow=east.model_copy(update={"metadata": metadata}), flow_id=f"east.{TEAM}", version="0.1.0"
    )
    planned = switchover_objects(
        switchover(), pair, flows, image="mirrorflow/replicator", begin_until_ms=1_796_000_300_000
    )
    return [{**item, "metadata": {**item["metadata"], "namespace": TEAM}} for item in planned]


def _hook_jobs(**template: Any) -> list[Object]:
    """Returns the Jobs of a pair's hook with *template* in the namespace of the team."""
    pair = mirror_pair(endpoint={"hook": {"job": {"image": f"{HOOK_IMAGE}:1", **template}}})
    jobs = hook_jobs(pair, "east-west/move", source="east", to="west")
    return [{**job, "metadata": {**job["metadata"], "namespace": TEAM}} for job in jobs]


def _refusal(user: Kubectl, manifest: Object) -> str:
    """Returns why the API server refuses *manifest*; "" if it does not."""
    try:
        user.apply(manifest, "--dry-run=server", "--force-conflicts", "--field-manager=mirrorflow-operator")
    except KubectlError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    "endpoint", [None, SERVICE, HOOK], ids=["without-token", "with-endpoint", "with-hook-job"]
)
def test_the_operator_may_create_the_objects_of_a_switchover(bounded: Kubectl, endpoint: Object | None):
    """The Job that switches an endpoint, or starts a hook, has a token, because the chart's values name its flow."""
    pair = mirror_pair() if endpoint is None else mirror_pair(endpoint=endpoint)

    assert ["", "", ""] == [_refusal(bounded, manifest) for manifest in _objects(pair)]


def test_a_job_with_a_token_of_an_account_that_no_value_names_is_refused(bounded: Kubectl):
    planned = _objects(mirror_pair(endpoint=SERVICE), forward="other-flow")

    refusals = [_refusal(bounded, manifest) for manifest in planned]

    assert ["", ""] == refusals[:2]
    assert HAS_TOKEN in refusals[2]


def test_the_job_of_a_hook_may_have_the_token_of_an_account_that_a_value_names(bounded: Kubectl):
    without, named, other = (
        _hook_jobs(),
        _hook_jobs(serviceAccountName=HOOK_ACCOUNT),
        _hook_jobs(serviceAccountName="default"),
    )

    assert [""] == [_refusal(bounded, job) for job in without]
    assert [""] == [_refusal(bounded, job) for job in named]
    assert [True] == [HAS_TOKEN in _refusal(bounded, job) for job in other]


def test_the_operator_may_create_the_policies_of_a_fence(bounded: Kubectl):
    brokers = {"east": {"cluster": "east"}, "west": {"cluster": "west"}}
    fence = {"method": "NetworkPolicy", "networkPolicy": {"brokers": brokers, "ports": [9092]}}
    policies = fence_policies(mirror_pair(fence=fence)).values()

    assert ["", ""] == [
        _refusal(bounded, {**policy, "metadata": {**policy["metadata"], "namespace": TEAM}})
        for policy in policies
    ]


def test_the_image_of_a_hook_has_to_be_allowed(bounded: Kubectl):
    (job,) = _hook_jobs(image="other.example/gateway:1")

    assert "add its repository to admission.workloads.repositories" in _refusal(bounded, job)
