"""The console in the chart is opt-in and read-only, and has only permissions that it uses."""

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
    manifests = rendered({**values, "console": {"enabled": True, **console}})
    return [
        manifest
        for manifest in manifests
        if manifest["metadata"]["labels"].get("app.kubernetes.io/name") == NAME
    ]


def test_console_is_not_installed_by_default():
    assert not [manifest for manifest in rendered() if NAME in manifest["metadata"]["name"]]


@pytest.mark.parametrize("mode", MODES)
def test_console_has_only_the_permissions_that_it_uses(mode: str):
    """`tests/integration/kubernetes/test_console.py` compares the same permissions with the API server's audit log."""
    manifests = objects(MODES[mode])
    rules = [
        rule
        for manifest in manifests
        if manifest["kind"] in {"Role", "ClusterRole"}
        for rule in manifest["rules"]
    ]
    bound = {
        manifest["roleRef"]["name"] for manifest in manifests if manifest["kind"].endswith("RoleBinding")
    }

    assert all(rule in RIGHTS for rule in rules)
    assert {resource for rule in rules for resource in rule["resources"]} == {
        "mirrorflows",
        "mirrorpairs",
        "switchovers",
        "pods",
    }
    assert "system:auth-delegator" in bound  # tokenreviews and subjectaccessreviews
    assert {
        manifest["subjects"][0]["name"] for manifest in manifests if manifest["kind"].endswith("RoleBinding")
    } == {NAME}


def test_console_has_permissions_in_watched_namespaces_only():
    roles = [manifest for manifest in objects(SEVERAL_NAMESPACES) if manifest["kind"] == "Role"]

    assert {manifest["metadata"]["namespace"] for manifest in roles} == {"kafka-east", "kafka-west"}


@pytest.mark.parametrize("mode", MODES)
def test_console_pod_meets_the_restricted_standard_and_mounts_no_secret(mode: str):
    (deployment,) = (manifest for manifest in objects(MODES[mode]) if manifest["kind"] == "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]

    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert not [volume for volume in pod["volumes"] if "secret" in volume]
    assert not [variable for variable in container["env"] if "valueFrom" in variable]


def test_claims_of_results_are_mounted_read_only_and_named_by_their_namespace():
    """The right to see keys has a role of its own, which no binding of the chart and no other role has."""
    results = [
        {"namespace": "kafka-east", "claimName": "verifications-east"},
        {"namespace": "kafka-west", "claimName": "verifications-west"},
    ]
    values: Values = {**SEVERAL_NAMESPACES, "console": {"enabled": True, "results": results}}
    manifests = rendered(values)
    (deployment,) = (
        manifest
        for manifest in manifests
        if (manifest["kind"], manifest["metadata"]["name"]) == ("Deployment", NAME)
    )
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    variables = {variable["name"]: variable["value"] for variable in container["env"]}
    folders = dict(part.split("=") for part in variables["MIRRORFLOW_RESULTS"].split(","))
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    claims = {volume["name"]: volume.get("persistentVolumeClaim") for volume in pod["volumes"]}

    assert {
        namespace: claims[mounts[folder]["name"]]["claimName"] for namespace, folder in folders.items()
    } == {"kafka-east": "verifications-east", "kafka-west": "verifications-west"}
    assert all(mounts[folder]["readOnly"] for folder in folders.values())
    (role,) = (manifest for manifest in manifests if "mirrorflows/keys" in str(manifest.get("rules")))
    assert role["rules"] == [
        {"apiGroups": ["mirrorflow.io"], "resources": ["mirrorflows/keys"], "verbs": ["get"]}
    ]
    assert not [name for name in role["metadata"]["labels"] if "aggregate" in name]
    assert role["metadata"]["name"] not in {
        manifest["roleRef"]["name"] for manifest in manifests if "roleRef" in manifest
    }


def test_network_policies_admit_named_peers_to_the_console_and_the_console_to_connectors():
    policies = {
        (manifest["metadata"]["namespace"], manifest["metadata"]["name"]): manifest["spec"]
        for manifest in objects(SEVERAL_NAMESPACES)
        if manifest["kind"] == "NetworkPolicy"
    }

    assert policies[NAMESPACE, NAME]["ingress"] == []
    for name, admitted, port in (
        ("", "mirrorflow", "http"),
        ("-switchovers", "mirrorflow-switchover", "progress"),
    ):
        policy = policies["kafka-east", f"{NAMESPACE}-{NAME}{name}"]
        (rule,) = policy["ingress"]
        assert policy["podSelector"]["matchLabels"]["app.kubernetes.io/name"] == admitted
        assert rule["from"][0]["podSelector"]["matchLabels"]["app.kubernetes.io/name"] == NAME
        assert rule["ports"] == [{"port": port, "protocol": "TCP"}]
    peer = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress"}}}
    open_to_peer = [
        manifest
        for manifest in objects(OWN_NAMESPACE, **{"from": [peer]})
        if manifest["metadata"]["name"] == NAME
    ]
    (policy,) = (manifest for manifest in open_to_peer if manifest["kind"] == "NetworkPolicy")
    assert policy["spec"]["ingress"][0]["from"] == [peer]
