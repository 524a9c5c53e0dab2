"""The chart's rights on what a Switchover changes in Kubernetes: one Role for each object or pair, and no right on others."""

import pytest

from mirrorflow_core.switchover.fence_policies import policy_name
from mirrorflow_core.switchover.hook_jobs import HookJobKind, hook_job_name
from tests.harness.kubernetes.chart import rendered

FLOWS = ["east-to-west", "west-to-east"]
pytestmark = pytest.mark.usefixtures("with_helm")


def test_each_endpoint_has_a_role_on_that_object_for_the_flows_of_its_pair():
    endpoints = [
        {"namespace": "kafka", "service": "kafka-bootstrap", "flows": FLOWS},
        {"namespace": "kafka", "configMap": "kafka-endpoint", "flows": FLOWS},
    ]
    manifests = [
        manifest
        for manifest in rendered({"switchovers": {"endpoints": endpoints}})
        if "kafka-bootstrap" in manifest["metadata"]["name"]
        or "kafka-endpoint" in manifest["metadata"]["name"]
    ]

    assert [
        [
            {
                "apiGroups": [""],
                "resources": [plural],
                "resourceNames": [name],
                "verbs": ["get", "patch"],
            }
        ]
        for plural, name in (("services", "kafka-bootstrap"), ("configmaps", "kafka-endpoint"))
    ] == [manifest["rules"] for manifest in manifests if manifest["kind"] == "Role"]
    bindings = [manifest for manifest in manifests if manifest["kind"] == "RoleBinding"]
    assert [{name for flow in FLOWS for name in (flow, f"{flow}-source")}] * 2 == [
        {subject["name"] for subject in binding["subjects"]} for binding in bindings
    ]
    assert {"kafka"} == {manifest["metadata"]["namespace"] for manifest in manifests}


def test_without_endpoints_the_chart_grants_no_role_on_endpoints():
    assert [] == [
        manifest
        for manifest in rendered()
        if manifest["kind"] == "Role"
        and any("patch" in rule["verbs"] and rule.get("resourceNames") for rule in manifest["rules"])
    ]


def test_each_pair_with_hooks_or_a_fence_has_a_role_on_objects_of_its_name():
    """The operator creates them, so their names are those of the pair and of its flows."""
    pairs = {
        "hooks": [
            {"namespace": "kafka", "pair": "east-west", "flows": FLOWS, "serviceAccounts": ["gateway"]}
        ],
        "fences": [{"namespace": "kafka", "pair": "east-west", "flows": FLOWS}],
    }
    roles = {
        manifest["metadata"]["name"].removeprefix("mirrorflow-system-mirrorflow-operator-"): manifest["rules"]
        for manifest in rendered({"switchovers": pairs})
        if manifest["kind"] == "Role" and manifest["metadata"]["namespace"] == "kafka"
    }

    jobs = [hook_job_name("east-west", kind) for kind in HookJobKind]
    policies = [policy_name("east-west", flow) for flow in FLOWS]
    assert {
        "hooks-east-west": [
            {
                "apiGroups": ["batch"],
                "resources": ["jobs"],
                "resourceNames": jobs,
                "verbs": ["get", "patch", "delete"],
            }
        ],
        "fences-east-west": [
            {
                "apiGroups": ["networking.k8s.io"],
                "resources": ["networkpolicies"],
                "resourceNames": policies,
                "verbs": ["get", "patch"],
            }
        ],
    } == roles
