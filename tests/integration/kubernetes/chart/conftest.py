"""Fixtures for tests of the Helm chart.

An API server has the chart installed for the whole cluster, but runs no pods.
"""

import json
from collections.abc import Iterator

import pytest

from tests.harness.kubernetes import spark_operator
from tests.harness.kubernetes.api_server import ApiServer
from tests.harness.kubernetes.chart import (
    CHART,
    NAMESPACE,
    OPERATOR_GROUPS,
    OPERATOR_USER,
    RELEASE,
)
from tests.harness.kubernetes.helm import Helm
from tests.harness.kubernetes.installation import require_helm
from tests.harness.kubernetes.kubectl import Kubectl
from tests.harness.kubernetes.skipping import skip_without

TEAM = "team"
# For the pair east-west in the namespace of the team.
FLOWS = ("east-to-west", "west-to-east")
ENDPOINT = "kafka"
HOOK_ACCOUNT = "gateway"
HOOK_IMAGE = "registry.example/gateway"
SWITCHOVERS = {
    "endpoints": [{"namespace": TEAM, "service": ENDPOINT, "flows": FLOWS}],
    "hooks": [{"namespace": TEAM, "pair": "east-west", "flows": FLOWS, "serviceAccounts": [HOOK_ACCOUNT]}],
}
VALUES = (
    "--set=watch.cluster=true",
    "--set=sparkApplications.enabled=true",
    '--set-json=admission.workloads.initContainerRepositories=["registry.example/certificates"]',
    f"--set-json=admission.workloads.repositories={json.dumps([HOOK_IMAGE])}",
    f"--set-json=switchovers={json.dumps(SWITCHOVERS)}",
)


@pytest.fixture(scope="session")
def with_helm(built: None) -> None:  # noqa: ARG001  without a control plane, Helm has no server
    """Skips tests if no Helm could be built."""
    skip_without(require_helm)


@pytest.fixture(scope="session")
def installed(
    with_helm: None,  # noqa: ARG001
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ApiServer]:
    """An API server with the chart installed.

    It is not shared, because the chart's policies apply to every namespace.
    """
    with ApiServer(folder=tmp_path_factory.mktemp("chart"), controllers=False) as server:
        helm = Helm(kubectl=server.kubectl.within(NAMESPACE))
        server.kubectl("create", "namespace", TEAM)  # the chart creates Roles in it
        spark_operator.install_definitions(server)
        helm("install", RELEASE, str(CHART), "--create-namespace", *VALUES)
        yield server


@pytest.fixture(scope="session")
def administrator(installed: ApiServer) -> Kubectl:
    """kubectl as an administrator, in the namespace of a team."""
    return installed.kubectl.within(TEAM)


@pytest.fixture(scope="session")
def operator(installed: ApiServer) -> Kubectl:
    """kubectl as the operator's ServiceAccount with the chart's permissions, in the namespace of a team."""
    return installed.user(OPERATOR_USER, OPERATOR_GROUPS).within(TEAM)
