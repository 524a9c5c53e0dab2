"""The chart's rights on the endpoints of pairs: one Role for each object, and no right on others."""

import pytest

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
