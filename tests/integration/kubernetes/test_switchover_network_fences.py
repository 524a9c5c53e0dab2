"""A fence by NetworkPolicy on a real API server: prepared by the operator, put in force by the process of a Switchover.

There are no nodes, so nothing enforces a policy here.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mirrorflow_replicator.switchover.api_server_access import ApiServerAccess
from mirrorflow_replicator.switchover.hooks import HookAction
from mirrorflow_replicator.switchover.network_policy_fence import FencePolicy, NetworkFenceSettings
from tests.harness.kafka.processes import wait_until
from tests.harness.kubernetes.api_server import ApiServer
from tests.harness.kubernetes.flows import condition
from tests.harness.kubernetes.kubectl import Kubectl
from tests.harness.kubernetes.operator_process import OperatorProcess
from tests.integration.kubernetes.account_access import account_access
from tests.integration.kubernetes.controlled import manifest
from tests.integration.kubernetes.spark_jobs import SETTINGS
from tests.integration.kubernetes.switchover_rights import refusal_of, switchover_rights

API_VERSION = "mirrorflow.io/v1alpha1"
FLOWS = ("east-to-west", "west-to-east")
EAST, WEST = (f"east-west-fence-{flow}" for flow in FLOWS)
ACCOUNT = "east-to-west"
ONLY = "a Switchover may only put the NetworkPolicy of a fence in force, or out of it"


@pytest.fixture
def operator(mirrorflows: ApiServer, namespace: Kubectl, tmp_path: Path) -> Iterator[OperatorProcess]:
    user = mirrorflows.user(f"operator-of-{namespace.namespace}", groups=["system:masters"])
    with OperatorProcess(
        kubeconfig=user.kubeconfig, folder=tmp_path, namespaces=[namespace.namespace], environment=SETTINGS
    ) as process:
        process.wait_until_leading()
        yield process


@pytest.fixture
def prepared(operator: OperatorProcess, namespace: Kubectl) -> Iterator[Kubectl]:
    """A namespace with a Switchover under way whose fence is prepared, and the Role and the policy of the chart."""
    operator.child.must_run()
    identity = {"topics": {"include": ["orders"], "naming": {"policy": "Identity"}}}
    forward = manifest("east-to-west", **identity)
    sides = {"source": forward["spec"]["target"], "target": forward["spec"]["source"]}
    namespace.apply(forward)
    namespace.apply(manifest("west-to-east", state="Stopped", **identity, **sides))
    namespace.apply(_pair())
    wait_until(
        "the pair is accepted",
        lambda: condition(namespace.get("mirrorpair", "east-west"), "Accepted").get("status") == "True",
    )
    namespace.apply(
        {
            "apiVersion": API_VERSION,
            "kind": "Switchover",
            "metadata": {"name": "move"},
            "spec": {"pair": "east-west", "to": "west", "type": "Planned"},
        }
    )
    wait_until("the policies are prepared", lambda: _policies(namespace).keys() == {EAST, WEST})
    with switchover_rights(namespace, "fences", pair="east-west", flows=FLOWS):
        yield namespace


@pytest.fixture
def access(prepared: Kubectl, tmp_path: Path) -> ApiServerAccess:
    """The access of the Switchover's pod, after the admission policy is in force."""
    wait_until("the account exists", lambda: ACCOUNT in prepared("get", "serviceaccounts", "--output=name"))
    access = account_access(prepared, ACCOUNT, tmp_path)
    path = f"{_path(prepared, EAST)}?dryRun=All"
    wait_until(
        "the policy is enforced",
        lambda: ONLY in refusal_of(access, "PATCH", path, {"spec": {"ingress": [{}]}}),
    )
    return access


def _pair() -> dict[str, Any]:
    return {
        "apiVersion": API_VERSION,
        "kind": "MirrorPair",
        "metadata": {"name": "east-west"},
        "spec": {
            "members": {"east": {"flow": "east-to-west"}, "west": {"flow": "west-to-east"}},
            "fence": {
                "method": "NetworkPolicy",
                "networkPolicy": {
                    "brokers": {"east": {"cluster": "east"}, "west": {"cluster": "west"}},
                    "ports": [9092],
                    "allowed": [{"cidr": "10.9.0.0/16"}],
                },
            },
        },
    }


def _path(namespace: Kubectl, name: str) -> str:
    return f"/apis/networking.k8s.io/v1/namespaces/{namespace.namespace}/networkpolicies/{name}"


def _policies(namespace: Kubectl) -> dict[str, dict[str, Any]]:
    items = namespace.get("networkpolicies", "--selector=mirrorflow.io/fence")["items"]
    return {item["metadata"]["name"]: item for item in items}


def _operators(namespace: Kubectl) -> dict[str, str]:
    """Returns what the requirement of each policy has: DoesNotExist in force, Exists out of it."""
    return {
        name: policy["spec"]["podSelector"]["matchExpressions"][0]["operator"]
        for name, policy in _policies(namespace).items()
    }


def _fence(namespace: Kubectl, access: ApiServerAccess) -> NetworkFenceSettings:
    policies = _policies(namespace)
    digests = {
        name: policy["metadata"]["annotations"]["mirrorflow.io/fence-digest"]
        for name, policy in policies.items()
    }
    return NetworkFenceSettings(
        namespace=str(namespace.namespace),
        source="east",
        policies={
            "east": FencePolicy(name=EAST, digest=digests[EAST]),
            "west": FencePolicy(name=WEST, digest=digests[WEST]),
        },
        settle_s=0.0,
        access=access,
    )


def test_a_fence_is_put_in_force_stays_without_its_pair_and_is_lifted(
    prepared: Kubectl, access: ApiServerAccess
):
    """The operator neither puts it in force nor out of it, and the check changes nothing."""
    fence = _fence(prepared, access)
    problem, before = asyncio.run(fence.problem()), _operators(prepared)
    asyncio.run(fence.run(HookAction.FENCE, {"MIRRORFLOW_MEMBER": "east"}))
    fenced = _operators(prepared)
    prepared("delete", "switchover", "move")
    prepared("delete", "mirrorpair", "east-west")
    prepared.apply(_pair())
    wait_until(
        "the pair is observed",
        lambda: condition(prepared.get("mirrorpair", "east-west"), "Accepted").get("status") == "True",
    )
    kept = _operators(prepared)
    asyncio.run(fence.run(HookAction.LIFT, {"MIRRORFLOW_MEMBER": "east"}))

    assert ("", {EAST: "Exists", WEST: "Exists"}) == (problem, before)
    assert {EAST: "DoesNotExist", WEST: "Exists"} == fenced == kept
    assert before == _operators(prepared)


def test_the_process_of_a_switchover_may_change_nothing_but_whether_a_fence_is_in_force(
    prepared: Kubectl, access: ApiServerAccess
):
    """RBAC would let it select other pods, or let everybody through."""
    policy = _policies(prepared)[EAST]
    folder = _path(prepared, "")[:-1]
    mine = {**policy, "metadata": {"name": "mine", "namespace": prepared.namespace}}
    limited: list[dict[str, Any]] = [
        {"spec": {"ingress": [{}]}},
        {"spec": {"podSelector": {"matchLabels": {"cluster": "other"}}}},
        {"spec": {"podSelector": {"matchExpressions": []}}},
        {"spec": {"podSelector": {"matchExpressions": [{"key": "cluster", "operator": "Exists"}]}}},
        {"spec": {"policyTypes": ["Ingress", "Egress"]}},
        {"metadata": {"annotations": {"mirrorflow.io/fence-digest": "other"}}},
    ]
    unlabelled = {"metadata": {"labels": {"app.kubernetes.io/managed-by": "other"}}}
    forbidden: list[tuple[str, str, dict[str, Any] | None]] = [
        ("DELETE", _path(prepared, EAST), None),
        ("POST", folder, mine),
        ("GET", folder, None),
        ("GET", _path(prepared, "move-switchover"), None),
        ("PATCH", _path(prepared, "move-switchover"), {"spec": {"ingress": [{}]}}),
    ]

    assert [True] * len(limited) == [
        ONLY in refusal_of(access, "PATCH", _path(prepared, EAST), body) for body in limited
    ]
    assert [True] * len(forbidden) == [
        "HTTP status 403" in refusal_of(access, method, path, body) for method, path, body in forbidden
    ]
    assert "may not change labels" in refusal_of(access, "PATCH", _path(prepared, EAST), unlabelled)
    assert policy["spec"] == _policies(prepared)[EAST]["spec"]
