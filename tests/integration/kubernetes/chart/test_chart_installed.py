"""Helm installs, upgrades and removes the chart on a real API server, which accepts every object of every mode."""

import json

import pytest

from tests.harness.kafka.processes import wait_until
from tests.harness.kubernetes.api_server import ApiServer
from tests.harness.kubernetes.chart import CHART, NAMESPACE, OPERATOR, RELEASE, Manifest, Values, rendered
from tests.harness.kubernetes.helm import Helm
from tests.harness.kubernetes.kubectl import Kubectl
from tests.integration.kubernetes.chart.conftest import TEAM, VALUES
from tests.integration.kubernetes.chart.test_chart_rendered import MODES

# Kinds of the Prometheus operator, which is not installed.
OF_PROMETHEUS = {"ServiceMonitor", "PodMonitor", "PrometheusRule"}
POLICIES = ("secrets", "workloads")


@pytest.mark.parametrize("mode", MODES)
def test_the_api_server_accepts_every_object(installed: ApiServer, mode: str):
    """Validation is strict, in a namespace that enforces the restricted Pod Security Standard."""
    namespace = f"all-of-{mode}"
    values: Values = {**MODES[mode], **({"watch": {"namespaces": [namespace]}} if mode == "several" else {})}
    installed.kubectl("create", "namespace", namespace)
    installed.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    manifests = [
        manifest
        for manifest in rendered(values, namespace=namespace)
        if manifest["kind"] not in OF_PROMETHEUS
    ]
    accounts = [manifest for manifest in manifests if manifest["kind"] == "ServiceAccount"]
    kubectl = installed.kubectl.within(namespace)
    kubectl.apply(_text(accounts))  # a pod is admitted only if its account exists

    output = kubectl.apply(
        _text(manifests), "--dry-run=server", "--validate=strict", "--force-conflicts", "--field-manager=test"
    )

    assert len(output.splitlines()) == len(manifests)
    assert "Warning" not in output


def _text(manifests: list[Manifest]) -> str:
    return "\n---\n".join(json.dumps(manifest) for manifest in manifests)


def test_policies_are_compiled_without_a_warning(administrator: Kubectl):
    """The API server type-checks every expression of the policies."""
    names = [f"{NAMESPACE}-{OPERATOR}-{policy}" for policy in POLICIES]
    policies = [administrator.get("validatingadmissionpolicy", name) for name in names]

    assert all(
        not policy.get("status", {}).get("typeChecking", {}).get("expressionWarnings") for policy in policies
    )


def test_an_upgrade_changes_only_objects_whose_values_changed(installed: ApiServer):
    """A release with the same values changes no object, because no object contains random values or dates."""
    helm = Helm(kubectl=installed.kubectl.within(NAMESPACE))
    before = _versions(installed.kubectl)
    helm("upgrade", RELEASE, str(CHART), "--reuse-values")
    same = _versions(installed.kubectl)
    helm("upgrade", RELEASE, str(CHART), "--reuse-values", "--set=replicas=3")
    after = _versions(installed.kubectl)
    helm("rollback", RELEASE)

    assert same == before
    assert {key for key in after if after[key] != before[key]} == {f"Deployment/{OPERATOR}"}


def _versions(kubectl: Kubectl) -> dict[str, str]:
    listed = kubectl.within(NAMESPACE)(
        "get",
        "deployment,service,serviceaccount,role,rolebinding,networkpolicy,poddisruptionbudget",
        "--output=jsonpath={range .items[*]}{.kind}/{.metadata.name} {.metadata.resourceVersion}{'\\n'}{end}",
    )
    return dict(line.split() for line in listed.splitlines())


def test_flows_outlive_the_release(installed: ApiServer):
    """Without the release, no operator reconciles the flows, and nothing deletes them.

    The next release reconciles them.
    """
    namespace = "second"
    helm = Helm(kubectl=installed.kubectl.within(namespace))
    first = Helm(kubectl=installed.kubectl.within(NAMESPACE))
    flow = {
        "apiVersion": "mirrorflow.io/v1alpha1",
        "kind": "MirrorFlow",
        "metadata": {"name": "stays"},
        "spec": {
            "source": {"alias": "east", "bootstrapServers": ["kafka-east:9092"]},
            "target": {"alias": "west", "bootstrapServers": ["kafka-west:9092"]},
        },
    }
    team = installed.kubectl.within(TEAM)
    team.apply(flow)

    first("uninstall", RELEASE)
    remaining = team.get("mirrorflows")["items"]
    helm("install", "again", str(CHART), "--create-namespace", "--set=crds.enabled=false")
    helm("uninstall", "again")
    first("install", RELEASE, str(CHART), *VALUES)

    assert [flow["metadata"]["name"] for flow in remaining] == ["stays"]
    team("delete", "mirrorflow", "stays")
    wait_until("the policies are back", lambda: "workloads" in team("get", "validatingadmissionpolicies"))
