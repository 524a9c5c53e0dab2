"""An upgrade, a rollback and a second upgrade with Helm keep all data of eight flows and replace no connector."""

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
from tests.harness.kubernetes.helm import Helm
from tests.harness.kubernetes.kubectl import Kubectl
from tests.harness.kubernetes.operator_process import OperatorProcess

FLOWS = [f"flow-{number}" for number in range(8)]
CRD = "mirrorflows.mirrorflow.io"
EARLIER_VALUES = Path(__file__).parent / "earlier-values.yaml"


def _earlier_chart(folder: Path) -> Path:
    """Copies the chart with the values of an earlier release, which has one CRD that lacks one pinned status field and
    one spec field.
    """
    chart = Path(shutil.copytree(CHART, folder / "earlier"))
    shutil.copy(EARLIER_VALUES, chart / "values.yaml")
    for plural in ("mirrorpairs", "switchovers"):
        (chart / "crds" / f"{plural}.yaml").unlink()
    file = chart / "crds" / "mirrorflows.yaml"
    definition = yaml.safe_load(file.read_text())
    properties = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    del properties["status"]["properties"]["flowId"]
    del properties["spec"]["properties"]["takeOverFrom"]
    file.write_text(yaml.safe_dump(definition))
    return chart


def _flow(name: str) -> dict[str, Any]:
    """Returns a flow between two clusters that no other flow has."""
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
    """Returns which of the two fields the CRD has."""
    version = kubectl.get("crd", CRD)["spec"]["versions"][0]
    properties = version["schema"]["openAPIV3Schema"]["properties"]
    return {"flowId", "takeOverFrom"} & {
        *properties["status"]["properties"], *properties["spec"]["properties"]
    }  # fmt: skip


def _make_definition_newer(kubectl: Kubectl) -> None:
    """Adds a field with a default to the CRD, like the operator of a later release."""
    field = {"type": "string", "default": "as ever"}
    path = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/newer"
    patch = [
        {"op": "add", "path": path, "value": field},
        {"op": "add", "path": "/metadata/annotations/mirrorflow.io~1release", "value": "99.0.0"},
    ]
    kubectl("patch", "crd", CRD, "--type=json", f"--patch={json.dumps(patch)}")


def _pinned(kubectl: Kubectl) -> Mapping[str, tuple[str, str, list[str]]]:
    return {
        flow["metadata"]["name"]: (
            flow["status"].get("version", ""),
            flow["status"].get("flowId", ""),
            flow["spec"].get("takeOverFrom", []),
        )
        for flow in kubectl.get("mirrorflows")["items"]
        if "status" in flow
    }


def _templates(kubectl: Kubectl) -> Mapping[str, Any]:
    return {
        deployment["metadata"]["name"]: (deployment["metadata"]["uid"], deployment["spec"]["template"])
        for deployment in kubectl.get("deployments", "--selector=mirrorflow.io/flow")["items"]
    }


@pytest.mark.usefixtures("with_helm")
def test_upgrade_rollback_and_second_upgrade_lose_nothing(tmp_path: Path):
    """The CRD gets the newer fields and keeps them."""
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
        before_upgrade = _fields(team)

        helm("upgrade", RELEASE, str(CHART), "--reuse-values")
        after_helm_upgrade = _fields(team)
        _reconcile(server, tmp_path / "first", apply=True)
        pinned, templates = _pinned(team), _templates(team)
        helm("rollback", RELEASE)
        after_rollback, pinned_after_rollback = _fields(team), _pinned(team)
        _make_definition_newer(team)
        helm("upgrade", RELEASE, str(CHART), "--reuse-values")
        _reconcile(server, tmp_path / "second", apply=False)

        assert (before_upgrade, after_helm_upgrade) == (set(), set())
        for flow in team.get("mirrorflows")["items"]:
            assert flow["spec"]["newer"] == "as ever"
            assert condition(flow, "Accepted")["status"] == "True"
            assert "spec.newer: this operator is older" in condition(flow, "Degraded")["message"]
        assert set(pinned) == set(FLOWS)
        assert all(version and id_ and former for version, id_, former in pinned.values())
        assert after_rollback == _fields(team) == {"flowId", "takeOverFrom"}
        assert pinned == pinned_after_rollback == _pinned(team)
        assert templates == _templates(team)
        assert len(templates) == 3 * len(FLOWS)


def _reconcile(server: ApiServer, folder: Path, *, apply: bool) -> None:
    """Runs the current operator with the chart's permissions until no work is left."""
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
            "all flows are reconciled",
            lambda: len(_pinned(team)) == len(FLOWS) and len(_templates(team)) == 3 * len(FLOWS),
        )
        wait_until("nothing is left to do", lambda: process.idle)
        process.child.stop()
