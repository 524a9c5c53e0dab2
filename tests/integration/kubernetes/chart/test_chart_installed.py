"""Helm installs, upgrades and removes the chart on a real API server, which takes every object of every mode as it is."""

import json

import pytest

from tests.harness.kafka.processes import wait_until
from tests.harness.kubernetes.api_server import ApiServer
from tests.harness.kubernetes.chart import CHART, NAMESPACE, OPERATOR, RELEASE, Manifest, Values, rendered
from tests.harness.kubernetes.helm import Helm
from tests.harness.kubernetes.kubectl import Kubectl
from tests.integration.kubernetes.chart.conftest import TEAM, VALUES
from tests.integration.kubernetes.chart.test_chart_rendered import MODES

OF_PROMETHEUS = {"ServiceMonitor", "PodMonitor", "PrometheusRule"}  # kinds of an operator that is not here
POLICIES = ("secrets", "workloads")


@pytest.mark.parametrize("mode", MODES)
def test_the_api_server_takes_every_object(installed: ApiServer, mode: str):
    """Strictly, in namespaces that hold pods to the restricted standard."""
    namespace = f"all-of-{mode}"
    values: Values = {**MODES[mode], **({"watch": {"namespaces": [namespace]}} if mode == "several" else {})}
    installed.kubectl("create", "namespace", namespace)
    installed.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    found = [one for one in rendered(values, namespace=namespace) if one["kind"] not in OF_PROMETHEUS]
    accounts = [one for one in found if one["kind"] == "ServiceAccount"]
    there = installed.kubectl.within(namespace)
    there.apply(_text(accounts))  # pods are let in for an account that is there

    said = there.apply(
        _text(found), "--dry-run=server", "--validate=strict", "--force-conflicts", "--field-manager=test"
    )

    assert len(said.splitlines()) == len(found)
    assert "Warning" not in said


def _text(manifests: list[Manifest]) -> str:
    return "\n---\n".join(json.dumps(one) for one in manifests)


def test_policies_are_compiled_without_a_warning(administrator: Kubectl):
    """The API server has checked every expression against the types that it is about."""
    names = [f"{NAMESPACE}-{OPERATOR}-{one}" for one in POLICIES]
    found = [administrator.get("validatingadmissionpolicy", name) for name in names]

    assert all(not one.get("status", {}).get("typeChecking", {}).get("expressionWarnings") for one in found)


def test_an_upgrade_changes_what_was_asked_for_and_is_otherwise_none(installed: ApiServer):
    """A second release of the same values leaves every object as it was: no random name, no date."""
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
    """Without the release no operator reconciles them, and nothing is deleted; the next release takes over."""
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
    left = team.get("mirrorflows")["items"]
    helm("install", "again", str(CHART), "--create-namespace", "--set=crds.enabled=false")
    helm("uninstall", "again")
    first("install", RELEASE, str(CHART), *VALUES)

    assert [one["metadata"]["name"] for one in left] == ["stays"]
    team("delete", "mirrorflow", "stays")
    wait_until("the policies are back", lambda: "workloads" in team("get", "validatingadmissionpolicies"))
