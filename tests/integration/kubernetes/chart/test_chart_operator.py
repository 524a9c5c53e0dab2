"""The real operator runs with the settings, the permissions and the policies of the chart."""

from pathlib import Path

import yaml

from tests.harness.kafka.processes import wait_until
from tests.harness.kubernetes.api_server import ApiServer, RequestKind
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
# The variables of the Deployment that a local process sets itself, for its identity and its listener.
OWN = {"POD_NAME", "MIRRORFLOW_LISTENER", "MIRRORFLOW_NAMESPACES"}


def _environment() -> dict[str, str]:
    """Returns the variables of the chart's Deployment, except OWN."""
    [deployment] = [manifest for manifest in rendered(WHOLE_CLUSTER) if manifest["kind"] == "Deployment"]
    variables = deployment["spec"]["template"]["spec"]["containers"][0]["env"]
    return {
        variable["name"]: str(variable.get("value", NAMESPACE))
        for variable in variables
        if variable["name"] not in OWN
    }


def test_the_operator_reconciles_a_flow_with_the_charts_permissions_and_policies(
    installed: ApiServer, administrator: Kubectl, operator: Kubectl, tmp_path: Path
):
    """The operator creates the objects, writes the status and deletes unplanned objects. No request is refused."""
    since = installed.log_size()
    flow = yaml.safe_load((EXAMPLES / "everything.yaml").read_text())
    flow["metadata"]["name"] = NAME

    def deployments() -> set[str]:
        listed = administrator.get("deployments", f"--selector=mirrorflow.io/flow={NAME}")["items"]
        return {deployment["metadata"]["name"] for deployment in listed}

    with OperatorProcess(
        kubeconfig=operator.kubeconfig, folder=tmp_path / "operator", environment=_environment()
    ) as process:
        process.wait_until_leading()
        administrator.apply(flow)
        wait_until("all connectors exist", lambda: len(deployments()) == 4)
        wait_until(
            "the status is written",
            lambda: "observedGeneration" in administrator.get("mirrorflow", NAME).get("status", {}),
        )
        administrator(
            "patch", "mirrorflow", NAME, "--type=merge", '--patch={"spec":{"groups":{"include":[]}}}'
        )
        wait_until("the unplanned connector is gone", lambda: f"{NAME}-checkpoint" not in deployments())
        wait_until("nothing is left to do", lambda: process.idle)
        administrator("delete", "mirrorflow", NAME)

    requests = list(installed.audit_log_of(OPERATOR_USER, since))
    assert [] == [request for request in requests if request.status in {401, 403, 422}]
    assert {request.kind for request in requests} <= granted(WHOLE_CLUSTER)
    assert RequestKind(verb="patch", group="mirrorflow.io", resource="mirrorflows/status") in {
        request.kind for request in requests
    }
