"""Helm's upgrade, rollback and upgrade again, with eight flows: nothing that flows have is lost, and no connector is replaced."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.harness.kafka.processes import wait_until
from tests.harness.kubernetes.api_server import ApiServer
from tests.harness.kubernetes.chart import CHART, NAMESPACE, OPERATOR_GROUPS, OPERATOR_USER, RELEASE
from tests.harness.kubernetes.flows import condition
from tests.harness.kubernetes.helm import Helm, HelmError
from tests.harness.kubernetes.kubectl import Kubectl
from tests.harness.kubernetes.operator_process import OperatorProcess

FLOWS = [f"flow-{number}" for number in range(8)]
CRD = "mirrorflows.mirrorflow.io"
OLD_VALUES = Path(__file__).parent / "values-of-1a40a54.yaml"
OLD_TEMPLATE = Path(__file__).parent / "crd-of-1a40a54.tpl"


def _earlier_chart(folder: Path) -> Path:
    """A chart with the values of an earlier release, and a CRD without a field that is pinned and one of the spec."""
    chart = Path(shutil.copytree(CHART, folder / "earlier"))
    shutil.copy(OLD_VALUES, chart / "values.yaml")
    file = chart / "crds" / "mirrorflows.yaml"
    definition = yaml.safe_load(file.read_text())
    properties = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    del properties["status"]["properties"]["flowId"]
    del properties["spec"]["properties"]["takeOverFrom"]
    file.write_text(yaml.safe_dump(definition))
    return chart


def _pre_release_chart(folder: Path) -> Path:
    """The same, with the CRD among its templates."""
    chart = _earlier_chart(folder)
    (chart / "crds" / "mirrorflows.yaml").rename(chart / "files" / "mirrorflows.yaml")
    (chart / "crds").rmdir()
    (chart / "templates" / "crd-check.yaml").unlink()
    shutil.copy(OLD_TEMPLATE, chart / "templates" / "crd.yaml")
    return chart


def _flow(name: str) -> dict[str, Any]:
    """Between clusters of its own."""
    sides = {
        side: {"alias": f"{side}-{name}", "bootstrapServers": [f"{side}.{name}.example:9092"]}
        for side in ("source", "target")
    }
    return {
        "apiVersion": "mirrorflow.io/v1alpha1",
        "kind": "MirrorFlow",
        "metadata": {"name": name},
        "spec": {**sides, "takeOverFrom": [f"former-{name}"]},
    }


def _fields(kubectl: Kubectl) -> set[str]:
    """Which of both fields the CRD has."""
    version = kubectl.get("crd", CRD)["spec"]["versions"][0]
    properties = version["schema"]["openAPIV3Schema"]["properties"]
    return {"flowId", "takeOverFrom"} & {
        *properties["status"]["properties"], *properties["spec"]["properties"]
    }  # fmt: skip


def _make_definition_newer(kubectl: Kubectl) -> None:
    """As the operator of a later release leaves it behind: each flow has its new field, by default."""
    field = {"type": "string", "default": "as ever"}
    path = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/newer"
    patch = [
        {"op": "add", "path": path, "value": field},
        {"op": "add", "path": "/metadata/annotations/mirrorflow.io~1release", "value": "99.0.0"},
    ]
    kubectl("patch", "crd", CRD, "--type=json", f"--patch={json.dumps(patch)}")


def _pinned(kubectl: Kubectl) -> Mapping[str, tuple[str, str, list[str]]]:
    return {
        one["metadata"]["name"]: (
            one["status"].get("version", ""),
            one["status"].get("flowId", ""),
            one["spec"].get("takeOverFrom", []),
        )
        for one in kubectl.get("mirrorflows")["items"]
        if "status" in one
    }


def _templates(kubectl: Kubectl) -> Mapping[str, Any]:
    return {
        one["metadata"]["name"]: (one["metadata"]["uid"], one["spec"]["template"])
        for one in kubectl.get("deployments", "--selector=mirrorflow.io/flow")["items"]
    }


@pytest.mark.usefixtures("with_helm")
def test_upgrade_rollback_and_upgrade_again_lose_nothing(tmp_path: Path):
    """The CRD gets the newer fields and keeps them; reused values that were removed are named and refuse nothing."""
    with ApiServer(folder=tmp_path / "server", controllers=False) as server:
        helm = Helm(kubectl=server.kubectl.within(NAMESPACE))
        helm(
            "install",
            RELEASE,
            str(_earlier_chart(tmp_path)),
            "--create-namespace",
            "--set=watch.cluster=true",
        )
        server.kubectl("create", "namespace", "team")
        team = server.kubectl.within("team")
        earlier = _fields(team)

        said = helm("upgrade", RELEASE, str(CHART), "--reuse-values")
        of_helm = _fields(team)
        _reconcile(server, tmp_path / "first", apply=True)
        pinned, templates = _pinned(team), _templates(team)
        helm("rollback", RELEASE)
        after_rollback, kept = _fields(team), _pinned(team)
        _make_definition_newer(team)
        helm("upgrade", RELEASE, str(CHART), "--reuse-values")
        _reconcile(server, tmp_path / "second", apply=False)

        assert (earlier, of_helm) == (set(), set())
        for flow in team.get("mirrorflows")["items"]:
            assert flow["spec"]["newer"] == "as ever"
            assert condition(flow, "Accepted")["status"] == "True"
            assert "spec.newer: this operator is older" in condition(flow, "Degraded")["message"]
        assert "The value autoscaleCalmSeconds was removed and has no effect" in said
        assert set(pinned) == set(FLOWS)
        assert all(version and id_ and former for version, id_, former in pinned.values())
        assert after_rollback == _fields(team) == {"flowId", "takeOverFrom"}
        assert pinned == kept == _pinned(team)
        assert templates == _templates(team)
        assert len(templates) == 3 * len(FLOWS)


def _reconcile(server: ApiServer, folder: Path, *, apply: bool) -> None:
    """The operator of this work tree, with the rights that the chart gives, works until nothing is left to do."""
    user = server.user(OPERATOR_USER, OPERATOR_GROUPS)
    team = server.kubectl.within("team")
    with OperatorProcess(
        kubeconfig=user.kubeconfig,
        folder=folder,
        environment={"POD_NAMESPACE": NAMESPACE, "MIRRORFLOW_LEASE": "mirrorflow-operator"},
    ) as process:
        process.wait_until_leading()
        for name in FLOWS if apply else ():
            team.apply(_flow(name))
        wait_until(
            "all are reconciled",
            lambda: len(_pinned(team)) == len(FLOWS) and len(_templates(team)) == 3 * len(FLOWS),
        )
        wait_until("nothing is left to do", lambda: process.idle)
        process.child.stop()


@pytest.mark.usefixtures("with_helm")
def test_the_way_back_to_a_pre_release_takes_nothing_back(tmp_path: Path):
    """Helm refuses the rollback, because the CRD is no part of the release; an upgrade to that chart without it goes back."""
    with ApiServer(folder=tmp_path / "server", controllers=False) as server:
        helm = Helm(kubectl=server.kubectl.within(NAMESPACE))
        before = _pre_release_chart(tmp_path)
        helm(
            "install", RELEASE, str(before), "--create-namespace", "--set=watch.cluster=true,crds.keep=false"
        )
        server.kubectl("create", "namespace", "team")
        team = server.kubectl.within("team")

        with pytest.raises(HelmError) as refused:
            helm("upgrade", RELEASE, str(CHART), "--reuse-values")
        assert f"First run: kubectl annotate crd {CRD} helm.sh/resource-policy=keep" in str(refused.value)
        assert team.get("crd", CRD)

        server.kubectl("annotate", "crd", CRD, "helm.sh/resource-policy=keep")
        said = helm("upgrade", RELEASE, str(CHART), "--reuse-values")
        _reconcile(server, tmp_path / "first", apply=True)
        pinned, templates = _pinned(team), _templates(team)
        with pytest.raises(HelmError, match=f'no CustomResourceDefinition with the name "{CRD}" found'):
            helm("rollback", RELEASE, "1")
        after_rollback = _fields(team), _pinned(team), _templates(team)
        back = tmp_path / "values.yaml"
        back.write_text(helm("get", "values", RELEASE, "--revision=1", "--output=yaml"))
        helm("upgrade", RELEASE, str(before), f"--values={back}", "--set=crds.enabled=false")
        after_way_back = _fields(team), _pinned(team), _templates(team)
        helm("upgrade", RELEASE, str(CHART), "--reuse-values", "--set=crds.enabled=true")
        _reconcile(server, tmp_path / "second", apply=False)

        assert f"helm upgrade {RELEASE} CHART --namespace {NAMESPACE} --values values.yaml" in said
        assert len(pinned) == len(FLOWS)
        assert all(version and id_ and former for version, id_, former in pinned.values())
        assert len(templates) == 3 * len(FLOWS)
        there = {"flowId", "takeOverFrom"}, pinned, templates
        assert there == after_rollback == after_way_back == (_fields(team), _pinned(team), _templates(team))
