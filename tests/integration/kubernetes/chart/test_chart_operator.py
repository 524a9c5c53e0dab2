"""The real operator with the settings and the rights that the chart gives, under the chart's own policies."""

from pathlib import Path

import yaml

from tests.harness.kafka.processes import wait_until
from tests.harness.kubernetes.api_server import ApiServer, Asked
from tests.harness.kubernetes.chart import (
    NAMESPACE,
    OPERATOR_USER,
    WHOLE_CLUSTER,
    granted,
    rendered,
)
from tests.harness.kubernetes.kubectl import Kubectl
from tests.harness.kubernetes.operator_process import OperatorProcess

EXAMPLES = Path(__file__).parents[3] / "examples" / "valid"
NAME = "of-the-chart"
# Variables of the Deployment that a local process sets itself: its identity and where it listens.
OWN = {"POD_NAME", "MIRRORFLOW_LISTENER", "MIRRORFLOW_NAMESPACES"}


def _environment() -> dict[str, str]:
    """As the chart's Deployment has it."""
    [deployment] = [one for one in rendered(WHOLE_CLUSTER) if one["kind"] == "Deployment"]
    variables = deployment["spec"]["template"]["spec"]["containers"][0]["env"]
    return {one["name"]: str(one.get("value", NAMESPACE)) for one in variables if one["name"] not in OWN}


def test_the_operator_does_its_work_with_the_charts_rights_under_the_charts_policies(
    installed: ApiServer, administrator: Kubectl, operator: Kubectl, tmp_path: Path
):
    """A flow gets its objects and its status, what is no longer planned goes, and nothing that it asks is refused."""
    since = installed.log_size()
    flow = yaml.safe_load((EXAMPLES / "everything.yaml").read_text())
    flow["metadata"]["name"] = NAME

    def deployments() -> set[str]:
        listed = administrator.get("deployments", f"--selector=mirrorflow.io/flow={NAME}")["items"]
        return {one["metadata"]["name"] for one in listed}

    with OperatorProcess(
        kubeconfig=operator.kubeconfig, folder=tmp_path / "operator", environment=_environment()
    ) as process:
        process.wait_until_leading()
        administrator.apply(flow)
        wait_until("all connectors are there", lambda: len(deployments()) == 3)
        wait_until(
            "the status is written",
            lambda: "observedGeneration" in administrator.get("mirrorflow", NAME).get("status", {}),
        )
        administrator(
            "patch", "mirrorflow", NAME, "--type=merge", '--patch={"spec":{"groups":{"include":[]}}}'
        )
        wait_until("what is no longer planned is gone", lambda: f"{NAME}-checkpoint" not in deployments())
        wait_until("nothing is left to do", lambda: process.idle)
        administrator("delete", "mirrorflow", NAME)

    asked = list(installed.log_of(OPERATOR_USER, since))
    assert [] == [one for one in asked if one.status in {401, 403, 422}]
    assert {one.asked for one in asked} <= granted(WHOLE_CLUSTER)
    assert Asked(verb="patch", group="mirrorflow.io", resource="mirrorflows/status") in {
        one.asked for one in asked
    }
