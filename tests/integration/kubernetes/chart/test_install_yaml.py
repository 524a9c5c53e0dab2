"""install.yaml installs the operator without Helm: a real API server accepts the file."""

from pathlib import Path

import pytest

from release.contents import installation
from tests.harness.kafka.processes import wait_until
from tests.harness.kubernetes import chart
from tests.harness.kubernetes.api_server import ApiServer
from tests.harness.kubernetes.chart import CHART, KUBERNETES

NAMESPACE = "mirrorflow-system"


@pytest.mark.usefixtures("with_helm")
def test_install_yaml_installs_the_operator(tmp_path: Path):
    """A second apply changes nothing."""
    rendered = chart.helm(
        "template", "mirrorflow", str(CHART), f"--namespace={NAMESPACE}",
        f"--kube-version={KUBERNETES}", "--include-crds", "--no-hooks",
    )  # fmt: skip
    file = tmp_path / "install.yaml"
    file.write_text(installation(rendered, NAMESPACE))
    with ApiServer(folder=tmp_path / "server", controllers=False) as server:
        apply = ("apply", "--server-side", f"--filename={file}")
        operator = server.kubectl.within(NAMESPACE)
        operator(*apply)
        wait_until(
            "the API server serves MirrorFlows",
            lambda: "mirrorflows" in server.kubectl("api-resources", "--api-group=mirrorflow.io"),
        )
        before = operator.get("deployment", "mirrorflow-operator")["metadata"]["generation"]
        operator(*apply)

        assert operator.get("deployment", "mirrorflow-operator")["metadata"]["generation"] == before
        assert operator.get("validatingadmissionpolicies")["items"]
