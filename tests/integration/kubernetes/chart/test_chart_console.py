"""The console in the chart: opt-in, read-only, and with no right that it does not use."""

import pytest

from tests.harness.kubernetes.chart import (
    NAMESPACE,
    OWN_NAMESPACE,
    SEVERAL_NAMESPACES,
    WHOLE_CLUSTER,
    Values,
    rendered,
)
from tests.integration.kubernetes.test_console import RIGHTS

MODES = {"own": OWN_NAMESPACE, "several": SEVERAL_NAMESPACES, "cluster": WHOLE_CLUSTER}
NAME = "mirrorflow-console"
pytestmark = pytest.mark.usefixtures("with_helm")


def objects(values: Values, **console: object):
    found = rendered({**values, "console": {"enabled": True, **console}})
    return [one for one in found if one["metadata"]["labels"].get("app.kubernetes.io/name") == NAME]


def test_it_is_not_installed_unless_it_is_wanted():
    assert not [one for one in rendered() if NAME in one["metadata"]["name"]]


@pytest.mark.parametrize("mode", MODES)
def test_rights_are_those_that_it_uses(mode: str):
    """`tests/integration/kubernetes/test_console.py` compares the same rights with the API server's audit log."""
    found = objects(MODES[mode])
    rules = [rule for one in found if one["kind"] in {"Role", "ClusterRole"} for rule in one["rules"]]
    bound = {one["roleRef"]["name"] for one in found if one["kind"].endswith("RoleBinding")}

    assert all(rule in RIGHTS for rule in rules)
    assert {rule["resources"][0] for rule in rules} == {"mirrorflows", "pods"}
    assert "system:auth-delegator" in bound  # tokenreviews and subjectaccessreviews
    assert {one["subjects"][0]["name"] for one in found if one["kind"].endswith("RoleBinding")} == {NAME}


def test_rights_are_given_in_the_watched_namespaces_only():
    roles = [one for one in objects(SEVERAL_NAMESPACES) if one["kind"] == "Role"]

    assert {one["metadata"]["namespace"] for one in roles} == {"kafka-east", "kafka-west"}


@pytest.mark.parametrize("mode", MODES)
def test_pod_is_held_to_the_restricted_standard_and_mounts_no_secret(mode: str):
    (deployment,) = (one for one in objects(MODES[mode]) if one["kind"] == "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]

    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert not [volume for volume in pod["volumes"] if "secret" in volume]
    assert not [one for one in container["env"] if "valueFrom" in one]


def test_no_pod_may_open_it_unless_named_and_it_may_reach_connectors():
    policies = {
        one["metadata"]["namespace"]: one
        for one in objects(SEVERAL_NAMESPACES)
        if one["kind"] == "NetworkPolicy"
    }

    assert policies[NAMESPACE]["spec"]["ingress"] == []
    (rule,) = policies["kafka-east"]["spec"]["ingress"]
    assert rule["from"][0]["podSelector"]["matchLabels"]["app.kubernetes.io/name"] == NAME
    peer = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress"}}}
    opened = [one for one in objects(OWN_NAMESPACE, **{"from": [peer]}) if one["metadata"]["name"] == NAME]
    (policy,) = (one for one in opened if one["kind"] == "NetworkPolicy")
    assert policy["spec"]["ingress"][0]["from"] == [peer]
